//! Batches: written batches can be read back, and damaged ones are refused.

use proptest::prelude::*;

use super::*;

/// Largest base offset that leaves room for the records of any batch in the range of an `i64`.
const BASE_OFFSET_MAX: u64 = i64::MAX as u64 - i32::MAX as u64;

fn record(timestamp_ms: i64, key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> Record {
    let key = key.map(Bytes::from_static);
    let value = value.map(Bytes::from_static);
    Record { offset: 0, timestamp_ms, key, value, headers: Vec::new() }
}

fn put_varint(buf: &mut BytesMut, value: i64) {
    let mut number = Pending::new();
    number.varint(value);
    number.put(buf, Some(&[]));
}

fn builder_of(records: &[Record]) -> BatchBuilder {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<HeaderView<'_>> =
            record.headers.iter().map(|(name, value)| (&name[..], value.as_deref())).collect();
        builder
            .push(record.timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers)
            .expect("the record fits");
    }
    builder
}

fn batch_of(records: &[Record], base_offset: Offset) -> RecordBatch {
    builder_of(records).finish().expect("records").stamp(base_offset)
}

fn owned(batch: &RecordBatch) -> Result<Vec<Record>> {
    let records = batch.records()?;
    records.iter().map(|view| Ok(records.own(&view?))).collect()
}

fn small() -> RecordBatch {
    let with_header = record(1_700_000_000_000, Some(b"k"), Some(b"value")).with_header("h", "x");
    batch_of(&[with_header, record(1_699_999_999_999, None, None)], 7)
}

/// Returns the batch after a change, with the length and the checksum of its new bytes.
fn resealed(batch: &RecordBatch, change: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut bytes = batch.bytes().to_vec();
    change(&mut bytes);
    let length = (bytes.len() - LENGTH_OVERHEAD) as u32;
    put_at(&mut bytes, AT_LENGTH, &length.to_be_bytes());
    let crc = checksum(&bytes);
    put_at(&mut bytes, AT_CRC, &crc.to_be_bytes());
    bytes.into()
}

/// Returns the result of both ways to parse a received batch. They differ only in that a draft has no place yet: the
/// bytes of the base offset do not matter to it.
fn parse(bytes: &[u8]) -> Result<RecordBatch, ErrorKind> {
    let batch = RecordBatch::parse(Bytes::copy_from_slice(bytes)).map_err(|e| e.kind);
    let draft = DraftBatch::parse(BytesMut::from(bytes)).map(|draft| draft.count()).map_err(|e| e.kind);
    let is_thin = |batch: &RecordBatch| u64::from(batch.count()) < batch.next_offset() - batch.base_offset();
    if batch.as_ref().is_ok_and(is_thin) {
        // Only a log has lost records.
        assert_eq!(draft, Err(ErrorKind::Malformed));
    } else if bytes.len() < 8 || u64_at(bytes, 0) <= BASE_OFFSET_MAX {
        assert_eq!(draft, batch.as_ref().map(RecordBatch::count).map_err(|kind| *kind));
    }
    batch
}

fn assert_round_trip(mut records: Vec<Record>, base_offset: Offset) {
    let batch = batch_of(&records, base_offset);
    for (i, record) in records.iter_mut().enumerate() {
        record.offset = base_offset + i as u64;
    }
    assert_eq!(owned(&batch).expect("valid records"), records);
    assert_eq!(parse(batch.bytes()), Ok(batch.clone()));
    assert_eq!((batch.base_offset(), batch.count() as usize), (base_offset, records.len()));
    assert_eq!(batch.next_offset(), base_offset + records.len() as u64);
    assert_eq!(batch.base_timestamp_ms(), records[0].timestamp_ms);
    assert_eq!(Some(batch.max_timestamp_ms()), records.iter().map(|record| record.timestamp_ms).max());
}

