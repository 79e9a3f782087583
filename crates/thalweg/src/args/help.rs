//! Complete command line: commands in groups, and hints for options and commands of other programs.

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, CommandFactory};

use super::Cli;
use crate::output::{DONE, USAGE, note};

/// Groups of the help, with the commands of each. Every command is in one group.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run commands", &["serve", "init", "doctor", "demo", "status", "top"]),
    ("Data commands", &["publish", "subscribe", "request", "reply", "queue", "cache"]),
    (
        "Management commands",
        &[
            "topic",
            "group",
            "user",
            "role",
            "tenant",
            "token",
            "key",
            "quota",
            "acl",
            "audit",
            "connections",
            "disconnect",
            "cluster",
            "mesh",
            "config",
            "backup",
            "restore",
            "inspect",
        ],
    ),
    ("Connection commands", &["context", "login", "logout"]),
    ("Measurement commands", &["bench"]),
    ("Shell commands", &["completions", "man", "help"]),
];

/// Options of other programs: the command (empty: any), the option, and the hint that is printed.
const HABITS: [(&str, &str, &str); 6] = [
    ("", "--topic", "the topic is an argument: thalweg publish TOPIC VALUE, thalweg subscribe TOPIC"),
    ("serve", "--port", "each door has an option, such as --native and --kafka HOST:PORT: thalweg serve --help"),
    ("start", "--port", "each door has an option, such as --native and --kafka HOST:PORT: thalweg serve --help"),
    ("user", "--password", "the password is the first line of the standard input: thalweg user add NAME < FILE"),
    ("login", "--password", "others can see a command line: thalweg login asks, or reads --password-stdin"),
    ("", "--bootstrap-server", "use --server HOST:PORT"),
];

/// Commands of other programs, with the hint that is printed.
const COMMAND_HABITS: [(&str, &str); 14] = [
    ("ls", "thalweg topic ls, thalweg queue ls, thalweg cache ls, thalweg group ls"),
    ("list", "thalweg topic list, thalweg queue list, thalweg cache list, thalweg group list"),
    ("rm", "thalweg topic rm NAME, thalweg queue rm NAME, thalweg cache rm NAME, thalweg group rm NAME"),
    ("delete", "thalweg topic delete NAME, thalweg queue delete NAME, thalweg cache delete NAME"),
    ("create", "thalweg topic create NAME, thalweg queue create NAME, thalweg cache create NAME"),
    ("info", "thalweg status shows a broker, thalweg topic describe NAME a topic"),
    ("stop", "Ctrl-C, or SIGTERM to the process of thalweg serve, stops a broker"),
    ("send", "thalweg queue send QUEUE, thalweg publish TOPIC"),
    ("receive", "thalweg queue receive QUEUE, thalweg subscribe TOPIC"),
    ("get", "thalweg cache get CACHE KEY"),
    ("set", "thalweg cache put CACHE KEY VALUE; --set KEY=VALUE is for the configuration"),
    ("profile", "thalweg context list, thalweg context use NAME"),
    ("tail", "thalweg subscribe TOPIC --from -10"),
    ("version", "thalweg --version"),
];

/// Messages of Rust's own parsers, with the messages that replace them.
const REWORDED: [(&str, &str); 4] = [
    ("invalid digit found in string", "write a whole number"),
    ("number too large to fit in target type", "the number is too large"),
    ("invalid float literal", "write a number"),
    ("cannot parse integer from empty string", "write a whole number"),
];

