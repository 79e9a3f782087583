//! AWS JSON 1.0: decoding of requests and encoding of responses. Empty lists and maps are omitted.

use super::codec::{Fields, Names};
use super::errors::{Failure, Result, SERIALIZATION};
use super::model::{Action, Request};

pub(super) fn decode(action: Action, body: &[u8]) -> Result<Request<'_>> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let request = Request::deserialize(action, &mut deserializer);
    let request = request.and_then(|request| deserializer.end().map(|()| request));
    request.map_err(|error| Failure::new(&SERIALIZATION, error.to_string()))
}

/// Encoder of one object.
pub(super) struct Json {
    out: Vec<u8>,
    /// `true` if the next member is the first one of its object.
    is_first: bool,
}

impl Json {
    pub fn new(out: Vec<u8>) -> Self {
        let mut json = Self { out, is_first: true };
        json.open(b'{');
        json
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.close(b'}');
        self.out
    }

    pub fn open(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.is_first = true;
    }

    pub fn close(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.is_first = false;
    }

    pub fn next(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            self.out.push(b',');
        }
    }

    pub fn name(&mut self, name: &str) {
        self.next();
        self.string(name);
        self.out.push(b':');
    }

    pub fn null(&mut self, name: &str) {
        self.name(name);
        self.out.extend_from_slice(b"null");
    }

    pub fn string(&mut self, text: &str) {
        serde_json::to_writer(&mut self.out, text).expect("invariant: a text has a JSON form");
    }
}

impl Fields for Json {
    fn text(&mut self, name: &'static str, value: &str) {
        self.name(name);
        self.string(value);
    }

    fn number(&mut self, name: &'static str, value: u64) {
        self.name(name);
        serde_json::to_writer(&mut self.out, &value).expect("invariant: a number has a JSON form");
    }

    fn flag(&mut self, name: &'static str, value: bool) {
        self.name(name);
        self.out.extend_from_slice(if value { b"true" } else { b"false" });
    }

    fn texts<'t>(&mut self, names: Names, values: impl IntoIterator<Item = &'t str>) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        self.name(names.json);
        self.open(b'[');
        for value in values {
            self.next();
            self.string(value);
        }
        self.close(b']');
    }

    fn list<T>(&mut self, names: Names, items: impl IntoIterator<Item = T>, mut each: impl FnMut(&mut Self, T)) {
        let mut items = items.into_iter().peekable();
        if items.peek().is_none() {
            return;
        }
        self.name(names.json);
        self.open(b'[');
        for item in items {
            self.next();
            self.open(b'{');
            each(self, item);
            self.close(b'}');
        }
        self.close(b']');
    }

    fn map<'t>(&mut self, names: Names, entries: impl IntoIterator<Item = (&'t str, &'t str)>) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        self.name(names.json);
        self.open(b'{');
        for (name, value) in entries {
            self.name(name);
            self.string(value);
        }
        self.close(b'}');
    }

    fn map_of<'t, T>(
        &mut self,
        names: Names,
        entries: impl IntoIterator<Item = (&'t str, T)>,
        mut each: impl FnMut(&mut Self, T),
    ) {
        let mut entries = entries.into_iter().peekable();
        if entries.peek().is_none() {
            return;
        }
        self.name(names.json);
        self.open(b'{');
        for (name, value) in entries {
            self.name(name);
            self.open(b'{');
            each(self, value);
            self.close(b'}');
        }
        self.close(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Int, Map, SendMessage, Text};
    use super::*;

    #[test]
    fn texts_stay_where_they_were_read_unless_they_are_escaped() {
        let body =
            br#"{"QueueUrl":"u","MessageBody":"a\"b","DelaySeconds":5,"MessageAttributes":{},"More":[{"x":null}]}"#;
        let Ok(Request::SendMessage(request)) = decode(Action::SendMessage, body) else { panic!("no request") };
        assert!(matches!(request.queue_url, Some(Text(std::borrow::Cow::Borrowed("u")))));
        assert!(matches!(&request.message_body, Some(Text(std::borrow::Cow::Owned(text))) if text == "a\"b"));
        assert_eq!((request.delay_seconds, request.message_attributes), (Some(Int(5)), Some(Map::default())));
    }

    #[test]
    fn nothing_and_null_are_no_values() {
        for body in [&b""[..], b" ", b"{}", br#"{"QueueUrl":null,"DelaySeconds":null,"MessageAttributes":null}"#] {
            assert_eq!(decode(Action::SendMessage, body), Ok(Request::SendMessage(SendMessage::default())));
        }
    }

    #[test]
    fn invalid_requests_are_refused_as_such() {
        let nested = "[".repeat(100_000);
        let wrong = [
            "x",
            "{",
            "[]",
            "null",
            "{}{}",
            r#"{"QueueUrl":1}"#,
            r#"{"DelaySeconds":"5"}"#,
            r#"{"DelaySeconds":[]}"#,
            r#"{"MessageAttributes":[]}"#,
            r#"{"MessageBody":"\ud800"}"#,
            &format!(r#"{{"More":{nested}"#),
        ];
        for body in wrong {
            let error = decode(Action::SendMessage, body.as_bytes()).map(drop).expect_err(body);
            assert_eq!((error.code, error.code.shape), (&SERIALIZATION, "SerializationException"), "{body}");
        }
    }
}
