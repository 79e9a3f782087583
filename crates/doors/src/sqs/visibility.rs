//! Visibility timeouts of received messages: extending a lease, or returning the message to the queue.

use broker::Receipt;
use engine::queue::LeaseError;

use super::attributes::VISIBILITY_S_MAX;
use super::codec::Answer;
use super::errors::{Failure, NOT_IN_FLIGHT, Result};
use super::map::{Found, RequestContext, Sqs};
use super::messages::handles;
use super::model::{
    Action, ChangeMessageVisibility, ChangeMessageVisibilityBatch, Int, List, Text, required, required_text,
};

/// Message, and the number of seconds from now after which its lease expires.
struct Change<'t> {
    receipt: Receipt,
    seconds: u64,
    handle: &'t str,
}

impl Sqs {
    pub async fn change_visibility(
        &self,
        context: &RequestContext<'_>,
        request: ChangeMessageVisibility<'_>,
    ) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let handle = required_text("ReceiptHandle", &request.receipt_handle)?;
        let seconds = seconds(*required("VisibilityTimeout", &request.visibility_timeout)?)?;
        let change = Change { receipt: self.receipt(&found, handle)?, seconds, handle };
        for result in self.change_leases(&found, &[&change]).await? {
            result?;
        }
        Ok(Answer::Nothing)
    }

    pub async fn change_visibility_batch(
        &self,
        context: &RequestContext<'_>,
        request: ChangeMessageVisibilityBatch<'_>,
    ) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let List(entries) = request.entries.unwrap_or_default();
        let name = "ChangeMessageVisibilityBatchRequestEntry";
        let handles = handles(name, &entries)?;
        let changes = entries.iter().zip(handles).enumerate().map(|(i, (entry, handle))| {
            let given = required(&format!("{name}.{}.VisibilityTimeout", i + 1), &entry.visibility_timeout)?;
            Ok(Change { receipt: self.receipt(&found, handle)?, seconds: seconds(*given)?, handle })
        });
        let changes: Vec<Result<Change<'_>>> = changes.collect();
        let good: Vec<&Change<'_>> = changes.iter().filter_map(|change| change.as_ref().ok()).collect();
        let mut changed = self.change_leases(&found, &good).await?.into_iter();
        let results = entries.iter().zip(changes).map(|(entry, change)| {
            let id = entry.id.as_ref().map_or("", Text::as_str).to_owned();
            let result = change.and_then(|_| changed.next().expect("invariant: each change has an answer"));
            (id, result)
        });
        Ok(Answer::DoneBatch(Action::ChangeMessageVisibilityBatch, results.collect()))
    }

    /// Extends leases, including expired ones whose message no other client has received. A lease of no time returns
    /// the message to the queue.
    async fn change_leases(&self, found: &Found, changes: &[&Change<'_>]) -> Result<Vec<Result<()>>> {
        let leases: Vec<_> = changes.iter().map(|change| (change.receipt, change.seconds * 1000)).collect();
        let answers = self.broker.queues.extend_expired(found.name(), &leases).await?;
        let answers = answers.into_iter().zip(changes);
        Ok(answers.map(|(answer, change)| answer.map_err(|error| refused(error, change))).collect())
    }
}

fn seconds(Int(given): Int) -> Result<u64> {
    match u64::try_from(given) {
        Ok(seconds) if seconds <= VISIBILITY_S_MAX => Ok(seconds),
        _ => {
            let reason = "VisibilityTimeout must be an integer between 0 and 43200.";
            Err(Failure::value("VisibilityTimeout", given, reason))
        }
    }
}

fn refused(error: LeaseError, change: &Change<'_>) -> Failure {
    let not_available = "Message does not exist or is not available for visibility timeout change.";
    match error {
        LeaseError::Gone | LeaseError::Expired => Failure::value("ReceiptHandle", change.handle, not_available),
        LeaseError::NotLeased => Failure::new(&NOT_IN_FLIGHT, "The message referred to is not in flight."),
        LeaseError::TooLong => {
            let reason = "Total VisibilityTimeout for the message is beyond the limit [43200 seconds].";
            Failure::value("VisibilityTimeout", change.seconds, reason)
        }
    }
}