#[test]
fn records_come_back_as_they_went_in() {
    let times = [5, 0, -1, i64::MAX, i64::MIN, 1 << 40, -(1 << 40)];
    let long: &'static [u8] = &[7; 70_000];
    let mut headers = record(1, Some(b"k"), Some(b"v")).with_header("twice", "1").with_header("twice", "2");
    headers.headers.push((Bytes::from_static(b"null"), None));
    headers.headers.push((Bytes::new(), Some(Bytes::new())));
    let cases = [
        vec![record(0, None, None)],
        vec![record(0, Some(b""), Some(b""))],
        vec![record(0, Some(b"key"), None), record(0, None, Some(b"value"))],
        vec![record(0, Some(long), Some(long)), record(0, None, Some(&[0xff; 64]))],
        times.map(|timestamp_ms| record(timestamp_ms, None, Some(b"t"))).to_vec(),
        times.map(|timestamp_ms| record(timestamp_ms, None, Some(b"t"))).into_iter().rev().collect(),
        vec![headers],
        vec![record(3, None, Some(b"x")); 300],
    ];
    for records in cases {
        assert_round_trip(records.clone(), 0);
        assert_round_trip(records, 1 << 40);
    }
}

#[test]
fn a_builder_counts_and_starts_anew_after_each_batch() {
    let mut builder = BatchBuilder::new();
    assert!(builder.is_empty() && builder.finish().is_none());
    assert_eq!(builder.len(), BATCH_HEADER_BYTES);
    for timestamp_ms in [9, -3] {
        builder.push(timestamp_ms, None, Some(b"v"), &[]).expect("a small record");
        let count = builder.count();
        let len = builder.len();
        let draft = builder.finish().expect("a record");
        assert_eq!((draft.count(), draft.len()), (count, len));
        assert!(builder.is_empty() && builder.finish().is_none());
        assert_eq!(draft.stamp(0), batch_of(&[record(timestamp_ms, None, Some(b"v"))], 0));
    }
}

#[test]
fn a_record_without_time_gets_the_present_and_may_have_many_headers() {
    for count in [0, 8, 9, HEADERS_MAX] {
        let mut given = Record::new("v").with_key("k");
        for i in 0..count {
            given = given.with_header(format!("h{i}"), "x");
        }
        let mut builder = BatchBuilder::new();
        builder.push_record(&given, 77).expect("a small record");
        builder.push_record(&Record { timestamp_ms: 5, ..given.clone() }, 77).expect("a small record");
        let read = owned(&builder.finish().expect("records").stamp(0)).expect("valid records");
        assert_eq!(read[0], Record { timestamp_ms: 77, ..given.clone() });
        assert_eq!(read[1], Record { timestamp_ms: 5, offset: 1, ..given.clone() });
        assert_eq!(given.header("h7").is_some(), count > 7);
        assert_eq!((given.value(), Record::default().value()), (&b"v"[..], &b""[..]));
    }
}

#[test]
fn a_batch_cut_at_any_byte_is_refused() {
    let whole = small();
    for length in 0..whole.len() {
        assert_eq!(parse(&whole.bytes()[..length]), Err(ErrorKind::Malformed), "{length} bytes");
    }
    let longer = [whole.bytes(), &[0][..]].concat();
    assert_eq!(parse(&longer), Err(ErrorKind::Malformed));
    // Records that lack their end, under a valid checksum.
    for length in BATCH_HEADER_BYTES..whole.len() {
        let cut = parse(&resealed(&whole, |bytes| bytes.truncate(length))).expect("the frame is whole");
        assert_eq!(owned(&cut).map_err(|e| e.kind), Err(ErrorKind::Malformed), "{length} bytes");
    }
}

