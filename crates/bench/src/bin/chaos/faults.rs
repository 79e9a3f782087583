//! Effects of each fault on the nodes.

use std::time::{Duration, Instant};

use client::{Client, ErrorKind, Record, Storage, TopicSettings};
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

use crate::clients::native;
use crate::compare::{LAG_UNDER_LOAD, follows, until_caught_up};
use crate::damage::flip_bit;
use crate::history::History;
use crate::network::Outcome;
use crate::nodes::NotStarted;
use crate::plan::{Fault, Random};
use crate::round::{KAFKA_READS, KAFKA_TOPIC, Round, TOPIC};

/// Part of the message with which a node refuses its own damaged files.
const REFUSAL: &str = "must not come back under its number";
/// Time in which a node with a wrong bit follows, or does not.
const FOLLOWS_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which a node has to end that was asked to lead.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds by which a wall clock is wrong.
const WRONG_CLOCKS: [i64; 3] = [-10, 10, 0];
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Topic by which disks get full, and its records.
const BULK: &str = "chaos-bulk";
const BULK_RECORDS: u32 = 400;
const BULK_RECORD_BYTES: usize = 64 * 1024;

/// Numbers for the report about a fault.
#[derive(Default)]
pub struct Effect {
    pub kills: u64,
    /// Cuts of the network, in one direction or in both.
    pub cuts: u64,
    /// Nodes that joined, and nodes that left.
    pub changes: u64,
    pub note: Option<String>,
}

/// Waits on a thread that also runs tasks.
fn wait_ms(time: u64) {
    std::thread::sleep(Duration::from_millis(time));
}

impl Round {
    /// Begins a fault. Those that have several steps are over at the return.
    pub async fn inflict(
        &mut self,
        fault: Fault,
        leader: u64,
        client: &Client,
        random: &mut Random,
    ) -> Outcome<Effect> {
        let mut followers: Vec<u64> = self.nodes.places().filter(|node| *node != leader).collect();
        let turn = random.below(followers.len() as u64) as usize;
        followers.rotate_left(turn);
        match fault {
            Fault::LostDirectory
            | Fault::FlippedBit
            | Fault::JoinDuringCut
            | Fault::LeaveDuringCut
            | Fault::ReplaceDuringCut => {
                // Only a minority is lost or cut off: the others vote, and have everything.
                until_caught_up(client, self.nodes.places().count(), LAG_UNDER_LOAD).await?;
            }
            _ => {}
        }
        match fault {
            Fault::FlippedBit => self.flip(followers[0], client, random).await,
            Fault::FullDiskOfLeader => self.fill(leader, client, random).await,
            Fault::FullDiskOfFollower => self.fill(followers[0], client, random).await,
            Fault::LostDirectory => {
                // The leader in one of three cases.
                let lost = if random.below(3) == 0 { leader } else { followers[0] };
                block_in_place(|| {
                    self.nodes.kill(lost);
                    self.nodes.replace(lost)
                })?;
                Ok(Effect { kills: 1, changes: 2, ..Effect::default() })
            }
            _ => block_in_place(|| self.begin(fault, leader, &followers, random)),
        }
    }

