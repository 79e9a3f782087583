//! Message transforms of topics and subscriptions: checked when they are set, applied to published and delivered
//! messages.

use std::collections::HashSet;
use std::sync::Arc;

use broker::{Receipt, Receive, Received};
use engine::queue::{Order, QueueDefinition};
use engine::{Error, ErrorKind};
use tokio::time::Instant;

use super::errors::{Code, Failure, Result};
use super::map::Door;
use super::proto::message_transform::Transform;
use super::proto::{MessageTransform, PubsubMessage};
use super::topics::{PUBLISH_BYTES_MAX, check_size, invalid_output, too_large};
use super::transform::{Fault, Function, Input, Output, Unanswered};
use super::{pull, times};

/// Maximum number of transforms of one topic or subscription, as at Google's service.
const TRANSFORMS_MAX: usize = 5;
/// Maximum size of the code of one function, as at Google's service.
const CODE_BYTES_MAX: usize = 20 << 10;
const NAME_BYTES_MAX: usize = 255;
/// Maximum number of messages that a subscription with transforms receives together: they are leased during the
/// transforms.
const TOGETHER_MAX: usize = 100;
/// Delay before the redelivery of a message whose transform failed, if the subscription has no retry policy: the first
/// and the maximum. It doubles with each attempt.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        let code = match unanswered {
            Unanswered::Busy(_) => Code::Unavailable,
            // As for any other function that takes too long; after `UNAVAILABLE`, clients would retry.
            Unanswered::Endless => Code::InvalidArgument,
        };
        Self::new(code, unanswered.to_string())
    }
}

/// Checks transforms: each function is compiled and looked up in its code.
pub(super) async fn check(door: &Door, transforms: &[MessageTransform]) -> Result<()> {
    if transforms.len() > TRANSFORMS_MAX {
        return Err(too_large("message_transforms", transforms.len(), TRANSFORMS_MAX));
    }
    let mut names = HashSet::new();
    for (i, transform) in transforms.iter().enumerate() {
        if let Some(Transform::JavascriptUdf(function)) = &transform.transform
            && !names.insert(&function.function_name)
        {
            let name = &function.function_name;
            let message = format!("message_transforms[{i}]: a function {name} exists already: names must be unique");
            return Err(Failure::invalid(message));
        }
        check_one(door, transform).await.map_err(|failure| Failure {
            message: format!("message_transforms[{i}]: {}", failure.message),
            ..failure
        })?;
    }
    Ok(())
}

async fn check_one(door: &Door, transform: &MessageTransform) -> Result<()> {
    let function = match &transform.transform {
        None => return Err(Failure::invalid("the transform is missing: set javascript_udf")),
        Some(Transform::AiInference(_)) if transform.disabled => return Ok(()),
        Some(Transform::AiInference(_)) => {
            let message = "ai_inference is not supported: use javascript_udf, or set disabled to store it unused";
            return Err(Failure::new(Code::Unimplemented, message));
        }
        Some(Transform::JavascriptUdf(function)) => function,
    };
    if function.code.is_empty() || function.function_name.is_empty() {
        return Err(Failure::invalid("javascript_udf needs both code and function_name"));
    }
    if function.code.len() > CODE_BYTES_MAX {
        return Err(too_large("javascript_udf.code", function.code.len(), CODE_BYTES_MAX));
    }
    if function.function_name.len() > NAME_BYTES_MAX {
        return Err(too_large("javascript_udf.function_name", function.function_name.len(), NAME_BYTES_MAX));
    }
    let function = Function { name: function.function_name.clone(), code: function.code.clone() };
    let checked = door.transforms.check(function).await?;
    checked.map_err(|fault| Failure::invalid(fault.message().to_owned()))
}

/// Returns the enabled functions in order; `None` if no function is enabled.
fn functions(transforms: Vec<MessageTransform>) -> Option<Arc<[Function]>> {
    let functions: Arc<[Function]> = transforms
        .into_iter()
        .filter(|transform| !transform.disabled)
        .filter_map(|transform| match transform.transform {
            Some(Transform::JavascriptUdf(udf)) => Some(Function { name: udf.function_name, code: udf.code }),
            Some(Transform::AiInference(_)) | None => None,
        })
        .collect();
    (!functions.is_empty()).then_some(functions)
}

fn failed(functions: &[Function], at: usize, fault: &Fault) -> String {
    let name = functions.get(at).map_or("", |function| &function.name);
    format!("message_transforms: function {name}: {}", fault.message())
}

/// Applies a topic's transforms to messages; the result is `None` for each filtered one. One failure fails all of them.
pub(super) async fn publish(
    door: &Door,
    transforms: Vec<MessageTransform>,
    messages: Vec<PubsubMessage>,
) -> Result<Vec<Option<PubsubMessage>>> {
    let Some(functions) = functions(transforms) else {
        return Ok(messages.into_iter().map(Some).collect());
    };
    let input = |message: &PubsubMessage| Input {
        data: message.data.clone(),
        attributes: message.attributes.clone(),
        ordering_key: Some(message.ordering_key.clone()).filter(|key| !key.is_empty()),
        ..Input::default()
    };
    let inputs = messages.iter().map(input).collect();
    let transformed = door.transforms.apply(functions.clone(), inputs, PUBLISH_BYTES_MAX).await?;
    let is_cut = transformed.len() < messages.len();
    let mut bytes = 0;
    let mut published = Vec::with_capacity(messages.len());
    for (message, transformed) in messages.into_iter().zip(transformed) {
        let transformed = transformed.map_err(|(at, fault)| Failure::invalid(failed(&functions, at, &fault)))?;
        bytes += transformed.as_ref().map_or(0, Output::bytes);
        published.push(transformed.map(|output| replaced(message, output)));
    }
    if is_cut {
        return Err(invalid_output(too_large("request_size", bytes, PUBLISH_BYTES_MAX)));
    }
    Ok(published)
}

