//! Classes of keyspace events, and the letters of `notify-keyspace-events` (`notify.c` of Redis 7.0).

/// A class of events; its bit is that of a [`Flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Generic,
    String,
    List,
    Set,
    Hash,
    Sorted,
    Expired,
    Evicted,
    Stream,
    Module,
    New,
    Missed,
}

/// Letters of the classes in the order in which Redis shows them; `m` is shown after the kinds of channels.
const LETTERS: [(char, Class); 12] = [
    ('g', Class::Generic),
    ('$', Class::String),
    ('l', Class::List),
    ('s', Class::Set),
    ('h', Class::Hash),
    ('z', Class::Sorted),
    ('x', Class::Expired),
    ('e', Class::Evicted),
    ('t', Class::Stream),
    ('d', Class::Module),
    ('n', Class::New),
    ('m', Class::Missed),
];

const BY_KEY: u16 = 1 << 14;
const BY_EVENT: u16 = 1 << 15;

/// Published classes of events, and the channels that they are published to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::redis) struct Flags(u16);

impl Class {
    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl Flags {
    /// Classes of the letter `A`: all except new keys and lookups that find nothing.
    const ALL: u16 = {
        let mut all = 0;
        let mut at = 0;
        while at < LETTERS.len() {
            all |= LETTERS[at].1.bit();
            at += 1;
        }
        all & !Class::New.bit() & !Class::Missed.bit()
    };

    /// Parses the letters. Returns `None` if one of them is unknown.
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.chars().try_fold(Self::default(), |Self(flags), letter| {
            let more = match letter {
                'A' => Self::ALL,
                'K' => BY_KEY,
                'E' => BY_EVENT,
                letter => LETTERS.iter().find(|(known, _)| *known == letter)?.1.bit(),
            };
            Some(Self(flags | more))
        })
    }

    pub(super) fn text(self) -> String {
        let mut text = String::new();
        let has_all = self.0 & Self::ALL == Self::ALL;
        if has_all {
            text.push('A');
        }
        // As in Redis, which shows no `n` next to `A`.
        let classes = LETTERS.iter().filter(|(letter, _)| !has_all && *letter != 'm');
        text.extend(classes.filter(|(_, class)| self.has(*class)).map(|(letter, _)| letter));
        let last = [('K', self.is_by_key()), ('E', self.is_by_event()), ('m', self.has(Class::Missed))];
        text.extend(last.iter().filter(|(_, is_set)| *is_set).map(|(letter, _)| letter));
        text
    }

    pub(super) fn number(self) -> u16 {
        self.0
    }

    pub(super) fn of_number(number: u16) -> Self {
        Self(number)
    }

    pub(super) fn has(self, class: Class) -> bool {
        self.0 & class.bit() != 0
    }

    /// Returns `true` if events are published to the channels of their keys.
    pub(super) fn is_by_key(self) -> bool {
        self.0 & BY_KEY != 0
    }

    /// Returns `true` if keys are published to the channels of their events.
    pub(super) fn is_by_event(self) -> bool {
        self.0 & BY_EVENT != 0
    }

    /// Returns `true` if any event is published to any channel.
    pub(super) fn publishes(self) -> bool {
        (self.is_by_key() || self.is_by_event()) && self.0 & !(BY_KEY | BY_EVENT) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts as redis-server 7.0.15 shows them with `CONFIG GET` after they were set.
    #[test]
    fn flags_are_shown_as_redis_shows_them() {
        for (set, shown) in [
            ("", ""),
            ("KEA", "AKE"),
            ("AKEnm", "AKEm"),
            ("Kg$lshzxetd", "AK"),
            ("mKEnx", "xnKEm"),
            ("EKzshl$g", "g$lshzKE"),
            ("xx", "x"),
        ] {
            let flags = Flags::parse(set).expect("letters of classes");
            assert_eq!(flags.text(), shown, "{set}");
        }
        assert_eq!(Flags::parse("KEx?"), None);
        assert_eq!(Flags::parse("k"), None);
    }

    #[test]
    fn nothing_is_published_without_a_class_and_a_kind_of_channel() {
        let publishes = |text: &str| Flags::parse(text).expect("letters of classes").publishes();
        assert!(!publishes("") && !publishes("KE") && !publishes("A"));
        assert!(publishes("Kx") && publishes("EA") && publishes("Em"));
    }
}
