//! Exchange of the contents of two caches. Each keeps its name, its settings and all who use it: sessions, watchers and
//! blocked clients find the other entries at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::cache::effects::Effect;
use engine::cache::record::CacheNumber;
use engine::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::super::cache::{Cache, Durable, Locked, Swapped};
use super::super::log::CacheLog;
use super::super::notes::What;

impl Locked<'_> {
    /// Exchanges all entries with those of another cache. All stripes of both have to be locked, and both steps end
    /// together ([`Locked::finish_all`]). Fails, and changes nothing, if the settings of the caches differ, or if any
    /// key is a stream, whose topic is named after its database.
    pub fn swap(&mut self, other: &mut Self) -> Result<()> {
        check_settings(self.cache, other.cache)?;
        self.check_streams()?;
        other.check_streams()?;
        let version = self.newest().max(other.newest()) + 1;
        let now_ms = self.now_ms();
        self.end_contents();
        other.end_contents();
        self.log_swap(other, version);
        for ((_, stripe), (_, others)) in self.stripes.iter_mut().zip(&mut other.stripes) {
            stripe.swap(others, version, now_ms);
        }
        self.begin_contents();
        other.begin_contents();
        Ok(())
    }

    /// Fails if any key is a stream.
    fn check_streams(&mut self) -> Result<()> {
        let cache = self.cache;
        cache.streams.check_listed(cache.name.as_str())?;
        loop {
            let found = self.stripes.iter().find_map(|(_, stripe)| stripe.any_stream());
            let Some((key, id)) = found.map(|(key, id)| (key.to_vec(), id)) else {
                return Ok(());
            };
            if cache.streams.get_by_id(id)?.is_some() {
                let message = format!(
                    "the cache '{}' has the stream '{}', and the entries of caches with streams are not exchanged, as \
                     the topic of a stream is named after its database: move or delete all streams first",
                    cache.name,
                    key.escape_ascii()
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            // Another door has just deleted its topic.
            self.take_stream(&key, id);
        }
    }

    /// Reports what happened to the entries so far, which concerns the cache that had them.
    fn end_contents(&mut self) {
        self.stripes.iter_mut().for_each(|(_, stripe)| self.cache.changes.follow(stripe));
        self.drop_streams();
    }

    /// Notifies all who know entries of the cache, or wait for them.
    fn begin_contents(&mut self) {
        let cache = self.cache;
        cache.changes.reset();
        self.note(b"", What::Flushed);
        self.is_changed = true;
        if cache.waiters.is_waited_for() {
            for key in cache.waiters.keys() {
                if self.look(&key).is_some() {
                    self.grown.add(&*key);
                }
            }
        }
    }

    /// Adds the changes so far, and the exchange after them, to what is logged at the end of the step.
    fn log_swap(&mut self, other: &mut Self, version: u64) {
        let (Some(own), Some(others)) = (&self.cache.durable, &other.cache.durable) else {
            return;
        };
        let before = other.take_unlogged();
        let mut swap = self.take_unlogged();
        Effect::Swapped { with: others.number, version }.encode(&mut swap);
        self.earlier.push(Swapped { version, steps: [(others.number, before), (own.number, swap)] });
        self.is_swapped = true;
        other.is_swapped = true;
        own.log.swaps.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the effects of the changes since the last exchange.
    fn take_unlogged(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if std::mem::take(&mut self.is_flushed) {
            Effect::Flushed.encode(&mut bytes);
        }
        for (_, stripe) in &mut self.stripes {
            // All keys of the cache wait for the record of the exchange: their marks are not needed.
            bytes.extend(stripe.take_effects().map(|effects| effects.bytes).unwrap_or_default());
        }
        bytes
    }
}

/// Refuses to exchange the contents of these caches: each is within the limits of its cache, and only there.
fn check_settings(one: &Cache, other: &Cache) -> Result<()> {
    let names = || format!("the caches '{}' and '{}'", one.name, other.name);
    if one.settings != other.settings {
        let message = format!(
            "{} have different settings, and only caches with equal settings exchange their entries: delete one, and \
             create it with the settings of the other",
            names()
        );
        return Err(Error::invalid(message));
    }
    if one.is_deleted() || other.is_deleted() {
        return Err(Error::busy(format!("one of {} has just been deleted: try again", names())));
    }
    one.durable.as_ref().map_or(Ok(()), |Durable { log, .. }| log.check_swap())
}

/// Takes the exchanges of a step, with the changes before them, in their order.
pub(super) fn write_earlier(
    all: &mut [Locked<'_>],
    steps: &mut SmallVec<[(CacheNumber, Vec<u8>); 1]>,
    log: &mut Option<Arc<CacheLog>>,
) {
    let mut earlier = Vec::new();
    for locked in all.iter_mut().filter(|locked| !locked.earlier.is_empty()) {
        earlier.append(&mut locked.earlier);
        *log = locked.cache.durable.as_ref().map(|durable| durable.log.clone());
    }
    // Of exchanges that have a cache in common, a later one has a higher version.
    earlier.sort_by_key(|swapped| swapped.version);
    let effects = earlier.into_iter().flat_map(|swapped| swapped.steps);
    steps.extend(effects.filter(|(_, effects)| !effects.is_empty()));
}
