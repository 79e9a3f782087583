//! Program that fuzzes `sqs_request`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::sqs_request::check(input));
