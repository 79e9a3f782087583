//! Straight scripts: those without loops and without functions, which call only commands that are named in the text and
//! functions that take no longer than their arguments are long. Those of `cjson` and `cmsgpack` take longer, if a table
//! has the same one several times. Whatever the arguments are, such a script ends as soon
//! as a transaction with its commands would, so it may run on the thread that serves its client.
//!
//! The check reads tokens and knows no scopes. It errs on one side: a script that it does not understand is not
//! straight, and runs on a thread for scripts.

use crate::redis::command::{Does, Keys};
use crate::redis::commands;

/// Maximum size of a straight script in bytes.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Maximum number of commands of a straight script.
const COMMANDS_MAX: usize = 64;
/// Maximum number of its commands, calls of functions, and joined texts: each may take as long as a text of 8 MiB
/// takes.
const CALLS_MAX: usize = 128;

/// Words of Lua that repeat code, or make functions.
const REPEATING: [&[u8]; 7] = [b"for", b"while", b"repeat", b"until", b"function", b"goto", b"in"];
/// Other words of Lua.
const WORDS: [&[u8]; 15] = [
    b"and", b"break", b"do", b"else", b"elseif", b"end", b"false", b"if", b"local", b"nil", b"not", b"or", b"return",
    b"then", b"true",
];
/// Libraries, with the functions and values that a straight script may use.
const LIBRARIES: [(&[u8], &[&[u8]]); 6] = [
    (
        b"redis",
        &[
            b"call",
            b"pcall",
            b"error_reply",
            b"status_reply",
            b"sha1hex",
            b"replicate_commands",
            b"REDIS_VERSION",
            b"REDIS_VERSION_NUM",
            b"LOG_DEBUG",
            b"LOG_VERBOSE",
            b"LOG_NOTICE",
            b"LOG_WARNING",
            b"log",
            b"setresp",
        ],
    ),
    (b"string", &[b"sub", b"len", b"lower", b"upper", b"reverse", b"byte", b"char", b"format"]),
    (b"table", &[b"concat", b"insert", b"remove", b"getn", b"maxn"]),
    (
        b"math",
        &[
            b"abs", b"ceil", b"floor", b"max", b"min", b"huge", b"fmod", b"mod", b"modf", b"pow", b"sqrt", b"log",
            b"log10", b"exp", b"random", b"pi",
        ],
    ),
    (b"struct", &[b"pack", b"unpack", b"size"]),
    (
        b"bit",
        &[
            b"tobit", b"tohex", b"bnot", b"band", b"bor", b"bxor", b"lshift", b"rshift", b"arshift", b"rol", b"ror",
            b"bswap",
        ],
    ),
];
const FUNCTIONS: [&[u8]; 9] =
    [b"tonumber", b"tostring", b"type", b"select", b"unpack", b"next", b"error", b"assert", b"rawequal"];
