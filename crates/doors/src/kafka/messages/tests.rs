//! Messages compared with another implementation, and invalid bytes.

use bytes::{BufMut, Bytes, BytesMut};
use engine::ErrorKind;
use kafka_protocol::messages::{ApiKey, RequestKind, ResponseKind};

use super::consumer_protocol_assignment::ConsumerProtocolAssignment;
use super::consumer_protocol_subscription::ConsumerProtocolSubscription;
use super::*;

/// Rounds for each version of each message. Each round has other values.
const ROUNDS: u64 = 12;

/// Pseudo-random numbers that follow from a seed.
pub struct Random {
    state: u64,
    /// Texts and ids of all samples, if they are not random.
    texts: &'static [&'static str],
    ids: Vec<Uuid>,
}

impl Random {
    fn seeded(seed: u64) -> Self {
        Self::among(seed, &[], Vec::new())
    }

    /// Returns numbers for samples that have only these texts and ids.
    pub fn among(seed: u64, texts: &'static [&'static str], ids: Vec<Uuid>) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, texts, ids }
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> Option<T> {
        (!values.is_empty()).then(|| values[self.below(values.len() as u64) as usize].clone())
    }

    pub fn any<T: Sample>(&mut self) -> T {
        T::sample(self)
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 32) % end
    }
}

/// Type with sample values, some ordinary and some at the limits of the type.
pub trait Sample {
    fn sample(random: &mut Random) -> Self;
}

macro_rules! sample_numbers {
    ($($number:ty),*) => {$(
        impl Sample for $number {
            fn sample(random: &mut Random) -> Self {
                match random.below(6) {
                    0 => 0,
                    1 => (0 as Self).wrapping_sub(1),
                    2 => Self::MIN,
                    3 => Self::MAX,
                    _ => random.next() as Self,
                }
            }
        }
    )*};
}

sample_numbers!(i8, i16, u16, i32, i64);

impl Sample for f64 {
    fn sample(random: &mut Random) -> Self {
        match random.below(4) {
            0 => -0.0,
            1 => Self::MIN,
            2 => Self::INFINITY,
            _ => random.next() as Self,
        }
    }
}

impl Sample for bool {
    fn sample(random: &mut Random) -> Self {
        random.below(2) == 1
    }
}

impl Sample for Uuid {
    fn sample(random: &mut Random) -> Self {
        let ids = random.ids.clone();
        random.one_of(&ids).unwrap_or_else(|| Self(u128::from(random.next()) << 64 | u128::from(random.next())))
    }
}

impl Sample for String {
    fn sample(random: &mut Random) -> Self {
        if let Some(text) = random.one_of(random.texts) {
            return text.to_owned();
        }
        // Lengths that take one byte as a varint, and two.
        let length = if random.below(16) == 0 { 126 + random.below(4) } else { random.below(6) };
        (0..length).map(|_| ['a', 'Z', '0', '-', '\u{e4}', '\u{1f300}'][random.below(6) as usize]).collect()
    }
}

impl Sample for Bytes {
    fn sample(random: &mut Random) -> Self {
        let length = random.below(5);
        (0..length).map(|_| random.next() as u8).collect()
    }
}

impl<T: Sample> Sample for Vec<T> {
    fn sample(random: &mut Random) -> Self {
        let length = random.below(4);
        (0..length).map(|_| random.any()).collect()
    }
}

impl<T: Sample> Sample for Option<T> {
    fn sample(random: &mut Random) -> Self {
        (random.below(3) > 0).then(|| random.any())
    }
}

/// Versions, by key, and fields that the other implementation lacks.
const NEWER_VERSIONS: [(i16, i16); 3] = [(78, 2), (79, 2), (90, 1)];
const NEWER_FIELDS: [&str; 5] = [
    "ShareFetchRequest.share_acquire_mode",
    "ShareFetchRequest.is_renew_ack",
    "ShareAcknowledgeRequest.is_renew_ack",
    "ShareAcknowledgeResponse.acquisition_lock_timeout_ms",
    "DescribeShareGroupOffsetsResponsePartition.lag",
];

/// Message as encoded and decoded by both implementations; a request or a response.
struct Pair {
    name: String,
    is_request: bool,
    key: i16,
    version: i16,
    /// Bytes encoded by this implementation.
    bytes: Bytes,
    /// Bytes of this implementation decoded and encoded again by the other one.
    bytes_theirs: Bytes,
    /// `Debug` output of the values decoded by this and by the other implementation.
    ours: String,
    theirs: String,
    /// Bytes of the other implementation decoded and encoded again by this one.
    bytes_again: Bytes,
}

