//! `MONITOR`: clients that receive a line for each command that any client executes.
//!
//! The thread that executes a command writes its line to the monitoring connections. One that does not read is
//! disconnected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use broker::metrics::Exposition;
use broker::{Answers, Broker, Clock, Identity, Security};
use bytes::Bytes;
use engine::security::{Operation, Resource};
use net::service::Reply;
use parking_lot::{Mutex, RwLock};

use super::categories::commands_of;
use super::clients::Client;
use super::codec::Answer;
use super::command::Command;
use super::commands;
use super::connection::Session;
use super::door::Door;
use super::later::{Later, mapped};
use super::receiver::Receiver;

/// Maximum size of a line. The rest of a longer one is left out.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Maximum memory of the lines of a step that are kept until its end.
const LINES_BYTES_MAX: usize = 1 << 20;
/// Memory of a line in addition to its bytes.
const LINE_BYTES: usize = 64;

/// Commands that no monitor shows, by their numbers: those about the server, as in Redis. It has two more in the
/// category `admin`, which lack the flag `CMD_ADMIN`.
static HIDDEN: LazyLock<Vec<bool>> = LazyLock::new(|| {
    let mut admin: Vec<&str> = commands_of("admin").into_iter().flatten().collect();
    admin.retain(|name| !matches!(*name, "role" | "lastsave"));
    commands::names().iter().map(|name| admin.contains(&name.as_str())).collect()
});

/// Monitoring clients.
pub(super) struct Monitors {
    /// `true` while there are any: one relaxed read per command is all that they cost otherwise.
    is_on: AtomicBool,
    all: RwLock<Vec<Arc<Monitor>>>,
    security: Arc<Security>,
    answers: Answers,
    clock: Clock,
    slow: AtomicU64,
}

/// A monitoring client.
pub(super) struct Monitor {
    receiver: Arc<Receiver>,
    /// Identity with which the client has logged in last.
    identity: Mutex<Arc<Identity>>,
}

impl Monitor {
    /// Continues on behalf of another identity, after the client has logged in again.
    pub(super) fn act_as(&self, identity: Arc<Identity>) {
        *self.identity.lock() = identity;
    }
}

/// Registration of a monitoring client. Dropping it ends the monitoring.
pub(super) struct Monitoring {
    monitors: Arc<Monitors>,
    monitor: Arc<Monitor>,
}

impl Monitoring {
    /// Returns the receiver, which is confirmed once the reply to `MONITOR` is written.
    pub(super) fn receiver(&self) -> Arc<Receiver> {
        self.monitor.receiver.clone()
    }

    pub(super) fn monitor(&self) -> &Arc<Monitor> {
        &self.monitor
    }
}

impl Drop for Monitoring {
    fn drop(&mut self) {
        let mut all = self.monitors.all.write();
        all.retain(|monitor| !Arc::ptr_eq(monitor, &self.monitor));
        self.monitors.is_on.store(!all.is_empty(), Ordering::Relaxed);
    }
}

/// Executor of a command, as its line names it.
#[derive(Clone, Copy)]
pub(super) enum Executor<'a> {
    Client(&'a Client),
    Script,
}

impl Monitors {
    pub(super) fn new(broker: &Broker) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            all: RwLock::default(),
            security: broker.security.clone(),
            answers: broker.answers().clone(),
            clock: broker.settings().clock,
            slow: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Adds a monitoring client. It receives lines once its receiver is confirmed.
    pub(super) fn add(self: &Arc<Self>, client: &Arc<Client>, identity: &Arc<Identity>) -> Monitoring {
        let receiver = Arc::new(Receiver::new(client.clone(), identity.clone()));
        let monitor = Arc::new(Monitor { receiver, identity: Mutex::new(identity.clone()) });
        self.all.write().push(monitor.clone());
        self.is_on.store(true, Ordering::Relaxed);
        Monitoring { monitors: self.clone(), monitor }
    }

    /// Writes a line about a command to all monitoring clients.
    pub(super) fn show(&self, executor: Executor<'_>, database: usize, command: &Command, args: &[&[u8]]) {
        if let Some(line) = self.line_of(executor, database, command, args) {
            self.write(&[line]);
        }
    }

    /// Returns the line about a command, if there are monitoring clients that may see it.
    fn line_of(&self, executor: Executor<'_>, database: usize, command: &Command, args: &[&[u8]]) -> Option<Bytes> {
        if !self.are_any() || HIDDEN.get(command.number_of(args)).is_some_and(|is_hidden| *is_hidden) {
            return None;
        }
        Some(Bytes::from(self.line(executor, database, command, args)))
    }

