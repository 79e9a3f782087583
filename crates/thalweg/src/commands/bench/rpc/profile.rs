//! Profile of a server of `bench rpc`: a TOML file with the option names of nacelle's stress server.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use ::bench::rpc::{HEAD_BYTES, Place, ServerSettings};
use engine::nearest;
use net::ConnectionLimits;
use thalweg::config::units::parse_bytes;
use toml::Value;

use crate::output::{Failure, Result, USAGE};

/// Settings with which a server is started.
#[derive(Clone, Debug)]
pub struct Start {
    pub settings: ServerSettings,
    /// `true` if free memory is returned to the system immediately.
    pub is_low_memory: bool,
    response_bytes_max: usize,
}

impl Default for Start {
    fn default() -> Self {
        let settings = ServerSettings::default();
        let response_bytes_max = settings.service.body_bytes_max as usize;
        Self { settings, is_low_memory: false, response_bytes_max }
    }
}

/// Effect of a key.
enum Effect {
    Sets(fn(&mut Start, &Value) -> Result<(), String>),
    /// No effect, for this reason.
    Nothing(&'static str),
}

use Effect::{Nothing, Sets};

const NO_BUFFERS: &str = "a connection owns no buffers, those of a thread serve all of its connections in turn";
const NO_PIECES: &str = "a request is handled once it is whole, so its body is never passed on in pieces";
const ONE_WRITE: &str = "the responses to all requests of one read are always sent with one write";
const ALWAYS_COUNTED: &str = "requests are always counted";
const OF_THE_BUILD: &str = "the phases of a read are measured by a build with the feature phase-timing";

/// All keys, in the order in which they are applied.
#[rustfmt::skip]
const KEYS: &[(&str, Effect)] = &[
    ("bind", Sets(|start, value| set(&mut start.settings.place, Place::Tcp(address(value)?)))),
    ("server_threads", Sets(|start, value| set(&mut start.settings.threads, count(value)?))),
    ("response_bytes", Sets(|start, value| set(&mut start.settings.response_bytes, bytes(value)? as usize))),
    ("response_write_mode", Nothing(ONE_WRITE)),
    ("read_buffer_capacity", Nothing(NO_BUFFERS)),
    ("response_buffer_capacity", Nothing(NO_BUFFERS)),
    ("request_body_chunk_size", Nothing(NO_PIECES)),
    ("request_body_channel_capacity", Nothing(NO_PIECES)),
    ("low_memory", Sets(|start, value| set(&mut start.is_low_memory, flag(value)?))),
    ("tls_self_signed", Sets(|start, value| set(&mut start.settings.is_tls, flag(value)?))),
    ("wire_byte_metrics", Sets(byte_metrics)),
    ("byte_metrics", Sets(byte_metrics)),
    ("phase_duration_metrics", Nothing(OF_THE_BUILD)),
    ("request_metrics.started", Nothing(ALWAYS_COUNTED)),
    ("request_metrics.completed", Nothing(ALWAYS_COUNTED)),
    ("request_metrics.bytes", Sets(byte_metrics)),
    ("request_metrics.in_flight", Sets(|start, value| set(&mut start.settings.shows_in_flight, flag(value)?))),
    ("request_metrics.durations", Sets(|start, value| set(&mut start.settings.service.telemetry.durations, flag(value)?))),
    ("limits.max_connections", Sets(max_connections)),
    ("limits.max_connections_per_peer", Sets(|start, value| set(&mut start.settings.connections.per_peer_max, count(value)?))),
    ("limits.max_connection_opens_per_peer_per_second", Sets(opens_per_second)),
    ("limits.max_in_flight_requests", Sets(|start, value| set(&mut start.settings.service.requests_in_flight_max, count(value)? as u64))),
    ("limits.max_streaming_tasks", Sets(|start, value| set(&mut start.settings.service.streamed_bodies_max, count(value)? as u64))),
    ("limits.max_memory_bytes", Sets(|start, value| set(&mut start.settings.service.memory_bytes_max, bytes(value)?))),
    ("limits.max_request_body_bytes", Sets(max_request_body)),
    ("limits.max_response_body_bytes", Sets(|start, value| set(&mut start.response_bytes_max, bytes(value)? as usize))),
    ("limits.handler_timeout_ms", Sets(|start, value| set(&mut start.settings.service.timeouts.handler, millis(value)?))),
    ("tcp_limits.read_timeout_ms", Sets(|start, value| set(&mut start.settings.service.timeouts.read, millis(value)?))),
    ("tcp_limits.write_timeout_ms", Sets(|start, value| set(&mut start.settings.service.timeouts.write, millis(value)?))),
    ("tcp_limits.idle_timeout_ms", Sets(idle_timeout)),
    ("tcp_limits.shutdown_timeout_ms", Sets(|start, value| set(&mut start.settings.shutdown_timeout, millis(value)?))),
];

impl Start {
    /// Applies the keys of a file. Returns notes on the keys that have no effect.
    pub fn read(&mut self, path: &Path) -> Result<Vec<String>> {
        let place = path.display();
        let wrong = |why: String| Failure::new(USAGE, format!("{place}: {why}"));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| wrong(e.to_string()))?;
        self.apply(&table).map_err(wrong)
    }

