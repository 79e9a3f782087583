//! The operation of a cluster: its state, new nodes, nodes that leave, and transfers of the leadership.

use engine::cluster::{ClusterStatus, JoinToken, check_minutes};
use engine::{Error, ErrorKind, Result};

use crate::core::Core;
use crate::leadership::Leadership;

impl Core {
    /// Returns the state of the cluster that this broker leads.
    pub fn cluster(&self) -> Result<ClusterStatus> {
        self.led()?.nodes.status()
    }

    /// Issues a token with which one node can join within a number of minutes.
    pub fn issue_join_token(&self, minutes: u32) -> Result<JoinToken> {
        let issue = || {
            check_minutes(minutes)?;
            self.led()?.nodes.issue_token(minutes)
        };
        let issued = issue();
        self.record_act("issue join token", &format!("{minutes} minutes"), issued.as_ref().err());
        issued
    }

    /// Passes the leadership to another node of the cluster. Returns once that has begun; this broker ends soon after.
    /// It has no effect if the node leads already.
    pub async fn transfer_leadership(&self, to: u64) -> Result<()> {
        let transfer = async {
            let leadership = self.led()?;
            leadership.nodes.status()?.check_transfer(to)?;
            if leadership.node == to {
                return Ok(());
            }
            // Records that are not durable when this leadership ends are lost.
            self.record_ahead("transfer leadership", &format!("node {to}")).await;
            leadership.nodes.transfer(to)
        };
        let begun = transfer.await;
        if let Err(error) = &begun {
            self.record_act("transfer leadership", &format!("node {to}"), Some(error));
        }
        begun
    }

    /// Removes a node from the cluster. It is refused if the cluster would have no majority afterwards.
    pub async fn remove_node(&self, node: u64) -> Result<()> {
        let remove = async {
            let leadership = self.led()?;
            leadership.nodes.status()?.check_removal(node)?;
            leadership.nodes.remove(node).await
        };
        self.audited("remove node", &format!("node {node}"), remove).await
    }

    /// Returns the leadership, or the error of a broker that has none.
    fn led(&self) -> Result<&Leadership> {
        self.check_leads()?;
        self.leadership().ok_or_else(|| {
            let message = "this broker is not a node of a cluster; see thalweg cluster init";
            Error::new(ErrorKind::Unsupported, message)
        })
    }
}
