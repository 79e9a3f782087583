//! `thalweg init`: a commented configuration file for a purpose, and what to do next.

mod purpose;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::json;

use crate::args::{Init, Purpose};
use crate::output::{FAILED, Failure, Result};

/// File name that stands for the standard output.
const STANDARD_OUTPUT: &str = "-";
/// Permissions of the file: it may come to contain secrets.
const MODE: u32 = 0o600;

pub fn run(args: &Init, is_json: bool) -> Result {
    let text = purpose::text(args.purpose);
    let mut out = std::io::stdout();
    if args.out.as_os_str() == STANDARD_OUTPUT {
        return Ok(write!(out, "{text}")?);
    }
    create(&args.out, &text)?;
    let file = args.out.display().to_string();
    let next = purpose::next(args.purpose, &args.out);
    if is_json {
        let next: Vec<_> = next.iter().map(|(command, why)| json!({ "command": command, "why": why })).collect();
        return Ok(writeln!(out, "{}", json!({ "file": file, "purpose": name(args.purpose), "next": next }))?);
    }
    writeln!(out, "wrote {file}: {}\n\nNext:", purpose::title(args.purpose))?;
    let width = next.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    for (command, why) in next {
        writeln!(out, "  {command:width$}  # {why}")?;
    }
    Ok(())
}

fn name(purpose: Purpose) -> String {
    use clap::ValueEnum;
    purpose.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Creates the file. One that exists is never overwritten.
fn create(path: &Path, text: &str) -> Result {
    let refused = |error: std::io::Error| {
        let advice = match error.kind() {
            ErrorKind::AlreadyExists => "it exists: name another file with --out, or delete it".to_owned(),
            _ => error.to_string(),
        };
        Failure::new(FAILED, format!("cannot write {}: {advice}", path.display()))
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path).map_err(refused)?;
    file.write_all(text.as_bytes()).map_err(refused)
}
