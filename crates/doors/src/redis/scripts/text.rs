//! A script as text: its first line with flags, and whether it may run where its client is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::functions::Code;
use super::sha::{Sha, hex, sha_of};
use super::straight::is_straight;
use crate::redis::errors::{Done, Fail};

/// Maximum size of a script in bytes.
const SCRIPT_BYTES_MAX: usize = 1 << 20;

/// Flags of scripts and functions, with their bits. Those of clusters and replicas have no effect here.
pub(in crate::redis) const FLAGS: [(&str, u8); 5] =
    [("no-writes", NO_WRITES), ("allow-oom", 2), ("allow-stale", 4), ("no-cluster", 8), ("allow-cross-slot-keys", 16)];
pub(in crate::redis) const NO_WRITES: u8 = 1;

/// Maximum number of words of a text that become jumps. Lua walks along the list of those before for each of them, so
/// the time grows with their square, and nothing can end it.
const JUMPS_MAX: usize = 8192;
const JUMPS: [&[u8]; 5] = [b"and", b"or", b"else", b"elseif", b"break"];

/// Refuses a text that would take long to be compiled.
pub(super) fn check_jumps(text: &[u8]) -> Done {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    let jumps = words.filter(|word| JUMPS.contains(word)).count();
    if jumps > JUMPS_MAX {
        return Err(Fail::new(format!(
            "ERR the script has the words and, or, else, elseif and break {jumps} times; at most {JUMPS_MAX} are \
             allowed: use tables and loops"
        )));
    }
    Ok(())
}

/// A script, or a function of a library, that may be called.
pub(in crate::redis) struct Script {
    /// SHA-1 of the text; zeros for a function.
    pub(in crate::redis) sha: Sha,
    /// SHA-1 in digits, or the name of the function.
    pub(in crate::redis) name: Box<[u8]>,
    /// Library of a function.
    pub(in crate::redis) library: Option<Arc<Code>>,
    pub(in crate::redis) text: Box<[u8]>,
    /// Position of the text after the first line, if that is one of flags.
    pub(in crate::redis) from: usize,
    /// Flags of the first line; `None` without such a line, which permits what older versions permitted.
    pub(in crate::redis) flags: Option<u8>,
    /// `true` if the script ends soon, whatever its arguments are.
    pub(in crate::redis) is_straight: bool,
    reach: AtomicU8,
}

/// No run has ended yet.
const UNKNOWN: u8 = 0;
/// All runs used only the keys that they were given.
const DECLARED: u8 = 1;
/// A run has used another key.
const ANY: u8 = 2;

impl Script {
    pub(in crate::redis) fn new(text: &[u8]) -> Done<Self> {
        if text.len() > SCRIPT_BYTES_MAX {
            return Err(Fail::new(format!(
                "ERR the script has {} bytes; at most {SCRIPT_BYTES_MAX} are allowed: pass data as arguments",
                text.len()
            )));
        }
        check_jumps(text)?;
        let (from, flags) = first_line(text)?;
        let sha = sha_of(text);
        Ok(Self {
            sha,
            name: hex(&sha).into(),
            library: None,
            from,
            flags,
            is_straight: is_straight(&text[from..]),
            text: text.into(),
            reach: AtomicU8::new(UNKNOWN),
        })
    }

    /// Returns the function with this name of a library.
    pub(super) fn of_library(name: Box<[u8]>, flags: u8, library: Arc<Code>) -> Self {
        Self {
            sha: Sha::default(),
            name,
            library: Some(library),
            text: Box::default(),
            from: 0,
            flags: Some(flags),
            is_straight: false,
            reach: AtomicU8::new(UNKNOWN),
        }
    }

    /// Returns `true` if the script must not write.
    pub(in crate::redis) fn only_reads(&self) -> bool {
        self.flags.is_some_and(|flags| flags & NO_WRITES != 0)
    }

    /// Returns `true` if the script may use keys that it is not given, so that all stripes are locked for it.
    pub(in crate::redis) fn may_use_any_key(&self) -> bool {
        self.reach.load(Ordering::Relaxed) != DECLARED
    }

    /// Notes whether a run has used keys that it was not given.
    pub(in crate::redis) fn note_reach(&self, has_used_others: bool) {
        if has_used_others {
            self.reach.store(ANY, Ordering::Relaxed);
        } else if self.reach.load(Ordering::Relaxed) == UNKNOWN {
            // Another thread may have noted `ANY` in between.
            let _known = self.reach.compare_exchange(UNKNOWN, DECLARED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Returns the position after the line of flags, and the flags (`evalExtractShebangFlags` in `src/eval.c` of Redis).
fn first_line(text: &[u8]) -> Done<(usize, Option<u8>)> {
    if !text.starts_with(b"#!") {
        return Ok((0, None));
    }
    let end = text.iter().position(|byte| *byte == b'\n').ok_or(Fail::new("ERR Invalid script shebang"))?;
    let line = &text[..end];
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let engine = words.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(Fail::of_bytes([b"ERR Unexpected engine in script shebang: ", engine].concat()));
    }
    let mut flags = 0;
    for word in words {
        let Some(names) = word.strip_prefix(b"flags=") else {
            return Err(Fail::of_bytes([b"ERR Unknown lua shebang option: ", word].concat()));
        };
        for name in names.split(|byte| *byte == b',').filter(|_| !names.is_empty()) {
            flags |= flag(name)
                .ok_or_else(|| Fail::of_bytes([b"ERR Unexpected flag in script shebang: ", name].concat()))?;
        }
    }
    Ok((end, Some(flags)))
}

/// Returns the bit of a flag.
pub(in crate::redis) fn flag(name: &[u8]) -> Option<u8> {
    FLAGS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, bit)| *bit)
}
