//! Copies of topics of other sites, which this site requests and appends to separate topics.
//!
//! A copy has the offsets of its origin, so its end is all that has to be kept: what a link, a crash or a change of the
//! leader has interrupted continues there, and a batch that is received again changes nothing.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use broker::{Broker, TopicOutline, Wakes};
use bytes::BytesMut;
use engine::limits::{BATCH_BYTES_MAX, PARTITIONS_MAX};
use engine::mesh::{CopyStatus, MeshMode, MeshTopic, SiteName, copy_name};
use engine::{Error, ErrorKind, Offset, PartitionId, RecordBatch, Result, TopicId, TopicName, TopicSettings};
use parking_lot::Mutex;
use quinn::RecvStream;
use tokio::sync::{Notify, watch};

use crate::frame::{Frame, Head, Origin, Refusal, STEP_BYTES, Step, StepKind};
use crate::link::disconnected;
use crate::origin;
use crate::receive::{BUSY_PAUSE, read_exactly};
use crate::running::{Running, Traffic};
use crate::store::{self, Provenance};

/// Time within which an answer to a request for a copy begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait before a site is asked for a topic again, after the first failure and at most.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// Wait before a site is asked again that does not offer the topic, or whose topic has diverged. A site that begins to
/// offer it announces that.
const ASK_REFUSED_AGAIN: Duration = Duration::from_secs(30);
/// Maximum copies whose origins are asked per round of the site.
const ASKED_PER_ROUND: usize = 256;
/// Time for which an origin must have fewer records than its copy before the copy stops for good.
const SHORTER_FOR: Duration = Duration::from_secs(30);

/// Topics that this site and others copy from each other.
#[derive(Default)]
pub(crate) struct Mirror {
    /// Copies to which this site sends, by the site and the topic.
    pub senders: Mutex<HashMap<(SiteName, TopicName), origin::Sender>>,
    /// Records of each topic that were sent to copies.
    pub sent_records: Mutex<HashMap<TopicName, u64>>,
    /// Topics that were announced to the other sites.
    pub announced: Mutex<HashSet<TopicName>>,
    /// Copies of this site, by the origin and its topic.
    pub copies: Mutex<BTreeMap<(SiteName, TopicName), Arc<Copy>>>,
}

/// Copy of a topic of another site.
pub(crate) struct Copy {
    origin: SiteName,
    topic: TopicName,
    /// Topic of this site that has the records.
    name: TopicName,
    state: Mutex<State>,
    /// Held by the stream whose records are appended.
    turn: tokio::sync::Mutex<()>,
    records: AtomicU64,
    lost: AtomicU64,
    /// `false` while the origin has not said that the topic may be copied.
    is_offered: AtomicBool,
    /// Notified when its stream has to end, since the topic of this site is another one now.
    replaced: Notify,
    ended: watch::Sender<bool>,
}

struct State {
    /// Run of the last request.
    run: u64,
    /// Topic of this site for which the last request asked; `None` if there was none.
    asked: Option<TopicId>,
    /// Topic of this site when that was last checked.
    id: Option<TopicId>,
    /// Time since which the origin has said that it has fewer records than the copy.
    shorter_since: Option<Instant>,
    phase: Phase,
    failures: u32,
    error: Option<String>,
    /// Records that are missing in each partition, by what the origin has said last.
    behind: BTreeMap<PartitionId, u64>,
}

#[derive(Clone, Copy)]
enum Phase {
    /// The origin is asked at this time.
    Waits(Instant),
    /// The origin was asked at this time.
    Asked(Instant),
    Streams,
}

impl Copy {
    fn new(origin: SiteName, topic: TopicName, name: TopicName) -> Self {
        let phase = Phase::Waits(Instant::now());
        let state = State {
            run: 0,
            asked: None,
            id: None,
            shorter_since: None,
            phase,
            failures: 0,
            error: None,
            behind: BTreeMap::new(),
        };
        Self {
            origin,
            topic,
            name,
            state: Mutex::new(state),
            turn: tokio::sync::Mutex::default(),
            records: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            is_offered: AtomicBool::new(false),
            replaced: Notify::new(),
            ended: watch::Sender::new(false),
        }
    }

    /// Notes that the copying has failed, and when to ask again.
    fn wait(&self, error: Option<String>, least: Duration) {
        let mut state = self.state.lock();
        let wait = ASK_AGAIN.saturating_mul(1 << state.failures.min(10)).min(ASK_AGAIN_MAX).max(least);
        state.failures += 1;
        state.phase = Phase::Waits(Instant::now() + wait);
        state.error = error;
    }

