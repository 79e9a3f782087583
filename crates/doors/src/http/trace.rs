//! Trace context of a request, which the records that it publishes get as headers.
//!
//! A record of JSON may have its own context, which is kept.

use axum::http::HeaderMap;
use bytes::Bytes;
use engine::Record;
use engine::limits::TRACE_STATE_BYTES_MAX;
use engine::trace::{PARENT_HEADER, STATE_HEADER, TraceContext};

/// Maximum bytes of the context of a request. Those of version 00 have 55; later versions may have more.
const PARENT_BYTES_MAX: usize = 512;
/// Part of a context between its version and its flags.
const IDS: std::ops::Range<usize> = 2..53;

/// Valid context of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestTrace {
    parent: Bytes,
    state: Option<Bytes>,
}

impl RequestTrace {
    /// Returns the context of a request if it has exactly one and that is valid, as W3C Trace Context requires. The
    /// fields of a state that was sent in several headers are combined. A context of a later version becomes one of
    /// version 00 (section 4.3), without the fields that are unknown.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(PARENT_HEADER).iter();
        let parent = parents.next()?.as_bytes();
        if parents.next().is_some() || parent.len() > PARENT_BYTES_MAX {
            return None;
        }
        let context = TraceContext::parse(parent)?;
        let parent = if parent.starts_with(b"00") {
            Bytes::copy_from_slice(parent)
        } else {
            let flags: &[u8] = if context.is_sampled { b"01" } else { b"00" };
            Bytes::from([&b"00"[..], parent.get(IDS)?, flags].concat())
        };
        let states: Vec<&[u8]> = headers.get_all(STATE_HEADER).iter().map(|state| state.as_bytes()).collect();
        let state = Some(states.join(&b","[..])).filter(|state| (1..=TRACE_STATE_BYTES_MAX).contains(&state.len()));
        Some(Self { parent, state: state.map(Bytes::from) })
    }

    fn headers(&self) -> impl Iterator<Item = (&'static str, Bytes)> {
        let state = self.state.clone().map(|state| (STATE_HEADER, state));
        std::iter::once((PARENT_HEADER, self.parent.clone())).chain(state)
    }

    /// Adds the context to the headers of a message that has none.
    pub(super) fn add_to_message(&self, headers: &mut Vec<(String, Bytes)>) {
        if !headers.iter().any(|(name, _)| name == PARENT_HEADER) {
            headers.retain(|(name, _)| name != STATE_HEADER);
            headers.extend(self.headers().map(|(name, value)| (name.to_owned(), value)));
        }
    }

    /// Adds the context to a record that has none.
    pub(super) fn add_to(&self, record: &mut Record) {
        if record.header(PARENT_HEADER).is_none() {
            record.headers.retain(|(name, _)| name != STATE_HEADER.as_bytes());
            let added = self.headers().map(|(name, value)| (Bytes::from_static(name.as_bytes()), Some(value)));
            record.headers.extend(added);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(headers: &[(&'static str, &str)]) -> Option<RequestTrace> {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
        };
        RequestTrace::of(&headers.iter().map(pair).collect())
    }

    /// W3C Trace Context, section 3.3.1: several headers of a state are one list.
    #[test]
    fn a_request_gives_its_context_to_records_without_one() {
        let trace = of(&[("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")]).expect("valid");
        let mut record = Record::new("x").with_header("tracestate", "of no context");
        trace.add_to(&mut record);
        assert_eq!(record.header("traceparent").map(|value| &value[..]), Some(PARENT.as_bytes()));
        assert_eq!(record.header("tracestate").map(|value| &value[..]), Some(&b"a=1,b=2"[..]));
        assert_eq!(record.headers.len(), 2);
        let mut own = Record::new("x").with_header("traceparent", "its own");
        trace.add_to(&mut own);
        assert_eq!(own.headers.len(), 1);
    }

    /// W3C Trace Context, section 4.3: the fields that are known make a context of the highest known version.
    #[test]
    fn a_context_of_a_later_version_loses_what_is_unknown() {
        let parent = |sent: &str| of(&[("traceparent", sent)]).map(|trace| trace.parent);
        let later = PARENT.replacen("00", "cc", 1);
        let expected = Some(Bytes::from_static(PARENT.as_bytes()));
        assert_eq!(parent(PARENT), expected);
        assert_eq!(parent(&later), expected);
        assert_eq!(parent(&format!("{later}-{}", "x".repeat(PARENT_BYTES_MAX - 56))), expected);
        assert_eq!(parent(&format!("{later}-{}", "x".repeat(PARENT_BYTES_MAX - 55))), None);
        assert_eq!(parent(&format!("{later}.x")), None);
    }

    #[test]
    fn an_invalid_context_of_a_request_is_ignored() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("traceparent", "00-1")]), None);
        assert_eq!(of(&[("traceparent", PARENT), ("traceparent", PARENT)]), None);
        assert_eq!(of(&[("traceparent", PARENT)]).and_then(|trace| trace.state), None);
    }
}
