//! The mesh of a broker's site. Its links are made outside this crate, by what implements [`Mesh`].

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use engine::mesh::{Invitation, MeshStatus, MeshTopic, SiteName};
use engine::{DraftBatch, Error, ErrorKind, Result, TopicId, TopicName};
use tokio::sync::Notify;

use crate::topic::Topic;

/// Future of an operation of the mesh.
pub type Operating<'m, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'm>>;

/// Mesh of this broker's site.
pub trait Mesh: Send + Sync {
    /// Makes this broker a site of a new mesh.
    fn init(&self, site: SiteName) -> Operating<'_, MeshStatus>;

    /// Makes this broker a site of the mesh that issued an invitation.
    fn join<'m>(&'m self, site: SiteName, invitation: &'m Invitation) -> Operating<'m, MeshStatus>;

    /// Issues an invitation with which one site can join within a number of minutes.
    fn invite(&self, minutes: u32) -> Operating<'_, Invitation>;

    /// Removes another site from the mesh. Every site disconnects it and refuses its key from then on.
    fn remove<'m>(&'m self, site: &'m SiteName) -> Operating<'m, ()>;

    /// Leaves the mesh, and forgets the key of this site.
    fn leave(&self) -> Operating<'_, ()>;

    /// Sends a batch to the site that has an inbox. Fails as not found if no site has it.
    fn deliver(&self, inbox: TopicName, batch: DraftBatch) -> Operating<'_, ()>;

    /// Returns the state of the mesh.
    fn status(&self) -> Result<MeshStatus>;

    /// Returns the topics of this site that are in the mesh, in the order of their names.
    fn topics(&self) -> Result<Vec<MeshTopic>>;
}

/// Mesh of a broker, once it has one.
#[derive(Default)]
pub(crate) struct MeshCell {
    mesh: OnceLock<Arc<dyn Mesh>>,
    /// Notified when the topics of the mesh or their readers may have changed.
    readers_changed: Notify,
}

impl MeshCell {
    pub(crate) fn set(&self, mesh: Arc<dyn Mesh>) -> Result<()> {
        self.mesh.set(mesh).map_err(|_second| Error::new(ErrorKind::Internal, "the broker has a mesh already"))
    }

    pub(crate) fn get(&self) -> Result<&Arc<dyn Mesh>> {
        let none = || Error::new(ErrorKind::Unsupported, "this broker was started without a mesh");
        self.mesh.get().ok_or_else(none)
    }

    pub(crate) async fn changed(&self) {
        self.readers_changed.notified().await;
    }

    pub(crate) fn note_change(&self) {
        self.readers_changed.notify_one();
    }
}

/// Topic whose records travel to other sites.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTopic {
    pub name: TopicName,
    pub id: TopicId,
    pub partitions: u32,
    /// `true` if a queue reads the topic, or a subscription of a client that is in no queue group.
    pub is_read: bool,
    /// Names of the queue groups that read the topic.
    pub groups: BTreeSet<Box<str>>,
    /// `true` if a client has fetched from it since this was last asked.
    pub is_fetched: bool,
}

impl LiveTopic {
    pub(crate) fn of(topic: &Topic) -> Self {
        let cells = topic.partitions();
        // Every partition is asked, which resets what it answers.
        let is_fetched = cells.iter().filter(|cell| cell.was_fetched()).count() > 0;
        let is_read = cells.iter().any(|cell| cell.is_read());
        let mut groups = BTreeSet::new();
        cells.iter().for_each(|cell| cell.add_groups(&mut groups));
        Self { name: topic.name.clone(), id: topic.id, partitions: cells.len() as u32, is_read, groups, is_fetched }
    }
}
