//! Forms in which Redis stores several parts in one string: ziplist, listpack, intset and zipmap (`ziplist.c`,
//! `listpack.c`, `intset.c` and `zipmap.c`).

use super::{Bad, Read, Reader, ensure};

type Each<'e> = &'e mut dyn FnMut(&[u8]) -> Read<()>;

/// End of a ziplist, a listpack and a zipmap.
const END: u8 = 0xff;

fn reader(bytes: &[u8]) -> Reader<'_> {
    Reader { rest: bytes, room: 0 }
}

fn decimal(number: i64, each: Each<'_>) -> Read<()> {
    each(number.to_string().as_bytes())
}

fn int24(bytes: [u8; 3]) -> i64 {
    let [a, b, c] = bytes;
    // The highest byte carries the sign.
    i64::from(i32::from_le_bytes([0, a, b, c]) >> 8)
}

/// Reads a string as its only part.
pub(super) fn one(bytes: &[u8], each: Each<'_>) -> Read<()> {
    each(bytes)
}

pub(super) fn ziplist(bytes: &[u8], each: Each<'_>) -> Read<()> {
    let mut reader = reader(bytes);
    let size = u32::from_le_bytes(reader.array()?);
    ensure(size as usize == bytes.len())?;
    // Positions and numbers that a reader from the front does not need.
    reader.take(6)?;
    loop {
        // Size of the previous entry.
        match reader.byte()? {
            END => return ensure(reader.rest.is_empty()),
            0xfe => drop(reader.take(4)?),
            _ => {}
        }
        let first = reader.byte()?;
        let low = usize::from(first & 0x3f);
        match (first >> 6, first) {
            (0, _) => each(reader.take(low)?)?,
            (1, _) => {
                let length = low << 8 | usize::from(reader.byte()?);
                each(reader.take(length)?)?;
            }
            (2, _) => {
                let length = u32::from_be_bytes(reader.array()?);
                each(reader.take(length as usize)?)?;
            }
            (_, 0xc0) => decimal(i16::from_le_bytes(reader.array()?).into(), each)?,
            (_, 0xd0) => decimal(i32::from_le_bytes(reader.array()?).into(), each)?,
            (_, 0xe0) => decimal(i64::from_le_bytes(reader.array()?), each)?,
            (_, 0xf0) => decimal(int24(reader.array()?), each)?,
            (_, 0xfe) => decimal(i8::from_le_bytes(reader.array()?).into(), each)?,
            (_, 0xf1..=0xfd) => decimal(i64::from(first & 0x0f) - 1, each)?,
            _ => return Err(Bad::Format),
        }
    }
}

pub(super) fn listpack(bytes: &[u8], each: Each<'_>) -> Read<()> {
    let mut reader = reader(bytes);
    let size = u32::from_le_bytes(reader.array()?);
    ensure(size as usize == bytes.len())?;
    // Number of parts, which may be unknown.
    reader.take(2)?;
    loop {
        let before = reader.rest.len();
        let first = reader.byte()?;
        match first {
            END => return ensure(reader.rest.is_empty()),
            0x00..0x80 => decimal(first.into(), each)?,
            0x80..0xc0 => each(reader.take(usize::from(first & 0x3f))?)?,
            0xc0..0xe0 => {
                let number = i16::from(first & 0x1f) << 8 | i16::from(reader.byte()?);
                // 13 bits, of which the highest is the sign.
                decimal((number << 3 >> 3).into(), each)?;
            }
            0xe0..0xf0 => {
                let length = usize::from(first & 0x0f) << 8 | usize::from(reader.byte()?);
                each(reader.take(length)?)?;
            }
            0xf0 => {
                let length = u32::from_le_bytes(reader.array()?);
                each(reader.take(length as usize)?)?;
            }
            0xf1 => decimal(i16::from_le_bytes(reader.array()?).into(), each)?,
            0xf2 => decimal(int24(reader.array()?), each)?,
            0xf3 => decimal(i32::from_le_bytes(reader.array()?).into(), each)?,
            0xf4 => decimal(i64::from_le_bytes(reader.array()?), each)?,
            _ => return Err(Bad::Format),
        }
        // Size of the entry once more, for readers from the end: 7 bits in each byte.
        let size = before - reader.rest.len();
        let back = match size {
            ..128 => 1,
            128..16_383 => 2,
            16_383..2_097_151 => 3,
            2_097_151..268_435_455 => 4,
            _ => 5,
        };
        reader.take(back)?;
    }
}

