//! Patterns of Lua 5.1, with the results and errors of `match` in its `lstrlib.c`. That function runs in C and cannot
//! be interrupted; this matcher counts its steps, and checks every few thousand of them whether the script must end.
//!
//! A pattern is read once into items. An error of a pattern is an item, too, since Lua finds it only when a match
//! reaches it. An item that can match in several ways pushes a choice on a stack, and a failure returns to the last
//! choice. Choices on the stack belong to different items, so the stack is never longer than the pattern.

use std::ops::Range;

/// Steps between two checks of whether the script must end: less than a millisecond.
const CHECK_STEPS: usize = 1 << 14;
/// Bytes that are compared in one step, if nothing but a comparison happens.
const STEP_BYTES: usize = 16;
/// Maximum number of captures (`LUA_MAXCAPTURES`).
const CAPTURES_MAX: usize = 32;

/// Length of a capture that is open.
const OPEN: usize = usize::MAX;
/// Length of a capture that is a position.
const POSITION: usize = usize::MAX - 1;

/// Reason why a match ends without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The pattern is wrong: a message of Lua's.
    Wrong(&'static str),
    /// The script must end, for this reason.
    Ended(&'static str),
}

/// Part of a text that a capture is, or a position, which begins with 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Captured {
    Part(Range<usize>),
    Position(usize),
}

/// Bytes that an item matches.
#[derive(Clone, Copy)]
enum Class {
    Any,
    Byte(u8),
    /// Index of a set.
    Set(u32),
}

/// How often a class is matched.
#[derive(Clone, Copy)]
enum Times {
    One,
    /// `?`
    MayBe,
    /// `*`
    Most,
    /// `+`
    MostOfOne,
    /// `-`
    Least,
}

#[derive(Clone, Copy)]
enum Item {
    Single(Class, Times),
    /// `(`
    Begin,
    /// `()`
    Here,
    /// `)`
    Close,
    /// `%b`
    Balance(u8, u8),
    /// `%f`, with the index of a set.
    Frontier(u32),
    /// `%1`
    Back(u8),
    /// `$`
    AtEnd,
    End,
    Wrong(&'static str),
}

/// Choice that a failure returns to. Numbers of items are those to continue with.
#[derive(Clone, Copy)]
enum Choice {
    /// Forgets the last capture.
    Begun,
    /// Opens a capture again.
    Closed(u8),
    /// Continues here.
    Else { at: usize, item: u32 },
    /// Continues one byte earlier, down to `min`.
    Less { at: usize, min: usize, item: u32 },
    /// Matches the class once more, of the item before this one.
    More { at: usize, item: u32, class: Class },
}

/// A set of bytes.
#[derive(Clone, Copy, Default)]
struct Set([u64; 4]);

impl Set {
    fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }

