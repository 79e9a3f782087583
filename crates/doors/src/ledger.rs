//! Accounts for answers of the doors that speak HTTP, where a call did not itself.

use std::sync::Arc;

use broker::Broker;
use net::http::{Charge, Ledger};

/// Charges answers to the budget of all answers, for the address of the client. These answers are small or belong to
/// requests that were carried out, so they may overdraw the budget.
pub(crate) fn of_answers(broker: &Arc<Broker>) -> Ledger {
    let answers = broker.answers().clone();
    Ledger::new(move |client, bytes| match answers.try_overdraw(Some(client), bytes) {
        Some(held) => Some(Charge::new(held)),
        None => {
            // It counts as refused; the words for it are those of the door.
            drop(answers.refuse());
            None
        }
    })
}