pub(super) fn intset(bytes: &[u8], each: Each<'_>) -> Read<()> {
    let mut reader = reader(bytes);
    let width = u32::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?);
    for _ in 0..count {
        let number = match width {
            2 => i16::from_le_bytes(reader.array()?).into(),
            4 => i32::from_le_bytes(reader.array()?).into(),
            8 => i64::from_le_bytes(reader.array()?),
            _ => return Err(Bad::Format),
        };
        decimal(number, each)?;
    }
    ensure(reader.rest.is_empty())
}

pub(super) fn zipmap(bytes: &[u8], each: Each<'_>) -> Read<()> {
    let mut reader = reader(bytes);
    // Number of pairs, which may be unknown.
    reader.byte()?;
    loop {
        let first = reader.byte()?;
        if first == END {
            return ensure(reader.rest.is_empty());
        }
        let length = zipmap_length(&mut reader, first)?;
        each(reader.take(length)?)?;
        let first = reader.byte()?;
        let length = zipmap_length(&mut reader, first)?;
        let unused = reader.byte()?;
        each(reader.take(length)?)?;
        reader.take(usize::from(unused))?;
    }
}

fn zipmap_length(reader: &mut Reader<'_>, first: u8) -> Read<usize> {
    match first {
        END => Err(Bad::Format),
        0xfe => Ok(u32::from_le_bytes(reader.array()?) as usize),
        length => Ok(usize::from(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(unpack: fn(&[u8], Each<'_>) -> Read<()>, bytes: &[u8]) -> Read<Vec<String>> {
        let mut found = Vec::new();
        unpack(bytes, &mut |part| {
            found.push(String::from_utf8_lossy(part).into_owned());
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn listpacks_are_read() {
        assert_eq!(parts(listpack, b"\x0a\x00\x00\x00\x01\x00\xdf\xff\x02\xff").expect("valid"), ["-1"]);
        assert_eq!(parts(listpack, b"\x0c\x00\x00\x00\x01\x00\xf2\xff\xff\xff\x04\xff").expect("valid"), ["-1"]);
        // Sizes that are wrong, a part that is cut off, an unknown part, and bytes after the end.
        for bytes in [
            &b"\x0b\x00\x00\x00\x01\x00\xf2\xff\xff\xff\x04\xff"[..],
            b"\x09\x00\x00\x00\x01\x00\x85ab",
            b"\x09\x00\x00\x00\x01\x00\xf5\x01\xff",
            b"\x0a\x00\x00\x00\x01\x00\x01\x01\xff\xff",
        ] {
            assert_eq!(parts(listpack, bytes), Err(Bad::Format), "{bytes:?}");
        }
    }

    #[test]
    fn other_packed_forms_are_read() {
        let ziplist_bytes = b"\x13\x00\x00\x00\x0e\x00\x00\x00\x03\x00\x00\x01a\x03\xf3\x02\xfe\xff\xff";
        assert_eq!(parts(ziplist, ziplist_bytes).expect("valid"), ["a", "2", "-1"]);
        assert_eq!(parts(ziplist, &ziplist_bytes[..18]), Err(Bad::Format));
        let ints = b"\x02\x00\x00\x00\x02\x00\x00\x00\xff\xff\x05\x00";
        assert_eq!(parts(intset, ints).expect("valid"), ["-1", "5"]);
        assert_eq!(parts(intset, &ints[..11]), Err(Bad::Format));
        assert_eq!(parts(intset, b"\x03\x00\x00\x00\x01\x00\x00\x00\x00"), Err(Bad::Format));
        assert_eq!(parts(zipmap, b"\x01\x01a\x02\x01bcx\xff").expect("valid"), ["a", "bc"]);
        assert_eq!(parts(zipmap, b"\x01\x01a\xff"), Err(Bad::Format));
    }
}
