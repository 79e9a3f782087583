//! A response or a push is refused, or it stays equal when it is encoded and decoded.
//!
//! Input: the kind and the body of a frame. Fetched batches are made valid except for their records.

use crate::support::{frame_of, read_one, seal_fetched};
use bytes::BytesMut;
use engine::{Error, ErrorKind};
use wire::kind::response::FETCHED;
use wire::{Push, Response};

pub fn check(input: &[u8]) {
    let Some(mut frame) = frame_of(input) else {
        return;
    };
    if frame.kind == FETCHED {
        // Every second input stays unchanged: a wrong checksum has to be refused, too.
        if frame.body.last().is_some_and(|byte| byte % 2 == 0) {
            seal_fetched(&mut frame.body);
        }
    }
    if Push::is_push(frame.kind) {
        if let Ok(push) = Push::decode(frame) {
            check_push(push);
        }
    } else if let Ok(response) = Response::decode(frame) {
        check_response(response);
    }
}

fn check_response(response: Response) {
    let mut encoded = BytesMut::new();
    response.encode(7, &mut encoded);
    let frame = read_one(&encoded);
    assert!(!Push::is_push(frame.kind), "an answer is no push");
    assert_eq!(frame.correlation, 7);
    let again = Response::decode(frame).expect("what is encoded is valid");
    match (&response, &again) {
        (Response::Error(error), Response::Error(again)) => check_error(error, again),
        _ => assert_eq!(again, response),
    }
    if let Response::Fetched { batches, .. } = &again {
        for batch in batches {
            if let Ok(records) = batch.records() {
                records.iter().for_each(|record| drop(record.map(|record| records.own(&record))));
            }
        }
    }
    let mut twice = BytesMut::new();
    again.encode(7, &mut twice);
    assert_eq!(twice, encoded, "{response:?}");
}

fn check_push(push: Push) {
    let mut encoded = BytesMut::new();
    push.encode(&mut encoded);
    let frame = read_one(&encoded);
    assert!(Push::is_push(frame.kind) && frame.correlation == 0);
    let again = Push::decode(frame).expect("what is encoded is valid");
    match (&push, &again) {
        (Push::Ended { subscription, error }, Push::Ended { subscription: other, error: again }) => {
            assert_eq!(subscription, other);
            check_error(error, again);
        }
        (Push::GoAway { error }, Push::GoAway { error: again }) => check_error(error, again),
        _ => assert_eq!(again, push),
    }
    let mut twice = BytesMut::new();
    again.encode(&mut twice);
    assert_eq!(twice, encoded, "{push:?}");
}

/// Checks that a long message only lost its end, and that nothing else changed.
fn check_error(error: &Error, again: &Error) {
    assert_eq!((again.kind, again.retry_after_ms), (error.kind, error.retry_after_ms));
    assert_eq!(again.redirect, error.redirect);
    assert!(error.message.starts_with(&again.message));
    // The message of a redirect begins with a line for the address.
    let first_line = if error.kind == ErrorKind::NotLeader { 1 } else { 0 };
    let address = error.redirect.as_ref().map_or(0, |address| address.len());
    assert!(again.message.len() == error.message.len() || address + first_line + again.message.len() + 4 > 1024);
}