    fn apply(&mut self, table: &toml::Table) -> Result<Vec<String>, String> {
        let mut written = Vec::new();
        for (name, value) in table {
            match value {
                Value::Table(group) => {
                    written.extend(group.iter().map(|(key, value)| (format!("{name}.{key}"), value)));
                }
                value => written.push((name.clone(), value)),
            }
        }
        if let Some((name, _)) = written.iter().find(|(name, _)| KEYS.iter().all(|(key, _)| key != name)) {
            let hint = nearest(name, KEYS.iter().map(|(key, _)| *key));
            let hint = hint.map_or(String::new(), |nearest| format!("; did you mean {nearest}?"));
            return Err(format!("there is no key {name}{hint}"));
        }
        let mut notes = Vec::new();
        for (key, effect) in KEYS {
            let Some((_, value)) = written.iter().find(|(name, _)| name == key) else {
                continue;
            };
            match effect {
                Sets(set) => set(self, value).map_err(|why| format!("{key}: {why}"))?,
                Nothing(why) => notes.push(format!("{key} changes nothing: {why}")),
            }
        }
        Ok(notes)
    }

    /// Checks the rules that concern more than one option.
    pub fn check(&self) -> Result<(), String> {
        let bytes = self.settings.response_bytes;
        let max = self.response_bytes_max;
        if bytes > max {
            return Err(format!("a response has at most {max} bytes (limits.max_response_body_bytes), not {bytes}"));
        }
        if matches!(self.settings.place, Place::Unix(_)) && (self.settings.is_tls || self.settings.is_quic) {
            return Err("a Unix socket has neither TLS nor QUIC".to_owned());
        }
        Ok(())
    }
}

fn set<T>(place: &mut T, value: T) -> Result<(), String> {
    *place = value;
    Ok(())
}

fn byte_metrics(start: &mut Start, value: &Value) -> Result<(), String> {
    set(&mut start.settings.service.telemetry.bytes, flag(value)?)
}

fn max_connections(start: &mut Start, value: &Value) -> Result<(), String> {
    set(&mut start.settings.connections, ConnectionLimits::up_to(count(value)?))
}

fn opens_per_second(start: &mut Start, value: &Value) -> Result<(), String> {
    let opens = u32::try_from(count(value)?).map_err(|e| e.to_string())?;
    set(&mut start.settings.connections.opens_per_second_per_peer_max, NonZeroU32::new(opens))
}

fn max_request_body(start: &mut Start, value: &Value) -> Result<(), String> {
    let bytes = bytes(value)?;
    start.settings.service.body_bytes_max = bytes;
    set(&mut start.settings.service.frame_bytes_max, (bytes as usize).saturating_add(HEAD_BYTES))
}

/// Sets the idle timeout. It also applies to a connection that has sent no request yet.
fn idle_timeout(start: &mut Start, value: &Value) -> Result<(), String> {
    let timeouts = &mut start.settings.service.timeouts;
    timeouts.first_frame = millis(value)?;
    set(&mut timeouts.idle, Some(timeouts.first_frame))
}

fn address(value: &Value) -> Result<SocketAddr, String> {
    let text = value.as_str().ok_or("must be an address such as \"127.0.0.1:7878\"")?;
    text.parse().map_err(|e| format!("'{text}': {e}; write it as 127.0.0.1:7878"))
}

fn flag(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {value}"))
}

/// Parses a number of bytes, also written as "512MiB".
fn bytes(value: &Value) -> Result<u64, String> {
    match value {
        Value::String(text) => parse_bytes(text),
        value => value
            .as_integer()
            .and_then(|n| u64::try_from(n).ok())
            .ok_or_else(|| format!("must be a number of bytes, not {value}")),
    }
}

/// Parses a number that must be at least 1.
fn count(value: &Value) -> Result<usize, String> {
    let n = value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    n.ok_or_else(|| format!("must be a whole number of at least 1, not {value}"))
}

