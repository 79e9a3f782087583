//! Frames between two sites.
//!
//! A link is one QUIC connection. The site that dials opens one bidirectional stream for *control frames*; each batch
//! of records travels on a unidirectional stream of its topic, so that no topic waits for another.
//!
//! All integers are big-endian; a text is its length (2 bytes) and its bytes. A control frame is the length of the rest
//! (4 bytes), a kind (1) and its fields:
//!
//! | Kind | Fields | Meaning |
//! |---|---|---|
//! | 1 hello | version (2), site (text), instance (8), entry (4 and its bytes) | first frame of both sides |
//! | 2 join | version (2), secret (16), instance (8), entry (4 and its bytes) | first frame of a site that joins |
//! | 3 sites | entries (each 4 and its bytes, up to the end) | members that the receiver may not know |
//! | 4 linked | sites (texts, up to the end) | sites to which a hub relays |
//! | 5 advertise | epoch (8), topic (text), time to live in ms (8) | this site wants the topic |
//! | 6 withdraw | epoch (8), topic (text) | this site no longer wants the topic |
//! | 7 look up | id (8), topic (text), time in ms for which to watch (4) | a question to the directory |
//! | 8 found | id (8), sites (texts, up to the end) | its answer |
//! | 9 changed | topic (text), sites (texts, up to the end) | the answer to a later question would differ |
//! | 10 relayed | from (text), to (text), a control frame of another kind | a hub passes it on |
//! | 11 offered | topics (texts, up to the end) | the receiver may copy these topics from now on |
//! | 12 copy | run (8), topic (text), its id or zeros (16), ends (each 8, up to the end) | send me the topic |
//! | 13 refused | run (8), topic (text), reason (1), explanation (text) | the topic is not sent |
//! | 14 listening | generation (8), listeners (up to the end) | all listeners of this site |
//! | 15 begun | run (8), topic (text) | records of this run of the topic have arrived |
//! | 16 advertised | epoch (8), number of topics (4) | this site wants no other topics of the receiver than these |
//!
//! The epoch of an advertisement grows with each start of a site, and each time it tells the receiver everything again
//! because the path to it is another one. A frame of kind 16 ends that: the receiver removes advertisements of earlier
//! epochs, if it has as many of this one as the frame says.
//!
//! The ends in a frame of kind 12 are those of the partitions of the copy, in their order.
//!
//! The generation of a list of listeners grows. An equal one repeats the list. A higher one with the same list tells
//! that the site now takes topics that it has refused.
//!
//! A listener has its kind (1: topics by a name or a pattern; 2: by a glob pattern), its topics (text), and its queue
//! group (text; empty if it is in none).
//!
//! A stream of a topic begins with a *head*: its length (2), its kind (1), the site of the publishers (text), a run
//! (8), the site that receives (text) and the topic (text).
//!
//! Kind 1 is a live topic, and the run that of the topic at the site of the publishers. Then the head has 1 (1) if a
//! frame of kind 15 from the receiver has confirmed the run, or the receiver has restarted since it was first sent
//! records of it, and 0 (1) otherwise. It ends with the queue groups that get the records at the receiver: 0 (1) for
//! all, or 1 (1), their number (2) and their names (texts, in their order). A receiver that does not take the topic
//! stops the stream with code 4. Each batch has its length (4), the number of its first record (8), the partition (4)
//! and its bytes. A site numbers the records of a topic for each receiver, from 0 on: a number that was skipped tells
//! that records were lost. The receiver answers the first batch of a stream whose run is not confirmed with a frame of
//! kind 15. If it does not know a confirmed run, it has restarted, and the records before were not lost.
//!
//! Kind 2 answers a frame of kind 12, and has its run. The head ends with the id of the topic (16) and the number of
//! its partitions (4). Then follow steps of partitions, each with its kind (1: a batch; 2: no records up to an offset;
//! 3: none any more, since retention has removed them), the length of the batch (4, or 0), the partition (4), the
//! offset after it (8), the end of the partition (8), and the batch, whose offsets are those of the origin.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::mesh::{GROUPS_PER_TOPIC_MAX, Groups, ListenedTopics, Member, SiteListener, SiteName};
use engine::{Error, Offset, PartitionId, Result, TopicId, TopicName};

