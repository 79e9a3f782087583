//! Subscriptions: queues over topics. Properties that the broker does not have are stored as JSON in a note of the
//! queue.
//!
//! A subscription that was detached, or whose topic was deleted, no longer has a queue: it is stored in a document,
//! until it is deleted as well.

use std::ops::Bound;
use std::sync::Arc;

use broker::{Broker, NewQueue, QueueStart};
use bytes::Bytes;
use engine::queue::{Filter, IN_FLIGHT_MAX, Order, QueueDefinition, QueueName, QueueSettings};
use engine::{ErrorKind, TopicName};
use prost::Message;

use super::errors::{Code, Failure, Result};
use super::map::{Ask, Door};
use super::masks::distinct;
use super::names::{DELETED_TOPIC, Kind, Name, parse_project};
use super::pages::{NAMES_PER_TURN, Page, Wanted, names_of_page, page_size};
use super::proto::{
    DeadLetterPolicy, DeleteSubscriptionRequest, DetachSubscriptionRequest, DetachSubscriptionResponse,
    ExpirationPolicy, GetSubscriptionRequest, ListSubscriptionsRequest, ListSubscriptionsResponse, MessageTransform,
    ModifyPushConfigRequest, PushConfig, RetryPolicy, Subscription, UpdateSubscriptionRequest,
};
use super::push::{Endpoint, Pusher};
use super::pushes::{OWNER, owner_note};
use super::times::{Bounds, DAY_MS, MINUTE_MS, SECOND_MS, duration, duration_ms, shown};
use super::topics::check_labels;
use super::{policies, rest, transforms};

/// Name of the queue's note with the other properties of its subscription.
pub(super) const NOTE: &str = "pubsub.subscription";
/// Name of the queue's note that marks transforms, which are stored in a document, because notes are small.
const HAS_TRANSFORMS: &str = "pubsub.transforms";
/// Kind of the documents with the transforms of subscriptions that have a queue.
const TRANSFORMS: &str = "pubsub.transforms";
const MESSAGE: &str = "google.pubsub.v1.Subscription";
/// Kind of the documents with subscriptions that no longer have a queue.
const WITHOUT_QUEUE: &str = "pubsub.subscription";

pub(super) const ACK_DEADLINE_S_MIN: i32 = 10;
pub(super) const ACK_DEADLINE_S_MAX: i32 = 600;
const ACK_DEADLINE_S_DEFAULT: i32 = 10;
const RETENTION: Bounds = Bounds { min_ms: 10 * MINUTE_MS, max_ms: 31 * DAY_MS };
const RETENTION_MS_DEFAULT: u64 = 7 * DAY_MS;
const BACKOFF: Bounds = Bounds { min_ms: 0, max_ms: 600 * SECOND_MS };
const BACKOFF_MS_DEFAULT: (u64, u64) = (10 * SECOND_MS, 600 * SECOND_MS);
const EXPIRATION_MS_MIN: u64 = DAY_MS;
const EXPIRATION_MS_DEFAULT: u64 = 31 * DAY_MS;
const ATTEMPTS_MIN: i32 = 5;
const ATTEMPTS_MAX: i32 = 100;
const ATTEMPTS_DEFAULT: i32 = 5;
const FILTER_BYTES_MAX: usize = 256;
const ENDPOINT_BYTES_MAX: usize = 4096;

pub(super) fn missing() -> Failure {
    Failure::not_found("Subscription does not exist")
}

/// Subscription in one of its states.
pub(super) enum Found {
    Queue(Arc<QueueDefinition>),
    /// Detached, or without its topic, which was deleted.
    WithoutQueue(Box<Subscription>),
}

/// Returns `true` if the queue was created by this door.
pub(super) fn is_own(queue: &QueueDefinition) -> bool {
    queue.notes.contains_key(NOTE)
}