    fn add(&mut self, byte: u8) {
        self.0[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }

    fn add_range(&mut self, first: u8, last: u8) {
        for (number, word) in self.0.iter_mut().enumerate() {
            let base = number as u32 * 64;
            let low = u32::from(first).max(base);
            let high = u32::from(last).min(base + 63);
            if low <= high {
                *word |= u64::MAX >> (63 - (high - low)) << (low - base);
            }
        }
    }

    fn add_all(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    fn inverted(self) -> Self {
        Self(self.0.map(|word| !word))
    }

    /// Creates the set of a letter after `%` (`match_class`); any other byte stands for itself.
    fn class(letter: u8) -> Self {
        let mut set = Self::default();
        match letter.to_ascii_lowercase() {
            b'a' => {
                set.add_range(b'A', b'Z');
                set.add_range(b'a', b'z');
            }
            b'c' => {
                set.add_range(0, 31);
                set.add(127);
            }
            b'd' => set.add_range(b'0', b'9'),
            b'l' => set.add_range(b'a', b'z'),
            b'p' => {
                set.add_range(b'!', b'/');
                set.add_range(b':', b'@');
                set.add_range(b'[', b'`');
                set.add_range(b'{', b'~');
            }
            b's' => {
                set.add_range(b'\t', b'\r');
                set.add(b' ');
            }
            b'u' => set.add_range(b'A', b'Z'),
            b'w' => {
                set.add_range(b'0', b'9');
                set.add_range(b'A', b'Z');
                set.add_range(b'a', b'z');
            }
            b'x' => {
                set.add_range(b'0', b'9');
                set.add_range(b'A', b'F');
                set.add_range(b'a', b'f');
            }
            b'z' => set.add(0),
            _ => {
                set.add(letter);
                return set;
            }
        }
        if letter.is_ascii_uppercase() { set.inverted() } else { set }
    }

    /// Creates the set of what is in brackets (`matchbracketclass`), with the first bracket.
    fn brackets(text: &[u8]) -> Self {
        let mut set = Self::default();
        let is_inverted = text.get(1) == Some(&b'^');
        let mut rest = &text[1 + usize::from(is_inverted)..];
        loop {
            rest = match rest {
                [] => break,
                [b'%', letter, after @ ..] => {
                    set.add_all(Self::class(*letter));
                    after
                }
                // The end of a range has taken the sign that escapes this one, so Lua reads the closing bracket.
                [b'%'] => {
                    set.add(b']');
                    break;
                }
                [first, b'-', last, after @ ..] => {
                    set.add_range(*first, *last);
                    after
                }
                [byte, after @ ..] => {
                    set.add(*byte);
                    after
                }
            };
        }
        if is_inverted { set.inverted() } else { set }
    }
}

/// A pattern, and what a match of it needs. The next pattern uses its memory again.
#[derive(Default)]
pub(super) struct Pattern {
    source: Vec<u8>,
    reads_anchor: bool,
    is_anchored: bool,
    items: Vec<Item>,
    sets: Vec<Set>,
    choices: Vec<Choice>,
    /// Begin and length of each capture.
    captures: [(usize, usize); CAPTURES_MAX],
    captures_count: usize,
    /// Steps since the last check, also of earlier matches.
    steps: usize,
}

/// Returns the position after the class that begins at `at` (`classend`).
fn class_end(text: &[u8], at: usize) -> Result<usize, &'static str> {
    let byte = |at: usize| text.get(at).copied();
    match text[at] {
        b'%' => byte(at + 1).map(|_| at + 2).ok_or("malformed pattern (ends with '%')"),
        b'[' => {
            let mut at = at + 1;
            if byte(at) == Some(b'^') {
                at += 1;
            }
            // A bracket that is first does not close.
            loop {
                let first = byte(at).ok_or("malformed pattern (missing ']')")?;
                at += 1;
                if first == b'%' && byte(at).is_some() {
                    at += 1;
                }
                if byte(at) == Some(b']') {
                    return Ok(at + 1);
                }
            }
        }
        _ => Ok(at + 1),
    }
}

fn has(sets: &[Set], class: Class, byte: u8) -> bool {
    match class {
        Class::Any => true,
        Class::Byte(wanted) => byte == wanted,
        Class::Set(set) => sets[set as usize].has(byte),
    }
}

impl Pattern {
    /// Reads a pattern, unless it is the last one. As in Lua, a pattern ends before a byte of zero. If `reads_anchor`,
    /// a first `^` is an anchor: a match begins where the search does. In `string.gmatch` it is a byte as others.
    pub(super) fn read(&mut self, source: &[u8], reads_anchor: bool) {
        let source = source.split(|byte| *byte == 0).next().unwrap_or_default();
        if self.source == source && self.reads_anchor == reads_anchor && !self.items.is_empty() {
            return;
        }
        self.source.clear();
        self.source.extend_from_slice(source);
        self.reads_anchor = reads_anchor;
        self.is_anchored = reads_anchor && source.first() == Some(&b'^');
        self.items.clear();
        self.sets.clear();
        self.steps += source.len();
        if let Err(why) = self.read_items(&source[usize::from(self.is_anchored)..]) {
            self.items.push(Item::Wrong(why));
        }
    }

    pub(super) fn is_anchored(&self) -> bool {
        self.is_anchored
    }

