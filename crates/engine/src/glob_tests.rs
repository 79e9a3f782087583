//! Glob patterns, compared with a slower implementation and with the rules of Redis.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::glob::{Glob, GlobSet, Matcher, ends_with_star, literal_start, matches};

/// Matcher that compares each byte of the text with the text of the pattern, as `stringmatchlen` in `util.c` of Redis
/// does.
mod reference {
    pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
        if text.is_empty() {
            return pattern.is_empty();
        }
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

    fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
        match pattern {
            [] => None,
            [b'?', ..] => Some(1),
            [b'[', class @ ..] => {
                let (length, is_in) = find_in_class(class, byte);
                is_in.then_some(length + 1)
            }
            [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
            [plain, ..] => (*plain == byte).then_some(1),
        }
    }

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
}

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
    let both = |pattern: &[u8], text: &[u8]| {
        let compiled = Glob::new(pattern).matches(text);
        assert_eq!(matches(pattern, text), compiled);
        compiled
    };
    let yes = ["*", "h?llo", "h*o", "h[ae]llo", "h[^x]llo", "h[a-f]llo", "h[f-a]llo", "\\hello", "*l*", "hell[o"];
    for pattern in yes {
        assert!(both(pattern.as_bytes(), b"hello"), "{pattern}");
    }
    for pattern in ["", "h", "hell", "hello?", "h[b-d]llo", "h[^e]llo", "H*", "*x*"] {
        assert!(!both(pattern.as_bytes(), b"hello"), "{pattern}");
    }
    assert!(both(b"\\*", b"*") && !both(b"\\*", b"a") && both(b"", b"") && !both(b"*", b""));
    // The cost of several stars does not multiply.
    assert!(!both("*a".repeat(40).as_bytes(), "a".repeat(39).as_bytes()));
}

/// Pieces of patterns, also malformed ones. Few bytes, so that texts match.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[ab]{1,3}",
        3 => "[*]{1,2}",
        2 => "[?]",
        3 => r"\[\^?[abc\]\\^-]{0,4}\]",
        1 => r"\[\^?[abc\\-]{0,3}",
        1 => r"\\[ab*?\[\]\\]?",
    ]
}

fn check(matcher: &mut Matcher, glob: &Glob, text: &[u8]) -> Result<bool, TestCaseError> {
    let pattern = glob.pattern();
    let wanted = reference::matches(pattern, text);
    let shown = || (String::from_utf8_lossy(pattern).into_owned(), String::from_utf8_lossy(text).into_owned());
    prop_assert_eq!(glob.matches(text), wanted, "compiled: {:?}", shown());
    prop_assert_eq!(matcher.matches(text), wanted, "one of many texts: {:?}", shown());
    prop_assert_eq!(matches(pattern, text), wanted, "used once: {:?}", shown());
    Ok(wanted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_pattern_matches_as_the_reference_does(
        pieces in proptest::collection::vec(piece(), 0..8),
        texts in proptest::collection::vec("[abc*-]{0,12}", 1..8),
    ) {
        let pattern = pieces.concat();
        let glob = Glob::new(pattern.as_bytes());
        let mut matcher = Matcher::new(pattern.as_bytes());
        for text in &texts {
            check(&mut matcher, &glob, text.as_bytes())?;
        }
    }

    #[test]
    fn a_pattern_of_any_bytes_matches_as_the_reference_does(
        pattern in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'['), Just(b'*'), Just(b'-')], 0..12),
        text in proptest::collection::vec(any::<u8>(), 0..6),
    ) {
        check(&mut Matcher::new(&pattern), &Glob::new(&pattern), &text)?;
        // A pattern of this text, and a text that it may match.
        let pattern = [&pattern[..], b"*", &text].concat();
        check(&mut Matcher::new(&pattern), &Glob::new(&pattern), &[&pattern[..], &text].concat())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Segments of up to 300 tokens in texts of nearly one byte, for which masks are built.
    #[test]
    fn long_segments_match_as_the_reference_does(
        segments in proptest::collection::vec((piece(), 1..150_usize, piece()), 1..4),
        texts in proptest::collection::vec((0..1500_usize, "[ab]{1,4}", 0..1500_usize), 1..4),
        has_stars in any::<bool>(),
    ) {
        let segments: Vec<String> = segments
            .iter()
            .map(|(repeated, times, end)| format!("{}{end}", repeated.repeat(*times)))
            .collect();
        let pattern = segments.join("*");
        let pattern = if has_stars { format!("*{pattern}*") } else { pattern };
        let glob = Glob::new(pattern.as_bytes());
        let mut matcher = Matcher::new(pattern.as_bytes());
        for (before, middle, after) in texts {
            let text = format!("{}{middle}{}", "a".repeat(before), "a".repeat(after));
            check(&mut matcher, &glob, text.as_bytes())?;
        }
    }

    /// Masks from the first byte on.
    #[test]
    fn masks_find_the_first_occurrence(
        tokens in "[a?]{9,150}b[ab?]{0,50}",
        place in 0..3000_usize,
        text in "(a{0,200}[ab]){20,40}[ab]{3000}",
    ) {
        // The segment occurs at this place, and maybe before it.
        let both = text.chars().zip(tokens.chars());
        let written: String = both.map(|(any, token)| if token == '?' { any } else { token }).collect();
        let text = [&text[..place], &written, &text[place..]].concat();
        let many = "a".repeat(2000);
        let pattern = format!("*{tokens}*");
        let mut matcher = Matcher::new(pattern.as_bytes());
        // The text of one byte uses up what may be compared token by token.
        for _ in 0..6 {
            check(&mut matcher, &Glob::new(pattern.as_bytes()), many.as_bytes())?;
        }
        prop_assert!(check(&mut matcher, &Glob::new(pattern.as_bytes()), text.as_bytes())?);
        // Nothing is left for a second segment that is as long as the rest of the text, and one byte more.
        let first = (0..).find(|at| reference::matches(format!("{tokens}*").as_bytes(), &text.as_bytes()[*at..]));
        let rest = text.len() - first.expect("it occurs") - tokens.len();
        for (more, wanted) in [(rest, true), (rest + 1, false)] {
            let pattern = format!("{pattern}{}", "?".repeat(more));
            prop_assert_eq!(Matcher::new(pattern.as_bytes()).matches(text.as_bytes()), wanted);
        }
    }
}

