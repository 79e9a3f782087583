//! Control frames on two links between the same sites, which arrive in another order than they were sent in.

use std::time::Duration;

use engine::TopicName;
use engine::mesh::Member;
use quinn::{Connection, RecvStream};
use tokio::sync::mpsc;

use super::*;
use crate::endpoints::Endpoints;
use crate::handshake::connect;
use crate::link::Control;
use crate::test_site::{PATIENCE, TestSite, until};

/// Pause after which a site has handled the frames that it can handle, unless the machine is busy.
const SOON: Duration = Duration::from_millis(100);

fn name(text: &str) -> SiteName {
    SiteName::parse(text).expect("a name")
}

/// Site `b`, whose links a test makes and uses by hand.
struct Peer {
    b: Arc<Running>,
    endpoints: Endpoints,
    /// Site that is tested.
    other: Arc<Running>,
    topic: TopicName,
    _sites: [TestSite; 2],
}

/// Link to the site that is tested.
struct HandLink {
    control: Control,
    connection: Connection,
}

impl Peer {
    /// Starts the site that is tested.
    async fn of(other: &str) -> Self {
        let other = TestSite::first(other).await;
        let site = TestSite::join("b", &other).await;
        let b = site.running();
        site.mesh.suspend();
        let tested = other.running();
        until("the link has ended", || tested.links.lock().is_empty()).await;
        let endpoints = Endpoints::bind(&b.identity, Some(([127, 0, 0, 1], 0).into())).expect("bound");
        let topic = TopicName::parse("news").expect("a name");
        Self { b, endpoints, other: tested, topic, _sites: [other, site] }
    }

    /// Dials the site that is tested, and waits until it has the link.
    async fn dial(&self) -> HandLink {
        let link = self.shake_hands().await;
        until("it has the link", || self.other.links.lock().get(&name("b")).is_some_and(|link| !link.is_dialed)).await;
        link
    }

    /// Dials the site that is tested, and waits until it has answered.
    async fn shake_hands(&self) -> HandLink {
        let address = self.other.address().expect("it listens");
        let connection = connect(&self.endpoints, &address, self.other.identity.key).await.expect("connected");
        let mut control = Control::open(&connection).await.expect("open");
        control.write(&self.b.hello()).await.expect("written");
        control.read(&connection).await.expect("answered");
        HandLink { control, connection }
    }

    /// Has the site that is tested dial this one.
    fn be_dialed(&self) -> tokio::task::JoinHandle<engine::Result<()>> {
        let address = self.endpoints.address().map(|address| address.to_string());
        let (other, member) = (self.other.clone(), Member { address, ..self.b.own_entry(1) });
        tokio::spawn(async move { other.dial(&member).await })
    }

    /// Accepts a link, up to the answer to its first frame.
    async fn accept(&self) -> HandLink {
        let connection = self.endpoints.accept().await.expect("dialed").await.expect("connected");
        let mut control = Control::accept(&connection).await.expect("open");
        control.read(&connection).await.expect("a first frame");
        HandLink { control, connection }
    }

    fn advertise(&self) -> Frame {
        Frame::Advertise { epoch: self.b.instance, topic: self.topic.clone(), ttl_ms: 60_000 }
    }

    fn withdraw(&self) -> Frame {
        Frame::Withdraw { epoch: self.b.instance, topic: self.topic.clone() }
    }

    fn look_up(&self, id: u64) -> Frame {
        Frame::LookUp { id, topic: self.topic.clone(), watch_ms: 0 }
    }
}

/// Returns the answers to lookups that arrive on a control stream.
fn answers(mut receive: RecvStream) -> mpsc::UnboundedReceiver<(u64, Vec<SiteName>)> {
    let (sender, answers) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(Some(frame)) = read_frame(&mut receive).await {
            if let Frame::Found { id, sites } = frame {
                sender.send((id, sites)).unwrap_or_default();
            }
        }
    });
    answers
}

/// Sends a withdrawal on the link that stays, and then the advertisement that came before it on the former one. Then
/// the site that is tested must not have the topic in its directory.
async fn withdraw_before_it_is_advertised(peer: &Peer, former: &mut HandLink, link: HandLink, answer: Option<Frame>) {
    let HandLink { mut control, connection: _connection } = link;
    control.write(&peer.withdraw()).await.expect("written");
    control.write(&peer.look_up(1)).await.expect("written");
    let mut answers = answers(control.receive);
    let first = tokio::time::timeout(SOON, answers.recv()).await;
    for frame in answer.into_iter().chain([peer.advertise()]) {
        former.control.write(&frame).await.expect("written");
    }
    former.control.send.finish().expect("open");
    if first.is_err() {
        assert_eq!(answers.recv().await, Some((1, Vec::new())));
    }
    tokio::time::sleep(SOON).await;
    let mut bytes = bytes::BytesMut::new();
    peer.look_up(2).put(&mut bytes);
    control.send.write_all(&bytes).await.expect("written");
    assert_eq!(answers.recv().await, Some((2, Vec::new())));
}

