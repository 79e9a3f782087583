//! Live topics: what clients publish here is sent to the sites that read the topic.
//!
//! Each live topic has a *router*, a subscription that only decides: it looks up which sites read the topic, and starts
//! and ends a *forward* for each of them, and for those with listeners. A forward has its own subscription and its own
//! stream, so a slow site delays neither another one nor another topic; it falls back to the log of the topic. A
//! forward begins with the record for which the router has looked it up, so no record is lost for the time that the
//! answer took.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, Origin, Permit, Reader, Subscribe, Subscription};
use bytes::{Bytes, BytesMut};
use engine::limits::CHANNELS_MAX;
use engine::mesh::{Groups, MeshMode, MeshTopic, SiteName};
use engine::{
    Delivery, DraftBatch, Error, ErrorKind, Missing, Offset, Overflow, PartitionId, Pattern, RecordBatch, Result,
    Start, TopicId, TopicName,
};
use parking_lot::Mutex;
use quinn::{SendStream, WriteError};
use tokio::sync::watch;

use crate::discovery::Found;
use crate::frame::{BatchHead, Head};
use crate::link::{code, disconnected};
use crate::running::{Path, Running, UNREACHABLE_AFTER};

/// Pause before a topic is read again after an error.
const READ_AGAIN: Duration = Duration::from_millis(250);
/// Interval at which a path to a site is looked for while there is none.
const PATH_EVERY: Duration = Duration::from_millis(20);
/// Time after which a stream without records is ended. A link has a limited number of streams.
const STREAM_IDLE: Duration = Duration::from_secs(30);
/// Maximum changes of the queue groups of a site that a backlog keeps apart.
const STEPS_MAX: usize = 64;
/// Time for the last bytes of a stream to arrive before the topic is sent on another one.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which an inbox is looked for, and the first interval, which doubles.
const INBOX_PATIENCE: Duration = Duration::from_secs(1);
const INBOX_AGAIN: Duration = Duration::from_millis(20);
/// Maximum replies whose inboxes are looked for at the same time.
pub(crate) const SEARCHES_MAX: usize = 256;
/// Bytes that a forward may be delivered before it has sent any: the stream's window is the limit.
const CREDIT: u64 = i64::MAX as u64;

/// Live topic of this site.
pub(crate) struct Outgoing {
    pub topic: TopicName,
    id: TopicId,
    /// Run of the topic, within which the records for each site are numbered. No two are equal, unless the clock was
    /// set back.
    run: u64,
    /// `true` if clients of this site read it.
    is_wanted: AtomicBool,
    pub records: AtomicU64,
    /// `true` once what clients publish is routed.
    pub is_routed: AtomicBool,
    forwards: Mutex<Forwards>,
    /// Held by the forward to a site that sends: one that has to end completes what it sends.
    turns: Mutex<BTreeMap<SiteName, Arc<tokio::sync::Mutex<()>>>>,
    /// Offsets up to which the router has looked the topic up, without a subscriber cache: forwards wait for it.
    released: watch::Sender<BTreeMap<PartitionId, Offset>>,
    /// Offsets of the first record of each partition that is not routed. A new forward begins there.
    positions: Mutex<BTreeMap<PartitionId, Offset>>,
    /// Queue groups that have members at this site.
    own_groups: Mutex<BTreeSet<Box<str>>>,
    /// Ends of the partitions when a queue group last got members at this site: the records before are for members at
    /// other sites, although the router may not have come to them.
    joined: Mutex<BTreeMap<PartitionId, Offset>>,
    /// Records that each site was sent.
    sent: Mutex<BTreeMap<SiteName, Sent>>,
    /// Sites to which streams of this run were opened.
    receivers: Mutex<BTreeMap<SiteName, Receiver>>,
    ended: watch::Sender<bool>,
}

/// Forwards of a topic, and for what they were started.
#[derive(Default)]
struct Forwards {
    of_sites: BTreeMap<SiteName, Arc<Forward>>,
    /// Sites that read the topic, by the newest answer of the directory.
    found: Found,
    /// Version of the listeners and the paths for which the receivers were found; `None` if they have to be found
    /// again.
    followed: Option<u64>,
}

