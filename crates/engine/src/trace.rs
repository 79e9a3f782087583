//! Traces of records: the context that a producer sends with a record, the decision whether the record is traced, and
//! the ids that follow from its place.
//!
//! The context is that of W3C Trace Context (<https://www.w3.org/TR/trace-context/>), in a header of the record. The
//! broker changes no record, so it keeps nothing about a traced one: the context is read from the record again at each
//! delivery, and the id of the span of its publish follows from its place in the log, on every node of a cluster and
//! after every restart.

use std::sync::Arc;

use crate::codec::Codec;
use crate::ids::{Offset, PartitionId, TopicId};
use crate::limits::{
    TRACE_STATE_BYTES_MAX, TRACED_COMPRESSED_BYTES_MAX, TRACED_EXPANDED_BYTES_MAX, TRACED_PER_BATCH_MAX,
};
use crate::queue::MessageId;
use crate::record::{BATCH_HEADER_BYTES, HeaderView, Record, RecordBatch};

/// Name of the header with the context of a producer.
pub const PARENT_HEADER: &str = "traceparent";
/// Name of the header with the state that tracing systems add to the context.
pub const STATE_HEADER: &str = "tracestate";

/// Length of a context of version 00: `00-<32 digits>-<16 digits>-<2 digits>`.
const PARENT_BYTES: usize = 55;
/// Bit of the flags that is set if the producer records its part of the trace.
const SAMPLED: u8 = 1;
/// Version that the standard forbids.
const NO_VERSION: u8 = 0xff;
/// Maximum number of kinds of headers that carry contexts.
const CARRIERS_MAX: usize = 4;

/// Id of a trace, never zero.
pub type TraceId = [u8; 16];
/// Id of a span, never zero.
pub type SpanId = [u8; 8];

/// Position of a producer in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    /// Span of the producer.
    pub span: SpanId,
    /// `true` if the producer records its part of the trace.
    pub is_sampled: bool,
}

impl TraceContext {
    /// Returns a context with these ids; `None` if one of them is zero, which the standard forbids.
    pub fn new(trace: TraceId, span: SpanId, is_sampled: bool) -> Option<Self> {
        (trace != TraceId::default() && span != SpanId::default()).then_some(Self { trace, span, is_sampled })
    }

    /// Parses the value of a `traceparent`. Returns `None` for a value that the standard says to ignore (section 3.2.2
    /// and 4.3): another length or other digits than lower-case ones, the version ff, an id of zeros. A later version
    /// may be longer; what follows its flags begins with a hyphen.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (known, rest) = text.split_at_checked(PARENT_BYTES)?;
        let [version] = digits(&known[..2])?;
        let is_cut_well = match version {
            0 => rest.is_empty(),
            NO_VERSION => false,
            _ => rest.first().is_none_or(|byte| *byte == b'-'),
        };
        if !is_cut_well || [2, 35, 52].iter().any(|at| known[*at] != b'-') {
            return None;
        }
        let [flags] = digits(&known[53..])?;
        Self::new(digits(&known[3..35])?, digits(&known[36..52])?, flags & SAMPLED != 0)
    }
}

/// Reads bytes from twice as many lower-case hexadecimal digits.
fn digits<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Headers with which the clients of a protocol send contexts.
#[derive(Clone, Copy, Debug)]
pub struct Carrier {
    /// Name of the header with the context.
    pub parent: &'static str,
    /// Name of the header with the state of tracing systems, if the protocol has one.
    pub state: Option<&'static str>,
    /// Reads the context; `None` if the value is not a valid one.
    pub parse: fn(&[u8]) -> Option<TraceContext>,
}

/// Headers of the standard, which take precedence over those of other protocols.
pub const W3C: Carrier = Carrier { parent: PARENT_HEADER, state: Some(STATE_HEADER), parse: TraceContext::parse };

/// A record that is traced, with the ids that its spans have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    pub offset: Offset,
    pub trace: TraceId,
    /// Span of the producer; `None` if the record has no context and was chosen by the ratio.
    pub producer: Option<SpanId>,
    /// Value of `tracestate`, if it has one that may be passed on.
    pub state: Option<Arc<str>>,
    /// Span of the publish at this broker, which follows from the place of the record.
    pub publish: SpanId,
    /// Id of the place of the record.
    pub message: MessageId,
}

/// Decision about a record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The record with its ids, if it is traced.
    pub sampled: Option<Sampled>,
    /// `true` if a header carries a context that is not valid, and is therefore ignored.
    pub has_invalid: bool,
}

