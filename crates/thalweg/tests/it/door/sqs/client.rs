//! Minimal SQS client: requests of both protocols, and the unprocessed responses.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::{HeaderMap, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::server::{Server, within};

pub const ARN: &str = "arn:aws:sqs:us-east-1:000000000000:";
/// Wait time of a receive that returns immediately.
pub const NOW: u64 = 0;

/// Response of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Returns the result of a successful response.
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    /// Returns the status, the code as SDKs show it, and the message of a failed response.
    pub fn error(&self) -> (u16, String, String) {
        assert!(self.status >= 400, "{self:?}");
        let json = self.json();
        let shape = json["__type"].as_str().and_then(|name| name.split_once('#')).expect("a shape").1;
        assert!(!shape.is_empty());
        let code = self.header("x-amzn-query-error").split_once(';').expect("a code and a side").0;
        (self.status, code.to_owned(), json["message"].as_str().expect("a message").to_owned())
    }

    pub fn code(&self) -> String {
        self.error().1
    }
}

/// Client of a broker.
#[derive(Clone, Copy)]
pub struct Sqs {
    address: SocketAddr,
}

impl Sqs {
    pub fn of(server: &Server) -> Self {
        Self::at(server.sqs)
    }

    pub fn at(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Sends one request on a separate connection.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.try_send(method, path, headers, body).await.expect("an answer")
    }

    /// Sends one request on a separate connection; returns `None` if the broker stopped in the meantime.
    async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Option<Answer> {
        let address = self.address;
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a valid request");
        let exchange = async {
            let socket = TcpStream::connect(address).await.ok()?;
            let (mut sender, connection) = handshake(TokioIo::new(socket)).await.ok()?;
            // Errors of the connection are reported by its request.
            tokio::spawn(async move { connection.await.unwrap_or_default() });
            let (head, body) = sender.send_request(request).await.ok()?.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let body = String::from_utf8(body.to_vec()).expect("text");
            Some(Answer { status: head.status.as_u16(), headers: head.headers, body })
        };
        within("an answer of SQS", exchange).await
    }

    /// Sends a request in AWS JSON.
    pub async fn call(&self, action: &str, body: Value) -> Answer {
        self.call_with(action, body, &[]).await
    }

    pub async fn call_with(&self, action: &str, body: Value, more: &[(&str, &str)]) -> Answer {
        self.try_call_with(action, body, more).await.expect("an answer")
    }

    /// Sends a request in AWS JSON; returns `None` if the broker stopped in the meantime.
    pub async fn try_call(&self, action: &str, body: Value) -> Option<Answer> {
        self.try_call_with(action, body, &[]).await
    }

    async fn try_call_with(&self, action: &str, body: Value, more: &[(&str, &str)]) -> Option<Answer> {
        let target = format!("AmazonSQS.{action}");
        let mut headers = vec![("content-type", "application/x-amz-json-1.0"), ("x-amz-target", &*target)];
        headers.extend(more);
        let answer = self.try_send("POST", "/", &headers, body.to_string()).await?;
        assert_eq!(answer.header("content-type"), "application/x-amz-json-1.0", "{answer:?}");
        assert_eq!(answer.header("x-amzn-requestid").len(), 36, "{answer:?}");
        Some(answer)
    }

    /// Sends a request of the Query protocol.
    pub async fn query(&self, path: &str, form: &str) -> Answer {
        self.send("POST", path, &[("content-type", "application/x-www-form-urlencoded")], form.to_owned()).await
    }

    pub async fn create(&self, name: &str, attributes: Value) -> String {
        let answer = self.call("CreateQueue", json!({"QueueName": name, "Attributes": attributes})).await.ok();
        answer["QueueUrl"].as_str().expect("a URL").to_owned()
    }

    pub async fn create_fifo(&self, name: &str, mut attributes: Value) -> String {
        attributes["FifoQueue"] = "true".into();
        self.create(name, attributes).await
    }

    pub async fn send_body(&self, url: &str, body: &str) -> Value {
        self.call("SendMessage", json!({"QueueUrl": url, "MessageBody": body})).await.ok()
    }

    /// Receives the messages that arrive within some seconds.
    pub async fn receive(&self, url: &str, max: u64, wait_s: u64) -> Vec<Value> {
        self.receive_with(url, json!({"MaxNumberOfMessages": max, "WaitTimeSeconds": wait_s})).await
    }

    /// Receives messages, with further members in the request.
    pub async fn receive_with(&self, url: &str, mut request: Value) -> Vec<Value> {
        request["QueueUrl"] = url.into();
        let mut answer = self.call("ReceiveMessage", request).await.ok();
        match answer["Messages"].take() {
            Value::Array(messages) => messages,
            Value::Null => Vec::new(),
            other => panic!("messages are a list: {other}"),
        }
    }

    pub async fn delete(&self, url: &str, message: &Value) -> Answer {
        self.call("DeleteMessage", json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]})).await
    }

    pub async fn attribute(&self, url: &str, name: &str) -> Value {
        let request = json!({"QueueUrl": url, "AttributeNames": [name]});
        self.call("GetQueueAttributes", request).await.ok()["Attributes"][name].take()
    }

    /// Returns the numbers of visible, in-flight and delayed messages.
    pub async fn counts(&self, url: &str) -> [String; 3] {
        let request = json!({"QueueUrl": url, "AttributeNames": ["All"]});
        let all = self.call("GetQueueAttributes", request).await.ok();
        ["", "NotVisible", "Delayed"].map(|of| {
            let value = &all["Attributes"][format!("ApproximateNumberOfMessages{of}")];
            value.as_str().expect("a number").to_owned()
        })
    }
}

/// Returns the member with this name of each message.
pub fn each<'t>(messages: &'t [Value], member: &str) -> Vec<&'t str> {
    messages.iter().map(|message| message[member].as_str().unwrap_or_default()).collect()
}

/// Longer than a request takes, and much shorter than any wait that must not happen.
pub const SOON: Duration = Duration::from_secs(10);
