//! The mesh of sites on the wire: its state, new sites and invitations for them, removals, and topics.

use bytes::{Buf, BufMut, BytesMut};
use engine::mesh::{
    CacheStats, CopyStatus, Invitation, LinkState, MeshStats, MeshStatus, MeshTopic, RouteStats, SiteKey, SiteName,
    SiteRole, SiteStatus, check_minutes,
};
use engine::{Result, TopicName};

use crate::field::{Fields, get_code, get_option, put_list, put_option, put_str};
use crate::values::get_mesh_mode;

/// Action of a request about the mesh: the first byte of its body, and of that of its answer.
#[derive(Clone, Copy)]
#[repr(u8)]
enum MeshAction {
    Describe = 1,
    Init = 2,
    Join = 3,
    Invite = 4,
    Remove = 5,
    Leave = 6,
    Topics = 7,
}

impl MeshAction {
    const ALL: [Self; 7] =
        [Self::Describe, Self::Init, Self::Join, Self::Invite, Self::Remove, Self::Leave, Self::Topics];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|of| *of as u8 == code)
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        get_code(f, "action", Self::from_code)
    }
}

/// Request about the mesh of sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshRequest {
    /// Requests the state of the mesh.
    Describe,
    /// Makes the broker a site of a new mesh.
    Init {
        /// Name of the site.
        site: SiteName,
    },
    /// Makes the broker a site of the mesh that issued an invitation.
    Join {
        /// Name of the site.
        site: SiteName,
        /// Invitation, which is used up.
        invitation: Invitation,
    },
    /// Issues an invitation with which one site can join.
    Invite {
        /// Minutes for which it is valid.
        minutes: u32,
    },
    /// Removes another site.
    Remove {
        /// Name of the site.
        site: SiteName,
    },
    /// Leaves the mesh, and deletes the key of the site.
    Leave,
    /// Requests the topics of the site that are in the mesh.
    Topics,
}

/// Answer about the mesh of sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MeshResponse {
    /// Answers [`MeshRequest::Describe`].
    Described(MeshStatus),
    /// Answers [`MeshRequest::Init`].
    Initialized(MeshStatus),
    /// Answers [`MeshRequest::Join`].
    Joined(MeshStatus),
    /// Answers [`MeshRequest::Invite`].
    Invited(Invitation),
    /// Answers [`MeshRequest::Remove`].
    Removed,
    /// Answers [`MeshRequest::Leave`].
    Left,
    /// Answers [`MeshRequest::Topics`].
    Topics(Vec<MeshTopic>),
}

impl MeshRequest {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Describe => b.put_u8(MeshAction::Describe as u8),
            Self::Init { site } => {
                b.put_u8(MeshAction::Init as u8);
                put_site_name(b, site);
            }
            Self::Join { site, invitation } => {
                b.put_u8(MeshAction::Join as u8);
                put_site_name(b, site);
                put_str(b, invitation.reveal());
            }
            Self::Invite { minutes } => {
                b.put_u8(MeshAction::Invite as u8);
                b.put_u32(*minutes);
            }
            Self::Remove { site } => {
                b.put_u8(MeshAction::Remove as u8);
                put_site_name(b, site);
            }
            Self::Leave => b.put_u8(MeshAction::Leave as u8),
            Self::Topics => b.put_u8(MeshAction::Topics as u8),
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match MeshAction::get(f)? {
            MeshAction::Describe => Self::Describe,
            MeshAction::Init => Self::Init { site: get_site_name(f)? },
            MeshAction::Join => Self::Join { site: get_site_name(f)?, invitation: Invitation::new(f.str()?) },
            MeshAction::Invite => {
                let minutes = f.u32()?;
                check_minutes(minutes)?;
                Self::Invite { minutes }
            }
            MeshAction::Remove => Self::Remove { site: get_site_name(f)? },
            MeshAction::Leave => Self::Leave,
            MeshAction::Topics => Self::Topics,
        })
    }
}

impl MeshResponse {
    pub(crate) fn put(&self, b: &mut BytesMut) {
        match self {
            Self::Described(status) => {
                b.put_u8(MeshAction::Describe as u8);
                put_status(b, status);
            }
            Self::Initialized(status) => {
                b.put_u8(MeshAction::Init as u8);
                put_status(b, status);
            }
            Self::Joined(status) => {
                b.put_u8(MeshAction::Join as u8);
                put_status(b, status);
            }
            Self::Invited(invitation) => {
                b.put_u8(MeshAction::Invite as u8);
                put_str(b, invitation.reveal());
            }
            Self::Removed => b.put_u8(MeshAction::Remove as u8),
            Self::Left => b.put_u8(MeshAction::Leave as u8),
            Self::Topics(topics) => {
                b.put_u8(MeshAction::Topics as u8);
                put_list(b, topics, put_topic);
            }
        }
    }

    pub(crate) fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        Ok(match MeshAction::get(f)? {
            MeshAction::Describe => Self::Described(get_status(f)?),
            MeshAction::Init => Self::Initialized(get_status(f)?),
            MeshAction::Join => Self::Joined(get_status(f)?),
            MeshAction::Invite => Self::Invited(Invitation::new(f.str()?)),
            MeshAction::Remove => Self::Removed,
            MeshAction::Leave => Self::Left,
            MeshAction::Topics => Self::Topics(f.list(TOPIC_BYTES_MIN, get_topic)?),
        })
    }
}