/// Sending of a topic to a site.
struct Forward {
    /// Queue groups that get the records there. The last step is the current one; those before it are for the backlog.
    steps: Mutex<Vec<Step>>,
    /// `true` once it reads the topic, and a publish counts it as a receiver.
    is_reading: AtomicBool,
    /// `true` if the site has stopped the stream because it does not take the topic.
    is_refused: AtomicBool,
    ending: watch::Sender<Ending>,
}

/// Queue groups that get the records from some offsets on.
#[derive(Clone)]
struct Step {
    from: BTreeMap<PartitionId, Offset>,
    /// `None` if the records are not sent.
    groups: Option<Groups>,
}

/// End of a forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// It ends when it has sent what was routed before: that is the share of its queue groups.
    AfterBacklog,
    Now,
}

impl Forward {
    fn new(groups: Groups) -> Self {
        Self {
            steps: Mutex::new(vec![Step { from: BTreeMap::new(), groups: Some(groups) }]),
            is_reading: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            ending: watch::Sender::new(Ending::No),
        }
    }

    /// Sets the groups that get the records from these offsets on.
    fn choose(&self, groups: Option<Groups>, from: &BTreeMap<PartitionId, Offset>) {
        let mut steps = self.steps.lock();
        let last = steps.last().and_then(|step| step.groups.clone());
        if last == groups {
            return;
        }
        if steps.len() >= STEPS_MAX {
            steps.pop();
        }
        steps.push(Step { from: from.clone(), groups });
    }

    /// Ends the forward: at once, or once the queue groups have what was routed before these offsets.
    fn end(&self, from: &BTreeMap<PartitionId, Offset>) {
        let serves = |step: &Step| step.groups.as_ref().is_some_and(|groups| !groups.are_none());
        let has_share = self.steps.lock().iter().any(serves);
        if has_share {
            self.choose(None, from);
        }
        self.ending.send_replace(if has_share { Ending::AfterBacklog } else { Ending::Now });
    }

    /// Returns the groups that get a record; `None` if it is not sent.
    fn groups_of(&self, partition: PartitionId, offset: Offset) -> Option<Groups> {
        let steps = self.steps.lock();
        let has_begun = |step: &&Step| step.from.get(&partition).is_none_or(|from| *from <= offset);
        steps.iter().rev().find(has_begun).or(steps.first()).and_then(|step| step.groups.clone())
    }

    /// Forgets the steps before the current one that are over. Returns `true` if there are none.
    fn pass(&self, reached: &BTreeMap<PartitionId, Offset>) -> bool {
        let mut steps = self.steps.lock();
        let is_over = |step: &Step| {
            step.from.iter().all(|(partition, from)| reached.get(partition).is_none_or(|reached| reached >= from))
        };
        while steps.len() > 1 && is_over(&steps[1]) {
            steps.remove(0);
        }
        steps.len() == 1
    }
}

/// Site that receives the records of a run.
#[derive(Default)]
struct Receiver {
    /// Run of the site to which the first stream on its own link was opened.
    instance: Option<u64>,
    /// `true` once the site has confirmed that records have arrived.
    is_confirmed: bool,
}

/// Records that a site was sent.
#[derive(Clone, Default)]
struct Sent {
    /// Number of the next record.
    number: u64,
    /// Offsets of the next record of each partition.
    offsets: BTreeMap<PartitionId, Offset>,
}

impl Outgoing {
    fn new(topic: TopicName, id: TopicId, run: u64) -> Self {
        Self {
            topic,
            id,
            run,
            is_wanted: AtomicBool::new(false),
            records: AtomicU64::new(0),
            is_routed: AtomicBool::new(false),
            forwards: Mutex::default(),
            turns: Mutex::default(),
            released: watch::Sender::default(),
            positions: Mutex::default(),
            own_groups: Mutex::default(),
            joined: Mutex::default(),
            sent: Mutex::default(),
            receivers: Mutex::default(),
            ended: watch::Sender::new(false),
        }
    }

