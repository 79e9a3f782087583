//! The log of the audit: the topic `_audit` and, if one is configured, a file. One task writes both.

use std::borrow::Borrow;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::ids::AUDIT_TOPIC;
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::acting::{self, Acting};
use crate::audit::{Event, Record};
use crate::core::Core;
use crate::wakes::Wakes;

/// Maximum records that are written together.
const TOGETHER_MAX: usize = 1024;
/// Pause after a failed write.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum size of the topic on disk, and in memory.
const TOPIC_BYTES: u64 = 1 << 30;
const TOPIC_MEMORY_BYTES: u64 = 16 << 20;
const FILE_MODE: u32 = 0o600;

impl Core {
    /// Does an administrative act, and records its outcome. `action` is a verb with its object, such as `delete topic`.
    pub(crate) async fn audited<T, E: Borrow<Error>>(
        &self,
        action: &'static str,
        name: &str,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let outcome = act.await;
        self.record_act(action, name, outcome.as_ref().err().map(Borrow::borrow));
        outcome
    }

    /// Records an administrative act of the client for whom this thread works.
    pub fn record_act(&self, action: &'static str, name: &str, error: Option<&Error>) {
        self.record(Some(action), name, error);
    }

    /// Records a login.
    pub(crate) fn record_login(&self, client: Acting, error: Option<&Error>) {
        let user = client.user.clone();
        self.audit().add(&Event { acting: client, action: Some("login"), name: user.as_str(), error }, self.now_ms());
    }

    /// Records a request of the client for whom this thread works, which was refused for want of a permission. If there
    /// are many, only some are recorded.
    pub(crate) fn record_refusal(&self, request: &str, error: &Error) {
        self.record(None, request, Some(error));
    }

    /// The broker's own acts are not recorded.
    fn record(&self, action: Option<&str>, name: &str, error: Option<&Error>) {
        if self.audit().is_on()
            && let Some(acting) = acting::current()
        {
            self.audit().add(&Event { acting, action, name, error }, self.now_ms());
        }
    }

    /// Starts the task that writes records, if the audit is on.
    pub(crate) fn start_audit(self: &Arc<Self>, runtime: &Handle) {
        if self.audit().is_on() {
            runtime.spawn(write(Arc::downgrade(self), self.audit().added().clone()));
        }
    }

    /// Writes records that wait, up to [`TOGETHER_MAX`]. Returns `true` if more may wait.
    pub(crate) fn write_audit(&self) -> Result<bool> {
        let records = self.audit().take(TOGETHER_MAX);
        if records.is_empty() {
            return Ok(false);
        }
        let in_topic = self.append_audit(&records);
        self.audit().count(records.len(), in_topic.is_ok());
        in_topic.and(self.append_audit_file(&records)).map(|()| true)
    }

    fn append_audit(&self, records: &[Record]) -> Result<()> {
        let topic = match self.topic(AUDIT_TOPIC) {
            Ok(topic) => topic,
            Err(_missing) => self.create(TopicName::parse(AUDIT_TOPIC)?, self.audit_topic())?.0,
        };
        let mut wakes = Wakes::default();
        let records =
            records.iter().map(|record| (record.user.clone().into_bytes(), Some(record.json.clone().into_bytes())));
        self.append_records(&topic, 0, records, &mut wakes).map(drop)
    }

    fn audit_topic(&self) -> TopicSettings {
        let (storage, retention_bytes) = match self.store() {
            Some(_) => (Storage::Disk, TOPIC_BYTES),
            None => (Storage::Memory, TOPIC_MEMORY_BYTES),
        };
        let retention_ms = u64::try_from(self.settings().audit.retention.as_millis()).unwrap_or_default();
        TopicSettings { partitions: 1, retention_bytes, retention_ms, storage, ..TopicSettings::default() }
    }

    /// Appends records to the file, one per line. It is opened each time, so that it can be moved away.
    fn append_audit_file(&self, records: &[Record]) -> Result<()> {
        let Some(path) = &self.settings().audit.file else { return Ok(()) };
        let lines: String = records.iter().flat_map(|record| [record.json.as_str(), "\n"]).collect();
        let opened = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path);
        opened.and_then(|mut file| file.write_all(lines.as_bytes())).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("cannot write the audit to {}: {error}", path.display()))
        })
    }
}

/// Writes records for as long as the broker exists.
async fn write(core: Weak<Core>, added: Arc<Notify>) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let written = tokio::task::spawn_blocking(move || core.write_audit()).await;
        match written {
            Ok(Ok(true)) => continue,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "cannot write records of the audit");
                tokio::time::sleep(RETRY_AFTER).await;
            }
            Err(error) => return tracing::error!(%error, "the audit has ended"),
        }
        added.notified().await;
    }
}
