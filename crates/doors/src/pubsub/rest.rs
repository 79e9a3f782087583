//! REST: the same calls as gRPC. Paths are taken from the annotations in Google's definitions, and bodies are the JSON
//! encoding of the same messages; see `google.api.http` and the JSON mapping of Protocol Buffers.

use std::sync::LazyLock;

use axum::extract::Query;
use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::codec::{Answer, Encoded};
use super::errors::{Failure, Result};
use super::map::{RPCS, Rpc};
use super::proto::DESCRIPTORS;

/// Parameters that every Google API accepts, and that do not affect a call.
const COMMON: [&str; 10] = [
    "access_token",
    "alt",
    "callback",
    "fields",
    "key",
    "oauth_token",
    "prettyPrint",
    "quotaUser",
    "uploadType",
    "upload_protocol",
];

/// Additional paths. A policy can also be read with GET on its resource; that annotation belongs to another service.
const ALSO: [(&str, &str); 1] = [("/google.iam.v1.IAMPolicy/GetIamPolicy", "/v1/{resource=**}:getIamPolicy")];

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(routes);

/// Segment of a path between slashes.
#[derive(Debug, PartialEq)]
enum Segment {
    Literal(String),
    /// `*`
    Any,
    /// `**`: all remaining segments.
    Rest,
}

/// Path template such as `/v1/{topic=projects/*/topics/*}:publish`: some segments are the value of a field of the
/// request.
#[derive(Debug, PartialEq)]
struct Template {
    segments: Vec<Segment>,
    /// Field, and its range in the segments.
    field: String,
    from: usize,
    to: usize,
    /// Verb after the colon; empty for a path without one.
    verb: String,
}

/// Part of the request that the body contains.
enum Filling {
    Nothing,
    Everything,
    Field(String),
}

struct Route {
    method: Method,
    template: Template,
    body: Filling,
    rpc: &'static Rpc,
    input: MessageDescriptor,
    output: MessageDescriptor,
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(DESCRIPTORS).expect("invariant: the committed descriptors are whole")
}

/// Returns all paths of all calls; those with a verb come first.
fn routes() -> Vec<Route> {
    let pool = pool();
    let http = pool.get_extension_by_name("google.api.http").expect("invariant: annotations are among the descriptors");
    let mut routes = Vec::new();
    for rpc in RPCS {
        let (service, name) = rpc.path[1..].split_once('/').expect("invariant: a path is /service/method");
        let service = pool.get_service_by_name(service).expect("invariant: what is served is described");
        let method = service.methods().find(|method| method.name() == name);
        let method = method.expect("invariant: what is served is described");
        let options = method.options();
        let rule = options.get_extension(&http);
        let rule = rule.as_message().expect("invariant: the annotation is a message");
        let text =
            |name: &str| rule.get_field_by_name(name).and_then(|f| f.as_str().map(str::to_owned)).unwrap_or_default();
        let mut add = |method_name: Method, template: &str, body: Filling| {
            let input = method.input();
            let output = method.output();
            routes.push(Route { method: method_name, template: Template::parse(template), body, rpc, input, output });
        };
        for verb in ["get", "put", "post", "delete", "patch"] {
            let template = text(verb);
            if !template.is_empty() {
                let body = match text("body").as_str() {
                    "" => Filling::Nothing,
                    "*" => Filling::Everything,
                    field => Filling::Field(field.to_owned()),
                };
                let verb = Method::from_bytes(verb.to_uppercase().as_bytes()).expect("invariant: a known verb");
                add(verb, &template, body);
            }
        }
        for (_, template) in ALSO.iter().filter(|(path, _)| *path == rpc.path) {
            add(Method::GET, template, Filling::Nothing);
        }
    }
    routes
}

