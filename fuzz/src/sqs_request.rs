//! An SQS request in either protocol is parsed and its messages are checked, or it is refused.
//!
//! Input: one byte with the action, its highest bit set for the Query protocol, and the body.

use doors::sqs::check_request;

pub fn check(input: &[u8]) {
    let Some((asked, body)) = input.split_first() else {
        return;
    };
    let is_taken = check_request(usize::from(asked & 0x7f), asked & 0x80 != 0, body);
    // The result is the same each time.
    assert_eq!(check_request(usize::from(asked & 0x7f), asked & 0x80 != 0, body), is_taken);
}
