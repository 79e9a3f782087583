//! Members of a mesh: every site that is or was in it, as each site keeps and spreads them.
//!
//! There is one entry per key. A removal is final: no later entry brings its key back, whatever its version, so a
//! removed site returns with another key or not at all. Of two other entries about a key, the one with the higher
//! version is kept, whichever arrived first. So all sites agree once all have heard the same. Of two sites that joined
//! with one name at the same time, the one with the lower key has it.

use std::collections::BTreeMap;

use bytes::BufMut;

use super::site::{SiteKey, SiteName, SiteRole};
use crate::error::{Error, ErrorKind, Result};
use crate::fields::{Fields, put_optional, put_text};
use crate::ids::is_host_and_port;

/// Maximum sites of a mesh, with those that were removed.
pub const SITES_MAX: usize = 10_000;
/// Maximum bytes of the address of a site.
pub const ADDRESS_BYTES_MAX: usize = 255;

const ENTRY_VERSION: u16 = 1;
/// Flag of an entry about a removed site.
const REMOVED: u8 = 1;

/// Site, as the mesh knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub site: SiteName,
    pub key: SiteKey,
    pub role: SiteRole,
    /// Addresses at which other sites reach it, separated by commas; `None` if it only dials out.
    pub address: Option<String>,
    /// Number of the change; it grows with each.
    pub version: u64,
    /// `true` if the site was removed, or has left.
    pub is_removed: bool,
}

/// Members of a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    by_key: BTreeMap<SiteKey, Member>,
}

impl Member {
    /// Returns `true` if this entry replaces another one about its key.
    fn replaces(&self, other: &Self) -> bool {
        let rank = |of: &Self| (of.is_removed, of.version, of.site.clone(), of.role as u8, of.address.clone());
        rank(self) > rank(other)
    }

    /// Encodes the entry.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u16(ENTRY_VERSION);
        put_text(&mut out, self.site.as_str());
        out.put_slice(&self.key.to_bytes());
        out.put_u8(self.role as u8);
        put_optional(&mut out, self.address.as_ref(), |out, address| put_text(out, address));
        out.put_u64(self.version);
        out.put_u8(if self.is_removed { REMOVED } else { 0 });
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields(bytes);
        fields.check_version("entry of a site", ENTRY_VERSION)?;
        let site = SiteName::parse(fields.text()?)?;
        let key = fields.array()?;
        let role = fields.code(SiteRole::from_code)?;
        let address = fields.optional(|fields| Ok(fields.text()?.to_owned()))?;
        let version = fields.u64()?;
        let is_removed = fields.flag()?;
        fields.end()?;
        if let Some(address) = &address {
            check_address(address)?;
        }
        Ok(Self { site, key: SiteKey::new(key), role, address, version, is_removed })
    }
}

impl Members {
    /// Returns the member that has a name.
    pub fn get(&self, site: &SiteName) -> Option<&Member> {
        self.by_key.values().find(|member| !member.is_removed && member.site == *site)
    }

    /// Returns the member that has a key, unless another one has its name.
    pub fn of_key(&self, key: SiteKey) -> Option<&Member> {
        let member = self.by_key.get(&key).filter(|member| !member.is_removed)?;
        self.get(&member.site).filter(|holder| holder.key == key)
    }

    /// Returns `true` if a site with this key was removed.
    pub fn is_removed(&self, key: SiteKey) -> bool {
        self.by_key.get(&key).is_some_and(|member| member.is_removed)
    }

    /// Returns the members, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        let mut by_name: BTreeMap<&SiteName, &Member> = BTreeMap::new();
        for member in self.by_key.values().filter(|member| !member.is_removed) {
            by_name.entry(&member.site).or_insert(member);
        }
        by_name.into_values()
    }

    /// Returns all entries, with those about removed sites.
    pub fn entries(&self) -> impl Iterator<Item = &Member> {
        self.by_key.values()
    }

    /// Takes an entry over, unless a known one is final or has a higher version. Returns `true` if it did.
    pub fn merge(&mut self, entry: Member) -> Result<bool> {
        let is_full = self.by_key.len() >= SITES_MAX;
        match self.by_key.get_mut(&entry.key) {
            Some(known) if !entry.replaces(known) => Ok(false),
            Some(known) => {
                *known = entry;
                Ok(true)
            }
            None if is_full => Err(Error::busy(format!(
                "the mesh has {SITES_MAX} sites, with those that were removed: this is the limit"
            ))),
            None => {
                self.by_key.insert(entry.key, entry);
                Ok(true)
            }
        }
    }

    /// Returns the entry for a site that joins, or the error if its name or its key is taken. `now_ms` is the time in
    /// ms since 1970.
    pub fn admit(&self, joining: Member, now_ms: u64) -> Result<Member> {
        let taken = |text: String| Err(Error::new(ErrorKind::AlreadyExists, text));
        if self.is_removed(joining.key) {
            let text = "the key of this site was removed from the mesh: forget it with `thalweg mesh leave`, and join \
                        again";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        if let Some(known) = self.get(&joining.site).filter(|known| known.key != joining.key) {
            return taken(format!(
                "the mesh has a site {0} already, with another key: choose another name; if that one is gone for good, \
                 remove it first with `thalweg mesh remove {0}` at another site",
                known.site
            ));
        }
        let known = self.by_key.get(&joining.key);
        if let Some(known) = known.filter(|known| known.site != joining.site) {
            return taken(format!("the key of this site is in the mesh already, as {}", known.site));
        }
        Ok(Member { version: next_version(known, now_ms), is_removed: false, ..joining })
    }

    /// Returns the entry that removes a site.
    pub fn removal(&self, site: &SiteName, now_ms: u64) -> Result<Member> {
        let Some(known) = self.get(site) else {
            let names: Vec<&str> = self.iter().map(|member| member.site.as_str()).collect();
            return Err(Error::not_found(format!("the mesh has no site {site}: its sites are {}", names.join(", "))));
        };
        Ok(Member { version: next_version(Some(known), now_ms), is_removed: true, ..known.clone() })
    }
}

