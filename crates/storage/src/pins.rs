//! Pins: while one is held, no file of a topic is removed, so that its owner can read what it had when the pin was
//! created. Records are deleted, compacted and hidden from readers as always; only their files stay.
//!
//! A pin ends when it is dropped, when it was not used for [`IDLE`] since its snapshot is complete, at the latest after
//! [`AGE_MAX`], and when the disk is full: records that clients publish matter more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Error, ErrorKind, Result};
use parking_lot::Mutex;

/// Maximum number of pins.
const PINS_MAX: usize = 2;
/// Time after which an unused pin ends.
const IDLE: Duration = Duration::from_secs(60);
/// Time after which a pin ends in any case.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);

#[derive(Default)]
pub(crate) struct Pins {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    held: Vec<Held>,
}

struct Held {
    number: u64,
    since: Instant,
    /// `true` until the snapshot is complete: its owner cannot read before.
    is_being_taken: bool,
    used: Instant,
    is_given_up: bool,
}

impl Held {
    fn end(&self) -> Option<&'static str> {
        match () {
            () if self.is_given_up => Some("the disk of the broker is full"),
            () if !self.is_being_taken && self.used.elapsed() > IDLE => Some("nothing was read for a minute"),
            () if self.since.elapsed() > AGE_MAX => Some("it took longer than a day"),
            () => None,
        }
    }
}

/// Pin that is held until it is dropped.
pub(crate) struct Pin {
    pins: Arc<Pins>,
    number: u64,
}

impl Pins {
    /// Creates a pin. Fails if there are too many.
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Pin> {
        let mut state = self.state.lock();
        state.held.retain(|held| held.end().is_none());
        if state.held.len() >= PINS_MAX {
            let message = format!("limit of backups at the same time reached ({PINS_MAX}): wait until one has ended");
            return Err(Error::busy(message));
        }
        let number = state.next;
        state.next += 1;
        let now = Instant::now();
        state.held.push(Held { number, since: now, is_being_taken: true, used: now, is_given_up: false });
        Ok(Pin { pins: self.clone(), number })
    }

    /// Returns `true` if no file of a topic may be removed. On a full disk it ends all pins.
    pub(crate) fn keep_files(&self, is_full: bool) -> bool {
        let mut state = self.state.lock();
        state.held.iter_mut().for_each(|held| held.is_given_up |= is_full);
        state.held.iter().any(|held| held.end().is_none())
    }

    /// Returns the number of pins.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().held.iter().filter(|held| held.end().is_none()).count()
    }
}

impl Pin {
    /// Returns `true` if the pin has ended.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.pins.state.lock();
        !state.held.iter().any(|held| held.number == self.number && held.end().is_none())
    }

    /// Records that the snapshot is complete: from now on the pin ends if it is not used. Fails if it has ended.
    pub(crate) fn complete(&self) -> Result<()> {
        let mut state = self.pins.state.lock();
        if let Some(held) = state.held.iter_mut().find(|held| held.number == self.number) {
            held.is_being_taken = false;
            held.used = Instant::now();
        }
        drop(state);
        self.keep()
    }

    /// Records that the pin is used. Fails if it has ended: files may be missing.
    pub(crate) fn keep(&self) -> Result<()> {
        let mut state = self.pins.state.lock();
        let held = state.held.iter_mut().find(|held| held.number == self.number);
        let why = match held {
            None => Some("another backup has begun"),
            Some(held) => match held.end() {
                None => {
                    held.used = Instant::now();
                    None
                }
                ended => ended,
            },
        };
        match why {
            None => Ok(()),
            Some(why) => {
                let message = format!("the backup has ended, because {why}: begin another one");
                Err(Error::new(ErrorKind::OutOfRange, message))
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.state.lock().held.retain(|held| held.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_ends_all_pins() {
        let pins = Arc::new(Pins::default());
        let pin = pins.hold().expect("the first one");
        assert!(pins.keep_files(false) && pin.keep().is_ok());
        assert!(!pins.keep_files(true));
        assert_eq!(pin.keep().map_err(|error| error.kind), Err(ErrorKind::OutOfRange));
        assert!(!pins.keep_files(false), "an ended pin never holds files again");
    }

    /// Moves the last use of all pins back by more than [`IDLE`].
    fn age(pins: &Pins) {
        for held in &mut pins.state.lock().held {
            held.used = held.used.checked_sub(IDLE + Duration::from_secs(1)).expect("the machine runs for a minute");
        }
    }

    #[test]
    fn a_pin_is_idle_only_once_its_snapshot_is_complete() {
        let pins = Arc::new(Pins::default());
        let pin = pins.hold().expect("the first one");
        age(&pins);
        assert!(pins.keep_files(false) && !pin.is_over(), "a snapshot may take longer than a minute");
        pin.complete().expect("it has not ended");
        assert!(pins.keep_files(false) && pin.keep().is_ok(), "the time begins now");
        age(&pins);
        assert!(!pins.keep_files(false) && pin.is_over());
        assert_eq!(pin.keep().map_err(|error| error.kind), Err(ErrorKind::OutOfRange));
    }

    #[test]
    fn there_are_few_pins_and_a_dropped_one_makes_room() {
        let pins = Arc::new(Pins::default());
        let held: Vec<_> = (0..PINS_MAX).map(|_| pins.hold().expect("within the limit")).collect();
        assert_eq!(pins.hold().err().map(|error| error.kind), Some(ErrorKind::Busy));
        drop(held);
        assert!(!pins.keep_files(false) && pins.count() == 0);
        pins.hold().expect("there is room again");
    }
}
