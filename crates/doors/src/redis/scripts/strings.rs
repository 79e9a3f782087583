//! Functions of the library `string` that search for patterns, with the matcher of `pattern.rs`, which ends with the
//! script. `prelude.lua` calls them unless a search is so short that Lua's own functions are faster. Loops that call
//! functions of scripts are in the prelude, too: they nest in Lua, and not on the stack of the thread.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use mlua::{Lua, LuaString, MultiValue, Table, Value};

use super::json;
use super::pattern::{Captured, Pattern, Stop, find_plain};
use super::state::{Current, NO_MEMORY, OUTPUT_BYTES_MAX, function, number, raise, text};

/// Maximum size of a pattern in bytes.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Characters that make a text a pattern (`SPECIALS` in `lstrlib.c`).
const SPECIALS: &[u8] = b"^$*+?.([%-";

/// Reason why a function fails.
enum Failure {
    Lua(mlua::Error),
    /// Message of an error that gets the line of the script.
    Message(String),
}

impl From<mlua::Error> for Failure {
    fn from(error: mlua::Error) -> Self {
        Self::Lua(error)
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Message(message)
    }
}

impl From<Stop> for Failure {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Wrong(why) => Self::Message(why.to_owned()),
            Stop::Ended(why) => Self::Lua(raise(format!("ERR {why}").into_bytes())),
        }
    }
}

type Found = Result<MultiValue, Failure>;
type Of = fn(&Lua, &Matcher, &MultiValue) -> Found;

/// State that the functions of one Lua state share.
struct Matcher {
    pattern: RefCell<Pattern>,
    running: Current,
}

/// Returns the functions `find`, `match` and `replace` (`string.gsub` with a text), and those that the prelude builds
/// the others of.
pub(super) fn library(lua: &Lua, running: &Current) -> mlua::Result<Table> {
    let matcher = Rc::new(Matcher { pattern: RefCell::default(), running: running.clone() });
    let table = lua.create_table()?;
    let functions: [(&str, Of); 7] = [
        ("find", |lua, matcher, args| find(lua, matcher, args, "find")),
        ("match", |lua, matcher, args| find(lua, matcher, args, "match")),
        ("replace", replace),
        ("gmatch", |lua, _, args| texts(lua, args, "gmatch")),
        ("gsub", |lua, _, args| texts(lua, args, "gsub")),
        ("next", next),
        ("exponent", exponent),
    ];
    for (name, of) in functions {
        let matcher = matcher.clone();
        let of = function(lua, move |lua, args| match of(lua, &matcher, args) {
            Ok(values) => Ok(Ok(values)),
            Err(Failure::Message(message)) => Ok(Err(message)),
            Err(Failure::Lua(error)) => Err(error),
        })?;
        table.raw_set(name, of)?;
    }
    Ok(table)
}

impl Matcher {
    /// Returns why the script must end, if it must.
    fn ended_by(&self) -> Option<&'static str> {
        self.running.borrow().as_ref().and_then(|running| running.ended_by())
    }
}

/// Returns an argument that is a text or a number.
fn string(lua: &Lua, args: &MultiValue, at: usize, name: &str) -> Result<LuaString, Failure> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Integer(number)) => Ok(lua.create_string(json::digits(*number as f64, 14))?),
        _ => Ok(lua.create_string(text(args, at, name)?)?),
    }
}

/// Returns an argument that is an integer and may be missing, as Lua converts it on x86-64.
fn optional(args: &MultiValue, at: usize, name: &str) -> Result<Option<i64>, Failure> {
    if matches!(args.get(at), None | Some(Value::Nil)) {
        return Ok(None);
    }
    let number = number(args, at, name)?;
    let is_integer = (-(2f64.powi(63))..2f64.powi(63)).contains(&number);
    Ok(Some(if is_integer { number as i64 } else { i64::MIN }))
}