    fn end(&self) {
        self.ended.send_replace(true);
        for forward in self.forwards.lock().of_sites.values() {
            forward.ending.send_replace(Ending::Now);
        }
    }

    /// Notes the queue groups that have members at this site. If there are new ones, they get the records from now on.
    pub(crate) fn note_own_groups(&self, broker: &Broker, groups: BTreeSet<Box<str>>) {
        let mut own = self.own_groups.lock();
        let has_new = !groups.is_subset(&own);
        *own = groups;
        drop(own);
        if has_new && let Ok(topic) = broker.describe_topic(self.topic.as_str()) {
            let ends = topic.partitions.iter().enumerate();
            *self.joined.lock() = ends.map(|(partition, extent)| (partition as PartitionId, extent.end)).collect();
        }
    }

    /// Returns the offsets from which on the members of queue groups of now get the records, given those of the router.
    fn members_from(&self, routed: &BTreeMap<PartitionId, Offset>) -> BTreeMap<PartitionId, Offset> {
        let joined = self.joined.lock();
        let later = |(partition, at): (&PartitionId, &Offset)| {
            (*partition, joined.get(partition).map_or(*at, |joined| (*at).max(*joined)))
        };
        routed.iter().map(later).collect()
    }

    /// Returns `true` if records of this run have arrived at a site, or may have and it does not know them any more: it
    /// has confirmed some, or has restarted since it was first sent some.
    fn is_confirmed(&self, site: &SiteName, path: &Path) -> bool {
        let mut receivers = self.receivers.lock();
        let receiver = receivers.entry(site.clone()).or_default();
        // The run of a site behind a hub is not known.
        let Path::Direct(link) = path else { return receiver.is_confirmed };
        receiver.is_confirmed || *receiver.instance.get_or_insert(link.instance) != link.instance
    }

    /// Waits until the router has looked the topic up for a record.
    async fn wait_for_lookup(&self, of: Option<(PartitionId, Offset)>) {
        let Some((partition, offset)) = of else { return };
        let is_past =
            |released: &BTreeMap<PartitionId, Offset>| released.get(&partition).is_some_and(|next| *next > offset);
        // The sender is in this value.
        self.released.subscribe().wait_for(is_past).await.map(drop).unwrap_or_default();
    }

    pub fn status(&self, received_records: u64) -> MeshTopic {
        let forwards = self.forwards.lock();
        let reading = forwards.of_sites.iter().filter(|(_, forward)| forward.is_reading.load(Ordering::Relaxed));
        MeshTopic {
            topic: self.topic.clone(),
            mode: MeshMode::Live,
            copy: None,
            is_wanted: self.is_wanted.load(Ordering::Relaxed),
            sites: reading.map(|(site, _)| site.clone()).collect(),
            sent_records: self.records.load(Ordering::Relaxed),
            received_records,
        }
    }
}

/// Stream of a topic to a site.
pub(crate) struct Stream {
    send: SendStream,
    pub path: Path,
    groups: Groups,
}

impl Stream {
    /// Ends the stream, and waits until what was written has arrived.
    pub async fn finish(&mut self) {
        if self.send.finish().is_ok() {
            drop(tokio::time::timeout(FINISH_TIMEOUT, self.send.stopped()).await);
        }
    }

    /// Waits until the receiver takes no more, or the link has ended.
    pub async fn ended(&mut self) {
        self.send.stopped().await.map(drop).unwrap_or_default();
    }

    pub async fn write(&mut self, mut chunks: Vec<Bytes>) -> Result<()> {
        self.send.write_all_chunks(&mut chunks).await.map_err(|error| match error {
            WriteError::Stopped(reason) if reason == code::NOT_TAKEN.into() => {
                Error::not_found("the other site does not take the topic")
            }
            error => disconnected(&error),
        })
    }
}