/// Methods of strings.
const METHODS: [&[u8]; 6] = [b"sub", b"len", b"lower", b"upper", b"reverse", b"byte"];
/// Commands about the connection or the server that return immediately.
const OWN: [&str; 3] = ["TIME", "PING", "ECHO"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Name(&'t [u8]),
    Text(&'t [u8]),
    Number,
    Sign(u8),
}

/// Returns `true` if the script is straight.
pub(super) fn is_straight(text: &[u8]) -> bool {
    text.len() <= TEXT_BYTES_MAX && tokens(text).is_some_and(|tokens| check(&tokens).is_some())
}

/// Returns `None` if the tokens are not those of a straight script.
fn check(tokens: &[Token<'_>]) -> Option<()> {
    let (mut commands, mut calls) = (0, 0);
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let before = at.checked_sub(1).map(|at| tokens[at]);
        let after = tokens.get(at + 1).copied();
        match token {
            Token::Name(word) if REPEATING.contains(word) => return None,
            Token::Name(b"local") => at = declared(tokens, at + 1)?,
            Token::Name(word) if WORDS.contains(word) => {}
            Token::Name(method) if before == Some(Token::Sign(b':')) => METHODS.contains(method).then_some(())?,
            Token::Name(_) if before == Some(Token::Sign(b'.')) => not_called(after)?,
            Token::Name(b"pcall") => {
                let rest = [Token::Sign(b'('), Token::Name(b"redis"), Token::Sign(b'.'), Token::Name(b"call")];
                (tokens.get(at + 1..at + 5)? == rest && tokens.get(at + 5)? == &Token::Sign(b',')).then_some(())?;
                check_command(*tokens.get(at + 6)?, tokens.get(at + 7).copied())?;
                commands += 1;
                at += 6;
            }
            Token::Name(word) if library(word).is_some() => {
                let (Token::Sign(b'.'), Some(Token::Name(part))) = (after?, tokens.get(at + 2)) else {
                    return None;
                };
                library(word)?.contains(part).then_some(())?;
                if *word == b"redis" && matches!(*part, b"call" | b"pcall") {
                    (tokens.get(at + 3)? == &Token::Sign(b'(')).then_some(())?;
                    check_command(*tokens.get(at + 4)?, tokens.get(at + 5).copied())?;
                    commands += 1;
                    at += 4;
                } else {
                    at += 2;
                }
            }
            Token::Name(word) if FUNCTIONS.contains(word) => (after? == Token::Sign(b'(')).then_some(())?,
            Token::Name(word) if is_variable(word) => not_called(after)?,
            Token::Name(_) => return None,
            Token::Sign(b')' | b']' | b'}') | Token::Text(_) => not_called(after)?,
            Token::Sign(b'&') => calls += 1,
            // The first one of a call, or of an expression.
            Token::Sign(b'(') => calls += 1,
            Token::Sign(_) | Token::Number => {}
        }
        at += 1;
    }
    (commands <= COMMANDS_MAX && commands + calls <= CALLS_MAX).then_some(())
}

/// Refuses a value that is called, as it may be any function.
fn not_called(after: Option<Token<'_>>) -> Option<()> {
    (!matches!(after, Some(Token::Sign(b'(' | b'{') | Token::Text(_)))).then_some(())
}

/// Returns the position of the last declared name. No name may hide a function.
fn declared(tokens: &[Token<'_>], mut at: usize) -> Option<usize> {
    loop {
        let Token::Name(name) = tokens.get(at)? else {
            return None;
        };
        (is_variable(name) && !FUNCTIONS.contains(name)).then_some(())?;
        if tokens.get(at + 1) != Some(&Token::Sign(b',')) {
            return Some(at);
        }
        at += 2;
    }
}

fn library(name: &[u8]) -> Option<&'static [&'static [u8]]> {
    LIBRARIES.iter().find(|(library, _)| *library == name).map(|(_, parts)| *parts)
}

/// Returns `true` if the name is none of Lua and Redis. If it is not declared, reading it is an error.
fn is_variable(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 16] = [
        b"_G",
        b"_VERSION",
        b"collectgarbage",
        b"coroutine",
        b"gcinfo",
        b"getfenv",
        b"getmetatable",
        b"ipairs",
        b"load",
        b"loadstring",
        b"pairs",
        b"pcall",
        b"rawget",
        b"rawset",
        b"setfenv",
        b"setmetatable",
    ];
    library(name).is_none()
        && !OTHERS.contains(&name)
        && name != b"xpcall"
        && !WORDS.contains(&name)
        && !REPEATING.contains(&name)
}

/// Refuses a command that is not named in the text, that may use any key, or that may have to wait.
fn check_command(name: Token<'_>, after: Option<Token<'_>>) -> Option<()> {
    let Token::Text(name) = name else {
        return None;
    };
    // The name must not be the first part of an expression.
    matches!(after, Some(Token::Sign(b',' | b')'))).then_some(())?;
    let command = commands::find(name)?;
    let is_known = match command.does {
        Does::Data(_) => !matches!(command.keys, Keys::All) && !command.is_transfer(),
        Does::Own(_) => OWN.contains(&command.name),
        Does::Stream(_) | Does::Script(_) => false,
    };
    is_known.then_some(())
}

/// Returns the tokens of a script; `None` if it has something else.
fn tokens(text: &[u8]) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.first() {
        match first {
            b' ' | b'\t' | b'\r' | b'\n' => rest = &rest[1..],
            b'-' if rest.starts_with(b"--") => {
                let comment = &rest[2..];
                rest = match long_text(comment) {
                    Some((_, after)) => after,
                    // An open bracket is an error of Lua's.
                    None => comment.iter().position(|byte| *byte == b'\n').map_or(&[], |end| &comment[end..]),
                };
            }
            b'"' | b'\'' => {
                let mut end = 1;
                while *rest.get(end)? != *first {
                    if rest[end] == b'\n' {
                        return None;
                    }
                    // What an escape means is not needed: the name of a command has none.
                    end += if rest[end] == b'\\' { 2 } else { 1 };
                }
                tokens.push(Token::Text(&rest[1..end]));
                rest = &rest[end + 1..];
            }
            b'[' if long_text(rest).is_some() => {
                let (text, after) = long_text(rest)?;
                tokens.push(Token::Text(text));
                rest = after;
            }
            b'0'..=b'9' => {
                let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'.');
                tokens.push(Token::Number);
                rest = &rest[end.unwrap_or(rest.len())..];
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
                let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
                tokens.push(Token::Name(name));
                rest = after;
            }
            b'.' if rest.starts_with(b"...") => return None,
            // Two signs for which one is not taken for another one.
            b'.' if rest.starts_with(b"..") => {
                tokens.push(Token::Sign(b'&'));
                rest = &rest[2..];
            }
            sign if sign.is_ascii_punctuation() => {
                tokens.push(Token::Sign(*sign));
                rest = &rest[1..];
            }
            _ => return None,
        }
    }
    Some(tokens)
}

