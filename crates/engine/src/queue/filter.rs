//! Filters of messages by their attributes: Google Pub/Sub's filter language.
//!
//! ```text
//! expression = term { "AND" term } | term { "OR" term }
//! term       = [ "NOT" | "-" ] ( test | "(" expression ")" )
//! test       = "attributes" ":" key
//!            | "attributes" "." key ( "=" | "!=" ) string
//!            | "hasPrefix" "(" "attributes" "." key "," string ")"
//! key        = string | one or more of A-Z a-z 0-9 _ -
//! string     = characters between two " or two ', with escapes as in C
//! ```

use std::fmt;

use crate::error::{Error, Result};
use crate::limits::{FILTER_BYTES_MAX, FILTER_NESTING_MAX};

/// Filter: its text, and the expression that was parsed from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    text: Box<str>,
    root: Expression,
}

/// Expression tree. It is at most [`FILTER_NESTING_MAX`] deep, and `All` and `Any` have two parts or more.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Has(Box<str>),
    Equals(Box<str>, Box<str>),
    HasPrefix(Box<str>, Box<str>),
    Not(Box<Expression>),
    All(Box<[Expression]>),
    Any(Box<[Expression]>),
}

impl Filter {
    pub fn parse(text: &str) -> Result<Self> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(Error::invalid(format!("a filter has at most {FILTER_BYTES_MAX} bytes, not {}", text.len())));
        }
        let mut parser = Parser { text, at: 0, nesting: 0 };
        let root = parser.expression()?;
        parser.skip_space();
        if parser.at < text.len() {
            return Err(parser.wrong("expected AND, OR or the end; operators are in capitals"));
        }
        Ok(Self { text: text.into(), root })
    }

    /// Returns `true` if a message with these attributes matches.
    pub fn matches<'a>(&self, attribute: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.root.matches(&attribute)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Expression {
    fn matches<'a>(&self, attribute: &impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Has(key) => attribute(key).is_some(),
            Self::Equals(key, value) => attribute(key) == Some(value),
            Self::HasPrefix(key, prefix) => attribute(key).is_some_and(|value| value.starts_with(&**prefix)),
            Self::Not(part) => !part.matches(attribute),
            Self::All(parts) => parts.iter().all(|part| part.matches(attribute)),
            Self::Any(parts) => parts.iter().any(|part| part.matches(attribute)),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::str::FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Number of bytes that were read; always between two characters.
    at: usize,
    /// Number of open parentheses.
    nesting: usize,
}

impl<'a> Parser<'a> {
    fn expression(&mut self) -> Result<Expression> {
        let mut parts = vec![self.term()?];
        let mut operator = None;
        loop {
            self.skip_space();
            let begin = self.at;
            let Some(found) = ["AND", "OR"].into_iter().find(|word| self.take_word(word)) else {
                break;
            };
            if *operator.get_or_insert(found) != found {
                self.at = begin;
                return Err(self.wrong("AND and OR next to each other need parentheses"));
            }
            parts.push(self.term()?);
        }
        Ok(match (operator, parts.pop()) {
            (None, Some(only)) => only,
            (joined, last) => {
                parts.extend(last);
                if joined == Some("OR") { Expression::Any(parts.into()) } else { Expression::All(parts.into()) }
            }
        })
    }

    fn term(&mut self) -> Result<Expression> {
        let is_negated = self.take("-") || self.take_word("NOT");
        let part = if self.take("(") { self.parenthesized()? } else { self.test()? };
        Ok(if is_negated { Expression::Not(Box::new(part)) } else { part })
    }

    fn parenthesized(&mut self) -> Result<Expression> {
        if self.nesting == FILTER_NESTING_MAX {
            return Err(self.wrong(format!("parentheses are at most {FILTER_NESTING_MAX} deep")));
        }
        self.nesting += 1;
        let part = self.expression()?;
        self.must_take(")")?;
        self.nesting -= 1;
        Ok(part)
    }

    fn test(&mut self) -> Result<Expression> {
        if self.take_word("hasPrefix") {
            self.must_take("(")?;
            let key = self.attribute()?;
            self.must_take(",")?;
            let prefix = self.string("a prefix")?;
            self.must_take(")")?;
            return Ok(Expression::HasPrefix(key, prefix));
        }
        if !self.take_word("attributes") {
            return Err(self.wrong("expected attributes, hasPrefix, NOT or a parenthesis"));
        }
        if self.take(":") {
            return self.key().map(Expression::Has);
        }
        self.must_take(".")?;
        let key = self.key()?;
        let is_negated = self.take("!=");
        if !is_negated && !self.take("=") {
            return Err(self.wrong("expected = or !=; to test whether a key exists, write attributes:KEY"));
        }
        let equals = Expression::Equals(key, self.string("a value")?);
        Ok(if is_negated { Expression::Not(Box::new(equals)) } else { equals })
    }

