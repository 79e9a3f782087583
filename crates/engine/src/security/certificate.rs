//! Users of client certificates: rules that derive the name of a user from the subject of a certificate.
//!
//! The rules are those of Kafka's `ssl.principal.mapping.rules` (KIP-371): a comma-separated list of `DEFAULT`, which
//! is the whole subject, and `RULE:PATTERN/REPLACEMENT/`, with `L` or `U` after it for lower or upper case. The first
//! rule whose pattern matches the whole subject applies. `$1` in the replacement is the first group of the pattern, and
//! a backslash precedes a slash that is part of either.

use regex_lite::Regex;

use super::{UserName, denied};
use crate::error::{Error, Result};

/// Maximum number of rules.
const RULES_MAX: usize = 64;
const RULE: &str = "RULE:";
const DEFAULT: &str = "DEFAULT";

/// Rules that name the users of certificates.
#[derive(Clone, Debug, Default)]
pub struct NameRules(Vec<Rule>);

#[derive(Clone, Debug)]
enum Rule {
    Whole,
    Replace { pattern: Regex, replacement: String, case: Case },
}

#[derive(Clone, Copy, Debug)]
enum Case {
    Kept,
    Lower,
    Upper,
}

impl NameRules {
    /// Parses rules. An empty text is no rules: then a user has the name of its certificate.
    pub fn parse(text: &str) -> Result<Self> {
        let mut rules = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (rule, after) = Rule::parse(rest)?;
            rules.push(rule);
            rest = after.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.is_empty() => rest,
                None => return Err(wrong(rest)),
            };
        }
        if rules.len() > RULES_MAX {
            return Err(Error::invalid(format!("at most {RULES_MAX} rules name the users of certificates")));
        }
        Ok(Self(rules))
    }

    /// Returns the user of a certificate with this subject (RFC 2253) and this name, which is its common name or, if it
    /// has none, its first alternative name.
    pub fn user_of(&self, subject: &str, name: Option<&str>) -> Result<UserName> {
        if self.0.is_empty() {
            return UserName::parse(name.ok_or_else(|| denied("the client's certificate has no name"))?);
        }
        let found = self.0.iter().find_map(|rule| rule.apply(subject));
        UserName::parse(
            &found.ok_or_else(|| denied(format!("no rule names the user of the certificate of {subject}")))?,
        )
    }
}

impl Rule {
    /// Parses the first rule of a text. Returns the rest, too.
    fn parse(text: &str) -> Result<(Self, &str)> {
        if let Some(rest) = text.strip_prefix(DEFAULT) {
            return Ok((Self::Whole, rest));
        }
        let rest = text.strip_prefix(RULE).ok_or_else(|| wrong(text))?;
        let (pattern, rest) = part(rest).ok_or_else(|| wrong(text))?;
        let (replacement, rest) = part(rest).ok_or_else(|| wrong(text))?;
        let (case, rest) = match rest.strip_prefix('L') {
            Some(rest) => (Case::Lower, rest),
            None => rest.strip_prefix('U').map_or((Case::Kept, rest), |rest| (Case::Upper, rest)),
        };
        let pattern = Regex::new(&format!("^(?:{pattern})$"))
            .map_err(|error| Error::invalid(format!("the pattern '{pattern}' of a rule: {error}")))?;
        Ok((Self::Replace { pattern, replacement: with_braces(&replacement), case }, rest))
    }

    fn apply(&self, subject: &str) -> Option<String> {
        let Self::Replace { pattern, replacement, case } = self else {
            return Some(subject.to_owned());
        };
        let found = pattern.captures(subject)?;
        let mut name = String::new();
        found.expand(replacement, &mut name);
        Some(match case {
            Case::Kept => name,
            Case::Lower => name.to_lowercase(),
            Case::Upper => name.to_uppercase(),
        })
    }
}

/// Returns the text before the first slash that has no backslash before it, and the rest after that slash.
fn part(text: &str) -> Option<(String, &str)> {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let is_end = byte == b'/' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some((text[..end].replace("\\/", "/"), &text[end + 1..]))
}

/// Writes `$1` as `${1}`, so that letters and digits after it are not part of the group's name.
fn with_braces(replacement: &str) -> String {
    let mut written = String::new();
    let mut rest = replacement;
    while let Some((before, after)) = rest.split_once('$') {
        written.push_str(before);
        let digits = usize::from(after.starts_with(|char: char| char.is_ascii_digit()));
        match digits {
            0 => written.push_str("$$"),
            _ => written.push_str(&format!("${{{}}}", &after[..digits])),
        }
        rest = &after[digits..];
    }
    written + rest
}

fn wrong(text: &str) -> Error {
    Error::invalid(format!("'{text}' is not a rule: write DEFAULT, or RULE:PATTERN/REPLACEMENT/ with L or U after it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn user(rules: &str, subject: &str) -> Result<String> {
        NameRules::parse(rules)?.user_of(subject, Some("name")).map(|user| user.to_string())
    }

    /// The examples of Kafka's documentation of `ssl.principal.mapping.rules`
    /// (<https://kafka.apache.org/documentation/#security_authz_ssl>), and cases of its `SslPrincipalMapperTest`.
    #[test]
    fn rules_do_what_they_do_in_kafka() {
        let rules = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,\
                     RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,\
                     RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,\
                     DEFAULT";
        for (subject, wanted) in [
            ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
            ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
            ("OU=Somewhere,CN=Duke.One,O=Unknown", "duke.one"),
            ("O=Nobody", "O=Nobody"),
        ] {
            assert_eq!(user(rules, subject), Ok(wanted.to_owned()), "{subject}");
        }
        assert_eq!(user("RULE:CN=(\\w+)/$1X$$/U", "CN=ab"), Ok("ABX$$".to_owned()));
        assert_eq!(user("RULE:^CN=a\\/b$/c\\/d/", "CN=a/b"), Ok("c/d".to_owned()));
        assert_eq!(user("", "CN=x"), Ok("name".to_owned()));
        // The pattern has to match the whole subject.
        assert_eq!(user("RULE:CN=a/b/", "CN=ab").map_err(|e| e.kind), Err(ErrorKind::Denied));
    }

    #[test]
    fn wrong_rules_are_refused() {
        for wrong in
            ["default", "DEFAULT DEFAULT", "RULE:", "RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:a/b/X", "DEFAULT;"]
        {
            assert_eq!(
                NameRules::parse(wrong).map(|_| ()).map_err(|error| error.kind),
                Err(ErrorKind::Invalid),
                "{wrong}"
            );
        }
        assert!(NameRules::parse(&"DEFAULT,".repeat(RULES_MAX + 1)).is_err());
        assert!(NameRules::parse(" DEFAULT , RULE:a/b/L , ").is_ok());
        let unnamed = NameRules::default().user_of("", None);
        assert_eq!(unnamed.map_err(|error| error.kind), Err(ErrorKind::Denied));
    }
}
