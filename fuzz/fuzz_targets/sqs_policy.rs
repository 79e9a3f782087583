//! Program that fuzzes `sqs_policy`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::sqs_policy::check(input));
