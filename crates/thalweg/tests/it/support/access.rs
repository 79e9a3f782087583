//! Access control entries, written in a line.

use client::security::{Acl, Operation, Pattern, PatternKind, Principal};

/// Returns the entries that `OPERATION,.. KIND NAME` stands for; a name that ends with `...` is a prefix.
pub fn acls(principal: &str, entry: &str, is_allowed: bool) -> Vec<Acl> {
    let [operations, kind, name] = entry.split(' ').collect::<Vec<_>>()[..] else { panic!("three words: {entry}") };
    let prefix = name.strip_suffix("...");
    let matching = if prefix.is_some() { PatternKind::Prefix } else { PatternKind::Literal };
    let pattern = Pattern { kind: kind.parse().expect("a kind"), name: prefix.unwrap_or(name).to_owned(), matching };
    let acl = |operation: &str| Acl {
        pattern: pattern.clone(),
        principal: Principal::parse(principal).expect("a principal"),
        host: "*".to_owned(),
        operation: operation.parse::<Operation>().expect("an operation"),
        is_allowed,
    };
    operations.split(',').map(acl).collect()
}
