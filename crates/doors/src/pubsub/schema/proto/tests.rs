//! Protocol buffer definitions, messages in both encodings, and compatibility of definitions.

use super::*;

const ORDER: &str = r#"
    syntax = "proto3";
    package shop;
    // What a customer asked for.
    message Order {
        int64 id = 1;
        optional bool is_open = 2 [deprecated = true];
        repeated int32 sizes = 3;
        map<int32, Part> parts = 4;
        Color color = 5;
        oneof how { string by_name = 6; bytes by_hash = 7; }
        double rate = 8;
        Order parent = 9;
        fixed32 small = 10;
        message Part { string name = 1; }
        enum Color { RED = 0; BLUE = 1; }
    }
"#;

const OLD: &str = r#"
    syntax = "proto2";
    message Old {
        required int32 id = 1;
        optional group Extra = 2 { required string text = 1; }
        extensions 100 to 200;
    }
"#;

fn parse(text: &str) -> Proto {
    Proto::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[test]
fn definitions_that_hold_are_taken_and_others_refused() {
    [ORDER, OLD].iter().for_each(|text| drop(parse(text)));
    let invalid = [
        "",
        "syntax = \"proto3\";",
        "syntax = \"proto3\"; message A {} message B {}",
        "syntax = \"proto3\"; message A {} enum E { X = 0; }",
        "syntax = \"proto3\"; import \"google/protobuf/timestamp.proto\"; message A {}",
        "syntax = \"proto3\"; message A { int32 a = 1; int32 b = 1; }",
        "syntax = \"proto3\"; message A { int32 a = 1; string a = 2; }",
        "syntax = \"proto3\"; message A { int32 a = 0; }",
        "syntax = \"proto3\"; message A { int32 a = 19000; }",
        "syntax = \"proto3\"; message A { B b = 1; }",
        "syntax = \"proto3\"; message A { required int32 a = 1; }",
        "syntax = \"proto3\"; message A { int32 a = 1 ",
        "syntax = \"proto4\"; message A {}",
    ];
    for text in invalid {
        assert!(Proto::parse(text).is_err(), "{text}");
    }
}

#[test]
fn hostile_definitions_are_refused_or_taken_in_time() {
    let deep = ["syntax = \"proto3\";", &"message A {".repeat(20_000), &"}".repeat(20_000)].concat();
    assert!(Proto::parse(&deep).is_err());
    let braces = format!("syntax = \"proto3\"; option (x) = {}{};", "{ a: ".repeat(30_000), "}".repeat(30_000));
    assert!(Proto::parse(&braces).is_err());
    let lists = format!("syntax = \"proto3\"; option (x) = {{ a: {} }};", "[".repeat(100_000));
    assert!(Proto::parse(&lists).is_err());
    let groups = ["syntax = \"proto2\"; message A {", &"optional group G = 1 {".repeat(10_000)].concat();
    assert!(Proto::parse(&groups).is_err());
    let fields: String = (1..12_000).map(|i| format!("int32 f{i}={i};")).collect();
    assert_eq!(parse(&format!("syntax = \"proto3\"; message A {{ {fields} }}")).messages[0].fields.len(), 11_999);
}

#[test]
fn binary_messages_have_a_text() {
    let message = b"\x08\x96\x01\x1a\x02\x01\x02\x22\x07\x08\x01\x12\x03\x0a\x01a\x28\x01\x3a\x02\xff\xff\xf8\x07\x01";
    let text = text_of_binary(ORDER, message, 1000).expect("a message");
    assert_eq!(
        text, r#"{"id":"150","sizes":[1,2],"parts":{"1":{"name":"a"}},"color":"BLUE","byHash":"//8="}"#,
        "https://protobuf.dev/programming-guides/json/"
    );
    parse(ORDER).check_json(text.as_bytes()).expect("the same message in JSON");
    assert_eq!(text_of_binary(ORDER, message, text.len()).as_ref(), Ok(&text));
    assert!(text_of_binary(ORDER, message, text.len() - 1).expect_err("a byte too long").contains("more than"));
    assert!(text_of_binary(ORDER, b"\x08", 1000).is_err(), "it is cut off");
}

#[test]
fn binary_messages_follow_the_definition() {
    let order = parse(ORDER);
    let cases: [(&[u8], bool); 22] = [
        (b"", true),
        (b"\x08\x96\x01", true),
        (b"\x08", false),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", true),
        (b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", false),
        // A wire type that is wrong, and alternatives that are allowed.
        (b"\x0a\x01a", false),
        (b"\x1a\x03\x01\x02\x03", true),
        (b"\x18\x01\x18\x02", true),
        (b"\x1a\x02\x01\x82", false),
        (b"\x22\x07\x08\x01\x12\x03\x0a\x01a", true),
        (b"\x22\x07\x08\x01\x12\x03\x0a\x01\xff", false),
        (b"\x22\x07\x08\x01\x12\x04\x0a\x01a", false),
        (b"\x28\x07", true),
        (b"\x32\x02hi", true),
        (b"\x32\x02\xff\xff", false),
        (b"\x3a\x02\xff\xff", true),
        (b"\x41\x00\x00\x00\x00\x00\x00\x00\x00", true),
        (b"\x55\x00\x00\x00", false),
        // Unknown fields, including a group.
        (b"\xf8\x07\x01\xfa\x07\x01a\xfb\x07\x08\x01\xfc\x07", true),
        (b"\xfb\x07\x08\x01", false),
        (b"\xfc\x07", false),
        (b"\x00\x01", false),
    ];
    for (message, is_valid) in cases {
        assert_eq!(order.check_binary(message).is_ok(), is_valid, "{message:?} {:?}", order.check_binary(message));
    }
    let old = parse(OLD);
    let cases: [(&[u8], bool); 6] = [
        (b"", false),
        (b"\x08\x01", true),
        (b"\x08\x01\x13\x0a\x01a\x14", true),
        (b"\x08\x01\x13\x14", false),
        (b"\x08\x01\x13\x0a\x01a", false),
        (b"\x08\x01\x13\x0a\x01a\x1c", false),
    ];
    for (message, is_valid) in cases {
        assert_eq!(old.check_binary(message).is_ok(), is_valid, "{message:?}");
    }
}

#[test]
fn too_deeply_nested_messages_are_refused() {
    let order = parse(ORDER);
    let mut message = Vec::new();
    for _ in 0..100 {
        let length = message.len();
        let mut outer = vec![0x4a];
        let mut rest = length;
        while rest >= 0x80 {
            outer.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        outer.push(rest as u8);
        message = [outer, message].concat();
    }
    order.check_binary(&message).expect("a hundred orders");
    assert!(order.check_binary(&[0xfb, 0x07].repeat(1 << 20)).is_err());
    let json = [r#"{"parent": "#.repeat(1 << 16), "null".to_owned(), "}".repeat(1 << 16)].concat();
    assert!(order.check_json(json.as_bytes()).is_err());
}

#[test]
fn json_messages_follow_the_definition() {
    let order = parse(ORDER);
    let valid = [
        "{}",
        r#"{"id": 1, "isOpen": true, "sizes": [1, 2.0, "3", 1e3], "parts": {"1": {"name": "a"}, "-2": {}},
            "color": "BLUE", "byName": "x", "rate": "NaN",
            "parent": {"id": "9223372036854775807"}, "small": 4294967295}"#,
        r#"{"is_open": null, "color": 7, "by_hash": "AP__-w==", "rate": 1, "parts": null, "sizes": null}"#,
        r#"{"by_hash": "AP+/", "rate": "-1.5e3"}"#,
        r#"{"color": -1, "rate": 18446744073709551615}"#,
    ];
    for text in valid {
        assert_eq!(order.check_json(text.as_bytes()), Ok(()), "{text}");
    }
    let invalid = [
        "",
        "[]",
        "null",
        "{} {}",
        r#"{"unknown": 1}"#,
        r#"{"id": 1, "id": 2}"#,
        r#"{"isOpen": true, "is_open": true}"#,
        r#"{"id": 1.5}"#,
        r#"{"id": "1.5"}"#,
        r#"{"id": "+1"}"#,
        r#"{"id": " 1"}"#,
        r#"{"id": true}"#,
        r#"{"id": 9223372036854775808}"#,
        r#"{"isOpen": "true"}"#,
        r#"{"sizes": 1}"#,
        r#"{"sizes": [null]}"#,
        r#"{"sizes": [2147483648]}"#,
        r#"{"sizes": {}}"#,
        r#"{"parts": []}"#,
        r#"{"parts": {"a": {}}}"#,
        r#"{"parts": {"1": {"x": 1}}}"#,
        r#"{"parts": {"1": null}}"#,
        r#"{"color": "GREEN"}"#,
        r#"{"color": 2147483648}"#,
        r#"{"byName": "x", "byHash": "AA=="}"#,
        r#"{"byName": 1}"#,
        r#"{"byHash": "A"}"#,
        r#"{"byHash": "A-+ "}"#,
        r#"{"byHash": "AA=a"}"#,
        r#"{"rate": "nan"}"#,
        r#"{"rate": "1e999"}"#,
        r#"{"parent": 1}"#,
        r#"{"small": -1}"#,
    ];
    for text in invalid {
        assert!(order.check_json(text.as_bytes()).is_err(), "{text}");
    }
    let old = parse(OLD);
    assert!(old.check_json(br#"{"id": 1, "extra": {"text": "a"}}"#).is_ok());
    for text in ["{}", r#"{"id": null}"#, r#"{"id": 1, "extra": {}}"#] {
        assert!(old.check_json(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn optional_fields_come_and_go_and_all_else_stays() {
    let changed = |from: &str, to: &str| {
        assert!(ORDER.contains(from), "{from}");
        parse(&ORDER.replacen(from, to, 1))
    };
    let order = parse(ORDER);
    let cases = [
        ("int64 id = 1;", "int64 id = 1; string new = 11;", true),
        ("double rate = 8;", "", true),
        ("enum Color { RED = 0;", "enum Color { RED = 0; GREEN = 2;", true),
        ("message Part { string name = 1; }", "message Part { string name = 1; int32 count = 2; }", true),
        ("int64 id = 1;", "int64 id = 1; repeated string new = 11;", false),
        ("repeated int32 sizes = 3;", "", false),
        ("int64 id = 1;", "int32 id = 1;", false),
        ("int64 id = 1;", "int64 key = 1;", false),
        ("int64 id = 1;", "int64 id = 11;", false),
        ("int64 id = 1;", "repeated int64 id = 1;", false),
        ("map<int32, Part> parts", "map<int64, Part> parts", false),
        ("string by_name = 6; bytes by_hash = 7; }", "bytes by_hash = 7; } string by_name = 6;", false),
        ("message Order", "message Purchase", false),
        ("BLUE = 1", "BLUE = 2", false),
    ];
    for (from, to, is_compatible) in cases {
        let text =
            if from == "message Order" { ORDER.replace("Order", "Purchase") } else { ORDER.replacen(from, to, 1) };
        let other = if from == "message Order" { parse(&text) } else { changed(from, to) };
        for (new, old) in [(&order, &other), (&other, &order)] {
            let compared = new.expect_compatible(old);
            assert_eq!(compared.is_ok(), is_compatible, "{from} -> {to}: {compared:?}");
        }
    }
}

/// Nested items repeat the name of the outer one: without a limit, 300 KB of text would become gigabytes.
#[test]
fn names_are_bounded_with_all_that_they_are_inside_of() {
    for inside in
        ["int32 abc = 1;", "oneof abc { int32 f = 1; }", "enum abc { A = 0; }", "enum E { abc = 0; }", "message abc {}"]
    {
        let of = |package_bytes: usize| {
            let package = "p".repeat(package_bytes);
            Proto::parse(&format!("syntax = \"proto3\"; package {package}; message M {{ {inside} }}"))
        };
        let fits = 512 - ".M.abc".len();
        assert!(of(fits).is_ok(), "{inside}");
        assert!(of(fits + 1).is_err_and(|why| why.contains("at most 512 bytes, not 513")), "{inside}");
        assert!(of(100_000).is_err(), "{inside}");
    }
}
