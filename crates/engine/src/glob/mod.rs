//! Glob patterns, as Redis reads them.
//!
//! A text is compared with a pattern in time proportional to the length of the text times one for each 64 tokens of the
//! pattern, for every pattern: patterns and texts come from clients, and a thread that compares them serves others.

mod set;

use std::collections::BTreeMap;
use std::ops::Range;

use memchr::memchr;
use smallvec::{SmallVec, smallvec};

pub use set::GlobSet;

/// Maximum product of both lengths for which a pattern that is used once is not compiled.
const SMALL: usize = 1 << 14;
/// Maximum number of tokens of a segment that is always compared token by token.
const SHORT: usize = 8;
/// Number of compared tokens that cost about as much as building [`Masks`] does.
const MASKS_COST: usize = 1 << 16;

/// Returns `true` if the text matches a glob pattern: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a literal character.
/// For many texts use a [`Matcher`], or a [`Glob`] that is kept.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if pattern.len().saturating_mul(text.len()) <= SMALL {
        matches_directly(pattern, text)
    } else {
        Glob::new(pattern).matches(text)
    }
}

/// Compares a pattern that is not compiled. The time is at most proportional to the product of both lengths.
fn matches_directly(pattern: &[u8], text: &[u8]) -> bool {
    // Redis does not read the pattern if the text is empty: not even a star matches it.
    if text.is_empty() {
        return pattern.is_empty();
    }
    // Position after the last star, and the text that it has taken so far. A later star makes everything before it
    // final.
    let mut at = 0;
    let mut of = 0;
    let mut star: Option<(usize, usize)> = None;
    loop {
        if of < pattern.len() && pattern[of] == b'*' {
            star = Some((of + 1, at));
            of += 1;
            continue;
        }
        if at == text.len() {
            return of == pattern.len();
        }
        match match_one(&pattern[of..], text[at]) {
            Some(length) => {
                of += length;
                at += 1;
            }
            None => match star {
                Some((after, taken)) => {
                    star = Some((after, taken + 1));
                    of = after;
                    at = taken + 1;
                }
                None => return false,
            },
        }
    }
}

/// Returns the start of a pattern that stands for itself: each text that matches begins with it.
pub fn literal_start(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    &pattern[..end.unwrap_or(pattern.len())]
}

/// Returns `true` if the last token of a pattern is a star: with each text, it matches all that begin with it.
pub fn ends_with_star(pattern: &[u8]) -> bool {
    let mut at = 0;
    let mut has_star = false;
    while let Some(rest) = pattern.get(at..).filter(|rest| !rest.is_empty()) {
        has_star = rest[0] == b'*';
        at += token_bytes(rest);
    }
    has_star
}

/// Returns the length of the first token of a pattern that is not empty.
fn token_bytes(pattern: &[u8]) -> usize {
    match pattern {
        [b'[', class @ ..] => 1 + read_class(class, |_, _| ()).0,
        [b'\\', _, ..] => 2,
        _ => 1,
    }
}

/// Returns the length of the part of the pattern that matches the byte; `None` if it does not match.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let mut is_in = false;
            let (length, is_negated) = read_class(class, |from, to| is_in |= (from..=to).contains(&byte));
            (is_in != is_negated).then_some(length + 1)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// Calls `each` with the first and the last byte of each range of a class. Returns the length of the class, and `true`
/// if it is negated. A class without an end reaches to the end of the pattern.
fn read_class(class: &[u8], mut each: impl FnMut(u8, u8)) -> (usize, bool) {
    let is_negated = class.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    loop {
        match class.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                each(*escaped, *escaped);
                at += 2;
            }
            [from, b'-', to, ..] => {
                each(*from.min(to), *from.max(to));
                at += 3;
            }
            [one, ..] => {
                each(*one, *one);
                at += 1;
            }
        }
    }
    (at, is_negated)
}

/// Compiled pattern, to compare it with several texts.
#[derive(Debug)]
pub struct Glob {
    pattern: Box<[u8]>,
    /// All tokens but the stars.
    tokens: Box<[Token]>,
    /// Classes of the tokens, each once.
    classes: Box<[Class]>,
    /// Ends of the segments before the stars, in `tokens`. Several stars in a row are one.
    stars: Box<[u32]>,
}

/// Token that matches one byte: a number below 256 is this byte, [`Token::ANY`] any byte, and a larger number a class.
#[derive(Clone, Copy, Debug)]
struct Token(u32);

impl Token {
    const ANY: Self = Self(256);

    fn of_byte(byte: u8) -> Self {
        Self(u32::from(byte))
    }

    fn of_class(number: usize) -> Self {
        Self(257 + number as u32)
    }

    fn byte(self) -> Option<u8> {
        u8::try_from(self.0).ok()
    }