impl Door {
    pub(super) async fn find_subscription(&self, name: &Name) -> Result<Found> {
        let inner = self.names.inner(name);
        match self.broker.queues.get(&inner).await {
            Ok(queue) => return Ok(Found::Queue(queue)),
            Err(error) if error.kind != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let document = self.broker.documents.get(WITHOUT_QUEUE, &inner).await?.ok_or_else(missing)?;
        Ok(Found::WithoutQueue(Box::new(read(document)?)))
    }

    pub(super) async fn subscription(&self, name: &Name) -> Result<Subscription> {
        match self.find_subscription(name).await? {
            Found::Queue(queue) => self.whole_subscription_of(&queue).await,
            Found::WithoutQueue(subscription) => Ok(*subscription),
        }
    }

    /// Returns the queue of a subscription to pull from; `None` if its topic was deleted, so that no message will
    /// arrive.
    pub(super) async fn queue_to_pull(&self, name: &Name) -> Result<Option<Arc<QueueDefinition>>> {
        match self.find_subscription(name).await? {
            Found::WithoutQueue(subscription) if subscription.detached => {
                Err(Failure::precondition("Subscription is detached."))
            }
            Found::WithoutQueue(_) => Ok(None),
            Found::Queue(queue) => Ok(Some(queue)),
        }
    }

    /// Returns the subscription for a queue, including its transforms.
    async fn whole_subscription_of(&self, queue: &QueueDefinition) -> Result<Subscription> {
        let message_transforms = self.transforms_of(queue).await?;
        Ok(Subscription { message_transforms, ..self.subscription_of(queue)? })
    }

    /// Returns the transforms of the subscription for a queue.
    pub(super) async fn transforms_of(&self, queue: &QueueDefinition) -> Result<Vec<MessageTransform>> {
        if !queue.notes.contains_key(HAS_TRANSFORMS) {
            return Ok(Vec::new());
        }
        let document = self.broker.documents.get(TRANSFORMS, queue.name.as_str()).await?.unwrap_or_default();
        Ok(read(document)?.message_transforms)
    }

    async fn keep_transforms(&self, inner: &str, transforms: &[MessageTransform]) -> Result<()> {
        let message_transforms = transforms.to_vec();
        let kept = (!transforms.is_empty()).then(|| Subscription { message_transforms, ..Subscription::default() });
        let document = kept.map(|kept| kept.encode_to_vec().into());
        if document.is_none() && self.broker.documents.get(TRANSFORMS, inner).await?.is_none() {
            return Ok(());
        }
        Ok(self.broker.documents.put(TRANSFORMS, inner, document).await?)
    }

    /// Returns the subscription for a queue, without its transforms. The queue's settings take precedence over its
    /// note, whichever door set them.
    pub(super) fn subscription_of(&self, queue: &QueueDefinition) -> Result<Subscription> {
        let noted = queue.notes.get(NOTE).map(|note| rest::from_text(MESSAGE, note)).transpose()?;
        let noted: Subscription = noted.unwrap_or_default();
        let settings = &queue.settings;
        let dead_letter_policy = settings.dead_letter.as_ref().map(|topic| DeadLetterPolicy {
            dead_letter_topic: self.names.outer(Kind::Topic, topic.as_str()).to_string(),
            max_delivery_attempts: settings.attempts_max as i32,
        });
        let retry_policy = (settings.backoff_ms != (0, 0)).then(|| RetryPolicy {
            minimum_backoff: Some(duration(settings.backoff_ms.0)),
            maximum_backoff: Some(duration(settings.backoff_ms.1)),
        });
        Ok(Subscription {
            name: self.names.outer(Kind::Subscription, queue.name.as_str()).to_string(),
            topic: self.names.outer(Kind::Topic, queue.topic.as_str()).to_string(),
            ack_deadline_seconds: settings.lease_ms.div_ceil(SECOND_MS) as i32,
            retain_acked_messages: settings.keeps_acked,
            message_retention_duration: Some(duration(settings.retention_ms)),
            enable_message_ordering: settings.order == Order::Groups,
            enable_exactly_once_delivery: settings.is_strict,
            filter: settings.filter.as_ref().map(ToString::to_string).unwrap_or_default(),
            dead_letter_policy,
            retry_policy,
            push_config: noted.push_config.or(Some(PushConfig::default())),
            expiration_policy: noted.expiration_policy.or(Some(default_expiration())),
            ..noted
        })
    }

    /// Checks a new subscription, and sets the defaults.
    fn checked(&self, mut subscription: Subscription) -> Result<Subscription> {
        check_labels(&subscription.labels)?;
        if subscription.ack_deadline_seconds == 0 {
            subscription.ack_deadline_seconds = ACK_DEADLINE_S_DEFAULT;
        }
        if !(ACK_DEADLINE_S_MIN..=ACK_DEADLINE_S_MAX).contains(&subscription.ack_deadline_seconds) {
            return Err(Failure::invalid("ack_deadline_secs out of bounds"));
        }
        let kept = subscription.message_retention_duration.get_or_insert_with(|| duration(RETENTION_MS_DEFAULT));
        if !duration_ms(kept).is_some_and(|kept_ms| RETENTION.has(kept_ms)) {
            return Err(Failure::invalid("message_retention_duration out of bounds"));
        }
        if let Some(policy) = &mut subscription.retry_policy {
            check_retry(policy)?;
        }
        if let Some(policy) = &mut subscription.dead_letter_policy {
            self.check_dead_letters(policy)?;
        }
        check_expiration(subscription.expiration_policy.get_or_insert_with(default_expiration))?;
        check_push(&self.pusher, subscription.push_config.get_or_insert_default())?;
        let is_push = subscription.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty());
        if is_push && subscription.enable_exactly_once_delivery {
            return Err(Failure::invalid("Exactly once delivery is not supported for push subscriptions."));
        }
        let exports = subscription.bigquery_config.is_some()
            || subscription.cloud_storage_config.is_some()
            || subscription.bigtable_config.is_some();
        if exports {
            return Err(Failure::new(Code::Unimplemented, "exports to other services are not supported"));
        }
        subscription.tags.clear();
        subscription.state = 0;
        subscription.detached = false;
        subscription.topic_message_retention_duration = None;
        subscription.analytics_hub_subscription_info = None;
        Ok(subscription)
    }

