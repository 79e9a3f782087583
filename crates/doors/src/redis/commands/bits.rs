//! Strings as arrays of bits. The first bit is the highest one of the first byte.

use engine::cache::{Condition, Expires, VALUE_BYTES_MAX};

use super::args::{is, parse_int};
use crate::redis::command::{Command, Keys, ONE, Step, read, string, write};
use crate::redis::errors::{Done, Fail, SYNTAX, fixed};

pub(super) const COMMANDS: &[Command] = &[
    write("SETBIT", 4, ONE, setbit, ("2.2.0", "Sets a bit of a string")),
    read("GETBIT", 3, ONE, getbit, ("2.2.0", "Returns a bit of a string")),
    read("BITCOUNT", -2, ONE, bitcount, ("2.6.0", "Counts the set bits of a string")),
    read("BITPOS", -3, ONE, bitpos, ("2.8.7", "Finds the first bit of a string that is set, or not set")),
    write("BITOP", -4, Keys::Range(2, -1, 1), bitop, ("2.6.0", "Combines strings bit by bit")),
    write("BITFIELD", -2, ONE, bitfield, ("3.2.0", "Reads and changes integers of any width in a string")),
    read("BITFIELD_RO", -2, ONE, bitfield_ro, ("6.0.0", "Reads integers of any width in a string")),
];

/// Number of bits of the largest value.
const BITS_MAX: u64 = VALUE_BYTES_MAX as u64 * 8;

const WRONG_OFFSET: Fail = fixed("ERR bit offset is not an integer or out of range");

fn bit_offset(arg: &[u8]) -> Done<usize> {
    let offset = parse_int(arg).or(Err(WRONG_OFFSET))?;
    u64::try_from(offset).ok().filter(|offset| *offset < BITS_MAX).map(|offset| offset as usize).ok_or(WRONG_OFFSET)
}

fn bit(value: &[u8], at: usize) -> bool {
    value.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1)
}

fn setbit(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let offset = bit_offset(args[2])?;
    let wrong = || Fail::new("ERR bit is not an integer or out of range");
    let wanted = match parse_int(args[3]) {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err(wrong()),
    };
    let value = string(step.db, args[1])?.unwrap_or_default();
    let is_longer = value.len() <= offset / 8;
    let byte = value.get(offset / 8).copied().unwrap_or_default();
    let mask = 0x80 >> (offset % 8);
    let before = byte & mask != 0;
    if is_longer || before != wanted {
        let byte = if wanted { byte | mask } else { byte & !mask };
        step.db.overwrite(args[1], offset / 8, &[byte])?;
    }
    step.out.flag(before);
    Ok(())
}

fn getbit(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let offset = bit_offset(args[2])?;
    let is_set = bit(string(step.db, args[1])?.unwrap_or_default(), offset);
    step.out.flag(is_set);
    Ok(())
}

/// Returns a range, given in bytes or in bits, as positions of bits.
fn bits_between(args: &[&[u8]], length: usize, is_strict: bool) -> Done<std::ops::Range<usize>> {
    let start = parse_int(args[0])?;
    // BITCOUNT parses both indexes before the unit; BITPOS parses the second one after it.
    if is_strict {
        let stop = parse_int(args[1])?;
        // Both indexes count from the end, and they are reversed.
        if start < 0 && stop < 0 && start > stop {
            return Ok(0..0);
        }
    }
    let is_bits = match args.get(2) {
        None => false,
        Some(unit) if is(unit, "BYTE") => false,
        Some(unit) if is(unit, "BIT") => true,
        Some(_) => return Err(SYNTAX),
    };
    let unit = if is_bits { 1 } else { 8 };
    let stop = parse_int(args[1])?;
    let total = (length * 8 / unit) as i64;
    if total == 0 {
        return Ok(0..0);
    }
    // An index before the beginning is clipped to the beginning, also for the end of the range.
    let at = |index: i64| if index < 0 { index.saturating_add(total).max(0) } else { index };
    let start = at(start);
    let stop = at(stop).min(total - 1);
    let span = if start > stop { 0..0 } else { start as usize..stop as usize + 1 };
    Ok(span.start * unit..span.end * unit)
}

fn bitcount(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    // A key that does not exist has no bits, and its range is not checked.
    let Some(value) = string(step.db, args[1])? else {
        step.out.int(0);
        return Ok(());
    };
    if args.len() == 3 || args.len() > 5 {
        return Err(SYNTAX);
    }
    let range = if args.len() > 2 { bits_between(&args[2..], value.len(), true)? } else { 0..value.len() * 8 };
    let count = count_bits(value, range);
    step.out.len(count);
    Ok(())
}

fn count_bits(value: &[u8], range: std::ops::Range<usize>) -> usize {
    let first = range.start.next_multiple_of(8).min(range.end);
    let last = range.end / 8 * 8;
    if first >= last {
        return range.filter(|at| bit(value, *at)).count();
    }
    let whole: usize = value[first / 8..last / 8].iter().map(|byte| byte.count_ones() as usize).sum();
    let ends = (range.start..first).chain(last..range.end);
    whole + ends.filter(|at| bit(value, *at)).count()
}