/// Returns the command line with its commands in groups.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let width = command.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or_default();
    let mut listed = String::new();
    for (title, names) in GROUPS {
        listed += &format!("{title}:\n");
        for name in names {
            let about = match command.find_subcommand(name) {
                Some(one) => about_of(one),
                None => "Print the help of a command".to_owned(),
            };
            listed += &format!("  {name:<width$}  {about}\n");
        }
        listed.push('\n');
    }
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n\n{listed}Global options:\n{{options}}{{after-help}}");
    // These prepare or start a broker, and connect to none. They read no context.
    let hidden = |id: &'static str| Arg::new(id).hide(true).global(true);
    let hide = |command: clap::Command| {
        let server = hidden("server").long("server").short('s').value_name("ADDRESS");
        let file = |id, long| hidden(id).long(long).value_name("FILE");
        let context = hidden("context").long("context").value_name("NAME");
        command.arg(server).arg(context).arg(file("ca_file", "ca-file")).arg(file("token_file", "token-file"))
    };
    let command = command.help_template(template);
    ["serve", "doctor", "init"].into_iter().fold(command, |command, name| command.mut_subcommand(name, hide))
}

fn about_of(command: &clap::Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    if aliases.is_empty() { about } else { format!("{about} [aliases: {}]", aliases.join(", ")) }
}

/// Prints the error of a command line in the format of all other errors, or the requested help.
pub fn explain(mut error: clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A closed output is not an error.
        error.print().unwrap_or_default();
        return ExitCode::from(DONE);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.print().unwrap_or_default();
        return ExitCode::from(USAGE);
    }
    // clap suggests passing the option as a value, which is never what the user wants.
    if error.kind() == ErrorKind::UnknownArgument && error.get(ContextKind::SuggestedArg).is_none() {
        error.remove(ContextKind::Suggested);
    }
    let text = REWORDED.iter().fold(error.to_string(), |text, (from, to)| text.replace(from, to));
    note(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    if let Some(hint) = habit(&error) {
        writeln!(std::io::stderr(), "\n  tip: {hint}").unwrap_or_default();
    }
    ExitCode::from(USAGE)
}

fn habit(error: &clap::Error) -> Option<&'static str> {
    if let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) {
        // For a group of commands, as in `queue init`, the error refers to the help of the group, which is the right
        // one.
        let is_first = std::env::args().skip(1).find(|word| !word.starts_with('-')).as_ref() == Some(typed);
        return COMMAND_HABITS.into_iter().find(|(known, _)| is_first && known == typed).map(|(_, hint)| hint);
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let is_of = |command: &str| command.is_empty() || typed.iter().any(|word| word == command);
    let mut habits = HABITS.into_iter();
    habits.find(|(command, known, _)| option == known && is_of(command)).map(|(_, _, hint)| hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.retain(|name| *name != "help");
        grouped.sort_unstable();
        let command = Cli::command();
        let mut known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn a_key_with_a_flag_is_named_by_it() {
        let command = command();
        let serve = command.find_subcommand("serve").expect("a command");
        let has = |command: &clap::Command, flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
        for flag in thalweg::config::flags() {
            assert!(has(&command, flag) || has(serve, flag), "--{flag}");
            assert!(thalweg::config::key_name(&flag.replace('-', "_"), "").is_ok(), "{flag}");
        }
    }

    #[test]
    fn aliases_are_the_commands_that_they_stand_for() {
        for (typed, name) in [
            (vec!["thalweg", "consume", "t"], "subscribe"),
            (vec!["thalweg", "sub", "t", "--from", "-10"], "subscribe"),
            (vec!["thalweg", "produce", "t", "v"], "publish"),
            (vec!["thalweg", "pub", "t", "v"], "publish"),
            (vec!["thalweg", "start"], "serve"),
            (vec!["thalweg", "topic", "ls"], "topic"),
            (vec!["thalweg", "topic", "rm", "t", "-y"], "topic"),
            (vec!["thalweg", "queue", "ls"], "queue"),
            (vec!["thalweg", "cache", "rm", "c"], "cache"),
            (vec!["thalweg", "group", "rm", "g"], "group"),
        ] {
            let matches = command().try_get_matches_from(&typed).unwrap_or_else(|error| panic!("{typed:?}: {error}"));
            assert_eq!(matches.subcommand_name(), Some(name), "{typed:?}");
        }
    }
}
