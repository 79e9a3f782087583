//! The operation of a mesh, and the topics that are in it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use engine::mesh::{Invitation, MeshMode, MeshStatus, MeshTopic, SiteListener, SiteName, check_minutes};
use engine::{DraftBatch, Error, ErrorKind, Result, TopicName};

use crate::core::Core;
use crate::mesh::{LiveTopic, Mesh};
use crate::publish::Published;
use crate::topic::Topic;

impl Core {
    /// Sets the mesh, once, before the doors open.
    pub fn set_mesh(&self, mesh: Arc<dyn Mesh>) -> Result<()> {
        self.mesh.set(mesh)
    }

    fn mesh(&self) -> Result<&Arc<dyn Mesh>> {
        self.check_leads()?;
        self.mesh.get()
    }

    /// Returns the topics whose setting `mesh` is live, in the order of their names.
    pub fn live_topics(&self) -> Vec<LiveTopic> {
        let topics = self.topics.read();
        let is_live = |topic: &&Arc<Topic>| topic.settings.mesh == MeshMode::Live;
        let mut live: Vec<LiveTopic> = topics.values().filter(is_live).map(|topic| LiveTopic::of(topic)).collect();
        drop(topics);
        live.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        live
    }

    /// Returns the inboxes of the clients of this site, at which clients of other sites may reply.
    pub fn inboxes(&self) -> HashSet<TopicName> {
        self.topics.read().values().filter(|topic| topic.name.is_inbox()).map(|topic| topic.name.clone()).collect()
    }

    /// Publishes a batch to an inbox that this site does not have.
    pub(crate) async fn publish_away(&self, inbox: TopicName, batch: DraftBatch) -> Result<Published> {
        let none = |error: Error| match error.kind {
            ErrorKind::NotFound => Error::not_found(format!("no client is waiting for an answer at {inbox}")),
            _ => error,
        };
        self.mesh.get()?.deliver(inbox.clone(), batch).await.map_err(none)?;
        Ok(Published {
            partition: 0,
            base_offset: 0,
            partitions: 1,
            receivers: 1,
            is_committed: false,
            is_duplicate: false,
            arrival_ms: None,
        })
    }

    /// Returns different patterns of subscriptions of this site, until there are more than `max`.
    pub fn listened_patterns(&self, max: usize) -> BTreeSet<SiteListener> {
        self.listeners.lock().of_patterns(max)
    }

    /// Returns names of channels that clients of this site listen to, at most `max`.
    pub fn listened_channels(&self, max: usize) -> HashSet<TopicName> {
        let mut names = self.listeners.lock().of_channels(max);
        let topics = self.topics.read();
        names.retain(|name| topics.get(name.as_str()).is_none());
        names
    }

    /// Returns `true` if this site takes records of a topic from other sites: it is live here, an inbox, or there is
    /// no such topic and clients listen to its name.
    pub fn takes_from_sites(&self, name: &TopicName) -> bool {
        let topic = self.topics.read().get(name.as_str()).cloned();
        match topic {
            Some(topic) => topic.takes_from_sites(),
            None => !name.is_hidden() && self.listeners.lock().has_reader(name),
        }
    }

    /// Waits until live topics or their readers may have changed since the last call. Fetches are not noticed.
    pub async fn readers_changed(&self) {
        self.mesh.changed().await;
    }

    /// Makes this broker a site of a new mesh.
    pub async fn init_mesh(&self, site: SiteName) -> Result<MeshStatus> {
        let name = site.to_string();
        self.audited("init mesh", &name, async { self.mesh()?.init(site).await }).await
    }

    /// Makes this broker a site of the mesh that issued an invitation.
    pub async fn join_mesh(&self, site: SiteName, invitation: &Invitation) -> Result<MeshStatus> {
        let name = site.to_string();
        self.audited("join mesh", &name, async { self.mesh()?.join(site, invitation).await }).await
    }

    /// Issues an invitation with which one site can join within a number of minutes.
    pub async fn invite_site(&self, minutes: u32) -> Result<Invitation> {
        let invite = async {
            check_minutes(minutes)?;
            self.mesh()?.invite(minutes).await
        };
        self.audited("invite site", &format!("{minutes} minutes"), invite).await
    }

    /// Removes another site from the mesh.
    pub async fn remove_site(&self, site: &SiteName) -> Result<()> {
        self.audited("remove site", site.as_str(), async { self.mesh()?.remove(site).await }).await
    }

    /// Leaves the mesh, and forgets the key of this site.
    pub async fn leave_mesh(&self) -> Result<()> {
        self.audited("leave mesh", "", async { self.mesh()?.leave().await }).await
    }

    /// Returns the state of the mesh.
    pub fn describe_mesh(&self) -> Result<MeshStatus> {
        self.mesh()?.status()
    }

    /// Returns the topics of this site that are in the mesh, in the order of their names.
    pub fn mesh_topics(&self) -> Result<Vec<MeshTopic>> {
        self.mesh()?.topics()
    }
}
