//! Load of a cache: puts and gets of a set of keys, with a fixed number in flight, and every answer checked.

mod load;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Addresses, CacheSettings, Client, ClientSettings, Error, ErrorKind, Result};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::load::cpu_seconds;
use crate::machine::{LoadAverage, Program};
use crate::process::CpuTime;
use load::Load;

pub use load::Faults;
pub use report::{CacheReport, RowReport};

/// Numbers of operations in flight, step by step.
pub const LADDER: [usize; 7] = [8, 16, 32, 64, 128, 256, 512];
/// Maximum bytes of keys and values of a row, which the load keeps to compare the answers.
const ENTRIES_BYTES_MAX: usize = 1 << 30;
/// Default sizes of values of puts, and of gets that find a value.
const PUT_BYTES: [usize; 3] = [0, 256, 4096];
const HIT_BYTES: [usize; 1] = [256];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Put,
    /// Get of an existing key.
    GetHit,
    /// Get of a missing key.
    GetMiss,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::GetHit => "get hit",
            Self::GetMiss => "get miss",
        }
    }
}

/// Conditions of one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub operation: Operation,
    /// Size of the values; `None` if no value is transferred.
    pub value_bytes: Option<usize>,
    /// Operations in flight.
    pub concurrency: usize,
}

impl Row {
    /// Returns the rows of each operation with each size of values, with each concurrency. Without sizes, the default
    /// ones are used.
    pub fn all(operations: &[Operation], value_bytes: &[usize], concurrency: &[usize]) -> Vec<Self> {
        let or = |usual: &'static [usize]| if value_bytes.is_empty() { usual } else { value_bytes };
        let sizes = |operation| match operation {
            Operation::Put => or(&PUT_BYTES).iter().copied().map(Some).collect(),
            Operation::GetHit => or(&HIT_BYTES).iter().copied().map(Some).collect(),
            Operation::GetMiss => vec![None],
        };
        let pairs = operations.iter().flat_map(|&operation| sizes(operation).into_iter().map(move |n| (operation, n)));
        let row = |(operation, value_bytes)| {
            concurrency.iter().map(move |&concurrency| Self { operation, value_bytes, concurrency })
        };
        pairs.flat_map(row).collect()
    }
}

/// Load and its target.
#[derive(Clone)]
pub struct Plan {
    pub addresses: Addresses,
    /// Settings with the number of connections and streams for caches.
    pub settings: ClientSettings,
    /// Cache that is created for the run and deleted after it.
    pub cache: String,
    pub cache_settings: CacheSettings,
    pub rows: Vec<Row>,
    pub keys: usize,
    /// Operations of a row that are measured; `warm_up` operations precede them.
    pub samples: usize,
    pub warm_up: usize,
    /// Number of runs of all rows, in turn.
    pub rounds: usize,
    /// Threads of the load.
    pub threads: usize,
    /// Process of the server, if it runs on this machine.
    pub server_pid: Option<u32>,
}

impl Plan {
    fn check(&self) -> Result<()> {
        let value_bytes = self.rows.iter().filter_map(|row| row.value_bytes).max().unwrap_or(0);
        let bytes = self.keys.saturating_mul(value_bytes + KEY_BYTES);
        if bytes > ENTRIES_BYTES_MAX {
            Err(Error::invalid(format!(
                "{} keys with values of {value_bytes} bytes are {bytes} bytes; at most {ENTRIES_BYTES_MAX}",
                self.keys
            )))
        } else {
            Ok(())
        }
    }
}

/// Entry that is put, and that a get has to return.
struct Entry {
    key: Bytes,
    value: Bytes,
}

/// Length of a key: `bench-` and its number.
const KEY_BYTES: usize = 14;

/// Creates entries with distinct values, if their size has room for a number.
fn entries(keys: usize, value_bytes: usize) -> Arc<[Entry]> {
    // Text-like filler, so that compression in transit does not gain more than with real data.
    let filler: Vec<u8> = (0..value_bytes).map(|i| b' ' + (i * 31 % 95) as u8).collect();
    let entry = |i: usize| {
        let mut value = filler.clone();
        value.iter_mut().zip((i as u64).to_le_bytes()).for_each(|(byte, of_number)| *byte = of_number);
        Entry { key: format!("bench-{i:08}").into(), value: value.into() }
    };
    (0..keys).map(entry).collect()
}

/// Results of one run of one row.
struct Measured {
    latencies: Latencies,
    elapsed: Duration,
    client_cpu_seconds: f64,
    server_cpu: Option<Duration>,
    /// Failures, including those of operations before and after the measured ones.
    faults: Faults,
}