    fn check_dead_letters(&self, policy: &mut DeadLetterPolicy) -> Result<()> {
        if policy.max_delivery_attempts == 0 {
            policy.max_delivery_attempts = ATTEMPTS_DEFAULT;
        }
        let attempts = policy.max_delivery_attempts;
        let out_of_range = |which: &str, bound: &str, value: i32| {
            let message = format!(
                "The value for max_delivery_attempts is too {which}. You passed {attempts} in the request, but the \
                 {bound} value is {value}."
            );
            Err(Failure::new(Code::OutOfRange, message))
        };
        if attempts < ATTEMPTS_MIN {
            return out_of_range("small", "minimum", ATTEMPTS_MIN);
        }
        if attempts > ATTEMPTS_MAX {
            return out_of_range("large", "maximum", ATTEMPTS_MAX);
        }
        let missing = || Failure::not_found("Dead letter topic not found");
        if policy.dead_letter_topic.is_empty() {
            return Err(missing());
        }
        let topic = Name::parse(Kind::Topic, &policy.dead_letter_topic)?;
        if self.broker.has_topic(&self.names.inner(&topic)) { Ok(()) } else { Err(missing()) }
    }

    /// Returns the queue's settings for a checked subscription.
    fn settings_of(&self, subscription: &Subscription) -> Result<QueueSettings> {
        let ms = |duration: Option<&prost_types::Duration>| duration.and_then(duration_ms).unwrap_or(0);
        let retry = subscription.retry_policy.as_ref();
        let backoff_ms =
            retry.map_or((0, 0), |policy| (ms(policy.minimum_backoff.as_ref()), ms(policy.maximum_backoff.as_ref())));
        let dead = subscription.dead_letter_policy.as_ref();
        let dead_letter = dead
            .map(|policy| {
                let topic = Name::parse(Kind::Topic, &policy.dead_letter_topic)?;
                Ok::<_, Failure>(TopicName::parse(&self.names.inner(&topic))?)
            })
            .transpose()?;
        let filter = match subscription.filter.as_str() {
            "" => None,
            text if text.len() > FILTER_BYTES_MAX => {
                return Err(Failure::invalid(format!("Filter is longer than {FILTER_BYTES_MAX} bytes.")));
            }
            text => Some(Filter::parse(text)?),
        };
        let is_ordered = subscription.enable_message_ordering;
        Ok(QueueSettings {
            lease_ms: subscription.ack_deadline_seconds as u64 * SECOND_MS,
            retention_ms: ms(subscription.message_retention_duration.as_ref()),
            order: if is_ordered { Order::Groups } else { Order::Any },
            returns_following: is_ordered,
            attempts_max: dead.map_or(0, |policy| policy.max_delivery_attempts as u32),
            dead_letter,
            backoff_ms,
            is_strict: subscription.enable_exactly_once_delivery,
            in_flight_max: IN_FLIGHT_MAX,
            filter,
            keeps_acked: subscription.retain_acked_messages,
            ..QueueSettings::default()
        })
    }

