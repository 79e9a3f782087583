//! `thalweg top`: current rates and state of a broker, on a screen or as lines.

mod board;
mod items;
mod look;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use client::{Addresses, Client, ClientSettings};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;
use thalweg::config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::args::Top;
use crate::block_on;
use crate::commands::client_settings;
use crate::output::{FAILED, Failure, NO_BROKER, Result, USAGE};
use board::{Board, Link};
pub(super) use console::samples::{Sample, Samples};
use items::{Items, List};
use look::Look;

/// Time limit for the answer of a broker, after which it counts as lost.
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which the reader of keys checks whether the program still needs them.
const KEYS_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of samples, and of keys, that wait to be processed.
const WAITING_MAX: usize = 64;

pub fn run(config: &Config, args: &Top, is_json: bool) -> Result {
    let settings = ClientSettings {
        connect_timeout: PATIENCE.min(config.client().connect_timeout),
        request_timeout: PATIENCE,
        pub_conn_pool: 1,
        pub_streams_per_conn: 1,
        ..client_settings(config)?
    };
    let watcher = Watcher { addresses: Addresses::parse(config.server_address())?, settings, client: None };
    let board = Board::new(config.server_address(), Duration::from_millis(args.interval_ms));
    if args.plain.is_some() || is_json {
        return block_on(lines(watcher, board, args.plain.unwrap_or(u64::MAX), is_json));
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let words = "top needs a terminal; use --plain LOOKS or --json";
        return Err(Failure::new(USAGE, words));
    }
    block_on(live(watcher, board))
}

/// Repeated reader of a broker's metrics.
struct Watcher {
    addresses: Addresses,
    settings: ClientSettings,
    client: Option<Client>,
}

impl Watcher {
    async fn look(&mut self) -> Result<Look> {
        let client = self.client.take().unwrap_or_else(|| Client::lazy(self.addresses.clone(), self.settings.clone()));
        let ask = async {
            let samples = Samples::parse(&client.stats().await?);
            let items = Items::ask(&client, &samples).await?;
            Ok((samples, items))
        };
        let (samples, items) = tokio::time::timeout(PATIENCE, ask).await.unwrap_or_else(|_elapsed| {
            let words = format!("no answer within {} s", PATIENCE.as_secs());
            Err(client::Error::new(client::ErrorKind::Timeout, words))
        })?;
        // The client is kept only after a success: a failed client is dropped with its connection, which may be dead.
        self.client = Some(client);
        let words = "the broker's answer contains no metrics; is it another version?";
        Look::new(&samples, items, Instant::now()).ok_or_else(|| Failure::new(FAILED, words))
    }
}