fn millis(value: &Value) -> Result<Duration, String> {
    Ok(Duration::from_millis(count(value)? as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str) -> Result<(Start, Vec<String>), String> {
        let mut start = Start::default();
        let notes = start.apply(&text.parse().expect("TOML"))?;
        start.check()?;
        Ok((start, notes))
    }

    /// The profiles that come with the program must have the documented settings.
    #[test]
    fn the_profiles_hold() {
        let tcp = include_str!("../../../../../../bench/profiles/rpc/tcp.toml");
        let low_memory = include_str!("../../../../../../bench/profiles/rpc/tcp-low-memory.toml");
        let tls = include_str!("../../../../../../bench/profiles/rpc/tcp-tls.toml");
        for (text, is_low_memory, is_tls) in [(tcp, false, false), (low_memory, true, false), (tls, false, true)] {
            let (start, notes) = apply(text).expect("valid");
            let Start { settings, .. } = &start;
            assert_eq!((start.is_low_memory, settings.is_tls), (is_low_memory, is_tls));
            assert_eq!((settings.threads, settings.response_bytes), (8, 64));
            assert_eq!(settings.place, Place::Tcp(SocketAddr::from(([127, 0, 0, 1], 7878))));
            let limits = &settings.connections;
            let service = &settings.service;
            assert_eq!((limits.connections_max, limits.per_peer_max), (16_384, 16_384));
            assert_eq!((service.requests_in_flight_max, service.streamed_bodies_max), (65_536, 8192));
            assert_eq!((service.frame_bytes_max, service.memory_bytes_max), ((16 << 20) + HEAD_BYTES, 512 << 20));
            let seconds = |n| Duration::from_secs(n);
            let timeouts = &service.timeouts;
            assert_eq!((timeouts.read, timeouts.write, timeouts.handler), (seconds(30), seconds(30), seconds(60)));
            assert_eq!((timeouts.idle, timeouts.first_frame), (Some(seconds(120)), seconds(120)));
            assert!(service.telemetry.bytes && !service.telemetry.durations && !settings.shows_in_flight);
            assert_eq!(notes.len(), 4, "{notes:?}");
        }
    }

    #[test]
    fn a_key_that_is_not_known_is_refused_with_the_nearest() {
        let message = |text: &str| apply(text).expect_err("must be refused");
        assert_eq!(
            message("[limits]\nmax_conections = 4"),
            "there is no key limits.max_conections; did you mean limits.max_connections?"
        );
        assert_eq!(
            message("max_connections = 4"),
            "there is no key max_connections; did you mean limits.max_connections?"
        );
        assert_eq!(
            message("[request_metrics]\nduration = true"),
            "there is no key request_metrics.duration; did you mean request_metrics.durations?"
        );
        assert_eq!(message("threads_of_the_server = 4"), "there is no key threads_of_the_server");
    }

    #[test]
    fn a_value_that_cannot_be_is_refused_with_its_key() {
        for (text, why) in [
            ("server_threads = 0", "server_threads: must be a whole number of at least 1, not 0"),
            ("bind = \"localhost\"", "bind: 'localhost': invalid socket address syntax; write it as 127.0.0.1:7878"),
            ("byte_metrics = 1", "byte_metrics: must be true or false, not 1"),
            (
                "[limits]\nmax_memory_bytes = \"5 potatoes\"",
                "limits.max_memory_bytes: '5 potatoes' is not a number of bytes: write 4096, 64KiB, 16MiB or 1GiB",
            ),
            (
                "response_bytes = 5\n[limits]\nmax_response_body_bytes = 4",
                "a response has at most 4 bytes (limits.max_response_body_bytes), not 5",
            ),
        ] {
            assert_eq!(apply(text).expect_err("must be refused"), why);
        }
    }

    #[test]
    fn limits_of_each_peer_stand_beside_that_of_all() {
        let text = "[limits]\nmax_connections = 100\nmax_connections_per_peer = 7\nmax_connection_opens_per_peer_per_second = 9";
        let limits = apply(text).expect("valid").0.settings.connections;
        assert_eq!((limits.connections_max, limits.per_peer_max), (100, 7));
        assert_eq!(limits.opens_per_second_per_peer_max.map(u32::from), Some(9));
        let (start, _) = apply("[limits]\nmax_request_body_bytes = \"1KiB\"").expect("valid");
        assert_eq!(start.settings.service.frame_bytes_max, 1024 + HEAD_BYTES);
    }
}
