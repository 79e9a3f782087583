//! Arguments of commands about contexts and logins.

use clap::{Args, Subcommand};

use super::Yes;

#[derive(Subcommand)]
#[command(after_help = "\
A context is a named set of client keys for one broker. Its file, contexts/NAME.toml below
$XDG_CONFIG_HOME/thalweg or ~/.config/thalweg, can be read by its user alone. Options and variables
take precedence over a context, and a context over thalweg.toml. A context is not used when an
option or a variable names another broker, so its secrets are sent to no other; --context '' uses
none. `thalweg config show` prints the source of each value.

Examples:
  thalweg context add prod --server broker.lan --ca-file ca.pem --user ann --use
  thalweg login                                   # asks for the password, and stores a token
  thalweg context add ci --server broker.lan --token-file ci.token
  thalweg --context ci topic list
  thalweg context list")]
pub enum ContextCommand {
    /// Add a context with --server, --ca-file, --token-file, the options below, and --set for other client keys
    Add(ContextAdd),
    /// List contexts; * is before the current one
    #[command(visible_alias = "ls")]
    List,
    /// Make a context the current one, which commands use when they name no other
    Use {
        #[arg(required_unless_present = "none")]
        name: Option<String>,
        /// Use no context
        #[arg(long, conflicts_with = "name")]
        none: bool,
    },
    /// Show a context, without its secrets; by default the one that commands use
    Show { name: Option<String> },
    /// Delete a context
    #[command(visible_alias = "rm")]
    Delete {
        name: String,
        /// Delete it even if it is logged in: its token then stays valid at the broker until it expires
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        yes: Yes,
    },
}

#[derive(Args)]
pub struct ContextAdd {
    pub name: String,
    /// User to log in as
    #[arg(long, conflicts_with = "token_file")]
    pub user: Option<String>,
    /// File whose first line is the password of the user
    #[arg(long, value_name = "FILE", requires = "user")]
    pub password_file: Option<String>,
    /// PEM file with the certificate chain of the client
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_cert: Option<String>,
    /// PEM file with the private key of --client-cert
    #[arg(long, value_name = "FILE", requires = "client_cert")]
    pub client_key: Option<String>,
    /// Make it the current context
    #[arg(long = "use")]
    pub is_current: bool,
    /// Replace a context of that name
    #[arg(long)]
    pub replace: bool,
}

#[derive(Args)]
#[command(after_help = "\
The password is checked with the broker, which then creates a token for the user. The context keeps
the token, and not the password. The token has the rights of the user. It ends at its expiry time,
when the password changes, when the user is deleted, and with `thalweg logout`.

Examples:
  thalweg login                                          # user and password are asked for
  thalweg login --context prod --user ann --expires 12h
  thalweg login --user ann --password-stdin < password.txt")]
pub struct Login {
    /// User to log in as [default: the user of the context]
    #[arg(long)]
    pub user: Option<String>,
    /// Read the password from the first line of the standard input
    #[arg(long)]
    pub password_stdin: bool,
    /// Lifetime of the token such as 12h or 30d, at most 90d
    #[arg(long, default_value = "30d")]
    pub expires: String,
    /// Store the password in clear text, in a file that only you can read, instead of a token
    #[arg(long, conflicts_with = "expires")]
    pub store_password: bool,
}

#[derive(Args)]
pub struct Logout {
    /// Remove the login from the context even if the broker cannot be reached; its token then stays valid until it
    /// expires
    #[arg(long)]
    pub force: bool,
}
