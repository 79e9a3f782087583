//! Why a request or a connection is not served, and how that is said.

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, StatusCode};

/// How the content types of gRPC begin.
const GRPC: &str = "application/grpc";

/// Whether a request is one of gRPC.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(GRPC.as_bytes()))
}

/// Why something is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// This is not HTTP.
    Malformed,
    /// Without TLS, where that is not allowed.
    Plaintext,
    Method,
    /// The headers did not come in time.
    HeaderTimeout,
    /// The body does not come on.
    BodyTimeout,
    BodySize,
    UriSize,
    /// This is not the host that was asked for.
    Host,
    /// A web page of another origin asked.
    Origin,
    /// Too many requests a second.
    Rate,
    HeaderSize,
    /// The service failed.
    Service,
    /// As many connections as there may be are open.
    Connections,
    /// Answers that were not read yet hold all the memory that there is for them.
    Memory,
}

impl Reason {
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

    /// For metrics and logs.
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

/// What a client is told that is not served.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub reason: Reason,
    /// A sentence for whoever made the request.
    pub message: Cow<'static, str>,
    /// The methods that are allowed, where it was the method.
    pub allow: Option<HeaderValue>,
    /// The content type of the request, where its head was read: it may tell what its client understands.
    pub content_type: Option<HeaderValue>,
}

/// The body of a refusal and its content type.
pub type RefusalBody = fn(&Refusal) -> (HeaderValue, Bytes);

impl Refusal {
    pub(super) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, message: message.into(), allow: None, content_type: None }
    }

    /// How many seconds to wait before the next try, where that would help.
    pub fn retry_after(&self) -> Option<u32> {
        matches!(self.reason, Reason::Rate | Reason::Connections | Reason::Memory).then_some(1)
    }

    /// The headers and the body of the answer.
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

    /// The headers of an answer to a client of gRPC, which has no body: such a client shows no other text.
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

    /// The whole answer of HTTP/1, for where nothing reads requests any more.
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

/// A line of text.
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