fn replaced(message: PubsubMessage, output: Output) -> PubsubMessage {
    PubsubMessage { data: output.data.into(), attributes: output.attributes, ..message }
}

/// Message that is ready for delivery to a subscriber.
pub(super) struct Delivery {
    pub received: Received,
    pub message: PubsubMessage,
}

impl Door {
    /// Waits for messages of a subscription, and applies its transforms. Filtered messages are acknowledged; those
    /// whose transform fails return to the queue, and become dead letters after the usual number of attempts.
    pub(super) async fn receive(&self, queue: &QueueDefinition, receive: &Receive) -> engine::Result<Vec<Delivery>> {
        let name = queue.name.as_str();
        let until = Instant::now() + receive.wait;
        loop {
            // The transforms may have changed since the stream or the push began.
            let transforms = self.transforms_of(&*self.broker.queues.get(name).await?).await;
            let transforms = transforms.map_err(|failure| Error::new(ErrorKind::Internal, failure.message))?;
            let Some(functions) = functions(transforms) else {
                let received = self.broker.queues.receive(name, receive).await?;
                let bytes = received.iter().map(|received| received.message.bytes()).sum();
                let deliver = |received| Delivery { message: pull::message(self, &received), received };
                let deliver_all = || received.into_iter().map(deliver).collect();
                return Ok(self.broker.answers().work(bytes, deliver_all).await);
            };
            let wait = until.saturating_duration_since(Instant::now());
            let some = Receive { max: receive.max.min(TOGETHER_MAX), wait, ..*receive };
            let received = self.broker.queues.receive(name, &some).await?;
            if received.is_empty() {
                return Ok(Vec::new());
            }
            let deliveries = self.transformed(queue, functions, received, receive.bytes_max).await?;
            if !deliveries.is_empty() || Instant::now() >= until {
                return Ok(deliveries);
            }
        }
    }

    async fn transformed(
        &self,
        queue: &QueueDefinition,
        functions: Arc<[Function]>,
        mut received: Vec<Received>,
        bytes_max: usize,
    ) -> engine::Result<Vec<Delivery>> {
        let name = queue.name.as_str();
        let messages: Vec<PubsubMessage> = received.iter().map(|received| pull::message(self, received)).collect();
        let inputs = received.iter().zip(&messages).map(|(received, message)| input(received, message)).collect();
        let mut deliveries = Vec::new();
        let mut filtered = Vec::new();
        let mut back = Vec::new();
        // In an ordered subscription, the messages that follow a returned one with the same key are returned with it.
        let is_ordered = queue.settings.order == Order::Groups;
        let mut held_keys = HashSet::new();
        match self.transforms.apply(functions.clone(), inputs, bytes_max).await {
            Ok(transformed) => {
                // The response has no room for the others, which grew in their transforms.
                let rest = received.split_off(transformed.len().min(received.len()));
                if !rest.is_empty() {
                    self.broker.queues.untake(name, rest).await?;
                }
                for ((received, message), transformed) in received.into_iter().zip(messages).zip(transformed) {
                    let key = message.ordering_key.clone();
                    if held_keys.contains(&key) {
                        continue;
                    }
                    let checked =
                        transformed.map_err(|(at, fault)| failed(&functions, at, &fault)).and_then(|output| {
                            let message = output.map(|output| replaced(message, output));
                            message.as_ref().map_or(Ok(()), check_size).map_err(|failure| failure.message)?;
                            Ok(message)
                        });
                    match checked {
                        Ok(Some(message)) => deliveries.push(Delivery { received, message }),
                        Ok(None) => filtered.push(received.receipt),
                        Err(why) => {
                            tracing::debug!(queue = %queue.name, why, "a transform of a subscription failed");
                            back.push(retry(queue, &received));
                            if is_ordered && !key.is_empty() {
                                held_keys.insert(key);
                            }
                        }
                    }
                }
            }
            Err(why) => {
                tracing::warn!(queue = %queue.name, %why, "transforms of a subscription cannot run");
                back.extend(received.iter().map(|received| retry(queue, received)));
            }
        }
        if !filtered.is_empty() {
            self.broker.queues.ack(name, &filtered).await?;
        }
        if !back.is_empty() {
            self.broker.queues.nack(name, &back).await?;
        }
        Ok(deliveries)
    }
}

/// Returns the receipt with the delay of its redelivery: `None` for the subscription's retry policy, or a delay that
/// grows with each attempt.
fn retry(queue: &QueueDefinition, received: &Received) -> (Receipt, Option<u64>) {
    let (first_ms, most_ms) = RETRY_MS;
    let doubled = first_ms.saturating_mul(1 << received.attempts.saturating_sub(1).min(16)).min(most_ms);
    (received.receipt, (queue.settings.backoff_ms == (0, 0)).then_some(doubled))
}

fn input(received: &Received, message: &PubsubMessage) -> Input {
    Input {
        data: message.data.clone(),
        attributes: message.attributes.clone(),
        message_id: Some(message.message_id.clone()),
        publish_time: Some(times::timestamp(received.sent_ms / times::SECOND_MS * times::SECOND_MS).to_string()),
        ordering_key: Some(message.ordering_key.clone()).filter(|key| !key.is_empty()),
    }
}
