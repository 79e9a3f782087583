//! Patterns that are compared with a text together.

use std::ops::Range;

use super::Glob;

/// Number of words of a set's states.
const WORDS: usize = 4;
/// Number of bytes of a text after which patterns that match any rest are decided.
const CHECKED_BYTES: usize = 64;

type Word = u64;
type States = [Word; WORDS];

/// Set of patterns that are compared with a text in one pass. The time is proportional to the length of the text: it
/// depends neither on the number of the patterns nor on their tokens.
///
/// A pattern has a state for each number of its tokens that the text so far may match (the algorithm Shift-And,
/// extended by stars: a state before a star remains). All states are bits of a few words.
#[derive(Debug)]
pub struct GlobSet {
    /// States that each byte leads to, from the state before them.
    rows: Box<[States]>,
    /// First states of all patterns.
    first: States,
    /// States before stars.
    stay: States,
    /// Last states of the patterns that end with a star: with any rest, the text matches.
    settled: States,
    /// States of each pattern.
    spans: Box<[Range<usize>]>,
}

impl GlobSet {
    /// Maximum number of [states](Glob::states) of all patterns of a set.
    pub const STATES_MAX: usize = WORDS * Word::BITS as usize;

    /// Creates the set of these patterns. Returns `None` if they have too many states.
    pub fn new<'g>(globs: impl IntoIterator<Item = &'g Glob>) -> Option<Self> {
        let mut set = Self {
            rows: vec![[0; WORDS]; 256].into(),
            first: [0; WORDS],
            stay: [0; WORDS],
            settled: [0; WORDS],
            spans: Box::default(),
        };
        let mut spans = Vec::new();
        let mut begin = 0;
        // Tokens for any byte are in all rows.
        let mut any = [0; WORDS];
        for glob in globs {
            let span = begin..begin + glob.states();
            begin = span.end;
            if begin > Self::STATES_MAX {
                return None;
            }
            add(&mut set.first, span.start);
            glob.stars.iter().for_each(|star| add(&mut set.stay, span.start + *star as usize));
            if has(&set.stay, span.end - 1) {
                add(&mut set.settled, span.end - 1);
            }
            for (token, state) in glob.tokens.iter().zip(span.start + 1..) {
                match (token.byte(), token.class()) {
                    (Some(byte), _) => add(&mut set.rows[usize::from(byte)], state),
                    (None, Some(class)) => {
                        glob.classes[class].bytes().for_each(|byte| add(&mut set.rows[usize::from(byte)], state));
                    }
                    (None, None) => add(&mut any, state),
                }
            }
            spans.push(span);
        }
        for row in set.rows.iter_mut() {
            row.iter_mut().zip(&any).for_each(|(word, any)| *word |= any);
        }
        set.spans = spans.into();
        Some(set)
    }

    /// Calls `found` with the number of each pattern that matches the text, as [`Glob::matches`] does. Returns the
    /// number of bytes of the text that were read.
    pub fn find(&self, text: &[u8], mut found: impl FnMut(usize)) -> usize {
        if text.is_empty() {
            // As in Redis, not even a star matches an empty text.
            let is_empty = |span: &Range<usize>| span.len() == 1 && !has(&self.stay, span.start);
            self.spans.iter().enumerate().filter(|(_, span)| is_empty(span)).for_each(|(number, _)| found(number));
            return 0;
        }
        let mut states = self.first;
        let mut read = 0;
        for chunk in text.chunks(CHECKED_BYTES) {
            for byte in chunk {
                states = self.next(&states, *byte);
            }
            read += chunk.len();
            let is_settled = states.iter().zip(&self.settled).any(|(states, settled)| states & settled != 0);
            if is_settled {
                for (number, span) in self.spans.iter().enumerate() {
                    let last = span.end - 1;
                    if has(&self.settled, last) && has(&states, last) {
                        found(number);
                        span.clone().for_each(|state| remove(&mut states, state));
                    }
                }
            }
            if states == [0; WORDS] {
                return read;
            }
        }
        for (number, span) in self.spans.iter().enumerate() {
            if has(&states, span.end - 1) {
                found(number);
            }
        }
        read
    }

    #[inline]
    fn next(&self, states: &States, byte: u8) -> States {
        let row = &self.rows[usize::from(byte)];
        let mut carry = 0;
        std::array::from_fn(|word| {
            let before = states[word];
            // No token leads to the first state of a pattern, so the last one of the pattern before does not either.
            let next = (before << 1 | carry) & row[word] | before & self.stay[word];
            carry = before >> (Word::BITS - 1);
            next
        })
    }
}

fn bit(state: usize) -> (usize, Word) {
    let bits = Word::BITS as usize;
    (state / bits, 1 << (state % bits))
}

fn has(states: &States, state: usize) -> bool {
    let (word, bit) = bit(state);
    states[word] & bit != 0
}

fn add(states: &mut States, state: usize) {
    let (word, bit) = bit(state);
    states[word] |= bit;
}

fn remove(states: &mut States, state: usize) {
    let (word, bit) = bit(state);
    states[word] &= !bit;
}