#[test]
fn a_record_that_does_not_follow_the_layout_is_refused() {
    let mut shortest = record(0, None, None);
    shortest.headers.push((Bytes::new(), None));
    let batch = batch_of(&[shortest], 0);
    // Length 8, attributes, both deltas, no key, no value, one header, its name, no value.
    assert_eq!(batch.bytes()[BATCH_HEADER_BYTES..], [16, 0, 0, 0, 1, 1, 2, 0, 1]);
    let wrong: [&[u8]; 9] = [
        &[18, 0, 0, 0, 1, 1, 2, 0, 1, 0],
        &[14, 0, 0, 0, 1, 1, 2, 0, 1],
        &[1, 0, 0, 0, 1, 1, 2, 0, 1],
        &[16, 0, 0, 1, 1, 1, 2, 0, 1],
        &[16, 0, 0, 0, 3, 1, 2, 0, 1],
        &[16, 0, 0, 0, 1, 2, 2, 0, 1],
        &[16, 0, 0, 0, 1, 1, 4, 0, 1],
        &[16, 0, 0, 0, 1, 1, 3, 0, 1],
        &[16, 0, 0, 0, 1, 1, 2, 1, 1],
    ];
    for record in wrong {
        let bytes = resealed(&batch, |bytes| bytes.splice(BATCH_HEADER_BYTES.., record.to_vec()).for_each(drop));
        let batch = parse(&bytes).expect("the frame is right");
        assert_eq!(owned(&batch).map_err(|e| e.kind), Err(ErrorKind::Malformed), "{record:?}");
    }
    let many_headers = resealed(&batch, |bytes| bytes.truncate(BATCH_HEADER_BYTES + 6));
    let many_headers = [&many_headers[..], &[0x82, 0x10], &[0; 2 * (HEADERS_MAX + 1)]].concat();
    let bytes = resealed(&RecordBatch { bytes: many_headers.into() }, |bytes| {
        let length = bytes.len() - BATCH_HEADER_BYTES - 1;
        let mut prefix = BytesMut::new();
        put_varint(&mut prefix, length as i64);
        bytes.splice(BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + 1, prefix).for_each(drop);
    });
    let batch = parse(&bytes).expect("the frame is right");
    assert_eq!(owned(&batch).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
}

#[test]
fn a_single_flipped_bit_is_found_wherever_the_checksum_reaches() {
    let whole = small();
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.bytes().to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let parsed = parse(&bytes);
        match bit / 8 {
            // The base offset and the leader epoch: a broker sets them without a new checksum.
            0 if bit % 8 == 7 => assert_eq!(parsed, Err(ErrorKind::Malformed), "too large an offset"),
            0..8 => assert_ne!(parsed.expect("outside the checksum").base_offset(), 7),
            12..16 => assert_eq!(owned(&parsed.expect("outside the checksum")), owned(&whole)),
            _ => assert!(parsed.is_err(), "bit {bit}"),
        }
    }
}

#[test]
fn a_wrong_header_is_refused_under_a_checksum_that_is_right() {
    let whole = small();
    let parse_with = |at: usize, field: &[u8]| parse(&resealed(&whole, |bytes| put_at(bytes, at, field)));
    for magic in [0, 1, 3, 0xff] {
        assert_eq!(parse_with(AT_MAGIC, &[magic]), Err(ErrorKind::Unsupported));
    }
    for count in [3, 1 << 31, u32::MAX] {
        assert_eq!(parse_with(AT_RECORD_COUNT, &count.to_be_bytes()), Err(ErrorKind::Malformed), "{count}");
    }
    for last in [0, 1 << 31, u32::MAX] {
        assert_eq!(parse_with(AT_LAST_OFFSET_DELTA, &last.to_be_bytes()), Err(ErrorKind::Malformed), "{last}");
    }
    // Fewer records than offsets: some are lost, or so it looks until they are read.
    for (at, field) in [(AT_RECORD_COUNT, 0), (AT_RECORD_COUNT, 1), (AT_LAST_OFFSET_DELTA, 2)] {
        parse_with(at, &u32::to_be_bytes(field)).expect("the frame is right");
    }
    let counted = |count: u32| {
        resealed(&whole, |bytes| {
            put_at(bytes, AT_RECORD_COUNT, &count.to_be_bytes());
            put_at(bytes, AT_LAST_OFFSET_DELTA, &(count - 1).to_be_bytes());
        })
    };
    assert_eq!(parse(&counted(BATCH_RECORDS_MAX as u32 + 1)), Err(ErrorKind::Malformed));
    // With more records than exist only a reader of the records detects the error.
    let batch = parse(&counted(3)).expect("the frame is right");
    let read: Vec<_> = batch.records().expect("not compressed").iter().map(|record| record.is_ok()).collect();
    assert_eq!(read, [true, true, false]);
    // With fewer records the last of them is not at the end.
    let batch = parse(&counted(1)).expect("the frame is right");
    assert_eq!(owned(&batch).map_err(|e| e.kind), Err(ErrorKind::Malformed));
}

