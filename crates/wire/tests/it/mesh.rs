//! Test vectors of the mesh of sites.

use engine::TopicName;
use engine::mesh::{
    CacheStats, CopyStatus, Invitation, LinkState, MeshMode, MeshStats, MeshStatus, MeshTopic, RouteStats, SiteKey,
    SiteName, SiteRole, SiteStatus,
};
use wire::{MeshRequest, MeshResponse};

fn site(name: &str) -> SiteName {
    SiteName::parse(name).expect("a name")
}

fn invitation() -> Invitation {
    Invitation::new("thalweg-mesh-...".into())
}

pub fn requests() -> Vec<(&'static str, MeshRequest)> {
    vec![
        ("mesh_describe", MeshRequest::Describe),
        ("mesh_init", MeshRequest::Init { site: site("berlin") }),
        ("mesh_join", MeshRequest::Join { site: site("plant-7"), invitation: invitation() }),
        ("mesh_invite", MeshRequest::Invite { minutes: 60 }),
        ("mesh_remove", MeshRequest::Remove { site: site("oslo") }),
        ("mesh_leave", MeshRequest::Leave),
        ("mesh_topics", MeshRequest::Topics),
    ]
}

fn status() -> MeshStatus {
    let direct = SiteStatus {
        site: site("oslo"),
        key: SiteKey::new([2; 32]),
        role: SiteRole::Hub,
        address: Some("oslo.example:7403".into()),
        link: LinkState::Direct,
        via: None,
        since_ms: 60_000,
        round_trip_us: Some(21_500),
        error: None,
        sent_records: 1000,
        sent_bytes: 1 << 20,
        received_records: 900,
        received_bytes: 1 << 19,
        lost_records: 3,
    };
    let relayed = SiteStatus {
        site: site("plant-7"),
        key: SiteKey::new([3; 32]),
        role: SiteRole::Leaf,
        address: None,
        link: LinkState::Relayed,
        via: Some(site("oslo")),
        round_trip_us: None,
        lost_records: 0,
        ..direct.clone()
    };
    let down = SiteStatus {
        site: site("rome"),
        key: SiteKey::new([4; 32]),
        link: LinkState::Down,
        round_trip_us: None,
        error: Some("connection refused".into()),
        ..direct.clone()
    };
    MeshStatus {
        site: site("berlin"),
        key: SiteKey::new([1; 32]),
        role: SiteRole::Hub,
        address: Some("berlin.example:7403".into()),
        isolated_ms: None,
        sites: vec![direct, relayed, down],
        stats: MeshStats {
            cache: CacheStats { hits: 30, misses: 10, stores: 9, rate_limited: 2, table_size: 8 },
            routes: RouteStats { hits: 7, misses: 6, stores: 5, table_size: 4 },
            lookups: 12,
            directory_entries: 11,
        },
    }
}

/// Returns topics of all modes: two live ones, a mirrored one, and copies of it with and without a contact.
fn topics() -> Vec<MeshTopic> {
    let topic = |name: &str, mode| MeshTopic {
        topic: TopicName::parse(name).expect("a name"),
        mode,
        is_wanted: false,
        sites: Vec::new(),
        sent_records: 1 << 40,
        received_records: 5,
        copy: None,
    };
    let copy = |origin: &str, status: CopyStatus| {
        let status = CopyStatus { origin: site(origin), ..status };
        MeshTopic { sent_records: 0, copy: Some(status), ..topic(&format!("{origin}.audit"), MeshMode::Copy) }
    };
    let copied = CopyStatus { origin: site("oslo"), behind: Some(1 << 33), lost_records: 3, error: None };
    let unreached = CopyStatus { behind: None, error: Some("no link".into()), ..copied.clone() };
    vec![
        MeshTopic { is_wanted: true, sites: vec![site("oslo"), site("plant-7")], ..topic("orders", MeshMode::Live) },
        topic("trades.eu", MeshMode::Live),
        topic("audit", MeshMode::Mirror),
        topic("rates", MeshMode::Source),
        copy("oslo", copied),
        copy("plant-7", unreached),
    ]
}

pub fn responses() -> Vec<(&'static str, MeshResponse)> {
    let alone = MeshStatus {
        role: SiteRole::Leaf,
        address: None,
        isolated_ms: Some(5000),
        sites: Vec::new(),
        stats: MeshStats::default(),
        ..status()
    };
    vec![
        ("mesh_described", MeshResponse::Described(status())),
        ("mesh_described_isolated", MeshResponse::Described(alone.clone())),
        ("mesh_initialized", MeshResponse::Initialized(alone.clone())),
        ("mesh_joined", MeshResponse::Joined(alone)),
        ("mesh_invited", MeshResponse::Invited(invitation())),
        ("mesh_removed", MeshResponse::Removed),
        ("mesh_left", MeshResponse::Left),
        ("mesh_topics", MeshResponse::Topics(topics())),
    ]
}
