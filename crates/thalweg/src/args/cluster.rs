//! Arguments of `thalweg cluster`.

use std::path::PathBuf;

use clap::Subcommand;

/// Commands about the nodes of a cluster.
#[derive(Subcommand)]
pub enum Cluster {
    /// Make a data directory the first node of a new cluster; its topics and records stay as they are
    ///
    /// The broker of the directory must be stopped. Start it again afterwards: it is a node then. The address is the one
    /// at which other nodes reach it; with an address of 127.0.0.1 all nodes have to be on this machine.
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
    },
    /// Make an empty data directory a new node of the cluster that issued a token
    #[command(after_help = "\
Examples:
  thalweg cluster token                          at a node, prints a token
  thalweg cluster join thalweg-join-... --data ./b --advertise 10.0.0.2:7402
  thalweg serve --data ./b")]
    Join {
        /// Token of `thalweg cluster token`; by default the first line of the standard input
        token: Option<String>,
        /// Data directory; it must be empty or not exist
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Address at which other nodes reach this one
        #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7402")]
        advertise: String,
    },
    /// Print a token with which one new node can join; run it on the machine of a node
    #[command(after_help = "\
Examples:
  thalweg cluster token --data ./a
  thalweg cluster token --data ./a | ssh other thalweg cluster join --data ./b --advertise 10.0.0.2:7402")]
    Token {
        /// Data directory of a node
        #[arg(long, value_name = "DIR")]
        data: Option<PathBuf>,
        /// Minutes for which the token is valid
        #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
        minutes: u64,
    },
}
