//! Schemas of all projects: creation, revisions, deletion, and validation of messages.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Code, Definition, Encoding, Info, Kind, REVISIONS_MAX, Refusal, Revision, SCHEMAS_MAX, shortened};

/// Maximum number of deleted revisions of a schema whose positions are kept for ranges that name them. The oldest are
/// removed.
const DELETED_MAX: usize = 100;
/// Maximum bytes of cached definitions, counted by their texts; they are cached with their parsed form. Beyond it, all
/// are dropped and read again when they are needed.
const CACHE_BYTES_MAX: usize = 8 << 20;

/// Storage of revisions: values by name, durable once `put` returns.
pub trait Documents: Send + Sync + 'static {
    /// Stores a value; `None` removes it.
    fn put(&self, name: &str, value: Option<Bytes>) -> impl Future<Output = engine::Result<()>> + Send;
    /// Returns the values whose names have this prefix, in the order of their names.
    fn list(&self, prefix: &str) -> impl Future<Output = engine::Result<Vec<(String, Bytes)>>> + Send;
}

/// Range of revisions that messages of a topic may follow: from `first` to `last`; an empty end is open.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    pub first: &'a str,
    pub last: &'a str,
}

pub struct Schemas<D> {
    documents: D,
    /// Held while revisions are read and then written.
    writing: tokio::sync::Mutex<()>,
    cache: Mutex<Cache>,
}

/// Cached schemas by name. Every write removes its schema.
#[derive(Default)]
struct Cache {
    schemas: HashMap<String, Arc<Vec<Entry>>>,
    bytes: usize,
    /// Number of writes: data that was read before a write is not cached after it.
    writes: u64,
}

/// Revision, which may be deleted, with its definition once it was parsed.
struct Entry {
    revision: Revision,
    definition: OnceLock<Definition>,
}

impl Entry {
    fn definition(&self) -> Result<&Definition, Refusal> {
        if let Some(known) = self.definition.get() {
            return Ok(known);
        }
        let definition = Definition::parse(self.revision.kind, self.text().unwrap_or_default())?;
        Ok(self.definition.get_or_init(|| definition))
    }

    /// Returns the text of the definition; `None` once it is deleted.
    fn text(&self) -> Option<&str> {
        self.revision.definition.as_deref()
    }
}

/// Revisions that a message is checked against, as they were when its request began.
pub struct Candidates {
    name: String,
    all: Arc<Vec<Entry>>,
    first: u64,
    last: u64,
}

/// Message that a revision refused.
struct Tried<'c> {
    revision: &'c Revision,
    why: String,
}

impl Candidates {
    /// Returns the revisions, newest first.
    fn newest_first(&self) -> impl Iterator<Item = &Entry> {
        let range = self.first..=self.last;
        live(&self.all).rev().filter(move |entry| range.contains(&entry.revision.number))
    }

    /// Checks that a message may be published. Returns the id of the newest revision that it conforms to.
    ///
    /// A short message can take a millisecond per revision. Other tasks run after each revision that refuses it.
    pub async fn check(&self, encoding: Encoding, message: &[u8]) -> Result<String, Refusal> {
        let mut refused = None;
        for entry in self.newest_first() {
            match entry.definition()?.check(encoding, message) {
                Ok(()) => return Ok(entry.revision.id.clone()),
                Err(why) => refused = Some(Tried { revision: &entry.revision, why: why.to_string() }),
            }
            tokio::task::yield_now().await;
        }
        Err(self.refusal(encoding, refused))
    }

    /// Checks a message as [`check`](Self::check) does, on a thread that has nothing else to do.
    pub fn check_alone(&self, encoding: Encoding, message: &[u8]) -> Result<String, Refusal> {
        let mut refused = None;
        for entry in self.newest_first() {
            match entry.definition()?.check(encoding, message) {
                Ok(()) => return Ok(entry.revision.id.clone()),
                Err(why) => refused = Some(Tried { revision: &entry.revision, why: why.to_string() }),
            }
        }
        Err(self.refusal(encoding, refused))
    }

    fn refusal(&self, encoding: Encoding, refused: Option<Tried<'_>>) -> Refusal {
        let Some(Tried { revision, why }) = refused else {
            return Refusal::not_found("Schema associated with topic deleted.");
        };
        let tried = format!(
            "Could not validate message with any schema revision for schema: {}, last checked revision: revision_id={} \
             failed with status: {why}",
            self.name, revision.id
        );
        invalid_message(revision.kind, encoding, tried)
    }
}

