//! Conversion of integers to and from decimal digits.

/// Parses an integer in canonical form: no sign except a minus, no leading zeros, no other characters.
pub fn parse_number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    digits.iter().try_fold(0i64, |number, digit| {
        let digit = i64::from(digit.checked_sub(b'0').filter(|digit| *digit <= 9)?);
        let number = number.checked_mul(10)?;
        if is_negative { number.checked_sub(digit) } else { number.checked_add(digit) }
    })
}

/// Writes the decimal digits of an integer to the end of the buffer, and returns them.
pub fn write_number(number: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = number.unsigned_abs();
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}
