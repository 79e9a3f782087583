//! The nodes of a cluster.

use engine::Result;
use engine::cluster::{ClusterStatus, JoinToken};
use wire::nodes::{ClusterRequest, ClusterResponse};
use wire::{Request, Response};

use crate::client::Client;
use crate::link::unexpected;

impl Client {
    /// Returns the state of the cluster, as its leader knows it. A broker that is no node of a cluster answers with an
    /// error of the kind unsupported.
    pub async fn describe_cluster(&self) -> Result<ClusterStatus> {
        match self.of_cluster(ClusterRequest::Describe).await? {
            ClusterResponse::Described(status) => Ok(status),
            other => Err(unexpected(&Response::Cluster(other))),
        }
    }

    /// Issues a token with which one new node can join within a number of minutes, at most a week.
    pub async fn issue_join_token(&self, minutes: u32) -> Result<JoinToken> {
        match self.of_cluster(ClusterRequest::IssueToken { minutes }).await? {
            ClusterResponse::TokenIssued(token) => Ok(token),
            other => Err(unexpected(&Response::Cluster(other))),
        }
    }

    /// Has another node of the cluster lead. Returns once that has begun; the connections of the node that leads now
    /// end soon after.
    pub async fn transfer_leadership(&self, to: u64) -> Result<()> {
        match self.of_cluster(ClusterRequest::Transfer { to }).await? {
            ClusterResponse::Transferring => Ok(()),
            other => Err(unexpected(&Response::Cluster(other))),
        }
    }

    /// Removes a node from the cluster, whose number is never given again. Removing the leader has another one lead.
    pub async fn remove_node(&self, node: u64) -> Result<()> {
        match self.of_cluster(ClusterRequest::Remove { node }).await? {
            ClusterResponse::Removed => Ok(()),
            other => Err(unexpected(&Response::Cluster(other))),
        }
    }

    async fn of_cluster(&self, request: ClusterRequest) -> Result<ClusterResponse> {
        match self.session.call(&Request::Cluster(request)).await? {
            Response::Cluster(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}