fn check_size(pattern: &[u8]) -> Result<(), Failure> {
    if pattern.len() > PATTERN_BYTES_MAX {
        let len = pattern.len();
        return Err(format!("pattern too complex: it has {len} bytes, at most {PATTERN_BYTES_MAX} are allowed").into());
    }
    Ok(())
}

/// Returns a text and a pattern as texts, and the number of replacements.
fn texts(lua: &Lua, args: &MultiValue, name: &str) -> Found {
    let text = string(lua, args, 0, name)?;
    let pattern = string(lua, args, 1, name)?;
    check_size(&pattern.as_bytes())?;
    let mut values = vec![Value::String(text), Value::String(pattern)];
    if name == "gsub" {
        let count_max = optional(args, 3, name)?.map_or(i64::MAX, |count| i64::from(count as i32));
        values.push(Value::Number(count_max as f64));
    }
    Ok(MultiValue::from_vec(values))
}

/// Appends captures of a match as values (`push_captures`).
fn push_captures(
    lua: &Lua,
    pattern: &Pattern,
    text: &[u8],
    found: &Range<usize>,
    count: usize,
    values: &mut MultiValue,
) -> Result<(), Failure> {
    for index in 0..count {
        values.push_back(match pattern.capture(index, found)? {
            Captured::Part(part) => Value::String(lua.create_string(&text[part])?),
            Captured::Position(position) => Value::Integer(position as i64),
        });
    }
    Ok(())
}

/// Runs `string.find` or `string.match` (`str_find_aux`).
fn find(lua: &Lua, matcher: &Matcher, args: &MultiValue, name: &str) -> Found {
    let (text, wanted) = (string(lua, args, 0, name)?, string(lua, args, 1, name)?);
    let (text, wanted) = (text.as_bytes(), wanted.as_bytes());
    let from = match optional(args, 2, name)?.unwrap_or(1) {
        first @ 1.. => (first as u64 - 1).min(text.len() as u64) as usize,
        0 => 0,
        before => text.len().saturating_sub(before.unsigned_abs().min(usize::MAX as u64) as usize),
    };
    let is_find = name == "find";
    let place = |found: &Range<usize>| [Value::Integer(found.start as i64 + 1), Value::Integer(found.end as i64)];
    let mut values = MultiValue::new();
    if is_find {
        let is_plain = !matches!(args.get(3), None | Some(Value::Nil | Value::Boolean(false)));
        let is_special = |byte: &u8| *byte == 0 || SPECIALS.contains(byte);
        // Only what is before a byte of zero makes a pattern.
        if is_plain || wanted.iter().find(|byte| is_special(byte)).is_none_or(|byte| *byte == 0) {
            match find_plain(&text, &wanted, from, &|| matcher.ended_by())? {
                Some(start) => values.extend(place(&(start..start + wanted.len()))),
                None => values.push_back(Value::Nil),
            }
            return Ok(values);
        }
    }
    check_size(&wanted)?;
    let mut pattern = matcher.pattern.borrow_mut();
    pattern.read(&wanted, true);
    match pattern.find(&text, from, &|| matcher.ended_by())? {
        Some(found) => {
            let mut count = pattern.captures_count();
            if is_find {
                values.extend(place(&found));
            } else {
                count = count.max(1);
            }
            push_captures(lua, &pattern, &text, &found, count, &mut values)?;
        }
        None => values.push_back(Value::Nil),
    }
    Ok(values)
}

/// Returns the exponent of a pattern, with an anchor as of `string.find`.
fn exponent(lua: &Lua, matcher: &Matcher, args: &MultiValue) -> Found {
    let source = string(lua, args, 0, "exponent")?;
    let mut pattern = matcher.pattern.borrow_mut();
    pattern.read(&source.as_bytes(), true);
    Ok(MultiValue::from_vec(vec![Value::Integer(pattern.exponent() as i64)]))
}

