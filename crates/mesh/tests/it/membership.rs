//! Sites that join, leave, are removed, and come back.

use broker::Mesh;
use engine::ErrorKind;
use engine::mesh::{Invitation, LinkState};

use crate::support::{TestSite, dials_out, name, reachable, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invitation_admits_one_site_and_all_sites_learn_of_it() {
    let a = TestSite::first("a", reachable()).await;
    assert_eq!(a.status().isolated_ms, None, "there is no other site");
    let invitation = a.mesh.invite(5).await.expect("done");
    let b = TestSite::start("b", reachable()).await;
    b.mesh.join(name("b"), &invitation).await.expect("done");
    let c = TestSite::start("c", reachable()).await;
    let again = c.mesh.join(name("c"), &invitation).await.expect_err("it was used");
    assert_eq!(again.kind, ErrorKind::Denied);
    assert!(again.message.contains("thalweg mesh invite"), "{}", again.message);
    assert_eq!(c.mesh.status().map_err(|error| error.kind), Err(ErrorKind::NotFound), "it is in no mesh");

    // An invitation of any site will do.
    c.enter(&b).await.expect("done");
    for (from, to) in [(&a, &b), (&b, &a), (&a, &c), (&c, &a), (&b, &c), (&c, &b)] {
        from.until_linked(to, LinkState::Direct).await;
    }
    let round_trips: Vec<_> = a.status().sites.iter().map(|site| site.round_trip_us).collect();
    assert!(round_trips.iter().all(Option::is_some), "{round_trips:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_unique_and_bad_invitations_are_refused() {
    let a = TestSite::first("a", reachable()).await;
    let other = TestSite::start("a", reachable()).await;
    let taken = other.enter(&a).await.expect_err("there is a site a");
    assert!(taken.message.contains("choose another name"), "{}", taken.message);
    let kind = |text: &str| {
        let invitation = Invitation::new(text.to_owned());
        let mesh = other.mesh.clone();
        async move { mesh.join(name("b"), &invitation).await.expect_err("it is not one").kind }
    };
    assert_eq!(kind("thalweg-mesh-AAAA").await, ErrorKind::Invalid);
    assert_eq!(kind("thalweg-join-AAAA").await, ErrorKind::Invalid);
    let twice = a.mesh.init(name("z")).await.expect_err("it is in a mesh");
    assert_eq!(twice.kind, ErrorKind::AlreadyExists);
    let leaf = TestSite::join("leaf", dials_out(), &a).await;
    let unreachable = leaf.mesh.invite(5).await.expect_err("no site can reach it");
    assert!(unreachable.message.contains("mesh_advertise"), "{}", unreachable.message);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_site_is_disconnected_by_all_and_its_key_is_refused() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", reachable(), &a).await;
    b.until_linked(&c, LinkState::Direct).await;
    let unknown = a.mesh.remove(&name("nobody")).await.expect_err("there is no such site");
    assert!(unknown.message.contains("a, b, c"), "{}", unknown.message);
    a.mesh.remove(&name("c")).await.expect("done");
    for site in [&a, &b] {
        until("it has forgotten c", || site.link_to(&c).is_none()).await;
    }
    until("c is isolated", || c.status().isolated_ms.is_some()).await;
    let down = |site: &TestSite| c.link_to(site) == Some(LinkState::Down);
    until("c has no link", || down(&a) && down(&b)).await;
    // With another key it may come back, with its name.
    c.mesh.leave().await.expect("done");
    c.enter(&b).await.expect("done");
    a.until_linked(&c, LinkState::Direct).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_leaves_is_forgotten_and_one_that_restarts_is_linked_again() {
    let a = TestSite::first("a", reachable()).await;
    let b = TestSite::join("b", reachable(), &a).await;
    let c = TestSite::join("c", dials_out(), &a).await;
    a.until_linked(&c, LinkState::Direct).await;
    c.mesh.leave().await.expect("done");
    until("a has forgotten c", || a.link_to(&c).is_none()).await;

    // Its links end, and it resumes with the same key.
    b.mesh.suspend();
    until("a has lost b", || a.link_to(&b) == Some(LinkState::Down)).await;
    let status = a.status();
    assert!(status.isolated_ms.is_some() && status.sites[0].error.is_some(), "{status:?}");
    b.mesh.resume().await;
    a.until_linked(&b, LinkState::Direct).await;
    assert_eq!(a.status().isolated_ms, None);
}