    /// Returns the number of items that can match in as many ways as the text has bytes, or that read it from each
    /// position: the time of a search grows with this power of the length of the text.
    pub(super) fn exponent(&self) -> usize {
        let is_long = |item: &&Item| match item {
            Item::Single(_, times) => !matches!(times, Times::One),
            Item::Balance(..) | Item::Back(_) => true,
            _ => false,
        };
        self.items.iter().filter(is_long).count() + usize::from(!self.is_anchored)
    }

    fn add_set(&mut self, set: Set) -> u32 {
        self.sets.push(set);
        self.sets.len() as u32 - 1
    }

    /// Reads the items of a pattern up to its end, or to the first that is wrong.
    fn read_items(&mut self, text: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        loop {
            let (item, next) = match text[at..] {
                [] => {
                    self.items.push(Item::End);
                    return Ok(());
                }
                [b'(', b')', ..] => (Item::Here, at + 2),
                [b'(', ..] => (Item::Begin, at + 1),
                [b')', ..] => (Item::Close, at + 1),
                [b'$'] => (Item::AtEnd, at + 1),
                [b'%', b'b', first, last, ..] => (Item::Balance(first, last), at + 4),
                [b'%', b'b', ..] => return Err("unbalanced pattern"),
                [b'%', b'f', b'[', ..] => {
                    let end = class_end(text, at + 2)?;
                    let set = self.add_set(Set::brackets(&text[at + 2..end - 1]));
                    (Item::Frontier(set), end)
                }
                [b'%', b'f', ..] => return Err("missing '[' after '%f' in pattern"),
                [b'%', digit @ b'0'..=b'9', ..] => (Item::Back(digit), at + 2),
                _ => {
                    let end = class_end(text, at)?;
                    let class = match text[at..end] {
                        [b'.'] => Class::Any,
                        [byte] => Class::Byte(byte),
                        [b'%', byte] if !byte.is_ascii_alphabetic() => Class::Byte(byte),
                        [b'%', letter] => Class::Set(self.add_set(Set::class(letter))),
                        _ => Class::Set(self.add_set(Set::brackets(&text[at..end - 1]))),
                    };
                    let times = match text.get(end) {
                        Some(b'?') => Times::MayBe,
                        Some(b'*') => Times::Most,
                        Some(b'+') => Times::MostOfOne,
                        Some(b'-') => Times::Least,
                        _ => Times::One,
                    };
                    (Item::Single(class, times), end + usize::from(!matches!(times, Times::One)))
                }
            };
            self.items.push(item);
            at = next;
        }
    }

    /// Returns how many of the first bytes a class matches.
    fn run_of(&self, class: Class, text: &[u8]) -> usize {
        let end = match class {
            Class::Any => None,
            Class::Byte(wanted) => text.iter().position(|byte| *byte != wanted),
            Class::Set(set) => {
                let set = self.sets[set as usize];
                text.iter().position(|byte| !set.has(*byte))
            }
        };
        end.unwrap_or(text.len())
    }

    /// Counts steps. Returns why the script must end, if it must.
    #[inline]
    fn count(&mut self, steps: usize, ended_by: &impl Fn() -> Option<&'static str>) -> Result<(), Stop> {
        self.steps += steps;
        if self.steps < CHECK_STEPS {
            return Ok(());
        }
        self.steps = 0;
        ended_by().map_or(Ok(()), |why| Err(Stop::Ended(why)))
    }

    /// Returns the first match that begins at `from` or later; if the pattern has an anchor, only one at `from`.
    pub(super) fn find(
        &mut self,
        text: &[u8],
        from: usize,
        ended_by: &impl Fn() -> Option<&'static str>,
    ) -> Result<Option<Range<usize>>, Stop> {
        let mut start = from;
        loop {
            if !self.is_anchored
                && let Item::Single(class, Times::One | Times::MostOfOne) = self.items[0]
            {
                let rest = &text[start..];
                let found = match class {
                    Class::Any => (!rest.is_empty()).then_some(0),
                    Class::Byte(wanted) => rest.iter().position(|byte| *byte == wanted),
                    Class::Set(set) => {
                        let set = self.sets[set as usize];
                        rest.iter().position(|byte| set.has(*byte))
                    }
                };
                self.count(found.unwrap_or(rest.len()) / STEP_BYTES, ended_by)?;
                match found {
                    Some(skipped) => start += skipped,
                    None => return Ok(None),
                }
            }
            if let Some(end) = self.match_at(text, start, ended_by)? {
                return Ok(Some(start..end));
            }
            if self.is_anchored || start >= text.len() {
                return Ok(None);
            }
            start += 1;
        }
    }