    fn ask_now(&self) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Streams) {
            state.phase = Phase::Waits(Instant::now());
        }
    }

    /// Notes which topic of this site has the records. If it was deleted or is no copy any more, the copying begins
    /// again.
    fn follow(&self, id: Option<TopicId>) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.id, id);
        if before.is_some() && before != id {
            state.phase = Phase::Waits(Instant::now());
            self.replaced.notify_waiters();
        }
    }

    /// Returns `true` if the origin has to be asked now, and notes that it is.
    fn is_due(&self) -> bool {
        let mut state = self.state.lock();
        let is_due = match state.phase {
            Phase::Waits(until) => until <= Instant::now(),
            Phase::Asked(at) => at.elapsed() >= ANSWER_TIMEOUT,
            Phase::Streams => false,
        };
        if is_due {
            state.phase = Phase::Asked(Instant::now());
        }
        is_due
    }

    fn status(&self, reason: Option<String>) -> MeshTopic {
        let state = self.state.lock();
        let is_known = !state.behind.is_empty();
        let copy = CopyStatus {
            origin: self.origin.clone(),
            behind: is_known.then(|| state.behind.values().fold(0, |all: u64, behind| all.saturating_add(*behind))),
            lost_records: self.lost.load(Ordering::Relaxed),
            error: state.error.clone().or(reason),
        };
        MeshTopic {
            topic: self.name.clone(),
            mode: MeshMode::Copy,
            is_wanted: false,
            sites: Vec::new(),
            sent_records: 0,
            received_records: self.records.load(Ordering::Relaxed),
            copy: Some(copy),
        }
    }
}

impl Running {
    /// Follows the topics that are mirrored: announces them to the other sites, and copies theirs.
    pub(crate) fn follow_copies(self: &Arc<Self>, broker: &Arc<Broker>) {
        self.announce_offered(broker);
        let (mut topics, mut ids) = (Vec::new(), HashMap::new());
        for TopicOutline { name, id, settings } in broker.mirrored_topics() {
            match settings.mesh {
                MeshMode::Mirror => topics.push(name),
                MeshMode::Copy => drop(ids.insert(name, id)),
                _ => {}
            }
        }
        let others: Vec<SiteName> = {
            let members = self.members.lock();
            members.iter().map(|member| member.site.clone()).filter(|site| site != self.site()).collect()
        };
        let due: Vec<Arc<Copy>> = {
            let mut copies = self.mirror.copies.lock();
            copies.retain(|(site, topic), copy| {
                let stays = others.contains(site) && topics.binary_search(topic).is_ok();
                if !stays {
                    copy.ended.send_replace(true);
                }
                stays
            });
            for (site, topic) in others.iter().flat_map(|site| topics.iter().map(move |topic| (site, topic))) {
                if let Entry::Vacant(vacant) = copies.entry((site.clone(), topic.clone())) {
                    match copy_name(site, topic) {
                        Ok(name) => drop(vacant.insert(Arc::new(Copy::new(site.clone(), topic.clone(), name)))),
                        Err(error) => tracing::debug!(%site, %topic, %error, "a topic cannot be copied"),
                    }
                }
            }
            copies.values().for_each(|copy| copy.follow(ids.get(&copy.name).copied()));
            let is_reached = |copy: &Copy| self.path(&copy.origin).is_some();
            copies.values().filter(|copy| is_reached(copy) && copy.is_due()).take(ASKED_PER_ROUND).cloned().collect()
        };
        for copy in due {
            let running = self.clone();
            self.spawn_until(&copy.ended.clone(), async move {
                if let Err(error) = running.ask(&copy).await {
                    copy.wait(Some(error.message), ASK_AGAIN);
                }
            });
        }
    }

