//! A rule of Redis's `ACL SETUSER` is refused, or what it gives survives being displayed and being entries.
//!
//! Input: rules, with white space between them.

use doors::redis::check_rules;

pub fn check(input: &[u8]) {
    let Ok(rules) = std::str::from_utf8(input) else { return };
    assert!(check_rules(rules) <= rules.split_ascii_whitespace().count());
}