fn for_each_pair(mut check: impl FnMut(Pair)) {
    for seed in 0..ROUNDS {
        let random = &mut Random::seeded(seed);
        for request in Request::samples(random) {
            let api = api(request.key()).expect("it is served");
            let key = ApiKey::try_from(api.key).expect("it is known there");
            for version in shared_versions(api, key) {
                let name = format!("request of {} version {version}", api.name);
                let bytes = encoded(|out| request.encode(version, out));
                let ours = Request::decode(api.key, version, &mut Reader::new(bytes.clone())).expect(&name);
                let rest = &mut bytes.clone();
                let theirs = RequestKind::decode(key, rest, version).expect(&name);
                assert!(rest.is_empty(), "{name}: {rest:?} is left");
                check(Pair {
                    bytes_theirs: encoded(|out| theirs.encode(out, version).expect(&name)),
                    bytes_again: encoded(|out| ours.encode(version, out)),
                    ours: format!("{ours:?}"),
                    theirs: format!("{theirs:?}"),
                    name,
                    is_request: true,
                    key: api.key,
                    version,
                    bytes,
                });
            }
        }
        for response in Response::samples(random) {
            let api = api(response.key()).expect("it is served");
            let key = ApiKey::try_from(api.key).expect("it is known there");
            for version in shared_versions(api, key) {
                let name = format!("response of {} version {version}", api.name);
                let bytes = encoded(|out| response.encode(version, out));
                let ours = Response::decode(api.key, version, &mut Reader::new(bytes.clone())).expect(&name);
                let rest = &mut bytes.clone();
                let theirs = ResponseKind::decode(key, rest, version).expect(&name);
                assert!(rest.is_empty(), "{name}: {rest:?} is left");
                check(Pair {
                    bytes_theirs: encoded(|out| theirs.encode(out, version).expect(&name)),
                    bytes_again: encoded(|out| ours.encode(version, out)),
                    ours: format!("{ours:?}"),
                    theirs: format!("{theirs:?}"),
                    name,
                    is_request: false,
                    key: api.key,
                    version,
                    bytes,
                });
            }
        }
    }
}

/// Returns the versions that the other implementation supports as well.
fn shared_versions(api: &Api, key: ApiKey) -> std::ops::RangeInclusive<i16> {
    let known = key.valid_versions();
    let is_known = api.version_max <= known.max || NEWER_VERSIONS.contains(&(api.key, api.version_max));
    assert!(is_known && api.version_min >= known.min, "{} {known:?}", api.name);
    api.version_min..=api.version_max.min(known.max)
}

fn encoded(encode: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::new();
    encode(&mut out);
    out.freeze()
}

#[test]
fn every_message_is_the_same_bytes_and_the_same_values_in_another_implementation() {
    let mut count = 0;
    for_each_pair(|pair| {
        let name = &pair.name;
        assert_eq!(pair.bytes_theirs, pair.bytes, "{name}: {}\ntheirs: {}", pair.ours, pair.theirs);
        assert_eq!(pair.bytes_again, pair.bytes, "{name}: {}", pair.ours);
        // Tagged fields come last in ours; in theirs they come in the order of the schema.
        let [mut ours, mut theirs] = [values(&pair.ours), values(&pair.theirs)];
        ours.sort_by(|a, b| a.0.cmp(&b.0));
        theirs.sort_by(|a, b| a.0.cmp(&b.0));
        // Fields of later versions only.
        theirs.retain(|(field, _)| ours.iter().any(|(known, _)| known == field));
        ours.retain(|(field, _)| !NEWER_FIELDS.contains(&field.as_str()));
        assert_eq!(ours, theirs, "{name}");
        count += 1;
    });
    assert!(count > 300 * ROUNDS, "{count}");
}