#[test]
fn bytes_after_the_last_record_are_refused() {
    let whole = small();
    let record = &whole.bytes()[BATCH_HEADER_BYTES..];
    for rest in [&[0][..], &[0xff; 40], record] {
        let bytes = resealed(&whole, |bytes| bytes.extend_from_slice(rest));
        let batch = parse(&bytes).expect("the frame is right");
        let records = batch.records().expect("not compressed");
        let read: Vec<_> = records.iter().map(|view| view.map(|_| ())).collect();
        // The error takes the place of the last record: a reader that received every record received nothing else.
        assert_eq!(read.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false], "{rest:?}");
        assert_eq!(read[1].as_ref().map_err(|e| e.kind), Err(ErrorKind::Malformed));
    }
}

#[test]
fn a_wrong_checksum_says_to_send_again() {
    let mut bytes = small().bytes().to_vec();
    bytes[AT_CRC] ^= 1;
    assert_eq!(parse(&bytes), Err(ErrorKind::Corrupt));
}

/// Returns records that are similar enough for every codec to make them smaller.
fn alike() -> Vec<Record> {
    (0..50).map(|i| record(1_700_000_000_000 + i, Some(b"key"), Some(b"a value like the others"))).collect()
}

#[test]
fn a_compressed_batch_is_read_like_any_other() {
    let plain = batch_of(&alike(), 9);
    for codec in Codec::ALL {
        let draft = builder_of(&alike()).finish_with(codec, None).expect("records");
        assert_eq!((draft.codec(), draft.count(), draft.producer()), (Ok(codec), 50, None));
        assert_eq!(draft.first_key().is_some(), codec == Codec::None, "a codec hides the key");
        let batch = draft.stamp(9);
        assert_eq!(batch.len() < plain.len(), codec != Codec::None, "{}", codec.name());
        assert_eq!(parse(batch.bytes()), Ok(batch.clone()));
        assert_eq!(owned(&batch), owned(&plain), "{}", codec.name());
        assert_eq!((batch.next_offset(), batch.max_timestamp_ms()), (59, plain.max_timestamp_ms()));
        let later: Vec<Offset> = batch.records_from(57).expect("valid").iter().flatten().map(|r| r.offset).collect();
        assert_eq!(later, [57, 58]);
    }
}

#[test]
fn records_that_get_no_smaller_stay_as_they_are() {
    for codec in Codec::ALL {
        let mut builder = builder_of(&[record(1, None, Some(b"v"))]);
        let batch = builder.finish_with(codec, None).expect("a record").stamp(0);
        assert_eq!(batch, batch_of(&[record(1, None, Some(b"v"))], 0), "{}", codec.name());
        // The builder can be used like a new one.
        builder.push(1, None, Some(b"v"), &[]).expect("a small record");
        assert_eq!(builder.finish().map(|draft| draft.stamp(0)), Some(batch));
    }
}

#[test]
fn records_can_be_taken_one_by_one() {
    for codec in Codec::ALL {
        let batch = builder_of(&alike()).finish_with(codec, None).expect("records").stamp(0);
        let mut records = batch.records_from(10).expect("valid");
        let mut offsets = Vec::new();
        while let Some(view) = records.advance() {
            offsets.push(view.expect("valid").offset);
        }
        assert_eq!(offsets, (10..50).collect::<Vec<_>>(), "{}", codec.name());
        assert!(records.advance().is_none());
        assert_eq!(records.iter().count(), 40, "from the first again");
    }
}