    /// Returns the end of the match that begins at `start`.
    fn match_at(
        &mut self,
        text: &[u8],
        start: usize,
        ended_by: &impl Fn() -> Option<&'static str>,
    ) -> Result<Option<usize>, Stop> {
        self.choices.clear();
        self.captures_count = 0;
        let (mut at, mut number) = (start, 0);
        loop {
            self.count(1, ended_by)?;
            match self.step(text, &mut at, number)? {
                Step::Next(cost) => {
                    number += 1;
                    self.steps += cost / STEP_BYTES;
                }
                Step::Done => return Ok(Some(at)),
                Step::Fail(cost) => {
                    self.steps += cost / STEP_BYTES;
                    match self.back(text) {
                        Some((there, item)) => (at, number) = (there, item),
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Matches one item.
    #[inline]
    fn step(&mut self, text: &[u8], at: &mut usize, number: u32) -> Result<Step, Stop> {
        let rest = &text[*at..];
        match self.items[number as usize] {
            Item::Single(class, times) => {
                let is_match = rest.first().is_some_and(|byte| has(&self.sets, class, *byte));
                match times {
                    Times::One if !is_match => return Ok(Step::Fail(0)),
                    Times::One => *at += 1,
                    Times::MayBe if is_match => {
                        self.choices.push(Choice::Else { at: *at, item: number + 1 });
                        *at += 1;
                    }
                    Times::MayBe => {}
                    Times::MostOfOne if !is_match => return Ok(Step::Fail(0)),
                    Times::Most | Times::MostOfOne => {
                        let count = self.run_of(class, rest);
                        let min = *at + usize::from(matches!(times, Times::MostOfOne));
                        *at += count;
                        if *at > min {
                            self.choices.push(Choice::Less { at: *at, min, item: number + 1 });
                        }
                        return Ok(Step::Next(count));
                    }
                    Times::Least => self.choices.push(Choice::More { at: *at, item: number + 1, class }),
                }
            }
            Item::Begin => self.begin(*at, OPEN)?,
            Item::Here => self.begin(*at, POSITION)?,
            Item::Close => {
                let open = self.captures[..self.captures_count].iter().rposition(|(_, len)| *len == OPEN);
                let open = open.ok_or(Stop::Wrong("invalid pattern capture"))?;
                self.captures[open].1 = *at - self.captures[open].0;
                self.choices.push(Choice::Closed(open as u8));
            }
            Item::Balance(first, last) => {
                let (end, cost) = balanced(rest, first, last);
                let Some(end) = end else {
                    return Ok(Step::Fail(cost));
                };
                *at += end;
                return Ok(Step::Next(cost));
            }
            Item::Frontier(set) => {
                let set = self.sets[set as usize];
                let before = at.checked_sub(1).map_or(0, |at| text[at]);
                if set.has(before) || !set.has(rest.first().copied().unwrap_or(0)) {
                    return Ok(Step::Fail(0));
                }
            }
            Item::Back(digit) => {
                let index = usize::from(digit).checked_sub(usize::from(b'1'));
                let capture = index.and_then(|index| self.captures[..self.captures_count].get(index));
                let (from, len) = *capture.filter(|(_, len)| *len != OPEN).ok_or(Stop::Wrong(CAPTURE_INDEX))?;
                // A position is longer than any text.
                if len > rest.len() {
                    return Ok(Step::Fail(0));
                }
                if text[from..from + len] != rest[..len] {
                    return Ok(Step::Fail(len));
                }
                *at += len;
                return Ok(Step::Next(len));
            }
            Item::AtEnd if !rest.is_empty() => return Ok(Step::Fail(0)),
            Item::AtEnd => {}
            Item::End => return Ok(Step::Done),
            Item::Wrong(why) => return Err(Stop::Wrong(why)),
        }
        Ok(Step::Next(0))
    }

    fn begin(&mut self, at: usize, len: usize) -> Result<(), Stop> {
        let slot = self.captures.get_mut(self.captures_count).ok_or(Stop::Wrong("too many captures"))?;
        *slot = (at, len);
        self.captures_count += 1;
        self.choices.push(Choice::Begun);
        Ok(())
    }

    /// Returns to the last choice: where in the text and with which item the match continues.
    #[inline]
    fn back(&mut self, text: &[u8]) -> Option<(usize, u32)> {
        while let Some(choice) = self.choices.last_mut() {
            match choice {
                Choice::Begun => self.captures_count -= 1,
                Choice::Closed(capture) => self.captures[usize::from(*capture)].1 = OPEN,
                Choice::Else { at, item } => {
                    let there = (*at, *item);
                    self.choices.pop();
                    return Some(there);
                }
                Choice::Less { at, min, item } => {
                    *at -= 1;
                    let (there, is_last) = ((*at, *item), at == min);
                    if is_last {
                        self.choices.pop();
                    }
                    return Some(there);
                }
                Choice::More { at, item, class } => {
                    if let Some(byte) = text.get(*at)
                        && has(&self.sets, *class, *byte)
                    {
                        *at += 1;
                        return Some((*at, *item));
                    }
                }
            }
            self.choices.pop();
        }
        None
    }

    /// Returns the number of captures of the last match.
    pub(super) fn captures_count(&self) -> usize {
        self.captures_count
    }

    /// Returns a capture of the last match (`push_onecapture`). If there is none, the first is the match.
    pub(super) fn capture(&self, index: usize, whole: &Range<usize>) -> Result<Captured, Stop> {
        match self.captures[..self.captures_count].get(index) {
            None if index == 0 => Ok(Captured::Part(whole.clone())),
            None => Err(Stop::Wrong(CAPTURE_INDEX)),
            Some((_, OPEN)) => Err(Stop::Wrong("unfinished capture")),
            Some((from, POSITION)) => Ok(Captured::Position(from + 1)),
            Some((from, len)) => Ok(Captured::Part(*from..from + len)),
        }
    }
}

const CAPTURE_INDEX: &str = "invalid capture index";

/// Result of an item, with the number of bytes that were compared in addition to it.
enum Step {
    Next(usize),
    Fail(usize),
    Done,
}

/// Returns the end of the balanced part that begins a text (`matchbalance`), and how many bytes were read.
fn balanced(text: &[u8], first: u8, last: u8) -> (Option<usize>, usize) {
    if text.first() != Some(&first) {
        return (None, 0);
    }
    let mut depth = 1;
    for (at, byte) in text.iter().enumerate().skip(1) {
        if *byte == last {
            depth -= 1;
            if depth == 0 {
                return (Some(at + 1), at);
            }
        } else if *byte == first {
            depth += 1;
        }
    }
    (None, text.len())
}

/// Returns the position of a text in another one from `from` on (`lmemfind`).
pub(super) fn find_plain(
    text: &[u8],
    wanted: &[u8],
    from: usize,
    ended_by: &impl Fn() -> Option<&'static str>,
) -> Result<Option<usize>, Stop> {
    let Some((first, others)) = wanted.split_first() else {
        return Ok(Some(from));
    };
    let mut at = from;
    let mut steps = 0;
    while let Some(rest) = text.get(at..).filter(|rest| rest.len() >= wanted.len()) {
        let starts = &rest[..=rest.len() - wanted.len()];
        let Some(skipped) = starts.iter().position(|byte| byte == first) else {
            return Ok(None);
        };
        if rest[skipped + 1..].starts_with(others) {
            return Ok(Some(at + skipped));
        }
        at += skipped + 1;
        steps += 1 + (skipped + others.len()) / STEP_BYTES;
        if steps >= CHECK_STEPS {
            steps = 0;
            if let Some(why) = ended_by() {
                return Err(Stop::Ended(why));
            }
        }
    }
    Ok(None)
}
