//! Commands for tools and operators: the slow log, latencies and memory. Also commands for features that do not exist
//! here (modules, a cluster), which reply like a server without them.

use broker::LockedCache;
use engine::cache::parse_number;
use engine::security::Operation;
use net::service::Reply;

use super::args::{is, parse_int};
use super::info::{Memory, human};
use super::session::{now, ok, written};
use crate::redis::access::{Needs, of_memory, of_statistics};
use crate::redis::channels::Unconfirmed;
use crate::redis::codec::Answer;
use crate::redis::command::{Command, Keys, Named, own, wrong_part};
use crate::redis::connection::Session;
use crate::redis::databases::lock_or_busy;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail, SYNTAX};
use crate::redis::later::Later;
use crate::redis::writer::Writer;

/// Number of entries of the slow log that are returned by default.
const SLOW_DEFAULT: usize = 10;

pub(super) const SERVER: &[Command] =
    &[
        own(
            "LASTSAVE",
            1,
            Needs::Cluster(Operation::Describe),
            last_save,
            ("1.0.0", "Returns the last save: now if databases are durable, else at startup"),
        ),
        own("LATENCY", -2, Needs::OfPart(of_statistics), latency, ("2.8.13", "Returns the latencies of commands"))
            .of(&[("DOCTOR", 2), ("GRAPH", 3), ("HISTOGRAM", -2), ("HISTORY", 3), ("LATEST", 2), ("RESET", -2)]),
        Command {
            keys: Keys::Range(2, 2, 1),
            ..own("MEMORY", -2, Needs::OfPart(of_memory), memory, ("4.0.0", "Returns how memory is used"))
        }
        .of(&[("DOCTOR", 2), ("MALLOC-STATS", 2), ("PURGE", 2), ("STATS", 2), ("USAGE", -3)]),
        own(
            "MONITOR",
            1,
            Needs::Cluster(Operation::Alter),
            monitor,
            ("1.0.0", "Shows the commands of all clients, until RESET"),
        ),
        own("MODULE", -2, Needs::Cluster(Operation::Describe), module, ("4.0.0", "Returns the loaded modules: none"))
            .of(&[("LIST", 2), ("LOAD", -3), ("LOADEX", -3), ("UNLOAD", 3)]),
        own("SLOWLOG", -2, Needs::OfPart(of_statistics), slow_log, ("2.2.12", "Returns slow commands")).of(&[
            ("GET", -2),
            ("LEN", 2),
            ("RESET", 2),
        ]),
    ];

pub(super) const CLUSTER: &[Command] = &[
    own("ASKING", 1, Needs::Nothing, no_cluster, ("3.0.0", "Not supported: the server is not a cluster")),
    own("CLUSTER", -2, Needs::Nothing, no_cluster, ("3.0.0", "Not supported: the server is not a cluster")).of(&[
        ("COUNTKEYSINSLOT", 3),
        ("GETKEYSINSLOT", 4),
        ("HELP", 2),
        ("INFO", 2),
        ("KEYSLOT", 3),
        ("LINKS", 2),
        ("MEET", -4),
        ("MYID", 2),
        ("NODES", 2),
        ("REPLICAS", 3),
        ("RESET", -2),
        ("SHARDS", 2),
        ("SLAVES", 3),
        ("SLOTS", 2),
    ]),
    own("READONLY", 1, Needs::Nothing, no_cluster, ("3.0.0", "Not supported: the server is not a cluster")),
    own("READWRITE", 1, Needs::Nothing, no_cluster, ("3.0.0", "Not supported: the server is not a cluster")),
];

fn no_cluster(_door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    session.fail(&Fail::new("ERR This instance has cluster support disabled"))
}

/// Returns the time at which all data was saved, in seconds since 1970.
pub(super) fn saved_s(door: &Door) -> u64 {
    // Acknowledged data is on the disk if databases are durable. Otherwise it is never saved.
    (if door.is_durable { door.broker.now_ms() } else { door.began_ms }) / 1000
}

