//! Charges the memory of responses of the doors that speak HTTP, unless a call has charged it itself.

use std::sync::Arc;

use broker::Broker;
use net::http::{Charge, Ledger};

/// Returns a ledger that charges responses to the budget of all responses, for the address of the client. These
/// responses are small or belong to requests that were already executed, so they may overdraw the budget.
pub(crate) fn of_answers(broker: &Arc<Broker>) -> Ledger {
    let answers = broker.answers().clone();
    Ledger::new(move |client, bytes| match answers.try_overdraw(Some(client), bytes) {
        Some(held) => Some(Charge::new(held)),
        None => {
            // Counts the refusal. The door words the error itself.
            drop(answers.refuse());
            None
        }
    })
}
