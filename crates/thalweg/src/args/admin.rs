//! What is said on the command line about settings of topics, users and access control.

use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use client::security::{AclFilter, Match, Mechanism, Operation, Principal, ResourceKind};
use client::{SettingsChange, TopicSettings};
use thalweg::config::units::{parse_bytes, parse_duration};

use crate::output::{Failure, Result, USAGE};

/// Settings that a topic gets when it is created, and that may be changed later.
#[derive(Args, Default)]
pub struct TopicOptions {
    /// Bytes that a partition keeps, as 64MiB; 0 is no limit, `default` what the broker is set to
    #[arg(long)]
    pub retention_bytes: Option<String>,
    /// How long a batch stays, as 90s, 5m, 2h or 7d; 0s is no limit, `default` what the broker is set to
    #[arg(long, value_name = "TIME", conflicts_with = "retention_ms")]
    pub retention: Option<String>,
    /// The same in ms
    #[arg(long)]
    pub retention_ms: Option<u64>,
    /// The largest batch that is taken, as 1MiB; `default` for as large as the broker takes any
    #[arg(long, value_name = "BYTES")]
    pub batch_bytes_max: Option<String>,
    /// Whose clock records go by: their publisher's, or the broker's when they arrive
    #[arg(long, value_enum)]
    pub timestamps: Option<Timestamps>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    Publisher,
    Arrival,
}

impl TopicOptions {
    pub fn change(&self) -> Result<SettingsChange> {
        let bytes = |option: &str, text: &Option<String>, default: u64| match text.as_deref() {
            None => Ok(None),
            Some("default") => Ok(Some(default)),
            Some(text) => parse_bytes(text).map(Some).map_err(|e| Failure::new(USAGE, format!("{option}: {e}"))),
        };
        let retention_ms = match self.retention.as_deref() {
            None => self.retention_ms,
            Some("default") => Some(TopicSettings::DEFAULT),
            Some(text) => {
                let wrong = || Failure::new(USAGE, format!("--retention {text}: write 90s, 5m, 2h or 7d, or default"));
                Some(parse_duration(text).ok_or_else(wrong)?.as_millis() as u64)
            }
        };
        let largest = u64::from(TopicSettings::default().batch_bytes_max);
        let batch_bytes_max = bytes("--batch-bytes-max", &self.batch_bytes_max, largest)?;
        Ok(SettingsChange {
            retention_bytes: bytes("--retention-bytes", &self.retention_bytes, TopicSettings::DEFAULT)?,
            retention_ms,
            compact: None,
            // The broker says what is too large.
            batch_bytes_max: batch_bytes_max.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            arrival_times: self.timestamps.map(|timestamps| timestamps == Timestamps::Arrival),
            ..SettingsChange::default()
        })
    }
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg user add billing                        # asks for the password
  thalweg user add billing < password.txt")]
pub enum User {
    /// Give a user a password, or another one: the first line of the standard input
    Add {
        user: String,
        /// Only for this mechanism; else for both
        #[arg(long, value_enum)]
        mechanism: Option<MechanismArg>,
        /// How often the password is hashed, 4096 to 16384
        #[arg(long, default_value_t = client::security::ITERATIONS_DEFAULT)]
        iterations: u32,
    },
    /// List users
    #[command(visible_alias = "ls")]
    List,
    /// Take a user's password away; their connections end when they ask for something next
    #[command(visible_alias = "rm")]
    Delete {
        user: String,
        /// Only for this mechanism
        #[arg(long, value_enum)]
        mechanism: Option<MechanismArg>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MechanismArg {
    #[value(name = "SCRAM-SHA-256")]
    Sha256,
    #[value(name = "SCRAM-SHA-512")]
    Sha512,
}

impl MechanismArg {
    pub fn get(self) -> Mechanism {
        match self {
            Self::Sha256 => Mechanism::Sha256,
            Self::Sha512 => Mechanism::Sha512,
        }
    }
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg acl add User:billing read,describe topic orders.eu
  thalweg acl add User:billing read group billing. --prefix
  thalweg acl add 'User:*' write topic audit --deny
  thalweg acl list --principal User:billing
  thalweg acl delete --kind topic --name orders.eu")]
pub enum AclCommand {
    /// Add entries: who may do what to which topics, groups or transactions. One that denies wins
    Add {
        /// User:NAME, or User:* for everyone
        principal: String,
        /// all, read, write, create, delete, alter, describe, describe_configs, alter_configs, cluster_action or
        /// idempotent_write; several with commas
        operations: Operations,
        /// topic, group, transaction or cluster
        kind: ResourceKind,
        /// The name of the resource, or * for all; the cluster has none
        #[arg(required_if_eq_any = [("kind", "topic"), ("kind", "group"), ("kind", "transaction")])]
        name: Option<String>,
        /// All whose names begin so
        #[arg(long)]
        prefix: bool,
        /// Deny it, whatever else allows it
        #[arg(long)]
        deny: bool,
        /// Only from this address
        #[arg(long, default_value = "*")]
        host: String,
    },
    /// List entries
    #[command(visible_alias = "ls")]
    List(AclFilterArgs),
    /// Delete entries, and print them
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        filter: AclFilterArgs,
        /// All there are
        #[arg(long)]
        all: bool,
    },
}

/// Operations with commas between them.
#[derive(Clone, Debug)]
pub struct Operations(pub Vec<Operation>);

impl FromStr for Operations {
    type Err = client::Error;

    fn from_str(text: &str) -> client::Result<Self> {
        text.split(',').map(str::parse).collect::<client::Result<_>>().map(Self)
    }
}

#[derive(Args, Default)]
pub struct AclFilterArgs {
    /// Of this principal: User:NAME, or User:* for those of everyone
    #[arg(long)]
    pub principal: Option<String>,
    #[arg(long)]
    pub operation: Option<Operation>,
    /// About topics, groups, transactions or the cluster
    #[arg(long)]
    pub kind: Option<ResourceKind>,
    /// Of this name or prefix
    #[arg(long)]
    pub name: Option<String>,
    /// All that are about the resource of this name
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    pub about: Option<String>,
    #[arg(long)]
    pub host: Option<String>,
}

impl AclFilterArgs {
    pub fn get(self) -> Result<AclFilter> {
        let matching = if self.about.is_some() { Match::Covering } else { Match::Any };
        Ok(AclFilter {
            kind: self.kind,
            name: self.about.or(self.name),
            matching,
            principal: self.principal.as_deref().map(Principal::parse).transpose()?,
            host: self.host,
            operation: self.operation,
            is_allowed: None,
        })
    }
}
