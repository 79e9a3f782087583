//! Tests of the data directory through its public API: on a disk that loses power, fails, fills up and rots, and on a
//! real one.

mod toy;
mod workload;

mod compaction;
mod damage;
mod faults;
mod full;
mod kill;
mod logs;
mod node;
mod place;
mod power;
mod reads;
mod repair;
mod shard_log;
mod snapshots;
mod sqlite;
mod through;
mod transactions;