    /// Asks the origin of a copy for what follows its end.
    async fn ask(&self, copy: &Copy) -> Result<()> {
        let broker = self.broker()?;
        let (asked, id, ends) = match broker.copy_ends(&copy.name) {
            Err(error) if error.kind == ErrorKind::NotFound => (None, None, Vec::new()),
            Err(error) => {
                copy.is_offered.store(true, Ordering::Relaxed);
                return Err(error);
            }
            Ok((asked, ends)) => {
                copy.is_offered.store(true, Ordering::Relaxed);
                let known = store::provenance(&broker, &copy.name).await?.filter(|known| known.copy == asked);
                if let Some(why) = known.as_ref().and_then(|known| known.diverged.clone()) {
                    copy.wait(Some(why), ASK_REFUSED_AGAIN);
                    return Ok(());
                }
                if known.is_none() && ends.iter().any(|end| *end > 0) {
                    let text = format!("the origin of {} is not known: delete it to have it copied", copy.name);
                    copy.wait(Some(text), ASK_REFUSED_AGAIN);
                    return Ok(());
                }
                (Some(asked), known.map(|known| known.origin), ends)
            }
        };
        let run = self.next_run();
        {
            let mut state = copy.state.lock();
            state.run = run;
            state.asked = asked;
        }
        self.send_to(&copy.origin, Frame::Copy { run, topic: copy.topic.clone(), id, ends });
        Ok(())
    }

    fn copy_of(&self, origin: &SiteName, topic: &TopicName, run: u64) -> Option<Arc<Copy>> {
        let copy = self.mirror.copies.lock().get(&(origin.clone(), topic.clone())).cloned()?;
        let is_current = copy.state.lock().run == run;
        is_current.then_some(copy)
    }

    /// Notes that a site does not send a topic.
    pub(crate) fn on_refused(self: &Arc<Self>, from: &SiteName, refused: Frame) {
        let Frame::Refused { run, topic, reason, text } = refused else { return };
        let Some(copy) = self.copy_of(from, &topic, run) else { return };
        match reason {
            Refusal::NotOffered => {
                let exists = self.broker().is_ok_and(|broker| broker.copy_ends(&copy.name).is_ok());
                copy.is_offered.store(exists, Ordering::Relaxed);
                copy.wait(Some(text), ASK_REFUSED_AGAIN);
            }
            Refusal::Busy | Refusal::Failed => copy.wait(Some(text), ASK_AGAIN_MAX),
            Refusal::Another => {
                copy.wait(Some(text.clone()), ASK_REFUSED_AGAIN);
                self.spawn(self.clone().stop_copy(copy, text));
            }
            Refusal::Shorter => {
                // The former leader of a cluster also answers this until it knows that another node leads.
                let since = *copy.state.lock().shorter_since.get_or_insert_with(Instant::now);
                copy.wait(Some(text.clone()), ASK_AGAIN_MAX);
                if since.elapsed() >= SHORTER_FOR {
                    self.spawn(self.clone().stop_copy(copy, text));
                }
            }
        }
    }

    /// Stores that a copy cannot be continued.
    async fn stop_copy(self: Arc<Self>, copy: Arc<Copy>, why: String) {
        tracing::error!(copy = %copy.name, why, "a copy has stopped");
        let Ok(broker) = self.broker() else { return };
        let asked = copy.state.lock().asked;
        let Some(asked) = asked else { return };
        if let Err(error) = store::put_divergence(&broker, &copy.name, asked, &why).await {
            tracing::error!(copy = %copy.name, %error, "that a copy has stopped could not be stored");
        }
    }

    /// Asks for topics that a site offers now.
    pub(crate) fn on_offered(&self, from: &SiteName, topics: Vec<TopicName>) {
        let copies = self.mirror.copies.lock();
        let offered = topics.into_iter().filter_map(|topic| copies.get(&(from.clone(), topic)));
        offered.for_each(|copy| copy.ask_now());
        self.changed.notify_one();
    }

    /// Asks a site again for all copies: what it was asked before may be lost.
    pub(crate) fn ask_again(&self, site: &SiteName) {
        let copies = self.mirror.copies.lock();
        copies.values().filter(|copy| copy.origin == *site).for_each(|copy| copy.ask_now());
    }