#[test]
fn the_only_record_of_a_batch_is_read_alone_as_among_others() {
    let full = record(5, Some(b"k"), Some(&[7; 300])).with_header("h", "x");
    for one in [record(1, None, Some(b"v")), record(1, Some(b"k"), None), full.clone()] {
        let mut draft = builder_of(std::slice::from_ref(&one)).finish().expect("a record");
        let sent = draft.bytes.clone();
        draft.set_arrival(77);
        for (draft, timestamp_ms) in [(DraftBatch { bytes: sent }, one.timestamp_ms), (draft, 77)] {
            let batch = draft.stamp(9);
            assert_eq!(batch.alone(), Some(Record { offset: 9, timestamp_ms, ..one.clone() }));
        }
    }
    let batch = batch_of(std::slice::from_ref(&full), 9);
    let parsed = |change: fn(&mut Vec<u8>)| parse(&resealed(&batch, change)).expect("the frame is right").alone();
    assert_eq!(parsed(|bytes| bytes.push(0)), None, "it is longer than its record");
    assert_eq!(parsed(|bytes| bytes.truncate(BATCH_HEADER_BYTES + 9)), None, "it is cut short");
    let compressed = builder_of(&[full]).finish_with(Codec::Zstd, None).expect("a record").stamp(9);
    assert_eq!((compressed.codec(), compressed.alone()), (Ok(Codec::Zstd), None));
    assert_eq!(small().alone(), None, "it has two");
    let second = small().thinned(|record| record.key.is_none()).expect("readable");
    assert_eq!(second.alone().map(|record| record.offset), Some(8), "where it was");
}

#[test]
fn compressed_records_that_are_damaged_or_unknown_are_refused() {
    for (codec, kind) in [(5, ErrorKind::Unsupported), (7, ErrorKind::Unsupported), (1, ErrorKind::Malformed)] {
        let batch = parse(&resealed(&small(), |bytes| bytes[AT_ATTRIBUTES + 1] = codec)).expect("the frame is right");
        assert_eq!(batch.count(), 2);
        assert_eq!(batch.records().map(|_| ()).map_err(|e| e.kind), Err(kind), "{codec}");
    }
    for codec in &Codec::ALL[1..] {
        let batch = builder_of(&alike()).finish_with(*codec, None).expect("records").stamp(0);
        // Fewer and more records than the header specifies.
        for count in [49u32, 51] {
            let other = resealed(&batch, |bytes| {
                put_at(bytes, AT_RECORD_COUNT, &count.to_be_bytes());
                put_at(bytes, AT_LAST_OFFSET_DELTA, &(count - 1).to_be_bytes());
            });
            let read = owned(&parse(&other).expect("the frame is right"));
            assert_eq!(read.map_err(|e| e.kind), Err(ErrorKind::Malformed), "{} {count}", codec.name());
        }
    }
}

#[test]
fn a_producer_is_named_in_the_batch() {
    let producer = Producer { id: i64::MAX, epoch: 7, sequence: i32::MAX };
    for codec in Codec::ALL {
        let draft = builder_of(&alike()).finish_with(codec, Some(producer)).expect("records");
        assert_eq!(draft.producer(), Some(producer));
        let batch = parse(draft.stamp(3).bytes()).expect("valid");
        assert_eq!(batch.producer(), Some(producer));
        let mut again = DraftBatch::parse(BytesMut::from(&batch.bytes()[..])).expect("valid");
        let other = Producer { id: 0, epoch: 0, sequence: 0 };
        again.set_producer(other);
        let again = parse(again.stamp(3).bytes()).expect("its checksum is right");
        assert_eq!((again.producer(), owned(&again)), (Some(other), owned(&batch)));
    }
    assert_eq!(small().producer(), None);
}

