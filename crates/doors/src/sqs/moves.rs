//! Message move tasks, which return messages of a dead-letter queue to their source or move them to another queue.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use broker::{Redrive, RedriveId, RedriveState};
use engine::ErrorKind;
use serde::{Deserialize, Serialize};

use super::address::Place;
use super::codec::{Answer, MoveTask};
use super::errors::{Failure, RESOURCE_NOT_FOUND, Result};
use super::map::{Found, RequestContext, Sqs};
use super::model::{CancelMessageMoveTask, Int, ListMessageMoveTasks, StartMessageMoveTask, Text, required_text};
use super::names::Names;

const TASKS_MAX: i64 = 10;
const PER_SECOND_MAX: i64 = 500;
/// Number of queues that are read together.
const PAGE_MAX: usize = 1000;

/// Contents of the handle of a task, which is encoded in base64.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handle {
    task_id: String,
    source_arn: String,
}

impl Handle {
    fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&BASE64.decode(text).ok()?).ok()
    }
}

impl Sqs {
    pub async fn start_move(&self, context: &RequestContext<'_>, request: StartMessageMoveTask<'_>) -> Result<Answer> {
        let source = self.by_arn(context, "SourceArn", required_text("SourceArn", &request.source_arn)?).await?;
        let rate = match request.max_number_of_messages_per_second {
            None => None,
            Some(Int(rate)) if (1..=PER_SECOND_MAX).contains(&rate) => Some(rate as u32),
            Some(Int(rate)) => {
                let reason = "You must enter a value between 1 and 500.";
                return Err(Failure::value("MaxNumberOfMessagesPerSecond", rate, reason));
            }
        };
        if !self.has_sources(&source).await? {
            return Err(Failure::parameter("Source queue must be configured as a Dead Letter Queue."));
        }
        let destination = match request.destination_arn.as_ref().map(Text::as_str).filter(|arn| !arn.is_empty()) {
            None => None,
            Some(arn) => Some(self.by_arn(context, "DestinationArn", arn).await?),
        };
        if destination.as_ref().is_some_and(|destination| destination.place.is_fifo() != source.place.is_fifo()) {
            return Err(Failure::parameter("Source and destination queues must be of the same type."));
        }
        let to = destination.as_ref().map(Found::name);
        let id = match self.broker.queues.start_redrive(source.name(), to, rate).await {
            Err(error) if error.kind == ErrorKind::AlreadyExists => {
                let message = "There is already a task running. Only one active task is allowed for a source queue \
                               arn at a given time.";
                return Err(Failure::parameter(message));
            }
            started => started?,
        };
        Ok(Answer::TaskHandle(handle(id, &source.place)))
    }

    pub async fn cancel_move(
        &self,
        context: &RequestContext<'_>,
        request: CancelMessageMoveTask<'_>,
    ) -> Result<Answer> {
        let text = required_text("TaskHandle", &request.task_handle)?;
        let handle =
            Handle::parse(text).ok_or_else(|| Failure::parameter("Value for parameter TaskHandle is invalid."))?;
        let source = self.by_arn(context, "SourceArn", &handle.source_arn).await?;
        let tasks = self.broker.queues.redrives(source.name());
        let id = tasks.iter().map(|task| task.id).find(|id| task_id(*id) == handle.task_id);
        let id = id.ok_or_else(|| Failure::new(&RESOURCE_NOT_FOUND, "Task does not exist."))?;
        match self.broker.queues.cancel_redrive(id) {
            Err(error) if error.kind == ErrorKind::Invalid => {
                Err(Failure::parameter("Only active tasks can be cancelled."))
            }
            cancelled => Ok(Answer::MovedCount(cancelled?.moved)),
        }
    }

    pub async fn list_moves(&self, context: &RequestContext<'_>, request: ListMessageMoveTasks<'_>) -> Result<Answer> {
        let source = self.by_arn(context, "SourceArn", required_text("SourceArn", &request.source_arn)?).await?;
        let max = match request.max_results {
            None => 1,
            Some(Int(max)) if (1..=TASKS_MAX).contains(&max) => max as usize,
            Some(Int(max)) => return Err(Failure::value("MaxResults", max, "Must be between 1 and 10, if provided.")),
        };
        let tasks = self.broker.queues.redrives(source.name());
        let names = self.names(context);
        Ok(Answer::Tasks(tasks.iter().take(max).map(|task| shown(task, &source.place, names)).collect()))
    }