impl<D: Documents> Schemas<D> {
    pub fn new(documents: D) -> Self {
        Self { documents, writing: tokio::sync::Mutex::default(), cache: Mutex::default() }
    }

    /// Creates a schema with this full name.
    pub async fn create(&self, name: &str, kind: Kind, text: &str, now_ms: u64) -> Result<Revision, Refusal> {
        expect_name(name)?;
        Definition::parse(kind, text)?;
        let _writing = self.writing.lock().await;
        let all = self.all(name).await?;
        if live(&all).next().is_some() {
            return Err(Refusal::new(Code::AlreadyExists, "Schema already exists"));
        }
        let project = name.rsplit_once('/').map_or(name, |(project, _)| project);
        if self.names(&format!("{project}/")).await?.len() >= SCHEMAS_MAX {
            return Err(Refusal::new(Code::ResourceExhausted, "Already at maximum number of schemas"));
        }
        self.append(name, kind, text, &all, now_ms).await
    }

    /// Adds a revision that is compatible with the newest one. An equal text is a new revision, too.
    pub async fn commit(&self, name: &str, kind: Kind, text: &str, now_ms: u64) -> Result<Revision, Refusal> {
        let new = Definition::parse(kind, text)?;
        let _writing = self.writing.lock().await;
        let all = self.all(name).await?;
        let newest = live(&all).next_back().ok_or_else(|| Refusal::not_found("Schema not found"))?;
        expect_room(&all)?;
        new.expect_compatible(newest.definition()?).map_err(|why| {
            let message = format!("Schema revision is not compatible with revision {}: {why}", newest.revision.id);
            Refusal::new(Code::InvalidArgument, message)
        })?;
        self.append(name, kind, text, &all, now_ms).await
    }

    /// Adds a revision with the definition of an older one.
    pub async fn roll_back(&self, name: &str, id: &str, now_ms: u64) -> Result<Revision, Refusal> {
        if id.is_empty() {
            return Err(Refusal::new(Code::InvalidArgument, "Missing revision ID"));
        }
        let _writing = self.writing.lock().await;
        let all = self.all(name).await?;
        let old = find(&all, id)?;
        expect_room(&all)?;
        self.append(name, old.revision.kind, old.text().unwrap_or_default(), &all, now_ms).await
    }

    /// Deletes one revision and returns the newest of the others.
    pub async fn delete_revision(&self, name: &str, id: &str) -> Result<Revision, Refusal> {
        if id.is_empty() {
            return Err(Refusal::new(Code::InvalidArgument, "Missing revision ID"));
        }
        let _writing = self.writing.lock().await;
        let all = self.all(name).await?;
        let old = find(&all, id)?;
        let Some(newest) = live(&all).rfind(|entry| entry.revision.id != id) else {
            let message = "Cannot delete last revision. Please use DeleteSchema.";
            return Err(Refusal::new(Code::InvalidArgument, message));
        };
        let deleted = Revision { definition: None, ..old.revision.clone() };
        self.put(&deleted, Some(deleted.encode())).await?;
        let dead: Vec<_> = all.iter().filter(|entry| entry.text().is_none()).collect();
        for oldest in dead.iter().take((dead.len() + 1).saturating_sub(DELETED_MAX)) {
            self.put(&oldest.revision, None).await?;
        }
        Ok(newest.revision.clone())
    }

    pub async fn delete(&self, name: &str) -> Result<(), Refusal> {
        let _writing = self.writing.lock().await;
        let all = self.all(name).await?;
        live(&all).next().ok_or_else(|| Refusal::not_found("Schema not found"))?;
        for entry in all.iter() {
            self.put(&entry.revision, None).await?;
        }
        Ok(())
    }

    /// Returns the newest revision of a schema, or the one that its name ends with: `projects/P/schemas/S@ID`.
    pub async fn get(&self, name: &str) -> Result<Revision, Refusal> {
        let all = self.all(split(name).0).await?;
        Ok(named(&all, name)?.revision.clone())
    }

    /// Returns all revisions of a schema, newest first.
    pub async fn revisions(&self, name: &str) -> Result<Vec<Revision>, Refusal> {
        let all = self.all(name).await?;
        named(&all, name)?;
        Ok(live(&all).rev().map(|entry| entry.revision.clone()).collect())
    }

