//! Both parts: a server in a separate process, and the load in this one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use ::bench::rpc::{LoadReport, Place, Plan, Secure, ServerSettings, Target, Trust};
use serde_json::json;

use super::child::Server;
use super::floor::Floor;
use super::{check, measure, named_profile, plan, start};
use crate::args::{Global, RpcBoth};
use crate::output::{FAILED, Failure, Result};

pub fn run(global: &Global, args: &RpcBoth) -> Result {
    // The server itself prints the notes on profile keys that have no effect.
    let (start, _) = start(&args.server, None, args.response_bytes)?;
    let settings = start.settings;
    let is_low_memory = start.is_low_memory;
    // Wrong arguments are reported before anything is started. The address of the server is not known yet.
    let nowhere = Target::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let plan = plan(nowhere, &args.shape, settings.response_bytes)?;
    let mut floor = args.floor.as_deref().map(|folder| Floor::find(folder, &settings, &plan)).transpose()?;
    let ours = || run_ours(global, args, &settings, &plan);
    let mut reports = Vec::new();
    for _ in 0..args.rounds {
        reports.push(match &mut floor {
            Some(floor) => floor.round(ours)?,
            None => ours()?,
        });
    }
    if is_low_memory {
        reports.iter_mut().for_each(|report| report.program.allocator += ", on the server with low_memory");
    }
    report(global, reports, floor.as_ref())
}

fn run_ours(global: &Global, args: &RpcBoth, settings: &ServerSettings, plan: &Plan) -> Result<LoadReport> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "rpc", "serve"]).args(serve_flags(args));
    let server = Server::start(command)?;
    let target = target(global.ca_file.as_deref(), settings, server.place())?;
    let mut report = measure(&Plan { target, ..plan.clone() }, Some(server.pid()))?;
    report.server_threads = Some(settings.threads);
    report.server = serde_json::from_value(server.stop()?)?;
    Ok(report)
}

/// Returns the flags with which another process of this program becomes the server that these arguments describe.
fn serve_flags(args: &RpcBoth) -> Vec<String> {
    let server = &args.server;
    let path = |name: &str, path: Option<&Path>| {
        path.map_or(Vec::new(), |path| vec![name.to_owned(), path.display().to_string()])
    };
    let count = |name: &str, n: Option<usize>| n.map_or(Vec::new(), |n| vec![name.to_owned(), n.to_string()]);
    let flag = |name: &str, is_set: bool| if is_set { vec![name.to_owned()] } else { Vec::new() };
    let bind = if server.unix.is_some() { None } else { Some(Path::new("127.0.0.1:0")) };
    [
        path("--bind", bind),
        path("--unix", server.unix.as_deref()),
        path("--config", named_profile(server)),
        path("--tls-cert", server.tls_cert.as_deref()),
        path("--tls-key", server.tls_key.as_deref()),
        count("--server-threads", server.server_threads),
        count("--response-bytes", args.response_bytes),
        flag("--tls", server.tls),
        flag("--quic", server.quic),
        flag("--no-byte-metrics", server.no_byte_metrics),
        flag("--durations", server.durations),
        flag("--in-flight", server.in_flight),
    ]
    .concat()
}

/// Returns the target for a server that was started here and reports that it listens at `place`.
pub(super) fn target(ca_file: Option<&str>, settings: &ServerSettings, place: &str) -> Result<Target> {
    let address = || {
        let port: u16 = place.parse().map_err(|e| Failure::new(FAILED, format!("no port: {place}: {e}")))?;
        Ok::<_, Failure>(SocketAddr::from(([127, 0, 0, 1], port)))
    };
    let secure = || {
        // The server was started here, so its certificate need not be verified.
        let trust = ca_file.map_or(Trust::Anyone, |path| Trust::File(path.into()));
        Ok::<_, Failure>(Secure { address: address()?, name: "127.0.0.1".to_owned(), trust })
    };
    Ok(match &settings.place {
        Place::Unix(path) => Target::Unix(path.clone()),
        Place::Tcp(_) if settings.is_quic => Target::Quic(secure()?),
        Place::Tcp(_) if settings.is_tls => Target::Tls(secure()?),
        Place::Tcp(_) => Target::Tcp(address()?),
    })
}

fn report(global: &Global, mut reports: Vec<LoadReport>, floor: Option<&Floor<'_>>) -> Result {
    reports.sort_by(|a, b| a.rps.total_cmp(&b.rps));
    let count = reports.len();
    let first = &reports[0];
    let middle = &reports[count / 2];
    let last = &reports[count - 1];
    let mut out = io::stdout();
    if global.json {
        let mut value = serde_json::to_value(middle)?;
        value["rounds"] = json!({ "count": count, "rps_min": first.rps, "rps_max": last.rps });
        if let Some(floor) = floor {
            value["floor"] = floor.to_json();
        }
        writeln!(out, "{value}")?;
    } else {
        write!(out, "{middle}")?;
        if count > 1 {
            writeln!(out, "{:<22}median of {count}, {:.0} to {:.0} requests/s", "rounds", first.rps, last.rps)?;
        }
        if let Some(floor) = floor {
            writeln!(out, "{}", floor.table())?;
        }
    }
    reports.iter().try_for_each(check)
}
