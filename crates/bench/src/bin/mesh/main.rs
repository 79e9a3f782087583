//! Live topics of a mesh over an emulated wide-area network: one publisher, three subscribers at other sites, and four
//! configurations. `docs/benchmarks/mesh.md` has its figures.

#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod plan;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod runtime;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod sites;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod load;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod measure;
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
mod report;

use std::process::ExitCode;

#[cfg(any(not(target_os = "linux"), target_env = "musl"))]
fn main() -> ExitCode {
    eprintln!("mesh: this benchmark needs Linux, for its network namespaces, and a build that is not for musl");
    ExitCode::FAILURE
}

#[cfg(all(target_os = "linux", not(target_env = "musl")))]
fn main() -> ExitCode {
    let ran = plan::Settings::read(std::env::args().skip(1)).and_then(|settings| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(run_until_stopped(&settings))
    });
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mesh: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until the end or a signal. Then processes, devices and namespaces are removed as at the end of a run.
#[cfg(all(target_os = "linux", not(target_env = "musl")))]
async fn run_until_stopped(settings: &plan::Settings) -> bench::wan::Outcome<bool> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).map_err(|error| format!("signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let mut hang_up = listen(SignalKind::hangup())?;
    tokio::select! {
        ran = Box::pin(measure::run(settings)) => ran,
        _ = terminate.recv() => Err("stopped".to_owned()),
        _ = interrupt.recv() => Err("stopped".to_owned()),
        _ = hang_up.recv() => Err("stopped".to_owned()),
    }
}
