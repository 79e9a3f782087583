//! Tasks of push subscriptions: one for each subscription with an endpoint, restarted when it changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use broker::{Broker, Identity, Receipt, Receive};
use engine::ErrorKind;
use engine::queue::{QueueDefinition, QueueId};
use engine::security::{ADMINISTRATOR, Operation, RoleName, UserName};
use net::Drain;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::errors::{Code, Failure, Result};
use super::map::Door;
use super::proto::push_config::{AuthenticationMethod, Wrapper as Configured};
use super::pull;
use super::push::{Message, Oidc, PushTask, Received, SigningKey, Source, Target, Wrapper};
use super::times::timestamp_ms;
use super::transforms::Delivery;

/// Name of the secret with the signing key of the broker's tokens.
const KEY: &str = "pubsub.push_key";
/// Document in which older versions stored the key, in a topic that clients could read.
const KEY_DOCUMENT: (&str, &str) = ("pubsub.key", "push");
/// Name of the broker in its tokens.
const ISSUER: &str = "thalweg";
/// Duration of a lease beyond the endpoint's time for its response.
const LEASE_RESERVE: Duration = Duration::from_secs(5);
/// Wait for messages before the task receives again.
const RECEIVE_WAIT: Duration = Duration::from_secs(60);
const RECEIVE_BYTES_MAX: usize = 10 << 20;
/// Delay before a retry if the subscriptions could not be read.
const AGAIN: Duration = Duration::from_secs(1);
/// Delay before a subscription is checked again whose owner may not read it.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
/// Interval at which all subscriptions are read: another door can delete one, which does not notify this one.
const READ_ALL: Duration = Duration::from_secs(60);
/// Note of a queue that names its owner: the client that has set the endpoint. It has a line for the host, one for the
/// user, and one for each role of the client's credential.
pub(super) const OWNER: &str = "pubsub.push_owner";

