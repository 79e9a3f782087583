//! Maps the names of channels and streams to topic names, which have a smaller alphabet, and the numbers of databases
//! to the names of caches. The names of a tenant get its prefix here, and lose it.

use engine::cache::CacheName;
use engine::limits::TOPIC_NAME_BYTES_MAX;
use engine::security::TenantName;
use engine::{Result, TopicName};
use smallvec::SmallVec;

use super::connection::DATABASES;

/// Topic of the empty name.
const EMPTY: &str = "_x_";

/// Separator between the number of a database and the topic of a key. No topic of a key contains it.
const OF_DATABASE: &str = "_x_";

/// Name of a topic as ASCII text. Most need no allocation.
pub(super) type TopicText = SmallVec<[u8; 96]>;

/// Tenant whose names a client uses; `None` for those of the broker.
pub(super) type Tenant<'a> = Option<&'a TenantName>;

/// Returns the prefix of the broker's names for those of a tenant.
pub(super) fn prefix(tenant: Tenant<'_>) -> &str {
    tenant.map_or("", TenantName::prefix)
}

/// Returns the name of the cache that is a database of a tenant.
pub(super) fn cache_name(tenant: Tenant<'_>, database: usize) -> String {
    format!("{}db{database}", prefix(tenant))
}

/// Returns the prefix of the tenant that has a cache as its database, and the number of the database; `None` for any
/// other cache.
pub(super) fn database_of(cache: &CacheName) -> Option<(&str, usize)> {
    let name = cache.as_str();
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (rest, digits) = name.split_at(name.len() - digits);
    let number = digits.parse().ok().filter(|number| *number < DATABASES)?;
    // A database has no number with leading zeros.
    let is_one = digits.len() == 1 || !digits.starts_with('0');
    is_one.then_some((rest.strip_suffix("db")?, number))
}

/// Returns the names of all databases of a tenant, for the audit.
pub(super) fn all_databases(tenant: Tenant<'_>) -> String {
    format!("{} to {}", cache_name(tenant, 0), cache_name(tenant, DATABASES - 1))
}

/// Returns the broker's name of a channel of a tenant, as access control and lists have it.
pub(super) fn channel_name(tenant: Tenant<'_>, channel: &[u8]) -> Vec<u8> {
    [prefix(tenant).as_bytes(), channel].concat()
}

/// Returns a tenant's name of a channel; `None` if the channel is not the tenant's.
pub(super) fn channel_of<'n>(tenant: Tenant<'_>, name: &'n [u8]) -> Option<&'n [u8]> {
    name.strip_prefix(prefix(tenant).as_bytes())
}

/// Returns a tenant's name of the channel that has this topic; `None` if the topic is not the tenant's.
pub(super) fn channel_of_topic(tenant: Tenant<'_>, topic: &str) -> Option<Vec<u8>> {
    topic.strip_prefix(prefix(tenant)).map(name_of)
}

/// Returns the topic of a stream: that of its key, with the prefix `db1_x_` and so on in databases other than 0.
pub(super) fn stream_topic(tenant: Tenant<'_>, database: usize, key: &[u8]) -> Result<TopicName> {
    parse(&stream_topic_text(tenant, database, key))
}

/// Returns the name of [`stream_topic`], which may not be valid.
pub(super) fn stream_topic_text(tenant: Tenant<'_>, database: usize, key: &[u8]) -> TopicText {
    let mut text = TopicText::from_slice(prefix(tenant).as_bytes());
    if database != 0 {
        text.extend_from_slice(format!("db{database}{OF_DATABASE}").as_bytes());
    }
    push_topic(&mut text, key);
    text
}

fn parse(text: &[u8]) -> Result<TopicName> {
    TopicName::parse(&String::from_utf8_lossy(text))
}