fn bitpos(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let wanted = match parse_int(args[2])? {
        0 => false,
        1 => true,
        _ => return Err(Fail::new("ERR The bit argument must be 1 or 0.")),
    };
    let has_end = args.len() > 4;
    let Some(value) = string(step.db, args[1])? else {
        step.out.int(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let range = match args[3..] {
        [] => 0..value.len() * 8,
        [start] => bits_between(&[start, b"-1"], value.len(), false)?,
        [_, _] | [_, _, _] => bits_between(&args[3..], value.len(), false)?,
        _ => return Err(SYNTAX),
    };
    let found = first_bit(value, range.clone(), wanted);
    let place = match found {
        Some(at) => at as i64,
        // All bits after the end of the string are clear.
        None if !wanted && !has_end && !range.is_empty() => (value.len() * 8) as i64,
        None => -1,
    };
    step.out.int(place);
    Ok(())
}

fn first_bit(value: &[u8], range: std::ops::Range<usize>, wanted: bool) -> Option<usize> {
    let empty = if wanted { 0 } else { 0xff };
    let mut at = range.start;
    while at < range.end {
        if at.is_multiple_of(8) && at + 8 <= range.end && value[at / 8] == empty {
            at += 8;
        } else if bit(value, at) == wanted {
            return Some(at);
        } else {
            at += 1;
        }
    }
    None
}

/// Unit of combined bytes, and the maximum number of units in one step: 64 MiB.
const COMBINED_BLOCK: u64 = 256;
const COMBINED_BLOCKS_MAX: u64 = 1 << 18;

fn bitop(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let name = args[1].to_ascii_uppercase();
    let combine: fn(u8, u8) -> u8 = match name.as_slice() {
        b"AND" => |a, b| a & b,
        b"OR" => |a, b| a | b,
        b"XOR" => |a, b| a ^ b,
        b"NOT" if args.len() != 4 => return Err(Fail::new("ERR BITOP NOT must be called with a single source key.")),
        b"NOT" => |a, _| !a,
        _ => return Err(SYNTAX),
    };
    let mut length = 0;
    for key in &args[3..] {
        length = length.max(string(step.db, key)?.map_or(0, <[u8]>::len));
    }
    let blocks = (length as u64).div_ceil(COMBINED_BLOCK).saturating_mul(args.len() as u64 - 3);
    step.admits_up_to(blocks, COMBINED_BLOCKS_MAX, "blocks of 256 bytes, bytes of the result times keys")?;
    // Strings are combined one after the other, so that only the result is copied, regardless of their number.
    step.db.hide_misses();
    let mut result = string(step.db, args[3])?.unwrap_or_default().to_vec();
    result.resize(length, 0);
    if name == b"NOT" {
        result.iter_mut().for_each(|byte| *byte = combine(*byte, 0));
    }
    for key in &args[4..] {
        let value = string(step.db, key)?.unwrap_or_default();
        let padded = value.iter().copied().chain(std::iter::repeat(0));
        result.iter_mut().zip(padded).for_each(|(byte, other)| *byte = combine(*byte, other));
    }
    if result.is_empty() {
        step.db.delete(args[2]);
    } else {
        step.db.put(args[2], &result, Expires::Never, Condition::Always)?;
    }
    step.out.len(length);
    Ok(())
}

/// Width of a number in bits, with or without a sign.
#[derive(Clone, Copy)]
struct Width {
    is_signed: bool,
    bits: u32,
}

/// Handling of a number that does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

enum Field {
    Get,
    Set(i64),
    Add(i64),
}

impl Width {
    fn parse(arg: &[u8]) -> Done<Self> {
        let wrong = Fail::new(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        );
        let (sign, bits) = arg.split_first().ok_or(wrong.clone())?;
        let is_signed = match sign {
            b'i' => true,
            b'u' => false,
            _ => return Err(wrong),
        };
        let max = if is_signed { 64 } else { 63 };
        let bits = parse_int(bits).ok().filter(|bits| (1..=max).contains(bits)).ok_or(wrong)?;
        Ok(Self { is_signed, bits: bits as u32 })
    }

    fn min(self) -> i128 {
        if self.is_signed { -(1i128 << (self.bits - 1)) } else { 0 }
    }

    fn max(self) -> i128 {
        if self.is_signed { (1i128 << (self.bits - 1)) - 1 } else { (1i128 << self.bits) - 1 }
    }

    /// Returns a number that fits, if the handling of overflows yields one.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        if (self.min()..=self.max()).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => {
                let low = number.rem_euclid(1i128 << self.bits);
                let wrapped = if low > self.max() { low - (1i128 << self.bits) } else { low };
                Some(wrapped as i64)
            }
            Overflow::Saturate => Some(number.clamp(self.min(), self.max()) as i64),
            Overflow::Fail => None,
        }
    }

    fn get(self, value: &[u8], at: usize) -> i64 {
        let bits = (at..at + self.bits as usize).fold(0u64, |number, at| number << 1 | u64::from(bit(value, at)));
        if self.is_signed && self.bits < 64 && bits >> (self.bits - 1) == 1 {
            return (bits | u64::MAX << self.bits) as i64;
        }
        bits as i64
    }

    fn set(self, value: &mut [u8], at: usize, number: i64) {
        let end = at + self.bits as usize;
        for (place, shift) in (at..end).zip((0..self.bits).rev()) {
            let mask = 0x80 >> (place % 8);
            let byte = &mut value[place / 8];
            *byte = if number >> shift & 1 == 1 { *byte | mask } else { *byte & !mask };
        }
    }
}