/// Returns the note with the owner of a subscription whose endpoint this client sets; `None` for the administrator, who
/// may read everything.
pub(super) fn owner_note(identity: &Identity) -> Option<String> {
    let roles = identity.roles().iter().map(RoleName::as_str);
    let lines = [identity.host(), identity.user().as_str()].into_iter().chain(roles);
    (identity.user().as_str() != ADMINISTRATOR).then(|| lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the owner that a note names. A note that cannot be read names a user without permissions.
fn owner_of(broker: &Broker, note: &str) -> Identity {
    let mut lines = note.split('\n');
    let host = lines.next().unwrap_or_default();
    let user = lines.next().and_then(|user| UserName::parse(user).ok());
    let roles: Vec<RoleName> = lines.filter_map(|role| RoleName::parse(role).ok()).collect();
    user.map_or_else(|| Identity::anonymous(host), |user| broker.security.identity_of(user, roles, host))
}

/// Queues of subscriptions that were created, deleted or changed, for the task that serves push subscriptions. They are
/// at most as many as there are subscriptions, and those that are deleted until it runs.
#[derive(Default)]
pub(super) struct Changes {
    queues: Mutex<BTreeSet<String>>,
    noted: Notify,
}

impl Changes {
    pub fn note(&self, queue: &str) {
        self.queues.lock().insert(queue.to_owned());
        self.noted.notify_one();
    }

    /// Waits for changes, and returns their queues.
    async fn next(&self) -> BTreeSet<String> {
        loop {
            let queues = std::mem::take(&mut *self.queues.lock());
            if !queues.is_empty() {
                return queues;
            }
            self.noted.notified().await;
        }
    }
}

/// Serves push subscriptions until the drain begins.
pub(super) async fn run(door: Weak<Door>, mut drain: Drain) {
    let mut running = HashMap::new();
    if let Some(strong) = door.upgrade()
        && let Some(Err(failure)) = drain.or_begun(move_key(&strong)).await
    {
        tracing::warn!(%failure, "cannot move the key of push tokens out of _queues; retrying on the next start");
    }
    let mut changed = None;
    while let Some(strong) = door.upgrade() {
        let round = async {
            match serve(&strong, &mut running, changed.as_ref()).await {
                Ok(()) => tokio::time::timeout(READ_ALL, strong.changed.next()).await.ok(),
                Err(failure) => {
                    tracing::warn!(%failure, "push subscriptions cannot be served; retrying");
                    tokio::time::sleep(AGAIN).await;
                    None
                }
            }
        };
        match drain.or_begun(round).await {
            Some(next) => changed = next,
            None => return,
        }
    }
}

/// Returns the definitions of the changed queues; of all queues for `None`.
async fn definitions(door: &Door, changed: Option<&BTreeSet<String>>) -> Result<Vec<Arc<QueueDefinition>>> {
    let Some(changed) = changed else {
        return Ok(door.broker.queues.list("", "", usize::MAX, |_| true).await?.0);
    };
    let mut found = Vec::with_capacity(changed.len());
    for name in changed {
        match door.broker.queues.get(name).await {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            queue => found.push(queue?),
        }
    }
    Ok(found)
}

/// Stops the tasks of deleted or changed subscriptions, and starts those of new ones. Reads only the changed queues, if
/// they are known.
async fn serve(
    door: &Arc<Door>,
    running: &mut HashMap<String, Running>,
    changed: Option<&BTreeSet<String>>,
) -> Result<()> {
    let mut wanted = HashMap::new();
    for queue in definitions(door, changed).await? {
        if pull::is_pushed(door, &queue)? {
            match target(door, &queue) {
                Ok(target) => drop(wanted.insert(queue.name.as_str().to_owned(), (target, queue))),
                Err(failure) => tracing::warn!(%failure, queue = %queue.name, "a subscription cannot be pushed"),
            }
        }
    }
    let owner = |queue: &QueueDefinition| queue.notes.get(OWNER).cloned();
    let is_current = |name: &str, running: &Running| {
        wanted.get(name).is_some_and(|(target, queue)| {
            (queue.id, target, owner(queue)) == (running.id, &running.target, running.owner.clone())
        })
    };
    match changed {
        None => running.retain(|name, running| is_current(name, running)),
        Some(changed) => {
            for name in changed {
                if running.get(name).is_some_and(|running| !is_current(name, running)) {
                    running.remove(name);
                }
            }
        }
    }
    for (name, (target, queue)) in wanted {
        if running.contains_key(&name) {
            continue;
        }
        if target.oidc.is_some() {
            key(door).await?;
        }
        let lease = target.deadline + LEASE_RESERVE;
        let owner = owner(&queue);
        let by = owner.as_deref().map(|note| owner_of(&door.broker, note));
        let lease_ms = lease.as_millis() as u64;
        let id = queue.id;
        let source = Pushed {
            door: door.clone(),
            queue,
            target: target.clone(),
            lease_ms,
            owner: by,
            decided: Mutex::new((0, true)),
        };
        let task = door.pusher.start(target.clone(), source);
        running.insert(name, Running { id, target, owner, _task: task });
    }
    Ok(())
}

/// Subscription that is pushed.
struct Running {
    id: QueueId,
    target: Target,
    /// Note with the owner.
    owner: Option<String>,
    _task: PushTask,
}

fn target(door: &Door, queue: &QueueDefinition) -> Result<Target> {
    let subscription = door.subscription_of(queue)?;
    let push = subscription.push_config.unwrap_or_default();
    let endpoint = push.push_endpoint.parse();
    let oidc = push.authentication_method.map(|AuthenticationMethod::OidcToken(token)| Oidc {
        service_account_email: token.service_account_email,
        audience: Some(token.audience).filter(|audience| !audience.is_empty()),
    });
    Ok(Target {
        subscription: subscription.name,
        endpoint: endpoint.map_err(|error: super::push::NoEndpoint| Failure::invalid(error.to_string()))?,
        wrapper: match push.wrapper {
            Some(Configured::NoWrapper(bare)) => Wrapper::Unwrapped { writes_metadata: bare.write_metadata },
            Some(Configured::PubsubWrapper(_)) | None => Wrapper::Wrapped,
        },
        oidc,
        deadline: Duration::from_millis(queue.settings.lease_ms),
    })
}

/// Returns the signing key of the broker's tokens, which is generated for the first request.
pub(super) async fn key(door: &Door) -> Result<&SigningKey> {
    if let Some(key) = door.pusher.key() {
        return Ok(key);
    }
    let failed = |error: std::io::Error| Failure::new(Code::Internal, format!("no key to sign with: {error}"));
    // One task at a time generates it, so that the key that signs is the stored one.
    let _making = door.making_key.lock().await;
    let kept = match door.broker.security.secret(KEY).await? {
        Some(kept) => kept,
        None => {
            let before = door.broker.documents.get(KEY_DOCUMENT.0, KEY_DOCUMENT.1).await?;
            let new = before.map_or_else(|| SigningKey::generate().map(Into::into), Ok).map_err(failed)?;
            door.broker.security.put_secret(KEY, &new).await?;
            new
        }
    };
    if door.broker.documents.get(KEY_DOCUMENT.0, KEY_DOCUMENT.1).await?.is_some() {
        door.broker.documents.put(KEY_DOCUMENT.0, KEY_DOCUMENT.1, None).await?;
    }
    Ok(door.pusher.set_key(SigningKey::from_pkcs8(&kept, ISSUER).map_err(failed)?))
}

/// Moves a key that an older version stored among the records of queues to a secret.
async fn move_key(door: &Door) -> Result<()> {
    match door.broker.documents.get(KEY_DOCUMENT.0, KEY_DOCUMENT.1).await? {
        Some(_) => key(door).await.map(drop),
        None => Ok(()),
    }
}

/// Queue of a push subscription.
struct Pushed {
    door: Arc<Door>,
    queue: Arc<QueueDefinition>,
    /// Where the messages are pushed to.
    target: Target,
    lease_ms: u64,
    owner: Option<Identity>,
    /// Generation of the permissions in which it was last decided whether the owner may read the queue, and the
    /// decision.
    decided: Mutex<(u64, bool)>,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if !self.decided.get_mut().1 {
            self.door.pusher.note_paused(false);
        }
    }
}

impl Source for Pushed {
    type Receipt = Receipt;

    async fn receive(&self, max: usize) -> engine::Result<Vec<Received<Receipt>>> {
        let Self { door, queue, .. } = self;
        // A subscription does not expire while it is pushed.
        door.is_active(queue);
        if !self.may_push().await {
            tokio::time::sleep(CHECK_AGAIN).await;
            return Ok(Vec::new());
        }
        let receive = Receive { max, bytes_max: RECEIVE_BYTES_MAX, lease_ms: Some(self.lease_ms), wait: RECEIVE_WAIT };
        let deliveries = door.receive(queue, &receive).await?;
        // A subscription that cannot be looked up is no reason to push to where it was.
        if deliveries.is_empty() || self.is_current().await.unwrap_or(false) {
            return Ok(deliveries.into_iter().map(|delivery| self.given(delivery)).collect());
        }
        // It may have been changed at another door, which does not notify this one.
        door.changed.note(queue.name.as_str());
        let (door, name) = (door.clone(), queue.name.clone());
        let received = deliveries.into_iter().map(|delivery| delivery.received).collect();
        // Spawned, so that the messages return even if the change aborts this task now.
        tokio::spawn(async move {
            if let Err(error) = door.broker.queues.untake(name.as_str(), received).await {
                tracing::debug!(%error, queue = %name, "cannot return messages of a changed push subscription");
            }
        });
        tokio::time::sleep(CHECK_AGAIN).await;
        Ok(Vec::new())
    }

    async fn ack(&self, receipt: Receipt) -> engine::Result<()> {
        self.door.broker.queues.ack(self.queue.name.as_str(), &[receipt]).await.map(drop)
    }

    async fn nack(&self, receipt: Receipt) -> engine::Result<()> {
        self.door.broker.queues.nack(self.queue.name.as_str(), &[(receipt, None)]).await.map(drop)
    }

    async fn may_push(&self) -> bool {
        let Some(owner) = &self.owner else { return true };
        let broker = &self.door.broker;
        let generation = broker.security.generation();
        let (decided_in, before) = *self.decided.lock();
        if decided_in == generation {
            return before;
        }
        let queue = &self.queue.name;
        let outcome = broker.authorize_queue(owner, Operation::Read, queue.as_str()).await;
        let may = !outcome.is_err_and(|error| error.kind == ErrorKind::Denied);
        let before = std::mem::replace(&mut *self.decided.lock(), (generation, may)).1;
        if may != before {
            self.door.pusher.note_paused(!may);
            let user = owner.user();
            if may {
                tracing::info!(%queue, %user, "resumed a push subscription: its owner may read it again");
            } else {
                tracing::warn!(
                    %queue,
                    %user,
                    "paused a push subscription: the user who set its endpoint may not read it any more"
                );
            }
        }
        may
    }
}

impl Pushed {
    /// Returns `true` if the subscription still has this target. A change is acknowledged before this task is stopped,
    /// and a message that is published after it must not go to the old endpoint.
    async fn is_current(&self) -> engine::Result<bool> {
        let now = self.door.broker.queues.get(self.queue.name.as_str()).await?;
        let is_same = Arc::ptr_eq(&now, &self.queue);
        Ok(is_same || target(&self.door, &now).is_ok_and(|target| target == self.target))
    }

    fn given(&self, delivery: Delivery) -> Received<Receipt> {
        let Delivery { received, message } = delivery;
        let published_ms = message.publish_time.as_ref().and_then(timestamp_ms).unwrap_or(0);
        let message = Message {
            id: message.message_id,
            published_ms: published_ms.unsigned_abs(),
            data: message.data,
            attributes: message.attributes.into_iter().collect(),
            ordering_key: message.ordering_key,
            attempt: self.queue.settings.dead_letter.is_some().then_some(received.attempts),
        };
        Received { receipt: received.receipt, message }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use broker::{Broker, NewQueue, OutMessage};
    use engine::queue::QueueName;
    use tokio::runtime::Handle;

    use super::*;
    use crate::pubsub::names::Names;
    use crate::pubsub::push::Allow;
    use crate::pubsub::subscriptions::NOTE;

    fn door(broker: &Arc<Broker>) -> Arc<Door> {
        Door::new(broker.clone(), Names::new("thalweg".into()), 1 << 20, Allow::default(), false)
    }

    #[tokio::test]
    async fn a_key_that_an_older_version_kept_as_a_record_signs_on_and_is_none_any_more() {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        let old = bytes::Bytes::from(SigningKey::generate().expect("a key"));
        let (kind, name) = KEY_DOCUMENT;
        broker.documents.put(kind, name, Some(old.clone())).await.expect("kept");
        let first = door(&broker);
        move_key(&first).await.expect("moved");
        assert_eq!(broker.documents.get(kind, name).await.expect("read"), None);
        assert_eq!(broker.security.secret(KEY).await.expect("read"), Some(old.clone()));
        let jwks = SigningKey::from_pkcs8(&old, ISSUER).expect("a key").jwks();
        assert_eq!(key(&first).await.expect("a key").jwks(), jwks);
        assert_eq!(key(&door(&broker)).await.expect("the same").jwks(), jwks);
        // If a crash between the two steps leaves the old document, the next startup deletes it.
        broker.documents.put(kind, name, Some(old)).await.expect("kept");
        move_key(&door(&broker)).await.expect("moved");
        assert_eq!(broker.documents.get(kind, name).await.expect("read"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_is_published_after_a_change_does_not_go_to_the_old_endpoint() {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        let door = door(&broker);
        let name = "subscription";
        let note = |url: &str| (NOTE.to_owned(), format!(r#"{{"pushConfig":{{"pushEndpoint":"{url}"}}}}"#));
        let notes = BTreeMap::from([note("https://example.com/old")]);
        let new = NewQueue { notes, ..NewQueue::new(QueueName::parse(name).expect("a name")) };
        let queue = broker.queues.create(new).await.expect("created");
        let pushed = Pushed {
            door: door.clone(),
            target: target(&door, &queue).expect("a target"),
            queue: queue.clone(),
            lease_ms: 60_000,
            owner: None,
            decided: Mutex::new((0, true)),
        };
        let message = OutMessage { body: b"pushed", ..OutMessage::default() };
        broker.queues.send(name, &[message]).await.expect("sent");
        assert_eq!(pushed.receive(1).await.expect("received").len(), 1);
        let alter = |definition: &mut QueueDefinition| {
            definition.notes.extend([note("https://example.com/new")]);
            Ok(())
        };
        broker.queues.alter(name, alter).await.expect("altered");
        broker.queues.send(name, &[message]).await.expect("sent");
        assert_eq!(pushed.receive(1).await.expect("received").len(), 0);
        let receive = Receive { max: 2, bytes_max: RECEIVE_BYTES_MAX, lease_ms: None, wait: Duration::ZERO };
        let received = broker.queues.receive(name, &receive).await.expect("received");
        assert_eq!(received.iter().map(|one| one.attempts).collect::<Vec<_>>(), [1], "the second, never received");
        // Whoever changed it, the tasks are looked at again.
        let changed =
            tokio::time::timeout(Duration::from_millis(1), door.changed.next()).await.expect("a notification");
        assert_eq!(changed, [name.to_owned()].into());
    }

    /// A change is found without reading the other subscriptions, of which there may be tens of thousands.
    #[tokio::test]
    async fn only_changed_subscriptions_are_read_again() {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        let door = door(&broker);
        let note = |url: &str| (NOTE.to_owned(), format!(r#"{{"pushConfig":{{"pushEndpoint":"{url}"}}}}"#));
        for name in ["abc", "def", "ghi"] {
            let notes = BTreeMap::from([note("https://example.com/old")]);
            let new = NewQueue { notes, ..NewQueue::new(QueueName::parse(name).expect("a name")) };
            broker.queues.create(new).await.expect("created");
        }
        let mut running = HashMap::new();
        serve(&door, &mut running, None).await.expect("served");
        let id_before = running["ghi"].id;
        for name in ["abc", "def"] {
            let alter = |definition: &mut QueueDefinition| {
                definition.notes.extend([note("https://example.com/new")]);
                Ok(())
            };
            broker.queues.alter(name, alter).await.expect("altered");
        }
        broker.queues.delete("ghi").await.expect("deleted");
        serve(&door, &mut running, Some(&["abc".to_owned()].into())).await.expect("served");
        let endpoint = |running: &HashMap<String, Running>, name: &str| {
            running.get(name).map(|running| running.target.endpoint.clone())
        };
        let of_all = |running: &HashMap<String, Running>| ["abc", "def", "ghi"].map(|name| endpoint(running, name));
        let [old, new] = ["https://example.com/old", "https://example.com/new"].map(|url| url.parse().ok());
        assert_eq!(of_all(&running), [new.clone(), old.clone(), old]);
        assert_eq!(running["ghi"].id, id_before);
        let changed = BTreeSet::from(["def", "ghi", "none"].map(str::to_owned));
        serve(&door, &mut running, Some(&changed)).await.expect("served");
        assert_eq!(of_all(&running), [new.clone(), new, None]);
    }

    #[tokio::test]
    async fn a_new_key_is_in_no_document() {
        let broker = Broker::start(broker::Settings::default(), &[Handle::current()]).expect("started");
        key(&door(&broker)).await.expect("a key");
        assert_eq!(broker.documents.get(KEY_DOCUMENT.0, KEY_DOCUMENT.1).await.expect("read"), None);
    }
}