    /// Returns the names of the schemas of a project (`projects/P`), in order.
    pub async fn list(&self, project: &str) -> Result<Vec<String>, Refusal> {
        self.names(&format!("{project}/schemas/")).await
    }

    /// Checks that a topic may use this schema with this range.
    pub async fn check_range(&self, name: &str, range: Range<'_>) -> Result<(), Refusal> {
        let all = self.all(name).await?;
        live(&all).next().ok_or_else(|| Refusal::not_found("Schema could not be found"))?;
        let place = |id: &str, missing: &str| match id {
            "" => Ok(None),
            id => all
                .iter()
                .find(|entry| entry.revision.id == id)
                .map_or_else(|| Err(Refusal::not_found(missing)), |entry| Ok(Some(entry.revision.number))),
        };
        let first = place(range.first, "First revision could not be found")?;
        let last = place(range.last, "Last revision could not be found")?;
        if first.zip(last).is_some_and(|(first, last)| first > last) {
            let message = "First revision creation time is after last revision creation time";
            return Err(Refusal::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    /// Returns the revisions in a range, which messages of a topic with this schema may follow.
    pub async fn candidates(&self, name: &str, range: Range<'_>) -> Result<Candidates, Refusal> {
        let all = self.all(name).await?;
        let place = |id: &str| all.iter().find(|entry| entry.revision.id == id).map(|found| found.revision.number);
        let first = place(range.first).unwrap_or(0);
        let last = place(range.last).unwrap_or(u64::MAX);
        Ok(Candidates { name: name.to_owned(), all, first, last })
    }

    /// Checks a message against the newest revision of a schema, or against the one in its name.
    pub async fn check_against(&self, name: &str, encoding: Encoding, message: &[u8]) -> Result<(), Refusal> {
        let all = self.all(split(name).0).await?;
        let entry = named(&all, name)?;
        entry.definition()?.admit(encoding, message)
    }

    /// Returns all revisions of a schema in order, including deleted ones.
    async fn all(&self, name: &str) -> Result<Arc<Vec<Entry>>, Refusal> {
        expect_name(name)?;
        let writes = {
            let cache = self.cache.lock();
            if let Some(known) = cache.schemas.get(name) {
                return Ok(known.clone());
            }
            cache.writes
        };
        let mut all = Vec::new();
        for (document, value) in self.documents.list(&format!("{name}@")).await? {
            all.push(Entry { revision: Revision::decode(&document, &value)?, definition: OnceLock::new() });
        }
        all.sort_by_key(|entry| entry.revision.number);
        let all = Arc::new(all);
        let bytes = text_bytes(&all);
        let mut cache = self.cache.lock();
        // A nonexistent schema is not cached.
        if cache.writes == writes && !all.is_empty() {
            if cache.bytes + bytes > CACHE_BYTES_MAX {
                *cache = Cache { writes, ..Cache::default() };
            }
            if cache.schemas.insert(name.to_owned(), all.clone()).is_none() {
                cache.bytes += bytes;
            }
        }
        Ok(all)
    }

    /// Writes or removes a revision.
    async fn put(&self, revision: &Revision, value: Option<Bytes>) -> Result<(), Refusal> {
        let written = self.documents.put(&revision.document_name(), value).await;
        // Also after an error, because the write may have been carried out.
        let mut cache = self.cache.lock();
        cache.writes += 1;
        if let Some(forgotten) = cache.schemas.remove(&revision.schema) {
            cache.bytes -= text_bytes(&forgotten);
        }
        Ok(written?)
    }

    async fn names(&self, prefix: &str) -> Result<Vec<String>, Refusal> {
        let documents = self.documents.list(prefix).await?.into_iter();
        let mut names: Vec<String> =
            documents.filter_map(|(name, _)| name.rsplit_once('@').map(|(name, _)| name.to_owned())).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn append(
        &self,
        name: &str,
        kind: Kind,
        text: &str,
        all: &[Entry],
        now_ms: u64,
    ) -> Result<Revision, Refusal> {
        let id = new_id(|id| all.iter().any(|entry| entry.revision.id == id))?;
        let revision = Revision {
            schema: name.to_owned(),
            id,
            kind,
            definition: Some(text.to_owned()),
            number: all.last().map_or(1, |last| last.revision.number + 1),
            created_ms: now_ms,
        };
        self.put(&revision, Some(revision.encode())).await?;
        Ok(revision)
    }
}

fn text_bytes(all: &[Entry]) -> usize {
    all.iter().filter_map(Entry::text).map(str::len).sum()
}

fn live(all: &[Entry]) -> impl DoubleEndedIterator<Item = &Entry> {
    all.iter().filter(|entry| entry.text().is_some())
}

/// Splits the name of a schema from the revision that it may end with.
fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, ""))
}

/// Returns the newest revision of a schema, or the one that its name ends with.
fn named<'a>(all: &'a [Entry], name: &str) -> Result<&'a Entry, Refusal> {
    match split(name).1 {
        "" => live(all).next_back().ok_or_else(|| Refusal::not_found("Schema not found")),
        id => find(all, id),
    }
}

