//! Data that a script gives to `cjson`, `cmsgpack` or `struct` is refused, or survives being written and read.
//!
//! Input: a byte that selects the library, the format for `struct` up to a zero, and the data.

use doors::redis::check_data;

/// Number of libraries.
const LIBRARIES: u8 = 3;

pub fn check(input: &[u8]) {
    let Some((library, rest)) = input.split_first() else {
        return;
    };
    let library = library % LIBRARIES;
    let end = if library == LIBRARIES - 1 { rest.iter().position(|byte| *byte == 0) } else { None };
    let (format, data) = end.map_or((&[][..], rest), |end| (&rest[..end], &rest[end + 1..]));
    check_data(library, format, data);
}