/// Returns the numbers of the patterns of a set that match.
fn found(set: &GlobSet, text: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    assert!(set.find(text, |number| found.push(number)) <= text.len());
    found.sort_unstable();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Patterns that end in any word of the states, and texts that are longer than what is read before a check.
    #[test]
    fn patterns_of_a_set_match_as_each_of_them_does(
        pieces in proptest::collection::vec(proptest::collection::vec(piece(), 0..8), 1..20),
        texts in proptest::collection::vec("[abc*-]{0,12}", 1..4),
        long in "(a{0,40}[ab]){0,8}",
    ) {
        let mut globs: Vec<Glob> = pieces.iter().map(|pieces| Glob::new(pieces.concat().as_bytes())).collect();
        while globs.iter().map(Glob::states).sum::<usize>() > GlobSet::STATES_MAX {
            globs.pop();
        }
        let set = GlobSet::new(&globs).expect("they have few states");
        for text in texts.iter().chain([&long]) {
            let text = text.as_bytes();
            let wanted: Vec<usize> =
                (0..globs.len()).filter(|number| reference::matches(globs[*number].pattern(), text)).collect();
            let patterns: Vec<_> = globs.iter().map(|glob| String::from_utf8_lossy(glob.pattern())).collect();
            prop_assert_eq!(found(&set, text), wanted, "{:?} {:?}", patterns, String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn a_prefix_matches_as_its_pattern_does(pieces in proptest::collection::vec(piece(), 0..4), text in "[ab]{1,6}") {
        let glob = Glob::new(pieces.concat().as_bytes());
        if glob.is_prefix() {
            let begins = text.as_bytes().starts_with(literal_start(glob.pattern()));
            prop_assert_eq!(glob.matches(text.as_bytes()), begins, "{:?}", glob);
        }
    }
}

#[test]
fn a_set_has_a_maximum_and_reads_a_text_once() {
    let long = Glob::new(format!("*{}*", "a".repeat(GlobSet::STATES_MAX - 1)).as_bytes());
    let text = vec![b'a'; 65_535];
    let set = GlobSet::new([&long]).expect("all states");
    assert_eq!((found(&set, &text), set.find(&text[..300], |_| ())), (vec![0], 256));
    assert!(GlobSet::new([&long, &Glob::new(b"")]).is_none());
    // Patterns that match any rest, or none, do not read it.
    let globs = [Glob::new(b"__key*__:*"), Glob::new(b"__keyevent@*__:exp*"), Glob::new(b"b*a*")];
    let set = GlobSet::new(&globs).expect("few states");
    let channel = [b"__keyspace@0__:", &text[..]].concat();
    assert_eq!((found(&set, &channel), set.find(&channel, |_| ())), (vec![0], 64));
    // Any number of patterns costs one pass.
    let globs: Vec<Glob> = (0..32).map(|number| Glob::new(format!("*{number:02}a*b*").as_bytes())).collect();
    let set = GlobSet::new(&globs).expect("few states");
    assert_eq!(set.find(&text, |number| panic!("{number}")), text.len());
    assert!(Glob::new(b"*").is_prefix() && Glob::new(b"ab**").is_prefix());
    assert!(!Glob::new(b"a?*").is_prefix() && !Glob::new(b"ab").is_prefix() && !Glob::new(b"a\\**").is_prefix());
}

/// Without masks, these comparisons take minutes.
#[test]
fn a_long_pattern_is_compared_with_long_texts_in_bounded_time() {
    let many = "a".repeat(500);
    let text = "a".repeat(65_535);
    let field = "a".repeat(1 << 20);
    let begin = Instant::now();
    for pattern in [format!("*{many}[^{many}]"), format!("*{many}[^{many}]*"), format!("*{}b*", "[ab]".repeat(255))] {
        let glob = Glob::new(pattern.as_bytes());
        let mut matcher = Matcher::new(pattern.as_bytes());
        for _ in 0..4 {
            assert!(!glob.matches(text.as_bytes()) && !matcher.matches(text.as_bytes()));
            assert!(!matches(pattern.as_bytes(), text.as_bytes()));
        }
        assert!(!matcher.matches(field.as_bytes()));
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}
