//! Sums of fractions as in Redis: in the 80-bit numbers of x86, written with 17 digits after the point.

use std::fmt;

use num_bigint::{BigInt, BigUint, Sign};

use super::commands::args::parse_float;

const MANTISSA_BITS: u64 = 64;
/// Bounds of magnitudes: below two to the power of the maximum, and at least two to the power of the minimum.
const EXPONENT_MAX: i64 = 16_384;
const EXPONENT_MIN: i64 = -16_445;
/// Number of digits after the point.
const PLACES: u32 = 17;
/// Size in bytes from which a text is not parsed.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Maximum power of ten: numbers with that many digits cannot have a larger one.
const POWER_MAX: u64 = 5000 + TEXT_BYTES_MAX as u64;

/// A mantissa of at most 64 bits, times a power of two; infinite if it is too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LongDouble {
    mantissa: BigInt,
    exponent: i64,
}

impl LongDouble {
    pub(super) fn zero() -> Self {
        Self { mantissa: BigInt::ZERO, exponent: 0 }
    }

    /// Parses a number as C does; `None` if the text is not a number, or one that is too large or too small.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        match decimal(text) {
            Some((sign, digits, power)) => Self::of_decimal(sign, digits, power).filter(Self::is_finite),
            // A double holds all digits of the other forms.
            None => Some(Self::of_double(parse_float(text)?)),
        }
    }

    /// Returns the nearest number; `None` if `digits` is not zero but the nearest number is.
    fn of_decimal(sign: Sign, digits: BigUint, power: i64) -> Option<Self> {
        if digits == BigUint::ZERO {
            return Some(Self::zero());
        }
        if power.unsigned_abs() > POWER_MAX {
            return None;
        }
        let ten = BigUint::from(10u32).pow(power.unsigned_abs() as u32);
        let (magnitude, exponent) = if power >= 0 {
            (digits * ten, 0)
        } else {
            // Enough bits that the last one only marks a remainder.
            let shift = (MANTISSA_BITS + 2 + ten.bits()).saturating_sub(digits.bits());
            let shifted = digits << shift;
            let quotient = &shifted / &ten;
            let is_left = &quotient * &ten != shifted;
            ((quotient << 1u32) + u32::from(is_left), -(shift as i64) - 1)
        };
        let number = Self::rounded(BigInt::from_biguint(sign, magnitude), exponent);
        (number.top() > EXPONENT_MIN).then_some(number)
    }

    fn of_double(number: f64) -> Self {
        let sign = if number.is_sign_negative() { Sign::Minus } else { Sign::Plus };
        if !number.is_finite() {
            return Self { mantissa: BigInt::from_biguint(sign, 1u32.into()), exponent: EXPONENT_MAX };
        }
        let bits = number.to_bits();
        let raw = (bits >> 52 & 0x7ff) as i64;
        let fraction = bits & ((1 << 52) - 1);
        let (mantissa, exponent) = if raw == 0 { (fraction, -1074) } else { (fraction | 1 << 52, raw - 1075) };
        Self::rounded(BigInt::from_biguint(sign, mantissa.into()), exponent)
    }

    /// Rounds to the nearest number, and to the even one if two are equally near.
    fn rounded(mantissa: BigInt, exponent: i64) -> Self {
        let (sign, magnitude) = mantissa.into_parts();
        let dropped = magnitude.bits().saturating_sub(MANTISSA_BITS);
        let mantissa = BigInt::from_biguint(sign, shifted_right(magnitude, dropped));
        Self { mantissa, exponent: exponent + dropped as i64 }
    }

    /// Returns the smallest power of two that is above the magnitude.
    fn top(&self) -> i64 {
        self.mantissa.bits() as i64 + self.exponent
    }

    pub(super) fn is_finite(&self) -> bool {
        self.top() <= EXPONENT_MAX
    }

    /// Returns the sum if it is finite.
    pub(super) fn plus(self, other: Self) -> Option<Self> {
        if !self.is_finite() || !other.is_finite() {
            return None;
        }
        let exponent = self.exponent.min(other.exponent);
        let aligned = |number: Self| number.mantissa << (number.exponent - exponent);
        Some(Self::rounded(aligned(self) + aligned(other), exponent)).filter(Self::is_finite)
    }
}

