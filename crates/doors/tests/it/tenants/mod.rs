//! Two tenants at one door, whose clients use the same names and never see each other's.

mod kafka;
mod redis;

use std::net::SocketAddr;
use std::sync::Arc;

use broker::{Broker, ConfiguredUser, SecuritySettings};
use doors::{Door, Opening};
use engine::security::{TenantName, UserName};
use net::tls::{Identity, IdentitySource, Tls};
use net::{ConnectionLimits, Connections, Shutdown, Sockets, Workers};

/// Users, each with the same text as its password: one without a tenant, three of a tenant, and one of another.
const USERS: [(&str, Option<&str>); 5] =
    [("root", None), ("ann", Some("acme")), ("amy", Some("acme")), (WITHOUT, Some("acme")), ("bob", Some("globex"))];
/// User without permissions.
const WITHOUT: &str = "eve";

struct Server {
    address: SocketAddr,
    broker: Arc<Broker>,
    _workers: Arc<Workers>,
    _shutdown: Shutdown,
}

/// Opens a door at a broker whose users, but one, have all permissions within their tenants.
async fn start(door: impl Door) -> Server {
    let workers = Arc::new(Workers::start(1).expect("a thread"));
    let name = |name: &str| UserName::parse(name).expect("a name");
    let users = USERS.map(|(user, _)| ConfiguredUser { name: name(user), password: user.into() });
    let security = SecuritySettings {
        super_users: users.iter().map(|user| user.name.clone()).filter(|user| user.as_str() != WITHOUT).collect(),
        users: users.to_vec(),
        is_authorizing: true,
        ..SecuritySettings::default()
    };
    let settings = broker::Settings { security, ..broker::Settings::default() };
    let broker = Broker::start(settings, &workers.handles()).expect("started");
    for (user, tenant) in USERS {
        if let Some(tenant) = tenant {
            let tenant = TenantName::parse(tenant).expect("a name");
            broker.security.assign_tenant(name(user), tenant).await.expect("assigned");
        }
    }
    let identity = Identity::self_signed(vec!["localhost".to_owned()]).expect("an identity");
    let tls = Arc::new(Tls::new(IdentitySource::Fixed(identity).into()).expect("TLS"));
    let connections = Connections::new(ConnectionLimits::up_to(100));
    let shutdown = Shutdown::default();
    let sockets = Sockets::bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let opening = Opening {
        broker: broker.clone(),
        workers: &workers,
        sockets: &sockets,
        connections,
        shutdown: &shutdown,
        tls: &tls,
        gate: None,
    };
    let opened = Box::new(door).open(opening).await;
    Server { address: opened.expect("open").address, broker, _workers: workers, _shutdown: shutdown }
}