/// Returns the fields in a `Debug` output, each with its struct and its value, without the types around values.
fn values(debug: &str) -> Vec<(String, String)> {
    let mut values = Vec::new();
    let mut structs = Vec::new();
    let mut last = "";
    let mut field = "";
    let mut rest = debug;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => quoted(rest),
            'b' if rest.starts_with("b\"") => 1 + quoted(&rest[1..]),
            c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            c => {
                match c {
                    '{' => structs.push(last),
                    '}' => drop(structs.pop()),
                    _ => {}
                }
                rest = &rest[c.len_utf8()..];
                continue;
            }
        };
        let word = &rest[..length];
        rest = &rest[length..];
        match rest.chars().next() {
            // A name that is a Rust keyword has a `_` prefix there.
            Some(':') => field = word.trim_start_matches('_'),
            Some('(') => {}
            // A response's struct with the same name as a request's has a prefix here.
            _ if rest.starts_with(" {") => last = word.strip_prefix("Response").unwrap_or(word),
            _ => values.push((format!("{}.{field}", structs.last().expect("a struct")), word.to_owned())),
        }
    }
    values
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// Returns the length of a literal, including its quotes.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    });
    end.expect("a quote").0 + 1
}

/// Checks requests as clients send them: key, version and body in hex. They are seeds of a fuzz target.
#[test]
fn requests_are_the_bytes_of_the_vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/kafka_requests.txt");
    if std::env::var_os("UPDATE").is_some_and(|update| update == "1") {
        std::fs::write(path, vectors()).expect(path);
    }
    let mut versions = Vec::new();
    for line in std::fs::read_to_string(path).expect(path).lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').expect("a name");
        let hex = hex.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).expect("digits"));
        let bytes: Bytes = hex.map(|pair| u8::from_str_radix(pair, 16).expect("two digits")).collect();
        let mut from = Reader::new(bytes.clone());
        let key = from.get().expect("a key");
        let version = from.get().expect("a version");
        let request = Request::decode(key, version, &mut from).expect(name);
        assert_eq!(encoded(|out| request.encode(version, out)), bytes[4..], "{name}");
        versions.push((key, version));
    }
    let expected =
        APIS.iter().filter(|api| api.key > 1).flat_map(|api| [api.version_min, api.version_max].map(|v| (api.key, v)));
    let mut expected: Vec<_> = expected.collect();
    expected.dedup();
    assert_eq!(versions, expected, "the lowest and the highest version of each: UPDATE=1 cargo test");
}

fn vectors() -> String {
    let mut text = String::from(
        "# A name, and the key, the version and the body of a request: UPDATE=1 cargo test -p thalweg-doors --lib\n",
    );
    for request in Request::samples(&mut Random::seeded(5)) {
        let api = api(request.key()).expect("it is served");
        let mut versions = vec![api.version_min, api.version_max];
        versions.dedup();
        for version in versions {
            let bytes = encoded(|out| {
                out.put_i16(api.key);
                out.put_i16(version);
                request.encode(version, out);
            });
            text += &format!("{}-{version} {bytes:x}\n", api.name);
        }
    }
    text
}

#[test]
fn every_beginning_of_a_message_is_refused() {
    let mut refused = 0;
    for_each_pair(|pair| {
        for length in 0..pair.bytes.len() {
            let from = &mut Reader::new(pair.bytes.slice(..length));
            let error = if pair.is_request {
                Request::decode(pair.key, pair.version, from).map(drop)
            } else {
                Response::decode(pair.key, pair.version, from).map(drop)
            };
            let error = error.expect_err(&pair.name);
            assert_eq!(error.kind, ErrorKind::Malformed, "{error}");
            refused += 1;
        }
    });
    assert!(refused > 10_000, "{refused}");
}

#[test]
fn a_damaged_request_is_refused_or_it_is_another_one() {
    let random = &mut Random::seeded(3);
    let mut refused = 0;
    let mut taken = 0;
    for_each_pair(|pair| {
        if !pair.is_request || pair.bytes.is_empty() {
            return;
        }
        for _ in 0..20 {
            let mut damaged = pair.bytes.to_vec();
            let at = random.below(damaged.len() as u64) as usize;
            match random.below(3) {
                0 => damaged[at] = random.next() as u8,
                1 => drop(damaged.remove(at)),
                _ => damaged.insert(at, random.next() as u8),
            }
            let Ok(request) = decode(pair.key, pair.version, &damaged) else {
                refused += 1;
                continue;
            };
            taken += 1;
            let again = encoded(|out| request.encode(pair.version, out));
            // As text, because a damaged number may be none, which is not equal to itself.
            let again = decode(pair.key, pair.version, &again);
            assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, engine::Error>(request)), "{damaged:?}");
        }
    });
    assert!(refused > 1000 && taken > 1000, "{refused} refused, {taken} taken");
}

