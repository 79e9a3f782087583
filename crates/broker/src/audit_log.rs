//! The log of the audit: the topic `_audit` and, if one is configured, a file. One task writes both.

use std::borrow::Borrow;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::ids::AUDIT_TOPIC;
use engine::security::UserName;
use engine::{Error, ErrorKind, Result, Storage, TopicName, TopicSettings};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::acting::{self, Acting};
use crate::audit::{Event, LOGIN, Outcome, Record};
use crate::commit::Commit;
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
/// Maximum time for which an act waits for its record, if the record cannot be written after it.
const AHEAD_WAIT: Duration = Duration::from_secs(1);

impl Core {
    /// Does an administrative act, and records its outcome. `action` is a verb with its object, such as `delete topic`.
    pub(crate) async fn audited<T, E: Borrow<Error>>(
        &self,
        action: &'static str,
        name: &str,
        act: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begun = Begun { core: self, acting: acting::current(), action, name };
        let outcome = act.await;
        begun.end(outcome.as_ref().err().map(Borrow::borrow).into());
        outcome
    }

    /// Records an administrative act of the client for whom this thread works. The broker's own acts are not recorded.
    pub fn record_act(&self, action: &'static str, name: &str, error: Option<&Error>) {
        self.record(acting::current(), Some(action), name, error.into());
    }

    /// Records an act before it is done, because the broker may end with it, and waits until the record is durable, at
    /// most for [`AHEAD_WAIT`].
    pub(crate) async fn record_ahead(&self, action: &'static str, name: &str) {
        let Some(acting) = acting::current().filter(|_| self.audit().is_on()) else { return };
        let event = Event { acting, action: Some(action), name, outcome: Outcome::Done };
        let commit = self.append_all(&[event.record(self.now_ms(), 0, 0)]);
        let written = match commit {
            Ok(commit) => tokio::time::timeout(AHEAD_WAIT, commit.wait()).await.unwrap_or_else(|late| {
                Err(Error::new(ErrorKind::Timeout, format!("the record of an act is not durable in time: {late}")))
            }),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::error!(%error, action, "cannot write a record of the audit");
        }
    }

    /// Records a login.
    pub(crate) fn record_login(&self, client: Acting, error: Option<&Error>) {
        let user = client.user.clone();
        self.record(Some(client), Some(LOGIN), user.as_str(), error.into());
    }

    /// Records a request of a user, which was refused for want of a permission. If there are many, only some are
    /// recorded.
    pub(crate) fn record_refusal(&self, user: &UserName, request: &str, error: &Error) {
        let acting = acting::current().map(|acting| Acting { user: user.clone(), ..acting });
        self.record(acting, None, request, Outcome::Error(error));
    }

    fn record(&self, acting: Option<Acting>, action: Option<&str>, name: &str, outcome: Outcome<'_>) {
        if self.audit().is_on()
            && let Some(acting) = acting
        {
            self.audit().add(&Event { acting, action, name, outcome }, self.now_ms());
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
        self.append_all(&records).map(|_| true)
    }

    /// Appends records to the topic and to the file.
    fn append_all(&self, records: &[Record]) -> Result<Commit> {
        let in_topic = self.append_audit(records);
        self.audit().count(records.len(), in_topic.is_ok());
        if let Err(error) = self.append_audit_file(records) {
            tracing::error!(%error, "records of the audit are in the topic only");
        }
        in_topic
    }

    fn append_audit(&self, records: &[Record]) -> Result<Commit> {
        let topic = match self.topic(AUDIT_TOPIC) {
            Ok(topic) => topic,
            Err(_missing) => self.create(TopicName::parse(AUDIT_TOPIC)?, self.audit_topic())?.0,
        };
        let mut wakes = Wakes::default();
        let records =
            records.iter().map(|record| (record.user.clone().into_bytes(), Some(record.json.clone().into_bytes())));
        self.append_records(&topic, 0, records, &mut wakes).map(|appended| appended.commit)
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

/// An act that has begun. If it is dropped before its end, as with the connection of its client, its outcome is
/// unknown: the act may continue.
struct Begun<'a> {
    core: &'a Core,
    acting: Option<Acting>,
    action: &'static str,
    name: &'a str,
}

impl Begun<'_> {
    fn end(mut self, outcome: Outcome<'_>) {
        self.record(outcome);
    }

    fn record(&mut self, outcome: Outcome<'_>) {
        if let Some(acting) = self.acting.take() {
            self.core.record(Some(acting), Some(self.action), self.name, outcome);
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.record(Outcome::Unknown);
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
                continue;
            }
            Err(error) => return tracing::error!(%error, "the audit has ended"),
        }
        added.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use engine::security::UserName;
    use serde_json::Value;

    use super::*;
    use crate::acting::for_client;
    use crate::audit::AuditSettings;
    use crate::broker::Broker;
    use crate::doors::Door;
    use crate::settings::Settings;

    #[tokio::test]
    async fn an_act_whose_client_leaves_has_a_record() {
        let audit = AuditSettings { is_on: true, ..AuditSettings::default() };
        let settings = Settings { audit, ..Settings::default() };
        let broker = Broker::start(settings, &[Handle::current()]).expect("started");
        let ann = UserName::parse("ann").expect("a name");
        let client = Acting { user: ann, ..Acting::anonymous(Door::Http, None) };
        let act = broker.audited("delete topic", "t", pending::<Result<()>>());
        let begun = tokio::time::timeout(Duration::from_millis(10), for_client(client, act)).await;
        assert!(begun.is_err(), "it does not end");
        broker.record_act("delete topic", "of the broker itself", None);
        // The task of the broker may have taken the record already.
        while broker.write_audit().expect("written") {}
        let topic = broker.topic(AUDIT_TOPIC);
        let mut records = Vec::new();
        while records.is_empty() {
            let Ok(topic) = &topic else { panic!("no record was written") };
            broker
                .read_records(topic, |_, view, _| {
                    records.push(serde_json::from_slice::<Value>(view.value.unwrap_or_default()).expect("JSON"));
                    Ok(())
                })
                .await
                .expect("read");
        }
        assert_eq!(records.len(), 1, "{records:?}");
        assert_eq!((&records[0]["user"], &records[0]["outcome"]), (&"ann".into(), &"unknown".into()));
    }
}