#[tokio::test]
async fn frames_on_a_link_are_handled_after_those_on_the_link_that_it_replaces() {
    let peer = Peer::of("a").await;
    let mut former = peer.dial().await;
    // The link from the smaller name stays.
    let dialed = peer.be_dialed();
    let mut link = peer.accept().await;
    link.control.write(&peer.b.hello()).await.expect("written");
    dialed.await.expect("no panic").expect("linked");
    assert!(peer.other.links.lock()[&name("b")].is_dialed);
    withdraw_before_it_is_advertised(&peer, &mut former, link, None).await;
}

#[tokio::test]
async fn the_control_stream_of_a_link_that_is_replaced_ends_and_one_of_a_site_is_drained() {
    let peer = Peer::of("a").await;
    let HandLink { mut control, connection } = peer.dial().await;
    let dialed = peer.be_dialed();
    let mut link = peer.accept().await;
    link.control.write(&peer.b.hello()).await.expect("written");
    dialed.await.expect("no panic").expect("linked");
    let ended = async {
        loop {
            match read_frame(&mut control.receive).await {
                Ok(Some(_)) => {}
                ended => return ended,
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, ended).await, Ok(Ok(None)));
    let draining = || peer.other.draining.lock().iter().map(|link| link.number).collect::<Vec<_>>();
    let former = draining();
    assert_eq!((former.len(), connection.close_reason()), (1, None));
    // Another one is replaced by the link that stays.
    let _third = peer.shake_hands().await;
    until("only the other one is drained", || draining().len() == 1 && draining() != former).await;
    until("the former one is closed", || connection.close_reason().is_some()).await;
    assert!(link.connection.close_reason().is_none());
}

/// The peer has used a connection from when it has answered, and this site does not know that before it has the answer.
#[tokio::test]
async fn frames_on_a_link_are_handled_after_those_on_one_that_this_site_is_dialing() {
    let peer = Peer::of("z").await;
    let dialed = peer.be_dialed();
    let mut former = peer.accept().await;
    let link = peer.dial().await;
    withdraw_before_it_is_advertised(&peer, &mut former, link, Some(peer.b.hello())).await;
    dialed.await.expect("no panic").expect("the other link stays");
    assert!(!peer.other.links.lock()[&name("b")].is_dialed);
}

#[tokio::test]
async fn a_link_does_not_wait_for_long_for_one_that_it_replaces_and_that_is_not_handled_then() {
    let peer = Peer::of("a").await;
    let mut former = peer.dial().await;
    let dialed = peer.be_dialed();
    let HandLink { mut control, connection: _connection } = peer.accept().await;
    control.write(&peer.b.hello()).await.expect("written");
    dialed.await.expect("no panic").expect("linked");
    control.write(&peer.withdraw()).await.expect("written");
    control.write(&peer.look_up(1)).await.expect("written");
    let mut answers = answers(control.receive);
    assert_eq!(answers.recv().await, Some((1, Vec::new())));
    // The former link may have ended.
    former.control.write(&peer.advertise()).await.unwrap_or_default();
    tokio::time::sleep(SOON).await;
    let mut bytes = bytes::BytesMut::new();
    peer.look_up(2).put(&mut bytes);
    control.send.write_all(&bytes).await.expect("written");
    assert_eq!(answers.recv().await, Some((2, Vec::new())));
}

/// Reads frames of a control stream up to one that a test looks for.
async fn read_until(control: &mut Control, mut is_last: impl FnMut(&Frame) -> bool) {
    let read = async {
        loop {
            match read_frame(&mut control.receive).await {
                Ok(Some(frame)) if is_last(&frame) => return,
                Ok(Some(_)) => {}
                ended => panic!("{ended:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("in time");
}

#[tokio::test]
async fn a_site_tells_all_topics_again_on_another_link() {
    let peer = Peer::of("a").await;
    peer.other.set_interest(&peer.topic, true, false);
    let (mut told, mut all) = (Vec::new(), None);
    for is_first in [true, false] {
        let mut link = peer.dial().await;
        let is_last = |frame: &Frame| match frame {
            Frame::Advertise { epoch, .. } => {
                told.push(*epoch);
                is_first
            }
            Frame::Advertised { epoch, topics } => {
                all = Some((*epoch, *topics));
                true
            }
            _ => false,
        };
        read_until(&mut link.control, is_last).await;
    }
    assert!(told.len() == 2 && told[0] < told[1], "{told:?}");
    assert_eq!(all, Some((told[1], 1)));
}

#[tokio::test]
async fn a_topic_that_is_not_among_all_that_a_site_tells_again_is_forgotten() {
    let peer = Peer::of("a").await;
    let HandLink { mut control, connection: _connection } = peer.dial().await;
    let epoch = peer.b.instance + 1;
    for frame in [
        peer.advertise(),
        peer.look_up(1),
        Frame::Advertised { epoch, topics: 1 },
        peer.look_up(2),
        Frame::Advertised { epoch, topics: 0 },
        peer.look_up(3),
    ] {
        control.write(&frame).await.expect("written");
    }
    let mut answers = answers(control.receive);
    for (id, sites) in [(1, vec![name("b")]), (2, vec![name("b")]), (3, vec![])] {
        let answer = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("in time");
        assert_eq!(answer, Some((id, sites)), "one was lost before the second answer");
    }
}