    fn attribute(&mut self) -> Result<Box<str>> {
        if !self.take_word("attributes") {
            return Err(self.wrong("expected attributes.KEY"));
        }
        self.must_take(".")?;
        self.key()
    }

    fn key(&mut self) -> Result<Box<str>> {
        self.skip_space();
        if self.rest().starts_with(['"', '\'']) {
            return self.string("a key");
        }
        let word = self.word();
        if word.is_empty() {
            return Err(self.wrong("expected a key"));
        }
        self.at += word.len();
        match self.rest().chars().next() {
            None => {}
            Some(c) if c.is_ascii() && (c.is_ascii_whitespace() || "=!,):".contains(c)) => {}
            Some(c) => {
                return Err(self.wrong(format!("'{}' is in quotes where it is part of a key", c.escape_default())));
            }
        }
        Ok(word.into())
    }

    fn string(&mut self, what: &str) -> Result<Box<str>> {
        self.skip_space();
        let begin = self.at;
        let Some(quote) = self.rest().chars().next().filter(|c| matches!(c, '"' | '\'')) else {
            return Err(self.wrong(format!("expected {what}, in quotes")));
        };
        self.at += 1;
        let mut string = String::new();
        loop {
            match self.rest().chars().next() {
                None => {
                    self.at = begin;
                    return Err(self.wrong("this quote is not closed"));
                }
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(string.into());
                }
                Some(c) if c.is_control() => {
                    return Err(self.wrong(format!("this character must be written {}", c.escape_default())));
                }
                Some('\\') => string.push(self.escape()?),
                Some(c) => {
                    self.at += c.len_utf8();
                    string.push(c);
                }
            }
        }
    }

    /// Reads an escape sequence, with its backslash.
    fn escape(&mut self) -> Result<char> {
        let escaped = &self.rest()[1..];
        let (skipped, digits, radix) = match escaped.bytes().next() {
            Some(b'x' | b'X') => (1, 2, 16),
            Some(b'u') => (1, 4, 16),
            Some(b'U') => (1, 8, 16),
            Some(b'0'..=b'3') => (0, 3, 8),
            Some(byte) => {
                let found = ESCAPES.iter().find(|(letter, _)| *letter == byte);
                let Some((_, meant)) = found else {
                    return Err(self.wrong("there is no such escape; a backslash is written \\\\"));
                };
                self.at += 2;
                return Ok(*meant);
            }
            None => return Err(self.wrong("nothing follows this backslash")),
        };
        let number = escaped
            .get(skipped..skipped + digits)
            .filter(|digits| digits.bytes().all(|byte| char::from(byte).is_digit(radix)))
            .and_then(|digits| u32::from_str_radix(digits, radix).ok());
        let Some(meant) = number.and_then(char::from_u32) else {
            return Err(self.wrong(format!("this escape is {digits} digits that are the number of a character")));
        };
        self.at += 1 + skipped + digits;
        Ok(meant)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
    }

    /// Returns the word at the current position, which may be empty.
    fn word(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
        &rest[..end.unwrap_or(rest.len())]
    }

    /// Reads this word if it is next as a whole. Returns `true` if it was.
    fn take_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let is_next = self.word() == word;
        if is_next {
            self.at += word.len();
        }
        is_next
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(sign);
        if is_next {
            self.at += sign.len();
        }
        is_next
    }

    fn must_take(&mut self, sign: &str) -> Result<()> {
        if self.take(sign) { Ok(()) } else { Err(self.wrong(format!("expected '{sign}'"))) }
    }

    fn wrong(&self, what: impl fmt::Display) -> Error {
        let position = self.text[..self.at].chars().count() + 1;
        Error::invalid(format!("filter, character {position}: {what}"))
    }
}

/// Meanings of the letters after a backslash, for escapes without a number.
const ESCAPES: [(u8, char); 12] = [
    (b'a', '\x07'),
    (b'b', '\x08'),
    (b'f', '\x0c'),
    (b'n', '\n'),
    (b'r', '\r'),
    (b't', '\t'),
    (b'v', '\x0b'),
    (b'\\', '\\'),
    (b'?', '?'),
    (b'"', '"'),
    (b'\'', '\''),
    (b'`', '`'),
];

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