impl Template {
    fn parse(text: &str) -> Self {
        let (path, verb) = match text.rsplit_once(':') {
            Some((path, verb)) => (path, verb),
            None => (text, ""),
        };
        let (before, rest) = path.split_once('{').expect("invariant: each template has a field");
        let (field, after) = rest.split_once('}').expect("invariant: templates are whole");
        let (field, pattern) = field.split_once('=').unwrap_or((field, "*"));
        let mut segments = Vec::new();
        let mut add = |text: &str| {
            for segment in text.split('/').filter(|segment| !segment.is_empty()) {
                segments.push(match segment {
                    "*" => Segment::Any,
                    "**" => Segment::Rest,
                    literal => Segment::Literal(literal.to_owned()),
                });
            }
            segments.len()
        };
        let from = add(before);
        let to = add(pattern);
        add(after);
        Self { segments, field: field.to_owned(), from, to, verb: verb.to_owned() }
    }

    /// Returns the value of the field in a path; `None` if the path does not match the template.
    fn matched(&self, path: &str) -> Option<String> {
        let path = path.strip_prefix('/')?;
        let (path, verb) = match path.rsplit_once(':') {
            Some((path, verb)) if !verb.contains('/') => (path, verb),
            _ => (path, ""),
        };
        if verb != self.verb {
            return None;
        }
        let given: Vec<&str> = path.split('/').collect();
        let has_rest = self.segments.contains(&Segment::Rest);
        if given.iter().any(|part| part.is_empty())
            || if has_rest { given.len() < self.segments.len() } else { given.len() != self.segments.len() }
        {
            return None;
        }
        let fits = self.segments.iter().zip(&given).all(|(segment, part)| match segment {
            Segment::Literal(literal) => literal == part,
            Segment::Any | Segment::Rest => true,
        });
        let to = if has_rest { given.len() } else { self.to };
        let value = given.get(self.from..to).filter(|_| fits)?.join("/");
        decode_percent(&value)
    }
}

fn decode_percent(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                (digit()? << 4 | digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// REST call with its request message.
pub(super) struct Asked {
    pub rpc: &'static Rpc,
    pub message: Bytes,
    output: MessageDescriptor,
}

/// Finds the call of a request; `None` if there is no such call.
pub(super) fn find(head: &Parts) -> Option<(usize, String)> {
    let found = ROUTES.iter().enumerate().filter(|(_, route)| route.method == head.method);
    found.into_iter().find_map(|(at, route)| Some((at, route.template.matched(head.uri.path())?)))
}

/// Decodes the call and its message from path, query and body.
pub(super) fn read(found: (usize, String), uri: &Uri, body: &[u8]) -> Result<Asked> {
    let route = &ROUTES[found.0];
    let value = found.1;
    let mut json = match &route.body {
        _ if body.is_empty() => Map::new(),
        // Some clients send an empty object instead of no body.
        Filling::Nothing if object(body)?.is_empty() => Map::new(),
        Filling::Nothing => return Err(Failure::invalid("this method takes no request body")),
        Filling::Everything => object(body)?,
        Filling::Field(field) => [(field.clone(), Value::Object(object(body)?))].into_iter().collect(),
    };
    add_query(uri, &route.input, &mut json)?;
    put(&mut json, &route.template.field, Value::String(value))?;
    plain_masks(&mut json)?;
    let message = from_json(&route.input, Value::Object(json))?;
    Ok(Asked { rpc: route.rpc, message: message.encode_to_vec().into(), output: route.output.clone() })
}

/// Maximum number of values in a body, including nested ones. A value has at least 2 bytes, and takes some hundred
/// bytes once it is decoded.
const VALUES_MAX: usize = 1 << 18;

/// Maximum number of paths in a field mask, which is one string in JSON. No resource has more than a hundred fields.
const MASK_PATHS_MAX: usize = 1024;

fn object(body: &[u8]) -> Result<Map<String, Value>> {
    if separators(body) >= VALUES_MAX {
        return Err(invalid_payload(&format!("It has more than {VALUES_MAX} values.")));
    }
    serde_json::from_slice(body).map_err(|error| invalid_payload(&error.to_string()))
}

/// Returns the number of characters that separate or begin values in a JSON text: it has at most one value more.
fn separators(text: &[u8]) -> usize {
    let mut count = 0;
    let mut in_string = false;
    let mut is_escaped = false;
    for byte in text {
        match (in_string, is_escaped, byte) {
            (true, true, _) => is_escaped = false,
            (true, false, b'\\') => is_escaped = true,
            (_, _, b'"') => in_string = !in_string,
            (false, _, b',' | b'[' | b'{') => count += 1,
            _ => {}
        }
    }
    count
}

fn invalid_payload(why: &str) -> Failure {
    Failure::invalid(format!("Invalid JSON payload received. {why}"))
}

/// Decodes a message from its JSON encoding.
fn from_json(descriptor: &MessageDescriptor, json: Value) -> Result<DynamicMessage> {
    DynamicMessage::deserialize(descriptor.clone(), json).map_err(|error| {
        let text = error.to_string();
        match text.strip_prefix("unrecognized field name '").and_then(|rest| rest.split('\'').next()) {
            Some(name) => invalid_payload(&format!("Unknown name \"{name}\": Cannot find field.")),
            None => invalid_payload(&text),
        }
    })
}

/// Sets the value at a path of field names, under the names that JSON uses for them.
fn put(json: &mut Map<String, Value>, path: &str, value: Value) -> Result<()> {
    let mut at = json;
    let mut rest = path;
    while let Some((first, more)) = rest.split_once('.') {
        let inner = at.entry(camel_case(first)).or_insert_with(|| Value::Object(Map::new()));
        at = inner.as_object_mut().ok_or_else(|| invalid_payload(&format!("{first} is an object")))?;
        rest = more;
    }
    let name = camel_case(rest);
    if name != rest {
        at.remove(rest);
    }
    at.insert(name, value);
    Ok(())
}

fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut name, part| {
        let mut chars = part.chars();
        name.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        name.extend(chars);
        name
    })
}