#[test]
fn embedded_member_data_is_decoded_in_every_version() {
    let random = &mut Random::seeded(1);
    for _ in 0..100 {
        let subscription: ConsumerProtocolSubscription = random.any();
        let bytes = encode_embedded(&subscription, 3);
        assert_eq!(decode_embedded(bytes.clone()), Ok((3, subscription.clone())));
        // A version that is not yet known has additional fields at its end.
        let newer = [&[0, 9], &bytes[2..], b"more"].concat();
        assert_eq!(decode_embedded(newer.into()), Ok((9, subscription.clone())));
        let (version, oldest) = decode_embedded(encode_embedded(&subscription, 0)).expect("it is whole");
        let expected = ConsumerProtocolSubscription {
            topics: subscription.topics,
            user_data: subscription.user_data,
            ..Default::default()
        };
        assert_eq!((version, oldest), (0, expected));

        let assignment: ConsumerProtocolAssignment = random.any();
        for version in 0..=3 {
            let bytes = encode_embedded(&assignment, version);
            assert_eq!(decode_embedded(bytes), Ok((version, assignment.clone())));
        }
    }
    let negative = decode_embedded::<ConsumerProtocolAssignment>(Bytes::from_static(&[0xff; 8]));
    assert_eq!(negative.expect_err("no version").kind, ErrorKind::Malformed);
}

fn decode(key: i16, version: i16, bytes: &[u8]) -> Result<Request> {
    Request::decode(key, version, &mut Reader::new(Bytes::copy_from_slice(bytes)))
}

fn refused(key: i16, version: i16, bytes: &[u8]) -> String {
    let error = decode(key, version, bytes).expect_err("it is no request");
    assert_eq!(error.kind, ErrorKind::Malformed);
    error.message
}

#[test]
fn an_array_longer_than_the_remaining_bytes_is_refused() {
    assert_eq!(
        refused(3, 1, &[0x7f, 0xff, 0xff, 0xff, 0, 0]),
        "Metadata version 1: at byte 4: 2147483647 elements are expected, and 2 bytes are left"
    );
    // As a varint, in a flexible version.
    assert_eq!(
        refused(3, 12, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]),
        "Metadata version 12: at byte 5: 4294967294 elements are expected, and 1 bytes are left"
    );
    assert!(refused(3, 1, &[0x80, 0, 0, 0]).contains("the length -2147483648"));
}

#[test]
fn a_message_has_no_more_elements_than_the_limit() {
    // Topics of DeleteTopics version 1, which are empty strings.
    let of = |count: usize| {
        let mut bytes = BytesMut::new();
        bytes.put_i32(count as i32);
        bytes.put_bytes(0, 2 * count + 4);
        bytes
    };
    assert!(decode(20, 1, &of(ELEMENTS_MAX)).is_ok());
    assert!(refused(20, 1, &of(ELEMENTS_MAX + 1)).contains("at most 262144 elements"));
}

#[test]
fn a_null_is_refused_where_the_version_has_none() {
    // All topics, since version 1.
    assert!(refused(3, 0, &[0xff; 4]).ends_with("must not be null"));
    let Ok(Request::Metadata(all)) = decode(3, 1, &[0xff; 4]) else {
        panic!("all topics");
    };
    assert_eq!(all.topics, None);
    // The name of a group.
    assert!(refused(12, 0, &[0xff; 2]).ends_with("must not be null"));
    assert!(refused(12, 4, &[0]).ends_with("must not be null"));
}

#[test]
fn a_null_that_a_version_lacks_is_written_as_an_empty_value() {
    let topics = vec![metadata::MetadataResponseTopic { name: None, ..Default::default() }];
    let response = Response::Metadata(metadata::MetadataResponse { topics, ..Default::default() });
    for (version, expected) in [(11, Some(String::new())), (12, None)] {
        let bytes = encoded(|out| response.encode(version, out));
        let Ok(Response::Metadata(decoded)) = Response::decode(3, version, &mut Reader::new(bytes)) else {
            panic!("version {version}");
        };
        assert_eq!(decoded.topics[0].name, expected, "version {version}");
    }
}

