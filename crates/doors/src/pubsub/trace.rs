//! Trace contexts of Google's libraries: attributes whose names have the prefix `googclient_`.
//!
//! A record keeps the attributes as they were sent, and also has the context under the names of W3C Trace Context,
//! which the clients of all other doors read. A subscriber sees what the publisher sent: the second pair is hidden from
//! it. A message that came through another door gets the attributes of Google's libraries.
//!
//! The names are those of `google/cloud/pubsub_v1/open_telemetry/context_propagation.py` in google-cloud-pubsub 2.31.

use std::collections::BTreeMap;

use engine::trace::{PARENT_HEADER, STATE_HEADER};

/// Attributes of Google's libraries, and the headers of the standard.
const NAMES: [(&str, &str); 2] = [("googclient_traceparent", PARENT_HEADER), ("googclient_tracestate", STATE_HEADER)];

/// Returns `true` for an attribute of Google's libraries, which may be published although its prefix is reserved.
pub(super) fn is_of_library(attribute: &str) -> bool {
    NAMES.iter().any(|(of_library, _)| attribute == *of_library)
}

/// Returns the headers of the standard that a message gets in addition to its attributes: none if it has them.
pub(super) fn added<'m>(get: impl Fn(&str) -> Option<&'m str>) -> impl Iterator<Item = (&'m str, &'m [u8])> {
    let is_missing = get(PARENT_HEADER).is_none() && get(STATE_HEADER).is_none() && get(NAMES[0].0).is_some();
    let of = NAMES.map(|(of_library, header)| Some((header, get(of_library)?.as_bytes())));
    of.into_iter().flatten().filter(move |_| is_missing)
}

/// Turns the headers of a record into the attributes that a subscriber receives.
pub(super) fn show(attributes: &mut BTreeMap<String, String>) {
    if !attributes.contains_key(PARENT_HEADER) {
        return;
    }
    if attributes.contains_key(NAMES[0].0) {
        for (of_library, header) in NAMES {
            if attributes.get(header) == attributes.get(of_library) {
                attributes.remove(header);
            }
        }
        return;
    }
    for (of_library, header) in NAMES {
        if let Some(value) = attributes.get(header).cloned() {
            attributes.insert(of_library.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Publishes attributes, and returns the headers of the record.
    fn published(attributes: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let added = added(|name| attributes.get(name).map(String::as_str));
        let added = added.map(|(name, value)| (name.to_owned(), String::from_utf8_lossy(value).into_owned()));
        attributes.clone().into_iter().chain(added).collect()
    }

    #[test]
    fn a_subscriber_sees_what_the_publisher_sent() {
        let sent = map(&[("googclient_traceparent", "p"), ("googclient_tracestate", "s"), ("a", "b")]);
        let mut record = published(&sent);
        assert_eq!((record["traceparent"].as_str(), record["tracestate"].as_str()), ("p", "s"));
        show(&mut record);
        assert_eq!(record, sent);
        let both = map(&[("googclient_traceparent", "p"), ("traceparent", "q")]);
        let mut record = published(&both);
        assert_eq!(record, both);
        show(&mut record);
        assert_eq!(record, both);
    }

    #[test]
    fn a_message_of_another_door_has_the_attributes_of_the_library() {
        let mut record = map(&[("traceparent", "p"), ("a", "b")]);
        show(&mut record);
        assert_eq!(record, map(&[("traceparent", "p"), ("googclient_traceparent", "p"), ("a", "b")]));
        let mut plain = map(&[("a", "b")]);
        show(&mut plain);
        assert_eq!(plain, map(&[("a", "b")]));
    }
}
