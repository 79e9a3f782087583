//! Tenants: the boundary between them, and what a change of a tenant ends.

use std::sync::Arc;

use broker::{Broker, ConfiguredUser, Door, Identity, LoginSource, SecuritySettings, Settings};
use engine::ErrorKind;
use engine::ids::INTERNAL_TOPICS;
use engine::security::{Operation, Resource, ResourceKind, RoleName, TenantName, UserName};

use crate::durable::open_with;
use crate::support::{start, within};

const SOURCE: LoginSource = LoginSource { door: Door::Kafka, address: None };

fn name(name: &str) -> UserName {
    UserName::parse(name).expect("a name")
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).expect("a name")
}

/// Returns settings with a super user, `root`, and two others.
fn settings(is_authorizing: bool) -> Settings {
    let user = |user: &str| ConfiguredUser { name: name(user), password: "secret".into() };
    let users = ["root", "ann", "bob"].map(user).to_vec();
    let security =
        SecuritySettings { users, super_users: vec![name("root")], is_authorizing, ..SecuritySettings::default() };
    Settings { security, ..Settings::default() }
}

async fn log_in(broker: &Arc<Broker>, user: &str) -> Identity {
    let login = broker.security.log_in(name(user), "secret".into(), SOURCE);
    within("a login", login).await.expect("the password is right")
}

/// Returns the kinds and names of which a client may perform every operation, of those that it may perform any on.
fn allowed(broker: &Broker, identity: &Identity, names: &[&str]) -> Vec<(ResourceKind, String)> {
    let mut allowed = Vec::new();
    for kind in ResourceKind::ALL {
        for name in names {
            for resource in [Resource::new(*kind, *name), Resource::all(*kind, *name)] {
                let may = |operation: &Operation| broker.security.allows(identity, *operation, &resource);
                let is_allowed = Operation::ALL.iter().all(may);
                assert_eq!(is_allowed, Operation::ALL.iter().any(may), "{kind:?} {name}: some operations are not");
                if is_allowed {
                    allowed.push((*kind, (*name).to_owned()));
                }
            }
        }
    }
    allowed
}

/// The rule is checked for clients with all permissions: without access control, as a super user, and with the role
/// that may do everything.
#[tokio::test]
async fn no_permission_reaches_beyond_the_prefix_of_a_tenant() {
    let mine = ["acme.", "acme.orders", "acme.db0/key", "acme._offsets", "acme.globex.x"];
    let others =
        ["", "*", "a", "acme", "acmes.x", "globex.orders", "orders", "_project.acme.x", "db0/acme.x", "cluster"];
    let all: Vec<&str> = mine.into_iter().chain(others).chain(INTERNAL_TOPICS).collect();
    let mut wanted = Vec::new();
    for kind in ResourceKind::ALL.iter().filter(|kind| **kind != ResourceKind::Cluster) {
        // Each as one name, and as a prefix.
        wanted.extend(mine.iter().flat_map(|name| [(*kind, (*name).to_owned()), (*kind, (*name).to_owned())]));
    }
    for (is_authorizing, user) in [(false, "ann"), (true, "root"), (true, "ann")] {
        let broker = start(settings(is_authorizing));
        broker.security.assign_tenant(name(user), tenant("acme")).await.expect("assigned");
        let role = RoleName::parse("admin").expect("a name");
        broker.security.set_member(name("ann"), role, true).await.expect("a member");
        let identity = log_in(&broker, user).await;
        assert_eq!(identity.tenant(), Some(&tenant("acme")));
        assert!(!broker.security.is_unlimited(&identity));
        assert_eq!(allowed(&broker, &identity, &all), wanted, "{user}");
        for operation in Operation::ALL {
            assert!(!broker.security.allows(&identity, *operation, &Resource::CLUSTER), "{user} {operation:?}");
        }
        let refused = broker.security.authorize(&identity, Operation::Read, &Resource::topic("globex.orders"));
        let refused = refused.expect_err("of another tenant");
        assert_eq!(refused.kind, ErrorKind::Denied);
        assert!(refused.message.contains("names that begin with acme."), "{refused}");
        let root = log_in(&broker, "root").await;
        assert_eq!(broker.security.is_unlimited(&root), user != "root");
    }
}

#[tokio::test]
async fn within_a_tenant_entries_decide_as_for_other_clients() {
    let broker = start(settings(true));
    broker.security.assign_tenant(name("ann"), tenant("acme")).await.expect("assigned");
    let identity = log_in(&broker, "ann").await;
    assert!(allowed(&broker, &identity, &["acme.orders", "globex.orders"]).is_empty());
}

/// Requests that wait and subscriptions end by the same check as with a replaced password: the identity is not valid.
#[tokio::test]
async fn a_changed_tenant_ends_the_login() {
    let broker = start(settings(false));
    let security = &broker.security;
    let before = log_in(&broker, "ann").await;
    let bob = log_in(&broker, "bob").await;
    let generation = security.generation();
    security.assign_tenant(name("ann"), tenant("acme")).await.expect("assigned");
    assert!(security.generation() > generation);
    assert!(!security.is_valid(&before) && security.is_valid(&bob));
    assert!(!security.allows(&before, Operation::Read, &Resource::topic("orders")));
    assert!(!security.allows(&before, Operation::Read, &Resource::topic("acme.orders")));
    let within = log_in(&broker, "ann").await;
    security.assign_tenant(name("ann"), tenant("acme")).await.expect("it is that already");
    assert!(security.is_valid(&within));
    security.assign_tenant(name("ann"), tenant("globex")).await.expect("assigned");
    assert!(!security.is_valid(&within));
    let within = log_in(&broker, "ann").await;
    security.unassign_tenant(name("ann")).await.expect("unassigned");
    assert!(!security.is_valid(&within) && security.is_valid(&bob));
    assert_eq!(security.unassign_tenant(name("ann")).await.expect_err("none").kind, ErrorKind::NotFound);
    assert_eq!(log_in(&broker, "ann").await.tenant(), None);
    // A door that names a client without asking for its tenant.
    let unasked = Identity::new(name("ann"), [], "h");
    assert!(security.is_valid(&unasked));
    security.assign_tenant(name("ann"), tenant("acme")).await.expect("assigned");
    assert!(
        !security.is_valid(&unasked) && !security.allows(&unasked, Operation::Read, &Resource::topic("acme.orders"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open_with(dir.path(), settings(false));
    for (user, of) in [("ann", "acme"), ("bob", "project:shop"), ("ann", "globex"), ("eve", "acme")] {
        broker.security.assign_tenant(name(user), tenant(of)).await.expect("assigned");
    }
    broker.security.unassign_tenant(name("eve")).await.expect("unassigned");
    for reserved in ["ANONYMOUS", "ADMINISTRATOR"] {
        let refused = broker.security.assign_tenant(name(reserved), tenant("acme")).await;
        assert_eq!(refused.expect_err("reserved").kind, ErrorKind::Invalid);
    }
    drop(broker);
    let broker = open_with(dir.path(), settings(false));
    let tenants = broker.security.tenants().await.expect("restored");
    assert_eq!(tenants, [(name("ann"), tenant("globex")), (name("bob"), tenant("project:shop"))]);
    assert_eq!(log_in(&broker, "ann").await.tenant(), Some(&tenant("globex")));
}
