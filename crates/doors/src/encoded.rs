//! Memory of responses whose size is known only when they are encoded: lists, descriptions, messages that are peeked
//! at.

use std::net::IpAddr;

use broker::Answers;
use net::service::Out;

/// Size from which an encoded response is charged. A buffer of this size costs no more than a connection.
const CHARGED_BYTES_MIN: usize = 64 << 10;

/// Charges the response that begins at `at` in the buffer until it is written, if it is large. It has to be sent now,
/// so it may overdraw the budget; then the next requests of its address wait, or are refused.
pub(crate) fn charge(out: &mut Out, at: usize, answers: &Answers, peer: Option<IpAddr>) {
    if out.buf().len() - at < CHARGED_BYTES_MIN {
        return;
    }
    let response = out.buf().split_off(at);
    let held = answers.overdraw(peer, response.len());
    out.put_shared(held.charge(response));
}