/// Version of the frames.
pub const VERSION: u16 = 5;
/// Application protocol of links.
pub const ALPN: &[u8] = b"thalweg-mesh/1";
/// Maximum bytes of a control frame after its length.
pub const CONTROL_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the head of a topic's stream.
pub const HEAD_BYTES_MAX: usize = 32 << 10;
/// Bytes of a batch's frame before its bytes.
pub const BATCH_HEAD_BYTES: usize = 16;
/// Bytes of a step of a copy before its batch.
pub const STEP_BYTES: usize = 25;
/// Bytes of the secret of an invitation.
pub const SECRET_BYTES: usize = 16;

/// Maximum offset after a step of a copy.
pub const NEXT_OFFSET_MAX: Offset = 1 << 62;

const BY_PATTERN: u8 = 1;
const BY_GLOB: u8 = 2;
const LIVE: u8 = 1;
const COPY: u8 = 2;
/// Place of an id that is not known.
const NO_ID: [u8; 16] = [0; 16];

/// Control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Hello { version: u16, instance: u64, member: Member },
    Join { version: u16, secret: [u8; SECRET_BYTES], instance: u64, member: Member },
    Sites(Vec<Member>),
    Linked(Vec<SiteName>),
    Advertise { epoch: u64, topic: TopicName, ttl_ms: u64 },
    Withdraw { epoch: u64, topic: TopicName },
    LookUp { id: u64, topic: TopicName, watch_ms: u32 },
    Found { id: u64, sites: Vec<SiteName> },
    Changed { topic: TopicName, sites: Vec<SiteName> },
    Relayed { from: SiteName, to: SiteName, frame: Box<Frame> },
    Offered(Vec<TopicName>),
    Copy { run: u64, topic: TopicName, id: Option<TopicId>, ends: Vec<Offset> },
    Refused { run: u64, topic: TopicName, reason: Refusal, text: String },
    Listening { generation: u64, listeners: Vec<SiteListener> },
    Begun { run: u64, topic: TopicName },
    Advertised { epoch: u64, topics: u32 },
}

/// Reason why a site does not send a topic to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// Site has no such topic, or does not offer it.
    NotOffered = 1,
    /// Topic is not the one that was copied so far.
    Another = 2,
    /// Topic has fewer records than its copy.
    Shorter = 3,
    /// Site sends too many topics.
    Busy = 4,
    /// Topic cannot be read.
    Failed = 5,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::NotOffered, Self::Another, Self::Shorter, Self::Busy, Self::Failed];
}

