//! Command line of the server.

use std::path::PathBuf;
use std::process;
use std::str::FromStr;

use nacelle::tcp::ResponseWritePolicy;

const USAGE: &str = "usage: nacelle-echo [--port PORT] [--threads N] [--response-bytes N] \
                     [--write immediate|coalesce] [--tls CERT KEY | --tls-self-signed]";

pub struct Args {
    /// Port; 0 is any free port.
    pub port: u16,
    pub threads: usize,
    pub response_bytes: usize,
    pub write: ResponseWritePolicy,
    pub tls: Option<Tls>,
}

pub enum Tls {
    /// PEM files of a certificate and its key.
    Files {
        cert: PathBuf,
        key: PathBuf,
    },
    SelfSigned,
}

/// Parses the arguments of this process; invalid ones end it.
pub fn parse() -> Args {
    let mut args = Args { port: 0, threads: 1, response_bytes: 64, write: ResponseWritePolicy::Immediate, tls: None };
    let mut words = std::env::args().skip(1);
    while let Some(name) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| refuse(&format!("{name} lacks a value")));
        match name.as_str() {
            "--port" => args.port = number(&name, &value()),
            "--threads" => args.threads = number::<usize>(&name, &value()).max(1),
            "--response-bytes" => args.response_bytes = number(&name, &value()),
            "--write" => {
                args.write = match value().as_str() {
                    "immediate" => ResponseWritePolicy::Immediate,
                    "coalesce" => ResponseWritePolicy::CoalesceBuffered,
                    other => refuse(&format!("--write is {other}: it must be immediate or coalesce")),
                }
            }
            "--tls" => args.tls = Some(Tls::Files { cert: value().into(), key: value().into() }),
            "--tls-self-signed" => args.tls = Some(Tls::SelfSigned),
            _ => refuse(&format!("{name} is not an option")),
        }
    }
    args
}

fn number<T: FromStr>(name: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| refuse(&format!("{name} is {text}: it must be a number")))
}

fn refuse(why: &str) -> ! {
    eprintln!("{why}\n{USAGE}");
    process::exit(2);
}
