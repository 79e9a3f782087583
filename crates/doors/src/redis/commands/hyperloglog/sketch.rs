//! Sketch of a set, from which the number of its members is estimated (HyperLogLog), as a string.
//!
//! The bytes are those of Redis (`hyperloglog.c`): a header of 16 bytes, and 16,384 registers of 6 bits, each the
//! longest run of zeros among the hashes of its members, plus 1. A sketch of few members is sparse: runs of equal
//! registers. It becomes dense when it grows over a limit, or when a register is too large for a run. The estimate is
//! that of Otmar Ertl, *New cardinality estimation algorithms for HyperLogLog sketches*, arXiv:1702.01284.

/// Number of bits of a hash that select a register.
const INDEX_BITS: u32 = 14;
const REGISTERS: usize = 1 << INDEX_BITS;
/// Maximum value of a register: the bits of a hash that do not select it, plus 1.
const RANK_MAX: usize = 64 - INDEX_BITS as usize + 1;
const RANK_BITS: usize = 6;
const HEADER_BYTES: usize = 16;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * RANK_BITS / 8;
/// Maximum size of a sparse sketch: the default of Redis's `hll-sparse-max-bytes`.
const SPARSE_BYTES_MAX: usize = 3000;
const MAGIC: &[u8; 4] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
/// Position of the byte that says how the registers are stored.
const ENCODING_AT: usize = 4;
/// Position of the last byte of the stored estimate. Its highest bit says that the estimate is out of date.
const STALE_AT: usize = 15;
const STALE: u8 = 0x80;
/// Maximum value of a register in a sparse sketch.
const RUN_VALUE_MAX: u8 = 32;
/// Maximum number of equal registers above 0 in one byte.
const RUN_MAX: usize = 4;
/// Maximum number of registers of 0 in one byte, and in two.
const ZEROS_MAX: usize = 64;
const LONG_ZEROS_MAX: usize = REGISTERS;
/// Number of runs that are merged with their neighbors after a change, counted from the one before it.
const MERGED_MAX: usize = 5;

/// Bytes that have the header of a sketch, but not its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// Returns `true` if the bytes begin like a sketch.
pub(super) fn is_sketch(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER_BYTES
        && bytes.starts_with(MAGIC)
        && match bytes[ENCODING_AT] {
            DENSE => bytes.len() == DENSE_BYTES,
            encoding => encoding == SPARSE,
        }
}

/// Run of equal registers in a sparse sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    value: u8,
    registers: usize,
    /// Size in bytes.
    size: usize,
}

impl Run {
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        let first = *bytes.get(at)?;
        let low = usize::from(first & 0x3f);
        // A second byte that is cut off is 0 for Redis, whose strings end with one.
        let second = bytes.get(at + 1).copied().unwrap_or_default();
        Some(match first >> 6 {
            0 => Self { value: 0, registers: low + 1, size: 1 },
            1 => Self { value: 0, registers: (low << 8 | usize::from(second)) + 1, size: 2 },
            _ => Self { value: (first >> 2 & 0x1f) + 1, registers: usize::from(first & 3) + 1, size: 1 },
        })
    }

    /// Appends the bytes of a run. One above 0 has at most [`RUN_MAX`] registers.
    fn write(out: &mut Vec<u8>, value: u8, registers: usize) {
        match (value, registers) {
            (_, 0) => {}
            (0, ..=ZEROS_MAX) => out.push(registers as u8 - 1),
            (0, _) => out.extend([0x40 | ((registers - 1) >> 8) as u8, (registers - 1) as u8]),
            (value, _) => out.push(0x80 | ((value - 1) << 2) | (registers as u8 - 1)),
        }
    }
}

/// Runs of a sparse sketch, with their positions.
fn runs(bytes: &[u8]) -> impl Iterator<Item = (usize, Run)> {
    let mut at = HEADER_BYTES;
    std::iter::from_fn(move || {
        let run = Run::at(bytes, at)?;
        let begin = at;
        at += run.size;
        Some((begin, run))
    })
}

/// Returns the runs of a sparse sketch as text, as `PFDEBUG DECODE` of Redis shows them.
pub(super) fn decoded(bytes: &[u8]) -> String {
    let shown = |run: Run| match (run.value, run.size) {
        (0, 1) => format!("z:{}", run.registers),
        (0, _) => format!("Z:{}", run.registers),
        (value, _) => format!("v:{value},{}", run.registers),
    };
    runs(bytes).map(|(_, run)| shown(run)).collect::<Vec<_>>().join(" ")
}