    /// Returns the number of the class of a token that is neither a byte nor any byte.
    fn class(self) -> Option<usize> {
        self.0.checked_sub(257).map(|number| number as usize)
    }
}

/// Set of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Class([u64; 4]);

impl Class {
    /// Parses the part of a pattern after `[`. Returns its length, too.
    fn parse(class: &[u8]) -> (usize, Self) {
        let mut set = Self([0; 4]);
        let (length, is_negated) = read_class(class, |from, to| (from..=to).for_each(|byte| set.insert(byte)));
        if is_negated {
            set = Self(set.0.map(|word| !word));
        }
        (length, set)
    }

    /// Returns the token for a class of one byte or of all.
    fn token(&self) -> Option<Token> {
        match self.0.iter().map(|word| word.count_ones()).sum() {
            1 => self.bytes().next().map(Token::of_byte),
            256 => Some(Token::ANY),
            _ => None,
        }
    }

    fn insert(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn contains(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(|byte| self.contains(*byte))
    }
}

impl Glob {
    pub fn new(pattern: &[u8]) -> Self {
        let mut tokens = Vec::new();
        let mut stars = Vec::new();
        let mut classes = Vec::new();
        let mut known: BTreeMap<Class, Token> = BTreeMap::new();
        let mut at = 0;
        let mut is_after_star = false;
        while let Some(rest) = pattern.get(at..).filter(|rest| !rest.is_empty()) {
            let is_star = rest[0] == b'*';
            match rest {
                [b'*', ..] if is_after_star => {}
                [b'*', ..] => stars.push(tokens.len() as u32),
                [b'?', ..] => tokens.push(Token::ANY),
                [b'[', class @ ..] => {
                    let (length, class) = Class::parse(class);
                    tokens.push(class.token().unwrap_or_else(|| {
                        *known.entry(class).or_insert_with(|| {
                            classes.push(class);
                            Token::of_class(classes.len() - 1)
                        })
                    }));
                    at += length;
                }
                [b'\\', escaped, ..] => {
                    tokens.push(Token::of_byte(*escaped));
                    at += 1;
                }
                [plain, ..] => tokens.push(Token::of_byte(*plain)),
                [] => {}
            }
            is_after_star = is_star;
            at += 1;
        }
        Self { pattern: pattern.into(), tokens: tokens.into(), classes: classes.into(), stars: stars.into() }
    }

    /// Returns the text of the pattern.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    /// Returns the number of tokens other than stars.
    pub fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of stars, where several in a row are one. With at most one, each token has one place in a
    /// text.
    pub fn stars(&self) -> usize {
        self.stars.len()
    }

    /// Returns the number of states that the pattern has in a [`GlobSet`].
    pub fn states(&self) -> usize {
        self.tokens.len() + 1
    }

    /// Returns `true` if exactly the texts that begin with [`literal_start`], and are not empty, match.
    pub fn is_prefix(&self) -> bool {
        let count = self.tokens.len();
        *self.stars == [count as u32] && literal_start(&self.pattern).len() == count
    }

    /// Returns `true` if the text matches, as [`matches()`] does.
    pub fn matches(&self, text: &[u8]) -> bool {
        self.run(text, &mut Search::default())
    }

    fn run(&self, text: &[u8], search: &mut Search) -> bool {
        // Redis does not read the pattern if the text is empty: not even a star matches it.
        if text.is_empty() {
            return self.pattern.is_empty();
        }
        let count = self.tokens.len();
        let (Some(first), Some(last)) = (self.stars.first(), self.stars.last()) else {
            return text.len() == count && self.is_at(0..count, text);
        };
        // The segments before the first star and after the last one have only one place.
        let (first, last) = (*first as usize, *last as usize);
        if text.len() < count
            || !self.is_at(0..first, text)
            || !self.is_at(last..count, &text[text.len() - count + last..])
        {
            return false;
        }
        // The first occurrence of each other segment leaves most of the text to those after it.
        let mut rest = &text[first..text.len() - (count - last)];
        search.begin(text.len());
        let is_found = self.stars.windows(2).all(|ends| {
            let end = search.find(self, ends[0] as usize..ends[1] as usize, rest);
            rest = end.and_then(|end| rest.get(end..)).unwrap_or_default();
            end.is_some()
        });
        search.end();
        is_found
    }

    fn takes(&self, token: Token, byte: u8) -> bool {
        match token.class() {
            Some(number) => self.classes[number].contains(byte),
            None => token.0 == u32::from(byte) || token.0 == Token::ANY.0,
        }
    }

    /// Returns the number of tokens that match the beginning of the text, up to the first one that does not.
    fn common(&self, tokens: Range<usize>, text: &[u8]) -> usize {
        self.tokens[tokens].iter().zip(text).take_while(|(token, byte)| self.takes(**token, **byte)).count()
    }