impl Frame {
    /// Appends the frame with its length.
    pub fn put(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u32(0);
        self.put_body(out);
        let length = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn put_body(&self, out: &mut BytesMut) {
        let sites = |out: &mut BytesMut, sites: &[SiteName]| sites.iter().for_each(|site| put_text(out, site.as_str()));
        match self {
            Self::Hello { version, instance, member } => {
                out.put_u8(1);
                out.put_u16(*version);
                out.put_u64(*instance);
                put_member(out, member);
            }
            Self::Join { version, secret, instance, member } => {
                out.put_u8(2);
                out.put_u16(*version);
                out.put_slice(secret);
                out.put_u64(*instance);
                put_member(out, member);
            }
            Self::Sites(members) => {
                out.put_u8(3);
                members.iter().for_each(|member| put_member(out, member));
            }
            Self::Linked(linked) => {
                out.put_u8(4);
                sites(out, linked);
            }
            Self::Advertise { epoch, topic, ttl_ms } => {
                out.put_u8(5);
                out.put_u64(*epoch);
                put_text(out, topic.as_str());
                out.put_u64(*ttl_ms);
            }
            Self::Withdraw { epoch, topic } => {
                out.put_u8(6);
                out.put_u64(*epoch);
                put_text(out, topic.as_str());
            }
            Self::LookUp { id, topic, watch_ms } => {
                out.put_u8(7);
                out.put_u64(*id);
                put_text(out, topic.as_str());
                out.put_u32(*watch_ms);
            }
            Self::Found { id, sites: found } => {
                out.put_u8(8);
                out.put_u64(*id);
                sites(out, found);
            }
            Self::Changed { topic, sites: found } => {
                out.put_u8(9);
                put_text(out, topic.as_str());
                sites(out, found);
            }
            Self::Relayed { from, to, frame } => {
                out.put_u8(10);
                put_text(out, from.as_str());
                put_text(out, to.as_str());
                frame.put_body(out);
            }
            Self::Offered(topics) => {
                out.put_u8(11);
                topics.iter().for_each(|topic| put_text(out, topic.as_str()));
            }
            Self::Copy { run, topic, id, ends } => {
                out.put_u8(12);
                out.put_u64(*run);
                put_text(out, topic.as_str());
                out.put_slice(&id.map_or(NO_ID, TopicId::to_bytes));
                ends.iter().for_each(|end| out.put_u64(*end));
            }
            Self::Refused { run, topic, reason, text } => {
                out.put_u8(13);
                out.put_u64(*run);
                put_text(out, topic.as_str());
                out.put_u8(*reason as u8);
                put_text(out, text);
            }
            Self::Listening { generation, listeners } => {
                out.put_u8(14);
                out.put_u64(*generation);
                listeners.iter().for_each(|listener| put_listener(out, listener));
            }
            Self::Begun { run, topic } => {
                out.put_u8(15);
                out.put_u64(*run);
                put_text(out, topic.as_str());
            }
            Self::Advertised { epoch, topics } => {
                out.put_u8(16);
                out.put_u64(*epoch);
                out.put_u32(*topics);
            }
        }
    }

    /// Decodes a frame without its length.
    pub fn decode(body: Bytes) -> Result<Self> {
        let mut fields = Fields(body);
        let frame = Self::get(&mut fields, true)?;
        fields.end()?;
        Ok(frame)
    }

    fn get(fields: &mut Fields, may_be_relayed: bool) -> Result<Self> {
        Ok(match fields.u8()? {
            1 => Self::Hello { version: fields.u16()?, instance: fields.u64()?, member: fields.member()? },
            2 => Self::Join {
                version: fields.u16()?,
                secret: fields.array()?,
                instance: fields.u64()?,
                member: fields.member()?,
            },
            3 => Self::Sites(fields.all(Fields::member)?),
            4 => Self::Linked(fields.all(Fields::site)?),
            5 => Self::Advertise { epoch: fields.u64()?, topic: fields.topic()?, ttl_ms: fields.u64()? },
            6 => Self::Withdraw { epoch: fields.u64()?, topic: fields.topic()? },
            7 => Self::LookUp { id: fields.u64()?, topic: fields.topic()?, watch_ms: fields.u32()? },
            8 => Self::Found { id: fields.u64()?, sites: fields.all(Fields::site)? },
            9 => Self::Changed { topic: fields.topic()?, sites: fields.all(Fields::site)? },
            10 if may_be_relayed => {
                let (from, to) = (fields.site()?, fields.site()?);
                let frame = Box::new(Self::get(fields, false)?);
                Self::Relayed { from, to, frame }
            }
            11 => Self::Offered(fields.all(Fields::topic)?),
            12 => Self::Copy {
                run: fields.u64()?,
                topic: fields.topic()?,
                id: fields.id()?,
                ends: fields.all(Fields::u64)?,
            },
            13 => Self::Refused {
                run: fields.u64()?,
                topic: fields.topic()?,
                reason: fields.refusal()?,
                text: fields.text()?,
            },
            14 => Self::Listening { generation: fields.u64()?, listeners: fields.all(Fields::listener)? },
            15 => Self::Begun { run: fields.u64()?, topic: fields.topic()? },
            16 => Self::Advertised { epoch: fields.u64()?, topics: fields.u32()? },
            kind => return Err(Error::malformed(format!("a control frame has the unknown kind {kind}"))),
        })
    }
}

/// Head of a topic's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Site whose clients have published the records.
    pub from: SiteName,
    /// Run of a live topic at that site, which numbers again after a restart, or once the topic was deleted; run of
    /// the request for a copy.
    pub run: u64,
    /// Site that receives them.
    pub to: SiteName,
    pub topic: TopicName,
    /// Topic that is copied; `None` for a live one.
    pub origin: Option<Origin>,
    /// `true` if the receiver has confirmed that records of this run of a live topic have arrived, or has restarted
    /// since it was first sent some.
    pub is_confirmed: bool,
    /// Queue groups that get the records of a live topic.
    pub groups: Groups,
}