/// Returns the position of a register's lowest bit, in bytes and bits.
fn place_of(index: usize) -> (usize, usize) {
    (HEADER_BYTES + index * RANK_BITS / 8, index * RANK_BITS % 8)
}

fn dense_register(bytes: &[u8], index: usize) -> u8 {
    let (at, shift) = place_of(index);
    let pair = [bytes[at], bytes.get(at + 1).copied().unwrap_or_default()];
    (u16::from_le_bytes(pair) >> shift) as u8 & 0x3f
}

fn set_dense_register(bytes: &mut [u8], index: usize, value: u8) {
    let (at, shift) = place_of(index);
    let mask = 0x3f_u16 << shift;
    let [low, high] = (u16::from(value) << shift).to_le_bytes();
    let [low_mask, high_mask] = mask.to_le_bytes();
    bytes[at] = bytes[at] & !low_mask | low;
    if let Some(byte) = bytes.get_mut(at + 1) {
        *byte = *byte & !high_mask | high;
    }
}

/// Values of all registers.
pub(super) struct Registers(Box<[u8; REGISTERS]>);

impl Registers {
    pub(super) fn empty() -> Self {
        Self(Box::new([0; REGISTERS]))
    }

    /// Raises each register to that of a sketch, so that the members of both are counted.
    pub(super) fn merge(&mut self, bytes: &[u8]) -> Result<(), Corrupt> {
        if is_dense(bytes) {
            for (index, register) in self.0.iter_mut().enumerate() {
                *register = (*register).max(dense_register(bytes, index));
            }
            return Ok(());
        }
        let mut rest = &mut self.0[..];
        for (_, run) in runs(bytes) {
            let (these, others) = rest.split_at_mut_checked(run.registers).ok_or(Corrupt)?;
            these.iter_mut().for_each(|register| *register = (*register).max(run.value));
            rest = others;
        }
        if rest.is_empty() { Ok(()) } else { Err(Corrupt) }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u8> {
        self.0.iter().copied()
    }

    /// Estimates the number of members.
    pub(super) fn count(&self) -> u64 {
        const REGISTERS_F: f64 = REGISTERS as f64;
        /// 1 / (2 ln 2)
        const ALPHA: f64 = 0.721_347_520_444_481_7;
        let mut with = [0_u32; 64];
        self.0.iter().for_each(|rank| with[usize::from(*rank)] += 1);
        let with = with.map(f64::from);
        let mut z = REGISTERS_F * tau((REGISTERS_F - with[RANK_MAX]) / REGISTERS_F);
        for rank in (1..RANK_MAX).rev() {
            z = (z + with[rank]) * 0.5;
        }
        z += REGISTERS_F * sigma(with[0] / REGISTERS_F);
        (ALPHA * REGISTERS_F * REGISTERS_F / z).round() as u64
    }
}

/// Sum that corrects the estimate for registers of 0.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

/// Sum that corrects the estimate for registers with the maximum value.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if before == z {
            return z / 3.0;
        }
    }
}

pub(super) fn is_dense(bytes: &[u8]) -> bool {
    bytes[ENCODING_AT] == DENSE
}

/// Sketch that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sketch {
    bytes: Vec<u8>,
}