    /// Writes lines to all monitoring clients.
    fn write(&self, lines: &[Bytes]) {
        for monitor in self.all.read().iter() {
            let receiver = &monitor.receiver;
            let identity = monitor.identity.lock().clone();
            let client = &receiver.client;
            let may = self.security.is_valid(&identity)
                && self.security.allows(&identity, Operation::Alter, &Resource::CLUSTER);
            let mut lines = lines.iter();
            if may && lines.all(|line| !receiver.has_no_room(&self.answers) && receiver.queue(line.clone())) {
                client.outbox.flush();
                continue;
            }
            if may {
                tracing::info!(client = client.address, "closed a connection that reads MONITOR slowly");
                self.slow.fetch_add(1, Ordering::Relaxed);
            }
            client.outbox.close();
        }
    }

    /// Returns a line as `replicationFeedMonitors` of Redis writes it.
    fn line(&self, executor: Executor<'_>, database: usize, command: &Command, args: &[&[u8]]) -> Vec<u8> {
        let now_us = self.clock.now_us();
        let (s, us) = (now_us / 1_000_000, now_us % 1_000_000);
        let by = match executor {
            Executor::Client(client) => &client.address,
            Executor::Script => "lua",
        };
        let mut line = format!("+{s}.{us:06} [{database} {by}]").into_bytes();
        let secrets = secrets(command, args);
        for (at, arg) in args.iter().enumerate() {
            line.push(b' ');
            if line.len() > LINE_BYTES_MAX {
                let left: usize = args[at..].iter().map(|arg| arg.len()).sum();
                line.extend_from_slice(format!("\"... ({left} more bytes)\"").as_bytes());
                break;
            }
            quote(&mut line, if secrets.contains(&at) { b"(redacted)" } else { arg });
        }
        line.extend_from_slice(b"\r\n");
        line
    }

    pub(super) fn expose(&self, out: &mut Exposition<'_>) -> std::fmt::Result {
        let count = self.all.read().len() as u64;
        out.gauge("thalweg_redis_monitors", "Connections of Redis clients that monitor all commands", count)?;
        let slow = self.slow.load(Ordering::Relaxed);
        out.counter("thalweg_redis_slow_monitors", "Connections closed because they did not read MONITOR", slow)
    }
}

/// Lines about the commands of a step. They are written once its keys are released: its thread does not hold them while
/// it writes to connections. If a script is begun again, those of its first run are not shown.
pub(super) struct Lines {
    monitors: Arc<Monitors>,
    lines: Vec<Bytes>,
    bytes: usize,
}

impl Lines {
    pub(super) fn new(monitors: &Arc<Monitors>) -> Self {
        Self { monitors: monitors.clone(), lines: Vec::new(), bytes: 0 }
    }

    /// Adds the line about a command. If there are too many, all of them are written immediately.
    #[inline]
    pub(super) fn add(&mut self, executor: Executor<'_>, database: usize, command: &Command, args: &[&[u8]]) {
        if let Some(line) = self.monitors.line_of(executor, database, command, args) {
            self.bytes += line.len() + LINE_BYTES;
            self.lines.push(line);
            if self.bytes > LINES_BYTES_MAX {
                self.write();
            }
        }
    }

    /// Writes all lines to the monitoring clients.
    pub(super) fn write(&mut self) {
        if !self.lines.is_empty() {
            self.monitors.write(&self.lines);
            self.lines.clear();
            self.bytes = 0;
        }
    }
}

impl Door {
    /// Shows a command to the clients that monitor all commands.
    #[inline]
    pub(super) fn show(&self, session: &Session, command: &Command, args: &[&[u8]]) {
        if self.monitors.are_any() {
            self.monitors.show(Executor::Client(&session.client), session.database, command, args);
        }
    }

    /// Shows a command that has begun. `EXEC` is shown after the commands of its transaction, as in Redis, also if they
    /// run on another thread.
    pub(super) fn shown(
        &self,
        session: &Session,
        command: &'static Command,
        args: &[&[u8]],
        reply: Reply<Answer, Later>,
    ) -> Reply<Answer, Later> {
        match reply {
            Reply::Alone(later) if self.monitors.are_any() && command.name == "EXEC" => {
                let (monitors, client) = (self.monitors.clone(), session.client.clone());
                let (database, name) = (session.database, args[0].to_vec());
                Reply::Alone(mapped(later, move |answer| {
                    monitors.show(Executor::Client(&client), database, command, &[&name[..]]);
                    answer
                }))
            }
            reply => {
                self.show(session, command, args);
                reply
            }
        }
    }
}

