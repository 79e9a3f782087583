//! Decoding of the Query protocol: `A.1.B=c&..` as a tree from which requests are deserialized.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::errors::{Failure, Result, SERIALIZATION};

/// Maximum number of parameters of one request. Ten messages with ten attributes each have 600.
const PARAMETERS_MAX: usize = 4096;

/// Maximum number of segments of a path, and its maximum bytes. The deepest paths of SQS have 10 segments
/// (`Entries.entry.1.MessageAttributes.entry.1.Value.StringListValue.member.1`). Sorting compares each path with many
/// others, segment by segment.
const SEGMENTS_MAX: usize = 16;
const PATH_BYTES_MAX: usize = 1024;

/// Parameters of a request, sorted by their paths.
#[derive(Debug)]
pub(super) struct Form<'a>(Vec<Parameter<'a>>);

#[derive(Debug)]
struct Parameter<'a> {
    /// Segments, separated by dots.
    path: Cow<'a, str>,
    value: Cow<'a, str>,
}

impl<'a> Form<'a> {
    /// Parses the query string and the body.
    pub fn parse(texts: &[&'a [u8]]) -> Result<Self> {
        let mut parameters = Vec::new();
        for pair in texts.iter().flat_map(|text| text.split(|byte| *byte == b'&')).filter(|pair| !pair.is_empty()) {
            if parameters.len() == PARAMETERS_MAX {
                return Err(malformed(format!("a request has at most {PARAMETERS_MAX} parameters")));
            }
            let at = pair.iter().position(|byte| *byte == b'=');
            let (path, value) = at.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
            let path = decode(path)?;
            check_path(&path)?;
            parameters.push(Parameter { path, value: decode(value)? });
        }
        Ok(Self(parameters))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|parameter| parameter.path == name).map(|parameter| &*parameter.value)
    }

    /// Adds a parameter that the path of the request implies, unless the client set it.
    pub fn imply(&mut self, name: &'static str, value: String) {
        if self.get(name).is_none() {
            self.0.push(Parameter { path: name.into(), value: value.into() });
        }
    }

    /// Sorts the parameters, which is required before [`Form::tree`].
    pub fn sort(&mut self) {
        self.0.sort_by(|a, b| by_segments(&a.path, &b.path));
    }

    /// Returns the tree from which a request is deserialized.
    pub fn tree(&self) -> Node<'_> {
        Node { parameters: Parameters(&self.0), from: 0 }
    }
}

fn malformed(message: impl Into<Cow<'static, str>>) -> Failure {
    Failure::new(&SERIALIZATION, message)
}

fn check_path(path: &str) -> Result<()> {
    if path.len() > PATH_BYTES_MAX {
        return Err(malformed(format!("the name of a parameter has at most {PATH_BYTES_MAX} bytes")));
    }
    if segments(path).nth(SEGMENTS_MAX).is_some() {
        return Err(malformed(format!("the name of a parameter has at most {SEGMENTS_MAX} parts between dots")));
    }
    Ok(())
}

/// Decodes text with the escapes of forms.
pub(super) fn decode(text: &[u8]) -> Result<Cow<'_, str>> {
    let invalid = |error: std::str::Utf8Error| malformed(format!("a parameter is not UTF-8: {error}"));
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return std::str::from_utf8(text).map(Cow::Borrowed).map_err(invalid);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let hex = |at: usize| after.get(at).and_then(|digit| (*digit as char).to_digit(16));
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                rest = &after[2..];
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(*byte),
        }
    }
    String::from_utf8(out).map(Cow::Owned).map_err(|error| invalid(error.utf8_error()))
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('.')
}

/// Compares paths by segments. Numbers are first, in numeric order, so that paths with a common prefix are adjacent and
/// elements are in their order.
///
/// Invariant: a total order for any segments; sorting panics without one.
fn by_segments(a: &str, b: &str) -> Ordering {
    let number = |segment: &str| segment.parse::<u32>().ok();
    let key = |segment| (number(segment).map_or(u64::MAX, u64::from), segment);
    segments(a).map(key).cmp(segments(b).map(key))
}

