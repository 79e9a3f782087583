//! Glob patterns, as Redis reads them.

/// Returns `true` if the text matches a glob pattern: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a literal character.
/// The time is at most proportional to the product of both lengths.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    // Redis does not read the pattern if the text is empty: not even a star matches it.
    if text.is_empty() {
        return pattern.is_empty();
    }
    // Position after the last star, and the text that it has taken so far. A later star makes everything before it
    // final.
    let mut at = 0;
    let mut of = 0;
    let mut star: Option<(usize, usize)> = None;
    loop {
        if of < pattern.len() && pattern[of] == b'*' {
            star = Some((of + 1, at));
            of += 1;
            continue;
        }
        if at == text.len() {
            return of == pattern.len();
        }
        match match_one(&pattern[of..], text[at]) {
            Some(length) => {
                of += length;
                at += 1;
            }
            None => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    of = after;
                    at = taken + 1;
                }
                None => return false,
            },
        }
    }
}

/// Returns the start of a pattern that stands for itself: each text that matches begins with it.
pub fn literal_start(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Returns `true` if the last token of a pattern is a star: with each text, it matches all that begin with it.
pub fn ends_with_star(pattern: &[u8]) -> bool {
    let mut at = 0;
    let mut has_star = false;
    while let Some(rest) = pattern.get(at..).filter(|rest| !rest.is_empty()) {
        has_star = rest[0] == b'*';
        at += match rest {
            [b'[', class @ ..] => 1 + find_in_class(class, 0).0,
            [b'\\', _, ..] => 2,
            _ => 1,
        };
    }
    has_star
}

/// Returns the length of the part of the pattern that matches the byte; `None` if it does not match.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte).map(|length| length + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// Returns the length of the class if it contains the byte.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let (length, is_in) = find_in_class(class, byte);
    is_in.then_some(length)
}

/// Returns the length of a class, and `true` if it contains the byte. A class without an end reaches to the end of the
/// pattern.
fn find_in_class(class: &[u8], byte: u8) -> (usize, bool) {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;
    loop {
        match class.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [one, ..] => {
                is_in |= *one == byte;
                at += 1;
            }
        }
    }
    (at, is_in != is_negated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_the_last_token_unless_it_is_escaped_or_in_a_class() {
        for (pattern, wanted) in [
            ("*", true),
            ("db[0-9]/*", true),
            ("a**", true),
            ("\\\\*", true),
            ("[]*", true),
            ("", false),
            ("a", false),
            ("\\*", false),
            ("a[*", false),
            ("a[b*", false),
            ("a[*]", false),
            ("a[\\*", false),
        ] {
            assert_eq!(ends_with_star(pattern.as_bytes()), wanted, "{pattern}");
        }
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        let yes = ["*", "h?llo", "h*o", "h[ae]llo", "h[^x]llo", "h[a-f]llo", "h[f-a]llo", "\\hello", "*l*", "hell[o"];
        for pattern in yes {
            assert!(matches(pattern.as_bytes(), b"hello"), "{pattern}");
        }
        for pattern in ["", "h", "hell", "hello?", "h[b-d]llo", "h[^e]llo", "H*", "*x*"] {
            assert!(!matches(pattern.as_bytes(), b"hello"), "{pattern}");
        }
        assert!(matches(b"\\*", b"*") && !matches(b"\\*", b"a") && matches(b"", b"") && !matches(b"*", b""));
        // The cost of several stars does not multiply.
        assert!(!matches("*a".repeat(40).as_bytes(), "a".repeat(39).as_bytes()));
    }
}