impl Running {
    /// Follows the live topics of the broker: routes them, and advertises those that clients read.
    pub(crate) fn follow_readers(self: &Arc<Self>, broker: &Arc<Broker>) {
        let live = broker.live_topics();
        let are_groups_told = self.follow_listeners(broker, &live);
        let mut ended = Vec::new();
        let mut routed = self.outgoing.lock();
        routed.retain(|name, outgoing| {
            let now = live.binary_search_by(|topic| topic.name.cmp(name)).ok().map(|at| live[at].id);
            if now != Some(outgoing.id) {
                outgoing.end();
            }
            if now.is_none() {
                if !self.channels.lock().contains(name) {
                    self.retract(name);
                }
                self.incoming.lock().retain(|(_, topic), _| topic != name);
                ended.push(name.clone());
            }
            now == Some(outgoing.id)
        });
        let now_ms = self.clock_ms();
        self.incoming.lock().retain(|(_, topic), of| routed.contains_key(topic) || !of.is_idle(now_ms));
        for topic in live {
            let outgoing = routed.entry(topic.name.clone()).or_insert_with(|| {
                let outgoing = Arc::new(Outgoing::new(topic.name.clone(), topic.id, self.next_run()));
                self.spawn_until(&outgoing.ended, self.clone().route(outgoing.clone()));
                outgoing
            });
            // The members of queue groups are listeners.
            let has_groups = !topic.groups.is_empty();
            let is_read = topic.is_read || (has_groups && !are_groups_told);
            let is_wanted = self.set_interest(&topic.name, is_read, topic.is_fetched);
            outgoing.is_wanted.store(is_wanted || has_groups, Ordering::Relaxed);
        }
        drop(routed);
        self.forget_refused(&ended);
    }

    /// Advertises the inboxes of this site, to which clients of other sites may reply, and the channels that its
    /// clients listen to.
    pub(crate) fn follow_channels(&self, broker: &Broker) {
        let mut now = broker.inboxes();
        now.extend(broker.listened_channels(CHANNELS_MAX));
        let mut known = self.channels.lock();
        known.difference(&now).for_each(|gone| self.retract(gone));
        for new in now.difference(&known) {
            self.set_interest(new, true, false);
        }
        *known = now;
    }

