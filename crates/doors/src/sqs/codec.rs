//! Decodes requests and encodes responses: detection of the protocol, and one description of each response from which
//! both protocols are encoded.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::address::Place;
use super::digest::{self, Attribute, Hex};
use super::documents::{self, Form as JsonForm};
use super::errors::{Failure, INVALID_ACTION, MISSING_ACTION, Result, SERIALIZATION, UNKNOWN_OPERATION};
use super::json::{self, Json};
use super::model::{Action, Request};
use super::query::Form;
use super::xml::Xml;

pub(super) const TARGET: &str = "x-amz-target";
pub(super) const TARGET_PREFIX: &str = "AmazonSQS.";
const REQUEST_ID: &str = "x-amzn-requestid";
const QUERY_ERROR: &str = "x-amzn-query-error";
pub(super) const JSON: &str = "application/x-amz-json-1.0";
const PLAIN_JSON: &str = "application/json";
pub(super) const XML: &str = "text/xml";
const NAMESPACE: &str = " xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"";

/// Protocol of a request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Json,
    /// Query protocol, with responses in XML, or in JSON of this form.
    Query(Option<JsonForm>),
}

impl Protocol {
    /// Returns the older protocol, with the form of responses that the client accepts.
    pub fn query(headers: &HeaderMap) -> Self {
        let accepts_json = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("application/json"));
        Self::Query(headers.get_all(ACCEPT).iter().any(accepts_json).then_some(JsonForm::Service))
    }
}

/// Names of a list or a map.
#[derive(Clone, Copy)]
pub(super) struct Names {
    pub json: &'static str,
    /// Name of each element.
    pub xml: &'static str,
    /// Name of the element for the key of an entry, if it is a map.
    pub key: &'static str,
}

/// Returns the names of a list or a map in both protocols.
pub(super) const fn names(json: &'static str, xml: &'static str) -> Names {
    Names { json, xml, key: "Name" }
}