/// Parses an offset. `#3` is the number with index 3 (counted from 0) of this width.
fn field_offset(arg: &[u8], width: Width) -> Done<usize> {
    let (arg, unit) = match arg.split_first() {
        Some((b'#', rest)) => (rest, u64::from(width.bits)),
        _ => (arg, 1),
    };
    let offset = parse_int(arg).or(Err(WRONG_OFFSET))?;
    let offset = u64::try_from(offset).ok().and_then(|offset| offset.checked_mul(unit));
    let is_within = |offset: &u64| offset.checked_add(u64::from(width.bits)).is_some_and(|end| end <= BITS_MAX);
    offset.filter(is_within).map(|offset| offset as usize).ok_or(WRONG_OFFSET)
}

type Fields = Vec<(Field, Width, usize, Overflow)>;

fn parse_fields(args: &[&[u8]]) -> Done<Fields> {
    let mut fields = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        let rest = &args[at + 1..];
        at += match rest {
            [width, offset, ..] if is(word, "GET") => {
                let width = Width::parse(width)?;
                fields.push((Field::Get, width, field_offset(offset, width)?, overflow));
                3
            }
            [width, offset, number, ..] if is(word, "SET") || is(word, "INCRBY") => {
                let width = Width::parse(width)?;
                let offset = field_offset(offset, width)?;
                let number = parse_int(number)?;
                let field = if is(word, "SET") { Field::Set(number) } else { Field::Add(number) };
                fields.push((field, width, offset, overflow));
                4
            }
            [how, ..] if is(word, "OVERFLOW") => {
                overflow = match how {
                    how if is(how, "WRAP") => Overflow::Wrap,
                    how if is(how, "SAT") => Overflow::Saturate,
                    how if is(how, "FAIL") => Overflow::Fail,
                    _ => return Err(Fail::new("ERR Invalid OVERFLOW type specified")),
                };
                2
            }
            _ => return Err(SYNTAX),
        };
    }
    Ok(fields)
}

fn bitfield(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let fields = parse_fields(args)?;
    run_fields(step, args[1], fields)
}

fn bitfield_ro(step: &mut Step<'_, '_>, args: &[&[u8]]) -> Done {
    let fields = parse_fields(args)?;
    if fields.iter().any(|(field, ..)| !matches!(field, Field::Get)) {
        return Err(Fail::new("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    run_fields(step, args[1], fields)
}

fn run_fields(step: &mut Step<'_, '_>, key: &[u8], fields: Fields) -> Done {
    let value = string(step.db, key)?.unwrap_or_default();
    let length_before = value.len();
    let mut is_changed = false;
    // A write extends the string first, even if its number does not fit.
    let end_of = |(_, width, offset, _): &(_, Width, usize, _)| (offset + width.bits as usize).div_ceil(8);
    let writes = fields.iter().filter(|(field, ..)| !matches!(field, Field::Get));
    let length = writes.map(end_of).max().unwrap_or_default().max(length_before);
    // Only the bytes between the first and the last field are copied.
    let first = fields.iter().map(|(_, _, offset, _)| offset / 8).min().unwrap_or_default();
    let end = fields.iter().map(end_of).max().unwrap_or_default();
    let mut value = value.get(first..end.min(length_before)).unwrap_or_default().to_vec();
    value.resize(end - first, 0);
    step.out.array(fields.len());
    for (field, width, offset, overflow) in fields {
        let offset = offset - first * 8;
        let before = width.get(&value, offset);
        let (fitted, answer) = match field {
            Field::Get => (None, Some(before)),
            Field::Set(number) => {
                // An unsigned field takes the 64 bits of the number.
                let number = if width.is_signed { i128::from(number) } else { i128::from(number as u64) };
                let fitted = width.fit(number, overflow);
                (fitted, fitted.map(|_| before))
            }
            Field::Add(delta) => {
                let fitted = width.fit(i128::from(before) + i128::from(delta), overflow);
                (fitted, fitted)
            }
        };
        if let Some(number) = fitted {
            width.set(&mut value, offset, number);
            is_changed |= length > length_before || width.get(&value, offset) != before;
        }
        match answer {
            Some(number) => step.out.int(number),
            None => step.out.null(),
        }
    }
    if is_changed || length > length_before {
        if !is_changed {
            // Redis extends the string without an event if no number fits.
            step.set_operation("BITFIELD_RO");
        }
        value.truncate(length - first);
        step.db.overwrite(key, first, &value)?;
    }
    Ok(())
}