/// Returns the positions of the arguments that may be names of users and passwords: a wrong `HELLO` has them anywhere.
fn secrets(command: &Command, args: &[&[u8]]) -> std::ops::Range<usize> {
    match command.name {
        "AUTH" => 1..args.len(),
        "HELLO" => {
            let auth = args.iter().skip(1).position(|word| word.eq_ignore_ascii_case(b"AUTH"));
            auth.map_or(0..0, |at| (at + 2).min(args.len())..args.len())
        }
        _ => 0..0,
    }
}

/// Writes a text in quotes, as `sdscatrepr` of Redis does. The part beyond the size of a line is left out.
fn quote(line: &mut Vec<u8>, text: &[u8]) {
    line.push(b'"');
    let shown = text.len().min(LINE_BYTES_MAX);
    for byte in &text[..shown] {
        match byte {
            b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            0x07 => line.extend_from_slice(b"\\a"),
            0x08 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            byte => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
    if shown < text.len() {
        line.extend_from_slice(format!("... ({} more bytes)", text.len() - shown).as_bytes());
    }
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use broker::Settings;
    use tokio::runtime::Handle;

    use super::*;

    #[tokio::test]
    async fn the_lines_of_a_step_are_written_at_its_end() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("it starts");
        let monitors = Arc::new(Monitors::new(&broker));
        let client = Client::of_test(1);
        let monitoring = monitors.add(&client, &Arc::new(Identity::anonymous("host")));
        monitoring.receiver().confirm();
        let command = commands::find(b"ECHO").expect("a command");
        let mut lines = Lines::new(&monitors);
        let add = |lines: &mut Lines, text: &[u8]| lines.add(Executor::Script, 0, command, &[&b"ECHO"[..], text]);
        add(&mut lines, b"a");
        // The first run of a script that is begun again.
        drop(lines);
        let mut lines = Lines::new(&monitors);
        add(&mut lines, b"b");
        add(&mut lines, b"c");
        assert_eq!(client.outbox.waiting(), 0);
        lines.write();
        assert_eq!(client.outbox.chunks(), 2);
        lines.write();
        assert_eq!(client.outbox.chunks(), 2);
        // A script may have any number of commands.
        let long = vec![b'x'; LINE_BYTES_MAX];
        (0..LINES_BYTES_MAX / LINE_BYTES_MAX).for_each(|_| add(&mut lines, &long));
        assert!(client.outbox.waiting() > LINES_BYTES_MAX && lines.bytes < LINES_BYTES_MAX);
    }

    /// `sdscatrepr` in `sds.c` of Redis 7.0.
    #[test]
    fn arguments_are_quoted_as_redis_quotes_them() {
        let quoted = |text: &[u8]| {
            let mut line = Vec::new();
            quote(&mut line, text);
            String::from_utf8(line).expect("ASCII")
        };
        assert_eq!(quoted(b"a \"b\" \\\r\n\t\x07\x08\x00\xff"), r#""a \"b\" \\\r\n\t\a\b\x00\xff""#);
        let long = quoted(&vec![b'x'; LINE_BYTES_MAX + 5]);
        assert!(long.ends_with("x... (5 more bytes)\""));
    }

    #[test]
    fn passwords_and_commands_about_the_server_are_hidden() {
        let command = |name: &str| commands::find(name.as_bytes()).expect("a command");
        let of = |words: &str| {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            secrets(command(words.split(' ').next().expect("a word")), &args)
        };
        assert_eq!((of("AUTH secret"), of("AUTH ann secret")), (1..2, 1..3));
        assert_eq!((of("HELLO 3 SETNAME x AUTH ann secret"), of("GET auth")), (5..7, 0..0));
        assert_eq!(of("HELLO 3 SETNAME AUTH AUTH ann secret"), 4..7);
        assert_eq!((of("HELLO 3 AUTH AUTH ann secret"), of("HELLO 3 AUTH")), (3..6, 3..3));
        // Redis refuses it, and shows all of it.
        assert_eq!(of("HELLO AUTH ann secret"), 2..4);
        let is_hidden = |words: &str| {
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            HIDDEN[command(words.split(' ').next().expect("a word")).number_of(&args)]
        };
        assert!(is_hidden("CONFIG SET x y") && is_hidden("ACL SETUSER ann") && is_hidden("MONITOR"));
        assert!(!is_hidden("CLIENT ID") && !is_hidden("SET k v") && !is_hidden("ROLE") && !is_hidden("LASTSAVE"));
    }
}