#[test]
fn a_push_that_fails_leaves_the_batch_as_it_was() {
    let first = record(5, Some(b"k"), Some(b"v"));
    let expected = batch_of(std::slice::from_ref(&first), 0);
    let large = vec![0; BATCH_BYTES_MAX];
    let headers = vec![(&b"h"[..], None); HEADERS_MAX + 1];

    let mut builder = builder_of(&[first]);
    for (value, headers) in [(Some(&large[..]), &[][..]), (None, &headers[..])] {
        let refused = builder.push(99, None, value, headers);
        assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::TooLarge));
        let refused = BatchBuilder::new().push(99, None, value, headers);
        assert_eq!(refused.map_err(|e| e.kind), Err(ErrorKind::TooLarge));
    }
    assert_eq!((builder.count(), builder.len()), (1, expected.len()));
    assert_eq!(builder.finish().expect("a record").stamp(0), expected);

    let mut full = BatchBuilder { count: BATCH_RECORDS_MAX as u32, ..BatchBuilder::new() };
    assert_eq!(full.push(0, None, None, &[]).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
}

#[test]
fn the_largest_batch_that_can_be_written_can_be_read() {
    let value = vec![0; BATCH_BYTES_MAX];
    let mut builder = BatchBuilder::new();
    let fits = (0..200).find(|less| builder.push(0, None, Some(&value[*less..]), &[]).is_ok());
    assert!(fits.is_some_and(|less| less > 0), "{fits:?}");
    let batch = builder.finish().expect("a record").stamp(0);
    assert!(batch.len() <= BATCH_BYTES_MAX && batch.len() + 16 > BATCH_BYTES_MAX);
    assert_eq!(parse(batch.bytes()), Ok(batch));
    assert_eq!(parse(&[0; BATCH_BYTES_MAX + 1]), Err(ErrorKind::TooLarge));
}

/// A record from a compressed batch may be too large for an uncompressed one.
#[test]
fn a_record_that_is_too_large_for_a_batch_is_compressed_into_one() {
    let of_one = |value: &[u8]| DraftBatch::of_one(7, Some(b"k"), Some(value), &[(b"h", None)]);
    assert_eq!(of_one(b"v").map(|batch| batch.codec()), Ok(Ok(Codec::None)));
    let large = vec![7; BATCH_BYTES_MAX + 1];
    let batch = of_one(&large).expect("a batch").stamp(3);
    assert_eq!((batch.codec(), batch.len() < BATCH_BYTES_MAX), (Ok(Codec::Zstd), true));
    let records = owned(&parse(batch.bytes()).expect("a batch")).expect("readable");
    assert_eq!((records.len(), records[0].offset, records[0].timestamp_ms), (1, 3, 7));
    assert_eq!(records[0].value.as_deref(), Some(&large[..]));

    // The top bits of a generator, which no codec can compress.
    let step = |state: &u64| Some(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    let noise: Vec<u8> =
        std::iter::successors(Some(1), step).map(|state| (state >> 56) as u8).take(large.len()).collect();
    assert_eq!(of_one(&noise).map(drop).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
    let beyond = vec![7; RECORDS_EXPANDED_BYTES_MAX];
    assert_eq!(of_one(&beyond).map(drop).map_err(|e| e.kind), Err(ErrorKind::TooLarge));
}

#[test]
fn numbers_have_the_size_they_say() {
    for value in [0, -1, 1, 63, -64, 64, -65, 8191, 8192, i64::MAX, i64::MIN] {
        let mut buf = BytesMut::new();
        put_varint(&mut buf, value);
        assert_eq!(buf.len(), varint_len(value), "{value}");
        let mut rest = &buf[..];
        assert_eq!(read_varint(&mut rest), Ok(value));
        assert!(rest.is_empty());
        for length in 0..buf.len() {
            assert!(read_varint(&mut &buf[..length]).is_err(), "{value} in {length} bytes");
        }
    }
    assert!(read_varint(&mut &[0x80; 11][..]).is_err());
}

/// Other systems read offsets as signed numbers, so any batch that leaves their range is refused, and with it any batch
/// that has no next offset.
#[test]
fn an_offset_past_the_last_is_refused() {
    let placed = |base_offset: u64| {
        let mut bytes = small().bytes().to_vec();
        put_at(&mut bytes, 0, &base_offset.to_be_bytes());
        bytes
    };
    for base_offset in [BASE_OFFSET_MAX + 1, i64::MAX as u64, 1 << 63, u64::MAX] {
        let bytes = placed(base_offset);
        assert_eq!(parse(&bytes), Err(ErrorKind::Malformed), "{base_offset}");
        // A broker accepts it and assigns its own offset.
        let draft = DraftBatch::parse(BytesMut::from(&bytes[..])).expect("the frame is right");
        assert_eq!(draft.stamp(7), small());
    }
    let last = parse(&placed(BASE_OFFSET_MAX)).expect("the last offset that there is");
    assert_eq!(last.next_offset(), BASE_OFFSET_MAX + 2);
    let offsets: Vec<Offset> = owned(&last).expect("valid records").iter().map(|record| record.offset).collect();
    assert_eq!(offsets, [BASE_OFFSET_MAX, BASE_OFFSET_MAX + 1]);
}

fn some_bytes() -> impl Strategy<Value = Option<Bytes>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..80).prop_map(Bytes::from))
}

