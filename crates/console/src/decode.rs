//! Bytes of records as text, as JSON with line breaks, or in hexadecimal, each up to a bound.

use std::fmt::Write;

use serde::de::IgnoredAny;

/// Maximum number of bytes of one value that a page shows.
pub const SHOWN_BYTES_MAX: usize = 20 << 10;
/// Maximum size of indented JSON, as a multiple of its size before.
const INDENT_RATIO_MAX: usize = 4;
/// Maximum depth of JSON that is indented.
const INDENT_MAX: usize = 32;
/// Number of bytes in a line in hexadecimal.
const HEX_LINE: usize = 16;

/// Beginning of a key or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    bytes: Vec<u8>,
    /// Number of all bytes.
    pub len: usize,
}

impl Cut {
    /// Copies at most `max` bytes.
    pub fn new(all: &[u8], max: usize) -> Self {
        Self { bytes: all[..all.len().min(max)].to_vec(), len: all.len() }
    }

    /// Returns its first bytes.
    pub fn first(&self, max: usize) -> Self {
        Self { bytes: self.bytes[..self.bytes.len().min(max)].to_vec(), len: self.len }
    }

    /// Returns all bytes, if nothing was left out.
    pub fn whole(&self) -> Option<&[u8]> {
        (self.left_out() == 0).then_some(&self.bytes)
    }

    /// Returns the text, if nothing was left out and it is text.
    pub fn whole_text(&self) -> Option<&str> {
        self.whole().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    fn left_out(&self) -> usize {
        self.len - self.bytes.len()
    }
}

/// Form in which bytes are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The most readable form.
    #[default]
    Auto,
    Text,
    Json,
    Hex,
}

impl Form {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Text, Self::Json, Self::Hex];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
            Self::Hex => "hex",
        }
    }

    /// Returns the form with this name, or the default.
    pub fn parse(name: &str) -> Self {
        Self::ALL.into_iter().find(|form| form.name() == name).unwrap_or_default()
    }
}

/// Bytes in a readable form.
#[derive(Debug, PartialEq, Eq)]
pub struct Decoded {
    pub text: String,
    /// Form that was used; never [`Form::Auto`].
    pub form: Form,
    /// Number of bytes that are not shown.
    pub left_out: usize,
}

/// Decodes the bytes, of which [`SHOWN_BYTES_MAX`] should be the maximum.
pub fn decode(cut: &Cut, form: Form) -> Decoded {
    let shown = &cut.bytes[..];
    let left_out = cut.left_out();
    let decoded = |text, form| Decoded { text, form, left_out };
    match form {
        Form::Hex => decoded(hex(shown), Form::Hex),
        Form::Text => decoded(String::from_utf8_lossy(shown).into_owned(), Form::Text),
        Form::Json | Form::Auto => match (indent(shown), readable(shown)) {
            (Some(text), _) if left_out == 0 => decoded(text, Form::Json),
            (_, Some(text)) => decoded(text.to_owned(), Form::Text),
            _ if form == Form::Json => decoded(String::from_utf8_lossy(shown).into_owned(), Form::Text),
            _ => decoded(hex(shown), Form::Hex),
        },
    }
}

/// Returns the bytes in one line.
pub fn preview(cut: &Cut) -> String {
    let mut text = match readable(&cut.bytes) {
        Some(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        None => cut.bytes.iter().map(|byte| format!("{byte:02x} ")).collect(),
    };
    if cut.left_out() > 0 {
        text.push('…');
    }
    text
}

/// Returns the bytes as text if they are printable. The last character may be cut.
fn readable(bytes: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()?,
        Err(_invalid) => return None,
    };
    let is_printable = |c: char| !c.is_control() || matches!(c, '\n' | '\r' | '\t');
    text.chars().all(is_printable).then_some(text)
}

/// Returns an object or an array with line breaks, unless it is so deep that it would become much longer. Numbers and
/// the order of names do not change.
fn indent(bytes: &[u8]) -> Option<String> {
    if !matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'[')) {
        return None;
    }
    serde_json::from_slice::<IgnoredAny>(bytes).ok()?;
    let text = std::str::from_utf8(bytes).ok()?;
    let mut out = String::with_capacity(text.len() * 2);
    let mut depth = 0_usize;
    let mut is_quoted = false;
    let mut is_escaped = false;
    let mut last = ' ';
    for c in text.chars() {
        if out.len() > text.len() * INDENT_RATIO_MAX {
            return None;
        }
        if is_quoted {
            out.push(c);
            is_quoted = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            continue;
        }
        match c {
            ' ' | '\n' | '\r' | '\t' => continue,
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !matches!(last, '{' | '[') {
                    new_line(&mut out, depth);
                }
                out.push(c);
            }
            _ => {
                if matches!(last, '{' | '[') && !out.is_empty() {
                    new_line(&mut out, depth);
                }
                out.push(c);
                match c {
                    '{' | '[' => depth += 1,
                    ',' => new_line(&mut out, depth),
                    ':' => out.push(' '),
                    '"' => is_quoted = true,
                    _ => {}
                }
            }
        }
        last = c;
    }
    Some(out)
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(INDENT_MAX)));
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 5);
    for (at, line) in bytes.chunks(HEX_LINE).enumerate() {
        let _infallible = write!(out, "{:06x} ", at * HEX_LINE);
        for place in 0..HEX_LINE {
            let _infallible = match line.get(place) {
                Some(byte) => write!(out, " {byte:02x}"),
                None => write!(out, "   "),
            };
        }
        out.push_str("  ");
        out.extend(line.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }));
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> Cut {
        Cut::new(bytes, usize::MAX)
    }

    #[test]
    fn json_is_indented_and_keeps_its_numbers() {
        let given = br#"{"a":[1.10,{}],"b\"{":"x, y","big":123456789012345678901234567890,"e":[]}"#;
        let decoded = decode(&whole(given), Form::Auto);
        let expected = "{\n  \"a\": [\n    1.10,\n    {}\n  ],\n  \"b\\\"{\": \"x, y\",\n  \
                        \"big\": 123456789012345678901234567890,\n  \"e\": []\n}";
        assert_eq!((decoded.text.as_str(), decoded.form), (expected, Form::Json));
        assert_eq!(decode(&whole(b"{not json"), Form::Json).form, Form::Text);
        let deep = format!("{}{}{}", "[".repeat(60), "1,".repeat(600) + "1", "]".repeat(60));
        assert_eq!(decode(&whole(deep.as_bytes()), Form::Auto).form, Form::Text);
    }

    #[test]
    fn bytes_have_the_form_that_can_be_read() {
        assert_eq!(decode(&whole("grün".as_bytes()), Form::Auto).form, Form::Text);
        let decoded = decode(&whole(&[0, b'A', 255]), Form::Auto);
        assert_eq!(decoded.form, Form::Hex);
        assert!(decoded.text.starts_with("000000  00 41 ff ") && decoded.text.ends_with("  .A.\n"), "{}", decoded.text);
        assert_eq!(preview(&whole(b"a\n  b")), "a b");
        assert_eq!(preview(&Cut::new("ää".as_bytes(), 3)), "ä…");
        assert_eq!(preview(&whole(&[0, 1])), "00 01 ");
    }

    #[test]
    fn a_large_value_is_cut() {
        let large = vec![b'x'; SHOWN_BYTES_MAX + 10];
        let decoded = decode(&Cut::new(&large, SHOWN_BYTES_MAX), Form::Auto);
        assert_eq!((decoded.text.len(), decoded.left_out), (SHOWN_BYTES_MAX, 10));
    }
}
