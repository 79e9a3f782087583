//! The page of commands: those that are served, and those of Redis that are not.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;

const HEAD: &str = "\
# Redis: what is served

The commands of Redis 7.0, group by group, and which of them are served. After a change
`UPDATE=1 cargo test -p thalweg-doors redis` writes this page anew. How to come from Redis is in
[its guide](../guides/coming-from-redis.md), what streams are in [their own page](redis-streams.md). `COMMAND DOCS` says
the same to clients.

";
/// Commands of Redis that there are not, and what to do instead.
const MISSING: &[(&str, &str, &str)] = &[
    ("generic", "DUMP, RESTORE, MIGRATE", "the bytes are Redis's own: COPY, MOVE, or read and write"),
    ("generic", "WAITAOF, WAIT for replicas", "there are no replicas: WAIT answers 0"),
    ("connection", "SWAPDB", "databases keep their numbers"),
    ("connection", "CLIENT TRACKING ON", "the near cache of the native client follows a watch"),
    ("scripting", "EVAL, EVALSHA, SCRIPT LOAD, FCALL, FUNCTION LOAD", "MULTI with WATCH"),
    ("geo", "GEO*", "none"),
    ("hyperloglog", "PF*", "none"),
    (
        "server",
        "CONFIG SET of what the broker decides (maxmemory, save, requirepass, ..), CONFIG REWRITE",
        "[keys](config.md) of the broker, `thalweg cache create`",
    ),
    ("server", "ACL but ACL WHOAMI", "`thalweg user`"),
    ("server", "SAVE, BGSAVE, BGREWRITEAOF", "`redis_durable`: what was acknowledged is on the disk"),
    ("server", "MONITOR, MODULE LOAD, SHUTDOWN", "metrics at `/metrics`, signals"),
    ("server", "LATENCY of events (LATEST, HISTORY, GRAPH)", "SLOWLOG, LATENCY HISTOGRAM"),
    ("cluster", "CLUSTER, READONLY, READWRITE, ASKING", "refused as by a Redis without a cluster"),
    ("replication", "REPLICAOF, PSYNC, FAILOVER", "none so far"),
];

fn page() -> String {
    let mut page = HEAD.to_owned();
    let groups: std::collections::BTreeSet<&str> = all().iter().map(|command| command.group).collect();
    for group in groups {
        let commands: Vec<_> = all().into_iter().filter(|command| command.group == group).collect();
        write!(page, "## {group}\n\n| Command | Since | What it does |\n|---|---|---|\n").expect("written");
        for command in commands {
            let parts: Vec<&str> = command.parts.iter().map(|(part, _)| *part).collect();
            let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
            writeln!(page, "| `{}`{parts} | {} | {} |", command.name, command.since, command.summary).expect("written");
        }
        page.push('\n');
    }
    page.push_str("## Not served\n\n| Group | Commands | Instead |\n|---|---|---|\n");
    for (group, commands, instead) in MISSING {
        writeln!(page, "| {group} | {commands} | {instead} |").expect("written");
    }
    page
}

#[test]
fn the_page_of_commands_is_what_there_is() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/redis.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page()).expect("written");
    }
    assert!(std::fs::read_to_string(&path).expect("the page") == page(), "say UPDATE=1 to write it anew");
}
