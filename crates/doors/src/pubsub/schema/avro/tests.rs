//! Avro definitions, messages in both encodings, and compatibility of definitions.

use super::*;

const ORDER: &str = r#"{"type": "record", "name": "Order", "namespace": "shop", "fields": [
    {"name": "id", "type": "long"},
    {"name": "open", "type": "boolean"},
    {"name": "note", "type": ["null", "string"], "default": null},
    {"name": "rates", "type": {"type": "map", "values": "double"}},
    {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
    {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    {"name": "parts", "type": {"type": "array", "items": "Order"}}
]}"#;

fn parse(text: &str) -> Avro {
    Avro::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[test]
fn definitions_that_hold_are_taken_and_others_refused() {
    let valid = [
        "\"int\"",
        r#"{"type": "string"}"#,
        r#"{"type": {"type": "string"}}"#,
        r#"{"type": "long", "logicalType": "timestamp-millis"}"#,
        r#"["null", "int", {"type": "array", "items": "int"}]"#,
        r#"{"type": "record", "name": "a.b.C", "fields": [{"name": "next", "type": ["null", "C"]}]}"#,
        r#"{"type": "record", "name": "C", "fields": [{"name": "p", "type": "double", "default": "0.0"}]}"#,
        ORDER,
    ];
    valid.iter().for_each(|text| drop(parse(text)));
    let invalid = [
        "",
        "1",
        "{}",
        "[]",
        "\"unknown\"",
        r#"["int", "int"]"#,
        r#"["int", ["null"]]"#,
        r#"[{"type": "map", "values": "int"}, {"type": "map", "values": "long"}]"#,
        r#"{"type": "array"}"#,
        r#"{"type": "fixed", "name": "F", "size": -1}"#,
        r#"{"type": "fixed", "name": "F", "size": 3000000000}"#,
        r#"{"type": "enum", "name": "E", "symbols": ["A", "A"]}"#,
        r#"{"type": "enum", "name": "E", "symbols": ["A-B"]}"#,
        r#"{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}"#,
        r#"{"type": "record", "fields": []}"#,
        r#"{"type": "record", "name": "1a", "fields": []}"#,
        r#"{"type": "record", "name": "R", "fields": [{"name": "a"}]}"#,
        r#"{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}"#,
        r#"{"type":"record","name":"R","fields":[{"name":"a","type": {"type": "enum", "name": "R", "symbols": []}}]}"#,
        "\"int\" \"int\"",
    ];
    for text in invalid {
        assert!(Avro::parse(text).is_err(), "{text}");
    }
    let deep = format!("{}\"int\"{}", r#"{"type":"array","items":"#.repeat(10_000), "}".repeat(10_000));
    assert!(Avro::parse(&deep).is_err());
}

#[test]
fn binary_messages_follow_the_definition_to_the_last_byte() {
    let order = parse(ORDER);
    // 150, true, "hi", {"a": 1.0} in a block with its size, BLUE, two bytes, one part without parts.
    let part = b"\x02\x00\x00\x00\x00ab\x00";
    let whole = [
        &b"\xac\x02\x01\x02\x04hi"[..],
        b"\x01\x14\x02a\x00\x00\x00\x00\x00\x00\xf0\x3f\x00",
        b"\x02ab",
        b"\x02",
        part,
        b"\x00",
    ]
    .concat();
    order.check_binary(&whole).expect("a message");
    let text = order.text_of_binary(&whole, 1000).expect("a message");
    assert_eq!(
        text,
        r#"{"id":150,"open":true,"note":{"string":"hi"},"rates":{"a":1.0},"color":"BLUE","hash":"ab","parts":["#
            .to_owned()
            + r#"{"id":1,"open":false,"note":null,"rates":{},"color":"RED","hash":"ab","parts":[]}]}"#
    );
    order.check_json(text.as_bytes()).expect("the same message in JSON");
    assert_eq!(order.text_of_binary(&whole, text.len()).as_ref(), Ok(&text));
    let too_long = order.text_of_binary(&whole, text.len() - 1).expect_err("a byte too long");
    assert!(too_long.contains("more than"), "{too_long}");
    for cut in 0..whole.len() {
        assert!(order.check_binary(&whole[..cut]).is_err(), "cut at {cut}");
    }
    assert_eq!(order.check_binary(&[&whole[..], b"x"].concat()), Err("Too much data to parse for schema.".to_owned()));
    let changed = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        order.check_binary(&bytes)
    };
    assert!(changed(2, 2).is_err(), "no boolean");
    assert!(changed(3, 4).is_err(), "no branch of the union");
    assert!(changed(5, 0xff).is_err(), "not UTF-8");
    assert!(changed(8, 0x12).is_err(), "a block with other bytes than it says");
    assert!(changed(20, 4).is_err(), "no symbol");
}

#[test]
fn every_type_has_a_text() {
    let cases: [(&str, &[u8], &str); 9] = [
        ("\"null\"", b"", "null"),
        ("\"long\"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "-9223372036854775808"),
        ("\"float\"", b"\xcd\xcc\xcc\x3d", "0.1"),
        ("\"double\"", b"\x00\x00\x00\x00\x00\x00\xf0\x7f", "\"Infinity\""),
        ("\"bytes\"", b"\x06\x00\"\xff", "\"\\u0000\\\"\u{ff}\""),
        ("\"string\"", "\u{6}\u{e9}\n".as_bytes(), "\"\u{e9}\\n\""),
        (r#"{"type": "enum", "name": "E", "symbols": ["Z", "A"]}"#, b"\x00", "\"Z\""),
        (r#"["null", {"type": "array", "items": "int"}]"#, b"\x02\x04\x02\x04\x02\x06\x00", r#"{"array":[1,2,3]}"#),
        (r#"{"type": "map", "values": "int"}"#, b"\x02\x02a\x02\x02\x02b\x04\x00", r#"{"a":1,"b":2}"#),
    ];
    for (definition, message, text) in cases {
        assert_eq!(parse(definition).text_of_binary(message, 100).as_deref(), Ok(text), "{definition}");
    }
    // A record of null has no bytes, and the name of its field is long: the text is limited, not only the message.
    let field = "f".repeat(500);
    let record = format!(r#"{{"type": "record", "name": "R", "fields": [{{"name": "{field}", "type": "null"}}]}}"#);
    let many = format!(r#"{{"type": "array", "items": {record}}}"#);
    let refused = parse(&many).text_of_binary(b"\x80\x80\x04\x00", 10_000).expect_err("too long");
    assert!(refused.contains("more than 10000 bytes"), "{refused}");
}

#[test]
fn integers_have_their_ranges() {
    let cases: [(&str, &[u8], bool); 8] = [
        ("\"int\"", b"\xfe\xff\xff\xff\x0f", true),
        ("\"int\"", b"\xff\xff\xff\xff\x0f", true),
        ("\"int\"", b"\x80\x80\x80\x80\x10", false),
        ("\"long\"", b"\x80\x80\x80\x80\x10", true),
        ("\"long\"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", true),
        ("\"long\"", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", false),
        ("\"bytes\"", b"\x01", false),
        ("\"bytes\"", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", false),
    ];
    for (text, message, is_valid) in cases {
        assert_eq!(parse(text).check_binary(message).is_ok(), is_valid, "{text} {message:?}");
    }
}

#[test]
fn json_messages_follow_the_definition() {
    let order = parse(ORDER);
    let part = r#"{"id": 1, "open": false, "note": null, "rates": {}, "color": "RED", "hash": "ab", "parts": []}"#;
    let whole = format!(
        r#"{{"id": 150, "open": true, "note": {{"string": "hi"}}, "rates": {{"a": 1, "b": 1.5}},
            "color": "BLUE", "hash": "\u00ffa", "parts": [{part}]}}"#
    );
    order.check_json(whole.as_bytes()).expect("a message");
    let cases = [
        ("150", "\"150\"", "JSON object with type string does not match schema which expected number_integer"),
        ("150", "1.5", "JSON object with type number_float does not match schema which expected number_integer"),
        ("150", "9223372036854775808", "is not a long"),
        ("true", "1", "expected boolean"),
        (r#"{"string": "hi"}"#, "\"hi\"", "an object with the type as its key"),
        (r#"{"string": "hi"}"#, r#"{"int": 1}"#, "the union has no type"),
        (r#"{"string": "hi"}"#, r#"{"string": "hi", "null": null}"#, "one key"),
        ("BLUE", "GREEN", "has no symbol"),
        ("\\u00ffa", "abc", "does not have the bytes"),
        ("\\u00ffa", "\\u0100a", "does not have the bytes"),
        ("\"open\": true,", "", "missing field \"open\""),
        ("\"open\": true,", "\"open\": true, \"open\": true,", "is set twice"),
        ("\"open\": true,", "\"open\": true, \"shut\": 1,", "unknown field \"shut\""),
        ("\"parts\": []", "\"parts\": [1]", "expected object"),
        ("\"rates\": {}", "\"rates\": {\"a\": null}", "type null does not match schema which expected number"),
    ];
    for (from, to, why) in cases {
        assert!(whole.contains(from));
        let refused = order.check_json(whole.replacen(from, to, 1).as_bytes()).expect_err(to);
        assert!(refused.contains(why), "{to}: {refused}");
    }
    assert!(order.check_json(format!("{whole} {{}}").as_bytes()).is_err_and(|why| why.starts_with("Too much data")));
    assert!(order.check_json(b"").is_err() && order.check_json(b"\xff").is_err());
}

#[test]
fn a_few_bytes_never_ask_for_much_work() {
    // An array of 2^62 items without bytes, and records that consist of empty records.
    let nulls = parse(r#"{"type": "array", "items": "null"}"#);
    assert!(nulls.check_binary(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00").is_err());
    assert!(nulls.check_binary(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01").is_err());
    nulls.check_binary(b"\x80\x7d\x00").expect("8000 of nothing");
    let mut text = r#"{"type": "record", "name": "R0", "fields": []}"#.to_owned();
    for level in 1..12 {
        let fields: Vec<String> = (1..20).map(|i| format!(r#"{{"name": "f{i}", "type": "R{}"}}"#, level - 1)).collect();
        let first = format!(r#"{{"name": "f0", "type": {text}}}"#);
        text = format!(r#"{{"type": "record", "name": "R{level}", "fields": [{first}, {}]}}"#, fields.join(","));
    }
    assert!(parse(&text).check_binary(b"").is_err());
    // A record that contains itself without end.
    let endless = parse(r#"{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}"#);
    assert!(endless.check_binary(b"").is_err());
    let list = parse(r#"{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}"#);
    list.check_binary(&[&b"\x02".repeat(20)[..], b"\x00"].concat()).expect("a list");
    assert!(list.check_binary(&b"\x02".repeat(1 << 20)).is_err());
    let deep = [r#"{"r": {"R": "#.repeat(1 << 16), "null".to_owned(), "}}".repeat(1 << 16)].concat();
    assert!(list.check_json(deep.as_bytes()).is_err());
}

#[test]
fn a_revision_reads_and_is_read() {
    let record = |fields: &str| format!(r#"{{"type": "record", "name": "R", "fields": [{fields}]}}"#);
    let a = record(r#"{"name": "a", "type": "int"}"#);
    let cases = [
        (a.clone(), a.clone(), true),
        (a.clone(), record(r#"{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}"#), true),
        (a.clone(), record(r#"{"name": "a", "type": "int"}, {"name": "b", "type": "int"}"#), false),
        (a.clone(), record(""), false),
        (record(r#"{"name": "a", "type": "int", "default": 1}"#), record(""), true),
        // Promotions are one-way, except between strings and bytes.
        (a.clone(), record(r#"{"name": "a", "type": "long"}"#), false),
        (record(r#"{"name": "a", "type": "string"}"#), record(r#"{"name": "a", "type": "bytes"}"#), true),
        (a.clone(), a.replace("\"R\"", "\"S\""), false),
        (a.clone(), a.replace("\"R\"", "\"other.R\""), true),
        (r#"["null", "int"]"#.into(), r#"["int", "null"]"#.into(), true),
        (r#"["null", "int"]"#.into(), r#"["null", "int", "string"]"#.into(), false),
        (
            r#"{"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}"#.into(),
            r#"{"type": "enum", "name": "E", "symbols": ["A", "C"], "default": "A"}"#.into(),
            true,
        ),
        (
            r#"{"type": "enum", "name": "E", "symbols": ["A", "B"]}"#.into(),
            r#"{"type": "enum", "name": "E", "symbols": ["A"]}"#.into(),
            false,
        ),
        (
            r#"{"type": "fixed", "name": "F", "size": 1}"#.into(),
            r#"{"type": "fixed", "name": "F", "size": 2}"#.into(),
            false,
        ),
        (ORDER.to_owned(), ORDER.to_owned(), true),
    ];
    for (old, new, is_compatible) in cases {
        let compared = parse(&new).expect_compatible(&parse(&old));
        assert_eq!(compared.is_ok(), is_compatible, "{old} {new} {compared:?}");
    }
    // Each direction separately.
    let pairs = |into: &str, from: &str| {
        let reader = parse(into);
        let writer = parse(from);
        reader.reads(&writer).is_ok()
    };
    assert!(pairs("\"double\"", "\"int\"") && !pairs("\"int\"", "\"double\""));
    let renamed = record(r#"{"name": "b", "aliases": ["a"], "type": "long"}"#);
    assert!(pairs(&renamed, &a) && !pairs(&a, &renamed));
}

#[test]
fn definitions_that_are_hard_to_compare_are_refused_in_time() {
    // Unions of nearly equal records: each is compared with each.
    let union = |last: &str| {
        let fields: String = (0..200).map(|i| format!(r#"{{"name": "f{i}", "type": "int"}},"#)).collect();
        let records: Vec<String> = (0..300)
            .map(|i| {
                format!(r#"{{"type": "record", "name": "n{i}.R", "fields": [{{"name": "a", "type": "{last}"}}]}}"#)
            })
            .collect();
        let whole = format!(r#"{{"type": "record", "name": "W", "fields": [{fields}{{"name": "z", "type": "int"}}]}}"#);
        format!("[{}, {whole}]", records.join(","))
    };
    let compared = parse(&union("int")).expect_compatible(&parse(&union("string")));
    assert!(compared.is_err());
    // A chain of types nests as deeply as it is long.
    let mut chain = vec![r#"{"type": "record", "name": "R0", "fields": []}"#.to_owned()];
    for i in 1..3000 {
        let before = i - 1;
        chain
            .push(format!(r#"{{"type": "record", "name": "R{i}", "fields": [{{"name": "r", "type": "R{before}"}}]}}"#));
    }
    let chain = parse(&format!("[{}]", chain.join(",")));
    assert!(chain.expect_compatible(&chain).is_err());
}

/// Types and aliases inherit their namespace: without a limit, 300 KB of text would become gigabytes.
#[test]
fn names_are_bounded_with_their_namespaces() {
    let of = |namespace_bytes: usize| {
        let fields: Vec<String> = (0..2000)
            .map(|i| {
                let aliases = ["\"a\""; 10].join(",");
                let fixed = format!(r#"{{"type":"fixed","name":"f{i:04}","size":1,"aliases":[{aliases}]}}"#);
                format!(r#"{{"name":"f{i}","type":{fixed}}}"#)
            })
            .collect();
        let namespace = "n".repeat(namespace_bytes);
        Avro::parse(&format!(
            r#"{{"type":"record","name":"R","namespace":"{namespace}","fields":[{}]}}"#,
            fields.join(",")
        ))
    };
    let avro = of(506).expect("every name has 512 bytes");
    let kept: usize =
        avro.types.iter().map(|of| if let Type::Fixed { name, .. } = of { name.bytes() } else { 0 }).sum();
    assert_eq!(kept, 2000 * (512 + 10), "aliases are kept without it");
    assert!(of(507).is_err_and(|why| why.contains("at most 512 bytes, not 513")));
    assert!(of(100_000).is_err());
}

impl Names {
    fn bytes(&self) -> usize {
        self.full.len() + self.aliases.iter().map(String::len).sum::<usize>()
    }
}