fn a_record() -> impl Strategy<Value = Record> {
    let header = (prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from), some_bytes());
    let timestamp_ms = prop_oneof![any::<i64>(), 0i64..2_000_000_000_000];
    (timestamp_ms, some_bytes(), some_bytes(), prop::collection::vec(header, 0..4))
        .prop_map(|(timestamp_ms, key, value, headers)| Record { offset: 0, timestamp_ms, key, value, headers })
}

proptest! {
    #[test]
    fn any_records_come_back(
        records in prop::collection::vec(a_record(), 1..20),
        base_offset in 0..1u64 << 62,
    ) {
        assert_round_trip(records, base_offset);
    }

    /// With any content under a valid checksum the reader terminates and returns parts of the batch.
    #[test]
    fn nonsense_in_records_is_survived(
        records in prop::collection::vec(a_record(), 1..5),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let bytes = resealed(&batch_of(&records, 0), |bytes| {
            for (at, byte) in changes {
                let at = BATCH_HEADER_BYTES + at.index(bytes.len() - BATCH_HEADER_BYTES);
                bytes[at] = byte;
            }
        });
        let batch = parse(&bytes).expect("the frame is right");
        let records_read = batch.records().expect("not compressed");
        let read: Vec<_> = records_read.iter().collect();
        prop_assert!(read.len() <= records.len());
        for (i, view) in read.iter().enumerate() {
            match view {
                Ok(view) => prop_assert_eq!(records_read.own(view).headers.len(), view.headers().count()),
                Err(_) => prop_assert_eq!(i + 1, read.len(), "nothing comes after an error"),
            }
        }
        let is_whole = read.last().is_some_and(|last| last.is_ok());
        prop_assert!(!is_whole || read.len() == records.len());
    }
}

#[test]
fn a_batch_of_one_record_takes_no_memory_beside_its_bytes() {
    for bytes in [0, 1, 63, 64, 100, 8191, 8192, 100_000] {
        let mut builder = BatchBuilder::new();
        for _ in 0..2 {
            builder.push(1, Some(b"key"), Some(&vec![7; bytes]), &[(b"name", None)]).expect("it fits");
            let batch = builder.finish().expect("a record");
            assert_eq!(batch.bytes.capacity(), batch.len(), "{bytes} bytes");
        }
    }
}

/// A batch whose room was reserved for known records is not moved while they are added.
#[test]
fn records_take_no_more_bytes_in_a_batch_than_announced() {
    let of = |bytes: usize| Record { timestamp_ms: 1, ..Record::new(vec![7; bytes]) };
    let keyed = of(300).with_key(vec![1; 70]).with_header("name", "value").with_header(vec![2; 200], "");
    let records = [of(0), of(1), of(1000), of(100_000), keyed, Record { value: None, ..of(0) }];
    for count in [1, records.len()] {
        let records = &records[..count];
        let announced: usize = records.iter().map(Record::bytes_in_batch).sum();
        let taken = builder_of(records).len() - BATCH_HEADER_BYTES;
        assert!((taken..=taken + 20 * count).contains(&announced), "{announced} announced, {taken} taken");
    }
}