    /// Deletes the queue of a subscription; the document keeps its former properties.
    async fn leave_without_queue(&self, queue: &QueueDefinition, left: Subscription) -> Result<()> {
        let document = left.encode_to_vec();
        let inner = queue.name.as_str();
        self.broker.documents.put(WITHOUT_QUEUE, inner, Some(document.into())).await?;
        self.broker.queues.delete(inner).await?;
        self.keep_transforms(inner, &[]).await?;
        self.streams.end(inner);
        Ok(())
    }

    /// Deletes the queues of the subscriptions of a topic that is about to be deleted.
    pub(super) async fn leave_topic(&self, topic: &str) -> Result<()> {
        for queue in self.broker.queues.over(topic).await? {
            let subscription = self.whole_subscription_of(&queue).await?;
            self.leave_without_queue(&queue, Subscription { topic: DELETED_TOPIC.into(), ..subscription }).await?;
        }
        Ok(())
    }

    pub(super) async fn remove_subscription(&self, name: &Name) -> Result<()> {
        let inner = self.names.inner(name);
        match self.find_subscription(name).await? {
            Found::Queue(_) => {
                self.broker.queues.delete(&inner).await?;
                self.keep_transforms(&inner, &[]).await?;
            }
            Found::WithoutQueue(_) => self.broker.documents.put(WITHOUT_QUEUE, &inner, None).await?,
        }
        self.streams.end(&inner);
        policies::forget(self, name).await
    }
}

fn read(document: Bytes) -> Result<Subscription> {
    Subscription::decode(document).map_err(|error| {
        Failure::new(Code::DataLoss, format!("the stored definition of a subscription cannot be read: {error}"))
    })
}

/// Returns the properties that the queue does not store itself.
fn note(subscription: &Subscription) -> Result<String> {
    let rest = Subscription {
        name: String::new(),
        topic: String::new(),
        ack_deadline_seconds: 0,
        retain_acked_messages: false,
        message_retention_duration: None,
        enable_message_ordering: false,
        enable_exactly_once_delivery: false,
        filter: String::new(),
        dead_letter_policy: None,
        retry_policy: None,
        message_transforms: Vec::new(),
        ..subscription.clone()
    };
    rest::text_of(MESSAGE, &rest)
}

/// Returns the notes of the queue.
fn notes(subscription: &Subscription) -> Result<Vec<(String, String)>> {
    let mut notes = vec![(NOTE.to_owned(), note(subscription)?)];
    if !subscription.message_transforms.is_empty() {
        notes.push((HAS_TRANSFORMS.to_owned(), subscription.message_transforms.len().to_string()));
    }
    Ok(notes)
}

/// Returns the note with the owner of a subscription, if it is pushed: the client of this call.
fn owner(ask: &Ask, subscription: &Subscription) -> Option<(String, String)> {
    let is_pushed = subscription.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty());
    let note = owner_note(&ask.identity).filter(|_| is_pushed)?;
    Some((OWNER.to_owned(), note))
}

fn default_expiration() -> ExpirationPolicy {
    ExpirationPolicy { ttl: Some(duration(EXPIRATION_MS_DEFAULT)) }
}

/// Checks an expiration policy. Without a TTL, the subscription never expires.
fn check_expiration(policy: &ExpirationPolicy) -> Result<()> {
    let Some(ttl) = &policy.ttl else {
        return Ok(());
    };
    match duration_ms(ttl) {
        Some(ms) if ms >= EXPIRATION_MS_MIN => Ok(()),
        ms => Err(Failure::invalid(format!(
            "The value for ttl is too small. You passed {} in the request, but the minimum value is {}.",
            shown(ms.unwrap_or(0)),
            shown(EXPIRATION_MS_MIN)
        ))),
    }
}

