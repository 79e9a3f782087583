//! Decompression of strings (LZF, by Marc Lehmann; `lzf_d.c` in Redis).

/// Returns the decompressed bytes; `None` if they are not exactly `length` bytes.
pub(super) fn decompress(mut bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(bytes.len().saturating_mul(8)));
    while let Some((first, rest)) = bytes.split_first() {
        let control = usize::from(*first);
        if control < 32 {
            let (literal, rest) = rest.split_at_checked(control + 1)?;
            out.extend(literal);
            bytes = rest;
        } else {
            let (mut count, mut rest) = (control >> 5, rest);
            if count == 7 {
                let (more, after) = rest.split_first()?;
                count += usize::from(*more);
                rest = after;
            }
            let (low, after) = rest.split_first()?;
            let back = ((control & 0x1f) << 8 | usize::from(*low)) + 1;
            let from = out.len().checked_sub(back)?;
            // The copy may overlap its own output.
            for at in from..from + count + 2 {
                out.push(out[at]);
            }
            bytes = after;
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}