#[derive(Clone, Copy)]
struct Parameters<'t>(&'t [Parameter<'t>]);

/// All parameters whose paths have a common prefix.
///
/// Invariant: the first `from` bytes of all their paths are equal, and end after a dot or with the path.
#[derive(Clone, Copy)]
pub(super) struct Node<'t> {
    parameters: Parameters<'t>,
    from: usize,
}

impl<'t> Node<'t> {
    /// Returns the value of the parameter that ends here.
    fn value(self) -> Option<&'t str> {
        let first = self.parameters.0.first()?;
        self.is_end(first).then_some(&*first.value)
    }

    /// Returns `true` if the path of a parameter ends here.
    fn is_end(self, parameter: &Parameter<'_>) -> bool {
        parameter.path.len() < self.from
    }

    /// Returns the nodes below, with their names.
    fn children(self) -> Children<'t> {
        let parameters = self.parameters.0;
        let own = parameters.iter().take_while(|parameter| self.is_end(parameter)).count();
        Children { parameters: &parameters[own..], from: self.from }
    }

    fn child(self, names: &[&str]) -> Option<Self> {
        self.children().find(|(name, _)| names.contains(name)).map(|(_, child)| child)
    }

    /// Returns the elements of a list or a map: numbered ones, which may be below a single common name. A parameter
    /// with an empty value is an empty list.
    fn elements(self) -> impl Iterator<Item = Self> {
        let inner = self.child(&["entry", "member"]).unwrap_or(self);
        let mut alone = None;
        let is_numbered = inner.children().any(|(name, _)| name.parse::<u32>().is_ok());
        let is_empty = inner.parameters.0.iter().all(|parameter| inner.is_end(parameter) && parameter.value.is_empty());
        if !is_numbered && !is_empty {
            alone = Some(inner);
        }
        let numbered = inner.children().filter(move |(name, _)| name.parse::<u32>().is_ok()).map(|(_, child)| child);
        alone.into_iter().chain(numbered)
    }
}

struct Children<'t> {
    parameters: &'t [Parameter<'t>],
    from: usize,
}

impl<'t> Iterator for Children<'t> {
    type Item = (&'t str, Node<'t>);

    fn next(&mut self) -> Option<Self::Item> {
        let name = |parameter: &'t Parameter<'t>| -> &'t str {
            let rest = &parameter.path[self.from..];
            rest.split('.').next().unwrap_or(rest)
        };
        let first = name(self.parameters.first()?);
        let count = self.parameters.iter().take_while(|parameter| name(parameter) == first).count();
        let (child, rest) = self.parameters.split_at(count);
        self.parameters = rest;
        Some((first, Node { parameters: Parameters(child), from: self.from + first.len() + 1 }))
    }
}

/// Reason why a form cannot be decoded as the request that it names.
#[derive(Debug)]
pub(super) struct FormError(String);

impl fmt::Display for FormError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FormError {}

impl de::Error for FormError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl<'de> de::Deserializer<'de> for Node<'de> {
    type Error = FormError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        match self.value() {
            Some(value) => visitor.visit_borrowed_str(value),
            None => Err(FormError("Start of structure or map found where not expected.".into())),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        let text = self.value().unwrap_or_default();
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<i64>() {
            Ok(number) => visitor.visit_i64(number),
            Err(_) if is_number && text.starts_with('-') => visitor.visit_i64(i64::MIN),
            Err(_) if is_number => visitor.visit_i64(i64::MAX),
            Err(error) => Err(FormError(format!("'{text}' can not be converted to an Integer: {error}"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_seq(Elements(self.elements()))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_map(Entries { entries: self.elements(), value: None })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FormError> {
        visitor.visit_map(Members { children: self.children(), value: None })
    }

    /// An unknown parameter may have any form.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FormError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 u8 u16 u32 u64 f32 f64 char string bytes byte_buf unit unit_struct newtype_struct tuple
        tuple_struct enum identifier
    }
}

/// Elements of a list.
struct Elements<I>(I);

impl<'t, I: Iterator<Item = Node<'t>>> SeqAccess<'t> for Elements<I> {
    type Error = FormError;

    fn next_element_seed<T: DeserializeSeed<'t>>(&mut self, seed: T) -> Result<Option<T::Value>, FormError> {
        self.0.next().map(|node| seed.deserialize(node)).transpose()
    }
}

/// Entries of a map, each of which is written as a name and a value.
struct Entries<'t, I> {
    entries: I,
    value: Option<Node<'t>>,
}

