//! Passwords as clients send them.

use std::fmt;

use zeroize::Zeroizing;

/// Password in clear text, on its way from a client to the check that it is right. It is never printed, and its memory
/// is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<String>);

impl Password {
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// Returns the user and the password in the credentials of HTTP Basic (RFC 7617), which are decoded already.
pub fn parse_basic(credentials: Vec<u8>) -> Option<(String, Password)> {
    let credentials = Zeroizing::new(credentials);
    let (user, password) = std::str::from_utf8(&credentials).ok()?.split_once(':')?;
    Some((user.to_owned(), password.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_printed() {
        let password = Password::from("geheim");
        assert_eq!((format!("{password:?}"), password.reveal()), ("...".to_owned(), "geheim"));
        assert_eq!(format!("{:?}", parse_basic(b"ann:geheim".to_vec())), "Some((\"ann\", ...))");
    }

    #[test]
    fn basic_credentials_have_a_user_and_a_password() {
        let parsed = |text: &[u8]| parse_basic(text.to_vec());
        assert_eq!(parsed(b"ann:pen:cil"), Some(("ann".into(), "pen:cil".into())));
        assert_eq!(parsed(b"ann:"), Some(("ann".into(), "".into())));
        assert!(parsed(b"ann").is_none() && parsed(b"\xff:x").is_none());
    }
}
