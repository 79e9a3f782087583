//! What is said on the command line about caches.

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
  thalweg cache watch sessions a")]
pub enum Cache {
    /// Create a cache; one that is used and not there has no limit but that of all caches, and evicts nothing
    Create {
        cache: String,
        /// What it may hold, as 256MiB
        #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
        bytes_max: Option<u64>,
        /// What goes when it is full: none (a put is refused), s3-fifo (what is asked for least), ttl-first (what
        /// expires next)
        #[arg(long, default_value = "none")]
        eviction: String,
        /// How long an entry stays that is put without a time, as 90s
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
        /// Keep its entries in the data directory: they are there after a restart
        #[arg(long)]
        durable: bool,
    },
    /// Delete a cache with all that is in it; `del` deletes entries
    #[command(visible_alias = "rm")]
    Delete {
        cache: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// List caches and what is in them
    #[command(visible_alias = "ls")]
    List,
    /// Show a cache's settings, and what it holds and did
    Stats { cache: String },
    /// Print the values of keys, a line each; exit code 4 if one does not exist
    Get {
        cache: String,
        #[arg(required = true)]
        key: Vec<String>,
    },
    /// Put a value; from the standard input where none is given
    Put(CachePut),
    /// Delete entries
    Del {
        cache: String,
        #[arg(required = true)]
        key: Vec<String>,
        /// Only if it is there in this version
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Add to a counter, and print what it is then
    Incr {
        cache: String,
        key: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
        /// How long a counter stays that is made by this
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
    },
    /// Keep an entry for another time
    Touch {
        cache: String,
        key: String,
        /// For so long, as 30m; for ever where that is not said
        #[arg(long, value_name = "TIME", value_parser = millis)]
        ttl: Option<u64>,
    },
    /// Print entries whose keys begin so
    Scan {
        cache: String,
        #[arg(default_value = "")]
        prefix: String,
        /// The keys alone
        #[arg(long)]
        keys: bool,
    },
    /// Print what is there, then what changes, until stopped
    Watch {
        cache: String,
        #[arg(default_value = "")]
        prefix: String,
        /// Only what changes from now on
        #[arg(long)]
        changes: bool,
        /// Stop after so many
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
pub struct CachePut {
    pub cache: String,
    pub key: String,
    pub value: Option<String>,
    /// How long it stays, as 500ms, 90s, 5m, 2h or 7d; as the cache is set where that is not said
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub ttl: Option<u64>,
    /// For ever, whatever the cache is set to
    #[arg(long, conflicts_with = "ttl")]
    pub forever: bool,
    /// Only if it is not there
    #[arg(long, conflicts_with_all = ["if_version", "if_present"])]
    pub if_absent: bool,
    /// Only if it is there
    #[arg(long, conflicts_with = "if_version")]
    pub if_present: bool,
    /// Only if it is there in this version
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
}