/// Returns the text in long brackets, and the rest.
fn long_text(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = text.strip_prefix(b"[")?;
    let level = rest.iter().position(|byte| *byte != b'=')?;
    let body = rest[level..].strip_prefix(b"[")?;
    let close = [&b"]"[..], &b"=".repeat(level), b"]"].concat();
    let end = body.windows(close.len()).position(|window| window == close)?;
    Some((&body[..end], &body[end + close.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_without_loops_and_functions_are_straight() {
        let straight: [&str; 8] = [
            "return redis.call('GET', KEYS[1])",
            "if redis.call(\"get\",KEYS[1]) == ARGV[1] then return redis.call(\"del\",KEYS[1]) else return 0 end",
            "local c = redis.call('incr', KEYS[1]) if tonumber(c) == 1 then redis.call('expire', KEYS[1], ARGV[1]) end \
             return {c, redis.call('ttl', KEYS[1])}",
            "-- comment for while\nlocal t = redis.call('TIME') return t[1] .. '.' .. t[2]",
            "--[[ function\n() ]] return [[for]]",
            "local ok, e = pcall(redis.call, 'get', KEYS[1]) return tostring(ok)",
            "return math.floor(ARGV[1] * 2) + #KEYS",
            "return ARGV[1]:sub(1, 2)",
        ];
        for text in straight {
            assert!(is_straight(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn scripts_that_may_take_any_time_or_any_key_are_not_straight() {
        let others: [&str; 25] = [
            "while true do end",
            "for i = 1, 10 do end",
            "repeat until false",
            "local function f() return f() end return f()",
            "return ('x'):rep(1e9)",
            "return string.rep('x', 1e9)",
            "return KEYS[1][ARGV[1]](ARGV[2], ARGV[3])",
            "local f = KEYS[1][ARGV[1]] return f(ARGV[2])",
            "return pcall(KEYS[1][ARGV[1]], ARGV[2])",
            "local tonumber = KEYS[1][ARGV[1]] return tonumber(ARGV[2])",
            "local a, next = 1, KEYS[1][ARGV[1]] return next(ARGV[2])",
            "local s = string return s.rep('x', 9)",
            "return (KEYS[1].rep)('x', 1e9)",
            "return loadstring(ARGV[1])()",
            "return redis.call(ARGV[1], KEYS[1])",
            "return redis.call('g' .. 'et', KEYS[1])",
            "local call = redis.call return call('get', 'a')",
            "return redis.call('keys', '*')",
            "return redis.call('xadd', KEYS[1], '*', 'a', 'b')",
            "return redis.call('rename', KEYS[1], KEYS[2])",
            "return _G.string.rep('x', 1e9)",
            "return KEYS[1].rep 'x'",
            "local t = {} t = {t, t} return cjson.encode(t)",
            "return cmsgpack.pack({KEYS, KEYS})",
            &format!("local s = KEYS[1] {} return 1", "s = s:upper() ".repeat(129)),
        ];
        for text in others {
            assert!(!is_straight(text.as_bytes()), "{text}");
        }
    }
}
