//! Places of links among those to the same site.

use engine::TopicName;
use engine::mesh::SiteName;

use super::*;
use crate::test_site::TestSite;

/// The frames of a link are read by another task, which may run before anything that follows.
#[tokio::test]
async fn what_a_former_run_of_a_site_has_advertised_is_forgotten_before_its_next_link_is_read() {
    let first = TestSite::first("a").await;
    let _second = TestSite::join("b", &first).await;
    let (a, b) = (first.running(), SiteName::parse("b").expect("a name"));
    let former = a.links.lock()[&b].clone();
    let topic = TopicName::parse("news").expect("a name");
    a.on_advertise(&b, former.instance, &topic, 60_000);
    assert_eq!(a.stats().directory_entries, 1);
    let send = former.connection.open_uni().await.expect("open");
    let peer = (b.clone(), SiteRole::Hub, former.instance + 1);
    let (link, _write) = Link::new(a.next_link(), peer, former.is_dialed, former.connection.clone(), send);
    let placed = a.place(&Arc::new(link)).expect("of a member");
    assert!(placed.is_restarted && placed.kept.is_none());
    assert_eq!(a.stats().directory_entries, 0);
}