impl Sketch {
    pub(super) fn empty() -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[ENCODING_AT] = SPARSE;
        Run::write(&mut bytes, 0, LONG_ZEROS_MAX);
        Self { bytes }
    }

    /// Returns the sketch in these bytes, for which [`is_sketch`] is `true`.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn is_dense(&self) -> bool {
        is_dense(&self.bytes)
    }

    /// Marks the stored estimate as out of date.
    pub(super) fn mark_stale(&mut self) {
        self.bytes[STALE_AT] |= STALE;
    }

    /// Adds a member. Returns `true` if a register has changed.
    pub(super) fn add(&mut self, member: &[u8]) -> Result<bool, Corrupt> {
        let hash = hash(member);
        let index = hash as usize & (REGISTERS - 1);
        // The bit after the last one ends a run of zeros.
        let rest = hash >> INDEX_BITS | 1 << (64 - INDEX_BITS);
        self.raise(index, rest.trailing_zeros() as u8 + 1)
    }

    /// Raises all registers to the values of others.
    pub(super) fn raise_all(&mut self, registers: &Registers) -> Result<(), Corrupt> {
        for (index, value) in registers.0.iter().enumerate().filter(|(_, value)| **value > 0) {
            self.raise(index, *value)?;
        }
        Ok(())
    }

    /// Raises a register. Returns `true` if it was lower.
    fn raise(&mut self, index: usize, value: u8) -> Result<bool, Corrupt> {
        if self.is_dense() {
            let is_lower = dense_register(&self.bytes, index) < value;
            if is_lower {
                set_dense_register(&mut self.bytes, index, value);
            }
            return Ok(is_lower);
        }
        if value <= RUN_VALUE_MAX
            && let Some(is_changed) = self.raise_sparse(index, value)?
        {
            return Ok(is_changed);
        }
        self.densify()?;
        self.raise(index, value)
    }

    /// Raises a register of a sparse sketch; `None` if the sketch would be too large.
    fn raise_sparse(&mut self, index: usize, value: u8) -> Result<Option<bool>, Corrupt> {
        let (mut first, mut before) = (0, HEADER_BYTES);
        let (at, run) = runs(&self.bytes)
            .find(|(at, run)| {
                let is_here = index < first + run.registers;
                if !is_here {
                    first += run.registers;
                    before = *at;
                }
                is_here
            })
            .filter(|(at, run)| at + run.size <= self.bytes.len())
            .ok_or(Corrupt)?;
        if run.value >= value {
            return Ok(Some(false));
        }
        let mut parts = Vec::with_capacity(5);
        Run::write(&mut parts, run.value, index - first);
        Run::write(&mut parts, value, 1);
        Run::write(&mut parts, run.value, first + run.registers - 1 - index);
        if parts.len() > run.size && self.bytes.len() + parts.len() - run.size > SPARSE_BYTES_MAX {
            return Ok(None);
        }
        self.bytes.splice(at..at + run.size, parts);
        self.merge_runs(before);
        Ok(Some(true))
    }

    /// Merges equal runs, from one position on. Only a few are looked at, so that the bytes are those of Redis.
    fn merge_runs(&mut self, mut at: usize) {
        for _ in 0..MERGED_MAX {
            let Some(run) = Run::at(&self.bytes, at) else { return };
            let next = Run::at(&self.bytes, at + run.size);
            match next.filter(|next| run.value > 0 && next.value == run.value) {
                Some(next) if run.registers + next.registers <= RUN_MAX => {
                    let mut merged = Vec::new();
                    Run::write(&mut merged, run.value, run.registers + next.registers);
                    self.bytes.splice(at..at + 2, merged);
                }
                _ => at += run.size,
            }
        }
    }

    /// Makes the sketch dense.
    pub(super) fn densify(&mut self) -> Result<(), Corrupt> {
        if self.is_dense() {
            return Ok(());
        }
        let mut registers = Registers::empty();
        registers.merge(&self.bytes)?;
        self.bytes.resize(HEADER_BYTES, 0);
        self.bytes[ENCODING_AT] = DENSE;
        self.bytes.resize(DENSE_BYTES, 0);
        self.bytes[HEADER_BYTES..].fill(0);
        for (index, value) in registers.0.iter().enumerate() {
            set_dense_register(&mut self.bytes, index, *value);
        }
        Ok(())
    }
}

/// Checks that all registers keep their values, and that estimates are near enough. Returns what is wrong.
pub(super) fn self_test() -> Result<(), String> {
    let mut bytes = vec![0; DENSE_BYTES];
    let value_of = |index: usize, round: usize| ((index * 31 + round * 17) % (RANK_MAX + 1)) as u8;
    for round in 0..4 {
        (0..REGISTERS).for_each(|index| set_dense_register(&mut bytes, index, value_of(index, round)));
        if let Some(wrong) = (0..REGISTERS).find(|index| dense_register(&bytes, *index) != value_of(*index, round)) {
            return Err(format!("register {wrong} has another value than was set"));
        }
    }
    let mut sketch = Sketch::empty();
    for count in 1..=SELF_TEST_MEMBERS {
        sketch.add(&count.to_le_bytes()).map_err(|Corrupt| "the sketch is corrupt".to_owned())?;
        if count.is_power_of_two() {
            let mut registers = Registers::empty();
            registers.merge(&sketch.bytes).map_err(|Corrupt| "the sketch is corrupt".to_owned())?;
            let estimate = registers.count();
            // Of a few members, two may have one register.
            let error_max = (count as f64 * ERROR_MAX).ceil();
            if (estimate as f64 - count as f64).abs() > error_max {
                return Err(format!("the estimate of {count} members is {estimate}"));
            }
        }
    }
    Ok(())
}

/// Number of members of the self test: enough for a dense sketch.
const SELF_TEST_MEMBERS: u64 = 1 << 14;
/// Maximum relative error of its estimates: four times the standard error, 1.04 / sqrt(REGISTERS).
const ERROR_MAX: f64 = 0.0325;