const KEY_BYTES: usize = 32;
/// Minimum bytes of a site, of its name, and of a topic.
const SITE_BYTES_MIN: usize = 88;
const SITE_NAME_BYTES_MIN: usize = 2;
const TOPIC_BYTES_MIN: usize = 25;

fn put_site_name(b: &mut BytesMut, site: &SiteName) {
    put_str(b, site.as_str());
}

fn get_site_name<B: Buf>(f: &mut Fields<B>) -> Result<SiteName> {
    SiteName::parse(&f.str()?)
}

fn get_key<B: Buf>(f: &mut Fields<B>) -> Result<SiteKey> {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&f.bytes(KEY_BYTES)?);
    Ok(SiteKey::new(key))
}

fn put_number(b: &mut BytesMut, number: &u64) {
    b.put_u64(*number);
}

fn put_status(b: &mut BytesMut, status: &MeshStatus) {
    put_site_name(b, &status.site);
    b.put_slice(&status.key.to_bytes());
    b.put_u8(status.role as u8);
    put_option(b, status.address.as_ref(), |b, address| put_str(b, address));
    put_option(b, status.isolated_ms.as_ref(), put_number);
    put_list(b, &status.sites, put_site);
    let MeshStats { cache, routes, lookups, directory_entries } = &status.stats;
    let CacheStats { hits, misses, stores, rate_limited, table_size } = cache;
    [hits, misses, stores, rate_limited, table_size].into_iter().for_each(|number| put_number(b, number));
    let RouteStats { hits, misses, stores, table_size } = routes;
    let numbers = [hits, misses, stores, table_size, lookups, directory_entries];
    numbers.into_iter().for_each(|number| put_number(b, number));
}

fn get_status<B: Buf>(f: &mut Fields<B>) -> Result<MeshStatus> {
    Ok(MeshStatus {
        site: get_site_name(f)?,
        key: get_key(f)?,
        role: get_code(f, "role", SiteRole::from_code)?,
        address: get_option(f, Fields::str)?,
        isolated_ms: get_option(f, Fields::u64)?,
        sites: f.list(SITE_BYTES_MIN, get_site)?,
        stats: MeshStats {
            cache: CacheStats {
                hits: f.u64()?,
                misses: f.u64()?,
                stores: f.u64()?,
                rate_limited: f.u64()?,
                table_size: f.u64()?,
            },
            routes: RouteStats { hits: f.u64()?, misses: f.u64()?, stores: f.u64()?, table_size: f.u64()? },
            lookups: f.u64()?,
            directory_entries: f.u64()?,
        },
    })
}

fn put_site(b: &mut BytesMut, of: &SiteStatus) {
    put_site_name(b, &of.site);
    b.put_slice(&of.key.to_bytes());
    b.put_u8(of.role as u8);
    put_option(b, of.address.as_ref(), |b, address| put_str(b, address));
    b.put_u8(of.link as u8);
    put_option(b, of.via.as_ref(), put_site_name);
    b.put_u64(of.since_ms);
    put_option(b, of.round_trip_us.as_ref(), put_number);
    put_option(b, of.error.as_ref(), |b, error| put_str(b, error));
    let SiteStatus { sent_records, sent_bytes, received_records, received_bytes, lost_records, .. } = of;
    let numbers = [sent_records, sent_bytes, received_records, received_bytes, lost_records];
    numbers.into_iter().for_each(|number| put_number(b, number));
}

fn get_site<B: Buf>(f: &mut Fields<B>) -> Result<SiteStatus> {
    Ok(SiteStatus {
        site: get_site_name(f)?,
        key: get_key(f)?,
        role: get_code(f, "role", SiteRole::from_code)?,
        address: get_option(f, Fields::str)?,
        link: get_code(f, "state of a link", LinkState::from_code)?,
        via: get_option(f, get_site_name)?,
        since_ms: f.u64()?,
        round_trip_us: get_option(f, Fields::u64)?,
        error: get_option(f, Fields::str)?,
        sent_records: f.u64()?,
        sent_bytes: f.u64()?,
        received_records: f.u64()?,
        received_bytes: f.u64()?,
        lost_records: f.u64()?,
    })
}

fn put_topic(b: &mut BytesMut, of: &MeshTopic) {
    put_str(b, of.topic.as_str());
    b.put_u8(u8::from(of.is_wanted));
    put_list(b, &of.sites, put_site_name);
    b.put_u64(of.sent_records);
    b.put_u64(of.received_records);
    b.put_u8(of.mode as u8);
    put_option(b, of.copy.as_ref(), put_copy);
}

fn get_topic<B: Buf>(f: &mut Fields<B>) -> Result<MeshTopic> {
    Ok(MeshTopic {
        topic: TopicName::parse(&f.str()?)?,
        is_wanted: f.bool()?,
        sites: f.list(SITE_NAME_BYTES_MIN, get_site_name)?,
        sent_records: f.u64()?,
        received_records: f.u64()?,
        mode: get_mesh_mode(f)?,
        copy: get_option(f, get_copy)?,
    })
}

fn put_copy(b: &mut BytesMut, copy: &CopyStatus) {
    put_site_name(b, &copy.origin);
    put_option(b, copy.behind.as_ref(), put_number);
    b.put_u64(copy.lost_records);
    put_option(b, copy.error.as_ref(), |b, error| put_str(b, error));
}

fn get_copy<B: Buf>(f: &mut Fields<B>) -> Result<CopyStatus> {
    Ok(CopyStatus {
        origin: get_site_name(f)?,
        behind: get_option(f, Fields::u64)?,
        lost_records: f.u64()?,
        error: get_option(f, Fields::str)?,
    })
}