/// Prints `looks` samples. If the broker becomes unreachable, that is printed as a sample. If it is not reachable at
/// the beginning, that is an error.
async fn lines(mut watcher: Watcher, mut board: Board, looks: u64, is_json: bool) -> Result {
    let first = watcher
        .look()
        .await
        .map_err(|failure| Failure::new(NO_BROKER, format!("no broker at {}: {failure}", board.address)))?;
    board.take(Ok(first));
    let mut out = io::stdout();
    let mut due = tokio::time::interval(board.interval);
    due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    due.tick().await;
    for _ in 0..looks {
        due.tick().await;
        let look = watcher.look().await.map_err(|failure| failure.message);
        let view = board.take(look);
        let line = match (view, is_json) {
            (Some(view), true) => view.to_json().to_string(),
            (Some(view), false) => view.to_line(),
            (None, true) => json!({ "error": trouble(&board) }).to_string(),
            (None, false) => trouble(&board),
        };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Returns the reason why there are no rates now.
fn trouble(board: &Board) -> String {
    match &board.link {
        Link::Lost(_) => format!("no broker at {}, trying again", board.address),
        _ => format!("the broker at {} is reachable again, measuring", board.address),
    }
}

/// Terminal that is restored when this is dropped, and after a panic.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self> {
        let opened = ratatui::try_init().map_err(|e| {
            Failure::new(FAILED, format!("cannot draw on this terminal: {e}; --plain LOOKS prints lines instead"))
        });
        // Raw mode may already be active.
        opened.map(Self).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Interval between samples; `None` while paused.
type Pace = Option<Duration>;

async fn live(watcher: Watcher, mut board: Board) -> Result {
    let mut end = Signals::new()?;
    let (pace, paces) = watch::channel(Some(board.interval));
    let (looks, mut look) = mpsc::channel(WAITING_MAX);
    let watching = tokio::spawn(watch_broker(watcher, looks, paces));
    let mut screen = Screen::open()?;
    let mut keys = read_keys();
    loop {
        screen.0.draw(|frame| screen::draw(frame, &board))?;
        tokio::select! {
            look = look.recv() => match look {
                Some(look) => {
                    board.take(look);
                }
                None => return Err(Failure::new(FAILED, "the broker is no longer watched; this is a defect")),
            },
            event = keys.recv() => match event {
                Some(event) => if act(&event?, &mut board).is_break() {
                    break;
                },
                None => return Err(Failure::new(FAILED, "the terminal was closed")),
            },
            () = end.received() => break,
        }
        pace.send_replace((!board.is_paused).then_some(board.interval));
    }
    watching.abort();
    Ok(())
}

/// Samples the broker at the requested interval, until the receiver is dropped.
async fn watch_broker(
    mut watcher: Watcher,
    looks: mpsc::Sender<Result<Look, String>>,
    mut paces: watch::Receiver<Pace>,
) {
    let mut last = None;
    loop {
        let pace = *paces.borrow_and_update();
        let due = match (pace, last) {
            (None, _) => None,
            (Some(_), None) => Some(tokio::time::Instant::now()),
            (Some(interval), Some(last)) => Some(last + interval),
        };
        let wait = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {
                last = Some(tokio::time::Instant::now());
                let look = watcher.look().await.map_err(|failure| failure.message);
                if looks.send(look).await.is_err() {
                    return;
                }
            }
            changed = paces.changed() => if changed.is_err() {
                return;
            }
        }
    }
}

/// Reads terminal events on a separate thread, until the receiver is dropped.
fn read_keys() -> mpsc::Receiver<io::Result<Event>> {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(KEYS_INTERVAL) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let has_failed = event.is_err();
            if sender.blocking_send(event).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}

fn act(event: &Event, board: &mut Board) -> std::ops::ControlFlow<()> {
    use std::ops::ControlFlow::{Break, Continue};
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        // Any other event, such as a new size, only redraws the screen.
        return Continue(());
    };
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Break(()),
        KeyCode::Char('q') | KeyCode::Esc => return Break(()),
        KeyCode::Char('p' | ' ') => board.is_paused = !board.is_paused,
        KeyCode::Char('+' | '=') => board.slower(),
        KeyCode::Char('-') => board.faster(),
        KeyCode::Tab | KeyCode::Right => board.list = board.list.next(),
        KeyCode::BackTab | KeyCode::Left => board.list = board.list.before(),
        KeyCode::Char(digit @ '1'..='8') => board.list = List::ALL[*digit as usize - '1' as usize],
        _ => {}
    }
    Continue(())
}

/// Signals that end the program, after which the terminal must be restored.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        let [a, b, c] = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        Ok(Self([a?, b?, c?]))
    }

    async fn received(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.recv() => {}
            _ = b.recv() => {}
            _ = c.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_act_as_shown_on_the_screen() {
        let mut board = Board::new("here", Duration::from_secs(1));
        let mut press = |code, modifiers| {
            let is_end = act(&Event::Key(KeyEvent::new(code, modifiers)), &mut board).is_break();
            (is_end, board.is_paused, board.interval.as_millis())
        };
        assert_eq!(press(KeyCode::Char('p'), KeyModifiers::NONE), (false, true, 1000));
        assert_eq!(press(KeyCode::Char('+'), KeyModifiers::SHIFT), (false, true, 2000));
        assert_eq!(press(KeyCode::Char('p'), KeyModifiers::NONE), (false, false, 2000));
        assert_eq!(press(KeyCode::Char('-'), KeyModifiers::NONE), (false, false, 1000));
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), (false, false, 1000));
        for (code, list) in
            [(KeyCode::Tab, List::Queues), (KeyCode::BackTab, List::Topics), (KeyCode::Char('3'), List::Groups)]
        {
            assert!(act(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), &mut board).is_continue());
            assert_eq!(board.list, list);
        }
        let mut press = |code, modifiers| act(&Event::Key(KeyEvent::new(code, modifiers)), &mut board).is_break();
        for (code, modifiers) in [
            (KeyCode::Char('q'), KeyModifiers::NONE),
            (KeyCode::Esc, KeyModifiers::NONE),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(press(code, modifiers));
        }
    }
}