/// Returns the next match of a pattern in a text, from an offset on: its first and last position, and its captures, or
/// only the first capture if the fourth argument is `true`. Returns nothing if no match exists. `^` is an anchor if
/// the fifth argument is `true`, as in `string.gsub`.
fn next(lua: &Lua, matcher: &Matcher, args: &MultiValue) -> Found {
    let (text, source) = (string(lua, args, 0, "next")?, string(lua, args, 1, "next")?);
    let text = text.as_bytes();
    let from = optional(args, 2, "next")?.and_then(|from| usize::try_from(from).ok()).unwrap_or(0);
    let is_for = |at: usize| matches!(args.get(at), Some(Value::Boolean(true)));
    let mut pattern = matcher.pattern.borrow_mut();
    pattern.read(&source.as_bytes(), is_for(4));
    let mut values = MultiValue::new();
    if from <= text.len()
        && let Some(found) = pattern.find(&text, from, &|| matcher.ended_by())?
    {
        values.extend([Value::Integer(found.start as i64 + 1), Value::Integer(found.end as i64)]);
        let count = if is_for(3) { 1 } else { pattern.captures_count().max(1) };
        push_captures(lua, &pattern, &text, &found, count, &mut values)?;
    }
    Ok(values)
}

/// Runs `string.gsub` with a text (`str_gsub`).
fn replace(lua: &Lua, matcher: &Matcher, args: &MultiValue) -> Found {
    let (text, source) = (string(lua, args, 0, "gsub")?, string(lua, args, 1, "gsub")?);
    let (text, source) = (text.as_bytes(), source.as_bytes());
    let count_max = optional(args, 3, "gsub")?.map(|count| i64::from(count as i32));
    if !matches!(args.get(2), Some(Value::String(_) | Value::Integer(_) | Value::Number(_))) {
        return Err("bad argument #3 to 'gsub' (string/function/table expected)".to_owned().into());
    }
    let with = string(lua, args, 2, "gsub")?;
    let with = with.as_bytes();
    check_size(&source)?;
    let mut pattern = matcher.pattern.borrow_mut();
    pattern.read(&source, true);
    let (mut at, mut count, mut out) = (0, 0, Vec::new());
    while count_max.is_none_or(|max| count < max) {
        let Some(found) = pattern.find(&text, at, &|| matcher.ended_by())? else {
            break;
        };
        out.extend_from_slice(&text[at..found.start]);
        count += 1;
        expand(&with, &pattern, &text, &found, &mut out)?;
        at = found.end;
        if found.is_empty() {
            let Some(byte) = text.get(at) else {
                break;
            };
            out.push(*byte);
            at += 1;
        }
        if pattern.is_anchored() {
            break;
        }
    }
    push(&text[at..], &mut out)?;
    let mut values = MultiValue::new();
    values.push_back(Value::String(lua.create_string(out)?));
    values.push_back(Value::Integer(count));
    Ok(values)
}

