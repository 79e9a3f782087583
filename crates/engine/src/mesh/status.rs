//! State of a mesh, as a site reports it to operators, and invitations for new sites.

use std::fmt;

use zeroize::Zeroizing;

use super::site::{MeshMode, SiteKey, SiteName, SiteRole};
use crate::error::{Error, Result};
use crate::ids::TopicName;

/// Maximum minutes for which an invitation is valid: a week.
pub const INVITATION_MINUTES_MAX: u32 = 7 * 24 * 60;
/// Minutes for which an invitation is valid by default.
pub const INVITATION_MINUTES: u32 = 60;

/// Connection of a site with another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkState {
    /// No link, and no hub that has one.
    #[default]
    Down = 0,
    /// A link to the site itself.
    Direct = 1,
    /// A hub relays.
    Relayed = 2,
}

impl LinkState {
    pub const ALL: [Self; 3] = [Self::Down, Self::Direct, Self::Relayed];

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == code)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Direct => "direct",
            Self::Relayed => "relayed",
        }
    }
}

/// State of a mesh from the point of view of one site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshStatus {
    /// Site that reports this.
    pub site: SiteName,
    pub key: SiteKey,
    pub role: SiteRole,
    /// Address at which other sites reach this one; `None` if it only dials out.
    pub address: Option<String>,
    /// Time since this site has had no link to any other one, in ms; `None` if it has one, or no other site is known.
    pub isolated_ms: Option<u64>,
    /// All other sites, in the order of their names.
    pub sites: Vec<SiteStatus>,
    pub stats: MeshStats,
}

/// State of another site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteStatus {
    pub site: SiteName,
    pub key: SiteKey,
    pub role: SiteRole,
    /// Address at which other sites reach it; `None` if it only dials out.
    pub address: Option<String>,
    pub link: LinkState,
    /// Hub that relays, if one does.
    pub via: Option<SiteName>,
    /// Time since the link is in its state, in ms.
    pub since_ms: u64,
    /// Round-trip time of the link in microseconds, if there is one.
    pub round_trip_us: Option<u64>,
    /// Reason why the last connection failed, if there is no link.
    pub error: Option<String>,
    pub sent_records: u64,
    pub sent_bytes: u64,
    pub received_records: u64,
    pub received_bytes: u64,
    /// Records of this site that did not reach it.
    pub lost_records: u64,
}

/// State of a topic in the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshTopic {
    pub topic: TopicName,
    pub mode: MeshMode,
    /// `true` if this site has subscribers or queues of a live topic.
    pub is_wanted: bool,
    /// Sites to which this site sends what its clients publish.
    pub sites: Vec<SiteName>,
    pub sent_records: u64,
    pub received_records: u64,
    /// State of a copy. The topic does not exist until the first contact with its origin.
    pub copy: Option<CopyStatus>,
}

/// State of a copy of a topic of another site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// Site whose topic is copied.
    pub origin: SiteName,
    /// Records of the origin that are not copied, at the last contact; `None` if there was none yet.
    pub behind: Option<u64>,
    /// Records that the origin deleted before they were copied.
    pub lost_records: u64,
    /// Reason why nothing is copied now.
    pub error: Option<String>,
}

/// Statistics of discovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshStats {
    pub cache: CacheStats,
    pub routes: RouteStats,
    /// Lookups that this site has sent to the directory, or answered itself.
    pub lookups: u64,
    /// Topics and sites that this site has in its part of the directory.
    pub directory_entries: u64,
}

/// Statistics of the subscriber cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    pub stores: u64,
    /// Lookups that were not sent, because one of the same topic was recent.
    pub rate_limited: u64,
    pub table_size: u64,
}

/// Statistics of the direct routes, which are the links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteStats {
    /// Sends to a site with a link.
    pub hits: u64,
    /// Sends through a hub.
    pub misses: u64,
    /// Links that were established.
    pub stores: u64,
    /// Links.
    pub table_size: u64,
}

impl CacheStats {
    /// Returns the hits in percent of all lookups; `None` if there was none.
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.hits, self.misses)
    }
}

impl RouteStats {
    /// Returns the hits in percent of all lookups; `None` if there was none.
    pub fn hit_rate(&self) -> Option<f64> {
        hit_rate(self.hits, self.misses)
    }
}

fn hit_rate(hits: u64, misses: u64) -> Option<f64> {
    let all = hits + misses;
    (all > 0).then(|| 100.0 * hits as f64 / all as f64)
}

/// Invitation with which one site can join. `Debug` does not print it, and it is cleared from memory when it is
/// dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation(Zeroizing<String>);

impl Invitation {
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("...")
    }
}

/// Returns the error of an invitation that would be valid for another time than is allowed, if it is one.
pub fn check_minutes(minutes: u32) -> Result<()> {
    if (1..=INVITATION_MINUTES_MAX).contains(&minutes) {
        return Ok(());
    }
    Err(Error::invalid(format!("an invitation is valid for 1 to {INVITATION_MINUTES_MAX} minutes, not {minutes}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_is_valid_for_a_week_at_most_and_is_not_printed() {
        assert!(check_minutes(1).is_ok() && check_minutes(INVITATION_MINUTES_MAX).is_ok());
        assert!(check_minutes(0).is_err() && check_minutes(INVITATION_MINUTES_MAX + 1).is_err());
        assert_eq!(format!("{:?}", Invitation::new("secret".into())), "...");
    }

    #[test]
    fn the_hit_rate_is_a_percentage_of_all_lookups() {
        assert_eq!(CacheStats::default().hit_rate(), None);
        assert_eq!(CacheStats { hits: 3, misses: 1, ..CacheStats::default() }.hit_rate(), Some(75.0));
        assert_eq!(RouteStats { misses: 2, ..RouteStats::default() }.hit_rate(), Some(0.0));
    }
}
