//! Arguments of commands about topic settings, users and access control.

use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use client::security::{AclFilter, Match, Mechanism, Operation, Principal, ResourceKind};
use client::{MeshMode, SettingsChange, TopicSettings};
use thalweg::config::units::{parse_bytes, parse_duration};

use crate::output::{Failure, Result, USAGE};

/// Settings of a topic that can be set on creation and changed later.
#[derive(Args, Default)]
pub struct TopicOptions {
    /// Bytes that a partition retains, such as 64MiB; 0: no limit, `default`: the broker's setting
    #[arg(long)]
    pub retention_bytes: Option<String>,
    /// Time for which a batch is retained, such as 90s, 5m, 2h or 7d; 0s: no limit, `default`: the broker's setting
    #[arg(long, value_name = "TIME", conflicts_with = "retention_ms")]
    pub retention: Option<String>,
    /// Time for which a batch is retained, ms; 0: no limit
    #[arg(long)]
    pub retention_ms: Option<u64>,
    /// Maximum size of a batch, such as 1MiB; `default`: the broker's maximum
    #[arg(long, value_name = "BYTES")]
    pub batch_bytes_max: Option<String>,
    /// Source of the records' timestamps: the publisher's clock, or the broker's clock on arrival
    #[arg(long, value_enum)]
    pub timestamps: Option<Timestamps>,
    /// Relation to the mesh: off, live (other sites with subscribers or queues of the topic receive its records),
    /// mirror (other sites copy it, and this site copies theirs), or source (other sites copy it). Off ends the copying
    /// to a copy, so that clients can publish to it
    #[arg(long, value_name = "MODE")]
    pub mesh: Option<MeshMode>,
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
            // The broker refuses a value that is too large.
            batch_bytes_max: batch_bytes_max.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            arrival_times: self.timestamps.map(|timestamps| timestamps == Timestamps::Arrival),
            mesh: self.mesh,
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
    /// Add a user or change a password; the password is the first line of the standard input
    Add {
        user: String,
        /// Only for this mechanism; by default for both
        #[arg(long, value_enum)]
        mechanism: Option<MechanismArg>,
        /// Number of hash iterations, 4096 to 16384
        #[arg(long, default_value_t = client::security::ITERATIONS_DEFAULT)]
        iterations: u32,
    },
    /// List users
    #[command(visible_alias = "ls")]
    List,
    /// Delete a user's passwords, tokens and access keys; the user's connections are closed with their next request
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
  thalweg role add publisher billing              # billing may write to every topic
  thalweg acl add Role:auditors read topic audit. --prefix
  thalweg role add auditors ann                   # ann may do what the entries of Role:auditors allow
  thalweg role list")]
pub enum Role {
    /// Give a user a role: admin, operator, publisher, consumer, monitor, or any name with entries in `thalweg acl`
    Add { role: String, user: String },
    /// List the members of all roles
    #[command(visible_alias = "ls")]
    List,
    /// Take a role away from a user
    #[command(visible_alias = "rm")]
    Remove { role: String, user: String },
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg tenant assign acme ann           # ann's topic orders is acme.orders of the broker
  thalweg tenant assign 111122223333 sam   # SQS queues of this account
  thalweg tenant assign project:shop kim   # names of Pub/Sub in this Google project
  thalweg tenant list
  thalweg tenant unassign ann")]
pub enum Tenant {
    /// Put a user into a tenant, also one that is in another; its connections end
    Assign {
        /// Letters, digits, _ and -; the id of an account of SQS; or project:ID for a Google project
        tenant: String,
        user: String,
    },
    /// List the users that have a tenant
    #[command(visible_alias = "ls")]
    List,
    /// Take a user out of its tenant; its connections end, and no prefix limits it any more
    Unassign { user: String },
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg token create ci --role publisher > token.txt
  thalweg publish orders 'a message' --token-file token.txt
  curl -H \"Authorization: Bearer $(cat token.txt)\" http://localhost:7401/v1/topics
  thalweg token delete 1f0c8e3a5b7d9f21")]
pub enum Token {
    /// Create a token with which programs log in at every door but SQS, and write it to the standard output
    Create {
        /// User as whom its clients log in, who needs no password
        user: String,
        /// Role that its clients have in addition to those of the user; may be repeated
        #[arg(long)]
        role: Vec<String>,
        /// Lifetime such as 12h or 90d, or never
        #[arg(long, default_value = "30d")]
        expires: String,
    },
    /// List tokens, without their secrets: yours, and those of others if you may describe the cluster
    #[command(visible_alias = "ls")]
    List,
    /// Delete a token; the next request of clients that have logged in with it is refused. Tokens that others have
    /// created need the permission to alter the cluster
    #[command(visible_alias = "rm")]
    Delete { id: String },
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg key create worker > worker.env
  set -a; . ./worker.env; aws sqs list-queues --region us-east-1 --endpoint-url http://localhost:9324
  thalweg key create worker --account 111122223333 --expires 90d
  thalweg key delete AKTWEXAMPLEEXAMPLE22")]
pub enum Key {
    /// Create an access key with which SQS clients sign requests, and write it to the standard output as the variables
    /// of Amazon's clients; the broker stores the secret sealed and does not show it again
    Create {
        /// User on whose behalf its clients act, who needs no password
        user: String,
        /// Account of 12 digits whose queues its clients use; the default is the key sqs_account
        #[arg(long)]
        account: Option<String>,
        /// Lifetime such as 12h or 90d, or never
        #[arg(long, default_value = "never")]
        expires: String,
        /// Name of a key that clients already have, with its secret in --secret-file; by default both are generated
        #[arg(long, requires = "secret_file")]
        id: Option<String>,
        /// File with the secret of the key --id
        #[arg(long, requires = "id", value_name = "FILE")]
        secret_file: Option<String>,
    },
    /// List access keys, without their secrets
    #[command(visible_alias = "ls")]
    List,
    /// Delete an access key; the next request that is signed with it is refused
    #[command(visible_alias = "rm")]
    Delete { id: String },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  thalweg audit
  thalweg audit --from @-1d --until-end --refused
  thalweg audit --from earliest --action 'delete topic' --json")]
pub struct Audit {
    /// First record: earliest, latest, an offset, or a time such as @2026-11-21T08:00:00Z or @-1h
    #[arg(long, default_value = "@-10m", allow_negative_numbers = true)]
    pub from: String,
    /// Stop at the current end instead of waiting for further records
    #[arg(long)]
    pub until_end: bool,
    /// Only records of this user
    #[arg(long)]
    pub user: Option<String>,
    /// Only records of this action, such as login or 'delete topic'
    #[arg(long)]
    pub action: Option<String>,
    /// Only what was denied or failed
    #[arg(long)]
    pub refused: bool,
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg quota set --user billing bytes_in=10M bytes_out=20M requests=500
  thalweg quota set --each-user requests=100        # each user without a quota of its own
  thalweg quota set --user billing --client etl bytes_in=1M   # one client id of Kafka's clients
  thalweg quota set --each-address connections=20
  thalweg quota set --each-user open_connections=50 subscriptions=200
  thalweg quota set --tenant acme topics=100 queues=50 caches=5 stored_bytes=10GiB
  thalweg quota list
  thalweg quota delete --user billing requests")]
pub enum Quota {
    /// Set quotas: bytes_in, bytes_out, requests or connections per second, or counts such as topics and stored_bytes
    Set {
        #[command(flatten)]
        of: QuotaOf,
        /// Quota and its rate per second or its count, such as bytes_in=10M or topics=100
        #[arg(required = true, value_name = "QUOTA=VALUE")]
        rates: Vec<String>,
    },
    /// List all quotas
    #[command(visible_alias = "ls")]
    List,
    /// Delete quotas
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        of: QuotaOf,
        /// Quotas that are deleted; all of these clients if none is given
        quotas: Vec<String>,
    },
}

/// Clients that a quota limits.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("whose").args(["user", "each_user", "role", "tenant"]))]
#[command(group = clap::ArgGroup::new("client_id").args(["client", "each_client"]))]
#[command(group = clap::ArgGroup::new("from").args(["address", "each_address"]))]
pub struct QuotaOf {
    /// All clients of a user together
    #[arg(long)]
    pub user: Option<String>,
    /// Each user without a more specific quota
    #[arg(long)]
    pub each_user: bool,
    /// Each user that has a role
    #[arg(long)]
    pub role: Option<String>,
    /// All clients of a tenant together, and what has its names
    #[arg(long)]
    pub tenant: Option<String>,
    /// Kafka clients with a client id, of these users or of all
    #[arg(long)]
    pub client: Option<String>,
    /// Each client id of Kafka clients, of these users or of all
    #[arg(long)]
    pub each_client: bool,
    /// Clients at an IP address
    #[arg(long)]
    pub address: Option<String>,
    /// Each IP address without its own quota
    #[arg(long)]
    pub each_address: bool,
}

#[derive(Subcommand)]
#[command(after_help = "\
Examples:
  thalweg acl add User:billing read,describe topic orders.eu
  thalweg acl add User:billing read group billing. --prefix
  thalweg acl add 'User:*' write topic audit --deny
  thalweg acl list --principal User:billing
  thalweg acl delete --kind topic --name orders.eu
  thalweg acl calls redis                         # what each command of Redis requires")]
pub enum AclCommand {
    /// Add entries that allow or deny operations on topics, groups or transactions; a denial takes precedence
    Add {
        /// User:NAME, Role:NAME, or User:* for everyone
        principal: String,
        /// Comma-separated: all, read, write, create, delete, alter, describe, describe_configs, alter_configs,
        /// cluster_action, idempotent_write
        operations: Operations,
        /// topic, group, transaction or cluster
        kind: ResourceKind,
        /// Name of the resource, or * for all; omitted for the cluster
        #[arg(required_if_eq_any = [("kind", "topic"), ("kind", "group"), ("kind", "transaction")])]
        name: Option<String>,
        /// Apply to all resources whose names begin with NAME
        #[arg(long)]
        prefix: bool,
        /// Apply to all resources whose names match NAME, with *, ? and [a-c]
        #[arg(long, conflicts_with = "prefix")]
        glob: bool,
        /// Deny the operations, even if other entries allow them
        #[arg(long)]
        deny: bool,
        /// Only for clients at this address
        #[arg(long, default_value = "*")]
        host: String,
    },
    /// List entries
    #[command(visible_alias = "ls")]
    List(AclFilterArgs),
    /// Delete entries and print them
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        filter: AclFilterArgs,
        /// Delete all entries
        #[arg(long)]
        all: bool,
    },
    /// List the calls of all doors with the permissions that each requires; needs no broker
    Calls {
        /// Only this door: native, http, kafka, pubsub, redis or sqs
        door: Option<String>,
    },
}

/// Operations, comma-separated.
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
    /// Entries of this principal: User:NAME, Role:NAME, or User:* for the entries of everyone
    #[arg(long)]
    pub principal: Option<String>,
    #[arg(long)]
    pub operation: Option<Operation>,
    /// Entries for this kind of resource: topic, group, transaction or cluster
    #[arg(long)]
    pub kind: Option<ResourceKind>,
    /// Entries with this name, prefix or glob pattern
    #[arg(long)]
    pub name: Option<String>,
    /// Entries that apply to the resource with this name, including prefixes, patterns and *
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

#[derive(Args)]
pub struct Connections {
    /// Only connections at this door: native, http, kafka, pubsub, redis or sqs
    #[arg(long)]
    pub door: Option<String>,
    /// Only connections of clients that have logged in as this user
    #[arg(long)]
    pub user: Option<String>,
}

#[derive(Args)]
pub struct Disconnect {
    /// Number of the connection
    pub connection: u64,
}
