//! One simulated site: the state machines of the engine, and what `crates/mesh` keeps around them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use consensus::Time;
use engine::mesh::{CacheSettings, Directory, Interest, SiteName, SubscriberCache};

use super::roster::{Id, Owners, Topic};

/// Sites of a topic in a message, shared by all messages with one list.
pub(super) type List = Rc<[SiteName]>;

pub(super) struct Site {
    pub cache: SubscriberCache,
    pub directory: Directory,
    pub interest: Interest,
    /// Latest answer of each owner of a topic.
    pub views: BTreeMap<Topic, Vec<(Id, List)>>,
    pub watched: BTreeMap<Topic, Watched>,
    pub pending: BTreeMap<u64, Pending>,
    /// Records that wait until the sites of their topic are known.
    pub waiting: BTreeMap<Topic, Waiting>,
    /// Topics that clients of the site read. They survive a restart.
    pub wanted: BTreeSet<Topic>,
    /// Topics that clients of the site publish to. They survive a restart.
    pub published: BTreeSet<Topic>,
    /// Sites at which an advertisement may not have expired, with the time in ms by which it has.
    pub told: BTreeMap<Id, u64>,
    /// Known number of the latest start of each site that has started while this one was up.
    pub runs: BTreeMap<Id, u32>,
    /// Number of this run: it grows with every start, unless the clock was set back.
    pub epoch: u64,
    /// Difference in ms between the clock of this site and the true time.
    pub clock_ms: u64,
    /// Time of the next check, and its reason.
    pub keep_at: Option<(Time, Reason)>,
}

/// Topic that a site watches.
pub(super) struct Watched {
    /// Time in ms of the latest lookup; `None` if the topic has to be looked up again.
    pub at_ms: Option<u64>,
    /// Owners that were asked.
    pub owners: Owners,
    /// `true` if an answer named a site that this one did not know.
    pub has_unknown: bool,
}

/// Lookup that waits for the answers of the owners of its topic.
pub(super) struct Pending {
    pub topic: Topic,
    /// Number of owners that have not answered.
    pub left: usize,
    /// `true` once the first answer was stored, or the lookup has failed.
    pub is_done: bool,
    pub cause: Cause,
}

#[derive(Default)]
pub(super) struct Waiting {
    pub records: Vec<Record>,
    pub retry_at: Time,
}

/// Record that a client has published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub published: Time,
    /// Number of lookups for which it has waited.
    pub trips: u32,
    /// Number of the sample to which it belongs; 0 for none.
    pub sample: u32,
}

/// Cause of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Subscriber cache had nothing, or an expired entry.
    Cache,
    /// Watch would expire, or the list of sites has changed.
    Watch,
}

/// Reason of a message, which its answers inherit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reason {
    /// Work that is there without changes: publishers, renewals, watches.
    #[default]
    Steady,
    /// Readers came or went.
    Readers,
    /// Sites came or went.
    Sites,
}

impl Site {
    pub fn new(settings: CacheSettings, epoch: u64, clock_ms: u64) -> Self {
        Self {
            cache: SubscriberCache::new(settings),
            directory: Directory::new(),
            interest: Interest::new(),
            views: BTreeMap::new(),
            watched: BTreeMap::new(),
            pending: BTreeMap::new(),
            waiting: BTreeMap::new(),
            wanted: BTreeSet::new(),
            published: BTreeSet::new(),
            told: BTreeMap::new(),
            runs: BTreeMap::new(),
            epoch,
            clock_ms,
            keep_at: None,
        }
    }

    /// Starts another run, which has only what clients want.
    pub fn restart(&mut self, settings: CacheSettings, epoch: u64) {
        let wanted = std::mem::take(&mut self.wanted);
        let published = std::mem::take(&mut self.published);
        *self = Self { wanted, published, ..Self::new(settings, epoch, self.clock_ms) };
    }

    /// Returns the number of entries of each table, with the names of the tables.
    pub fn tables(&self) -> [(&'static str, usize); 8] {
        [
            ("advertisements", self.directory.len()),
            ("watches", self.directory.watch_count()),
            ("interest", self.interest.len()),
            ("cached topics", self.cache.len()),
            ("views", self.views.len()),
            ("watched topics", self.watched.len()),
            ("lookups", self.pending.len()),
            ("waiting records", self.waiting.len()),
        ]
    }
}