impl<'t, I: Iterator<Item = Node<'t>>> MapAccess<'t> for Entries<'t, I> {
    type Error = FormError;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, FormError> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        let name = entry.child(&["Name", "Key", "key"]).and_then(Node::value);
        let name = name.ok_or_else(|| FormError("a map has an entry without a name".into()))?;
        self.value = entry.child(&["Value", "value"]);
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<S::Value, FormError> {
        match self.value.take() {
            Some(value) => seed.deserialize(value),
            None => Err(FormError("a map has an entry without a value".into())),
        }
    }
}

/// Members of a structure.
struct Members<'t> {
    children: Children<'t>,
    value: Option<Node<'t>>,
}

impl<'t> MapAccess<'t> for Members<'t> {
    type Error = FormError;

    fn next_key_seed<K: DeserializeSeed<'t>>(&mut self, seed: K) -> Result<Option<K::Value>, FormError> {
        let Some((name, value)) = self.children.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'t>>(&mut self, seed: S) -> Result<S::Value, FormError> {
        let value = self.value.take().ok_or_else(|| FormError("a member has no name".into()))?;
        seed.deserialize(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Action, AttributeValue, Blob, Int, List, Map, Request, SendEntry, SendMessage, Text};
    use super::*;

    fn text(text: &str) -> Text<'_> {
        Text(text.into())
    }

    fn read(action: Action, form: &str, seen: impl FnOnce(Result<Request<'_>, FormError>)) {
        let mut form = Form::parse(&[form.as_bytes()]).expect("a form");
        form.sort();
        seen(Request::deserialize(action, form.tree()));
    }

    #[test]
    fn a_message_with_attributes() {
        let form = "Action=SendMessage&MessageBody=a%20%26+b%C3%A4&DelaySeconds=-5&Version=2012-11-05\
            &MessageAttribute.2.Value.BinaryValue=AP8%3D&MessageAttribute.2.Value.DataType=Binary\
            &MessageAttribute.2.Name=b&MessageAttribute.1.Name=a&MessageAttribute.1.Value.StringValue=\
            &MessageAttribute.1.Value.DataType=String";
        read(Action::SendMessage, form, |request| {
            let string =
                AttributeValue { data_type: Some(text("String")), string_value: Some(text("")), binary_value: None };
            let binary = AttributeValue {
                data_type: Some(text("Binary")),
                string_value: None,
                binary_value: Some(Blob(vec![0, 255])),
            };
            let wanted = SendMessage {
                message_body: Some(text("a & b\u{e4}")),
                delay_seconds: Some(Int(-5)),
                message_attributes: Some(Map(vec![(text("a"), string), (text("b"), binary)])),
                ..SendMessage::default()
            };
            assert_eq!(request.expect("a request"), Request::SendMessage(wanted));
        });
    }

    /// Compared as texts, `10` is before `1a`, which is before `9`; as numbers, `9` is before `10`.
    #[test]
    fn numbers_and_similar_texts_have_one_order() {
        let mut seed = 1_u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 16) % below
        };
        for _ in 0..100 {
            let names = (0..40)
                .map(|_| ["A.9".to_owned(), format!("A.{}", random(20)), "A.1a".into()][random(3) as usize].clone());
            let text = names.collect::<Vec<_>>().join("&");
            let mut form = Form::parse(&[text.as_bytes()]).expect("a form");
            form.sort();
            let mut paths: Vec<&str> = form.0.iter().map(|parameter| &*parameter.path).collect();
            paths.dedup();
            let distinct: std::collections::HashSet<&str> = paths.iter().copied().collect();
            assert_eq!(paths.len(), distinct.len(), "what is the same is together: {paths:?}");
        }
    }

    #[test]
    fn elements_are_in_the_order_of_their_numbers() {
        let ids = |form: &str| {
            let mut found = Vec::new();
            read(Action::SendMessageBatch, form, |request| {
                if let Ok(Request::SendMessageBatch(batch)) = request {
                    let List(entries) = batch.entries.unwrap_or_default();
                    found.extend(
                        entries.iter().filter_map(|SendEntry { id, .. }| Some(id.as_ref()?.as_str().to_owned())),
                    );
                }
            });
            found
        };
        let name = "SendMessageBatchRequestEntry";
        let nested = "Entries.entry";
        for name in [name, nested, "Entries.member"] {
            let numbers = [10, 2, 1, 11, 3];
            let form: Vec<String> =
                numbers.iter().map(|n| format!("{name}.{n}.Id=m{n}&{name}.{n}.MessageBody=x")).collect();
            assert_eq!(ids(&form.join("&")), ["m1", "m2", "m3", "m10", "m11"], "{name}");
        }
        assert_eq!(ids("Entries.1-x.Id=a&Entries.1.Id=b&Entries.1.MessageBody=c"), ["b"]);
    }

    #[test]
    fn a_list_of_one_and_a_map_of_one_need_no_number() {
        read(Action::GetQueueAttributes, "AttributeName=All&X.1.Y.2=z&X=", |request| {
            let Ok(Request::GetQueueAttributes(request)) = request else { panic!("{request:?}") };
            assert_eq!(request.attribute_names, Some(List(vec![text("All")])));
        });
        read(Action::SendMessageBatch, "SendMessageBatchRequestEntry=", |request| {
            let Ok(Request::SendMessageBatch(request)) = request else { panic!("{request:?}") };
            assert_eq!(request.entries.map(|List(entries)| entries.len()), Some(0));
        });
        read(Action::SetQueueAttributes, "Attribute.Name=DelaySeconds&Attribute.Value=5", |request| {
            let Ok(Request::SetQueueAttributes(request)) = request else { panic!("{request:?}") };
            assert_eq!(request.attributes, Some(Map(vec![(text("DelaySeconds"), text("5"))])));
        });
    }

    #[test]
    fn invalid_parameters_are_an_error() {
        for wrong in [
            "DelaySeconds=x",
            "DelaySeconds=",
            "DelaySeconds.1=5",
            "MessageBody.1=x",
            "MessageAttribute.1.Value=x",
            "MessageAttribute.1.Name=a",
            "MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryValue=%",
        ] {
            read(Action::SendMessage, wrong, |request| assert!(request.is_err(), "{wrong}: {request:?}"));
        }
        assert!(Form::parse(&[b"a=%FF"]).is_err());
        assert!(Form::parse(&["a=b&".repeat(PARAMETERS_MAX).as_bytes()]).is_ok());
        assert!(Form::parse(&["a=b&".repeat(PARAMETERS_MAX + 1).as_bytes()]).is_err());
        let path = |segments: usize| vec!["1"; segments].join(".");
        assert!(Form::parse(&[path(SEGMENTS_MAX).as_bytes()]).is_ok());
        assert!(Form::parse(&[path(SEGMENTS_MAX + 1).as_bytes()]).is_err());
        assert!(Form::parse(&[path(SEGMENTS_MAX + 1).replace('.', "%2E").as_bytes()]).is_err());
        assert!(Form::parse(&["a".repeat(PATH_BYTES_MAX).as_bytes()]).is_ok());
        assert!(Form::parse(&["a".repeat(PATH_BYTES_MAX + 1).as_bytes()]).is_err());
        let far = |number: &str| {
            read(Action::SendMessage, &format!("DelaySeconds={number}"), |request| {
                let Ok(Request::SendMessage(request)) = request else { panic!("{request:?}") };
                assert!(request.delay_seconds.is_some_and(|Int(n)| n.unsigned_abs() >= i64::MAX as u64));
            })
        };
        far("99999999999999999999");
        far("-99999999999999999999");
    }
}
