//! Arguments of `thalweg cluster`.

use std::path::PathBuf;

use clap::Subcommand;
use client::cluster::{TOKEN_MINUTES, TOKEN_MINUTES_MAX};

use super::Yes;

/// Commands about the nodes of a cluster.
#[derive(Subcommand)]
pub enum Cluster {
    /// Make a data directory the first node of a new cluster; its topics and records stay as they are
    ///
    /// The broker of the directory must be stopped. Start it again afterwards: it is a node then. The address is the
    /// one at which other nodes reach it; with an address of 127.0.0.1 all nodes have to be on this machine.
    #[command(after_help = "\
Examples:
  thalweg cluster init --data ./a --advertise 10.0.0.1:7402
  thalweg serve --data ./a")]
    Init {
        /// Data directory; it may be new
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Address at which other nodes reach this one
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7402")]
        advertise: String,
        /// Succeed without a change if the directory is that of a node; for scripts that run at each start
        #[arg(long)]
        if_needed: bool,
    },
    /// Make an empty data directory a new node of the cluster that issued a token
    #[command(after_help = "\
Examples:
  thalweg cluster token                          at a node, prints a token
  thalweg cluster join thalweg-join-... --data ./b --advertise 10.0.0.2:7402
  thalweg cluster join --ask --server 10.0.0.1 --data ./b --advertise 10.0.0.2:7402
  thalweg serve --data ./b")]
    Join {
        /// Token of `thalweg cluster token`; by default the first line of the standard input
        token: Option<String>,
        /// Request the token from the running cluster at --server, as `thalweg cluster token` does
        #[arg(long, conflicts_with = "token")]
        ask: bool,
        /// Found the cluster, as `init` does, if --advertise is this address and no program listens at any address of
        /// --server; for the first start of containers that all run the same command
        #[arg(long, value_name = "HOST:PORT", requires = "ask")]
        founder: Option<String>,
        /// Succeed without a change if the directory is that of a node; for scripts that run at each start
        #[arg(long)]
        if_needed: bool,
        /// Data directory; it must be empty or not exist
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Address at which other nodes reach this one
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7402")]
        advertise: String,
    },
    /// Show the nodes: which one leads, which are behind, and which are silent and since when
    #[command(after_help = "\
Any node answers, since it asks the one that leads.

Examples:
  thalweg cluster status
  thalweg cluster status --json | jq '.nodes[] | select(.is_alive | not)'")]
    Status,
    /// Print a token with which one new node can join
    #[command(after_help = "\
A token is for one node. It is a secret until it is used or has expired.

Examples:
  thalweg cluster token                          the running cluster issues it
  thalweg cluster token --data ./a               at a node, also if none runs
  thalweg cluster token | ssh other thalweg cluster join --data ./b --advertise 10.0.0.2:7402")]
    Token {
        /// Data directory of a node on this machine; by default the running cluster issues the token
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Minutes for which the token is valid
        #[arg(
            long,
            value_name = "MINUTES",
            default_value_t = TOKEN_MINUTES,
            value_parser = clap::value_parser!(u32).range(1..=i64::from(TOKEN_MINUTES_MAX))
        )]
        minutes: u32,
    },
    /// Have a node lead, and wait until it does
    #[command(after_help = "\
Clients of the leader are disconnected, and connect again to the next one.

Examples:
  thalweg cluster transfer 2")]
    Transfer {
        /// Number of the node, which must vote and answer
        node: u64,
    },
    /// Have another node lead, if this one does, for instance before a restart
    #[command(after_help = "\
The node stays in the cluster, and may lead again later. A node that is stopped with a signal does this by itself.

Examples:
  thalweg cluster drain 1")]
    Drain {
        /// Number of the node
        node: u64,
    },
    /// Remove a node from the cluster for good
    #[command(after_help = "\
Its number is never given again, and its directory cannot come back. It is refused if the nodes that
stay have no majority that answers.

Examples:
  thalweg cluster leave 3
  thalweg cluster leave 3 --yes                  without a question")]
    Leave {
        /// Number of the node
        node: u64,
        #[command(flatten)]
        yes: Yes,
    },
    /// Remove a node that is lost, and print a token for the one that replaces it
    #[command(after_help = "\
For a node whose disk or machine is gone. It is refused if the node answers: use `thalweg cluster
leave` then.

Examples:
  thalweg cluster replace 3
  thalweg cluster join thalweg-join-... --data ./d --advertise 10.0.0.3:7402")]
    Replace {
        /// Number of the lost node
        node: u64,
        /// Minutes for which the token is valid
        #[arg(
            long,
            value_name = "MINUTES",
            default_value_t = TOKEN_MINUTES,
            value_parser = clap::value_parser!(u32).range(1..=i64::from(TOKEN_MINUTES_MAX))
        )]
        minutes: u32,
        #[command(flatten)]
        yes: Yes,
    },
    /// Start three nodes on this machine, kill the leader under load, and check that nothing was lost
    ///
    /// The nodes are processes of this program on free ports, with their data in a temporary folder. A client publishes
    /// numbered records and waits for their acknowledgements; the leader is killed every five seconds and started
    /// again. At the end all records are read back and compared, and everything is removed.
    #[command(after_help = "\
Examples:
  thalweg cluster demo
  thalweg --json cluster demo --seconds 60

Exit code 1: an acknowledged record was lost, or a record is in the log twice or out of order.")]
    Demo {
        /// Time for which records are published
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 20,
            value_parser = clap::value_parser!(u64).range(2..=86_400)
        )]
        seconds: u64,
    },
}
