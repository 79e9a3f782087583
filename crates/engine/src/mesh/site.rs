//! Sites: their names, keys and roles, and the relation of a topic to the mesh.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::TopicName;

/// Maximum bytes of a site's name.
pub const SITE_NAME_BYTES_MAX: usize = 63;

/// Name of a site: 1 to 63 of `a-z 0-9 -`, with a letter or a digit at both ends. It has no dots, since a mirrored
/// topic is named `<site>.<topic>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteName(Arc<str>);

impl SiteName {
    pub fn parse(name: &str) -> Result<Self> {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let has_ends = name.bytes().next().is_some_and(is_inner) && name.bytes().next_back().is_some_and(is_inner);
        let is_good = has_ends && name.len() <= SITE_NAME_BYTES_MAX && name.bytes().all(|b| is_inner(b) || b == b'-');
        if is_good {
            return Ok(Self(Arc::from(name)));
        }
        Err(Error::invalid(format!(
            "{name:?} is not a valid name of a site: write 1 to {SITE_NAME_BYTES_MAX} of a-z 0-9 -, with a letter or \
             a digit at both ends, such as berlin or plant-7"
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Key by which the other sites recognize a site: the SHA-256 hash of its public key (the SubjectPublicKeyInfo of its
/// certificate). It is not a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteKey([u8; 32]);

impl SiteKey {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Display for SiteKey {
    /// Formats the key in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SiteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for SiteKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("{text:?} is not a key of a site: it has 64 hexadecimal digits"));
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut key = [0; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            // tidy: the position of a bad digit helps nobody.
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(key))
    }
}

/// Part of a site in the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SiteRole {
    /// Relays between sites that cannot reach each other.
    #[default]
    Hub = 0,
    /// Relays nothing.
    Leaf = 1,
}

impl SiteRole {
    pub const ALL: [Self; 2] = [Self::Hub, Self::Leaf];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|role| *role as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Leaf => "leaf",
        }
    }
}

impl FromStr for SiteRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|role| role.name() == text);
        known.ok_or_else(|| Error::invalid(format!("the role of a site is hub or leaf, not '{text}'")))
    }
}

/// Relation of a topic to the mesh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MeshMode {
    /// Only clients of this site use the topic.
    #[default]
    Off = 0,
    /// Records that clients of one site publish are also appended to the topic at every other site that has
    /// subscribers or queues of it, at most once.
    Live = 1,
    /// Other sites copy the topic, and this site copies the topics of this name at other sites: each to a topic of its
    /// own, see [`copy_name`].
    Mirror = 2,
    /// Other sites copy the topic, and this site copies none.
    Source = 3,
    /// The topic is a copy of a topic of another site. Clients only read it. No client chooses this mode: the broker
    /// creates copies.
    Copy = 4,
}

impl MeshMode {
    pub const ALL: [Self; 5] = [Self::Off, Self::Live, Self::Mirror, Self::Source, Self::Copy];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| *mode as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Live => "live",
            Self::Mirror => "mirror",
            Self::Source => "source",
            Self::Copy => "copy",
        }
    }

    /// Returns `true` if other sites may copy the topic.
    pub fn is_offered(self) -> bool {
        matches!(self, Self::Mirror | Self::Source)
    }

    /// Fails for a mode that no client chooses.
    pub fn check_chosen(self) -> Result<()> {
        if self == Self::Copy {
            return Err(Error::invalid(
                "the mode copy of a topic is not chosen: set mesh of the topic to mirror at both sites, and this one \
                 creates the copy",
            ));
        }
        Ok(())
    }
}

/// Returns the name of a site's copy of a topic of another site, `<site>.<topic>`.
pub fn copy_name(origin: &SiteName, topic: &TopicName) -> Result<TopicName> {
    TopicName::parse(&format!("{origin}.{topic}"))
}

impl FromStr for MeshMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| Error::invalid(format!("mesh is off, live, mirror or source, not '{text}'")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sites_are_labels_without_dots() {
        for good in ["a", "berlin", "plant-7", "7", &"x".repeat(SITE_NAME_BYTES_MAX)] {
            assert_eq!(SiteName::parse(good).map(|name| name.to_string()), Ok(good.to_owned()));
        }
        let long = "x".repeat(SITE_NAME_BYTES_MAX + 1);
        for bad in ["", "-", "a-", "-a", "Berlin", "a.b", "a_b", "a b", "ü", &long] {
            assert!(SiteName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_read_as_they_are_shown() {
        let key = SiteKey::new(std::array::from_fn(|at| at as u8 * 7));
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in ["", "00", &"g".repeat(64), &"0".repeat(63), &"ü".repeat(32)] {
            assert!(bad.parse::<SiteKey>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn words_are_read_as_they_are_shown() {
        for role in SiteRole::ALL {
            assert_eq!((role.name().parse(), SiteRole::from_code(role as u8)), (Ok(role), Some(role)));
        }
        for mode in MeshMode::ALL {
            assert_eq!((mode.name().parse(), MeshMode::from_code(mode as u8)), (Ok(mode), Some(mode)));
        }
        assert!(MeshMode::Copy.check_chosen().is_err() && MeshMode::Mirror.check_chosen().is_ok());
        assert!("spoke".parse::<SiteRole>().is_err() && "on".parse::<MeshMode>().is_err());
    }
}
