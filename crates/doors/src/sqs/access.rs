//! Permissions that each action requires.

use broker::Door;
use engine::security::{Operation, Resource, ResourceKind};

use super::address::Place;
use super::errors::{ACCESS_DENIED, Failure, Result};
use super::map::{RequestContext, Sqs};
use super::model::{Action, Request, Text};
use super::{moves, peek};
use crate::permissions::{self, Call, Need, Table};

/// Requirement of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// This operation on the queue that the request names.
    Queue(Operation),
    /// Creating the queue that the request names. The action itself checks the topics that the new queue uses.
    Create,
    /// Altering the queue that the request names. The action itself checks the topic of its dead letters.
    Attributes,
    /// Altering the queue, and giving others only what the client may do itself, which the action checks.
    Grant,
    /// Nothing: the list shows what its reader may describe.
    Listed,
    /// Describing the queue that is the source of moves.
    Source,
    /// Moving messages from one queue to another.
    Move,
    /// This operation on the broker as a whole: the request names no queue, or several.
    Cluster(Operation),
}

/// Returns what an action requires.
pub(super) fn needs(action: Action) -> Needs {
    match action {
        Action::SendMessage | Action::SendMessageBatch => Needs::Queue(Operation::Write),
        Action::ReceiveMessage
        | Action::DeleteMessage
        | Action::DeleteMessageBatch
        | Action::ChangeMessageVisibility
        | Action::ChangeMessageVisibilityBatch => Needs::Queue(Operation::Read),
        Action::CreateQueue => Needs::Create,
        Action::DeleteQueue | Action::PurgeQueue => Needs::Queue(Operation::Delete),
        Action::GetQueueUrl
        | Action::GetQueueAttributes
        | Action::ListQueueTags
        | Action::ListDeadLetterSourceQueues => Needs::Queue(Operation::Describe),
        Action::TagQueue | Action::UntagQueue => Needs::Queue(Operation::Alter),
        Action::SetQueueAttributes => Needs::Attributes,
        Action::AddPermission | Action::RemovePermission => Needs::Grant,
        Action::ListQueues => Needs::Listed,
        Action::StartMessageMoveTask => Needs::Move,
        Action::ListMessageMoveTasks => Needs::Source,
        Action::CancelMessageMoveTask => Needs::Cluster(Operation::Alter),
    }
}

impl Needs {
    /// Returns the operation that an action requires on its queue, or on the cluster.
    pub fn operation(self) -> Operation {
        match self {
            Self::Queue(operation) | Self::Cluster(operation) => operation,
            Self::Create => Operation::Create,
            Self::Attributes | Self::Grant | Self::Move => Operation::Alter,
            Self::Listed | Self::Source => Operation::Describe,
        }
    }

    fn shown(self) -> Vec<Need> {
        let on_queue = permissions::on_queue(self.operation());
        match self {
            Self::Queue(_) | Self::Source | Self::Grant => on_queue,
            Self::Create => [permissions::create_queue(), permissions::dead_letters()].concat(),
            Self::Attributes => [on_queue, permissions::dead_letters().to_vec()].concat(),
            Self::Listed => vec![permissions::listed(ResourceKind::Queue)],
            Self::Move => permissions::redrive(),
            Self::Cluster(operation) => vec![Need::cluster(operation)],
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Create | Self::Attributes | Self::Grant => {
                "A policy gives and takes only what its author may do on the queue, unless the author may `alter` the \
                 cluster."
            }
            _ => "",
        }
    }
}

/// Returns the permissions that each action requires.
pub(crate) fn permissions() -> Table {
    let call = |action: &Action| {
        let needs = needs(*action);
        Call::new(action.name(), needs.shown()).note(needs.note())
    };
    let mut calls: Vec<Call> = Action::ALL.iter().map(call).collect();
    calls.push(Call::new(format!("GET {}", peek::PATH), permissions::on_queue(peek::OPERATION)));
    let about = "A refused action has the error `AccessDenied` with the status 403. A queue of the default account and \
                 region has its name as its resource; others are `ACCOUNT.REGION.NAME`.";
    Table { door: Door::Sqs, about, calls }
}

