//! A request of SQS by either of its protocols is read and its messages are checked, or it is refused.
//!
//! Input: what is asked for in one byte, its highest bit set for the Query protocol, and the body.

#![no_main]

use doors::sqs::check_request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((asked, body)) = input.split_first() else {
        return;
    };
    let is_taken = check_request(usize::from(asked & 0x7f), asked & 0x80 != 0, body);
    // Whatever it is, it is so each time.
    assert_eq!(check_request(usize::from(asked & 0x7f), asked & 0x80 != 0, body), is_taken);
});
