//! The documentation page of commands: the supported ones, and those of Redis that are not supported.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;

const HEAD: &str = "\
# Redis commands

<!-- Written by `UPDATE=1 cargo test -p thalweg-doors redis`: change the program, not this file. -->

This page lists the commands of Redis 7.0 by group, and which of them the Redis door supports.
`COMMAND DOCS` returns the same descriptions to clients.

- [Coming from Redis](../guides/coming-from-redis.md) describes how to move from Redis.
- [Redis streams](redis-streams.md) describes how streams are implemented.

";
/// Commands of clients that see only a part of the broker.
const TENANTS: &str = "\
## Clients of a tenant

A client whose user has a [tenant](../guides/security.md) uses names without the prefix of the
tenant.

- **Databases** are caches of the tenant: database 0 is `acme.db0` for clients of the tenant `acme`.
  `FLUSHALL` removes the keys of the tenant's databases, `DBSIZE`, `KEYS` and `SCAN` count and list
  those of one.
- **Streams** are topics with the prefix: the key `jobs` is the topic `acme.jobs`. A topic that
  another door created is the stream of the tenant whose prefix it has.
- **Channels**, patterns of channels and shard channels are the tenant's, in messages and in
  `PUBSUB`.
- **`INFO`** returns the version, the uptime and the databases of the tenant.
- **The broker** is no tenant's: `CLIENT LIST` and `KILL`, `CONFIG`, `SLOWLOG`, `ROLE` and the `ACL`
  commands about users are refused with `NOPERM`.
- **A login** as a user of another tenant ends transactions, watched keys and subscriptions.

";
/// Redis commands that are not supported, with their replacements.
const MISSING: &[(&str, &str, &str)] = &[
    ("generic", "MIGRATE, DUMP of streams", "DUMP and RESTORE of each other key"),
    ("generic", "WAITAOF, WAIT for replicas", "there are no replicas: WAIT returns 0"),
    ("scripting", "SCRIPT DEBUG", "redis.log, which the log of the broker shows at the level debug"),
    (
        "server",
        "CONFIG SET of parameters that the broker controls (maxmemory, save, requirepass, ..), CONFIG REWRITE",
        "[keys](config.md) of the broker, `thalweg cache create`",
    ),
    (
        "server",
        "ACL SETUSER of single commands, selectors, hashes, nopass; ACL LOAD, ACL SAVE",
        "[rules](../guides/coming-from-redis.md#users-and-rules) of whole sets of commands, `thalweg acl`",
    ),
    ("server", "SAVE, BGSAVE, BGREWRITEAOF", "`redis_durable`: acknowledged writes are on disk"),
    ("server", "MODULE LOAD, SHUTDOWN", "signals"),
    ("cluster", "CLUSTER, READONLY, READWRITE, ASKING", "refused, as by a Redis server without cluster mode"),
    ("replication", "REPLICAOF, PSYNC, FAILOVER", "no replacement yet"),
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
    page.push_str(TENANTS);
    page.push_str("## Unsupported commands\n\n| Group | Commands | Instead |\n|---|---|---|\n");
    for (group, commands, instead) in MISSING {
        writeln!(page, "| {group} | {commands} | {instead} |").expect("written");
    }
    page
}

#[test]
fn the_page_of_commands_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/redis.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page()).expect("written");
    }
    assert!(
        std::fs::read_to_string(&path).expect("the page") == page(),
        "run the test with UPDATE=1 to write it again"
    );
}