/// Topic that another site copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub id: TopicId,
    pub partitions: u32,
}

impl Head {
    /// Appends the head with its length.
    pub fn put(&self, out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        out.put_u8(if self.origin.is_some() { COPY } else { LIVE });
        put_text(out, self.from.as_str());
        out.put_u64(self.run);
        put_text(out, self.to.as_str());
        put_text(out, self.topic.as_str());
        if let Some(Origin { id, partitions }) = self.origin {
            out.put_slice(&id.to_bytes());
            out.put_u32(partitions);
        } else {
            out.put_u8(u8::from(self.is_confirmed));
            put_groups(out, &self.groups);
        }
        let length = (out.len() - at - 2) as u16;
        out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }

    /// Decodes a head without its length.
    pub fn decode(body: Bytes) -> Result<Self> {
        let mut fields = Fields(body);
        let kind = fields.u8()?;
        if !matches!(kind, LIVE | COPY) {
            return Err(Error::malformed(format!("a stream has the unknown kind {kind}")));
        }
        let (from, run, to, topic) = (fields.site()?, fields.u64()?, fields.site()?, fields.topic()?);
        let (origin, is_confirmed, groups) = if kind == COPY {
            (Some(fields.origin()?), false, Groups::All)
        } else {
            (None, fields.flag()?, fields.groups()?)
        };
        let head = Self { from, run, to, topic, origin, is_confirmed, groups };
        fields.end()?;
        Ok(head)
    }
}

/// Frame of a batch before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Bytes of the batch.
    pub length: usize,
    /// Number of the first record.
    pub number: u64,
    pub partition: PartitionId,
}

impl BatchHead {
    pub fn put(self, out: &mut BytesMut) {
        out.put_u32(self.length as u32);
        out.put_u64(self.number);
        out.put_u32(self.partition);
    }

    pub fn decode(bytes: &[u8; BATCH_HEAD_BYTES]) -> Self {
        let mut bytes = &bytes[..];
        Self { length: bytes.get_u32() as usize, number: bytes.get_u64(), partition: bytes.get_u32() }
    }
}

/// Step of a partition that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: StepKind,
    /// Bytes of the batch that follows; 0 if none does.
    pub length: usize,
    pub partition: PartitionId,
    /// Offset after the step.
    pub next: Offset,
    /// End of the partition at its origin.
    pub end: Offset,
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StepKind {
    /// Batch follows.
    Batch = 1,
    /// Offsets have no records: they were compacted, or belong to transactions.
    Skipped = 2,
    /// Retention has removed the records of these offsets.
    Lost = 3,
}

impl Step {
    pub fn put(self, out: &mut BytesMut) {
        out.put_u8(self.kind as u8);
        out.put_u32(self.length as u32);
        out.put_u32(self.partition);
        out.put_u64(self.next);
        out.put_u64(self.end);
    }

