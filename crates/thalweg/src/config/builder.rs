//! Configuration made by a program: the defaults, and keys by name.

use std::path::Path;

use broker::Door;

use super::{Config, Result, Sources, key_name};

/// Builder for a [`Config`] without a file and without environment variables.
///
/// ```
/// use thalweg::config::Config;
///
/// let config = Config::builder().free_ports().set("memory_max", "64MiB").build()?;
/// # Ok::<(), thalweg::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Builder {
    values: Vec<(String, String)>,
}

impl Builder {
    /// Sets a key as a file does; a later value of the same key wins.
    pub fn set(mut self, key: &str, value: impl ToString) -> Self {
        self.values.push((key.to_owned(), value.to_string()));
        self
    }

    /// Opens every door on a free port of 127.0.0.1, so that any number of servers can run at the same time.
    pub fn free_ports(self) -> Self {
        Door::ALL.into_iter().fold(self, |builder, door| builder.set(door.key(), "127.0.0.1:0"))
    }

    /// Keeps topics in this directory, which is created if it does not exist.
    pub fn data(self, directory: impl AsRef<Path>) -> Self {
        self.set("data", directory.as_ref().display())
    }

    /// Checks the values and builds the configuration.
    pub fn build(self) -> Result<Config> {
        let flags = self.values.into_iter().map(|(key, value)| Ok((key_name(&key, "Config::builder")?, value)));
        Config::load(&Sources { flags: flags.collect::<Result<_>>()?, ..Sources::default() })
    }
}
