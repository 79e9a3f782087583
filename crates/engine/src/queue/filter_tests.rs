//! Semantics and syntax errors of filters; random filters against a naive model, with any spacing.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Attributes<'a> = BTreeMap<&'a str, &'a str>;

fn takes(filter: &str, attributes: &[(&str, &str)]) -> bool {
    let attributes: Attributes = attributes.iter().copied().collect();
    let filter = Filter::parse(filter).unwrap_or_else(|e| panic!("{filter}: {e}"));
    filter.matches(|key| attributes.get(key).copied())
}

#[test]
fn filters_match_the_stated_attributes() {
    let com: &[_] = &[("domain", "com"), ("iana.org/language_tag", "en-GB")];
    let cases = [
        ("attributes:domain", true),
        ("attributes:Domain", false),
        ("attributes:name", false),
        (r#"attributes.domain = "com""#, true),
        (r#"attributes.domain="co""#, false),
        (r#"attributes.domain = "Com""#, false),
        (r#"attributes.domain != "org""#, true),
        (r#"attributes.domain != "com""#, false),
        // A message without the attribute does not have that value.
        (r#"attributes.name != "com""#, true),
        (r#"hasPrefix(attributes.domain, "co")"#, true),
        (r#"hasPrefix ( attributes . domain , "")"#, true),
        (r#"hasPrefix(attributes.domain, "com.")"#, false),
        (r#"hasPrefix(attributes.name, "")"#, false),
        (r#"attributes:"iana.org/language_tag""#, true),
        (r#"hasPrefix(attributes."iana.org/language_tag", "en")"#, true),
        ("NOT attributes:domain", false),
        ("-attributes:name", true),
        ("NOT(attributes:name)", true),
        // NOT applies to the one test after it.
        (r#"NOT attributes:name AND attributes.domain = "org""#, false),
        (r#"NOT (attributes:domain AND attributes.domain = "org")"#, true),
        (r#"attributes:domain AND (attributes.domain = "net" OR attributes.domain = "com")"#, true),
        ("attributes:a OR attributes:b OR attributes:domain", true),
        ("attributes:domain AND attributes:b AND attributes:domain", false),
        ("  attributes\t:\n domain  ", true),
        ("((attributes:domain))", true),
    ];
    for (filter, expected) in cases {
        assert_eq!(takes(filter, com), expected, "{filter}");
    }
    assert!(takes("attributes:AND OR attributes:NOT-or_1", &[("NOT-or_1", "")]), "a key may be any word");
}

#[test]
fn escapes_stand_for_characters() {
    let cases = [
        (r#""a\"b\\c\'d""#, "a\"b\\c'd"),
        (r#"'it\'s "quoted"'"#, "it's \"quoted\""),
        (r#""\a\b\f\n\r\t\v\?\`""#, "\x07\x08\x0c\n\r\t\x0b?`"),
        (r#""\x41\X7a\101\377""#, "AzAÿ"),
        (r#""\u20ac\U0001F600ä""#, "€😀ä"),
        (r#""""#, ""),
    ];
    for (written, meant) in cases {
        assert!(takes(&format!("attributes.k = {written}"), &[("k", meant)]), "{written}");
        assert!(takes(&format!("attributes:{written}"), &[(meant, "v")]), "{written}");
    }
}

#[test]
fn syntax_errors_are_reported_with_their_position() {
    let cases = [
        ("", 1, "attributes, hasPrefix"),
        ("   ", 4, "attributes, hasPrefix"),
        ("attribute:a", 1, "attributes, hasPrefix"),
        ("attributes", 11, "expected '.'"),
        ("attributes:", 12, "a key"),
        ("attributes:iana.org/tag", 16, "'.' is in quotes"),
        ("attributes:größe", 14, r"'\u{f6}' is in quotes"),
        ("attributes.a", 13, "= or !="),
        ("attributes.a == \"b\"", 15, "a value"),
        ("attributes.a < \"b\"", 14, "= or !="),
        ("attributes.a = b", 16, "expected a value, in quotes"),
        ("attributes.ä = \"ü\" x", 12, "a key"),
        ("attributes.\"ä\" = \"ü\" x", 22, "AND, OR or the end"),
        ("\"b\" = attributes.a", 1, "attributes, hasPrefix"),
        ("attributes.a = \"b", 16, "not closed"),
        ("attributes.a = \"\\q\"", 17, "no such escape"),
        ("attributes.a = \"\\x4\"", 17, "2 digits"),
        ("attributes.a = \"\\x+4\"", 17, "2 digits"),
        ("attributes.a = \"\\ud800\"", 17, "4 digits"),
        ("attributes.a = \"\\U00110000\"", 17, "8 digits"),
        ("attributes.a = \"\\u123é\"", 17, "4 digits"),
        ("attributes.a = \"\\", 17, "nothing follows"),
        ("attributes.a = \"\n\"", 17, r"written \n"),
        ("attributes:a attributes:b", 14, "AND, OR or the end"),
        ("attributes:a and attributes:b", 14, "capitals"),
        ("attributes:a AND", 17, "attributes, hasPrefix"),
        ("attributes:a AND attributes:b OR attributes:c", 31, "parentheses"),
        ("attributes:a OR attributes:b AND attributes:c", 30, "parentheses"),
        ("NOT NOT attributes:a", 5, "attributes, hasPrefix"),
        ("(attributes:a", 14, "expected ')'"),
        ("attributes:a)", 13, "AND, OR or the end"),
        ("hasPrefix(attributes:a, \"b\")", 21, "expected '.'"),
        ("hasPrefix(attributes.a \"b\")", 24, "expected ','"),
        ("hasPrefix(\"a\", \"b\")", 11, "attributes.KEY"),
        ("HASPREFIX(attributes.a, \"b\")", 1, "attributes, hasPrefix"),
    ];
    for (filter, position, part) in cases {
        let error = Filter::parse(filter).expect_err(filter);
        assert!(error.message.starts_with(&format!("filter, character {position}: ")), "{filter}: {error}");
        assert!(error.message.contains(part), "{filter}: {error}");
    }
}

#[test]
fn filters_are_short_and_flat() {
    let longest = format!("attributes:{}", "k".repeat(FILTER_BYTES_MAX - 11));
    assert!(Filter::parse(&longest).is_ok());
    assert!(Filter::parse(&format!("{longest}k")).expect_err("too long").message.contains("257"));
    let nested = |depth| format!("{}attributes:a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(takes(&nested(FILTER_NESTING_MAX), &[("a", "")]));
    let error = Filter::parse(&nested(FILTER_NESTING_MAX + 1)).expect_err("too deep");
    assert!(error.message.contains("deep"), "{error}");
}

/// Filter of the model: printed by [`Tree::print`], evaluated by [`Tree::takes`].
#[derive(Clone, Debug)]
enum Tree {
    Has(String),
    Equals(String, String, bool),
    Prefix(String, String),
    Not(Box<Tree>, bool),
    Join(Vec<Tree>, bool),
}

impl Tree {
    fn takes(&self, attributes: &Attributes) -> bool {
        match self {
            Self::Has(key) => attributes.contains_key(&**key),
            Self::Equals(key, value, is_equal) => (attributes.get(&**key) == Some(&&**value)) == *is_equal,
            Self::Prefix(key, prefix) => attributes.get(&**key).is_some_and(|value| value.find(prefix) == Some(0)),
            Self::Not(part, _) => !part.takes(attributes),
            Self::Join(parts, is_all) => {
                let taken = parts.iter().filter(|part| part.takes(attributes)).count();
                if *is_all { taken == parts.len() } else { taken > 0 }
            }
        }
    }

    /// Prints the filter with `space` wherever spaces are allowed, in parentheses unless it is a single test.
    fn print(&self, space: &str) -> String {
        let key = |key: &str| {
            let is_word = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
            if is_word { key.to_owned() } else { quote(key) }
        };
        match self {
            Self::Has(name) => format!("attributes{space}:{space}{}", key(name)),
            Self::Equals(name, value, is_equal) => {
                let sign = if *is_equal { "=" } else { "!=" };
                format!("attributes{space}.{space}{}{space}{sign}{space}{}", key(name), quote(value))
            }
            Self::Prefix(name, prefix) => {
                format!("hasPrefix({space}attributes.{}{space},{space}{}{space})", key(name), quote(prefix))
            }
            Self::Not(part, is_word) => {
                let sign = if *is_word { "NOT " } else { "-" };
                format!("{space}({sign}{})", part.print(space))
            }
            Self::Join(parts, is_all) => {
                let printed: Vec<String> = parts.iter().map(|part| part.print(space)).collect();
                format!("({}){space}", printed.join(if *is_all { " AND " } else { " OR " }))
            }
        }
    }
}

fn quote(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Returns few different keys and values, so that they often match.
fn texts() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["", "a", "b-", "a b", "a\"", "\\ä", "\n", "😀", "NOT", "=é"]).prop_map(str::to_owned)
}

fn trees() -> impl Strategy<Value = Tree> {
    let test = prop_oneof![
        texts().prop_map(Tree::Has),
        (texts(), texts(), any::<bool>()).prop_map(|(key, value, is_equal)| Tree::Equals(key, value, is_equal)),
        (texts(), texts()).prop_map(|(key, prefix)| Tree::Prefix(key, prefix)),
    ];
    test.prop_recursive(4, 8, 3, |part| {
        prop_oneof![
            (part.clone(), any::<bool>()).prop_map(|(part, is_word)| Tree::Not(Box::new(part), is_word)),
            (prop::collection::vec(part, 2..4), any::<bool>()).prop_map(|(parts, is_all)| Tree::Join(parts, is_all)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_printed_filter_parses_to_the_same_filter(
        tree in trees(),
        space in prop::sample::select(vec!["", " ", "\t \n"]),
        attributes in prop::collection::btree_map(texts(), texts(), 0..5),
    ) {
        let printed = tree.print(space);
        prop_assume!(printed.len() <= FILTER_BYTES_MAX);
        let filter = Filter::parse(&printed).expect(&printed);
        prop_assert_eq!(filter.to_string(), printed.clone());
        prop_assert_eq!(Filter::parse(&filter.to_string()).expect("it is its own text"), filter.clone());
        let attributes: Attributes = attributes.iter().map(|(key, value)| (&**key, &**value)).collect();
        let is_taken = filter.matches(|key| attributes.get(key).copied());
        prop_assert_eq!(is_taken, tree.takes(&attributes), "{} of {:?}", printed, attributes);
    }

    /// Any text is a filter or an error that points into the text.
    #[test]
    fn any_text_is_read_or_refused(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "attributes", "hasPrefix", ".", ":", "=", "!=", "(", ")", ",", "\"", "'", "\\", "x4", "é", "AND", "OR",
                "NOT", "-", " ", "k", "\"v\"", "attributes:k",
            ]),
            0..24,
        ),
    ) {
        let text = parts.concat();
        match Filter::parse(&text) {
            Ok(filter) => prop_assert_eq!(filter.as_str(), text),
            Err(error) => {
                let position = error.message.split([' ', ':']).nth(2).and_then(|number| number.parse::<usize>().ok());
                prop_assert!(position.is_some_and(|at| (1..=text.chars().count() + 1).contains(&at)), "{}", error);
            }
        }
    }
}
