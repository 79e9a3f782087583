//! Numbers of records that arrive, and streams that are relayed.

use engine::mesh::{Groups, SiteName};
use engine::{BatchBuilder, TopicName};

use super::*;
use crate::test_site::{TestSite, until};

#[test]
fn records_that_were_skipped_are_lost_and_those_that_come_again_are_not_published() {
    let mut position = Position::default();
    let mut arrive = |run, number, count| position.arrive((run, true), number, count);
    assert_eq!(arrive(7, 100, 3), Step::Publish { lost: 0 }, "the first one since a restart of this site");
    assert_eq!(arrive(7, 103, 1), Step::Publish { lost: 0 });
    assert_eq!(arrive(7, 103, 1), Step::Skip, "again, on another stream");
    assert_eq!(arrive(7, 110, 2), Step::Publish { lost: 6 });
    assert_eq!(arrive(8, 0, 1), Step::Publish { lost: 0 }, "the other site has restarted");
    assert_eq!(arrive(8, 1, 1), Step::Publish { lost: 0 });
    assert_eq!(arrive(8, u64::MAX, 2), Step::Publish { lost: u64::MAX - 2 }, "a site that lies");
    assert_eq!(arrive(8, 2, 1), Step::Skip);
}

#[test]
fn the_first_records_of_a_run_are_lost_if_this_site_has_not_confirmed_it() {
    let mut position = Position::default();
    assert_eq!(position.arrive((7, false), 3, 2), Step::Publish { lost: 3 });
    assert_eq!(position.arrive((7, false), 5, 1), Step::Publish { lost: 0 });
    assert_eq!(position.arrive((8, false), 0, 1), Step::Publish { lost: 0 });
    assert_eq!(position.arrive((9, true), 3, 1), Step::Publish { lost: 0 });
}

/// Returns a batch of one record with its frame.
fn batch(number: u64) -> BytesMut {
    let mut builder = BatchBuilder::new();
    builder.push(1, None, Some(b"a value"), &[]).expect("a small record");
    let batch = builder.finish().expect("a record").into_bytes();
    let mut bytes = BytesMut::new();
    BatchHead { length: batch.len(), number, partition: 0 }.put(&mut bytes);
    bytes.extend_from_slice(&batch);
    bytes
}

/// Two sites that dial each other have two links for some time.
#[tokio::test]
async fn records_that_are_still_under_way_on_a_link_that_is_replaced_are_not_lost() {
    let name = |text: &str| SiteName::parse(text).expect("a name");
    let site = TestSite::first("a").await;
    let (to, from) = (site.running(), TestSite::join("b", &site).await);
    site.create("news").await;
    let traffic = to.traffic_of(&name("b"));
    let until_received = async |count| {
        until(&format!("{count} records"), || traffic.received_records.load(Ordering::Relaxed) == count).await;
    };
    let link = from.running().links.lock()[&name("a")].connection.clone();
    let mut stream = link.open_uni().await.expect("open");
    let topic = TopicName::parse("news").expect("a name");
    let (is_confirmed, groups) = (false, Groups::All);
    let head = Head { from: name("b"), run: 1, to: name("a"), topic, origin: None, is_confirmed, groups };
    let mut bytes = BytesMut::new();
    head.put(&mut bytes);
    bytes.extend_from_slice(&batch(0));
    let mut cut = batch(1);
    bytes.extend_from_slice(&cut.split_to(20));
    stream.write_all(&bytes).await.expect("written");
    until_received(1).await;
    let former = to.links.lock()[&name("b")].clone();
    let member = to.members.lock().get(&name("b")).cloned().expect("a member");
    to.dial(&member).await.expect("linked");
    assert!(former.is_replaced());
    // The network is slow.
    tokio::time::sleep(Duration::from_secs(1)).await;
    stream.write_all(&cut).await.expect("written");
    until_received(2).await;
    assert_eq!(traffic.lost_records.load(Ordering::Relaxed), 0);
    until("the former link has ended", || !former.is_open() && to.draining.lock().is_empty()).await;
    assert!(to.links.lock()[&name("b")].is_open());
}

/// Two sites that dial each other have two links for some time, and a stream that is relayed has no end.
#[tokio::test]
async fn a_stream_is_relayed_on_the_link_that_replaces_another_one() {
    let name = |text: &str| SiteName::parse(text).expect("a name");
    let hub = TestSite::first("hub").await;
    let (from, to) = (TestSite::join("a", &hub).await, TestSite::join("z", &hub).await);
    to.create("news").await;
    let (hub, to) = (hub.running(), to.running());
    let traffic = to.traffic_of(&name("a"));
    let until_received = async |count| {
        let has_come = || traffic.received_records.load(Ordering::Relaxed) == count;
        until(&format!("{count} records"), has_come).await;
    };
    let link = from.running().links.lock()[&name("hub")].connection.clone();
    let mut stream = link.open_uni().await.expect("open");
    let topic = TopicName::parse("news").expect("a name");
    let (is_confirmed, groups) = (false, Groups::All);
    let head = Head { from: name("a"), run: 1, to: name("z"), topic, origin: None, is_confirmed, groups };
    let mut bytes = BytesMut::new();
    head.put(&mut bytes);
    bytes.extend_from_slice(&batch(0));
    let mut cut = batch(1);
    bytes.extend_from_slice(&cut.split_to(20));
    stream.write_all(&bytes).await.expect("written");
    until_received(1).await;
    // The link from the smaller name stays.
    let former = hub.links.lock()[&name("z")].clone();
    let member = hub.members.lock().get(&name("z")).cloned().expect("a member");
    hub.dial(&member).await.expect("linked");
    assert!(former.is_replaced());
    stream.write_all(&cut).await.expect("written");
    stream.write_all(&batch(2)).await.expect("written");
    until_received(3).await;
    until("the former link has ended", || !former.is_open()).await;
    stream.write_all(&batch(3)).await.expect("written");
    until_received(4).await;
    assert_eq!(traffic.lost_records.load(Ordering::Relaxed), 0);
}

#[test]
fn batches_are_told_apart_however_their_bytes_arrive() {
    let bytes = [batch(0), batch(1)].concat();
    let end = bytes.len() / 2;
    for size in 1..=bytes.len() {
        let mut place = Place::default();
        let mut passed = 0;
        for piece in bytes.chunks(size) {
            let rest = place.pass_batch(piece);
            assert!(rest == piece.len() || [0, end].contains(&(passed + rest)), "{size}");
            place.pass_all(&piece[rest..]);
            passed += piece.len();
            assert_eq!(place.is_between_batches(), passed == end || passed == bytes.len(), "{size}");
        }
    }
}
