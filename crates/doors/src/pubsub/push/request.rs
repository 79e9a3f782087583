//! Message as an HTTP request: wrapped in JSON, or its plain data with the metadata in headers.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use serde_json::{Map, Value, json};

use super::{Endpoint, Message};

const AGENT: &str = concat!("CloudPubSub-Google (thalweg/", env!("CARGO_PKG_VERSION"), ")");
/// Headers that an attribute must not set: they frame the request or identify its sender.
const OWN_HEADERS: [&str; 12] = [
    "authorization",
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
];
const OWN_PREFIX: &str = "x-goog-";

/// Format of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wrapper {
    /// JSON with the message and its subscription.
    #[default]
    Wrapped,
    /// The data alone.
    Unwrapped {
        /// `true` if attributes and metadata become headers.
        writes_metadata: bool,
    },
}

pub(super) fn request(
    endpoint: &Endpoint,
    wrapper: Wrapper,
    subscription: &str,
    message: &Message,
    token: Option<&str>,
) -> io::Result<Request<Full<Bytes>>> {
    let mut headers = HeaderMap::new();
    let body = match wrapper {
        Wrapper::Wrapped => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            wrapped(subscription, message).to_string().into()
        }
        Wrapper::Unwrapped { writes_metadata } => {
            if writes_metadata {
                write_metadata(&mut headers, subscription, message);
            }
            message.data.clone()
        }
    };
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(HOST, HeaderValue::try_from(&endpoint.authority).map_err(io::Error::other)?);
    if let Some(token) = token {
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(io::Error::other)?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    let request = Request::builder().method(Method::POST).uri(&endpoint.path).body(Full::new(body));
    let mut request = request.map_err(io::Error::other)?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn wrapped(subscription: &str, message: &Message) -> Value {
    let published = timestamp(message.published_ms);
    let mut inner = Map::new();
    if !message.attributes.is_empty() {
        let attributes = message.attributes.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str())));
        inner.insert("attributes".into(), Value::Object(attributes.collect()));
    }
    if !message.data.is_empty() {
        inner.insert("data".into(), STANDARD.encode(&message.data).into());
    }
    if !message.ordering_key.is_empty() {
        inner.insert("orderingKey".into(), message.ordering_key.as_str().into());
    }
    // Both spellings, for endpoints that read the older one.
    for name in ["messageId", "message_id"] {
        inner.insert(name.into(), message.id.as_str().into());
    }
    for name in ["publishTime", "publish_time"] {
        inner.insert(name.into(), published.as_str().into());
    }
    let mut outer = json!({ "message": inner, "subscription": subscription });
    if let Some(attempt) = message.attempt {
        outer["deliveryAttempt"] = attempt.into();
    }
    outer
}

/// Writes attributes and metadata to headers. An attribute that is not a valid header, or that the request sets itself,
/// is left out.
fn write_metadata(headers: &mut HeaderMap, subscription: &str, message: &Message) {
    for (name, value) in &message.attributes {
        let name = name.to_ascii_lowercase();
        if name.starts_with(OWN_PREFIX) || OWN_HEADERS.contains(&name.as_str()) {
            continue;
        }
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    let metadata = [
        ("x-goog-pubsub-subscription-name", subscription),
        ("x-goog-pubsub-message-id", &message.id),
        ("x-goog-pubsub-publish-time", &timestamp(message.published_ms)),
        ("x-goog-pubsub-ordering-key", &message.ordering_key),
    ];
    for (name, value) in metadata {
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::try_from(value)) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Formats a time as `2026-11-22T14:04:42.123Z`.
fn timestamp(unix_ms: u64) -> String {
    let s = unix_ms / 1000;
    let ms = unix_ms % 1000;
    let days = s / 86_400;
    let s = s % 86_400;
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Converts days since 1970 to a date. Years begin in March here, so that the leap day is the last of its year.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn message() -> Message {
        Message {
            id: "17".into(),
            published_ms: 1_709_209_445_007,
            data: Bytes::from_static(b"\x00hi"),
            attributes: vec![
                ("color".into(), "red".into()),
                ("Host".into(), "evil".into()),
                ("a b".into(), "c".into()),
            ],
            ordering_key: "k".into(),
            attempt: Some(2),
        }
    }

    async fn sent(wrapper: Wrapper, message: &Message) -> (HeaderMap, Bytes) {
        let endpoint: Endpoint = "http://a.test:81/push?x=1".parse().expect("a URL");
        let request = request(&endpoint, wrapper, "projects/p/subscriptions/s", message, Some("t")).expect("a request");
        assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("POST", "/push?x=1"));
        assert_eq!(request.headers()["host"], "a.test:81");
        assert_eq!(request.headers()["authorization"], "Bearer t");
        let (parts, body) = request.into_parts();
        (parts.headers, body.collect().await.expect("a body in memory").to_bytes())
    }

    #[tokio::test]
    async fn a_wrapped_message_has_the_format_of_the_service() {
        let (headers, body) = sent(Wrapper::Wrapped, &message()).await;
        assert_eq!(headers["content-type"], "application/json");
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let expected = json!({
            "message": {
                "attributes": { "color": "red", "Host": "evil", "a b": "c" },
                "data": "AGhp",
                "orderingKey": "k",
                "messageId": "17",
                "message_id": "17",
                "publishTime": "2024-02-29T12:24:05.007Z",
                "publish_time": "2024-02-29T12:24:05.007Z",
            },
            "subscription": "projects/p/subscriptions/s",
            "deliveryAttempt": 2,
        });
        assert_eq!(body, expected);
        let bare =
            Message { data: Bytes::new(), attributes: vec![], ordering_key: "".into(), attempt: None, ..message() };
        let body: Value = serde_json::from_slice(&sent(Wrapper::Wrapped, &bare).await.1).expect("JSON");
        assert_eq!(body["message"].as_object().map(Map::len), Some(4), "{body}");
        assert_eq!(body.as_object().map(Map::len), Some(2));
    }

    #[tokio::test]
    async fn unwrapped_the_data_is_the_body_and_attributes_cannot_frame_the_request() {
        let (headers, body) = sent(Wrapper::Unwrapped { writes_metadata: true }, &message()).await;
        assert_eq!(body, &b"\x00hi"[..]);
        assert_eq!(headers["color"], "red");
        assert_eq!(headers["x-goog-pubsub-message-id"], "17");
        assert_eq!(headers["x-goog-pubsub-subscription-name"], "projects/p/subscriptions/s");
        assert_eq!(headers["x-goog-pubsub-publish-time"], "2024-02-29T12:24:05.007Z");
        assert_eq!(headers["x-goog-pubsub-ordering-key"], "k");
        assert_eq!(headers["host"], "a.test:81");
        assert_eq!(headers.len(), 8, "{headers:?}");
        let (headers, body) = sent(Wrapper::Unwrapped { writes_metadata: false }, &message()).await;
        assert_eq!((headers.len(), &body[..]), (3, &b"\x00hi"[..]));
    }

    #[test]
    fn times_are_dates() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
            (1_740_787_200_000, "2025-03-01T00:00:00.000Z"),
        ];
        for (ms, text) in cases {
            assert_eq!(timestamp(ms), text);
        }
    }
}