fn last_save(door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        writer.int(saved_s(door) as i64);
        Ok(())
    })
}

fn module(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        if !is(args[1], "LIST") {
            return Err(Fail::new("ERR modules are not supported"));
        }
        writer.array(0);
        Ok(())
    })
}

fn slow_log(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        match (args[1].to_ascii_uppercase().as_slice(), &args[2..]) {
            (b"LEN", []) => writer.len(door.stats.slow_len()),
            (b"RESET", []) => {
                door.stats.forget_slow();
                writer.ok();
            }
            (b"GET", []) => write_slow(door, SLOW_DEFAULT, writer),
            (b"GET", [count]) => {
                let wrong = || Fail::new("ERR count should be greater than or equal to -1");
                let count = parse_number(count).filter(|count| *count >= -1).ok_or_else(wrong)?;
                // -1 requests all entries.
                write_slow(door, usize::try_from(count).unwrap_or(usize::MAX), writer);
            }
            _ => return Err(wrong_part("SLOWLOG", args[1])),
        }
        Ok(())
    })
}

fn write_slow(door: &Door, count: usize, writer: &mut Writer) {
    let slow = door.stats.slow(count);
    writer.array(slow.len());
    for entry in slow {
        writer.array(6);
        [entry.id, entry.at_s, entry.us].iter().for_each(|number| writer.int(*number as i64));
        writer.array(entry.args.len());
        entry.args.iter().for_each(|arg| writer.bulk(arg));
        writer.bulk(entry.address.as_bytes());
        writer.bulk(entry.name.as_bytes());
    }
}

/// Shows all commands of all clients to this one from now on.
fn monitor(door: &Door, session: &mut Session, _args: &[&[u8]]) -> Reply<Answer, Later> {
    if session.monitoring.is_none() {
        let identity = session.identity.borrow().clone();
        let monitoring = door.monitors.add(&session.client, &identity);
        let mut unconfirmed = Unconfirmed::default();
        unconfirmed.add(monitoring.receiver());
        session.monitoring = Some(monitoring);
        session.update_info(|about| about.is_monitoring = true);
        return unconfirmed.confirmed_by(ok());
    }
    ok()
}

fn latency(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    written(session, |writer| {
        match args[1].to_ascii_uppercase().as_slice() {
            b"LATEST" => {
                let events = door.stats.latencies.all();
                writer.array(events.len());
                for (name, series) in events {
                    let (at_s, ms) = series.samples.back().copied().unwrap_or_default();
                    writer.array(4);
                    writer.bulk(name.as_bytes());
                    [at_s, ms, series.max_ms].iter().for_each(|number| writer.int(*number as i64));
                }
            }
            b"HISTORY" => {
                let series = door.stats.latencies.of(args[2]).map(|(_, series)| series).unwrap_or_default();
                writer.array(series.samples.len());
                for (at_s, ms) in series.samples {
                    writer.array(2);
                    writer.int(at_s as i64);
                    writer.int(ms as i64);
                }
            }
            b"RESET" => writer.len(door.stats.latencies.reset(&args[2..])),
            b"GRAPH" => {
                let missing = || Fail::of_bytes([b"ERR No samples available for event '", args[2], b"'"].concat());
                let (name, series) = door.stats.latencies.of(args[2]).ok_or_else(missing)?;
                writer.verbatim(&series.graph(name, door.broker.now_ms() / 1000));
            }
            b"HISTOGRAM" => write_histograms(door, &args[2..], writer),
            _ => writer.verbatim(&door.stats.latencies.report()),
        }
        Ok(())
    })
}

