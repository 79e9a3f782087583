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
use crate::test_site::{TestSite, until};

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
        let address = self.other.address().expect("it listens");
        let connection = connect(&self.endpoints, &address, self.other.identity.key).await.expect("connected");
        let mut control = Control::open(&connection).await.expect("open");
        control.write(&self.b.hello()).await.expect("written");
        control.read(&connection).await.expect("answered");
        until("it has the link", || self.other.links.lock().get(&name("b")).is_some_and(|link| !link.is_dialed)).await;
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
        Frame::Advertise { instance: self.b.instance, topic: self.topic.clone(), ttl_ms: 60_000 }
    }

    fn withdraw(&self) -> Frame {
        Frame::Withdraw { instance: self.b.instance, topic: self.topic.clone() }
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
