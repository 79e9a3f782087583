//! Arguments of `thalweg mesh`.

use clap::Subcommand;
use client::mesh::{INVITATION_MINUTES, INVITATION_MINUTES_MAX};

use super::Yes;

/// Commands about the mesh of sites.
#[derive(Subcommand)]
pub enum Mesh {
    /// Make the broker a site of a new mesh
    ///
    /// The name of a site is 1 to 63 of a-z, 0-9 and -, with a letter or a digit at both ends.
    #[command(after_help = "\
Examples:
  thalweg mesh init berlin
  thalweg mesh invite                            then, for each further site")]
    Init {
        /// Name of this site
        site: String,
    },
    /// Print an invitation with which one site can join
    #[command(after_help = "\
An invitation is for one site. It is a secret until it is used or has expired.

Examples:
  thalweg mesh invite
  thalweg mesh invite --minutes 5
  thalweg mesh invite | ssh other thalweg mesh join --site oslo")]
    Invite {
        /// Minutes for which the invitation is valid
        #[arg(
            long,
            value_name = "MINUTES",
            default_value_t = INVITATION_MINUTES,
            value_parser = clap::value_parser!(u32).range(1..=i64::from(INVITATION_MINUTES_MAX))
        )]
        minutes: u32,
    },
    /// Make the broker a site of the mesh that issued an invitation
    #[command(after_help = "\
Examples:
  thalweg mesh invite                            at a site, prints an invitation
  thalweg mesh join thalweg-mesh-... --site oslo
  thalweg mesh join --site oslo < invitation.txt")]
    Join {
        /// Invitation of `thalweg mesh invite`; by default the first line of the standard input
        invitation: Option<String>,
        /// Name of this site
        #[arg(long, value_name = "NAME")]
        site: String,
    },
    /// Show this site and the links to the others: which are down, since when, and why
    #[command(after_help = "\
Examples:
  thalweg mesh status
  thalweg mesh status --json | jq '.sites[] | select(.link == \"down\")'")]
    Status,
    /// List the topics of this site that are in the mesh, the sites that receive their records, and the lag of copies
    #[command(after_help = "\
BEHIND is the number of records of the other site that a copy did not have at the last contact, and
LOST the number of those that were deleted there before they were copied.

Examples:
  thalweg topic create prices --mesh live
  thalweg topic create orders --mesh mirror      at each site: the copies are SITE.orders
  thalweg mesh topics
  thalweg mesh topics --json | jq '.[] | select(.copy.behind > 0)'")]
    Topics,
    /// List the other sites with the links to them, and the records that these have carried
    #[command(after_help = "\
Examples:
  thalweg mesh routes
  thalweg mesh routes --json | jq '.[] | select(.lost_records > 0)'")]
    Routes,
    /// Show how this site finds the subscribers of a topic: its cache, its routing table, and its lookups
    #[command(after_help = "\
Examples:
  thalweg mesh stats
  thalweg mesh stats --json | jq .cache.hit_rate")]
    Stats,
    /// Remove another site from the mesh
    #[command(after_help = "\
Every site disconnects it and refuses its key from then on. To join again it has to leave first, and
needs an invitation.

Examples:
  thalweg mesh remove oslo
  thalweg mesh remove oslo --yes                 without a question")]
    Remove {
        /// Name of the site
        site: String,
        #[command(flatten)]
        yes: Yes,
    },
    /// Leave the mesh, and delete the key of this site
    #[command(after_help = "\
Topics and records stay as they are. A later join needs an invitation.

Examples:
  thalweg mesh leave
  thalweg mesh leave --yes                       without a question")]
    Leave {
        #[command(flatten)]
        yes: Yes,
    },
    /// Start three sites on this machine, publish at each of them, and check what arrives
    ///
    /// The sites are processes of this program on free ports, with all topics in memory. Each site publishes numbered
    /// records to a live topic, and reads what all sites publish. At the end everything is removed.
    #[command(after_help = "\
Examples:
  thalweg mesh demo
  thalweg --json mesh demo --seconds 60

Exit code 1: a record did not arrive at a site, arrived twice, or out of order.")]
    Demo {
        /// Time for which records are published
        #[arg(
            long,
            value_name = "SECONDS",
            default_value_t = 10,
            value_parser = clap::value_parser!(u64).range(1..=86_400)
        )]
        seconds: u64,
    },
}