fn check_retry(policy: &mut RetryPolicy) -> Result<()> {
    let bounded = |name: &str, given: &mut Option<prost_types::Duration>, default_ms: u64| {
        let ms = duration_ms(given.get_or_insert_with(|| duration(default_ms)));
        ms.filter(|ms| BACKOFF.has(*ms)).ok_or_else(|| {
            Failure::invalid(format!(
                "The value for {name} is out of bounds. You passed {} in the request, but the value must be between {} \
                 and {}.",
                ms.map_or_else(|| "a negative duration".to_owned(), shown),
                shown(BACKOFF.min_ms),
                shown(BACKOFF.max_ms)
            ))
        })
    };
    let least = bounded("minimum_backoff", &mut policy.minimum_backoff, BACKOFF_MS_DEFAULT.0)?;
    let most = bounded("maximum_backoff", &mut policy.maximum_backoff, BACKOFF_MS_DEFAULT.1)?;
    if least <= most {
        Ok(())
    } else {
        Err(Failure::invalid(format!(
            "The value for maximum_backoff is too small. You passed {} in the request, but the minimum value is {}.",
            shown(most),
            shown(least)
        )))
    }
}

fn check_push(pusher: &Pusher, push: &PushConfig) -> Result<()> {
    let endpoint = push.push_endpoint.as_str();
    if endpoint.is_empty() {
        return Ok(());
    }
    if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
        return Err(Failure::invalid("Unsupported push_endpoint"));
    }
    match endpoint.parse::<Endpoint>() {
        Ok(known) if endpoint.len() <= ENDPOINT_BYTES_MAX => {
            pusher.check(&known).map_err(|why| Failure::invalid(format!("Invalid push_endpoint: {why}")))
        }
        _ => Err(Failure::invalid("Invalid push_endpoint")),
    }
}

pub(super) async fn create(ask: Ask, subscription: Subscription) -> Result<Subscription> {
    let door = &ask.door;
    let name = Name::parse(Kind::Subscription, &subscription.name)?;
    let topic = Name::parse(Kind::Topic, &subscription.topic)?;
    let inner_topic = door.names.inner(&topic);
    if door.find_subscription(&name).await.is_ok() {
        return Err(Failure::exists("Subscription already exists"));
    }
    if !door.broker.has_topic(&inner_topic) {
        return Err(Failure::not_found("Subscription topic does not exist"));
    }
    transforms::check(door, &subscription.message_transforms).await?;
    let subscription = door.checked(subscription)?;
    let new = NewQueue {
        topic: Some(TopicName::parse(&inner_topic)?),
        start: QueueStart::Live,
        settings: door.settings_of(&subscription)?,
        notes: notes(&subscription)?.into_iter().chain(owner(&ask, &subscription)).collect(),
        ..NewQueue::new(QueueName::parse(&door.names.inner(&name))?)
    };
    // Stored first: messages must never be delivered without them.
    door.keep_transforms(new.name.as_str(), &subscription.message_transforms).await?;
    let queue = door.broker.queues.create(new).await?;
    door.changed.note(queue.name.as_str());
    door.whole_subscription_of(&queue).await
}

pub(super) async fn get(ask: Ask, request: GetSubscriptionRequest) -> Result<Subscription> {
    ask.door.subscription(&Name::parse(Kind::Subscription, &request.subscription)?).await
}

