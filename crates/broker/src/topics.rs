//! Topics: creation, lookup, description and deletion.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use engine::ids::{is_inbox, is_internal};
use engine::mesh::MeshMode;
use engine::security::{QuotaKind, TenantName};
use engine::{
    Error, ErrorKind, Offset, PartitionId, Pattern, Result, SettingsChange, Start, Storage, TopicId, TopicName,
    TopicSettings,
};

use crate::commit::Commit;
use crate::copies::refuse_copy;
use crate::core::Core;
use crate::joining::lose_all;
use crate::log::Log;
use crate::peers::Created;
use crate::retention::Retention;
use crate::topic::{PartitionStatus, Topic, TopicOutline, refuse_internal, room_for};

/// Maximum topics altered in one hold of the lock, for which creations of topics wait.
const TOPICS_AT_A_TIME: usize = 64;

impl Core {
    /// Creates a topic, and returns when it is durable. Queues over a deleted topic of its name do not read it yet.
    pub(crate) async fn create_resolved(&self, name: &str, settings: TopicSettings) -> Result<Arc<Topic>> {
        let name = TopicName::parse(name)?;
        let settings = self.resolve(settings)?;
        if name.is_inbox() {
            return Err(Error::invalid(format!("{name}: an inbox is created by subscribing to it")));
        }
        refuse_internal(name.as_str())?;
        let (topic, commit) = self.create(name, settings)?;
        if !topic.settings.is_as(&settings.or(&self.topic_defaults(settings.storage))) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("topic {} exists with other settings", topic.name),
            ));
        }
        commit.wait().await?;
        Ok(topic)
    }

    /// Returns the settings that [`Broker::create_topic`](crate::Broker::create_topic) would use for these, or the
    /// error with which it would refuse them.
    pub fn resolve(&self, settings: TopicSettings) -> Result<TopicSettings> {
        let storage = match (settings.storage, self.store()) {
            (Storage::Auto, None) => Storage::Memory,
            (Storage::Auto, Some(_)) => Storage::Disk,
            (Storage::Disk | Storage::Sqlite, None) => {
                return Err(Error::invalid("this broker keeps all topics in memory; start it with --data DIR"));
            }
            (storage, _) => storage,
        };
        self.check_storage(storage)?;
        let settings = TopicSettings { storage, ..settings }.or(&self.topic_defaults(storage));
        settings.validate()?;
        Ok(settings)
    }

    pub fn outline_topic(&self, name: &str) -> Result<TopicOutline> {
        Ok(self.topic(name)?.outline())
    }

    /// Returns the number of topics, including inboxes and the broker's internal topics.
    pub fn topic_count(&self) -> usize {
        self.topics.read().len()
    }

    /// Returns all topics, ordered by name. Inboxes are not listed.
    pub fn outline_topics(&self) -> Vec<TopicOutline> {
        self.topics.read().listed(Bound::Unbounded).map(|topic| topic.outline()).collect()
    }

    /// Returns up to `count_max` topics from a name on, ordered by name, so that a long list can be made in slices.
    /// Inboxes are not listed.
    pub fn outline_topics_from(&self, from: Bound<&str>, count_max: usize) -> Vec<TopicOutline> {
        self.topics.read().listed(from).take(count_max).map(|topic| topic.outline()).collect()
    }

    /// Returns the name of the topic that has this id.
    pub fn topic_by_id(&self, id: TopicId) -> Result<TopicName> {
        let found = self.topics.read().get_by_id(id).map(|topic| topic.name.clone());
        found.ok_or_else(|| Error::not_found(format!("there is no topic with the id {id}; it may have been deleted")))
    }

    /// Returns the id of a topic and the number of its partitions, if the topic exists.
    pub fn find_topic(&self, name: &str) -> Option<(TopicId, u32)> {
        self.topics.read().get(name).map(|topic| (topic.id, topic.partitions().len() as u32))
    }

    /// Returns `true` if a topic keeps only the newest record of each key; `None` if the topic does not exist.
    pub fn is_compacted(&self, name: &str) -> Option<bool> {
        self.topics.read().get(name).map(|topic| topic.settings.compact)
    }

    pub fn has_topic(&self, name: &str) -> bool {
        self.topics.read().get(name).is_some()
    }

    /// Returns the bounds of one partition's log.
    pub fn describe_partition(&self, name: &str, partition: PartitionId) -> Result<PartitionStatus> {
        Ok(self.topic(name)?.partition(partition)?.extent())
    }

    /// Returns the number of partitions of a topic. A missing topic is created, if that is allowed.
    pub fn partitions_of(&self, name: &str) -> Result<u32> {
        Ok(self.topic_or_create(name)?.settings.partitions)
    }

    /// Returns the next partition in turn of a topic, for records without a key. A missing topic is created, if that is
    /// allowed.
    pub fn next_partition_of(&self, name: &str) -> Result<PartitionId> {
        Ok(self.topic_or_create(name)?.next_partition().id)
    }

    /// Returns up to `count_max` topics whose names come after `after`, in the order of their names, without inboxes;
    /// and whether no topic follows. Topics that are not shown are left out.
    pub(crate) fn topics_after(
        &self,
        after: &str,
        count_max: usize,
        is_shown: impl Fn(&str) -> bool,
    ) -> (Vec<Arc<Topic>>, bool) {
        let topics = self.topics.read();
        let shown = topics.listed(Bound::Excluded(after)).filter(|topic| is_shown(topic.name.as_str()));
        let mut found: Vec<Arc<Topic>> = shown.take(count_max.saturating_add(1)).cloned().collect();
        let is_last = found.len() <= count_max;
        found.truncate(count_max);
        (found, is_last)
    }

    /// Changes settings of a topic.
    pub(crate) fn alter(&self, name: &str, change: SettingsChange) -> Result<(Arc<Topic>, Commit)> {
        let _control = self.listeners.lock();
        self.alter_locked(name, change)
    }

    /// Returns the settings that [`Broker::alter_topic`](crate::Broker::alter_topic) would set, or the error with which
    /// it would refuse the change.
    pub fn check_alteration(&self, name: &str, change: SettingsChange) -> Result<TopicSettings> {
        refuse_internal(name)?;
        let topic = self.topic(name)?;
        change.mesh.map_or(Ok(()), MeshMode::check_chosen)?;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: the settings of an inbox cannot be changed")));
        }
        let settings = change.of(&topic.settings).or(&self.topic_defaults(topic.settings.storage));
        settings.validate()?;
        Ok(settings)
    }

    /// Changes settings of a topic for a caller that has locked the listeners.
    pub(crate) fn alter_locked(&self, name: &str, change: SettingsChange) -> Result<(Arc<Topic>, Commit)> {
        self.check_leads()?;
        let settings = self.check_alteration(name, change)?;
        let topic = self.topic(name)?;
        if settings == topic.settings {
            let commit = self.commit_of(&topic)?;
            return Ok((topic, commit));
        }
        let mut commit = Commit::done();
        if let (Some(id), Some(store)) = (topic.stored_as, self.store()) {
            let (entry, appended) = Commit::of_entry();
            store.alter_topic(id, settings, entry)?;
            commit = appended;
        }
        let altered = topic.altered(settings);
        self.topics.write().insert(altered.clone());
        self.mesh.note_change();
        Ok((altered, commit))
    }

    /// Appends the growth of a topic to this number of partitions, unless `check` refuses it. They exist after
    /// [`Core::apply_growth`], which the caller calls once the growth is committed.
    pub(crate) fn propose_growth(
        &self,
        name: &str,
        partitions: u32,
        check: impl FnOnce(&Topic) -> Result<()>,
    ) -> Result<(Arc<Topic>, Commit)> {
        refuse_internal(name)?;
        self.check_leads()?;
        let topic = self.topic(name)?;
        let has = topic.settings.partitions;
        if topic.name.is_inbox() {
            return Err(Error::invalid(format!("{name}: an inbox has one partition")));
        }
        if partitions < has {
            return Err(Error::invalid(format!("topic {name} has {has} partitions: they can only grow")));
        }
        if partitions == has {
            let commit = self.commit_of(&topic)?;
            return Ok((topic, commit));
        }
        TopicSettings { partitions, ..topic.settings }.validate()?;
        check(&topic)?;
        room_for(&self.topics.read(), 0, partitions - has)?;
        let (Some(id), Some(store)) = (topic.stored_as, self.store()) else {
            return Ok((topic, Commit::done()));
        };
        let (entry, commit) = Commit::of_entry();
        store.grow_topic(id, partitions, entry)?;
        Ok((topic, commit))
    }

    /// Adds the partitions of a committed growth. `prepare` gets the grown topic, and the number of partitions that it
    /// had, before any client can publish to the new ones.
    pub(crate) fn apply_growth(
        &self,
        topic: &Topic,
        partitions: u32,
        prepare: impl FnOnce(&Topic, usize),
    ) -> Result<Arc<Topic>> {
        let name = topic.name.as_str();
        let _control = self.listeners.lock();
        let topic = self.existing_topic(name).filter(|current| current.id == topic.id);
        let topic = topic.ok_or_else(|| self.no_such_topic(name))?;
        let has = topic.partitions().len();
        if partitions as usize <= has {
            return Ok(topic);
        }
        let grown = match (topic.stored_as, self.store()) {
            (Some(id), Some(store)) => topic.grown(store.partitions(id)?.into_iter().skip(has).map(Log::Shared)),
            _ => topic.grown((has..partitions as usize).map(|_| Log::in_memory())),
        };
        let [first, ..] = topic.partitions() else {
            return Err(self.no_such_topic(name));
        };
        // Each follower reads the first partition, too. No client can publish to the new partitions before they are
        // inserted.
        for subscriber in first.followers() {
            for cell in &grown.partitions()[has..] {
                cell.join(&subscriber, &Start::Live, cell, subscriber.scope.group.as_deref())?;
            }
        }
        prepare(&grown, has);
        self.topics.write().insert(grown.clone());
        self.catalog_changed(&grown.name);
        Ok(grown)
    }

    /// Removes a topic with all it holds from the core and from all views. Its subscriptions end.
    pub(crate) fn remove(&self, name: &str) -> Result<Commit> {
        let control = self.listeners.lock();
        self.check_leads()?;
        let topic = self.topic(name)?;
        let mut commit = Commit::done();
        if let (Some(id), Some(store)) = (topic.stored_as, self.store()) {
            let (entry, appended) = Commit::of_entry();
            store.delete_topic(id, entry)?;
            commit = appended;
        }
        self.topics.write().remove(name);
        let mut readers = Vec::new();
        for cell in topic.partitions() {
            let (members, freed) = cell.delete();
            self.log_budget().release(freed);
            readers.push(members);
        }
        self.observers.iter().for_each(|observer| observer.topic_removed(self, &topic));
        self.catalog_changed(&topic.name);
        drop(control);
        lose_all(readers, Error::not_found(format!("topic {name} was deleted")));
        // No view but that of its one subscriber knows an inbox.
        if !topic.name.is_inbox() {
            self.observers.iter().for_each(|observer| observer.topic_forgotten(self, &topic));
        }
        Ok(commit)
    }

    /// Deletes the records of a partition before an offset, or all records for `Offset::MAX`. Returns the new start
    /// of the log. The change is durable when this completes.
    pub async fn delete_records(&self, name: &str, partition: PartitionId, before: Offset) -> Result<Offset> {
        let act = async {
            refuse_internal(name)?;
            let cell = self.topic(name)?.partition(partition)?;
            let (start, freed, commit) = cell.delete_records(before)?;
            self.log_budget().release(freed);
            commit.wait().await?;
            Ok(start)
        };
        self.audited("delete records of topic", name, act).await
    }

    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>> {
        self.existing_topic(name).ok_or_else(|| self.no_such_topic(name))
    }

    /// Returns a topic. Unlike [`Core::topic`], creates no error with a suggestion, which takes much longer.
    pub(crate) fn existing_topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.topics.read().get(name).cloned()
    }

    /// Returns the error for a topic that does not exist; it suggests the nearest existing name.
    pub(crate) fn no_such_topic(&self, name: &str) -> Error {
        let topics = self.topics.read();
        let names = topics.values().filter(|topic| !topic.name.is_hidden()).map(|topic| topic.name.as_str());
        match self.suggestions.nearest(self.now_ms(), name, names) {
            Some(nearest) => Error::not_found(format!(
                "there is no topic '{name}'; did you mean '{nearest}'? Otherwise create it, or list those that exist"
            )),
            None => Error::not_found(format!("there is no topic '{name}'; create it, or list those that exist")),
        }
    }

    pub(crate) fn topic_or_create(&self, name: &str) -> Result<Arc<Topic>> {
        if let Some(topic) = self.topics.read().get(name) {
            return Ok(topic.clone());
        }
        if is_inbox(name) {
            return Err(Error::not_found(format!("no client is waiting for an answer at {name}")));
        }
        if is_internal(name) || !self.settings().auto_create_topics {
            TopicName::parse(name)?;
            return Err(self.no_such_topic(name));
        }
        let settings = self.resolve(TopicSettings::of_broker())?;
        // The topic's records are never durable before the topic is, so there is nothing to wait for.
        let created = self.create(TopicName::parse(name)?, settings);
        self.record_act("create topic", name, created.as_ref().err());
        Ok(created?.0)
    }

    /// Creates a topic, or returns the topic that another caller created concurrently.
    pub(crate) fn create(&self, name: TopicName, settings: TopicSettings) -> Result<(Arc<Topic>, Commit)> {
        let mut listeners = self.listeners.lock();
        self.check_leads()?;
        {
            let topics = self.topics.read();
            if let Some(topic) = topics.get(name.as_str()) {
                return Ok((topic.clone(), self.commit_of(topic)?));
            }
            room_for(&topics, 1, settings.partitions)?;
            self.tenant_quotas().admit(QuotaKind::Topics, name.as_str(), |tenant| topics.by_tenant.get(tenant))?;
        }
        if !is_internal(name.as_str()) {
            self.peers().admit(Created::Topic)?;
        }
        // Settings that follow the broker's defaults do so from here on: defaults change under the lock that is held.
        let settings = match settings.own {
            Some(_) => settings.or(&self.topic_defaults(settings.storage)),
            None => settings,
        };
        let epoch = self.epoch();
        let (topic, commit) = match (settings.storage, self.store()) {
            (Storage::Disk | Storage::Sqlite, Some(store)) => {
                let (entry, commit) = Commit::of_entry();
                (Topic::stored(self.ids(), store.create_topic(name.clone(), settings, entry)?, epoch), commit)
            }
            _ => (Topic::in_memory(name.clone(), self.next_volatile_id(), settings, epoch), Commit::done()),
        };
        if !name.is_hidden() {
            listeners.join_topic(&topic)?;
        }
        self.topics.write().insert(topic.clone());
        // Records published to the channel of this name are queued before those of the topic.
        listeners.close(self.log_budget(), &name);
        drop(listeners);
        self.catalog_changed(&topic.name);
        self.observers.iter().for_each(|observer| observer.topic_created(&topic));
        self.topic_created.notify_waiters();
        Ok((topic, commit))
    }

    /// Returns the commit of an existing topic: another caller may have created it just now.
    pub(crate) fn commit_of(&self, topic: &Topic) -> Result<Commit> {
        let (Some(id), Some(store)) = (topic.stored_as, self.store()) else {
            return Ok(Commit::done());
        };
        self.check_leads()?;
        let (entry, commit) = Commit::of_entry();
        store.confirm_topic(id, topic.settings.partitions, entry)?;
        Ok(commit)
    }

    /// Number that rises with every topic that is created, grown or deleted, from 1 on startup. Inboxes do not count:
    /// no group reads one.
    pub fn catalog_version(&self) -> u64 {
        self.changed_topics.version()
    }

    fn catalog_changed(&self, name: &TopicName) {
        self.mesh.note_change();
        if !name.is_inbox() {
            self.changed_topics.note(name);
        }
    }

    /// Returns the number of partitions of all topics together.
    pub(crate) fn partition_count(&self) -> usize {
        self.topics.read().partitions
    }

    /// Returns the existing topics that match a pattern.
    pub(crate) fn topics_matching(&self, pattern: &Pattern) -> Vec<Arc<Topic>> {
        let topics = self.topics.read();
        topics.values().filter(|topic| !topic.name.is_hidden() && pattern.matches(&topic.name)).cloned().collect()
    }

    /// Removes what retention no longer covers. `knows_queues`: it is known which records no queue needs any more.
    /// `has_queues`: what queues have acknowledged can be removed.
    pub(crate) fn trim_logs(&self, now_ms: u64, knows_queues: bool, has_queues: bool) {
        let channels = self.listeners.lock().channels();
        let topics: Vec<Arc<Topic>> = self.topics.read().values().cloned().collect();
        for topic in topics.into_iter().chain(channels) {
            for cell in topic.partitions() {
                let settings = &topic.settings;
                if !settings.keeps_unacked || knows_queues {
                    self.log_budget().release(cell.trim(Retention::of(settings), now_ms));
                }
                if settings.drop_consumed && has_queues {
                    self.log_budget().release(cell.sweep_consumed());
                }
            }
        }
    }

    /// Measures the stored bytes of the tenants that have a quota of them. From then on, publishes to the topics of
    /// those that store too many are refused, and others are accepted.
    pub(crate) fn measure_tenants(&self) {
        let measured = self.tenant_quotas().measured();
        if measured.is_empty() && !self.tenant_quotas().has_measured() {
            return;
        }
        let mut stored: HashMap<_, u64, _> = measured.into_iter().map(|tenant| (tenant, 0)).collect();
        let topics: Vec<Arc<Topic>> = self.topics.read().values().cloned().collect();
        let tenant_of = |topic: &Topic| TenantName::of_inner(topic.name.as_str());
        if !stored.is_empty() {
            for topic in &topics {
                if let Some(bytes) = tenant_of(topic).and_then(|tenant| stored.get_mut(&tenant)) {
                    *bytes += topic.partitions().iter().map(|cell| cell.bytes()).sum::<u64>();
                }
            }
        }
        let full: HashSet<TenantName> = self.tenant_quotas().note_stored(stored).into_iter().collect();
        for topic in topics {
            let is_full = !full.is_empty() && tenant_of(&topic).is_some_and(|tenant| full.contains(&tenant));
            topic.set_over_quota(is_full);
        }
    }

    /// Refuses a publish of a client to a copy, or if the tenant of the topic stores too many bytes.
    #[inline]
    pub(crate) fn check_publish(&self, topic: &Topic) -> Result<()> {
        if topic.settings.mesh == MeshMode::Copy {
            return Err(refuse_copy(&topic.name));
        }
        if topic.is_over_quota() { Err(self.tenant_quotas().refuse_publish(topic.name.as_str())) } else { Ok(()) }
    }

    /// Returns the current defaults of topics with this storage.
    pub fn topic_defaults(&self, storage: Storage) -> TopicSettings {
        self.defaults().effective(storage)
    }

    /// Returns the configured defaults of topics with this storage.
    pub fn configured_topic_defaults(&self, storage: Storage) -> TopicSettings {
        self.defaults().configured(storage)
    }

    /// Acquires the exclusive right to change the defaults, for a caller whose change depends on the current ones.
    pub async fn defaults_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.defaults().turn().await
    }

    /// Replaces the previous change of the configured defaults with `change`, and alters all topics that follow them.
    /// For topics on disk, the alteration is durable when this completes. The next call repairs what a failed one left
    /// undone.
    pub async fn set_topic_defaults(&self, change: &SettingsChange) -> Result<()> {
        let act = async {
            let effective = self.check_topic_defaults(change)?;
            {
                let _control = self.listeners.lock();
                self.defaults().set(effective);
            }
            let topics = self.topics.read().values().map(|topic| topic.name.clone()).collect::<Vec<_>>();
            let mut commits = Vec::new();
            for names in topics.chunks(TOPICS_AT_A_TIME) {
                {
                    let _control = self.listeners.lock();
                    for name in names {
                        // The topic may have been deleted in the meantime.
                        let Some(topic) = self.existing_topic(name.as_str()) else { continue };
                        commits.extend(self.follow(&topic)?);
                    }
                }
                tokio::task::yield_now().await;
            }
            for commit in commits {
                commit.wait().await?;
            }
            Ok(())
        };
        self.audited("alter broker", "topic defaults", act).await
    }

    /// Returns the defaults that [`Core::set_topic_defaults`] would lead to, or the error with which it would refuse
    /// the change.
    pub fn check_topic_defaults(&self, change: &SettingsChange) -> Result<[TopicSettings; 2]> {
        self.defaults().check(change)
    }

    /// Alters a topic that differs from its defaults. A topic whose own settings conflict with them is left unchanged.
    fn follow(&self, topic: &Topic) -> Result<Option<Commit>> {
        let settings = topic.settings;
        if settings.own.is_none() || is_internal(topic.name.as_str()) || topic.name.is_inbox() {
            return Ok(None);
        }
        let followed = settings.or(&self.topic_defaults(settings.storage));
        if followed == settings || followed.validate().is_err() {
            return Ok(None);
        }
        self.alter_locked(topic.name.as_str(), SettingsChange::default()).map(|(_, commit)| Some(commit))
    }
}