/// Returns the hash of a member (MurmurHash64A by Austin Appleby, with the seed of Redis).
fn hash(member: &[u8]) -> u64 {
    const SEED: u64 = 0xadc8_3b19;
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = SEED ^ (member.len() as u64).wrapping_mul(FACTOR);
    let (words, rest) = member.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        hash ^= (word ^ word >> SHIFT).wrapping_mul(FACTOR);
        hash = hash.wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(FACTOR);
    hash ^ hash >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch_of(members: std::ops::Range<u32>) -> Sketch {
        let mut sketch = Sketch::empty();
        members.for_each(|member| assert!(sketch.add(member.to_string().as_bytes()).is_ok()));
        sketch
    }

    fn registers_of(sketch: &Sketch) -> Registers {
        let mut registers = Registers::empty();
        registers.merge(sketch.bytes()).expect("a valid sketch");
        registers
    }

    #[test]
    fn estimates_are_near_and_merging_counts_each_member_once() {
        for count in [0, 1, 10, 1000, 20_000, 200_000] {
            let estimate = registers_of(&sketch_of(0..count)).count();
            // The standard error is 0.81 %.
            assert!(estimate.abs_diff(u64::from(count)) <= u64::from(count) / 30, "{count}: {estimate}");
        }
        let mut both = registers_of(&sketch_of(0..1000));
        both.merge(sketch_of(500..1500).bytes()).expect("a valid sketch");
        assert!(both.count().abs_diff(1500) < 50);
    }

    #[test]
    fn a_sketch_becomes_dense_with_the_same_registers() {
        let sparse = sketch_of(0..800);
        assert!(!sparse.is_dense() && is_sketch(sparse.bytes()));
        let mut dense = sparse.clone();
        dense.densify().expect("a valid sketch");
        assert!(dense.is_dense() && is_sketch(dense.bytes()));
        assert_eq!(registers_of(&sparse).0, registers_of(&dense).0);
        let grown = sketch_of(0..5000);
        assert!(grown.is_dense());
        let mut registers = registers_of(&grown);
        registers.merge(sparse.bytes()).expect("a valid sketch");
        assert_eq!(registers.0, registers_of(&grown).0);
    }

    #[test]
    fn registers_that_are_not_complete_are_corrupt() {
        let sketch = sketch_of(0..100);
        for cut in [HEADER_BYTES, sketch.bytes().len() - 1] {
            let cut = &sketch.bytes()[..cut];
            assert!(is_sketch(cut));
            assert_eq!(Registers::empty().merge(cut), Err(Corrupt));
            assert_eq!(Sketch::of(cut).densify(), Err(Corrupt));
        }
        for more in [&[0][..], b"b"] {
            assert_eq!(Registers::empty().merge(&[sketch.bytes(), more].concat()), Err(Corrupt));
        }
        let cut_in_a_run = Sketch::of(&Sketch::empty().bytes()[..=HEADER_BYTES]);
        assert_eq!(cut_in_a_run.clone().add(b"member"), Err(Corrupt));
        assert!(!is_sketch(b"HYLL") && !is_sketch(&[0; 16]) && !is_sketch(&[&b"HYLL\x00"[..], &[0; 20]].concat()));
        assert!(!is_sketch(&[&b"HYLL\x02"[..], &[0; 20]].concat()));
    }

    proptest::proptest! {
        /// A sparse sketch is the dense one in another form, whatever the order of its changes was.
        #[test]
        fn sparse_and_dense_agree(changes in proptest::collection::vec((0..REGISTERS, 1..40_u8), 0..300)) {
            let (mut sparse, mut dense) = (Sketch::empty(), Sketch::empty());
            dense.densify().expect("a valid sketch");
            for (index, value) in changes {
                let index = index % 200;
                proptest::prop_assert_eq!(sparse.raise(index, value), dense.raise(index, value));
            }
            proptest::prop_assert_eq!(registers_of(&sparse).0, registers_of(&dense).0);
        }

        /// Bytes of any content do no harm.
        #[test]
        fn any_registers_are_valid_or_corrupt(runs in proptest::collection::vec(proptest::num::u8::ANY, 0..50)) {
            let mut bytes = Sketch::empty().bytes()[..HEADER_BYTES].to_vec();
            bytes.extend(runs);
            let mut sketch = Sketch::of(&bytes);
            let _ = sketch.add(b"member");
            let _ = Registers::empty().merge(sketch.bytes());
            let _ = sketch.densify();
        }
    }
}