impl Sqs {
    /// Checks that the client may make a request.
    pub(super) async fn authorize(&self, context: &RequestContext<'_>, request: &Request<'_>) -> Result<()> {
        let security = &self.broker.security;
        let identity = &context.identity;
        if security.is_unlimited(identity) && !context.is_bound {
            return Ok(());
        }
        match needs(request.action()) {
            Needs::Listed => Ok(()),
            Needs::Cluster(operation) => {
                if let Request::CancelMessageMoveTask(request) = request {
                    let source = request.task_handle.as_ref().and_then(|handle| moves::source_of(handle.as_str()));
                    // The cluster is no tenant's, but the task is one of this queue.
                    if identity.tenant().is_some() {
                        return self.authorize_place(context, operation, source).await;
                    }
                    self.check_account(context, operation, source.as_ref())?;
                }
                Ok(security.authorize(identity, operation, &Resource::CLUSTER)?)
            }
            needs @ (Needs::Queue(_) | Needs::Create | Needs::Attributes | Needs::Grant) => {
                let place = match request {
                    Request::CreateQueue(request) => of_name(context, &request.queue_name),
                    Request::GetQueueUrl(request) => {
                        let mut place = of_name(context, &request.queue_name);
                        if let (Some(place), Some(owner)) = (&mut place, &request.queue_owner) {
                            owner.as_str().clone_into(&mut place.home.account);
                        }
                        place
                    }
                    other => queue_url(other).and_then(|url| Place::parse(url.as_str(), &context.home).ok()),
                };
                self.authorize_place(context, needs.operation(), place).await
            }
            needs @ (Needs::Source | Needs::Move) => {
                let (source, to) = match request {
                    Request::StartMessageMoveTask(request) => (&request.source_arn, &request.destination_arn),
                    Request::ListMessageMoveTasks(request) => (&request.source_arn, &None),
                    _ => return Err(Failure::parameter("The request names no source.")),
                };
                let of_arn = |arn: &Option<Text<'_>>| Place::of_arn(arn.as_ref()?.as_str());
                let source = of_arn(source);
                if matches!(needs, Needs::Source) {
                    return self.authorize_place(context, needs.operation(), source).await;
                }
                let to = to.as_ref().map(Text::as_str).filter(|arn| !arn.is_empty()).and_then(Place::of_arn);
                self.check_account(context, Operation::Alter, source.as_ref())?;
                self.check_account(context, Operation::Read, source.as_ref())?;
                self.check_account(context, Operation::Write, to.as_ref())?;
                let known_as = |place: Place| self.names(context).inner(&place);
                // The action itself refuses a source that names no queue.
                let Some(source) = source.map(known_as) else { return Ok(()) };
                let to = to.map(known_as);
                Ok(self.broker.authorize_redrive(identity, &source, to.as_deref()).await?)
            }
        }
    }

    /// Checks an operation on a queue. A request that names none is refused by the action itself.
    async fn authorize_place(
        &self,
        context: &RequestContext<'_>,
        operation: Operation,
        place: Option<Place>,
    ) -> Result<()> {
        let Some(place) = place else { return Ok(()) };
        self.check_account(context, operation, Some(&place))?;
        let known_as = self.names(context).inner(&place);
        Ok(self.broker.authorize_queue(&context.identity, operation, &known_as).await?)
    }

    /// Checks an operation on a queue of another account by a client that has proved that it acts for its own. Only an
    /// entry with exactly the name of the queue allows it, as that of a policy of the other account: roles and entries
    /// for many queues, which are meant for those of the client's account, do not, nor does being a super user.
    pub(super) fn check_account(
        &self,
        context: &RequestContext<'_>,
        operation: Operation,
        place: Option<&Place>,
    ) -> Result<()> {
        let own = &context.home.account;
        let Some(place) = place.filter(|place| context.is_bound && place.home.account != *own) else { return Ok(()) };
        let known_as = self.names(context).inner(place);
        let resource = Resource::queue(&known_as).by_name();
        if self.broker.security.allows_by_entry(&context.identity, operation, &resource) {
            return Ok(());
        }
        let Place { home, name } = place;
        let account = &home.account;
        let message = format!(
            "The access key of account {own} does not give access to {name} of account {account}: use a key of that \
             account, or set authorization = true and permit {} on this queue, by its policy or by thalweg acl for the \
             queue {known_as}.",
            operation.name()
        );
        Err(Failure::new(&ACCESS_DENIED, message))
    }
}

/// Returns the URL in a request about one queue.
fn queue_url<'r, 'a>(request: &'r Request<'a>) -> Option<&'r Text<'a>> {
    match request {
        Request::SendMessage(request) => request.queue_url.as_ref(),
        Request::SendMessageBatch(request) => request.queue_url.as_ref(),
        Request::ReceiveMessage(request) => request.queue_url.as_ref(),
        Request::DeleteMessage(request) => request.queue_url.as_ref(),
        Request::DeleteMessageBatch(request) => request.queue_url.as_ref(),
        Request::ChangeMessageVisibility(request) => request.queue_url.as_ref(),
        Request::ChangeMessageVisibilityBatch(request) => request.queue_url.as_ref(),
        Request::DeleteQueue(request) => request.queue_url.as_ref(),
        Request::ListDeadLetterSourceQueues(request) => request.queue_url.as_ref(),
        Request::GetQueueAttributes(request) => request.queue_url.as_ref(),
        Request::SetQueueAttributes(request) => request.queue_url.as_ref(),
        Request::PurgeQueue(request) => request.queue_url.as_ref(),
        Request::TagQueue(request) => request.queue_url.as_ref(),
        Request::UntagQueue(request) => request.queue_url.as_ref(),
        Request::ListQueueTags(request) => request.queue_url.as_ref(),
        Request::AddPermission(request) => request.queue_url.as_ref(),
        Request::RemovePermission(request) => request.queue_url.as_ref(),
        Request::CreateQueue(_)
        | Request::GetQueueUrl(_)
        | Request::ListQueues(_)
        | Request::StartMessageMoveTask(_)
        | Request::CancelMessageMoveTask(_)
        | Request::ListMessageMoveTasks(_) => None,
    }
}

fn of_name(context: &RequestContext<'_>, name: &Option<Text<'_>>) -> Option<Place> {
    name.as_ref().map(|name| Place::new(&context.home, name.as_str()))
}