/// Converts field masks to the names of JSON; the names of the definitions are accepted as well.
fn plain_masks(json: &mut Map<String, Value>) -> Result<()> {
    for name in ["updateMask", "update_mask"] {
        if let Some(Value::String(mask)) = json.get_mut(name) {
            if mask.bytes().filter(|byte| *byte == b',').count() >= MASK_PATHS_MAX {
                return Err(invalid_payload(&format!("The update mask has more than {MASK_PATHS_MAX} paths.")));
            }
            *mask = camel_case(mask);
        }
    }
    Ok(())
}

fn add_query(uri: &Uri, input: &MessageDescriptor, json: &mut Map<String, Value>) -> Result<()> {
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|error| Failure::invalid(format!("the query string: {error}")))?;
    for (path, text) in given {
        if path.starts_with('$') || COMMON.contains(&path.as_str()) {
            continue;
        }
        let unknown = || {
            let why = format!(
                "Unknown name \"{path}\": Cannot bind query parameter. Field '{path}' could not be found in request \
                 message."
            );
            invalid_payload(&why)
        };
        let mut message = Some(input.clone());
        let mut field = None;
        for part in path.split('.') {
            let owner = message.take().ok_or_else(unknown)?;
            let found =
                owner.get_field_by_json_name(part).or_else(|| owner.get_field_by_name(part)).ok_or_else(unknown)?;
            message = found.kind().as_message().cloned();
            field = Some(found);
        }
        let field = field.ok_or_else(unknown)?;
        let value = match (field.kind(), text.as_str()) {
            (Kind::Bool, "true" | "1") => Value::Bool(true),
            (Kind::Bool, "false" | "0") => Value::Bool(false),
            _ => Value::String(text.clone()),
        };
        let name: Vec<String> = path.split('.').map(camel_case).collect();
        if field.is_list() {
            let list = json.entry(field.json_name().to_owned()).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().ok_or_else(unknown)?.push(value);
        } else {
            put(json, &name.join("."), value)?
        }
    }
    Ok(())
}

impl Asked {
    /// Returns the response to the client.
    pub fn answer(&self, answer: Result<Encoded>) -> Response<Answer> {
        let json = answer.and_then(|answer| to_json(&self.output, answer.message()));
        match json {
            Ok(json) => respond(StatusCode::OK, json),
            Err(failure) => refuse(&failure),
        }
    }
}

