//! Arguments of backups.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
The folder has passwords' hashes and keys: only its owner can read it, and so should every copy of it.

Examples:
  thalweg backup /backup/broker                  # all of it; the next time what is new
  thalweg backup /backup/broker --rate 10MiB     # slower
  thalweg backup verify /backup/broker           # check every checksum
  thalweg restore /backup/broker --data /srv/new")]
pub struct Backup {
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
    /// Folder for the backup: a new one, or one with an earlier backup of this broker
    #[arg(required = true)]
    pub dir: Option<PathBuf>,
    /// Maximum bytes per second that the broker sends, at least 64KiB; 0: no limit
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub rate: String,
    /// Leave out topics in SQLite, which a backup cannot include
    #[arg(long)]
    pub without_sqlite: bool,
}

#[derive(Subcommand)]
pub enum BackupCommand {
    /// Check every file of a backup; no broker is needed
    Verify {
        /// The folder
        dir: PathBuf,
    },
}

#[derive(Args)]
#[command(after_help = "\
Example:
  thalweg restore /backup/broker --data /srv/new && thalweg serve --data /srv/new")]
pub struct Restore {
    /// Folder with a backup
    pub dir: PathBuf,
    /// Data directory to write, which is empty or does not exist
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}