    fn begin(&mut self, fault: Fault, leader: u64, followers: &[u64], random: &mut Random) -> Outcome<Effect> {
        let nodes = &mut self.nodes;
        let all: Vec<u64> = nodes.places().collect();
        let follower = followers[0];
        let majority = all.len() / 2 + 1;
        let mut effect = Effect::default();
        let mut killed: Vec<u64> = Vec::new();
        match fault {
            Fault::KillLeader => killed.push(leader),
            Fault::KillFollower => killed.push(follower),
            Fault::KillMajority => {
                killed.push(leader);
                killed.extend(&followers[..majority - 1]);
            }
            Fault::KillAll => killed = all,
            Fault::KillInTurn => {
                for node in all.iter().chain(&all) {
                    nodes.kill(*node);
                    wait_ms(random.below(200));
                    nodes.start(*node)?;
                    wait_ms(random.below(300));
                    effect.kills += 1;
                }
            }
            Fault::PauseLeader => nodes.pause(leader),
            Fault::PauseFollower => nodes.pause(follower),
            Fault::RestartFollower => nodes.stop(follower)?,
            Fault::RestartFollowers => {
                for node in followers {
                    nodes.stop(*node)?;
                    nodes.start(*node)?;
                }
            }
            Fault::RestartLeader => nodes.stop(leader)?,
            Fault::IsolateLeader => {
                for other in followers {
                    nodes.network.cut_to(leader, Some(*other))?;
                    nodes.network.cut_to(*other, Some(leader))?;
                }
                effect.cuts = 1;
            }
            Fault::DeafLeader => {
                for other in followers {
                    nodes.network.cut_to(leader, Some(*other))?;
                }
                effect.cuts = 1;
            }
            Fault::MuteLeader => {
                nodes.network.cut_from(leader)?;
                effect.cuts = 1;
            }
            Fault::DeafFollower => {
                nodes.network.cut_to(follower, None)?;
                effect.cuts = 1;
            }
            Fault::Bridge => {
                nodes.network.cut_to(leader, Some(follower))?;
                nodes.network.cut_to(follower, Some(leader))?;
                effect.cuts = 1;
            }
            Fault::FlappingCut => {
                for _ in 0..4 {
                    nodes.network.cut_to(follower, Some(leader))?;
                    wait_ms(50 + random.below(1200));
                    nodes.network.heal(follower)?;
                    wait_ms(random.below(400));
                    effect.cuts += 1;
                }
            }
            Fault::KillDuringCut => {
                let from = *random.one_of(&[&leader, &followers[1]]);
                let (deaf, from) = if random.below(2) == 0 { (follower, from) } else { (from, follower) };
                nodes.network.cut_to(deaf, Some(from))?;
                wait_ms(random.below(600));
                nodes.kill(leader);
                wait_ms(random.below(700));
                nodes.start(leader)?;
                effect = Effect { kills: 1, cuts: 1, ..effect };
            }
            Fault::Loss => all.iter().try_for_each(|node| nodes.network.lose_tenth(*node))?,
            Fault::JoinDuringCut => {
                nodes.network.cut_to(follower, None)?;
                nodes.add()?;
                killed.push(leader);
                effect = Effect { cuts: 1, changes: 1, ..effect };
            }
            Fault::LeaveDuringCut => {
                let newest = all.len() as u64;
                let cut = followers.iter().find(|node| **node != newest).copied().unwrap_or(follower);
                nodes.network.cut_to(cut, None)?;
                nodes.remove_last()?;
                effect = Effect { cuts: 1, changes: 1, ..effect };
            }
            Fault::ReplaceDuringCut => {
                let cut = followers[1];
                nodes.kill(follower);
                nodes.network.cut_to(cut, random.one_of(&[None, Some(leader)]))?;
                wait_ms(random.below(1500));
                // Of three nodes no majority is left, and the answer may be unknown.
                nodes.try_to_remove(follower);
                nodes.network.heal(cut)?;
                nodes.replace(follower)?;
                effect = Effect { kills: 1, cuts: 1, changes: 2, note: None };
            }
            Fault::WrongClock => {
                let node = random.one_of(&all);
                let seconds = random.one_of(&WRONG_CLOCKS);
                nodes.set_clock(node, seconds)?;
                effect.note = Some(format!("place {node} is wrong by {seconds} s"));
                if random.below(2) == 0 {
                    killed.push(leader);
                }
            }
            Fault::LostDirectory | Fault::FlippedBit | Fault::FullDiskOfLeader | Fault::FullDiskOfFollower => {
                return Err("it has steps of its own".into());
            }
        }
        killed.iter().for_each(|node| nodes.kill(*node));
        effect.kills += killed.len() as u64;
        Ok(effect)
    }