fn to_json(descriptor: &MessageDescriptor, message: &[u8]) -> Result<Vec<u8>> {
    let internal = |error: &dyn std::fmt::Display| Failure::new(super::errors::Code::Internal, error.to_string());
    let message = DynamicMessage::decode(descriptor.clone(), message).map_err(|error| internal(&error))?;
    serde_json::to_vec(&message).map_err(|error| internal(&error))
}

pub(super) fn refuse(failure: &Failure) -> Response<Answer> {
    respond(failure.code.status(), failure.json())
}

pub(super) fn respond(status: StatusCode, body: Vec<u8>) -> Response<Answer> {
    let mut response = Response::new(Answer::of_bytes(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=UTF-8"));
    response
}

/// Encodes the settings of a resource, as a message, in JSON for storage.
pub(super) fn text_of(name: &str, message: &impl Message) -> Result<String> {
    let descriptor = described(name);
    let json = to_json(&descriptor, &message.encode_to_vec())?;
    String::from_utf8(json).map_err(|error| Failure::new(super::errors::Code::Internal, error.to_string()))
}

/// Decodes a message from a stored text.
pub(super) fn from_text<M: Message + Default>(name: &str, text: &str) -> Result<M> {
    let json = serde_json::from_str(text).map_err(|error| invalid_payload(&error.to_string()))?;
    let message = from_json(&described(name), json)?;
    M::decode(message.encode_to_vec().as_slice())
        .map_err(|error| Failure::new(super::errors::Code::Internal, error.to_string()))
}

fn described(name: &str) -> MessageDescriptor {
    let pool = ROUTES[0].input.parent_pool().clone();
    pool.get_message_by_name(name).expect("invariant: what is kept is described")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_every_service_is_served() {
        let mut served: Vec<&str> = super::super::calls().collect();
        let mut described: Vec<String> = pool()
            .services()
            .flat_map(|service| {
                service.methods().map(|m| format!("/{}/{}", service.full_name(), m.name())).collect::<Vec<_>>()
            })
            .collect();
        served.sort_unstable();
        described.sort_unstable();
        assert_eq!(served, described);
    }

    #[test]
    fn a_path_leads_to_its_call_and_to_the_value_of_its_field() {
        let found = |method: Method, path: &str| {
            let (head, ()) =
                hyper::Request::builder().method(method).uri(path).body(()).expect("a request").into_parts();
            find(&head).map(|(at, value)| (ROUTES[at].rpc.path.rsplit('/').next().unwrap_or_default(), value))
        };
        let topic = || "projects/p/topics/abc".to_owned();
        assert_eq!(found(Method::PUT, "/v1/projects/p/topics/abc"), Some(("CreateTopic", topic())));
        assert_eq!(found(Method::PATCH, "/v1/projects/p/topics/abc"), Some(("UpdateTopic", topic())));
        assert_eq!(found(Method::POST, "/v1/projects/p/topics/abc:publish"), Some(("Publish", topic())));
        assert_eq!(found(Method::GET, "/v1/projects/p/topics/abc/snapshots"), Some(("ListTopicSnapshots", topic())));
        assert_eq!(found(Method::GET, "/v1/projects/p/topics"), Some(("ListTopics", "projects/p".to_owned())));
        assert_eq!(found(Method::GET, "/v1/projects/p/topics/abc:getIamPolicy"), Some(("GetIamPolicy", topic())));
        assert_eq!(found(Method::POST, "/v1/projects/p/topics/abc:setIamPolicy"), Some(("SetIamPolicy", topic())));
        assert_eq!(
            found(Method::GET, "/v1/projects/p/topics/a%7Ebc"),
            Some(("GetTopic", "projects/p/topics/a~bc".into()))
        );
        for bad in [
            "/",
            "/v1",
            "/v2/projects/p/topics",
            "/v1/projects/p/topics/abc:nothing",
            "/v1/projects//topics/abc",
            "/v1/projects/p/topics/a%zz",
            "/v1/projects/p/topics/a%+1",
        ] {
            assert_eq!(found(Method::GET, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_body_of_many_values_is_refused_before_it_is_read() {
        let separators = |text: &str| separators(text.as_bytes());
        assert_eq!(separators(r#"{"a": [1, 2, {}], "b": "[,{\\\",", "c": ""}"#), 7);
        let of = |count: usize| object(format!(r#"{{"a":[{}0]}}"#, "0,".repeat(count)).as_bytes());
        assert!(of(VALUES_MAX - 3).is_ok());
        assert!(of(VALUES_MAX - 2).is_err_and(|failure| failure.message.ends_with("It has more than 262144 values.")));
        let text = format!(r#"{{"data":"{}"}}"#, ",[{".repeat(VALUES_MAX));
        assert!(object(text.as_bytes()).is_ok(), "what is in a text is none");
    }

    #[test]
    fn a_request_is_read_from_path_query_and_body() {
        let read = |method: Method, uri: &'static str, body: &str| {
            let (head, ()) =
                hyper::Request::builder().method(method).uri(uri).body(()).expect("a request").into_parts();
            let asked = read(find(&head).expect("a call"), &head.uri, body.as_bytes())?;
            let input =
                ROUTES.iter().find(|route| std::ptr::eq(route.rpc, asked.rpc)).expect("its route").input.clone();
            to_json(&input, &asked.message).map(|json| String::from_utf8_lossy(&json).into_owned())
        };
        let listed = read(Method::GET, "/v1/projects/p/schemas?view=FULL&page_size=3&alt=json&$prettyPrint=false", "");
        assert_eq!(listed.as_deref(), Ok(r#"{"parent":"projects/p","view":"FULL","pageSize":3}"#));
        let body = r#"{"topic":{"name":"x","labels":{"a":"b"}},"update_mask":"labels,message_retention_duration"}"#;
        let updated = read(Method::PATCH, "/v1/projects/p/topics/abc", body);
        let topic = r#"{"name":"projects/p/topics/abc","labels":{"a":"b"}}"#;
        let mask = "labels,messageRetentionDuration";
        assert_eq!(updated, Ok(format!(r#"{{"topic":{topic},"updateMask":"{mask}"}}"#)));
        let repeated = |count: usize| {
            let mask = vec!["labels"; count].join(",");
            let body = format!(r#"{{"topic":{{"name":"x"}},"updateMask":"{mask}"}}"#);
            read(Method::PATCH, "/v1/projects/p/topics/abc", &body)
        };
        assert!(repeated(MASK_PATHS_MAX).is_ok());
        assert!(repeated(MASK_PATHS_MAX + 1).is_err());
        let made = read(Method::POST, "/v1/projects/p/schemas?schemaId=s", r#"{"type":"AVRO","definition":"d"}"#);
        let expected = r#"{"parent":"projects/p","schema":{"type":"AVRO","definition":"d"},"schemaId":"s"}"#;
        assert_eq!(made.as_deref(), Ok(expected));
        let detached = read(Method::POST, "/v1/projects/p/subscriptions/abc:detach", "{}");
        assert_eq!(detached.as_deref(), Ok(r#"{"subscription":"projects/p/subscriptions/abc"}"#));
        for (method, uri, body) in [
            (Method::GET, "/v1/projects/p/topics?foo=1", ""),
            (Method::GET, "/v1/projects/p/topics?pageSize=x", ""),
            (Method::GET, "/v1/projects/p/topics", r#"{"pageSize":3}"#),
            (Method::PUT, "/v1/projects/p/topics/abc", "[]"),
            (Method::PUT, "/v1/projects/p/topics/abc", r#"{"labels":{"a":1}}"#),
            (Method::PATCH, "/v1/projects/p/topics/abc", r#"{"topic":1}"#),
        ] {
            let failure = read(method, uri, body).expect_err(uri);
            assert_eq!(failure.code, super::super::errors::Code::InvalidArgument, "{uri} {body}");
        }
    }
}
