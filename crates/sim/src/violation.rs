//! Rules that a simulation checks.

/// A rule that does not hold, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

pub type Outcome = Result<(), Violation>;

/// Fails with a violation unless a condition holds.
pub(crate) fn check(holds: bool, text: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Violation(text())) }
}

/// Returns a digest of a run after something more has happened.
pub(crate) fn digest_after(before: u64, parts: [u64; 3]) -> u64 {
    let mut digest = before;
    for part in parts {
        digest = (digest ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        digest ^= digest >> 29;
    }
    digest
}
