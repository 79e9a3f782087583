//! How a link is made: dialing, accepting, joining, and the checks of both sides.

use std::fmt::{self, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::mesh::{Member, SiteKey, SiteRole};
use engine::{Error, ErrorKind, Result};
use tokio::task::JoinSet;

use crate::control::{HANDOVER, Turn};
use crate::endpoints::{Endpoints, admit};
use crate::frame::{Frame, VERSION};
use crate::identity::key_of_peer;
use crate::invitation::hash_of;
use crate::link::{Control, Link, closed, code, within};
use crate::running::{DIAL_PATIENCE, ENTRIES_PER_FRAME, HANDSHAKES_UNPROVED_MAX, PathState, Running};
use crate::store;

/// Time without bytes of streams after which a link that another one replaces ends.
const DRAINED_AFTER: Duration = Duration::from_secs(5);
/// Maximum links of all sites that another one replaces and that have not ended. Each site has at most one.
const DRAINING_MAX: usize = 128;

/// Place of a new link among those to its site.
struct Placed {
    /// Link that stays instead of the new one.
    kept: Option<Arc<Link>>,
    /// `true` if the site has restarted since it was last linked.
    is_restarted: bool,
}

impl Running {
    /// Accepts connections of sites that dial.
    pub(crate) async fn accept(self: Arc<Self>) {
        while let Some(incoming) = self.endpoints.accept().await {
            let Some(place) = self.handshakes.take(incoming.remote_address().ip()) else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                incoming.refuse();
                continue;
            };
            let is_busy = self.handshakes.taken() > HANDSHAKES_UNPROVED_MAX;
            if is_busy && !incoming.remote_address_validated() {
                // It dials again, with what this answer contains. An answer that cannot be sent has no effect.
                if let Err(error) = incoming.retry() {
                    tracing::debug!(%error, "an address is not verified");
                }
                continue;
            }
            let running = self.clone();
            self.spawn(async move {
                let _place = place;
                let peer = incoming.remote_address();
                if let Err(error) = running.admit(incoming).await {
                    tracing::debug!(%peer, %error, "a link was not established");
                }
            });
        }
    }

    /// Answers a site that dials: establishes a link with a member, and admits one with an invitation.
    async fn admit(self: &Arc<Self>, incoming: quinn::Incoming) -> Result<()> {
        let connection = within(incoming.into_future()).await?.map_err(closed)?;
        let admitted = self.admit_on(&connection).await;
        if let Err(error) = &admitted
            && connection.close_reason().is_none()
        {
            let code = if error.kind == ErrorKind::Malformed { code::PROTOCOL } else { code::REFUSED };
            connection.close(code.into(), error.message.as_bytes());
        }
        admitted
    }

    async fn admit_on(self: &Arc<Self>, connection: &quinn::Connection) -> Result<()> {
        let key = key_of_peer(connection).ok_or_else(|| Error::new(ErrorKind::Denied, "the site has no key"))?;
        // The peer says who it is within one time limit, so that a stranger does not keep its place for longer.
        let (mut control, first) = within(async {
            let mut control = Control::accept(connection).await?;
            let first = control.read(connection).await?;
            Ok::<_, Error>((control, first))
        })
        .await??;
        let (version, instance, member) = match first {
            Frame::Hello { version, instance, member } => {
                self.check_member(&member, key)?;
                (version, instance, member)
            }
            Frame::Join { version, secret, instance, member } => {
                check_version(version)?;
                let _one_at_a_time = self.joining.lock().await;
                let broker = self.broker()?;
                let now_ms = broker.now_ms();
                if member.key != key {
                    return Err(Error::new(ErrorKind::Denied, "the site has sent another key than its own"));
                }
                let member = self.members.lock().admit(member, now_ms)?;
                store::take_invitation(&broker, &hash_of(&secret), now_ms / 1000).await?;
                store::put_member(&broker, &member).await?;
                tracing::info!(site = %member.site, "a site has joined the mesh");
                // It has dialed: this connection becomes the link.
                self.take_turns_with(&member.site, DIAL_PATIENCE);
                self.learn(vec![member.clone()], Some(&member.site));
                (version, instance, member)
            }
            other => return Err(unexpected(&other)),
        };
        check_version(version)?;
        control.write(&self.hello()).await?;
        self.establish((instance, member), false, connection.clone(), control, None)
    }

    /// Returns the first frame of this site on a link.
    pub(crate) fn hello(&self) -> Frame {
        let version = self.members.lock().get(self.site()).map_or(0, |own| own.version);
        Frame::Hello { version: VERSION, instance: self.instance, member: self.own_entry(version) }
    }

    /// Checks that a peer is the member that it says it is.
    fn check_member(&self, member: &Member, key: SiteKey) -> Result<()> {
        let denied = |text: String| Err(Error::new(ErrorKind::Denied, text));
        if member.key != key {
            return denied("the site has sent another key than its own".to_owned());
        }
        let members = self.members.lock();
        match members.get(&member.site) {
            Some(known) if known.key == key => Ok(()),
            Some(known) => denied(format!("the site {} has another key in this mesh", known.site)),
            None if members.is_removed(key) => {
                denied("this site was removed from the mesh: run `thalweg mesh leave` there, and join again".to_owned())
            }
            None => denied(format!("{} is not a site of this mesh: join with an invitation", member.site)),
        }
    }

    /// Dials a site, and establishes a link.
    pub(crate) async fn dial(self: &Arc<Self>, member: &Member) -> Result<()> {
        // Of the nodes of a cluster only the one that leads answers.
        let mut dialed = JoinSet::new();
        for address in member.address.iter().flat_map(|addresses| addresses.split(',')) {
            let (running, address, member) = (self.clone(), address.to_owned(), member.clone());
            dialed.spawn(async move {
                let linked = running.dial_at(&address, &member).await;
                linked.map_err(|error| error.map_message(|why| format!("{address}: {why}")))
            });
        }
        let mut last = Error::new(ErrorKind::Disconnected, "it has no address");
        while let Some(linked) = dialed.join_next().await {
            match linked {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = error,
                Err(error) => last = Error::new(ErrorKind::Internal, error.to_string()),
            }
        }
        Err(last)
    }

    async fn dial_at(self: &Arc<Self>, address: &str, member: &Member) -> Result<()> {
        let connection = connect(&self.endpoints, address, member.key).await?;
        let mut control = Control::open(&connection).await?;
        // The peer may send frames on this connection first, and then on one that it has dialed, which stays.
        let mut turn = (*self.site() > member.site).then(|| self.try_turn(&member.site)).flatten();
        control.write(&self.hello()).await?;
        let answer = {
            let mut answer = pin!(control.read(&connection));
            match tokio::time::timeout(HANDOVER, &mut answer).await {
                Ok(answer) => answer?,
                Err(_) => {
                    turn = None;
                    answer.await?
                }
            }
        };
        let (version, instance, answered) = match answer {
            Frame::Hello { version, instance, member } => (version, instance, member),
            other => return Err(unexpected(&other)),
        };
        check_version(version)?;
        self.check_member(&answered, member.key)?;
        self.establish((instance, answered), true, connection, control, turn)
    }

    /// Begins to use a connection whose handshake is complete, and which may have the turn of the links to its site.
    pub(crate) fn establish(
        self: &Arc<Self>,
        (instance, member): (u64, Member),
        is_dialed: bool,
        connection: quinn::Connection,
        control: Control,
        turn: Option<Turn>,
    ) -> Result<()> {
        let peer = (member.site.clone(), member.role, instance);
        let (link, write) = Link::new(self.next_link(), peer, is_dialed, connection.clone(), control.send);
        let link = Arc::new(link);
        let Placed { kept, is_restarted } = self.place(&link)?;
        admit(&connection);
        self.spawn(write);
        self.spawn(self.clone().receive_streams(link.clone()));
        if kept.is_none() || turn.is_some() {
            // Without a turn, the frames of a link that is not kept would come after those of the one that is.
            self.spawn(self.clone().read_control(link.clone(), control.receive, turn));
        }
        if let Some(other) = kept {
            // The other site may have begun to use it.
            self.end_replaced(link, &other);
            return Ok(());
        }
        {
            let now = Instant::now();
            let mut paths = self.paths.lock();
            let path = paths.entry(link.site.clone()).or_insert_with(|| PathState::new(now));
            path.takes_turns = true;
            path.since = if is_restarted { now } else { path.since };
        }
        self.routes.links.fetch_add(1, Ordering::Relaxed);
        tracing::info!(site = %link.site, peer = %connection.remote_address(), "linked with a site");
        let entries: Vec<Member> = self.members.lock().entries().cloned().collect();
        for some in entries.chunks(ENTRIES_PER_FRAME) {
            link.send(&Frame::Sites(some.to_vec()));
        }
        if self.settings.role == SiteRole::Hub {
            link.send(&Frame::Linked(self.links.lock().keys().cloned().collect()));
        }
        self.learn(vec![member], Some(&link.site));
        self.changed.notify_one();
        Ok(())
    }

    /// Decides between a link that is not read yet and another one to the site, and forgets what the former run of the
    /// site has announced: what is read from this link on is of its new run.
    fn place(self: &Arc<Self>, link: &Arc<Link>) -> Result<Placed> {
        let kept = {
            let mut links = self.links.lock();
            if links.get(&link.site).is_some_and(|other| other.is_open() && other.instance > link.instance) {
                // A node that led a cluster before, and does not know yet that another one does.
                return Err(Error::new(ErrorKind::Denied, "another node of this site has been linked since"));
            }
            let double = links.get(&link.site).filter(|other| other.is_double(link)).cloned();
            if let Some(other) = double.filter(|_| !self.prefers(link)) {
                Some(other)
            } else {
                *self.isolated_since.lock() = None;
                if let Some(other) = links.insert(link.site.clone(), link.clone()) {
                    self.end_replaced(other, link);
                }
                None
            }
        };
        // It may have been removed during the handshake. A removal from now on finds the link.
        let key = key_of_peer(&link.connection);
        let is_member = |key| self.members.lock().of_key(key).is_some_and(|known| known.site == link.site);
        if !key.is_some_and(is_member) {
            let text = "this site was removed from the mesh";
            link.connection.close(code::REFUSED.into(), text.as_bytes());
            self.lose_link(link, Some(text.to_owned()));
            return Err(Error::new(ErrorKind::Denied, text));
        }
        let before = self.runs.lock().insert(link.site.clone(), link.instance);
        let is_restarted = before.is_some_and(|before| before != link.instance);
        if is_restarted {
            self.forget_interest_of(&link.site);
        }
        Ok(Placed { kept, is_restarted })
    }

    /// Returns `true` if this link stays, of two to the same site that were dialed from both ends: it is the one from
    /// the site with the smaller name, so that both sites decide alike.
    fn prefers(&self, link: &Link) -> bool {
        link.is_dialed == (*self.site() < link.site)
    }

    /// Ends a link that another one replaces: immediately if it is a former one of the peer, and otherwise when nothing
    /// moves on its streams any more.
    fn end_replaced(self: &Arc<Self>, link: Arc<Link>, by: &Link) {
        let is_double = link.is_double(by);
        link.replace();
        if !is_double {
            return close_replaced(&link);
        }
        let exceeding = {
            let mut draining = self.draining.lock();
            let of_site = draining.iter().position(|other| other.site == link.site);
            let exceeding = of_site.or((draining.len() >= DRAINING_MAX).then_some(0)).map(|at| draining.remove(at));
            draining.push(link.clone());
            exceeding
        };
        if let Some(exceeding) = exceeding {
            close_replaced(&exceeding);
        }
        self.spawn(self.clone().drain(link));
    }

    /// Waits until nothing moves on the streams of a link any more, and closes it.
    async fn drain(self: Arc<Self>, link: Arc<Link>) {
        let mut moved = None;
        while moved != Some(link.stream_frames()) {
            moved = Some(link.stream_frames());
            tokio::select! {
                () = tokio::time::sleep(DRAINED_AFTER) => {}
                _ = link.connection.closed() => break,
            }
        }
        close_replaced(&link);
        self.draining.lock().retain(|other| !Arc::ptr_eq(other, &link));
    }
}