    /// Appends what the stream of a copy brings, until it ends.
    pub(crate) async fn receive_copy(self: &Arc<Self>, head: Head, origin: Origin, stream: RecvStream) -> Result<()> {
        let Some(copy) = self.copy_of(&head.from, &head.topic, head.run) else {
            let text = format!("{} of site {} was not asked for, or not by this request", head.topic, head.from);
            return Err(Error::not_found(text));
        };
        let _turn = copy.turn.lock().await;
        let replaced = copy.replaced.notified();
        tokio::pin!(replaced);
        replaced.as_mut().enable();
        let asked = {
            let mut state = copy.state.lock();
            if state.run != head.run {
                return Err(Error::not_found("the topic was asked for again"));
            }
            state.phase = Phase::Streams;
            state.error = None;
            state.shorter_since = None;
            state.asked
        };
        copy.is_offered.store(true, Ordering::Relaxed);
        let mut ended = copy.ended.subscribe();
        let appended = tokio::select! {
            appended = self.append_all(&copy, asked, origin, stream) => appended,
            _ = ended.wait_for(|ended| *ended) => Ok(()),
            () = replaced => Ok(()),
        };
        // The origin may have said already why it sends no more.
        let is_refused = !matches!(copy.state.lock().phase, Phase::Streams);
        match &appended {
            Ok(()) if is_refused => {}
            Ok(()) => copy.wait(None, ASK_AGAIN),
            Err(error) if error.kind == ErrorKind::Disconnected => copy.wait(None, ASK_AGAIN),
            Err(error) => copy.wait(Some(error.message.clone()), ASK_AGAIN),
        }
        self.changed.notify_one();
        // A stream that is malformed ends alone: the link has others.
        appended.map_err(|error| Error::new(ErrorKind::Invalid, error.message))
    }

    async fn append_all(
        self: &Arc<Self>,
        copy: &Copy,
        asked: Option<TopicId>,
        origin: Origin,
        mut stream: RecvStream,
    ) -> Result<()> {
        let broker = self.broker()?;
        let (target, mut partitions) = self.prepare(&broker, copy, asked, origin).await?;
        let target = Target { id: target, is_new: asked.is_none() };
        let traffic = self.traffic_of(&copy.origin);
        let mut wakes = Wakes::default();
        while let Some((step, batch)) = read_step(&mut stream).await? {
            if step.partition >= PARTITIONS_MAX {
                return Err(Error::malformed(format!("partition {} is over the limit of a topic", step.partition)));
            }
            if step.partition >= partitions {
                partitions = step.partition + 1;
                broker.grow_topic(copy.name.as_str(), partitions).await?;
            }
            append(&broker, copy, target, step, batch, &traffic, &mut wakes).await?;
            wakes.flush();
            traffic.receives.take(step.length as u64).await;
            let mut state = copy.state.lock();
            state.failures = 0;
            state.error = None;
            state.behind.insert(step.partition, step.end.saturating_sub(step.next));
        }
        Ok(())
    }