    /// Returns `true` if these tokens match the beginning of a text that is not shorter.
    fn is_at(&self, tokens: Range<usize>, text: &[u8]) -> bool {
        self.common(tokens.clone(), text) == tokens.len()
    }
}

/// Compiled pattern that one caller compares with many texts. It keeps the masks of the pattern, up to 2 KiB for each
/// 64 tokens, once the compared texts are worth them.
#[derive(Debug)]
pub struct Matcher {
    glob: Glob,
    search: Search,
}

impl Matcher {
    pub fn new(pattern: &[u8]) -> Self {
        Self { glob: Glob::new(pattern), search: Search::default() }
    }

    /// Returns `true` if the text matches, as [`matches()`] does.
    pub fn matches(&mut self, text: &[u8]) -> bool {
        self.glob.run(text, &mut self.search)
    }
}

/// Search of segments in texts: token by token as long as this is cheap, then with masks. Most texts differ from a
/// segment in its first tokens.
#[derive(Debug)]
struct Search {
    /// Number of tokens that may be compared in this text.
    left: usize,
    /// Number of compared tokens, beyond those that each text may cost, until masks are built.
    credit: usize,
    masks: Option<Masks>,
}

impl Default for Search {
    fn default() -> Self {
        Self { left: 0, credit: MASKS_COST, masks: None }
    }
}

impl Search {
    fn begin(&mut self, text_bytes: usize) {
        self.left = 2 * text_bytes + self.credit;
    }

    fn end(&mut self) {
        self.credit = self.credit.min(self.left);
    }

    /// Returns the end of the first occurrence of a segment that is not empty.
    fn find(&mut self, glob: &Glob, segment: Range<usize>, text: &[u8]) -> Option<usize> {
        let length = segment.len();
        let first = glob.tokens[segment.start].byte();
        let last_start = text.len().checked_sub(length)?;
        let mut at = 0;
        while at <= last_start {
            if let Some(byte) = first {
                at += memchr(byte, &text[at..=last_start])?;
            }
            let rest = &text[at..];
            if self.left == 0 && length > SHORT {
                let masks = self.masks.get_or_insert_with(|| Masks::new(glob));
                return masks.find(segment, rest).map(|end| at + end);
            }
            let common = glob.common(segment.clone(), rest);
            if common == length {
                return Some(at + length);
            }
            self.left = self.left.saturating_sub(common + 1);
            at += 1;
        }
        None
    }
}

/// Tokens that match each byte: a row of words for each byte, with a bit for each token.
#[derive(Debug)]
struct Masks {
    /// Number of words in a row.
    words: usize,
    rows: Box<[u64]>,
}

impl Masks {
    fn new(glob: &Glob) -> Self {
        let words = glob.tokens.len().div_ceil(64);
        // What matches any byte is in all rows.
        let mut any = vec![0; words];
        let at = |token: usize| (token / 64, 1u64 << (token % 64));
        for (number, token) in glob.tokens.iter().enumerate() {
            if token.0 == Token::ANY.0 {
                let (word, bit) = at(number);
                any[word] |= bit;
            }
        }
        let mut rows = any.repeat(256);
        for (number, token) in glob.tokens.iter().enumerate() {
            let (word, bit) = at(number);
            let mut set = |byte: u8| rows[usize::from(byte) * words + word] |= bit;
            match (token.byte(), token.class()) {
                (Some(byte), _) => set(byte),
                (None, Some(class)) => glob.classes[class].bytes().for_each(set),
                (None, None) => {}
            }
        }
        Self { words, rows: rows.into() }
    }

    /// Returns the end of the first occurrence of a segment that is not empty (the algorithm Shift-And): after each
    /// byte of the text, a bit is set for each token with which a part of the text that ends here may end.
    fn find(&self, segment: Range<usize>, text: &[u8]) -> Option<usize> {
        let last = segment.end - 1;
        let words = segment.start / 64..last / 64 + 1;
        let first_bit = 1u64 << (segment.start % 64);
        let last_bit = 1u64 << (last % 64);
        let mut state: SmallVec<[u64; 16]> = smallvec![0; words.len()];
        for (at, byte) in text.iter().enumerate() {
            let row = usize::from(*byte) * self.words;
            let row = &self.rows[row + words.start..row + words.end];
            let mut carry = first_bit;
            for (word, mask) in state.iter_mut().zip(row) {
                let next = (*word << 1 | carry) & mask;
                carry = *word >> 63;
                *word = next;
            }
            if state.last().is_some_and(|word| word & last_bit != 0) {
                return Some(at + 1);
            }
        }
        None
    }
}