impl Measured {
    fn per_s(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs a load against a running server. After a lost answer nothing else is measured.
pub fn run(plan: &Plan, program: Program) -> Result<CacheReport> {
    plan.check()?;
    let load_before = LoadAverage::now();
    let mut runtime = match plan.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    let runtime = runtime.enable_all().build();
    let runtime =
        runtime.map_err(|error| Error::new(ErrorKind::Internal, format!("cannot start a runtime: {error}")))?;
    let measured = runtime.block_on(async {
        let client = Client::connect_with(plan.addresses.clone(), plan.settings.clone()).await?;
        client.create_cache(&plan.cache, plan.cache_settings).await?;
        let measured = measure_all(plan, &client).await;
        let deleted = client.delete_cache(&plan.cache).await;
        client.close().await;
        let measured = measured?;
        // A server that no longer answers cannot delete the cache either.
        let is_gone = measured.iter().flatten().any(|one| one.faults.lost > 0);
        deleted.or_else(|error| if is_gone { Ok(()) } else { Err(error) })?;
        Ok::<_, Error>(measured)
    })?;
    Ok(CacheReport::new(plan, &measured, program, load_before))
}

/// Returns the results of each row, round by round.
async fn measure_all(plan: &Plan, client: &Client) -> Result<Vec<Vec<Measured>>> {
    // Connections take turns, so that this opens each of them.
    try_join_all((0..plan.settings.cache_conn_pool).map(|_| client.describe_cache(&plan.cache))).await?;
    let mut found: Vec<Vec<Measured>> = plan.rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..plan.rounds.max(1) {
        for (row, rounds) in plan.rows.iter().zip(&mut found) {
            let one = measure(plan, client, row).await?;
            let is_lost = one.faults.lost > 0;
            rounds.push(one);
            if is_lost {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

async fn measure(plan: &Plan, client: &Client, row: &Row) -> Result<Measured> {
    let cache = client.cache(&plan.cache);
    cache.flush().await?;
    let mut load = Load::new(cache, entries(plan.keys, row.value_bytes.unwrap_or(0)), row.concurrency);
    if row.operation == Operation::GetHit {
        load.pass(Operation::Put, plan.keys).await?;
    }
    load.pass(row.operation, plan.warm_up).await?;
    let server = || plan.server_pid.and_then(CpuTime::of).map(CpuTime::total);
    let server_before = server();
    let client_before = cpu_seconds();
    let begin = Instant::now();
    let times = load.pass(row.operation, plan.samples).await?;
    let elapsed = begin.elapsed();
    let client_after = cpu_seconds();
    let server_after = server();
    if row.operation == Operation::Put {
        // Acknowledged entries have to be present.
        load.pass(Operation::GetHit, plan.keys.min(plan.samples.max(plan.warm_up))).await?;
    }
    let mut latencies = Latencies::default();
    times.into_iter().for_each(|time| latencies.record(time));
    Ok(Measured {
        latencies,
        elapsed,
        client_cpu_seconds: client_after - client_before,
        server_cpu: server_after.zip(server_before).map(|(after, before)| after.saturating_sub(before)),
        faults: load.faults,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_usual_table_or_as_asked_for() {
        use Operation::{GetHit, GetMiss, Put};
        let row = |operation, value_bytes, concurrency| Row { operation, value_bytes, concurrency };
        let usual = [(Put, Some(0)), (Put, Some(256)), (Put, Some(4096)), (GetHit, Some(256)), (GetMiss, None)];
        assert_eq!(Row::all(&[Put, GetHit, GetMiss], &[], &[32]), usual.map(|(op, bytes)| row(op, bytes, 32)));
        let asked = [(1, 8), (1, 16), (2, 8), (2, 16)].map(|(bytes, n)| row(GetHit, Some(bytes), n));
        assert_eq!(Row::all(&[GetHit], &[1, 2], &[8, 16]), asked);
    }

    #[test]
    fn entries_can_be_told_apart() {
        let some = entries(300, 9);
        assert_eq!((&some[258].key[..], some[258].key.len()), (&b"bench-00000258"[..], KEY_BYTES));
        assert_eq!((&some[258].value[..2], some[258].value.len()), (&[2, 1][..], 9));
        assert!(entries(2, 0).iter().all(|entry| entry.value.is_empty()));
        assert_eq!(entries(2, 3)[1].value[..], [1, 0, 0]);
    }
}
