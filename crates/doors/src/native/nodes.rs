//! Maps requests about the nodes of a cluster to calls of the broker.

use std::sync::Arc;

use broker::Broker;
use engine::Result;
use wire::Response;
use wire::nodes::{ClusterRequest, ClusterResponse};

pub(super) async fn answer(broker: &Arc<Broker>, request: ClusterRequest) -> Result<Response> {
    let answer = match request {
        ClusterRequest::Describe => ClusterResponse::Described(broker.cluster()?),
        ClusterRequest::IssueToken { minutes } => ClusterResponse::TokenIssued(broker.issue_join_token(minutes)?),
        ClusterRequest::Transfer { to } => {
            broker.transfer_leadership(to).await?;
            ClusterResponse::Transferring
        }
        ClusterRequest::Remove { node } => {
            broker.remove_node(node).await?;
            ClusterResponse::Removed
        }
    };
    Ok(Response::Cluster(answer))
}