/// Returns the cache and the key of the stream that has this topic. The topic of a tenant is a key of database 0 here:
/// the key of a stream of a tenant's client is recorded with the stream.
pub fn place_of(topic: &str) -> (String, Vec<u8>) {
    let parts = topic.strip_prefix("db").and_then(|rest| rest.split_once(OF_DATABASE));
    let found = parts.filter(|(number, _)| number.parse().is_ok_and(|number| (1..DATABASES).contains(&number)));
    let (number, topic) = found.unwrap_or(("0", topic));
    (format!("db{number}"), name_of(topic))
}

/// Returns the topic of a name. Letters, digits, `-`, `_` and dots between them are kept; any other byte becomes
/// `_xHH_`, and so does an underscore that begins the name or that would be read as the start of such a byte.
pub(super) fn topic_of(tenant: Tenant<'_>, name: &[u8]) -> Result<TopicName> {
    let mut text = TopicText::from_slice(prefix(tenant).as_bytes());
    push_topic(&mut text, name);
    parse(&text)
}

/// Appends the topic of a name. The result is longer than a topic's name may be if the topic is.
fn push_topic(text: &mut TopicText, name: &[u8]) {
    if name.is_empty() {
        return text.extend_from_slice(EMPTY.as_bytes());
    }
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    for (at, byte) in name.iter().enumerate() {
        let is_first = at == 0;
        let next = name.get(at + 1);
        let stays = match byte {
            b'.' => !is_first && next.is_some_and(|next| *next != b'.'),
            b'_' => !is_first && next != Some(&b'x'),
            byte => byte.is_ascii_alphanumeric() || *byte == b'-',
        };
        if stays {
            text.push(*byte);
        } else {
            text.extend_from_slice(&[b'_', b'x', digit(byte >> 4), digit(byte & 15), b'_']);
        }
        if text.len() > TOPIC_NAME_BYTES_MAX {
            break;
        }
    }
}

/// Returns a glob pattern that matches the topics of all names that a tenant's glob pattern matches, and maybe others:
/// what follows a class is any text, and so is a character whose neighbours decide how it is written.
pub(super) fn topic_glob(tenant: Tenant<'_>, glob: &[u8]) -> String {
    let mut text = prefix(tenant).to_owned();
    if glob.is_empty() {
        return text + EMPTY;
    }
    let mut rest = glob;
    while let Some((first, after)) = rest.split_first() {
        let (literal, after) = match (first, after) {
            (b'*' | b'?', _) => (None, after),
            (b'[', _) => (None, &[][..]),
            (b'\\', [escaped, after @ ..]) => (Some(escaped), after),
            _ => (Some(first), after),
        };
        rest = after;
        match literal {
            Some(byte) if byte.is_ascii_alphanumeric() || *byte == b'-' => text.push(char::from(*byte)),
            Some(b'.' | b'_') | None => text.push('*'),
            Some(byte) => text.push_str(&format!("_x{byte:02x}_")),
        }
    }
    text
}

/// Returns the name that has this topic.
pub(super) fn name_of(topic: &str) -> Vec<u8> {
    if topic == EMPTY {
        return Vec::new();
    }
    let mut name = Vec::with_capacity(topic.len());
    let mut rest = topic.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = match rest {
            [b'_', b'x', high, low, b'_', after @ ..] if is_hex(*high) && is_hex(*low) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
                name.push(digit(*high) << 4 | digit(*low));
                after
            }
            _ => {
                name.push(*first);
                after
            }
        };
    }
    name
}

fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_caches_with_the_names_of_databases_are_databases() {
        let of = |name: &str| {
            let cache = CacheName::parse(name).expect("a name");
            database_of(&cache).map(|(prefix, number)| (prefix.to_owned(), number))
        };
        assert_eq!(of("db0"), Some((String::new(), 0)));
        assert_eq!(of("acme.db15"), Some(("acme.".to_owned(), 15)));
        assert_eq!([of("db16"), of("db007"), of("db00"), of("db"), of("acme.db99"), of("7")], [const { None }; 6]);
    }

    #[test]
    fn plain_names_stay_as_they_are() {
        for name in ["orders", "orders.eu-west", "a_b", "A1"] {
            assert_eq!(topic_of(None, name.as_bytes()).expect("a name").as_str(), name);
        }
        let escaped =
            [("user:1", "user_x3a_1"), ("_offsets", "_x5f_offsets"), ("a_x3a_", "a_x5f_x3a_"), ("a..b", "a_x2e_.b")];
        for (name, topic) in escaped {
            assert_eq!(topic_of(None, name.as_bytes()).expect("a name").as_str(), topic);
        }
        assert!(topic_of(None, &[b':'; 100]).is_err());
    }

    #[test]
    fn patterns_of_channels_are_patterns_of_topics() {
        for (glob, topic) in
            [("news:*", "news_x3a_*"), ("a?b", "a*b"), ("a.b", "a*b"), ("", "_x_"), (r"\*[a]b", "_x2a_*")]
        {
            assert_eq!(topic_glob(None, glob.as_bytes()), topic);
        }
        let acme = TenantName::parse("acme").expect("a name");
        assert_eq!(topic_glob(Some(&acme), b"news*"), "acme.news*");
    }

    #[test]
    fn streams_of_each_database_have_topics_of_their_own() {
        for (database, key, topic) in [(0, "a:b", "a_x3a_b"), (1, "a:b", "db1_x_a_x3a_b"), (15, "", "db15_x__x_")] {
            assert_eq!(stream_topic(None, database, key.as_bytes()).expect("a name").as_str(), topic);
            assert_eq!(place_of(topic), (format!("db{database}"), key.as_bytes().to_vec()));
        }
        // A key of database 0 that looks like the topic of another database has a different topic.
        assert_eq!(stream_topic(None, 0, b"db1_x_a").expect("a name").as_str(), "db1_x5f_x_a");
        assert_eq!(place_of("db16_x_a"), ("db0".to_owned(), b"db16_x_a".to_vec()));
    }

    #[test]
    fn names_of_a_tenant_have_its_prefix() {
        let acme = TenantName::parse("acme").expect("a name");
        let acme = Some(&acme);
        for (channel, topic) in [("news", "acme.news"), ("a:b", "acme.a_x3a_b"), ("", "acme._x_"), (".", "acme._x2e_")]
        {
            assert_eq!(topic_of(acme, channel.as_bytes()).expect("a name").as_str(), topic);
            assert_eq!(channel_of_topic(acme, topic).as_deref(), Some(channel.as_bytes()));
            assert_eq!(channel_of(acme, &channel_name(acme, channel.as_bytes())), Some(channel.as_bytes()));
        }
        assert_eq!((channel_of_topic(acme, "other.news"), channel_of(acme, b"acm")), (None, None));
        for (database, key, topic) in [(0, "a:b", "acme.a_x3a_b"), (3, "_", "acme.db3_x__x5f_")] {
            assert_eq!(stream_topic(acme, database, key.as_bytes()).expect("a name").as_str(), topic);
        }
        assert_eq!((cache_name(acme, 15), cache_name(None, 0)), ("acme.db15".to_owned(), "db0".to_owned()));
    }

    proptest! {
        #[test]
        fn a_topic_glob_misses_no_channel(glob in r"[ax:._\[\]\\*?^-]{0,8}", name in "[ax:._]{0,5}") {
            if engine::glob::matches(glob.as_bytes(), name.as_bytes()) {
                let topic = topic_of(None, name.as_bytes()).expect("a name");
                let topics = topic_glob(None, glob.as_bytes());
                prop_assert!(engine::glob::matches(topics.as_bytes(), topic.as_str().as_bytes()), "{topics} {topic}");
            }
        }

        #[test]
        fn every_name_has_a_topic_of_its_own(name in proptest::collection::vec(prop_oneof![
            any::<u8>(), Just(b'_'), Just(b'x'), Just(b'.'), Just(b'3'), Just(b'a')
        ], 0..40)) {
            let topic = topic_of(None, &name).expect("short enough");
            prop_assert_eq!(name_of(topic.as_str()), name);
            prop_assert!(!topic.is_hidden());
        }
    }
}
