//! Writer of replies, in the version of RESP that the client chose.

use engine::cache::write_number;

use super::errors::Fail;

/// Maximum size of a reply in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Initial capacity in bytes. Most replies are smaller.
const SMALL_BYTES: usize = 64;

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    pub(super) is_resp3: bool,
    /// `true` once the reply has grown too large: nothing more is written, and it is not a valid reply.
    pub(super) is_too_large: bool,
    /// Number of members, keys and items that the commands of a transaction have visited.
    pub(super) looked: u64,
    /// Maximum size in bytes: less than [`ANSWER_BYTES_MAX`] if other replies hold the memory.
    pub(super) bytes_max: usize,
}

impl Writer {
    pub(super) fn new(is_resp3: bool) -> Self {
        let bytes = Vec::with_capacity(SMALL_BYTES);
        Self { bytes, is_resp3, is_too_large: false, looked: 0, bytes_max: ANSWER_BYTES_MAX }
    }

    pub(super) fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    pub(super) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    pub(super) fn error(&mut self, fail: &Fail) {
        let is_end = |byte: u8| matches!(byte, b'\r' | b'\n');
        self.bytes.push(b'-');
        self.bytes.extend(fail.text.iter().map(|byte| if is_end(*byte) { b' ' } else { *byte }));
        self.put(b"\r\n");
    }

    pub(super) fn int(&mut self, number: i64) {
        self.number(b':', number);
    }

    pub(super) fn len(&mut self, length: usize) {
        self.int(length as i64);
    }

    pub(super) fn flag(&mut self, is_true: bool) {
        self.put(if is_true { b":1\r\n" } else { b":0\r\n" });
    }

    pub(super) fn bulk(&mut self, bytes: &[u8]) {
        if self.is_full(bytes.len()) {
            return;
        }
        self.bytes.reserve(bytes.len() + 24);
        self.number(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.put(b"\r\n");
    }

    /// Fails if the reply is too large.
    pub(super) fn check(&mut self) -> Result<(), Fail> {
        if !std::mem::take(&mut self.is_too_large) {
            Ok(())
        } else if self.bytes_max < ANSWER_BYTES_MAX {
            Err(no_room(self.bytes_max))
        } else {
            Err(Fail::new(format!("ERR the reply has more than {ANSWER_BYTES_MAX} bytes: request less at a time")))
        }
    }

    /// Writes a string, or null.
    pub(super) fn maybe(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    pub(super) fn null(&mut self) {
        self.put(if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Writes null in place of an array.
    pub(super) fn null_array(&mut self) {
        self.put(if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    pub(super) fn array(&mut self, length: usize) {
        self.number(b'*', length as i64);
    }

    /// Writes the head of a map with this many pairs.
    pub(super) fn map(&mut self, pairs: usize) {
        if self.is_resp3 { self.number(b'%', pairs as i64) } else { self.array(2 * pairs) }
    }

    pub(super) fn set(&mut self, length: usize) {
        self.number(if self.is_resp3 { b'~' } else { b'*' }, length as i64);
    }

    /// Writes the head of a push, which answers no request.
    pub(super) fn push(&mut self, length: usize) {
        self.number(if self.is_resp3 { b'>' } else { b'*' }, length as i64);
    }

    pub(super) fn double(&mut self, number: f64) {
        let text = write_double(number);
        if self.is_resp3 { self.line(b',', text.as_bytes()) } else { self.bulk(text.as_bytes()) }
    }

    /// Writes a number with at most 17 digits after the point, and without an exponent.
    pub(super) fn decimal(&mut self, number: f64) {
        let text = format!("{number:.17}");
        let text = trimmed(&text);
        if self.is_resp3 { self.line(b',', text.as_bytes()) } else { self.bulk(text.as_bytes()) }
    }

    /// Writes a text for people.
    pub(super) fn verbatim(&mut self, text: &str) {
        if !self.is_resp3 {
            return self.bulk(text.as_bytes());
        }
        self.number(b'=', text.len() as i64 + 4);
        self.put(b"txt:");
        self.line_end(text.as_bytes());
    }

    /// Inserts a head at `at`, for elements whose number is known only after they were written.
    pub(super) fn begin_with(&mut self, at: usize, write: impl FnOnce(&mut Self)) {
        let end = self.bytes.len();
        write(self);
        let head = self.bytes.split_off(end);
        self.bytes.splice(at..at, head);
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn is_full(&mut self, more: usize) -> bool {
        self.is_too_large |= self.bytes.len() + more > self.bytes_max;
        self.is_too_large
    }

    fn number(&mut self, sign: u8, number: i64) {
        if self.is_full(1) {
            return;
        }
        self.bytes.push(sign);
        self.line_end(write_number(number, &mut [0; 20]));
    }

    fn line(&mut self, sign: u8, text: &[u8]) {
        self.bytes.push(sign);
        self.line_end(text);
    }

    fn line_end(&mut self, text: &[u8]) {
        self.put(text);
        self.put(b"\r\n");
    }
}

/// First words of the error for a reply for which there is no memory now.
pub(super) const NO_ROOM: &str = "TRYAGAIN the reply has more than";

/// Returns the error for a client whose reply has no memory now.
pub(super) fn no_room(bytes: usize) -> Fail {
    Fail::new(format!(
        "{NO_ROOM} the {bytes} bytes that are free: replies that clients have not read use the rest of \
         response_memory_max (one address may use half). Read them, request less at a time, or try again later"
    ))
}

/// Formats a score as Redis does: whole numbers as such, others with 17 digits, as `%.17g` of C does.
pub(super) fn write_double(number: f64) -> String {
    const DIGITS: usize = 17;
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number.is_nan() {
        return "nan".to_owned();
    }
    // Whole numbers are exact up to this size.
    if number.trunc() == number && number.abs() < 1e17 {
        return if number == 0.0 && number.is_sign_negative() { "-0".to_owned() } else { format!("{number:.0}") };
    }
    let text = format!("{number:.*e}", DIGITS - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS as i32).contains(&exponent) {
        let places = (DIGITS as i32 - 1 - exponent) as usize;
        return trimmed(&format!("{number:.places$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_c_writes_them() {
        let written = [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (3.1, "3.1000000000000001"),
            (0.5, "0.5"),
            (-1.5, "-1.5"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (123456789.123, "123456789.123"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (number, text) in written {
            assert_eq!(write_double(number), text);
        }
    }

    #[test]
    fn heads_are_put_where_they_belong() {
        let mut writer = Writer::new(true);
        writer.ok();
        let at = writer.bytes.len();
        writer.int(1);
        writer.begin_with(at, |writer| writer.set(1));
        assert_eq!(writer.bytes, b"+OK\r\n~1\r\n:1\r\n");
    }
}
