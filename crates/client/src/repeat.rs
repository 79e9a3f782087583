//! Requests that are sent again if their answer is lost, because a second execution changes nothing.

use engine::{Error, ErrorKind};
use wire::groups::{Heartbeat, Step};
use wire::security::SecurityRequest;
use wire::{CacheRequest, ClusterRequest, ConnectionRequest, GroupRequest, MeshRequest, QueueRequest, Request};

/// Returns `true` if a request to a cluster is sent again after this error: if it was certainly not executed, or if it
/// may be executed twice.
pub(crate) fn may_repeat(request: &Request, error: &Error) -> bool {
    match error.kind {
        // The queue sends its messages again by itself, in their order.
        ErrorKind::NotLeader => !matches!(request, Request::Queue(QueueRequest::Send { .. })),
        ErrorKind::Disconnected | ErrorKind::ShuttingDown => is_idempotent(request),
        _ => false,
    }
}

/// Returns `true` if two executions of the request have the same effect as one, and the second answer is as good as the
/// first. Deletions and changes are not included: the answer to the second one may be that there is nothing to do, and
/// a change by another client may come in between. Conditional cache operations are numbered instead, and publishes
/// have their own repetition.
fn is_idempotent(request: &Request) -> bool {
    match request {
        Request::Fetch { .. }
        | Request::TopicCreate { .. }
        | Request::TopicDescribe { .. }
        | Request::TopicList { .. }
        | Request::Stats
        | Request::Ping
        | Request::InitProducer => true,
        Request::Group(request) => matches!(
            request,
            GroupRequest::Commit(_)
                | GroupRequest::Fetch { .. }
                | GroupRequest::List { .. }
                | GroupRequest::Describe { .. }
                // A member that joins again under its id is the same member.
                | GroupRequest::Heartbeat(Heartbeat { step: Step::Join { .. }, .. })
        ),
        Request::Queue(request) => match request {
            QueueRequest::Create(_)
            | QueueRequest::Describe { .. }
            | QueueRequest::List { .. }
            | QueueRequest::Peek { .. }
            | QueueRequest::ListRedrives { .. } => true,
            // The messages of the lost answer return with the end of its connection.
            QueueRequest::Receive(receive) => !receive.outlives_connection,
            _ => false,
        },
        Request::Cache(request) => matches!(
            request,
            CacheRequest::Open { .. }
                | CacheRequest::Describe { .. }
                | CacheRequest::List { .. }
                | CacheRequest::Get { .. }
                | CacheRequest::MultiGet { .. }
                | CacheRequest::Scan { .. }
                | CacheRequest::Watch { .. }
        ),
        Request::Security(request) => matches!(
            request,
            SecurityRequest::ListUsers
                | SecurityRequest::ListAcls(_)
                | SecurityRequest::ListMembers
                | SecurityRequest::ListTokens
                | SecurityRequest::ListAccessKeys
                | SecurityRequest::ListQuotas
                | SecurityRequest::ListTenants
        ),
        // A node that leads already need not be asked again.
        Request::Cluster(request) => !matches!(request, ClusterRequest::Remove { .. }),
        Request::Mesh(request) => {
            matches!(request, MeshRequest::Describe | MeshRequest::Topics | MeshRequest::Invite { .. })
        }
        // A backup ends with its connection.
        Request::Backup(_) => false,
        // A connection that was closed does not exist any more.
        Request::Connection(request) => matches!(request, ConnectionRequest::List { .. }),
        // A login belongs to its connection, and a subscription resumes at its position.
        Request::Hello { .. }
        | Request::Login { .. }
        | Request::Publish { .. }
        | Request::Subscribe(_)
        | Request::Unsubscribe { .. }
        | Request::Credit { .. }
        | Request::TopicDelete { .. }
        | Request::TopicGrow { .. }
        | Request::TopicAlter { .. }
        | Request::RecordsDelete { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_again_only_if_it_cannot_take_effect_twice() {
        let describe = Request::TopicDescribe { topic: "t".to_owned() };
        let delete = Request::TopicDelete { topic: "t".to_owned() };
        let lost = Error::new(ErrorKind::Disconnected, "lost");
        assert!(may_repeat(&describe, &lost) && !may_repeat(&delete, &lost));
        assert!(lost.is_outcome_unknown());
        let refused = Error::not_leader("elected", None);
        assert!(may_repeat(&describe, &refused) && may_repeat(&delete, &refused), "it was not executed");
        assert!(!refused.is_outcome_unknown());
        for kind in ErrorKind::ALL {
            let is_for_good =
                may_repeat(&describe, &Error::new(kind, "")) == may_repeat(&delete, &Error::new(kind, ""));
            assert_eq!(is_for_good, !matches!(kind, ErrorKind::Disconnected | ErrorKind::ShuttingDown), "{kind:?}");
        }
    }

    #[test]
    fn a_receive_whose_leases_outlive_the_connection_is_not_repeated() {
        let receive = |outlives_connection| {
            Request::Queue(QueueRequest::Receive(wire::queues::Receive {
                queue: "q".to_owned(),
                count_max: 1,
                bytes_max: 1,
                lease_ms: None,
                wait_ms: 0,
                outlives_connection,
            }))
        };
        assert!(is_idempotent(&receive(false)) && !is_idempotent(&receive(true)));
    }
}
