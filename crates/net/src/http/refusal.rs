//! Refusals: reasons why a request or a connection is not served, and how they are sent.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};

/// Prefix of the content types of gRPC.
const GRPC: &str = "application/grpc";

/// Returns `true` if a request is a gRPC request.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Reason why a request or a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The bytes are not valid HTTP.
    Malformed,
    /// The connection does not use TLS, and that is not allowed.
    Plaintext,
    /// The method is not served.
    Method,
    /// The headers did not arrive in time.
    HeaderTimeout,
    /// The body paused for too long.
    BodyTimeout,
    /// The body exceeds its limit.
    BodySize,
    /// The path with its query exceeds its limit.
    UriSize,
    /// The requested host is not served.
    Host,
    /// The request comes from a web page of another origin.
    Origin,
    /// The client sends too many requests per second.
    Rate,
    /// The headers exceed their limit of count or bytes.
    HeaderSize,
    /// The service failed.
    Service,
    /// The limit of open connections is reached.
    Connections,
    /// Unread answers hold all the memory for answers.
    Memory,
}

impl Reason {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 14] = [
        Self::Malformed,
        Self::Plaintext,
        Self::Method,
        Self::HeaderTimeout,
        Self::BodyTimeout,
        Self::BodySize,
        Self::UriSize,
        Self::Host,
        Self::Origin,
        Self::Rate,
        Self::HeaderSize,
        Self::Service,
        Self::Connections,
        Self::Memory,
    ];

    /// Returns the status code of a refusal for this reason.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Plaintext | Self::Origin => StatusCode::FORBIDDEN,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::HeaderTimeout | Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::BodySize => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UriSize => StatusCode::URI_TOO_LONG,
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Rate => StatusCode::TOO_MANY_REQUESTS,
            Self::HeaderSize => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Service => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Connections | Self::Memory => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the name of the reason for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Plaintext => "plaintext",
            Self::Method => "method",
            Self::HeaderTimeout => "header_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::BodySize => "body_size",
            Self::UriSize => "uri_size",
            Self::Host => "host",
            Self::Origin => "origin",
            Self::Rate => "rate",
            Self::HeaderSize => "header_size",
            Self::Service => "service",
            Self::Connections => "connections",
            Self::Memory => "memory",
        }
    }
}

/// Refusal that is sent to a client.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Reason of the refusal.
    pub reason: Reason,
    /// Sentence for the author of the request.
    pub message: Cow<'static, str>,
    /// Allowed methods, if the method was refused.
    pub allow: Option<HeaderValue>,
    /// Content type of the request, if its head was read. It may tell which formats the client understands.
    pub content_type: Option<HeaderValue>,
}

/// Function that renders the body of a refusal with its content type.
pub type RefusalBody = fn(&Refusal) -> (HeaderValue, Bytes);

impl Refusal {
    pub(super) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: message.into(), allow: None, content_type: None }
    }

    /// Returns the number of seconds to wait before the next attempt, if that can help.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(self.reason, Reason::Rate | Reason::Connections | Reason::Memory).then_some(1)
    }

    /// Returns the headers and the body of the answer.
    pub(super) fn answer(&self, body: RefusalBody) -> (HeaderMap, Bytes) {
        let (content_type, body) = body(self);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, content_type);
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if let Some(allow) = &self.allow {
            headers.insert(ALLOW, allow.clone());
        }
        (headers, body)
    }

    /// Returns the headers of an answer to a gRPC client. It has no body, because such a client shows no other text.
    pub(super) fn grpc(&self) -> HeaderMap {
        let code = match self.reason {
            Reason::Malformed | Reason::Method | Reason::UriSize => 3,
            Reason::HeaderTimeout | Reason::BodyTimeout => 4,
            Reason::Plaintext | Reason::Host | Reason::Origin => 7,
            Reason::BodySize | Reason::HeaderSize | Reason::Rate | Reason::Memory => 8,
            Reason::Service => 13,
            Reason::Connections => 14,
        };
        let mut message = String::new();
        for byte in self.message.bytes() {
            match byte {
                b' '..=b'~' if byte != b'%' => message.push(byte as char),
                _ => message.push_str(&format!("%{byte:02X}")),
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
        headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(code));
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        headers
    }

    /// Returns a complete HTTP/1 answer, for connections on which no request is read any more.
    pub(super) fn text(&self, body: RefusalBody, more: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
        let (headers, body) = self.answer(body);
        let status = self.reason.status();
        let mut text =
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n", body.len()).into_bytes();
        for (name, value) in headers.iter().chain(more.iter().map(|(name, value)| (name, value))) {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(&body);
        text
    }
}

/// Renders a refusal as a line of plain text.
pub fn plain_text(refusal: &Refusal) -> (HeaderValue, Bytes) {
    (HeaderValue::from_static("text/plain; charset=utf-8"), format!("{}\n", refusal.message).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_name_and_a_status_of_its_kind() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        for (i, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert!(reason.status().is_client_error() || reason.status().is_server_error(), "{reason:?}");
        }
    }

    #[test]
    fn a_client_of_grpc_is_told_in_its_headers() {
        let headers = Refusal::new(Reason::Host, "100 % evil\u{e9}").grpc();
        assert_eq!(
            (&headers["grpc-status"], &headers["grpc-message"]),
            (&HeaderValue::from_static("7"), &HeaderValue::from_static("100 %25 evil%C3%A9"))
        );
    }

    #[test]
    fn an_answer_without_a_server_is_still_http() {
        let refusal = Refusal { allow: Some(HeaderValue::from_static("GET")), ..Refusal::new(Reason::Method, "no") };
        let more = [(HeaderName::from_static("x-more"), HeaderValue::from_static("1"))];
        assert_eq!(
            String::from_utf8_lossy(&refusal.text(plain_text, &more)),
            "HTTP/1.1 405 Method Not Allowed\r\nconnection: close\r\ncontent-length: 3\r\n\
             content-type: text/plain; charset=utf-8\r\nallow: GET\r\nx-more: 1\r\n\r\nno\n"
        );
        let busy = Refusal::new(Reason::Connections, "busy").text(plain_text, &[]);
        assert!(String::from_utf8_lossy(&busy).contains("\r\nretry-after: 1\r\n"));
    }
}
