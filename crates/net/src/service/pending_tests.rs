//! Requests that are answered in any order, checked against the invariants of the answers.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::stream::{LocalBoxStream, StreamExt, poll_fn};
use proptest::prelude::*;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::*;
use crate::Outbox;
use crate::limits::Cap;
use crate::service::{Decoded, Held, Input, Never, Out, Peer, Reply};

/// Contents of a later answer: the number of its request, and the index of the response.
type Numbered = (usize, usize);

/// Protocol that only has an order. A response consists of its request's tag and its own number.
#[derive(Clone)]
struct Only<const IN_ORDER: bool>;

impl<const IN_ORDER: bool> Protocol for Only<IN_ORDER> {
    type Codec = ();
    type Request<'a> = ();
    type Message<'a> = Never;
    type Response = (usize, usize);
    type Tag = usize;

    const ORDER: Order = if IN_ORDER { Order::Request } else { Order::Completion };

    fn codec(&self, _: &Rc<Peer>) {}

    fn decode<'a>(&self, _: &mut (), _: &mut Input<'a>) -> Result<Decoded<'a, Self>, Fault> {
        Ok(Decoded::More(1))
    }

    fn encode(&self, _: &mut (), _: usize, _: (usize, usize), _: &mut Out) {}

    fn encode_fault(&self, _: &mut (), _: Option<usize>, _: &Fault, _: &mut Out) {}
}

struct Nothing;

impl<P: Protocol> Handler<P> for Nothing {
    type Connection = ();
    type Session = ();
    type Later = LocalBoxStream<'static, P::Response>;

    fn connect(&self, _: &Rc<Peer>) {}

    fn open(&self, _: &Rc<()>, _: &Arc<Outbox>) {}

    fn call(&self, _: &mut (), _: P::Request<'_>) -> Reply<P::Response, Self::Later> {
        Reply::Later(futures_util::stream::empty().boxed_local())
    }

    fn accept_one_way(&self, _: &mut (), _: P::Message<'_>) -> Option<Held> {
        None
    }
}

#[derive(Clone, Debug)]
enum Step {
    Later,
    Known,
    Refused,
    /// A running request sends a response, or ends.
    Send(usize),
    End(usize),
    Fail(usize),
    /// All answers that may be sent are taken.
    Take,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Later),
        1 => Just(Step::Known),
        1 => Just(Step::Refused),
        3 => any::<usize>().prop_map(Step::Send),
        3 => any::<usize>().prop_map(Step::End),
        1 => any::<usize>().prop_map(Step::Fail),
        2 => Just(Step::Take),
        1 => (1..4u64).prop_map(Step::Pass),
    ]
}

/// Answers to one request.
#[derive(Clone, Debug, Default)]
struct Answers {
    responses: usize,
    faults: usize,
    is_done: bool,
}

fn run<const IN_ORDER: bool>(steps: &[Step]) -> Result<(), TestCaseError> {
    let lease = Cap::new(1000).lease();
    let mut pending = Pending::<Only<IN_ORDER>, Nothing>::default();
    let mut running: Vec<(usize, usize, UnboundedSender<Numbered>)> = Vec::new();
    let mut answers = Vec::<Answers>::new();
    let mut latest = 0;
    let mut now = 0;
    let mut take = |pending: &mut Pending<Only<IN_ORDER>, Nothing>, answers: &mut Vec<Answers>| {
        while let Some(answer) = pending.poll_next(&mut Context::from_waker(Waker::noop())) {
            let tag = match &answer {
                Answer::Response(tag, (request, number)) => {
                    prop_assert_eq!((*request, *number), (*tag, answers[*tag].responses));
                    answers[*tag].responses += 1;
                    *tag
                }
                Answer::Fault(tag, _) => {
                    answers[*tag].faults += 1;
                    *tag
                }
                Answer::Done(_) => {
                    if IN_ORDER {
                        // It is the first that is not done.
                        let first = answers.iter().position(|answers| !answers.is_done);
                        answers[first.expect("a request is open")].is_done = true;
                    }
                    continue;
                }
            };
            prop_assert!(!answers[tag].is_done, "{tag} was done");
            prop_assert!(!IN_ORDER || tag >= latest, "{tag} after {latest}");
            latest = tag;
        }
        Ok(())
    };
    for step in steps {
        match step {
            Step::Later => {
                let (sender, mut receiver) = unbounded_channel();
                let tag = answers.len();
                let permit = lease.acquire(1).expect("enough");
                let begun = Begun { tag, due: now + 5, at: None, _permit: permit };
                pending.push(begun, poll_fn(move |cx| receiver.poll_recv(cx)).boxed_local(), false);
                running.push((tag, 0, sender));
                answers.push(Answers::default());
            }
            Step::Known if IN_ORDER => {
                pending.push_known(answers.len(), (answers.len(), 0), None);
                answers.push(Answers::default());
            }
            Step::Refused if IN_ORDER => {
                pending.push_fault(answers.len(), Fault::busy("full"));
                answers.push(Answers::default());
            }
            Step::Known | Step::Refused => {}
            Step::Send(which) if !running.is_empty() => {
                let at = which % running.len();
                let (tag, number, sender) = &mut running[at];
                let _is_received = sender.send((*tag, *number));
                *number += 1;
            }
            Step::End(which) if !running.is_empty() => drop(running.swap_remove(which % running.len())),
            Step::Fail(which) if !running.is_empty() => {
                let (tag, ..) = running[which % running.len()];
                pending.fail(tag as u64, &Fault::malformed("cut"));
            }
            Step::Send(_) | Step::End(_) | Step::Fail(_) => {}
            Step::Take => take(&mut pending, &mut answers)?,
            Step::Pass(ticks) => {
                now += ticks;
                pending.expire(now);
                prop_assert!(pending.due().is_none_or(|due| due > now));
            }
        }
    }
    running.clear();
    take(&mut pending, &mut answers)?;
    prop_assert!(pending.is_empty() && pending.unfinished() == 0 && !pending.is_alone());
    for answers in &answers {
        prop_assert!(answers.responses + answers.faults > 0 && answers.faults <= 1, "{:?}", answers);
    }
    drop(pending);
    prop_assert_eq!(lease.cap().in_use(), 0);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    /// Every request receives its responses in their order, at most one fault, and an end; with ordered responses, one
    /// request after the other.
    #[test]
    fn every_request_is_answered_and_done(steps in proptest::collection::vec(step(), 1..60)) {
        run::<true>(&steps)?;
        run::<false>(&steps)?;
    }
}
