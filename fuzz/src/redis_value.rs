//! A value in the format of Redis's database files is refused, or survives being written and read.
//!
//! Input: the type of the value and its bytes, as in the argument of `RESTORE`, without version and checksum.

use doors::redis::check_value;

pub fn check(input: &[u8]) {
    check_value(input);
}