    /// Sends a batch to the site that has an inbox.
    pub(crate) async fn deliver(self: &Arc<Self>, inbox: TopicName, batch: DraftBatch) -> Result<()> {
        let to = self.site_of_inbox(&inbox).await?;
        let batch = batch.into_bytes();
        let length = batch.len();
        self.traffic_of(&to).sends.take(length as u64).await;
        let (from, run) = (self.site().clone(), self.next_run());
        // It is the only one of its run, so that none before it can be missed.
        let (is_confirmed, groups) = (true, Groups::All);
        let head = Head { from, run, to: to.clone(), topic: inbox.clone(), origin: None, is_confirmed, groups };
        let mut stream = self.open_stream(&to, |_| head.clone()).await?;
        let mut head = BytesMut::new();
        BatchHead { length, number: 0, partition: 0 }.put(&mut head);
        stream.write(vec![head.freeze(), batch]).await?;
        stream.finish().await;
        let traffic = self.traffic_of(&to);
        traffic.sent_records.fetch_add(1, Ordering::Relaxed);
        traffic.sent_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of replies whose inboxes are being looked for.
    pub(crate) fn searches(&self) -> u64 {
        (SEARCHES_MAX - self.searches.available_permits()) as u64
    }

    /// Returns the site that has an inbox. It may be so new that its owners have not heard of it yet.
    async fn site_of_inbox(self: &Arc<Self>, inbox: &TopicName) -> Result<SiteName> {
        let Ok(_permit) = self.searches.try_acquire() else {
            return Err(Error::busy(format!("{SEARCHES_MAX} replies wait for the sites of their inboxes: try again")));
        };
        let begin = Instant::now();
        let mut wait = INBOX_AGAIN;
        loop {
            if let Some(site) = self.readers_now(inbox).await?.iter().find(|site| *site != self.site()) {
                return Ok(site.clone());
            }
            if begin.elapsed() >= INBOX_PATIENCE {
                return Err(Error::not_found(format!("no site has the inbox {inbox}")));
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }

    /// Spawns a task that ends with the site, or before.
    pub(crate) fn spawn_until(&self, ended: &watch::Sender<bool>, work: impl Future<Output = ()> + Send + 'static) {
        let mut ended = ended.subscribe();
        self.spawn(async move {
            tokio::select! {
                () = work => {}
                _ = ended.wait_for(|ended| *ended) => {}
            }
        });
    }

    /// Routes a topic until it is deleted or no longer live.
    async fn route(self: Arc<Self>, outgoing: Arc<Outgoing>) {
        loop {
            if let Err(error) = self.route_once(&outgoing).await {
                outgoing.is_routed.store(false, Ordering::Relaxed);
                tracing::debug!(topic = %outgoing.topic, %error, "a live topic is not routed");
            }
            tokio::time::sleep(READ_AGAIN).await;
        }
    }

    async fn route_once(self: &Arc<Self>, outgoing: &Arc<Outgoing>) -> Result<()> {
        let mut subscription = self.read(&outgoing.topic, Start::Live, Overflow::DropOld, Reader::Router).await?;
        let handle = subscription.handle();
        *outgoing.positions.lock() = subscription.starts.iter().map(|start| (start.partition, start.start)).collect();
        outgoing.is_routed.store(true, Ordering::Relaxed);
        if !self.settings.cache.is_off() {
            // So that the first publish knows its receivers at other sites.
            let (running, outgoing) = (self.clone(), outgoing.clone());
            self.spawn_until(&outgoing.ended.clone(), async move {
                let found = running.sites_of(&outgoing.topic).await;
                running.follow_sites(&outgoing, &found);
            });
        }
        let mut deliveries = Vec::new();
        loop {
            subscription.next(&mut deliveries).await?;
            let mut routed = BTreeMap::new();
            let mut has_own = false;
            for delivery in &deliveries {
                let (source, first, next, is_own) = match delivery {
                    Delivery::Batch { source, batch } => {
                        (*source, batch.base_offset(), batch.next_offset(), is_of_client(batch))
                    }
                    Delivery::Gap { source, from, to } => (*source, *from, *to, true),
                };
                let partition = handle.source(source).1;
                // A partition that was added is known by its first batch.
                outgoing.positions.lock().entry(partition).or_insert(first);
                routed.insert(partition, next);
                has_own |= is_own;
            }
            if has_own {
                let found = self.sites_of(&outgoing.topic).await;
                self.follow_sites(outgoing, &found);
            }
            if self.settings.cache.is_off() {
                outgoing.released.send_modify(|released| released.extend(&routed));
            }
            outgoing.positions.lock().extend(routed);
        }
    }

    /// Sends a topic to the sites that read it, by the newest answer of the directory, and to those with listeners.
    pub(crate) fn follow_sites(self: &Arc<Self>, outgoing: &Arc<Outgoing>, found: &Found) {
        let mut forwards = outgoing.forwards.lock();
        if found.number > forwards.found.number {
            let has_changed = forwards.found.sites != found.sites;
            forwards.found = found.clone();
            forwards.followed = forwards.followed.filter(|_| !has_changed);
        }
        if forwards.followed != Some(self.listening_version()) {
            self.follow_in(outgoing, &mut forwards);
        }
    }

    /// Starts a forward to each receiver of a topic that has none, and ends the others.
    pub(crate) fn follow_receivers(self: &Arc<Self>, outgoing: &Arc<Outgoing>) {
        self.follow_in(outgoing, &mut outgoing.forwards.lock());
    }

    fn follow_in(self: &Arc<Self>, outgoing: &Arc<Outgoing>, forwards: &mut Forwards) {
        if !outgoing.is_routed.load(Ordering::Relaxed) {
            // It is not known yet where a forward begins.
            return;
        }
        let version = self.listening_version();
        let mut receivers = self.receivers_of(&outgoing.topic, &forwards.found.sites);
        receivers.remove(self.site());
        let routed = outgoing.positions.lock().clone();
        let members_from = outgoing.members_from(&routed);
        forwards.of_sites.retain(|site, forward| {
            let stays = receivers.contains_key(site);
            if !stays {
                forward.end(&members_from);
            }
            stays
        });
        for (site, groups) in receivers {
            if let Some(forward) = forwards.of_sites.get(&site) {
                forward.choose(Some(groups), &members_from);
                continue;
            }
            // Readers without a group get what was not routed, and groups what is for them.
            let forward = Arc::new(Forward::new(Groups::named(Vec::new())));
            forward.choose(Some(groups), &members_from);
            let work = self.clone().forward(outgoing.clone(), site.clone(), routed.clone(), forward.clone());
            self.spawn_until(&outgoing.ended, work);
            forwards.of_sites.insert(site, forward);
        }
        forwards.followed = Some(version);
    }

    /// Sends the records of a topic to a site until that is ended, or it cannot be reached for long.
    async fn forward(
        self: Arc<Self>,
        outgoing: Arc<Outgoing>,
        site: SiteName,
        from: BTreeMap<PartitionId, Offset>,
        forward: Arc<Forward>,
    ) {
        let topic = &outgoing.topic;
        if let Err(error) = self.forward_all(&outgoing, &site, from, &forward).await {
            tracing::debug!(%site, %topic, %error, "records are no longer sent to a site");
        }
        let mut forwards = outgoing.forwards.lock();
        if forwards.of_sites.get(&site).is_some_and(|current| Arc::ptr_eq(current, &forward)) {
            forwards.of_sites.remove(&site);
            // The next record is for it again.
            forwards.followed = None;
        }
        drop(forwards);
        if forward.is_refused.load(Ordering::Relaxed) {
            self.note_refused(&outgoing, &site);
        }
    }

    async fn forward_all(
        self: &Arc<Self>,
        outgoing: &Outgoing,
        site: &SiteName,
        from: BTreeMap<PartitionId, Offset>,
        forward: &Forward,
    ) -> Result<()> {
        let mut ending = forward.ending.subscribe();
        let traffic = self.traffic_of(site);
        let start = Start::Offsets(from.into_iter().collect());
        let mut subscription = self.read(&outgoing.topic, start, Overflow::Replay, Reader::Forward).await?;
        forward.is_reading.store(true, Ordering::Relaxed);
        let turn = outgoing.turns.lock().entry(site.clone()).or_default().clone();
        let _turn = turn.lock().await;
        let mut reached: BTreeMap<PartitionId, Offset> =
            subscription.starts.iter().map(|start| (start.partition, start.start)).collect();
        let handle = subscription.handle();
        let mut stream: Option<Stream> = None;
        let mut deliveries = Vec::new();
        loop {
            let has_share_only = forward.pass(&reached);
            match *ending.borrow_and_update() {
                Ending::Now => return Ok(()),
                Ending::AfterBacklog if has_share_only => return Ok(()),
                Ending::AfterBacklog | Ending::No => {}
            }
            // What was taken before another branch was ready stays in the list.
            deliveries.clear();
            tokio::select! {
                next = subscription.next(&mut deliveries) => next?,
                _ = ending.changed() => {}
                is_refused = refusal(&mut stream) => {
                    forward.is_refused.store(is_refused, Ordering::Relaxed);
                    if is_refused {
                        return Ok(());
                    }
                    stream = None;
                }
                () = tokio::time::sleep(STREAM_IDLE), if stream.is_some() => {
                    if let Some(mut idle) = stream.take() {
                        idle.finish().await;
                    }
                }
            }
            if deliveries.is_empty() {
                continue;
            }
            if self.settings.cache.is_off() {
                let last = deliveries.iter().rev().find_map(|delivery| match delivery {
                    Delivery::Batch { source, batch } => Some((handle.source(*source).1, batch.base_offset())),
                    Delivery::Gap { .. } => None,
                });
                outgoing.wait_for_lookup(last).await;
            }
            let mut sent = outgoing.sent.lock().get(site).cloned().unwrap_or_default();
            let mut shares: Vec<Share> = Vec::new();
            for delivery in &deliveries {
                let (source, first, next) = match delivery {
                    Delivery::Batch { source, batch } => (*source, batch.base_offset(), batch.next_offset()),
                    Delivery::Gap { source, from, to } => (*source, *from, *to),
                };
                let partition = handle.source(source).1;
                reached.insert(partition, next);
                if sent.offsets.get(&partition).is_some_and(|sent| next <= *sent) {
                    // The forward before this one was ahead of the router.
                    continue;
                }
                // What follows the share of this forward may be for the next one.
                let Some(groups) = forward.groups_of(partition, first) else { continue };
                match delivery {
                    Delivery::Batch { batch, .. } if is_of_client(batch) => match batch.without_holes() {
                        Ok(Some(whole)) => {
                            let mut head = BytesMut::new();
                            BatchHead { length: whole.len(), number: sent.number, partition }.put(&mut head);
                            Share::of(&mut shares, groups).add(batch.count(), head.freeze(), whole);
                            sent.number += u64::from(batch.count());
                        }
                        Ok(None) => {}
                        Err(error) => {
                            tracing::warn!(topic = %outgoing.topic, %error, "records cannot be sent to other sites");
                            sent.number += u64::from(batch.count());
                        }
                    },
                    Delivery::Batch { .. } => {}
                    // The receiver counts what was skipped as lost.
                    Delivery::Gap { from, to, .. } => sent.number += to - from,
                }
                sent.offsets.insert(partition, next);
            }
            outgoing.sent.lock().insert(site.clone(), sent);
            for Share { groups, chunks, records, bytes } in shares {
                traffic.sends.take(bytes).await;
                let sent = self.send(&mut stream, outgoing, site, &groups, &chunks).await;
                let is_refused = sent.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound);
                forward.is_refused.store(is_refused, Ordering::Relaxed);
                sent?;
                outgoing.records.fetch_add(records, Ordering::Relaxed);
                traffic.sent_records.fetch_add(records, Ordering::Relaxed);
                traffic.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Writes batches to the stream of a topic, on another one if a link ends. The receiver knows by the numbers which
    /// of them it has.
    async fn send(
        &self,
        stream: &mut Option<Stream>,
        outgoing: &Outgoing,
        site: &SiteName,
        groups: &Groups,
        chunks: &[Bytes],
    ) -> Result<()> {
        let has_changed = |open: &mut Stream| self.is_outdated(&open.path, site) || open.groups != *groups;
        loop {
            if let Some(mut open) = stream.take_if(has_changed) {
                // The receiver publishes from the next stream when this one has ended.
                open.finish().await;
            }
            let open = match stream {
                Some(open) => open,
                None => {
                    let head = |path: &Path| Head {
                        from: self.site().clone(),
                        run: outgoing.run,
                        to: site.clone(),
                        topic: outgoing.topic.clone(),
                        origin: None,
                        is_confirmed: outgoing.is_confirmed(site, path),
                        groups: groups.clone(),
                    };
                    match self.open_stream(site, head).await {
                        // Records wait for a limit, and are not dropped for it.
                        Err(error) if error.kind == ErrorKind::Busy => {
                            tracing::warn!(topic = %outgoing.topic, %error, "records for another site wait");
                            continue;
                        }
                        opened => stream.insert(opened?),
                    }
                }
            };
            match open.write(chunks.to_vec()).await {
                Ok(()) => {
                    self.routes.note_use(matches!(open.path, Path::Direct(_)));
                    return Ok(());
                }
                Err(error) if error.kind == ErrorKind::NotFound => return Err(error),
                Err(error) => {
                    tracing::debug!(%site, topic = %outgoing.topic, %error, "the stream of a topic ended");
                    *stream = None;
                }
            }
        }
    }

    /// Notes that records of a run of a topic have arrived at a site.
    pub(crate) fn on_begun(&self, from: &SiteName, run: u64, topic: &TopicName) {
        let outgoing = self.outgoing.lock().get(topic).filter(|of| of.run == run).cloned();
        // A hub may relay a frame of a site that was just removed, or lie.
        if let Some(outgoing) = outgoing.filter(|_| self.members.lock().get(from).is_some()) {
            outgoing.receivers.lock().entry(from.clone()).or_default().is_confirmed = true;
        }
    }

    /// Returns `true` if there is a better path to a site than the one on which a topic is sent.
    pub(crate) fn is_outdated(&self, path: &Path, site: &SiteName) -> bool {
        let is_replaced = path.link().is_replaced();
        is_replaced || (matches!(path, Path::Relayed(_)) && self.links.lock().contains_key(site))
    }

    /// Opens the stream of a topic to a site, and waits for a path to it for some time. `head_on` returns the head of
    /// a stream on a path.
    pub(crate) async fn open_stream(&self, to: &SiteName, head_on: impl Fn(&Path) -> Head) -> Result<Stream> {
        let begin = Instant::now();
        loop {
            if let Some(path) = self.path(to) {
                let opened = tokio::time::timeout(UNREACHABLE_AFTER, path.link().connection.open_uni()).await;
                let opened = opened.map_err(|_elapsed| {
                    Error::busy(format!("the link to {to} has too many streams: they end when they are idle"))
                })?;
                if let Ok(mut send) = opened {
                    let (head, mut bytes) = (head_on(&path), BytesMut::new());
                    head.put(&mut bytes);
                    // Without it the link has just ended, and there may be another path.
                    if send.write_all(&bytes).await.is_ok() {
                        return Ok(Stream { send, path, groups: head.groups });
                    }
                }
            }
            if begin.elapsed() >= UNREACHABLE_AFTER {
                return Err(Error::new(ErrorKind::Disconnected, "the site cannot be reached"));
            }
            tokio::time::sleep(PATH_EVERY).await;
        }
    }

    async fn read(&self, topic: &TopicName, start: Start, overflow: Overflow, reader: Reader) -> Result<Subscription> {
        let request = Subscribe {
            pattern: Pattern::Topic(topic.clone()),
            partition: None,
            start,
            overflow,
            queue_batches: None,
            group: None,
            credit: CREDIT,
            missing: Missing::Refuse,
            is_channel: false,
            permit: Permit::ALL,
            origin: Origin { reader, ..Origin::default() },
            hold: None,
            direct: None,
        };
        self.broker()?.subscribe(request).await
    }
}

/// Batches in a row that the same queue groups get.
struct Share {
    groups: Groups,
    chunks: Vec<Bytes>,
    records: u64,
    bytes: u64,
}

impl Share {
    /// Returns the last share, which is for these groups.
    fn of(shares: &mut Vec<Self>, groups: Groups) -> &mut Self {
        match shares.last() {
            Some(last) if last.groups == groups => {}
            _ => shares.push(Self { groups, chunks: Vec::new(), records: 0, bytes: 0 }),
        }
        shares.last_mut().expect("invariant: a share was added if there was none")
    }

    fn add(&mut self, records: u32, head: Bytes, batch: Bytes) {
        self.records += u64::from(records);
        self.bytes += batch.len() as u64;
        self.chunks.extend([head, batch]);
    }
}

/// Waits until a stream ends at its receiver. Returns `true` if that does not take the topic.
async fn refusal(stream: &mut Option<Stream>) -> bool {
    match stream {
        Some(stream) => matches!(stream.send.stopped().await, Ok(Some(reason)) if reason == code::NOT_TAKEN.into()),
        None => std::future::pending().await,
    }
}

/// Returns `true` for a batch that a client of this site has published.
fn is_of_client(batch: &RecordBatch) -> bool {
    !batch.is_control() && !batch.producer().is_some_and(|producer| producer.is_mesh())
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
