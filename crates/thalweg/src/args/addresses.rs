//! One option per door, with its address.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use thalweg::Door;

/// Addresses that were given on the command line.
#[derive(Debug, Default)]
pub struct Addresses(Vec<(Door, String)>);

impl Addresses {
    pub fn iter(&self) -> impl Iterator<Item = &(Door, String)> {
        self.0.iter()
    }
}

impl Args for Addresses {
    fn augment_args(command: Command) -> Command {
        let option = |door: Door| {
            let help = format!("Address of the {door} door: host:port, or off; port 0 selects a free port");
            Arg::new(door.key()).long(door.key()).value_name("ADDR").help(help)
        };
        command.args(Door::ALL.map(option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Addresses {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let given = |door: Door| Some((door, matches.get_one::<String>(door.key())?.clone()));
        Ok(Self(Door::ALL.into_iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