/// Encoder of a response: writes the members of a structure one after the other.
pub(super) trait Fields {
    fn text(&mut self, name: &'static str, value: &str);
    fn number(&mut self, name: &'static str, value: u64);
    fn flag(&mut self, name: &'static str, value: bool);
    fn texts<'t>(&mut self, names: Names, values: impl IntoIterator<Item = &'t str>);
    /// Writes a list of structures.
    fn list<T>(&mut self, names: Names, items: impl IntoIterator<Item = T>, each: impl FnMut(&mut Self, T));
    fn map<'t>(&mut self, names: Names, entries: impl IntoIterator<Item = (&'t str, &'t str)>);
    /// Writes a map of structures.
    fn map_of<'t, T>(
        &mut self,
        names: Names,
        entries: impl IntoIterator<Item = (&'t str, T)>,
        each: impl FnMut(&mut Self, T),
    );

    fn text_if(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn number_if(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }
}

/// Successful response.
#[derive(Debug)]
pub(super) enum Answer {
    Nothing,
    QueueUrl(String),
    QueueUrls {
        urls: Vec<String>,
        next_token: Option<String>,
        /// `true` for `ListDeadLetterSourceQueues`, whose list has another name.
        are_sources: bool,
    },
    Attributes(Vec<(&'static str, String)>),
    Tags(Vec<(String, String)>),
    Sent(Sent),
    /// Results by message of a batch.
    SentBatch(Vec<(String, Result<Sent>)>),
    DoneBatch(Action, Vec<(String, Result<()>)>),
    Messages(Vec<Shown>),
    TaskHandle(String),
    Tasks(Vec<MoveTask>),
    MovedCount(u64),
}

/// Message that was accepted.
#[derive(Debug)]
pub(super) struct Sent {
    pub id: String,
    pub body_md5: Hex,
    pub attributes_md5: Option<Hex>,
    pub system_attributes_md5: Option<Hex>,
    pub sequence: Option<u64>,
}

/// Message as it is returned to a client.
#[derive(Debug)]
pub(super) struct Shown {
    pub id: String,
    pub receipt: String,
    pub body: Bytes,
    pub system: Vec<(&'static str, String)>,
    pub attributes: Vec<ShownAttribute>,
}

#[derive(Debug)]
pub(super) struct ShownAttribute {
    pub name: Bytes,
    pub data_type: String,
    pub value: Bytes,
}

#[derive(Debug)]
pub(super) struct MoveTask {
    pub handle: Option<String>,
    pub status: &'static str,
    pub source_arn: String,
    pub destination_arn: Option<String>,
    pub per_second: Option<u64>,
    pub moved: u64,
    pub to_move: Option<u64>,
    pub failure: Option<String>,
    pub started_ms: u64,
}

impl Sent {
    fn write(&self, out: &mut impl Fields) {
        out.text("MessageId", &self.id);
        out.text("MD5OfMessageBody", self.body_md5.as_str());
        out.text_if("MD5OfMessageAttributes", self.attributes_md5.as_ref().map(Hex::as_str));
        out.text_if("MD5OfMessageSystemAttributes", self.system_attributes_md5.as_ref().map(Hex::as_str));
        out.text_if("SequenceNumber", self.sequence.map(sequence_number).as_deref());
    }
}

/// Returns a sequence number of twenty digits, which grows with the offset.
pub(super) fn sequence_number(offset: u64) -> String {
    const FIRST: u64 = 10_000_000_000_000_000_000;
    (FIRST + offset % (u64::MAX - FIRST)).to_string()
}

impl Shown {
    fn write(&self, out: &mut impl Fields) {
        let body = String::from_utf8_lossy(&self.body);
        out.text("MessageId", &self.id);
        out.text("ReceiptHandle", &self.receipt);
        out.text("MD5OfBody", digest::of_body(body.as_bytes()).as_str());
        out.text("Body", &body);
        out.map(names("Attributes", "Attribute"), self.system.iter().map(|(name, value)| (*name, value.as_str())));
        if self.attributes.is_empty() {
            return;
        }
        let text = |bytes| String::from_utf8_lossy(bytes);
        let shown: Vec<_> = self
            .attributes
            .iter()
            .map(|given| {
                let is_binary = digest::is_binary(&given.data_type);
                let value = if is_binary { Cow::Borrowed(&given.value[..]) } else { to_bytes(text(&given.value)) };
                (text(&given.name), &*given.data_type, value)
            })
            .collect();
        let digested = shown.iter().map(|(name, data_type, value)| Attribute { name, data_type, value });
        let md5 = digest::of_attributes(&mut digested.collect::<Vec<_>>());
        out.text_if("MD5OfMessageAttributes", md5.as_ref().map(Hex::as_str));
        let entries = shown.iter().map(|(name, data_type, value)| (&**name, (*data_type, &**value)));
        out.map_of(names("MessageAttributes", "MessageAttribute"), entries, |out, (data_type, value)| {
            if digest::is_binary(data_type) {
                out.text("BinaryValue", &BASE64.encode(value))
            } else {
                out.text("StringValue", &String::from_utf8_lossy(value))
            }
            out.text("DataType", data_type);
        });
    }
}

fn to_bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

impl MoveTask {
    fn write(&self, out: &mut impl Fields) {
        out.text_if("TaskHandle", self.handle.as_deref());
        out.text("Status", self.status);
        out.text("SourceArn", &self.source_arn);
        out.text_if("DestinationArn", self.destination_arn.as_deref());
        out.number_if("MaxNumberOfMessagesPerSecond", self.per_second);
        out.number("ApproximateNumberOfMessagesMoved", self.moved);
        out.number_if("ApproximateNumberOfMessagesToMove", self.to_move);
        out.text_if("FailureReason", self.failure.as_deref());
        out.number("StartedTimestamp", self.started_ms);
    }
}

impl Answer {
    pub fn write(&self, out: &mut impl Fields) {
        match self {
            Self::Nothing => {}
            Self::QueueUrl(url) => out.text("QueueUrl", url),
            Self::QueueUrls { urls, next_token, are_sources } => {
                let name = if *are_sources { "queueUrls" } else { "QueueUrls" };
                out.texts(names(name, "QueueUrl"), urls.iter().map(String::as_str));
                out.text_if("NextToken", next_token.as_deref());
            }
            Self::Attributes(attributes) => {
                out.map(
                    names("Attributes", "Attribute"),
                    attributes.iter().map(|(name, value)| (*name, value.as_str())),
                );
            }
            Self::Tags(tags) => {
                let names = Names { json: "Tags", xml: "Tag", key: "Key" };
                out.map(names, tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            }
            Self::Sent(sent) => sent.write(out),
            Self::SentBatch(results) => {
                let done = results.iter().filter_map(|(id, result)| Some((id, result.as_ref().ok()?)));
                out.list(names("Successful", "SendMessageBatchResultEntry"), done, |out, (id, sent)| {
                    out.text("Id", id);
                    sent.write(out);
                });
                write_failed(out, results);
            }
            Self::DoneBatch(action, results) => {
                let entry = match action {
                    Action::DeleteMessageBatch => "DeleteMessageBatchResultEntry",
                    _ => "ChangeMessageVisibilityBatchResultEntry",
                };
                let done = results.iter().filter(|(_, result)| result.is_ok());
                out.list(names("Successful", entry), done, |out, (id, _)| out.text("Id", id));
                write_failed(out, results);
            }
            Self::Messages(messages) => {
                out.list(names("Messages", "Message"), messages, |out, message| message.write(out));
            }
            Self::TaskHandle(handle) => out.text("TaskHandle", handle),
            Self::Tasks(tasks) => {
                out.list(names("Results", "ListMessageMoveTasksResultEntry"), tasks, |out, task| task.write(out));
            }
            Self::MovedCount(count) => out.number("ApproximateNumberOfMessagesMoved", *count),
        }
    }

    /// Returns `true` if nothing would be written.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Messages(messages) => messages.is_empty(),
            _ => false,
        }
    }

    /// Returns the approximate size of the encoded response, in bytes.
    pub fn bytes_hint(&self) -> usize {
        match self {
            Self::Messages(messages) => messages.iter().map(|message| 1024 + message.body.len() * 9 / 8).sum(),
            _ => 512,
        }
    }
}

fn write_failed<T>(out: &mut impl Fields, results: &[(String, Result<T>)]) {
    let failed = results.iter().filter_map(|(id, result)| Some((id, result.as_ref().err()?)));
    out.list(names("Failed", "BatchResultErrorEntry"), failed, |out, (id, failure)| {
        out.text("Id", id);
        out.flag("SenderFault", failure.code.is_sender);
        out.text("Code", failure.code.name);
        out.text("Message", &failure.message);
    });
}

/// Request whose head and form are decoded.
pub(super) struct Call<'a> {
    pub protocol: Protocol,
    pub action: Result<Action>,
    /// Parameters, if the protocol is Query.
    pub form: Option<Form<'a>>,
}

impl<'a> Call<'a> {
    /// Decodes the head and the form. `of_queue` is the queue in the path of the request, if there is one.
    pub fn new(head: &'a Parts, body: &'a [u8], of_queue: Option<&Place>) -> Result<Self> {
        let target = head.headers.get(TARGET).map(|target| target.to_str().unwrap_or_default());
        let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
        if target.is_some() || content_type.starts_with(b"application/x-amz-json") {
            return Ok(Self { protocol: Protocol::Json, action: action_of(target), form: None });
        }
        let method = &head.method;
        let uri = &head.uri;
        let body = if method == Method::GET { b"" } else { body };
        let mut form = Form::parse(&[uri.query().unwrap_or_default().as_bytes(), body])?;
        let action = match form.get("Action") {
            None if of_queue.is_some() => Err(Failure::new(&UNKNOWN_OPERATION, "")),
            None => Err(Failure::new(&MISSING_ACTION, "The request must contain the parameter Action.")),
            Some(name) => match Action::parse(name) {
                // These actions do not refer to an existing queue.
                Some(Action::CreateQueue | Action::ListQueues) if of_queue.is_some() => Err(invalid_action(name)),
                Some(action) => Ok(action),
                None => Err(invalid_action(name)),
            },
        };
        if let Some(queue) = of_queue {
            form.imply("QueueUrl", queue.path());
        }
        form.sort();
        Ok(Self { protocol: Protocol::query(&head.headers), action, form: Some(form) })
    }

    /// Decodes the request itself.
    pub fn request(&'a self, body: &'a [u8]) -> Result<Request<'a>> {
        let action = self.action.as_ref().map_err(|failure| Failure::new(failure.code, failure.message.clone()))?;
        match &self.form {
            None => json::decode(*action, body),
            Some(form) => Request::deserialize(*action, form.tree())
                .map_err(|error| Failure::new(&SERIALIZATION, error.to_string())),
        }
    }
}

fn action_of(target: Option<&str>) -> Result<Action> {
    let name = target.and_then(|target| target.strip_prefix(TARGET_PREFIX));
    name.and_then(Action::parse).ok_or_else(|| Failure::new(&UNKNOWN_OPERATION, ""))
}

fn invalid_action(name: &str) -> Failure {
    Failure::new(&INVALID_ACTION, format!("The action {name} is not valid for this endpoint."))
}

/// Encodes a response.
pub(super) fn respond(
    protocol: Protocol,
    action: Option<Action>,
    answer: &Result<Answer>,
    request_id: &str,
) -> Response<Bytes> {
    let action = action.map_or("", Action::name);
    let (status, body) = match (answer, protocol) {
        (Ok(answer), Protocol::Json) => (200, to_json(answer)),
        (Ok(answer), Protocol::Query(None)) => (200, to_xml(action, answer, request_id)),
        (Ok(answer), Protocol::Query(Some(form))) => (200, documents::answer(form, action, answer, request_id)),
        (Err(failure), Protocol::Json) => (failure.code.status, json_error(failure)),
        // The service has no JSON form of this error.
        (Err(failure), Protocol::Query(Some(form))) if failure.code != &UNKNOWN_OPERATION => {
            (failure.code.status, documents::error(form, failure, request_id))
        }
        (Err(failure), Protocol::Query(_)) => (failure.code.status, xml_error(failure, request_id)),
    };
    let content_type = match (protocol, body.first()) {
        (Protocol::Json, _) => JSON,
        (Protocol::Query(Some(_)), Some(b'{')) => PLAIN_JSON,
        (Protocol::Query(_), _) => XML,
    };
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Err(failure) = answer
        && failure.retry_after_ms > 0
    {
        headers.insert(RETRY_AFTER, HeaderValue::from(failure.retry_after_ms.div_ceil(1000)));
    }
    if let (Err(failure), Protocol::Json) = (answer, protocol) {
        let side = if failure.code.is_sender { "Sender" } else { "Receiver" };
        if let Ok(value) = HeaderValue::try_from(format!("{};{side}", failure.code.name)) {
            headers.insert(QUERY_ERROR, value);
        }
    }
    response
}

pub(super) fn to_json(answer: &Answer) -> Vec<u8> {
    let mut json = Json::new(Vec::with_capacity(answer.bytes_hint()));
    answer.write(&mut json);
    json.finish()
}

fn to_xml(action: &str, answer: &Answer, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::new(Vec::with_capacity(answer.bytes_hint()));
    xml.declare();
    let root = format!("{action}Response");
    let result = format!("{action}Result");
    xml.nested(&root, NAMESPACE, |xml| {
        if !matches!(answer, Answer::Nothing) {
            xml.nested(&result, "", |xml| answer.write(xml));
        }
        xml.nested("ResponseMetadata", "", |xml| xml.text("RequestId", request_id));
    });
    xml.finish()
}

pub(super) fn json_error(failure: &Failure) -> Vec<u8> {
    let mut json = Json::new(Vec::new());
    json.text("__type", &format!("{}{}", failure.code.namespace, failure.code.shape));
    json.text("message", &failure.message);
    json.finish()
}

pub(super) fn xml_error(failure: &Failure, request_id: &str) -> Vec<u8> {
    let mut xml = Xml::new(Vec::new());
    if failure.code == &UNKNOWN_OPERATION {
        xml.nested("UnknownOperationException", "", |_| {});
        return xml.finish();
    }
    xml.declare();
    xml.nested("ErrorResponse", NAMESPACE, |xml| {
        xml.nested("Error", "", |xml| {
            xml.text("Type", if failure.code.is_sender { "Sender" } else { "Receiver" });
            xml.text("Code", failure.code.name);
            xml.text("Message", failure.query_message());
            xml.nested("Detail", "", |_| {});
        });
        xml.text("RequestId", request_id);
    });
    xml.finish()
}
