//! Topics and their records: publishing, subscribing, retention, durability, and one log behind every door.

mod topics;
mod publishing;
mod producers;
mod idempotence;
mod subscribing;
mod overflow;
mod requests;
mod retention;
mod compaction;
mod durable;
mod full_disk;
mod kills;
mod inspect;
mod one_log;
mod backup;