    async fn by_arn(&self, context: &RequestContext<'_>, parameter: &str, arn: &str) -> Result<Found> {
        let place = Place::of_arn(arn).ok_or_else(|| {
            Failure::parameter(format!(
                "You must use this format to specify the {parameter}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            ))
        })?;
        self.find_place(context, place).await.map_err(|failure| {
            if failure == Failure::no_queue() {
                Failure::new(
                    &RESOURCE_NOT_FOUND,
                    format!("The resource that you specified for the {parameter} parameter doesn't exist."),
                )
            } else {
                failure
            }
        })
    }

    /// Returns `true` if any queue uses this one as its dead-letter queue.
    async fn has_sources(&self, found: &Found) -> Result<bool> {
        let topic = &found.definition.topic;
        let mut after = String::new();
        loop {
            let (queues, is_last) = self.broker.queues.list("", &after, PAGE_MAX, |_| true).await?;
            if queues.iter().any(|queue| queue.settings.dead_letter.as_ref() == Some(topic)) {
                return Ok(true);
            }
            match queues.last() {
                Some(last) if !is_last => last.name.as_str().clone_into(&mut after),
                _ => return Ok(false),
            }
            tokio::task::yield_now().await;
        }
    }
}

fn shown(task: &Redrive, source: &Place, names: Names<'_>) -> MoveTask {
    let status = match task.state {
        RedriveState::Running => "RUNNING",
        RedriveState::Completed => "COMPLETED",
        RedriveState::Cancelling => "CANCELLING",
        RedriveState::Cancelled => "CANCELLED",
        RedriveState::Failed => "FAILED",
    };
    let destination = task.to.as_ref().and_then(|to| names.outer(to));
    MoveTask {
        handle: (task.state == RedriveState::Running).then(|| handle(task.id, source)),
        status,
        source_arn: source.arn(),
        destination_arn: destination.map(|place| place.arn()),
        per_second: task.rate.map(u64::from),
        moved: task.moved,
        to_move: Some(task.to_move),
        failure: task.failure.clone(),
        started_ms: task.started_ms,
    }
}

/// Returns the source of the task that a handle names.
pub(super) fn source_of(handle: &str) -> Option<Place> {
    Place::of_arn(&Handle::parse(handle)?.source_arn)
}

fn handle(id: RedriveId, source: &Place) -> String {
    let handle = Handle { task_id: task_id(id), source_arn: source.arn() };
    BASE64.encode(serde_json::to_vec(&handle).expect("invariant: texts have a JSON form"))
}

/// Returns the id of a task as a UUID of version 8, in which the other bits are free to use. All tasks have different
/// ids.
fn task_id(id: RedriveId) -> String {
    let high = id >> 60;
    let low = id & ((1 << 60) - 1);
    let spread = high.wrapping_add(low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let first = spread >> 32;
    let second = spread >> 16 & 0xffff;
    let third = spread & 0xfff;
    format!("{first:08x}-{second:04x}-8{third:03x}-{:04x}-{:012x}", 0x8000 | low >> 48 & 0x3fff, low & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_of_a_task_is_json_with_a_uuid_and_the_source() {
        let home = super::super::address::Home { account: "000000000000".into(), region: "us-east-1".into() };
        let place = Place::new(&home, "q");
        let ids = [0, 1, 2, 0xffff_ffff_0000, u64::MAX];
        let mut seen = std::collections::BTreeSet::new();
        for id in ids {
            let json = BASE64.decode(handle(id, &place)).expect("base64");
            let read: Handle = serde_json::from_slice(&json).expect("JSON");
            assert_eq!(read.source_arn, place.arn());
            let parts: Vec<usize> = read.task_id.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{}", read.task_id);
            assert!(seen.insert(read.task_id));
        }
    }
}
