//! Arguments of the cache commands.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use thalweg::config::units::parse_bytes;

use super::Yes;
use super::queue::millis;

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg cache put sessions alice 'cart: 1 coffee' --ttl 30m
  thalweg cache get sessions alice
  thalweg cache incr counters visits
  thalweg cache create thumbnails --bytes-max 256MiB --eviction s3-fifo
  thalweg cache watch sessions a
  thalweg cache import --from redis://:secret@old.example.com:6379")]
pub enum Cache {
    #[command(flatten)]
    Call(CacheCall),
    /// Copy all keys of a Redis server or of one of its files to a broker's Redis door, and compare them
    Import(CacheImport),
}

/// Command that a client carries out.
#[derive(Subcommand)]
pub enum CacheCall {
    /// Create a cache; a cache created by its first use has only the limit of all caches, and evicts nothing
    Create {
        cache: String,
        /// Maximum size of the cache, such as 256MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        bytes_max: Option<u64>,
        /// Eviction policy of a full cache: none (a put is refused), s3-fifo (evicts rarely used entries), ttl-first
        /// (evicts the entry that expires next)
        #[arg(long, default_value = "none")]
        eviction: String,
        /// Time to live of entries that are put without one, such as 90s
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
        /// Store the entries in the data directory, so that they survive a restart
        #[arg(long)]
        durable: bool,
    },
    /// Delete a cache and all its entries; `del` deletes single entries
    #[command(visible_alias = "rm")]
    Delete {
        cache: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// List caches with their settings and statistics
    #[command(visible_alias = "ls")]
    List,
    /// Show a cache's settings and statistics
    Stats { cache: String },
    /// Print the values of keys, one per line; exit code 4 if a key does not exist
    Get {
        cache: String,
        #[arg(required = true)]
        key: Vec<String>,
    },
    /// Put a value; without VALUE it is read from the standard input
    Put(CachePut),
    /// Delete entries
    Del {
        cache: String,
        #[arg(required = true)]
        key: Vec<String>,
        /// Only if the entry has this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Add to a counter and print its new value
    Incr {
        cache: String,
        key: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        /// Time to live of the counter, if this creates it
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
    },
    /// Change the time to live of an entry
    Touch {
        cache: String,
        key: String,
        /// New time to live, such as 30m; without it the entry does not expire
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
    },
    /// Print the entries whose keys begin with PREFIX
    Scan {
        cache: String,
        #[arg(default_value = "")]
        prefix: String,
        /// Print only the keys
        #[arg(long)]
        keys: bool,
    },
    /// Print the current entries, then all changes, until stopped
    Watch {
        cache: String,
        #[arg(default_value = "")]
        prefix: String,
        /// Print only changes from now on
        #[arg(long)]
        changes: bool,
        /// Stop after this number of entries and changes
        #[arg(long, short = 'n', value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
        max: Option<u64>,
    },
    /// Remove all entries
    Flush {
        cache: String,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Args)]
pub struct CacheImport {
    /// Server to copy from: redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], or rediss:// for TLS; without DATABASE
    /// all of them. It keeps serving
    #[arg(long, value_name = "URL", required_unless_present = "file", conflicts_with = "file")]
    pub from: Option<String>,
    /// Database file to copy from, such as dump.rdb
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Redis door to copy to; by default that of the configuration, on this machine
    #[arg(long, value_name = "URL")]
    pub to: Option<String>,
    /// Copy only keys that match, as `SCAN` does: user:*
    #[arg(long = "match", value_name = "PATTERN", conflicts_with = "file")]
    pub pattern: Option<String>,
    /// Replace keys that exist; without it they are kept
    #[arg(long)]
    pub replace: bool,
    /// Do not compare the copied values with those of the source
    #[arg(long)]
    pub without_verify: bool,
}

#[derive(Args)]
pub struct CachePut {
    pub cache: String,
    pub key: String,
    pub value: Option<String>,
    /// Time to live, such as 500ms, 90s, 5m, 2h or 7d; by default that of the cache
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub ttl: Option<u64>,
    /// The entry never expires, whatever the default of the cache is
    #[arg(long, conflicts_with = "ttl")]
    pub forever: bool,
    /// Only if the key does not exist
    #[arg(long, conflicts_with_all = ["if_version", "if_present"])]
    pub if_absent: bool,
    /// Only if the key exists
    #[arg(long, conflicts_with = "if_version")]
    pub if_present: bool,
    /// Only if the entry has this version
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
}