#[test]
fn unknown_tags_are_skipped_and_false_ones_refused() {
    // A heartbeat: group, generation, member, no instance, then the tags.
    let with_tags = |tags: &[u8]| [&[2, b'g', 0, 0, 0, 7, 2, b'm', 0][..], tags].concat();
    let Ok(Request::Heartbeat(heartbeat)) = decode(12, 4, &with_tags(&[2, 0, 1, b'x', 0x80, 1, 2, b'y', b'z'])) else {
        panic!("it is a heartbeat");
    };
    assert_eq!((heartbeat.generation_id, heartbeat.member_id.as_str()), (7, "m"));
    assert!(refused(12, 4, &with_tags(&[1, 0, 2, b'x'])).contains("tag 0 has 2 bytes and 1 are left"));
    assert!(refused(12, 4, &with_tags(&[0xff, 0xff, 0xff, 0xff, 0xff, 1])).contains("a number has more than"));
    assert!(refused(12, 4, &with_tags(&[0xff, 0xff, 0xff, 0xff, 0x7f])).contains("the number"));
    // A known tag whose value is shorter than its declared length.
    let versions = [&[0, 0, 1, 0, 0, 0, 0][..], &[1, 1, 9], &[0; 9]].concat();
    let error = Response::decode(18, 3, &mut Reader::new(versions.into())).expect_err("a false tag");
    assert!(error.message.ends_with("tag 1 has 9 bytes and its value 8"), "{error}");
}

#[test]
fn bytes_after_a_request_are_left() {
    let mut from = Reader::new(Bytes::from_static(&[0, 0, 0, 0, b'!', b'!']));
    assert!(Request::decode(16, 0, &mut Reader::new(Bytes::new())).is_ok());
    assert!(Request::decode(3, 0, &mut from).is_ok());
    assert_eq!((from.at(), from.remaining()), (4, 2));
}

#[test]
fn a_string_has_to_be_text() {
    assert!(refused(12, 0, &[0, 2, 0xc3, 0x28]).contains("not UTF-8"));
    // Strings shorter than their length, and longer than the maximum.
    let long = [&[0x81, 0x80, 0x02][..], &[b'a'; 0x8000]].concat();
    assert!(refused(12, 4, &long).contains("at most 32767 bytes, not 32768"));
}

#[test]
fn a_string_that_is_too_long_is_cut_between_characters() {
    let long = "\u{20ac}".repeat(11_000);
    let request = Request::Heartbeat(heartbeat::HeartbeatRequest { group_id: long, ..Default::default() });
    for version in [0, 4] {
        let bytes = encoded(|out| request.encode(version, out));
        let Ok(Request::Heartbeat(cut)) = Request::decode(12, version, &mut Reader::new(bytes)) else {
            panic!("version {version}");
        };
        assert_eq!(cut.group_id.len(), 32_766);
    }
}

#[test]
fn unknown_keys_and_versions_are_unsupported() {
    for (key, version, expected) in [
        (18, 5, "version 5 of ApiVersions is not supported: use 0 to 4"),
        (2, 0, "version 0 of ListOffsets is not supported: use 1 to 7"),
        (18, -1, "version -1 of ApiVersions is not supported: use 0 to 4"),
        (7, 0, "API key 7 is not supported"),
        (-1, 0, "API key -1 is not supported"),
    ] {
        let error = decode(key, version, &[]).expect_err(expected);
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unsupported, expected));
    }
}

#[test]
fn headers_end_with_tags_where_the_other_implementation_says_so() {
    for api in APIS {
        let theirs = ApiKey::try_from(api.key).expect("it is known there");
        for version in api.version_min..=api.version_max {
            // A request's first header with a client's name is version 1, a response's is version 0.
            let request = theirs.request_header_version(version) > 1;
            assert_eq!(request_header_is_flexible(api.key, version), request, "{} {version}", api.name);
            let response = theirs.response_header_version(version) > 0;
            assert_eq!(response_header_is_flexible(api.key, version), response, "{} {version}", api.name);
        }
    }
    assert!(APIS.is_sorted_by(|a, b| a.key < b.key));
    assert!(request_header_is_flexible(18, 5), "of a version that is too new");
    assert!(!response_header_is_flexible(18, 3));
    assert!(!request_header_is_flexible(7, 3));
}

/// Responses without a field for the throttle time: SaslHandshake, SaslAuthenticate and DescribeQuorum.
const NEVER_THROTTLED: [i16; 3] = [17, 36, 55];

#[test]
fn every_response_tells_the_throttle_time() {
    for response in Response::samples(&mut Random::seeded(1)) {
        let [mut first, mut second] = [response.clone(), response];
        first.set_throttle_time(1);
        second.set_throttle_time(2);
        assert_eq!(first == second, NEVER_THROTTLED.contains(&first.key()), "{}", first.key());
    }
}
