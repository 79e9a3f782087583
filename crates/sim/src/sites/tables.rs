//! Tables under load: many changes of interest at one site, and more advertisements than the limit.

use std::fmt;

use consensus::Time;
use engine::mesh::{ADVERTISEMENTS_PER_SITE_MAX, CacheSettings};

use super::MS;
use super::faults::{DELAY_MS, DRAINING};
use super::roster::{Id, Topic};
use super::world::{Again, Conditions, Event, World};
use crate::violation::{Violation, check};

const SECOND: Time = 1000 * MS;
/// Sites of the mesh, one of which has the changes, and topics of which it may read any.
const SITES: usize = 30;
const TOPICS: usize = 500;
/// Changes of interest per second.
pub const CHANGES_PER_SECOND: u64 = 1000;
/// Topics that the other sites read, and to which they publish.
const READS: usize = 20;

/// Entries of all sites, by table.
type Entries = Vec<(&'static str, usize)>;

/// How many entries the tables had.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub changes: u64,
    pub messages: u64,
    /// Entries before the changes, at most during them, and after them.
    pub before: Entries,
    pub peak: Entries,
    pub after: Entries,
    /// Bytes of the subscriber caches before and after the changes.
    pub cache_bytes: (usize, usize),
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} changes of interest at one site, {} messages; entries of all sites:",
            self.changes, self.messages
        )?;
        let entries = self.before.iter().zip(&self.peak).zip(&self.after);
        for (((table, before), (_, peak)), (_, after)) in entries {
            writeln!(f, "  {table:<15} {before:>7} before, {peak:>7} at most, {after:>7} afterwards")?;
        }
        let (before, after) = self.cache_bytes;
        write!(f, "  bytes of caches {before:>7} before, {after:>23} afterwards")
    }
}

fn conditions() -> Conditions {
    let (cache, delay_ms) = (CacheSettings::default(), DELAY_MS);
    Conditions { cache, delay_ms, again: Again::All, is_whole: true, bug: None }
}

/// Changes the interest of one site [`CHANGES_PER_SECOND`] times per second. Afterwards all tables have to be as they
/// were before.
pub fn change_interest(seconds: u64, seed: u64) -> Result<Tables, Violation> {
    let mut world = World::new(seed, conditions(), SITES, SITES, TOPICS);
    for at in 1..SITES as Id {
        for _ in 0..READS {
            let (read, published) = (world.random.below(TOPICS as u64), world.random.below(TOPICS as u64));
            world.set_wanted(at, read as Topic, true);
            world.set_published(at, published as Topic, true);
            world.schedule(SECOND, Event::Publish(at, published as Topic, 0));
        }
    }
    world.publish_every = 10 * SECOND;
    world.run_until(30 * SECOND)?;
    let mut tables = Tables { before: world.entries(), ..Tables::default() };
    tables.cache_bytes.0 = world.cache_bytes();
    tables.peak = tables.before.clone();
    let messages = world.counts.all_messages();
    for change in 0..seconds * CHANGES_PER_SECOND {
        let topic = world.random.below(TOPICS as u64) as Topic;
        let is_wanted = !world.sites[0].wanted.contains(&topic);
        world.set_wanted(0, topic, is_wanted);
        world.run_until(world.now + SECOND / CHANGES_PER_SECOND)?;
        if change % 100 == 0 {
            let peaks = tables.peak.iter_mut().zip(world.entries());
            peaks.for_each(|((_, peak), (_, now))| *peak = now.max(*peak));
            world.check_limits()?;
        }
    }
    tables.changes = seconds * CHANGES_PER_SECOND;
    tables.messages = world.counts.all_messages() - messages;
    for topic in world.sites[0].wanted.clone() {
        world.set_wanted(0, topic, false);
    }
    world.run_until(world.now + DRAINING)?;
    tables.after = world.entries();
    tables.cache_bytes.1 = world.cache_bytes();
    let (before, after) = (&tables.before, &tables.after);
    check(before == after, || {
        format!("the tables had {before:?} entries before the changes, and {after:?} after them")
    })?;
    let (before, after) = tables.cache_bytes;
    check(after <= before, || format!("the caches had {before} bytes before the changes, and {after} after them"))?;
    Ok(tables)
}