/// Decisions about the records of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BatchDecision {
    pub sampled: Vec<Sampled>,
    /// Number of traced records that were left out, since a batch has too many of them.
    pub left_out: u64,
    /// Number of records with an invalid context.
    pub invalid: u64,
    /// `true` if the records were not read, since they are compressed and large.
    pub is_unread: bool,
}

/// Rule that decides which records are traced.
#[derive(Clone, Debug)]
pub struct Sampler {
    /// A record without a context is traced if the hash of its place is at most this; 0 for none.
    threshold: u64,
    carriers: Vec<Carrier>,
}

/// Value of a header that may occur once.
#[derive(Clone, Copy, Default)]
struct Seen<'a> {
    parent: Option<&'a [u8]>,
    count: u32,
    state: Option<&'a [u8]>,
}

impl Sampler {
    /// Creates a sampler. `ratio`: share of the records without a context that are traced, from 0 to 1. `carriers`:
    /// headers that are read in addition to those of the standard, in the order of their precedence.
    pub fn new(ratio: f64, carriers: &[Carrier]) -> Self {
        // A conversion of a float saturates, so 1 is all records.
        let threshold = (ratio * u64::MAX as f64) as u64;
        let carriers = std::iter::once(W3C).chain(carriers.iter().copied()).take(CARRIERS_MAX).collect();
        Self { threshold, carriers }
    }

    /// Decides about the record at a place. If it has a valid context, its producer has decided.
    pub fn decide<'a>(
        &self,
        message: MessageId,
        offset: Offset,
        headers: impl Iterator<Item = HeaderView<'a>>,
    ) -> Decision {
        let mut all = [Seen::default(); CARRIERS_MAX];
        for (name, value) in headers {
            for (carrier, seen) in self.carriers.iter().zip(&mut all) {
                if name == carrier.parent.as_bytes() {
                    seen.parent = value;
                    seen.count += 1;
                } else if carrier.state.is_some_and(|state| name == state.as_bytes()) {
                    seen.state = seen.state.or(value);
                }
            }
        }
        let mut has_invalid = false;
        let high = hash(message, 0);
        for (carrier, seen) in self.carriers.iter().zip(&all).filter(|(_, seen)| seen.count > 0) {
            // Of several contexts none is the right one.
            let parent = seen.parent.filter(|_| seen.count == 1);
            let Some(context) = parent.and_then(carrier.parse) else {
                has_invalid = true;
                continue;
            };
            let sampled = context.is_sampled.then(|| Sampled {
                offset,
                trace: context.trace,
                producer: Some(context.span),
                state: seen.state.and_then(state_of),
                publish: span_id(message),
                message,
            });
            return Decision { sampled, has_invalid };
        }
        let is_chosen = self.threshold > 0 && high <= self.threshold;
        let sampled = is_chosen.then(|| Sampled {
            offset,
            trace: (u128::from(high.max(1)) << 64 | u128::from(hash(message, 1))).to_be_bytes(),
            producer: None,
            state: None,
            publish: span_id(message),
            message,
        });
        Decision { sampled, has_invalid }
    }

    /// Decides about the record of a message.
    pub fn decide_record(&self, message: MessageId, record: &Record) -> Decision {
        let headers = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
        self.decide(message, record.offset, headers)
    }

    /// Decides about the records of a batch at or after an offset. Reads no more of a compressed batch than
    /// [`TRACED_EXPANDED_BYTES_MAX`]; a batch that does not decode has no traced records.
    pub fn decide_batch(
        &self,
        topic: TopicId,
        partition: PartitionId,
        batch: &RecordBatch,
        from: Offset,
    ) -> BatchDecision {
        let mut decided = BatchDecision::default();
        if !is_readable(batch) {
            decided.is_unread = true;
            return decided;
        }
        let Ok(records) = batch.records_from(from) else {
            return decided;
        };
        for record in records.iter().map_while(Result::ok) {
            if self.threshold == 0 && !record.has_headers() {
                continue;
            }
            let message = MessageId::at(topic, partition, record.offset);
            let Decision { sampled, has_invalid } = self.decide(message, record.offset, record.headers());
            decided.invalid += u64::from(has_invalid);
            match sampled {
                Some(sampled) if decided.sampled.len() < TRACED_PER_BATCH_MAX => decided.sampled.push(sampled),
                Some(_) => decided.left_out += 1,
                None => {}
            }
        }
        decided
    }
}

