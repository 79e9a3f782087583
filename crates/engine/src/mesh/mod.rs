//! A mesh: sites that find each other and exchange what their clients publish.
//!
//! A *site* is a broker, or a cluster, with a name and a key. Sites are connected by *links*. What a client publishes
//! to a live topic reaches the subscribers of that topic at every site.
//!
//! The modules here are pure, like the whole crate; `crates/mesh` has the sockets.

mod cache;
mod cache_lru;
mod directory;
mod listeners;
mod members;
mod site;
mod status;

pub use cache::{
    ADAPTIVE_LOOKUPS_MIN, ADAPTIVE_TTL_FACTOR_MAX, CACHE_ENTRIES_MAX, CACHE_ENTRY_BYTES, CACHE_STALE_MS_MAX,
    CACHE_TTL_MS, CacheSettings, DiscoveryPreset, Lookup, MIN_DISCOVERY_INTERVAL_MS, QUERY_TIMEOUT_MS, Sites,
    SubscriberCache,
};
pub use directory::{
    ADVERTISE_TTL_MS, ADVERTISE_TTL_MS_MAX, ADVERTISEMENTS_MAX, ADVERTISEMENTS_PER_SITE_MAX, Advertised, Announcement,
    AnnouncementKind, DIRECTORY_REPLICAS, Directory, INTEREST_TOPICS_PER_CALL_MAX, Interest, Owners, SiteHashes,
    WATCHERS_PER_TOPIC_MAX, WATCHES_MAX, WATCHES_PER_SITE_MAX, Watchers, owners,
};
pub use listeners::{
    ChangedListeners, GROUPS_PER_TOPIC_MAX, Groups, LISTENERS_MAX, LISTENERS_PER_SITE_MAX, ListenedTopics, Listeners,
    OwnGroups, SiteListener,
};
pub use members::{ADDRESS_BYTES_MAX, Member, Members, SITES_MAX, check_address};
pub use site::{MeshMode, SITE_NAME_BYTES_MAX, SiteKey, SiteName, SiteRole, copy_name};
pub use status::{
    CacheStats, CopyStatus, INVITATION_MINUTES, INVITATION_MINUTES_MAX, Invitation, LinkState, MeshStats, MeshStatus,
    MeshTopic, RouteStats, SiteStatus, check_minutes,
};
