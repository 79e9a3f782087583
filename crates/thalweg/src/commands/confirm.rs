//! Confirmation before a deletion.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::args::Yes;
use crate::output::{FAILED, Failure, Result};

/// Asks for confirmation, unless `--yes` is given. Without a terminal there is no question, so that scripts continue,
/// as with the deletions of `kafka-topics.sh`, `redis-cli` and `aws`.
pub fn ask(yes: Yes, question: &str) -> Result {
    if yes.yes || !io::stdin().is_terminal() {
        return Ok(());
    }
    let mut out = io::stderr();
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(FAILED, "nothing was changed; answer y, or pass --yes")),
    }
}