/// Advertises `more` topics than one site may, in a mesh whose sites own all topics. Every directory has to stop at the
/// limit, and to accept the topics of another site. Returns the number of refused advertisements at each.
pub fn exceed_limit(more: usize) -> Result<usize, Violation> {
    const OTHER: Id = 1;
    let topics = ADVERTISEMENTS_PER_SITE_MAX + more;
    let mut world = World::new(0, conditions(), 3, 3, topics + 1);
    for topic in 0..topics as Topic {
        world.set_wanted(0, topic, true);
    }
    world.run_until(60 * SECOND)?;
    let last = topics as Topic;
    world.set_wanted(OTHER, last, true);
    world.run_until(world.now + SECOND)?;
    for site in &world.sites {
        let entries = site.directory.len();
        check(entries == ADVERTISEMENTS_PER_SITE_MAX + 1, || {
            format!("a directory has {entries} advertisements, of at most {ADVERTISEMENTS_PER_SITE_MAX} of a site")
        })?;
        let readers = site.directory.lookup(world.roster.topic(last), world.clock_ms(OTHER));
        check(readers.len() == 1, || "a site at its limit displaces another one".to_owned())?;
    }
    Ok(more)
}

impl World {
    fn entries(&self) -> Entries {
        let mut sums: Entries = Vec::new();
        for site in &self.sites {
            // Lookups end by themselves, and some are in flight at any time.
            let tables = site.tables().into_iter().filter(|(table, _)| *table != "lookups");
            for (at, (table, entries)) in tables.enumerate() {
                match sums.get_mut(at) {
                    Some((_, sum)) => *sum += entries,
                    None => sums.push((table, entries)),
                }
            }
        }
        sums
    }

    fn cache_bytes(&self) -> usize {
        self.sites.iter().map(|site| site.cache.allocated_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use engine::mesh::{ADVERTISE_TTL_MS, Announcement, AnnouncementKind, Interest, SiteName, owners};

    use super::*;
    use crate::Random;
    use crate::sites::roster::Roster;

    /// Returns the live sites that own one of the topics, or have an advertisement that may not have expired.
    fn part(all: &[SiteName], roster: &Roster, wanted: &BTreeSet<Topic>, told: &[(SiteName, u64)]) -> Vec<SiteName> {
        let owners = wanted.iter().flat_map(|topic| owners(roster.topic(*topic), all));
        let told = told.iter().map(|(site, _)| site.clone()).filter(|site| all.contains(site));
        owners.chain(told).collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn a_part_of_the_sites_gives_the_announcements_of_all() {
        const SITES: usize = 40;
        const TOPICS: u64 = 6;
        let roster = Roster::new(7, SITES, SITES, TOPICS as usize);
        let mut random = Random::new(7);
        let mut all: BTreeSet<Id> = (0..SITES as Id).collect();
        let (mut whole, mut partial) = (Interest::new(), Interest::new());
        let (mut wanted, mut told) = (BTreeSet::new(), Vec::new());
        let (mut now_ms, mut announced) = (0, 0);
        let in_order = |mut all: Vec<Announcement>| {
            all.sort_by(|a, b| (&a.topic, &a.to).cmp(&(&b.topic, &b.to)));
            // In a part, sites arrive when they begin to matter.
            all.iter_mut().for_each(|one| one.arrival = 0);
            all
        };
        for step in 0..3000 {
            now_ms += random.below(20_000);
            let topic = random.below(TOPICS) as Topic;
            let site = random.below(SITES as u64) as Id;
            let names = |all: &BTreeSet<Id>| all.iter().map(|site| roster.name(*site).clone()).collect::<Vec<_>>();
            match random.below(4) {
                0 => {
                    let is_wanted = if wanted.remove(&topic) { false } else { wanted.insert(topic) };
                    for interest in [&mut whole, &mut partial] {
                        interest.set(roster.topic(topic), is_wanted, now_ms);
                    }
                }
                1 if all.len() > 5 => drop(all.remove(&site)),
                1 | 2 => drop(all.insert(site)),
                _ => {
                    for interest in [&mut whole, &mut partial] {
                        interest.reset_site(roster.name(site), now_ms);
                    }
                }
            }
            told.retain(|(_, until_ms)| *until_ms > now_ms);
            let list = names(&all);
            let expected = in_order(whole.due(&list, now_ms));
            let found = in_order(partial.due(&part(&list, &roster, &wanted, &told), now_ms));
            assert_eq!(expected, found, "step {step}");
            for Announcement { to, kind, .. } in found {
                announced += 1;
                if matches!(kind, AnnouncementKind::Advertise { .. }) {
                    told.push((to, now_ms + ADVERTISE_TTL_MS));
                }
            }
        }
        assert!(announced > 3000, "{announced}");
    }

    #[test]
    fn owners_of_the_roster_are_those_of_the_directory() {
        let mut roster = Roster::new(3, 300, 280, 5);
        let names: Vec<SiteName> = (0..280).map(|site| roster.name(site).clone()).collect();
        for topic in 0..5 {
            let expected: Vec<Id> = owners(roster.topic(topic), &names).iter().map(|name| roster.id(name)).collect();
            assert_eq!(roster.owners(0, topic, 0), expected);
        }
        assert_eq!(roster.full_rankings, 0);
    }
}
