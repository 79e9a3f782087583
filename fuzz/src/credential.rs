//! Credentials of clients are refused or stay what they are: messages of SASL, tokens, rules for names of certificates,
//! certificates, and stored records.
//!
//! Input: one byte that selects the parser, and its input; for rules and a subject, a line end is between them.

use engine::security::{Bearer, ClientFirst, NameRules, SecurityRecord, TokenText, parse_plain};
use net::tls::PeerIdentity;

pub fn check(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let text = std::str::from_utf8(rest).unwrap_or_default();
    match choice % 6 {
        0 => {
            if let Ok((user, password)) = parse_plain(rest) {
                assert!(!password.is_empty() && text.ends_with(&format!("\0{user}\0{password}")));
            }
        }
        1 => {
            if let Ok(Bearer { token, .. }) = Bearer::parse(rest) {
                assert!(text.contains(token) && text.ends_with("\u{1}\u{1}"));
            }
        }
        2 => {
            if let Some(token) = TokenText::parse(text) {
                assert_eq!(token.reveal(), text);
            }
        }
        3 => {
            let (rules, subject) = text.split_once('\n').unwrap_or((text, ""));
            if let Ok(rules) = NameRules::parse(rules) {
                drop(rules.user_of(subject, Some("name")));
            }
        }
        4 => {
            drop(ClientFirst::parse(rest));
            let certificates = [rest.to_vec().into()];
            if let Some(identity) = PeerIdentity::of_certificates(Some(&certificates)) {
                assert!(identity.subject.len() <= 3 * rest.len() + 1000);
            }
        }
        _ => {
            let (key, value) = rest.split_at(rest.first().map_or(0, |at| usize::from(*at)).min(rest.len()));
            if let Ok(record) = SecurityRecord::decode(key, Some(value)) {
                assert_eq!(SecurityRecord::decode(&record.key(), record.value().as_deref()), Ok(record));
            }
        }
    }
}