fn write_histograms(door: &Door, names: &[&[u8]], writer: &mut Writer) {
    let mut commands = door.stats.commands();
    let is_named = |name: &str| {
        let of_container = name.split('|').next().unwrap_or(name);
        names.is_empty() || names.iter().any(|wanted| is(wanted, name) || is(wanted, of_container))
    };
    commands.retain(|name, counted| counted.calls() > 0 && is_named(name));
    writer.map(commands.len());
    for (name, counted) in commands {
        writer.bulk(name.as_bytes());
        writer.map(2);
        writer.bulk(b"calls");
        writer.int(counted.calls() as i64);
        writer.bulk(b"histogram_usec");
        let histogram = counted.histogram();
        writer.map(histogram.len());
        for (us, count) in histogram {
            writer.int(us as i64);
            writer.int(count as i64);
        }
    }
}

fn memory(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match args[1].to_ascii_uppercase().as_slice() {
        b"USAGE" => {
            let bytes = match usage(door, session, args) {
                Ok(bytes) => bytes,
                Err(fail) => return session.fail(&fail),
            };
            written(session, |writer| {
                match bytes {
                    Some(bytes) => writer.int(bytes as i64),
                    None => writer.null(),
                }
                Ok(())
            })
        }
        // The allocator returns free memory by itself, and keeps no statistics.
        b"PURGE" => ok(),
        b"MALLOC-STATS" => written(session, |writer| {
            writer.verbatim("Stats not supported for the current allocator");
            Ok(())
        }),
        b"STATS" => {
            let mut writer = session.writer();
            write_memory(&Memory::of(door), &mut writer);
            now(writer)
        }
        _ => written(session, |writer| {
            writer.verbatim(&diagnosis(&Memory::of(door)));
            Ok(())
        }),
    }
}

fn usage(door: &Door, session: &mut Session, args: &[&[u8]]) -> Done<Option<u64>> {
    let cache = session.database(&door.broker)?;
    let mut locked = lock_or_busy(cache, &Named::These(std::iter::once(args[2]).collect()))?;
    usage_in(&mut locked, args)
}

/// Returns the size of the key of `MEMORY USAGE` in bytes, or `None` if it does not exist. The key is locked.
pub(in crate::redis) fn usage_in(locked: &mut LockedCache<'_>, args: &[&[u8]]) -> Done<Option<u64>> {
    match args[3..] {
        [] => {}
        [word, count] if is(word, "SAMPLES") && parse_int(count)? >= 0 => {}
        _ => return Err(SYNTAX),
    }
    Ok(locked.bytes_of(args[2]))
}

fn write_memory(memory: &Memory, writer: &mut Writer) {
    let numbers = [
        ("peak.allocated", memory.peak),
        ("total.allocated", memory.used),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", memory.clients),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", 0),
        ("functions.caches", 0),
        ("overhead.total", memory.used - memory.dataset),
        ("keys.count", memory.keys),
        ("keys.bytes-per-key", memory.dataset.checked_div(memory.keys).unwrap_or_default()),
        ("dataset.bytes", memory.dataset),
        ("allocator.resident", memory.resident),
        ("fragmentation.bytes", memory.resident.saturating_sub(memory.used)),
    ];
    let ratios = [
        ("dataset.percentage", memory.percentage(memory.dataset, memory.used)),
        ("peak.percentage", memory.percentage(memory.used, memory.peak)),
        ("fragmentation", memory.fragmentation()),
    ];
    writer.map(numbers.len() + ratios.len());
    for (name, number) in numbers {
        writer.bulk(name.as_bytes());
        writer.int(number as i64);
    }
    for (name, ratio) in ratios {
        writer.bulk(name.as_bytes());
        writer.double(ratio);
    }
}

fn diagnosis(memory: &Memory) -> String {
    let share = memory.percentage(memory.used, memory.max);
    let used = human(memory.used);
    let max = human(memory.max);
    match share {
        _ if memory.max == 0 => format!("Caches use {used}, without a limit.\n"),
        90.0.. => format!(
            "Caches use {used} of {max}, which is nearly full. Raise cache_memory_max, let entries expire, or create \
             the cache with an eviction policy.\n"
        ),
        _ => format!("Caches use {used} of {max}, {} keys. No problem was found.\n", memory.keys),
    }
}
