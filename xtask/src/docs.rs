//! `cargo xtask docs`: writes the pages of `docs/reference` that are generated from the output of the program.

use std::path::Path;

use crate::built;
use crate::run::{Call, Outcome, root};

/// Page: its file, its written beginning and the function that generates the rest.
struct Page {
    path: &'static str,
    head: &'static str,
    body: fn(&Program) -> Outcome<String>,
}

const PAGES: [Page; 4] = [
    Page {
        path: "docs/reference/config.md",
        head: "# Configuration keys

This page lists every key with its default in the profile `balanced`, as
`thalweg config show --help-keys` prints them. `thalweg config show` prints the active values on
your machine and the source of each; its output is a file that `--config` reads. Topics and queues
that the broker creates on startup are [defined after the
keys](../guides/queues.md#define-queues-in-the-configuration-file).

| Type | Values |
|---|---|
| time | a number in the unit that the key ends with, or a text with a unit: `500ms`, `90s`, `5m`, `2h`, `7d` |
| size | a number of bytes, or a text with a unit: `64KiB`, `16MiB`, `1GiB` |
| ratio | a number from 0 to 1 |
| address | `host:port`, a port on this machine only (`7500` is `127.0.0.1:7500`), or `off` |

Variables (`THALWEG_RETENTION_MS=1h`) and flags (`--set retention_ms=1h`) take the same values. A
value is taken from a flag, else from a variable, else from the
[context](../guides/security.md#log-in-once-with-a-context), which has keys of clients, else from the
file, else from the size, else from the profile.
",
        body: config,
    },
    Page {
        path: "docs/reference/cli.md",
        head: "# Command line

This page lists the output of `--help` for the program and each of its commands.
",
        body: command_line,
    },
    Page {
        path: "docs/reference/kafka.md",
        head: "# Kafka APIs and versions

This page lists the APIs of Kafka's protocol that the Kafka door supports, with their versions. It
shows the answer of this version of the broker to an `ApiVersions` request. Clients choose a version
from it automatically. [Coming from Kafka](../guides/coming-from-kafka.md) describes the effects on
programs, tools and settings.
",
        body: crate::kafka_apis::page,
    },
    Page {
        path: "docs/reference/permissions.md",
        head: "# Permissions of each call

This page lists every call of every door with the permissions that it requires if
`authorization = true`. It shows the tables by which the doors decide, as `thalweg acl calls` prints
them. [Users and access control](../guides/security.md#restrict-users-with-access-control-lists)
describes how to give permissions.

A permission is an *operation* on a *kind* of resource. The call names the resource, or finds it.

| Kind | Resource |
|---|---|
| `topic` | a topic, by its name; a stream of Redis is a topic |
| `group` | a consumer group or a share group |
| `queue` | a queue, by its name; a subscription and a snapshot of Pub/Sub are queues |
| `cache` | an entry of a cache: the name of the cache, a slash and the key |
| `channel` | a channel of Redis |
| `transaction` | the transactional id of a producer |
| `schema` | a schema of Pub/Sub |
| `cluster` | the broker as a whole |

- `read`, `write`, `delete` and `alter` include `describe`, and `alter_configs` includes
  `describe_configs`. A call that needs `read` on a topic therefore needs no `describe` on it.
- All permissions of a call are needed, except those whose condition in the column *When* does not
  hold. *Otherwise omitted* means that the call is not refused: its response omits the resource.
- *All entries* of a cache, and *all keys* of a database, need an entry for their prefix, such as
  `db0/` with `--prefix`, and no entry that denies one of them.
- Super users and members of the role `admin` may make every call. A refused call changes nothing.

If `auth = required`, every call needs a login, except those that a client needs before it can log
in, that a load balancer or a client without a user sends, or that show only what is public.
",
        body: crate::permissions::page,
    },
];

const GENERATED: &str = "<!-- Written by `cargo xtask docs`: change the program, not this file. -->";

/// Newly built program. It runs in a directory without a configuration file.
pub struct Program {
    pub path: String,
}

impl Program {
    fn build() -> Outcome<Self> {
        let programs = built::build(&["thalweg"], false)?;
        Ok(Self { path: programs.join("thalweg").display().to_string() })
    }

    pub fn output(&self, args: &[&str]) -> Outcome<String> {
        // The output must not depend on a terminal's width or colours, or on a configuration file.
        let text = Call::new("env")
            .args(["--unset=COLUMNS", "--unset=THALWEG_CONTEXT", "--chdir=target", &self.path])
            .args(args.iter().copied())
            .env("NO_COLOR", "1")
            // Contexts of the user are below it.
            .env("XDG_CONFIG_HOME", "/nowhere")
            .output()?;
        Ok(text.lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>().trim_end().to_owned())
    }
}

pub fn run(args: &[&str]) -> Outcome {
    let is_check = match args {
        [] => false,
        ["--check"] => true,
        _ => return Err("unknown arguments: the only argument is --check".into()),
    };
    let program = Program::build()?;
    for Page { path, head, body } in PAGES {
        let (title, about) = head.split_once("\n\n").expect("invariant: a head is a title and a text");
        let page = format!("{title}\n\n{GENERATED}\n\n{about}\n{}", body(&program)?);
        let file = root().join(path);
        if is_check {
            compare(&file, &page).map_err(|e| format!("{path} {e}; regenerate it with: cargo xtask docs"))?;
            println!("{path} is up to date");
        } else {
            let written = std::fs::create_dir_all(file.with_file_name("")).and_then(|()| std::fs::write(&file, page));
            written.map_err(|e| format!("{path}: {e}"))?;
            println!("wrote {path}");
        }
    }
    Ok(())
}

/// Checks that a file has the generated contents; the error names the first different line.
pub fn compare(file: &Path, page: &str) -> Outcome {
    let found = std::fs::read_to_string(file).map_err(|e| format!("cannot be read ({e})"))?;
    if found == page {
        return Ok(());
    }
    let same = found.lines().zip(page.lines()).take_while(|(found, page)| found == page).count();
    Err(format!(
        "differs from line {}: it has `{}`, the program writes `{}`",
        same + 1,
        found.lines().nth(same).unwrap_or_default(),
        page.lines().nth(same).unwrap_or_default()
    ))
}

fn config(program: &Program) -> Outcome<String> {
    Ok(format!("```toml\n{}\n```\n", program.output(&["config", "show", "--help-keys"])?))
}

fn command_line(program: &Program) -> Outcome<String> {
    let mut page = String::new();
    let mut waiting = vec![Vec::new()];
    while let Some(command) = waiting.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let help = program.output(&[&words[..], &["--help"]].concat())?;
        page += &format!("## `{}`\n\n```text\n{help}\n```\n\n", [&["thalweg"], &words[..]].concat().join(" "));
        for name in subcommands(&help).iter().rev() {
            waiting.push([&command[..], &[(*name).to_owned()]].concat());
        }
    }
    Ok(format!("{}\n", page.trim_end()))
}

/// Returns the names of the subcommands below "Commands:" or below the title of a group, except `help`.
fn subcommands(help: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_listed = false;
    for line in help.lines() {
        if !line.starts_with(' ') {
            is_listed = line == "Commands:" || line.ends_with(" commands:");
        } else if is_listed && !line.starts_with("   ") {
            names.extend(line.split_whitespace().next());
        }
    }
    names.retain(|name| *name != "help");
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_read_from_the_help() {
        let help = "What it is\n\nUsage: x <COMMAND>\n\nCommands:\n  serve   Run\n  topic   Create, list,\n          \
                    describe\n  help    Print this\n\nOptions:\n  -h  Help";
        assert_eq!(subcommands(help), ["serve", "topic"]);
        let groups =
            "Usage: x\n\nRun commands:\n  serve  Run\n\nData commands:\n  topic  Create\n\nOptions:\n  -h  Help";
        assert_eq!(subcommands(groups), ["serve", "topic"]);
        assert!(subcommands("Usage: x\n\nOptions:\n  -h  Help").is_empty());
    }

    #[test]
    fn a_difference_is_shown_with_its_line() {
        let file = std::env::temp_dir().join(format!("thalweg-xtask-docs-{}", std::process::id()));
        std::fs::write(&file, "one\ntwo\n").expect("a temporary file");
        assert_eq!(compare(&file, "one\ntwo\n"), Ok(()));
        let differs = compare(&file, "one\nthree\n").expect_err("it differs");
        assert!(differs.starts_with("differs from line 2: it has `two`, the program writes `three`"), "{differs}");
        std::fs::remove_file(&file).expect("the temporary file");
        assert!(compare(&file, "").is_err());
    }
}