/// Returns `true` if reading the records costs little memory.
fn is_readable(batch: &RecordBatch) -> bool {
    let small = &batch.bytes()[BATCH_HEADER_BYTES..];
    match batch.codec() {
        Ok(Codec::None) => true,
        _ if batch.is_control() => true,
        Ok(codec) => {
            small.len() <= TRACED_COMPRESSED_BYTES_MAX && codec.expands_within(small, TRACED_EXPANDED_BYTES_MAX)
        }
        // No reader can read it either.
        Err(_) => true,
    }
}

/// Returns a state that may be passed on: printable text that is not too long.
fn state_of(value: &[u8]) -> Option<Arc<str>> {
    let is_printable = value.iter().all(|byte| (b' '..=b'~').contains(byte));
    let text = std::str::from_utf8(value).ok().filter(|text| is_printable && text.len() <= TRACE_STATE_BYTES_MAX)?;
    (!text.is_empty()).then(|| text.into())
}

/// Returns the id of the span of the publish of the record at a place.
fn span_id(message: MessageId) -> SpanId {
    hash(message, 2).max(1).to_be_bytes()
}

/// Returns a hash of a place, a different one for each purpose.
fn hash(message: MessageId, purpose: u64) -> u64 {
    let bits = u128::from_be_bytes(message.to_bytes());
    let high = scattered((bits >> 64) as u64 ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    scattered(high ^ bits as u64)
}

/// Maps each number to a distant number, one to one (the finalizer of SplitMix64).
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::BatchBuilder;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn is_valid(text: &str) -> bool {
        TraceContext::parse(text.as_bytes()).is_some()
    }

    #[test]
    fn a_valid_context_is_read() {
        let context = TraceContext::parse(VALID.as_bytes()).expect("the example of the standard, section 3.2.3");
        assert_eq!(context.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes());
        assert_eq!(context.span, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert!(context.is_sampled);
        let flags = |flags: &str| TraceContext::parse(format!("{}{flags}", &VALID[..53]).as_bytes());
        assert_eq!(flags("00").map(|context| context.is_sampled), Some(false));
        // Section 3.2.2.5: only the bits that the version defines are read.
        assert_eq!(flags("fe").map(|context| context.is_sampled), Some(false));
        assert_eq!(flags("ff").map(|context| context.is_sampled), Some(true));
    }

    /// W3C Trace Context, sections 3.2.2 (values that are invalid, and so ignored) and 4.3 (later versions).
    #[test]
    fn a_context_that_the_standard_forbids_is_ignored() {
        assert!(!is_valid(""));
        assert!(!is_valid(&VALID[..54]), "cut short");
        assert!(!is_valid(&VALID.to_uppercase()), "upper case: section 3.2.2.3 has HEXDIGLC only");
        assert!(!is_valid(&VALID.replace("00-0", "ff-0")), "section 3.2.2.1: version 255 is invalid");
        assert!(!is_valid(&format!("{VALID}-what")), "version 00 has no more fields");
        assert!(!is_valid("00-00000000000000000000000000000000-b7ad6b7169203331-01"), "a trace of zeros");
        assert!(!is_valid("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"), "a span of zeros");
        assert!(!is_valid(&VALID.replace('-', "_")));
        assert!(!is_valid(&VALID.replace("b7ad", "b7xd")));
        assert!(is_valid(&VALID.replace("00-0", "cc-0")), "a later version is read as this one");
        assert!(is_valid(&format!("{}-what-the-future-brings", VALID.replace("00-0", "cc-0"))));
        assert!(!is_valid(&format!("{}.what", VALID.replace("00-0", "cc-0"))), "a later version goes on with a hyphen");
    }

    fn batch(codec: Codec, headers: &[&[(&str, &str)]]) -> RecordBatch {
        let mut builder = BatchBuilder::new();
        for headers in headers {
            let headers: Vec<HeaderView<'_>> =
                headers.iter().map(|(name, value)| (name.as_bytes(), Some(value.as_bytes()))).collect();
            builder.push(1, None, Some(b"value"), &headers).expect("a small record");
        }
        builder.finish_with(codec, None).expect("records").stamp(7)
    }

    fn decide(sampler: &Sampler, batch: &RecordBatch) -> BatchDecision {
        sampler.decide_batch(TopicId::new(1, 2), 3, batch, 0)
    }

    #[test]
    fn the_producer_decides_about_its_records() {
        let state = [("tracestate", "a=1"), ("traceparent", VALID)];
        let off = VALID.replace("-01", "-00");
        let off = [("traceparent", &*off)];
        for (ratio, without) in [(0.0, 0), (1.0, 1)] {
            let sampler = Sampler::new(ratio, &[]);
            let decided = decide(&sampler, &batch(Codec::None, &[&state, &off, &[]]));
            assert_eq!(decided.sampled.len(), 1 + without);
            let sampled = &decided.sampled[0];
            assert_eq!((sampled.offset, sampled.state.as_deref()), (7, Some("a=1")));
            assert_eq!(sampled.producer, Some(0xb7ad_6b71_6920_3331_u64.to_be_bytes()));
            assert!(decided.sampled[1..].iter().all(|sampled| sampled.offset == 9 && sampled.producer.is_none()));
        }
    }

    #[test]
    fn an_invalid_context_counts_as_none_and_its_state_is_dropped() {
        let twice = [("traceparent", VALID), ("traceparent", VALID)];
        let broken = [("traceparent", "00-x"), ("tracestate", "a=1")];
        let batch = batch(Codec::None, &[&twice, &broken]);
        let decided = decide(&Sampler::new(0.0, &[]), &batch);
        assert_eq!((decided.sampled.len(), decided.invalid), (0, 2));
        let decided = decide(&Sampler::new(1.0, &[]), &batch);
        assert!(decided.sampled.iter().all(|sampled| sampled.producer.is_none() && sampled.state.is_none()));
        assert_eq!(decided.sampled.len(), 2);
    }

    #[test]
    fn the_ids_of_a_record_follow_from_its_place() {
        let sampler = Sampler::new(1.0, &[]);
        let batch = batch(Codec::None, &[&[], &[]]);
        let once = decide(&sampler, &batch).sampled;
        assert_eq!(once, decide(&sampler, &batch).sampled);
        assert!(once[0].trace != once[1].trace && once[0].publish != once[1].publish);
        let message = MessageId::at(TopicId::new(1, 2), 3, 8);
        let mut records = batch.records_from(8).expect("readable");
        let record = records.find(8).expect("the second record");
        assert_eq!(sampler.decide_record(message, &record).sampled.as_ref(), Some(&once[1]));
        assert_eq!(sampler.decide_batch(TopicId::new(1, 2), 3, &batch, 8).sampled, once[1..]);
    }

    #[test]
    fn the_ratio_is_that_of_the_chosen_records() {
        let sampler = Sampler::new(0.1, &[]);
        let chosen = |offset: &u64| {
            let message = MessageId::at(TopicId::new(1, 2), 0, *offset);
            sampler.decide(message, *offset, std::iter::empty()).sampled.is_some()
        };
        let share = (0..100_000).filter(chosen).count();
        assert!((9_500..10_500).contains(&share), "{share} of 100,000");
    }

    #[test]
    fn a_compressed_batch_is_read_if_it_is_small() {
        let plain = [("traceparent", VALID)];
        let sampler = Sampler::new(0.0, &[]);
        for codec in Codec::ALL {
            let few = batch(codec, &[&plain[..]; 20]);
            assert_eq!(decide(&sampler, &few).sampled.len(), 20, "{codec:?}");
        }
        let mut builder = BatchBuilder::new();
        let value = vec![b'x'; TRACED_EXPANDED_BYTES_MAX];
        builder.push(1, None, Some(&value), &[(b"traceparent", Some(VALID.as_bytes()))]).expect("it fits");
        let large = builder.finish_with(Codec::Zstd, None).expect("a record").stamp(0);
        assert!(large.len() < TRACED_COMPRESSED_BYTES_MAX);
        let decided = decide(&sampler, &large);
        assert!(decided.is_unread && decided.sampled.is_empty());
    }

    #[test]
    fn a_batch_has_a_limited_number_of_traced_records() {
        let plain = [("traceparent", VALID)];
        let many = batch(Codec::None, &vec![&plain[..]; TRACED_PER_BATCH_MAX + 5]);
        let decided = decide(&Sampler::new(0.0, &[]), &many);
        assert_eq!((decided.sampled.len(), decided.left_out), (TRACED_PER_BATCH_MAX, 5));
    }

    #[test]
    fn a_state_that_may_not_be_passed_on_is_left_out() {
        assert_eq!(state_of(b"rojo=00f067aa0ba902b7").as_deref(), Some("rojo=00f067aa0ba902b7"));
        assert_eq!(state_of(&[b'x'; TRACE_STATE_BYTES_MAX + 1]), None);
        assert_eq!(state_of(b"a=\n"), None);
        assert_eq!(state_of(b""), None);
    }
}