pub(super) async fn list(ask: Ask, request: ListSubscriptionsRequest) -> Result<ListSubscriptionsResponse> {
    let door = &ask.door;
    let project = parse_project(&request.project)?;
    let shows = |inner: &str| ask.shows(Kind::Subscription, inner);
    let next = |from| names_from(&door.broker, from);
    let wanted = Wanted { project, size: page_size(request.page_size)?, token: &request.page_token };
    let Page { items, next_page_token } = names_of_page(&door.names, Kind::Subscription, wanted, shows, next).await?;
    let mut subscriptions = Vec::with_capacity(items.len());
    for name in items {
        match door.subscription(&name).await {
            Ok(subscription) => subscriptions.push(subscription),
            // It was deleted in the meantime.
            Err(failure) if failure.code == Code::NotFound => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(ListSubscriptionsResponse { subscriptions, next_page_token })
}

/// Returns the next names of subscriptions in their order, with and without queues; none after the last.
async fn names_from(broker: &Broker, from: Bound<String>) -> Result<Vec<String>> {
    let from = from.as_ref().map(String::as_str);
    let mut names = broker.queues.names_from(from, NAMES_PER_TURN).await?;
    let without = broker.documents.list_from(WITHOUT_QUEUE, from, NAMES_PER_TURN).await?;
    names.extend(without.into_iter().map(|(name, _)| name));
    names.sort_unstable();
    names.dedup();
    // Each list was read up to this number, so names beyond it may be missing here.
    names.truncate(NAMES_PER_TURN);
    Ok(names)
}

pub(super) async fn delete(ask: Ask, request: DeleteSubscriptionRequest) -> Result<()> {
    let name = Name::parse(Kind::Subscription, &request.subscription)?;
    ask.door.remove_subscription(&name).await?;
    ask.door.changed.note(&ask.door.names.inner(&name));
    Ok(())
}

/// Detaches a subscription: it keeps its name, and no longer receives messages.
pub(super) async fn detach(ask: Ask, request: DetachSubscriptionRequest) -> Result<DetachSubscriptionResponse> {
    let name = Name::parse(Kind::Subscription, &request.subscription)?;
    match ask.door.find_subscription(&name).await? {
        Found::WithoutQueue(subscription) if subscription.detached => {
            Err(Failure::precondition("Subscription already detached."))
        }
        Found::WithoutQueue(_) => Err(Failure::precondition("Topic does not exist.")),
        Found::Queue(queue) => {
            let subscription = ask.door.whole_subscription_of(&queue).await?;
            ask.door.leave_without_queue(&queue, Subscription { detached: true, ..subscription }).await?;
            ask.door.changed.note(queue.name.as_str());
            Ok(DetachSubscriptionResponse {})
        }
    }
}

pub(super) async fn modify_push(ask: Ask, request: ModifyPushConfigRequest) -> Result<()> {
    let name = Name::parse(Kind::Subscription, &request.subscription)?;
    change(&ask, &name, |subscription| {
        subscription.push_config = Some(request.push_config.unwrap_or_default());
        Ok(())
    })
    .await
    .map(drop)
}

pub(super) async fn update(ask: Ask, request: UpdateSubscriptionRequest) -> Result<Subscription> {
    let given = request.subscription.ok_or_else(|| Failure::invalid("Invalid [subscriptions] name: (name=)"))?;
    let name = Name::parse(Kind::Subscription, &given.name)?;
    let paths = distinct(request.update_mask);
    if paths.is_empty() {
        return Err(Failure::invalid(
            "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list.",
        ));
    }
    if paths.iter().any(|path| path == "message_transforms") {
        transforms::check(&ask.door, &given.message_transforms).await?;
    }
    change(&ask, &name, |subscription| paths.iter().try_for_each(|path| apply(subscription, &given, path))).await
}

/// Changes a subscription and its queue.
async fn change(ask: &Ask, name: &Name, work: impl FnOnce(&mut Subscription) -> Result<()>) -> Result<Subscription> {
    let door = &ask.door;
    let Found::Queue(queue) = door.find_subscription(name).await? else {
        return Err(Failure::precondition("Subscription is detached."));
    };
    let mut subscription = door.whole_subscription_of(&queue).await?;
    let before = subscription.message_transforms.clone();
    let push_before = subscription.push_config.clone();
    work(&mut subscription)?;
    let subscription = door.checked(subscription)?;
    let settings = door.settings_of(&subscription)?;
    let notes = notes(&subscription)?;
    // Who changes what is pushed answers for it from then on.
    let owner = (subscription.push_config != push_before).then(|| owner(ask, &subscription));
    if subscription.message_transforms != before {
        door.keep_transforms(queue.name.as_str(), &subscription.message_transforms).await?;
    }
    let alter = |definition: &mut QueueDefinition| {
        // Google has no such setting, so that the value that was set elsewhere is kept.
        definition.settings = QueueSettings { isolation: definition.settings.isolation, ..settings };
        definition.notes.remove(HAS_TRANSFORMS);
        definition.notes.extend(notes);
        if let Some(owner) = owner {
            definition.notes.remove(OWNER);
            definition.notes.extend(owner);
        }
        Ok(())
    };
    let queue = door.broker.queues.alter(queue.name.as_str(), alter).await?;
    door.changed.note(queue.name.as_str());
    door.whole_subscription_of(&queue).await
}

/// Copies the field that a path of a mask names.
fn apply(to: &mut Subscription, given: &Subscription, path: &str) -> Result<()> {
    let is_fixed = matches!(
        path,
        "name"
            | "topic"
            | "enable_message_ordering"
            | "filter"
            | "detached"
            | "state"
            | "topic_message_retention_duration"
    );
    if is_fixed {
        return Err(Failure::invalid(format!(
            "Invalid update_mask provided in the UpdateSubscriptionRequest: the {path} field in the Subscription is \
             not mutable."
        )));
    }
    match path {
        "push_config" => to.push_config = given.push_config.clone(),
        "ack_deadline_seconds" => to.ack_deadline_seconds = given.ack_deadline_seconds,
        "retain_acked_messages" => to.retain_acked_messages = given.retain_acked_messages,
        "message_retention_duration" => to.message_retention_duration = given.message_retention_duration,
        "labels" => to.labels = given.labels.clone(),
        "expiration_policy" => to.expiration_policy = given.expiration_policy,
        "dead_letter_policy" => to.dead_letter_policy = given.dead_letter_policy.clone(),
        "retry_policy" => to.retry_policy = given.retry_policy,
        "enable_exactly_once_delivery" => to.enable_exactly_once_delivery = given.enable_exactly_once_delivery,
        "bigquery_config" => to.bigquery_config = given.bigquery_config.clone(),
        "cloud_storage_config" => to.cloud_storage_config = given.cloud_storage_config.clone(),
        "bigtable_config" => to.bigtable_config = given.bigtable_config.clone(),
        "message_transforms" => to.message_transforms = given.message_transforms.clone(),
        _ => return apply_part(to, given, path),
    }
    Ok(())
}

/// Copies a nested field that a path of a mask names.
fn apply_part(to: &mut Subscription, given: &Subscription, path: &str) -> Result<()> {
    let push = given.push_config.as_ref();
    let dead = given.dead_letter_policy.as_ref();
    let retry = given.retry_policy.as_ref();
    match path {
        "push_config.push_endpoint" => {
            to.push_config.get_or_insert_default().push_endpoint =
                push.map(|push| push.push_endpoint.clone()).unwrap_or_default();
        }
        "push_config.attributes" => {
            to.push_config.get_or_insert_default().attributes =
                push.map(|push| push.attributes.clone()).unwrap_or_default();
        }
        "push_config.oidc_token" => {
            to.push_config.get_or_insert_default().authentication_method =
                push.and_then(|push| push.authentication_method.clone());
        }
        "push_config.pubsub_wrapper" | "push_config.no_wrapper" => {
            to.push_config.get_or_insert_default().wrapper = push.and_then(|push| push.wrapper);
        }
        "dead_letter_policy.dead_letter_topic" => {
            to.dead_letter_policy.get_or_insert_default().dead_letter_topic =
                dead.map(|dead| dead.dead_letter_topic.clone()).unwrap_or_default();
        }
        "dead_letter_policy.max_delivery_attempts" => {
            to.dead_letter_policy.get_or_insert_default().max_delivery_attempts =
                dead.map_or(0, |dead| dead.max_delivery_attempts);
        }
        "retry_policy.minimum_backoff" => {
            to.retry_policy.get_or_insert_default().minimum_backoff = retry.and_then(|retry| retry.minimum_backoff);
        }
        "retry_policy.maximum_backoff" => {
            to.retry_policy.get_or_insert_default().maximum_backoff = retry.and_then(|retry| retry.maximum_backoff);
        }
        "expiration_policy.ttl" => {
            to.expiration_policy.get_or_insert_default().ttl =
                given.expiration_policy.as_ref().and_then(|policy| policy.ttl);
        }
        _ => {
            return Err(Failure::invalid(format!(
                "Invalid update_mask provided in the UpdateSubscriptionRequest: {path} is not a known Subscription \
                 field. Note that field paths must be of the form 'push_config' rather than 'pushConfig'."
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "subscriptions_tests.rs"]
mod tests;