    /// Fills the disk of a node, and publishes until the node needs more of it than there is.
    async fn fill(&mut self, node: u64, client: &Client, random: &mut Random) -> Outcome<Effect> {
        let settings = TopicSettings { partitions: 1, storage: Storage::Disk, ..TopicSettings::default() };
        let failed = |error: client::Error| format!("{BULK}: {error}");
        client.create_topic(BULK, settings).await.map_err(failed)?;
        let before = self.nodes.logged(node);
        block_in_place(|| self.nodes.fill_disk(node))?;
        let (begin, mut sent) = (Instant::now(), 0);
        let hold = Duration::from_millis(2000 + random.below(4000));
        while begin.elapsed() < hold {
            if sent < BULK_RECORDS {
                let record = Record::new(vec![7; BULK_RECORD_BYTES]);
                // A leader whose disk is full refuses it.
                let published = timeout(hold.saturating_sub(begin.elapsed()), client.publish(BULK, record)).await;
                sent += u32::from(published.is_ok_and(|published| published.is_ok()));
            }
            sleep(Duration::from_millis(10)).await;
        }
        let is_noticed = self.nodes.has_logged(node, before, "the disk is full");
        self.nodes.empty_disk(node);
        let mut deleted = client.delete_topic(BULK).await;
        while deleted.is_err() && begin.elapsed() < 10 * FOLLOWS_TIMEOUT {
            sleep(POLL_EVERY).await;
            deleted = client.delete_topic(BULK).await;
            // A deletion whose answer was lost.
            if deleted.as_ref().is_err_and(|error| error.kind == ErrorKind::NotFound) {
                break;
            }
        }
        let noticed = if is_noticed { "noticed" } else { "not noticed" };
        let note = format!("{noticed} by place {node}, {} KiB published", sent as usize * BULK_RECORD_BYTES / 1024);
        Ok(Effect { note: Some(note), ..Effect::default() })
    }

    /// Kills a node, makes one bit of its files wrong, and starts it again: it has to refuse that, or to be right. If
    /// anything is damaged, a node with an empty directory replaces it.
    async fn flip(&mut self, node: u64, client: &Client, random: &mut Random) -> Outcome<Effect> {
        let (place, damage, started) = block_in_place(|| {
            self.nodes.kill(node);
            let place = flip_bit(&self.nodes.data(node), random)?;
            let damage = self.nodes.inspect(node).err();
            Ok::<_, String>((place, damage, self.nodes.start(node)))
        })?;
        let mut effect = Effect { kills: 1, ..Effect::default() };
        let seen = match (&damage, started) {
            (_, Err(NotStarted::Ended { code: Some(_), log }))
                if log.contains(REFUSAL) && !log.contains("panicked") =>
            {
                "refused its start".to_owned()
            }
            (_, Err(failed)) => {
                let failed = String::from(failed);
                self.finished.violations.push(format!("{place}: node {node} gave no clear message: {failed}"));
                "did not start".to_owned()
            }
            (damage, Ok(())) => {
                let follows = self.follows(node, client).await;
                if damage.is_none() && follows {
                    effect.note = Some(format!("{place}: harmless"));
                    return Ok(effect);
                }
                if follows { self.serve_damaged(node, client).await? } else { "did not follow".to_owned() }
            }
        };
        effect.note = Some(format!("{place}: {} and is replaced", seen.trim_end_matches(',')));
        effect.changes = 2;
        block_in_place(|| {
            self.nodes.kill(node);
            self.nodes.replace(node)
        })?;
        Ok(effect)
    }

    /// Waits until a node has all of the log, or does not get it.
    async fn follows(&self, node: u64, client: &Client) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < FOLLOWS_TIMEOUT {
            if client.stats().await.is_ok_and(|metrics| follows(&metrics, self.nodes.number(node))) {
                return true;
            }
            sleep(POLL_EVERY).await;
        }
        false
    }

    /// Lets a node with a damaged file lead and reads everything there: it may fail, but nothing that it returns may be
    /// wrong, which the checker of the log sees.
    async fn serve_damaged(&mut self, node: u64, client: &Client) -> Outcome<String> {
        let number = self.nodes.number(node);
        block_in_place(|| self.nodes.operate(&["cluster", "transfer", &number.to_string()]))
            .map(drop)
            .unwrap_or_default();
        let begin = Instant::now();
        while self.leader(client).await? != node {
            if begin.elapsed() > TRANSFER_TIMEOUT {
                return Ok("opened, and does not lead".to_owned());
            }
            sleep(POLL_EVERY).await;
        }
        let Some(native) = self.reads.clone() else { return Ok("opened".to_owned()) };
        let path = self.folder.join(KAFKA_READS);
        let kafka = History::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let reader = format!("damaged-{number}");
        let mut seen = "opened, leads and returns".to_owned();
        for (topic, history) in [(TOPIC, &*native), (KAFKA_TOPIC, &kafka)] {
            match native::read(client, topic, &reader, history).await {
                Ok(count) => seen += &format!(" {count} records,"),
                Err(error) => seen += &format!(" an error ({error}),"),
            }
        }
        kafka.flush().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(seen)
    }
}
