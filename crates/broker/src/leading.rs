//! The role of a core at work: whether it still leads, and what ends with its leadership.

use std::fmt;
use std::sync::Arc;

use engine::{Error, ErrorKind, Result, Storage};

use crate::core::Core;
use crate::leadership::{Epoch, Leadership, NodeInfo};
use crate::metrics::Exposition;
use crate::topic::Topic;

impl Core {
    /// Returns the leadership under which this broker serves; `None` for a broker that is alone.
    pub fn leadership(&self) -> Option<&Leadership> {
        self.role().leadership()
    }

    /// Returns the leader epoch of the batches that are appended now: the term, or 0 for a broker that is alone.
    pub fn leader_epoch(&self) -> i32 {
        self.epoch().epoch
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.role().epoch(self.settings().clock)
    }

    /// Fails with `not_leader` once the leadership of this broker has ended.
    #[inline]
    pub fn check_leads(&self) -> Result<()> {
        match self.leadership() {
            Some(leadership) if self.role().has_ended() => Err(leadership.not_leader()),
            _ => Ok(()),
        }
    }

    /// Ends the leadership: when this returns, nothing can be appended to the store through this broker any more, and
    /// later changes fail with `not_leader`. Appends that were accepted before keep their outcome.
    pub(crate) fn end_leadership(&self, leadership: &Leadership) {
        if !self.role().end() {
            return;
        }
        let error = leadership.not_leader();
        // No topic and no channel is created from here on: these locks are held while the role is checked.
        let channels = self.listeners.lock().channels();
        let hidden = self.hidden.lock().clone();
        let topics: Vec<_> = self.topics.read().values().cloned().collect();
        for cell in topics.iter().chain(&channels).chain(&hidden).flat_map(|topic| topic.partitions()) {
            cell.refuse_changes(&error);
        }
    }

    /// Adds a topic that is in no table. Fails if the leadership has ended.
    pub(crate) fn hide(&self, topic: Arc<Topic>) -> Result<()> {
        let mut hidden = self.hidden.lock();
        self.check_leads()?;
        hidden.push(topic);
        Ok(())
    }

    /// Refuses storage that a cluster does not replicate.
    pub(crate) fn check_storage(&self, storage: Storage) -> Result<()> {
        if storage == Storage::Sqlite && self.leadership().is_some() {
            let message = "a cluster has no topics in SQLite, which it does not replicate: use storage disk";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    pub(crate) fn expose_role(&self, out: &mut Exposition<'_>) -> fmt::Result {
        let Some(leadership) = self.leadership() else { return Ok(()) };
        let nodes = leadership.nodes.nodes();
        out.gauge("thalweg_cluster_term", "Term of the leadership of this broker", leadership.term)?;
        out.gauge("thalweg_cluster_node", "Number of this node", leadership.node)?;
        let rows = |value: &dyn Fn(&NodeInfo) -> u64| -> Vec<(String, u64)> {
            nodes.iter().map(|node| (node.id.to_string(), value(node))).collect()
        };
        out.gauges(
            "thalweg_cluster_node_alive",
            "1 for a node that has answered recently",
            "node",
            &rows(&|node| node.is_alive.into()),
        )?;
        out.gauges(
            "thalweg_cluster_node_voter",
            "1 for a node that votes, 0 for one that only follows",
            "node",
            &rows(&|node| node.is_voter.into()),
        )?;
        out.gauges(
            "thalweg_cluster_node_lag_bytes",
            "Bytes of the log that a node does not have yet",
            "node",
            &rows(&|node| node.lag_bytes),
        )
    }
}
