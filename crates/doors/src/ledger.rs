//! Accounts for answers of the doors that speak HTTP, where a call did not itself.

use std::sync::Arc;

use broker::Broker;
use net::http::{Charge, Ledger};

/// Takes from what all answers may hold, for the address of the client.
pub(crate) fn of_answers(broker: &Arc<Broker>) -> Ledger {
    let answers = broker.answers().clone();
    Ledger::new(move |client, bytes| match answers.try_take(Some(client), bytes) {
        Some(held) => Some(Charge::new(held)),
        None => {
            // It counts as refused; the words for it are those of the door.
            drop(answers.refuse());
            None
        }
    })
}