    pub fn decode(bytes: &[u8; STEP_BYTES]) -> Result<Self> {
        let mut bytes = &bytes[..];
        let kind = match bytes.get_u8() {
            1 => StepKind::Batch,
            2 => StepKind::Skipped,
            3 => StepKind::Lost,
            kind => return Err(Error::malformed(format!("a step of a copy has the unknown kind {kind}"))),
        };
        let length = bytes.get_u32() as usize;
        let (partition, next, end) = (bytes.get_u32(), bytes.get_u64(), bytes.get_u64());
        if next > NEXT_OFFSET_MAX {
            return Err(Error::malformed(format!("a step of a copy reaches up to offset {next}")));
        }
        if (kind == StepKind::Batch) == (length == 0) {
            return Err(Error::malformed("a step of a copy has a batch, or another length than 0"));
        }
        Ok(Self { kind, length, partition, next, end })
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u16(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn put_member(out: &mut BytesMut, member: &Member) {
    let bytes = member.encode();
    out.put_u32(bytes.len() as u32);
    out.put_slice(&bytes);
}

fn put_listener(out: &mut BytesMut, listener: &SiteListener) {
    let (kind, text) = match &listener.topics {
        ListenedTopics::Name(name) => (BY_PATTERN, name.as_str()),
        ListenedTopics::Wildcard(pattern) => (BY_PATTERN, &**pattern),
        ListenedTopics::Glob(pattern) => (BY_GLOB, &**pattern),
    };
    out.put_u8(kind);
    put_text(out, text);
    put_text(out, listener.group.as_deref().unwrap_or_default());
}

fn put_groups(out: &mut BytesMut, groups: &Groups) {
    match groups {
        Groups::All => out.put_u8(0),
        Groups::These(names) => {
            out.put_u8(1);
            out.put_u16(names.len() as u16);
            names.iter().for_each(|name| put_text(out, name));
        }
    }
}

/// Reader of fields, one after the other.
struct Fields(Bytes);

impl Fields {
    fn u8(&mut self) -> Result<u8> {
        self.0.try_get_u8().map_err(cut_short)
    }

    fn u16(&mut self) -> Result<u16> {
        self.0.try_get_u16().map_err(cut_short)
    }

    fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(cut_short)
    }

    fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(cut_short)
    }

    fn bytes(&mut self, length: usize) -> Result<Bytes> {
        if self.0.len() < length {
            return Err(Error::malformed(format!("a field has {length} bytes, and {} are left", self.0.len())));
        }
        Ok(self.0.split_to(length))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N)?);
        Ok(array)
    }

    fn text(&mut self) -> Result<String> {
        let length = usize::from(self.u16()?);
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes.into()).map_err(|error| Error::malformed(format!("a text is not UTF-8: {error}")))
    }

    fn site(&mut self) -> Result<SiteName> {
        SiteName::parse(&self.text()?)
    }

    fn topic(&mut self) -> Result<TopicName> {
        TopicName::parse(&self.text()?)
    }

    fn id(&mut self) -> Result<Option<TopicId>> {
        let bytes = self.array()?;
        Ok((bytes != NO_ID).then(|| TopicId::from_bytes(bytes)))
    }

    fn origin(&mut self) -> Result<Origin> {
        let id = self.id()?.ok_or_else(|| Error::malformed("a topic that is copied has no id"))?;
        Ok(Origin { id, partitions: self.u32()? })
    }

    fn refusal(&mut self) -> Result<Refusal> {
        let code = self.u8()?;
        let known = Refusal::ALL.into_iter().find(|reason| *reason as u8 == code);
        known.ok_or_else(|| Error::malformed(format!("a refusal has the unknown reason {code}")))
    }

    fn listener(&mut self) -> Result<SiteListener> {
        let (kind, text, group) = (self.u8()?, self.text()?, self.text()?);
        let topics = match kind {
            BY_PATTERN => ListenedTopics::parse(&text)?,
            BY_GLOB => ListenedTopics::glob(&text)?,
            _ => return Err(Error::malformed(format!("a listener has the unknown kind {kind}"))),
        };
        SiteListener::new(topics, (!group.is_empty()).then_some(&*group))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::malformed(format!("a flag is {other}, not 0 or 1"))),
        }
    }

    fn groups(&mut self) -> Result<Groups> {
        match self.u8()? {
            0 => return Ok(Groups::All),
            1 => {}
            other => return Err(Error::malformed(format!("queue groups begin with {other}, not with 0 or 1"))),
        }
        let count = usize::from(self.u16()?);
        if count > GROUPS_PER_TOPIC_MAX {
            return Err(Error::malformed(format!("{count} queue groups are named, at most {GROUPS_PER_TOPIC_MAX}")));
        }
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            names.push(self.text()?.into_boxed_str());
        }
        if !names.is_sorted() {
            return Err(Error::malformed("queue groups are not in the order of their names"));
        }
        Ok(Groups::These(names.into()))
    }

    fn member(&mut self) -> Result<Member> {
        let length = self.u32()? as usize;
        Member::decode(&self.bytes(length)?)
    }

    /// Reads fields up to the end.
    fn all<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = Vec::new();
        while !self.0.is_empty() {
            all.push(read(self)?);
        }
        Ok(all)
    }

    fn end(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(Error::malformed(format!("{left} bytes are left after the last field"))),
        }
    }
}

fn cut_short(error: bytes::TryGetError) -> Error {
    Error::malformed(format!("it ends before its last field: {error}"))
}