/// Formats the number without an exponent and without trailing zeros.
impl fmt::Display for LongDouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = BigUint::from(10u32).pow(PLACES);
        let scaled = self.mantissa.magnitude() * &places;
        let scaled = match self.exponent {
            0.. => scaled << self.exponent,
            _ => shifted_right(scaled, self.exponent.unsigned_abs()),
        };
        if scaled == BigUint::ZERO {
            return f.write_str("0");
        }
        let whole = &scaled / &places;
        let fraction = &scaled % &places;
        let sign = if self.mantissa.sign() == Sign::Minus { "-" } else { "" };
        let text = format!("{sign}{whole}.{:0>width$}", fraction.to_string(), width = PLACES as usize);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Drops the last bits and rounds to the nearest number, and to the even one if two are equally near.
fn shifted_right(number: BigUint, bits: u64) -> BigUint {
    if bits == 0 {
        return number;
    }
    let kept = &number >> bits;
    let is_half = number.bit(bits - 1);
    let is_more = number.trailing_zeros().is_some_and(|zeros| zeros < bits - 1);
    let is_up = is_half && (is_more || kept.bit(0));
    kept + u32::from(is_up)
}

/// Splits a text such as `-12.5e3` into the sign, all digits, and the power of ten by which they are multiplied.
fn decimal(text: &[u8]) -> Option<(Sign, BigUint, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (Sign::Minus, rest),
        None => (Sign::Plus, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, power) = match text.split_once(['e', 'E']) {
        Some((digits, power)) => (digits, parse_power(power)?),
        None => (text, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all = [whole, fraction].concat();
    if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((sign, all.parse().ok()?, power.saturating_sub(fraction.len() as i64)))
}

/// Parses a power. Powers that are too large for any number are replaced by the largest integer.
fn parse_power(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let largest = if text.starts_with('-') { -i64::MAX } else { i64::MAX };
    is_number.then(|| text.parse().unwrap_or(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let parse = |text: &str| LongDouble::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is a number"));
        parse(a).plus(parse(b)).map_or("infinite".to_owned(), |sum| sum.to_string())
    }

    /// Replies of redis-server 7.0 on x86.
    #[test]
    fn sums_are_those_of_redis() {
        let sums = [
            ("10.5", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "200", "5200"),
            ("3", "-3", "0"),
            ("-0", "0", "0"),
            ("1e10", "0.1", "10000000000.09999999962747097"),
            ("1e20", "1", "100000000000000000000"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("36893488147419103233", "0", "36893488147419103232"),
            ("0.000003814697265625", "0", "0.00000381469726562"),
            ("1e-30", "0", "0"),
            ("-1.5", "0.25", "-1.25"),
            ("0x1p3", "1", "9"),
            ("5.", "+.5", "5.5"),
            ("0e99999999999999999999", "1", "1"),
            ("inf", "1", "infinite"),
            ("-infinity", "inf", "infinite"),
            ("1.1e4932", "1.1e4932", "infinite"),
        ];
        for (a, b, expected) in sums {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
        assert_eq!(sum("1e4900", "0").len(), 4901);
    }

    #[test]
    fn invalid_and_too_large_numbers_are_none() {
        for text in [
            "",
            "-",
            ".",
            "e5",
            "1e",
            "1x",
            " 1",
            "1 ",
            "nan",
            "1e5000",
            "1e-5000",
            "1e99999999999",
            "1e39223372036854775806",
            "1.5e-99999999999999999999",
            "1e-9223372036854775808",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(LongDouble::parse(&[b'1'; TEXT_BYTES_MAX]), None);
    }
}