/// Returns the version of the next change of an entry: the time, unless clocks went backwards.
fn next_version(known: Option<&Member>, now_ms: u64) -> u64 {
    known.map_or(now_ms, |known| now_ms.max(known.version.saturating_add(1)))
}

/// Checks that a text is a list of hosts with ports, separated by commas.
pub fn check_address(text: &str) -> Result<()> {
    if text.len() <= ADDRESS_BYTES_MAX && text.split(',').all(is_host_and_port) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{text:?} is not a valid address of a site: write HOST:PORT, such as berlin.example:7403; for the nodes of a \
         cluster, several with commas between them"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(name: &str, key: u8, version: u64, is_removed: bool) -> Member {
        Member {
            site: SiteName::parse(name).expect("a name"),
            key: SiteKey::new([key; 32]),
            role: SiteRole::Hub,
            address: key.is_multiple_of(2).then(|| format!("{name}.example:7403")),
            version,
            is_removed,
        }
    }

    fn arbitrary() -> impl Strategy<Value = Member> {
        (0..3u8, 0..4u8, 0..4u64, any::<bool>()).prop_map(|(name, key, version, is_removed)| {
            member(["a", "b", "c"][usize::from(name)], key, version, is_removed)
        })
    }

    proptest! {
        #[test]
        fn sites_agree_whatever_the_order_of_entries(entries in prop::collection::vec(arbitrary(), 0..12), seed: u64) {
            let mut shuffled = entries.clone();
            let len = shuffled.len().max(1);
            for at in 0..shuffled.len() {
                shuffled.swap(at, (seed as usize).wrapping_mul(at + 7) % len);
            }
            let of = |entries: Vec<Member>| {
                let mut members = Members::default();
                for entry in entries {
                    members.merge(entry).expect("few sites");
                }
                members
            };
            prop_assert_eq!(of(entries), of(shuffled));
        }

        #[test]
        fn an_entry_is_read_as_it_was_written(entry in arbitrary()) {
            prop_assert_eq!(Member::decode(&entry.encode()), Ok(entry.clone()));
            let bytes = entry.encode();
            for cut in 0..bytes.len() {
                prop_assert!(Member::decode(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn names_and_keys_are_unique_and_a_removed_key_is_refused() {
        let mut members = Members::default();
        let a = members.admit(member("a", 2, 0, false), 100).expect("the first");
        assert_eq!(a.version, 100);
        members.merge(a).expect("merged");
        let kind =
            |members: &Members, joining| members.admit(joining, 90).map(|of| of.version).map_err(|error| error.kind);
        assert_eq!(kind(&members, member("a", 3, 0, false)), Err(ErrorKind::AlreadyExists), "the name is taken");
        assert_eq!(kind(&members, member("b", 2, 0, false)), Err(ErrorKind::AlreadyExists), "the key is taken");
        assert_eq!(kind(&members, member("a", 2, 0, false)), Ok(101), "again, and clocks went backwards");

        let removal = members.removal(&SiteName::parse("a").expect("a name"), 200).expect("known");
        assert!(members.merge(removal).expect("merged"));
        assert_eq!((members.iter().count(), members.entries().count()), (0, 1));
        assert_eq!(members.of_key(SiteKey::new([2; 32])), None);
        assert_eq!(kind(&members, member("b", 2, 0, false)), Err(ErrorKind::Denied), "a removed key");
        assert_eq!(kind(&members, member("a", 4, 0, false)), Ok(90), "the name is free again");
        assert!(members.removal(&SiteName::parse("a").expect("a name"), 300).is_err());
        for version in [150, 1000, u64::MAX] {
            let back = member("a", 2, version, false);
            assert!(!members.merge(back).expect("merged"), "no entry brings a removed key back");
        }
        // A site with the largest version can be removed, too.
        members.merge(member("b", 6, u64::MAX, false)).expect("merged");
        let removal = members.removal(&SiteName::parse("b").expect("a name"), 300).expect("known");
        assert!(members.merge(removal).expect("merged") && members.is_removed(SiteKey::new([6; 32])));
    }

    #[test]
    fn of_two_sites_that_joined_with_one_name_one_has_it() {
        let mut members = Members::default();
        for key in [4, 2] {
            members.merge(member("a", key, u64::from(key), false)).expect("merged");
        }
        let name = SiteName::parse("a").expect("a name");
        let key = |key| SiteKey::new([key; 32]);
        assert_eq!(members.get(&name).map(|of| of.key), Some(key(2)));
        assert!(members.of_key(key(2)).is_some() && members.of_key(key(4)).is_none());
        assert_eq!(members.iter().count(), 1);
        let removal = members.removal(&name, 9).expect("known");
        members.merge(removal).expect("merged");
        assert_eq!(members.get(&name).map(|of| of.key), Some(key(4)), "the other one has it then");
    }

    #[test]
    fn addresses_are_hosts_with_ports() {
        for good in ["a:1", "a.example:7403,b.example:7403", "[::1]:7403", "10.0.0.1:65535"] {
            assert_eq!(check_address(good), Ok(()), "{good}");
        }
        for bad in ["", "a", "a:", ":1", "a:0", "a:65536", "::1:7403", "a:1,", "a b:1", &"x".repeat(300)] {
            assert!(check_address(bad).is_err(), "{bad:?}");
        }
    }
}