    /// Creates the topic of a copy if the request was made without one, and grows it to the partitions of the origin.
    /// Returns its id and the number of its partitions.
    async fn prepare(
        &self,
        broker: &Arc<Broker>,
        copy: &Copy,
        asked: Option<TopicId>,
        origin: Origin,
    ) -> Result<(TopicId, u32)> {
        let wanted = origin.partitions.clamp(1, PARTITIONS_MAX);
        let found = match broker.copy_ends(&copy.name) {
            Err(error) if error.kind == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        if found.as_ref().map(|(id, _)| *id) != asked {
            return Err(Error::new(ErrorKind::Disconnected, "the copy is another topic since it was asked for"));
        }
        let (id, has) = match found {
            Some((id, ends)) => (id, ends.len() as u32),
            None => {
                let like: TopicSettings = broker.outline_topic(copy.topic.as_str())?.settings;
                let settings = TopicSettings { partitions: wanted, mesh: MeshMode::Off, ..like };
                let created = broker.create_copy(&copy.name, settings).await?;
                (created.id, created.partitions.len() as u32)
            }
        };
        copy.state.lock().id = Some(id);
        match store::provenance(broker, &copy.name).await?.filter(|known| known.copy == id) {
            Some(known) if known.origin != origin.id => {
                let why = format!("the origin of {} is another topic now: delete it to have it copied", copy.name);
                store::put_divergence(broker, &copy.name, id, &why).await?;
                return Err(Error::invalid(why));
            }
            Some(_) => {}
            None => {
                // Before the first record: without it, the origin would be unknown later.
                let known = Provenance { copy: id, origin: origin.id, diverged: None };
                store::put_provenance(broker, &copy.name, &known).await?;
            }
        }
        if has < wanted {
            broker.grow_topic(copy.name.as_str(), wanted).await?;
        }
        Ok((id, has.max(wanted)))
    }

    /// Returns the topics that other sites copy, and the copies of this site.
    pub(crate) fn mirrored(&self) -> Vec<MeshTopic> {
        let Ok(broker) = self.broker() else { return Vec::new() };
        let mut sites: HashMap<TopicName, Vec<SiteName>> = HashMap::new();
        for (site, topic) in self.mirror.senders.lock().keys() {
            sites.entry(topic.clone()).or_default().push(site.clone());
        }
        sites.values_mut().for_each(|sites| sites.sort_unstable());
        let sent_records = self.mirror.sent_records.lock().clone();
        let offered = broker.mirrored_topics().into_iter().filter(|topic| topic.settings.mesh.is_offered());
        let mut topics: Vec<MeshTopic> = offered
            .map(|topic| MeshTopic {
                mode: topic.settings.mesh,
                is_wanted: false,
                sites: sites.remove(&topic.name).unwrap_or_default(),
                sent_records: sent_records.get(&topic.name).copied().unwrap_or_default(),
                received_records: 0,
                copy: None,
                topic: topic.name,
            })
            .collect();
        let copies: Vec<Arc<Copy>> = self.mirror.copies.lock().values().cloned().collect();
        let shown = copies.iter().filter(|copy| copy.is_offered.load(Ordering::Relaxed));
        topics.extend(shown.map(|copy| {
            let is_reached = self.path(&copy.origin).is_some();
            copy.status((!is_reached).then(|| format!("site {} cannot be reached", copy.origin)))
        }));
        topics
    }
}

/// Topic to which a stream is appended.
#[derive(Clone, Copy)]
struct Target {
    id: TopicId,
    /// `true` if the stream is the first one of the copy.
    is_new: bool,
}

/// Appends one step of a partition.
async fn append(
    broker: &Broker,
    copy: &Copy,
    target: Target,
    step: Step,
    batch: Option<RecordBatch>,
    traffic: &Traffic,
    wakes: &mut Wakes,
) -> Result<()> {
    let name = &copy.name;
    // What was deleted before the topic was copied for the first time is not missed.
    if step.kind == StepKind::Lost && !target.is_new {
        let (_, ends) = broker.copy_ends(name)?;
        let from: Offset = ends.get(step.partition as usize).copied().unwrap_or_default();
        let lost = step.next.saturating_sub(from);
        copy.lost.fetch_add(lost, Ordering::Relaxed);
        traffic.lost_records.fetch_add(lost, Ordering::Relaxed);
        if lost > 0 {
            tracing::warn!(copy = %name, partition = step.partition, lost, "retention was faster than a copy");
        }
    }
    loop {
        let appended = match &batch {
            Some(batch) => broker.append_copied(name, target.id, step.partition, batch.clone(), wakes).await,
            None => broker.skip_copied(name, target.id, step.partition, step.next, wakes).await,
        };
        match appended {
            Ok(()) => break,
            // It waits for room, and so do the records after it, at their origin.
            Err(error) if matches!(error.kind, ErrorKind::Busy | ErrorKind::DiskFull) => {
                copy.state.lock().error = Some(error.message.clone());
                tracing::debug!(copy = %name, %error, "a copy waits");
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(batch) = batch {
        let count = u64::from(batch.count());
        copy.records.fetch_add(count, Ordering::Relaxed);
        traffic.received_records.fetch_add(count, Ordering::Relaxed);
        traffic.received_bytes.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads a step and its batch. Returns `None` at the end of the stream.
async fn read_step(stream: &mut RecvStream) -> Result<Option<(Step, Option<RecordBatch>)>> {
    let mut bytes = [0; STEP_BYTES];
    match stream.read_exact(&mut bytes).await {
        Ok(()) => {}
        Err(quinn::ReadExactError::FinishedEarly(0)) => return Ok(None),
        Err(error) => return Err(disconnected(&error)),
    }
    let step = Step::decode(&bytes)?;
    if step.kind != StepKind::Batch {
        return Ok(Some((step, None)));
    }
    if step.length > BATCH_BYTES_MAX {
        return Err(Error::malformed(format!("a batch has {} bytes, at most {BATCH_BYTES_MAX}", step.length)));
    }
    let bytes: BytesMut = read_exactly(stream, step.length).await?;
    let batch = RecordBatch::parse(bytes.freeze()).map_err(|error| Error::invalid(error.message))?;
    if batch.is_control() || batch.next_offset() != step.next {
        return Err(Error::malformed("a step of a copy has another batch than it says"));
    }
    Ok(Some((step, Some(batch))))
}