fn close_replaced(link: &Link) {
    link.connection.close(code::DUPLICATE.into(), b"the two sites have another link");
}

/// Connects to a site that has a key.
pub(crate) async fn connect(endpoints: &Endpoints, address: &str, key: SiteKey) -> Result<quinn::Connection> {
    let unresolved =
        |why: &dyn std::fmt::Display| Error::new(ErrorKind::Disconnected, format!("the name has no address: {why}"));
    let resolved = within(tokio::net::lookup_host(address)).await?.map_err(|error| unresolved(&error))?;
    let mut last = unresolved(&"none was found");
    for peer in resolved {
        let dialed = endpoints.dial(peer).map_err(|error| Error::new(ErrorKind::Disconnected, error.to_string()));
        let connected = match dialed {
            Ok(connecting) => within(connecting).await.and_then(|connected| connected.map_err(closed)),
            Err(error) => Err(error),
        };
        match connected {
            Ok(connection) if key_of_peer(&connection) == Some(key) => return Ok(connection),
            Ok(connection) => {
                connection.close(code::REFUSED.into(), b"another key was expected");
                let text = "another site answers there: its key is not the expected one. If it has begun another mesh, \
                            let it issue an invitation";
                last = Error::new(ErrorKind::Denied, text);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(crate) fn check_version(version: u16) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let text = format!("the site speaks version {version} of the mesh, this one {VERSION}: update the older program");
    Err(Error::new(ErrorKind::Unsupported, text))
}

pub(crate) fn unexpected(frame: &Frame) -> Error {
    let mut name = Name::default();
    // It fails after the name, before the fields are written.
    write!(name, "{frame:?}").unwrap_or_default();
    Error::malformed(format!("the frame {} was not expected here", name.0))
}

/// Text that ends with the first name that is written to it.
#[derive(Default)]
struct Name(String);

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let length = text.find(|char: char| !char.is_alphanumeric()).unwrap_or(text.len());
        self.0.push_str(&text[..length]);
        if length < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
