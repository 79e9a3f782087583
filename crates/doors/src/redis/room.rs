//! Memory for the replies of a connection. A reply holds its memory until it is written to the socket.

use std::net::IpAddr;

use broker::{Answers, FREE_BYTES};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use net::service::{Reply, once};

use super::clients::Client;
use super::codec::Answer;
use super::connection::Session;
use super::errors::Done;
use super::later::Later;
use super::writer::{ANSWER_BYTES_MAX, Writer, no_room};
use crate::redis::command::Command;

impl Session {
    /// Returns the maximum size of a reply now, in bytes. Small replies are always possible.
    pub(super) fn room(&self) -> usize {
        self.answers.room(self.address()).clamp(FREE_BYTES, ANSWER_BYTES_MAX)
    }

    fn address(&self) -> Option<IpAddr> {
        self.client.ip
    }

    /// Refuses a command that changes data and returns a reply of any size if the memory for replies is full: once it
    /// has run, it can no longer be refused.
    pub(super) fn find_room(&self, command: &Command, args: &[&[u8]]) -> Done {
        find_room(&self.answers, self.address(), command, args)
    }

    /// Charges the memory of the reply, which is held until it is written. If no memory is free, an error replaces the
    /// reply of a command that only reads.
    pub(super) fn charged(&self, reply: Reply<Answer, Later>, is_write: bool) -> Reply<Answer, Later> {
        let answers = &self.answers;
        let address = self.address();
        let writer = self.is_resp3;
        match reply {
            Reply::Now(Answer::Written(bytes)) if bytes.len() > FREE_BYTES => {
                Reply::Now(charge(answers, address, bytes, is_write, writer))
            }
            Reply::Last(Answer::Written(bytes)) if bytes.len() > FREE_BYTES => {
                Reply::Last(charge(answers, address, bytes, is_write, writer))
            }
            Reply::Now(Answer::Followed(followed)) => {
                let (answer, follow) = *followed;
                match self.charged(Reply::Now(answer), is_write) {
                    Reply::Now(answer) => Reply::Now(answer.before(follow)),
                    reply => reply,
                }
            }
            Reply::Alone(later) => Reply::Alone(charge_later(answers.clone(), address, later, is_write, writer)),
            Reply::Blocked(later) => Reply::Blocked(charge_later(answers.clone(), address, later, is_write, writer)),
            // A reply that waits until its change is durable was charged before.
            reply => reply,
        }
    }

    /// Charges the reply of a command that has changed data. May overdraw the budget.
    pub(super) fn charged_change(&self, answer: Answer) -> Answer {
        match answer {
            Answer::Written(bytes) if bytes.len() > FREE_BYTES => {
                charge(&self.answers, self.address(), bytes, true, self.is_resp3)
            }
            answer => answer,
        }
    }
}

/// Refuses a command of a client with this address as [`Session::find_room`] does.
pub(super) fn find_room(answers: &Answers, address: Option<IpAddr>, command: &Command, args: &[&[u8]]) -> Done {
    if answers.is_full(address) && command.returns_changed_data(args) {
        drop(answers.refuse());
        return Err(no_room(0));
    }
    Ok(())
}

/// Divisor of the room for replies that yields the maximum size of the reply of a script: several end at a time.
const SCRIPT_PART: usize = 4;
/// Maximum size in bytes of the reply of a script that is always possible: it may have changed data.
const SCRIPT_BYTES_MIN: usize = 1 << 20;

/// Returns the maximum size of the reply of a script, if this is the room for replies.
pub(super) fn script_room(room: usize) -> usize {
    (room / SCRIPT_PART).clamp(SCRIPT_BYTES_MIN, ANSWER_BYTES_MAX)
}

/// Charges the reply of a script that has run. May overdraw the budget.
pub(super) fn charge_script(answers: &Answers, client: &Client, out: Writer) -> Answer {
    match out.bytes.len() {
        0..=FREE_BYTES => Answer::Written(out.bytes),
        _ => charge(answers, client.ip, out.bytes, true, out.is_resp3),
    }
}

/// Charges the reply of a blocked client, whose command has run. May overdraw the budget.
pub(super) fn charge_blocked(answers: &Answers, client: &Client, mut bytes: Vec<u8>) -> Bytes {
    if bytes.len() <= FREE_BYTES {
        return bytes.into();
    }
    bytes.shrink_to_fit();
    answers.overdraw(client.ip, bytes.len()).charge(bytes)
}

/// Returns the reply of a blocked client, which was charged before.
pub(super) fn answer_blocked(bytes: Bytes) -> Answer {
    if bytes.len() <= FREE_BYTES { Answer::Written(bytes.into()) } else { Answer::Charged(bytes) }
}

/// Charges a reply. Returns it with its memory, or an error if no memory is free.
fn charge(answers: &Answers, address: Option<IpAddr>, mut bytes: Vec<u8>, is_write: bool, is_resp3: bool) -> Answer {
    let held =
        if is_write { Some(answers.overdraw(address, bytes.len())) } else { answers.try_take(address, bytes.len()) };
    match held {
        Some(held) => {
            bytes.shrink_to_fit();
            Answer::Charged(held.charge(bytes))
        }
        None => {
            drop(answers.refuse());
            let mut writer = Writer::new(is_resp3);
            writer.error(&no_room(answers.room(address)));
            Answer::Written(writer.bytes)
        }
    }
}

fn charge_later(answers: Answers, address: Option<IpAddr>, mut later: Later, is_write: bool, is_resp3: bool) -> Later {
    let charged = async move {
        match later.next().await.unwrap_or(Answer::Nothing) {
            Answer::Written(bytes) if bytes.len() > FREE_BYTES => charge(&answers, address, bytes, is_write, is_resp3),
            Answer::Followed(followed) => match *followed {
                (Answer::Written(bytes), follow) if bytes.len() > FREE_BYTES => {
                    charge(&answers, address, bytes, is_write, is_resp3).before(follow)
                }
                (answer, follow) => answer.before(follow),
            },
            answer => answer,
        }
    };
    once(charged.boxed_local())
}