fn push(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
    if out.len() + bytes.len() > OUTPUT_BYTES_MAX {
        return Err(NO_MEMORY.to_owned().into());
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Appends what replaces a match (`add_s`).
fn expand(with: &[u8], pattern: &Pattern, text: &[u8], found: &Range<usize>, out: &mut Vec<u8>) -> Result<(), Failure> {
    let mut rest = with;
    while let Some(sign) = rest.iter().position(|byte| *byte == b'%') {
        push(&rest[..sign], out)?;
        // A text of Lua ends with a byte of zero.
        match rest.get(sign + 1).copied().unwrap_or(0) {
            b'0' => push(&text[found.clone()], out)?,
            digit @ b'1'..=b'9' => match pattern.capture(usize::from(digit - b'1'), found)? {
                Captured::Part(part) => push(&text[part], out)?,
                Captured::Position(position) => push(position.to_string().as_bytes(), out)?,
            },
            byte => push(&[byte], out)?,
        }
        rest = rest.get(sign + 2..).unwrap_or_default();
    }
    push(rest, out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use mlua::{LuaOptions, StdLib};

    use super::super::running::{KILLED, Running};
    use super::super::state::State;
    use super::*;

    /// Calls the functions in several ways, and returns all results and errors, without the lines of errors.
    const CALLS: &str = r##"
        local text, pattern, with, from, count = unpack(ARGV)
        from, count = tonumber(from), tonumber(count)
        local out = {}
        local function note(is_done, ...)
            out[#out + 1] = tostring(is_done)
            for at = 1, select("#", ...) do
                local value = tostring((select(at, ...)))
                if not is_done then
                    local _, last = string.find(value, "^[^:]*:%d+: ")
                    value = string.sub(value, (last or 0) + 1)
                end
                out[#out + 1] = type((select(at, ...))) .. " " .. value
            end
        end
        note(pcall(string.find, text, pattern))
        note(pcall(string.find, text, pattern, from))
        note(pcall(string.find, text, pattern, from, true))
        note(pcall(string.match, text, pattern))
        note(pcall(string.match, text, pattern, from))
        note(pcall(string.gsub, text, pattern, with))
        note(pcall(string.gsub, text, pattern, with, count))
        note(pcall(string.gsub, text, pattern, function(...)
            out[#out + 1] = table.concat({ select("#", ...), ... }, ",")
            local length = #tostring((...))
            if length == 1 then
                return length
            elseif length == 2 then
                return nil
            end
            return "<" .. (...) .. ">"
        end, count))
        note(pcall(string.gsub, text, pattern, { a = "A", ab = false, [1] = 2, b = {} }))
        note(pcall(string.gsub, text, pattern, setmetatable({}, { __index = function(_, key) return key .. "!" end })))
        note(pcall(function()
            for first, second in string.gmatch(text, pattern) do
                out[#out + 1] = tostring(first) .. "," .. tostring(second)
            end
        end))
        return table.concat(out, "\n")
    "##;

    /// Numbers of a generator that begins with a seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % limit as u64) as usize
        }

        fn text(&mut self, parts: &[&[u8]], len_max: usize) -> Vec<u8> {
            (0..self.below(len_max + 1)).flat_map(|_| parts[self.below(parts.len())].to_vec()).collect()
        }
    }

    const TEXTS: [&[u8]; 14] =
        [b"a", b"a", b"b", b"b", b"ab", b"(", b")", b"1", b" ", b"]", b"-", b"Z", b"\0", b"\xe9"];
    const PATTERNS: [&[u8]; 56] = [
        b"a",
        b"b",
        b"ab",
        b".",
        b"%a",
        b"%d",
        b"%s",
        b"%S",
        b"%w",
        b"%p",
        b"%x",
        b"%u",
        b"%l",
        b"%c",
        b"%z",
        b"%Z",
        b"[ab]",
        b"[^a]",
        b"[a-c]",
        b"[%a-]",
        b"[%d%s]",
        b"[^%w]",
        b"[]]",
        b"[^]a]",
        b"[a-%%]",
        b"[\x80-\xff]",
        b"(",
        b")",
        b"(a",
        b"b)",
        b"(.-)",
        b"()",
        b"%1",
        b"%2",
        b"%0",
        b"%b()",
        b"%bab",
        b"%baa",
        b"%f[a]",
        b"%f[%a]",
        b"%f[^b]",
        b"$",
        b"^",
        b"*",
        b"+",
        b"-",
        b"?",
        b"%%",
        b"%",
        b"[",
        b"[a",
        b"]",
        b"%f",
        b"%b",
        b"\0",
        b"\xe9",
    ];
    const REPLACEMENTS: [&[u8]; 9] = [b"x", b"yy", b"%0", b"%1", b"%2", b"%9", b"%%", b"%", b"%a"];

    /// Lua 5.1 itself is the model.
    #[test]
    fn results_and_errors_are_those_of_lua() {
        let ours = State::without_native_searches().expect("a state");
        let usual = State::new().expect("a state");
        let model = Lua::new_with(StdLib::TABLE | StdLib::STRING, LuaOptions::new()).expect("a state");
        let calls = model.load(CALLS).set_name("@model").into_function().expect("a chunk");
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut matches = 0;
        for round in 0..4_000 {
            let text = random.text(&TEXTS, 12);
            let mut pattern = random.text(&PATTERNS, 6);
            if random.below(8) == 0 {
                pattern.insert(0, b'^');
            }
            let with = random.text(&REPLACEMENTS, 3);
            let from = (random.below(32) as i64 - 16).to_string();
            let count = (random.below(6) as i64 - 1).to_string();
            let args = [&text[..], &pattern, &with, from.as_bytes(), count.as_bytes()];
            let given: Vec<_> = args.iter().map(|arg| model.create_string(arg).expect("a text")).collect();
            model.globals().set("ARGV", given).expect("a table");
            let wanted: LuaString = calls.call(()).expect("the calls end");
            let wanted = wanted.as_bytes();
            for (state, which) in [(&ours, "the matcher"), (&usual, "the usual functions")] {
                let found = state.evaluate(CALLS, &args, None).expect("the calls end");
                assert!(
                    found == *wanted,
                    "round {round}, {which}: find '{}' in '{}', replace by '{}', from {from}, {count} times:\n{}\n\
                     Lua:\n{}",
                    pattern.escape_ascii(),
                    text.escape_ascii(),
                    with.escape_ascii(),
                    found.escape_ascii().to_string().replace("\\n", "\n"),
                    wanted.escape_ascii().to_string().replace("\\n", "\n"),
                );
            }
            matches += usize::from(wanted.starts_with(b"true\nnumber"));
        }
        assert!((600..3_300).contains(&matches), "{matches} of the patterns match");
    }

    #[test]
    fn numbers_long_texts_and_wrong_arguments_are_as_in_lua() {
        let state = State::without_native_searches().expect("a state");
        let results = [
            ("return tostring(string.find(1e15, '+'))", "3"),
            ("return string.match(12.5, '%.(%d)')", "5"),
            ("return (string.gsub(121, 1, 3))", "323"),
            ("return (string.gsub('abc', '%w', '%0%0', 2.9))", "aabbc"),
            ("return tostring(string.find('aXb', 'X', 1e300)) .. tostring(string.find('abc', 'b', -1e300))", "22"),
            (
                "local a = string.find('a')",
                "ERR user_script:1: bad argument #2 to 'find' (string expected, got no value)",
            ),
            (
                "local a = string.find(nil, 'a')",
                "ERR user_script:1: bad argument #1 to 'find' (string expected, got nil)",
            ),
            (
                "local a = ('a'):match('a', {})",
                "ERR user_script:1: bad argument #3 to 'match' (number expected, got table)",
            ),
            (
                "local a = ('a'):gmatch()",
                "ERR user_script:1: bad argument #2 to 'gmatch' (string expected, got no value)",
            ),
            (
                "local a = ('a'):gsub('a')",
                "ERR user_script:1: bad argument #3 to 'gsub' (string/function/table expected)",
            ),
            ("local a = ('a'):gsub('a', print_, 'x')", "nonexistent global variable 'print_'"),
            ("local a = ('a'):find('[a')", "ERR user_script:1: malformed pattern (missing ']')"),
            (
                "\nlocal a = ('a'):gsub('a', function() return {} end)",
                "ERR user_script:2: invalid replacement value (a table)",
            ),
            ("local a = ('a'):gsub('.', function() error({ err = 'MY error' }) end)", "MY error"),
            ("local ok, e = pcall(string.gsub, 'a', '.', function() error('mine', 0) end) return e", "mine"),
            ("local a = ('a'):match(('()'):rep(33))", "ERR user_script:1: too many captures"),
            ("return tostring(select('#', ('a'):match(('()'):rep(32))))", "32"),
            (
                "local a = ('a'):match(('a?'):rep(9000))",
                "pattern too complex: it has 18000 bytes, at most 16384 are allowed",
            ),
            ("local a = ('a'):rep(9000) return tostring(#a:match(('a?'):rep(8000)))", "8000"),
            ("local a = ('ab'):rep(5e5):gsub('.', function(x) return x .. x end) return tostring(#a)", "2000000"),
            ("local a = ('ab'):rep(5e5):gsub('', '-') return tostring(#a)", "2000001"),
            ("local a = ('a'):rep(1e6):gsub('.', ('x'):rep(1e3))", "not enough memory"),
            ("local n = 0 for w in ('ab '):rep(1e5):gmatch('%a+') do n = n + #w end return tostring(n)", "200000"),
        ];
        for (script, result) in results {
            let found = state.evaluate(script, &[], None).expect("the script ends");
            let found = String::from_utf8_lossy(&found);
            assert!(found.ends_with(result), "{script}: {found}");
        }
        let nested = "local function f(n) \
                      return (('a'):gsub('a', function() return n > 0 and f(n - 1) or 'end' end)) \
                      end return f(1000)";
        assert_eq!(state.evaluate(nested, &[], None).expect("the script ends"), b"end");
    }

    #[test]
    fn a_search_ends_with_its_script() {
        let hard = "('a'):rep(4096), ('a-'):rep(15) .. 'b'";
        let scripts = [
            format!("return string.find({hard})"),
            format!("return string.match({hard})"),
            format!("for word in string.gmatch({hard}) do return word end"),
            format!("return string.gsub({hard}, 'x')"),
            format!("return string.gsub({hard}, function() return 'x' end)"),
            format!("while true do pcall(string.find, {hard}) end"),
            format!("coroutine.wrap(function() string.find({hard}) end)()"),
            "return ('a'):rep(100):find(('a*'):rep(30) .. 'b')".to_owned(),
            "return ('a'):rep(100):find(('a?'):rep(200) .. 'b')".to_owned(),
            "return string.find(111111111111, ('1?'):rep(500) .. 'b')".to_owned(),
            "return ('('):rep(2e6):find('%b()')".to_owned(),
            "return ('a'):rep(2e6):find('(a*)%1b')".to_owned(),
            "return ('a'):rep(2e6):find(('a'):rep(1e6) .. 'b', 1, true)".to_owned(),
            // Many short searches.
            "while true do ('a'):rep(400):find('a-b') end".to_owned(),
        ];
        for script in scripts {
            let state = State::new().expect("a state");
            let running = Arc::new(Running::new(Vec::new(), false, Vec::new(), Vec::new(), None));
            let killer = std::thread::spawn({
                let running = running.clone();
                move || {
                    std::thread::sleep(Duration::from_millis(50));
                    assert!(running.kill());
                    Instant::now()
                }
            });
            let found = state.evaluate(&script, &[], Some(running)).expect("the script ends");
            let ended = Instant::now();
            let killed = killer.join().expect("it does not panic");
            assert!(found.ends_with(KILLED.as_bytes()), "{script}: {}", found.escape_ascii());
            let late = ended.saturating_duration_since(killed);
            assert!(late < Duration::from_secs(5), "{script} runs {late:?} after it is killed");
        }
    }
    /// The prelude compares the items of a long table in Lua, where the hook runs.
    #[test]
    fn a_long_sort_ends_with_its_script() {
        let state = State::new().expect("a state");
        // Few instructions, so that the hook can only run in comparisons.
        let sort = "local t = {('ba'):rep(3500):byte(1, 7000)} table.sort(t) return t[3500] .. ' ' .. t[3501]";
        assert_eq!(state.evaluate(sort, &[], None).expect("the script ends"), b"97 98");
        let running = Arc::new(Running::new(Vec::new(), false, Vec::new(), Vec::new(), None));
        assert!(running.kill());
        let found = state.evaluate(sort, &[], Some(running)).expect("the script ends");
        assert!(found.ends_with(KILLED.as_bytes()), "{}", found.escape_ascii());
    }
}
