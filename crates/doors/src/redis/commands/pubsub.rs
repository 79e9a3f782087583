//! Channels, which are live topics.

use super::Command;
use crate::redis::connection::Session;

pub(super) const COMMANDS: &[Command] = &[];

impl Session {
    pub(in crate::redis) fn is_subscribed(&self) -> bool {
        false
    }

    pub(in crate::redis) fn unsubscribe_all(&mut self) {}
}