fn find<'a>(all: &'a [Entry], id: &str) -> Result<&'a Entry, Refusal> {
    live(all).next().ok_or_else(|| Refusal::not_found("Schema not found"))?;
    live(all).find(|entry| entry.revision.id == id).ok_or_else(|| Refusal::not_found("Schema revision not found"))
}

fn expect_room(all: &[Entry]) -> Result<(), Refusal> {
    if live(all).count() < REVISIONS_MAX {
        return Ok(());
    }
    Err(Refusal::new(Code::ResourceExhausted, "Already at maximum number of schema revisions"))
}

pub(super) fn invalid_message(kind: Kind, encoding: Encoding, why: String) -> Refusal {
    let reason = match (kind, encoding) {
        (Kind::Avro, Encoding::Json) => "INVALID_JSON_AVRO_MESSAGE",
        (Kind::Avro, Encoding::Binary) => "INVALID_BINARY_AVRO_MESSAGE",
        (Kind::ProtocolBuffer, Encoding::Json) => "INVALID_JSON_PROTO_MESSAGE",
        (Kind::ProtocolBuffer, Encoding::Binary) => "INVALID_BINARY_PROTO_MESSAGE",
    };
    let metadata = vec![("message", "Message failed schema validation".to_owned()), ("revisionInfo", why)];
    Refusal {
        info: Some(Box::new(Info { reason, metadata })),
        ..Refusal::new(Code::InvalidArgument, "Invalid data in message: Message failed schema validation.")
    }
}

/// Checks that a name has the form `projects/P/schemas/S`.
fn expect_name(name: &str) -> Result<(), Refusal> {
    let mut parts = name.split('/');
    let is_name = match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("projects"), Some(project), Some("schemas"), Some(id), None) => !project.is_empty() && is_id(id),
        _ => false,
    };
    if is_name {
        return Ok(());
    }
    let message = format!("Invalid [schemas] name: (name={})", shortened(name));
    Err(Refusal::new(Code::InvalidArgument, message))
}

fn is_id(id: &str) -> bool {
    let is_in = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~+%".contains(&byte);
    (3..=255).contains(&id.len())
        && id.as_bytes()[0].is_ascii_alphabetic()
        && id.bytes().all(is_in)
        && !id.to_ascii_lowercase().starts_with("goog")
}

/// Returns a new random id of eight hexadecimal digits.
fn new_id(is_taken: impl Fn(&str) -> bool) -> Result<String, Refusal> {
    loop {
        let mut random = [0; 4];
        aws_lc_rs::rand::fill(&mut random).map_err(|error| {
            Refusal::new(Code::Unavailable, format!("cannot get random numbers from the system: {error}"))
        })?;
        let id = format!("{:08x}", u32::from_be_bytes(random));
        if !is_taken(&id) {
            return Ok(id);
        }
    }
}

#[cfg(test)]
impl<D: Documents> Schemas<D> {
    pub async fn check(
        &self,
        name: &str,
        range: Range<'_>,
        encoding: Encoding,
        message: &[u8],
    ) -> Result<String, Refusal> {
        let candidates = self.candidates(name, range).await?;
        let checked = candidates.check(encoding, message).await;
        assert_eq!(candidates.check_alone(encoding, message), checked);
        checked
    }

    pub fn documents(&self) -> &D {
        &self.documents
    }

    pub fn cached_bytes(&self) -> usize {
        self.cache.lock().bytes
    }
}
