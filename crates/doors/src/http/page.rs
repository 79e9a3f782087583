//! A page of a log as JSON, and the memory that it takes, which is computed before it is written.

use broker::{Answers, Held};
use bytes::Bytes;
use engine::{Error, Offset, PartitionId, RecordBatch, RecordView};

use super::codec::{Encoding, RecordOut, write_json};
use super::errors::{Failure, Result};

/// Maximum size of the JSON in one response. The first record may be larger.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum size of one record as JSON. The largest record of a batch has 14 MB in base64.
pub(super) const RECORD_JSON_BYTES_MAX: usize = 16 << 20;
/// Maximum number of JSON bytes for one byte: `\u0001`.
const JSON_RATIO_MAX: usize = 6;
/// Number of bytes of a record in JSON in addition to its values.
const RECORD_REST_BYTES: usize = 512;
/// Size above which a batch is decompressed once for all its readers, and on another thread.
pub(super) const LARGE_BATCH_BYTES: usize = 1 << 20;

/// Description of a page: a limited number of records from an offset on.
pub(super) struct Page {
    pub partition: PartitionId,
    pub batches: Vec<RecordBatch>,
    pub from: Offset,
    /// Minimum timestamp of the first record.
    pub not_before: Option<i64>,
    pub records_max: usize,
}

impl Page {
    /// Returns the maximum number of bytes that the page takes, including decompressed batches and intermediate texts.
    pub fn bytes_max(&self) -> usize {
        let batch_bytes: usize = self.batches.iter().map(RecordBatch::len).sum();
        let (all, largest) =
            self.batches.iter().map(size_of).fold((0, 0), |(all, largest), size| (all + size, size.max(largest)));
        let count = self.batches.iter().map(|batch| batch.count() as usize).sum::<usize>().min(self.records_max);
        // The base64 text of a value exists in addition to its JSON.
        let text = largest.min(RECORD_JSON_BYTES_MAX);
        batch_bytes + largest + text + json_bytes_max(all, count).min(PAGE_BYTES_MAX + RECORD_JSON_BYTES_MAX)
    }

    /// Writes the page, within the memory that is held for it.
    pub async fn write(self, answers: &Answers, mut held: Option<&mut Held>) -> Result<Vec<u8>> {
        let mut text = Text { body: b"{\"records\":[".to_vec(), next_offset: self.from, count: 0, is_whole: false };
        for (at, batch) in self.batches.iter().enumerate() {
            let bytes = batch.expansion_bytes_max();
            let is_large = bytes > LARGE_BATCH_BYTES;
            let plain = match &mut held {
                Some(held) if is_large => answers.expand(batch, held.split(bytes)).await,
                _ => batch.expand(),
            };
            let not_before = self.not_before.filter(|_| at == 0);
            answers.work(size_of(batch), || text.write(&self, batch, plain, not_before)).await?;
            // A large batch ends the page: its memory now belongs to its shared decompressed form.
            if text.is_whole || is_large && text.count > 0 {
                break;
            }
        }
        text.body.extend_from_slice(format!("],\"next_offset\":{}}}", text.next_offset).as_bytes());
        text.body.shrink_to_fit();
        Ok(text.body)
    }
}

/// Returns the maximum size of a batch after decompression, in bytes.
pub(super) fn size_of(batch: &RecordBatch) -> usize {
    batch.expansion_bytes_max().max(batch.len())
}

/// Returns the maximum size of the JSON of `count` records with `bytes` bytes in total.
pub(super) fn json_bytes_max(bytes: usize, count: usize) -> usize {
    bytes.saturating_mul(JSON_RATIO_MAX).saturating_add(count.saturating_mul(RECORD_REST_BYTES))
}

/// Page that is partly written.
struct Text {
    body: Vec<u8>,
    next_offset: Offset,
    count: usize,
    is_whole: bool,
}

impl Text {
    fn write(
        &mut self,
        page: &Page,
        batch: &RecordBatch,
        plain: engine::Result<Bytes>,
        not_before: Option<i64>,
    ) -> Result<()> {
        let plain = match plain {
            Ok(plain) => plain,
            // The page ends before a batch that cannot be shown. The next page reports the error.
            Err(_) if self.count > 0 => {
                self.is_whole = true;
                return Ok(());
            }
            Err(error) => return Err(unreadable(&error, batch)),
        };
        if let Some(timestamp_ms) = not_before {
            let all = batch.records_in(plain.clone(), 0);
            let first = all.iter().flatten().find(|view| view.timestamp_ms >= timestamp_ms).map(|view| view.offset);
            self.next_offset = first.unwrap_or(self.next_offset).max(self.next_offset);
        }
        for view in &batch.records_in(plain, self.next_offset) {
            let fits = view.map_err(|error| unreadable(&error, batch)).and_then(|view| match is_too_large(&view) {
                Some(error) => Err(error.into()),
                None => Ok(view),
            });
            let view = match fits {
                Ok(view) => view,
                Err(_) if self.count > 0 => {
                    self.is_whole = true;
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            };
            if self.count == page.records_max || self.body.len() > PAGE_BYTES_MAX {
                self.is_whole = true;
                return Ok(());
            }
            if self.count > 0 {
                self.body.push(b',');
            }
            write_json(&mut self.body, &RecordOut::new(None, page.partition, &view));
            self.next_offset = view.offset + 1;
            self.count += 1;
        }
        // The batch may end with records that compaction removed, or contain only the marker of a transaction.
        self.next_offset = self.next_offset.max(batch.next_offset());
        Ok(())
    }
}

fn unreadable(error: &Error, batch: &RecordBatch) -> Failure {
    let message = format!("{}; the log continues at offset {}", error.message, batch.next_offset());
    Error::new(error.kind, message).into()
}

/// Returns the error for a record that is too large for JSON; `None` if it is not.
pub(super) fn is_too_large(view: &RecordView<'_>) -> Option<Error> {
    let parts = || {
        let of_headers = view.headers().flat_map(|(name, value)| [Some(name), value]);
        [view.key, view.value].into_iter().chain(of_headers).flatten()
    };
    if json_bytes_max(parts().map(<[u8]>::len).sum(), 1) <= RECORD_JSON_BYTES_MAX {
        return None;
    }
    let encoding = Encoding::of(parts());
    let bytes: usize = parts().map(|part| json_bytes(encoding, part)).sum();
    (bytes > RECORD_JSON_BYTES_MAX).then(|| {
        Error::too_large(format!(
            "the record at offset {} has {bytes} bytes as JSON, more than the limit of {RECORD_JSON_BYTES_MAX}: read \
             it at another door; next_offset is {}",
            view.offset,
            view.offset + 1
        ))
    })
}

/// Returns the number of bytes of a text in JSON.
pub(super) fn json_bytes(encoding: Encoding, bytes: &[u8]) -> usize {
    match encoding {
        Encoding::Base64 => 2 + bytes.len().div_ceil(3) * 4,
        Encoding::Utf8 => {
            let of = |byte: &u8| match byte {
                b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 2,
                0..0x20 => JSON_RATIO_MAX,
                _ => 1,
            };
            2 + bytes.iter().map(of).sum::<usize>()
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::{BatchBuilder, Codec, ErrorKind};

    use super::*;

    fn batch(values: &[Vec<u8>], base: Offset) -> RecordBatch {
        let mut builder = BatchBuilder::new();
        for value in values {
            builder.push(1, None, Some(value), &[]).expect("it fits");
        }
        builder.finish_with(Codec::Zstd, None).expect("records").stamp(base)
    }

    async fn written(batches: Vec<RecordBatch>, from: Offset) -> (Result<serde_json::Value>, usize, usize) {
        let answers = Answers::new(1 << 30);
        let page = Page { partition: 0, batches, from, not_before: None, records_max: 10_000 };
        let bytes_max = page.bytes_max();
        let mut held = answers.try_take(None, bytes_max).expect("room");
        let page = page.write(&answers, Some(&mut held)).await;
        let bytes = page.as_ref().map_or(0, Vec::len);
        (page.map(|page| serde_json::from_slice(&page).expect("JSON")), bytes, bytes_max)
    }

    #[tokio::test]
    async fn a_page_takes_no_more_than_was_reckoned() {
        for value in [vec![1; 100], vec![b'x'; 100], vec![255; 100], vec![1; 80_000], vec![255; 80_000], vec![]] {
            for count in [1, 7] {
                let (page, bytes, bytes_max) = written(vec![batch(&vec![value.clone(); count], 5)], 0).await;
                let page = page.expect("a page");
                assert!(bytes <= bytes_max, "{bytes} of {bytes_max}");
                assert_eq!(
                    (page["records"].as_array().map(Vec::len), &page["next_offset"]),
                    (Some(count), &(5 + count).into())
                );
            }
        }
    }

    #[tokio::test]
    async fn a_page_ends_before_a_record_that_is_too_large_and_the_next_one_says_where_to_go_on() {
        let batches = || vec![batch(&[b"small".to_vec(), vec![1; 3 << 20], b"last".to_vec()], 7)];
        let (page, ..) = written(batches(), 0).await;
        assert_eq!(page.expect("a page")["next_offset"], 8);
        let refused = written(batches(), 8).await.0.expect_err("18 MiB of JSON");
        assert_eq!(refused.error.kind, ErrorKind::TooLarge);
        assert!(refused.error.message.contains("at offset 8") && refused.error.message.ends_with("next_offset is 9"));
        let (page, ..) = written(batches(), 9).await;
        assert_eq!(page.expect("a page")["records"][0]["value"], "last");
    }

    #[test]
    fn texts_have_the_size_that_is_said() {
        let all: Vec<u8> = (0..128).collect();
        for (encoding, bytes) in
            [(Encoding::Utf8, &all[..]), (Encoding::Utf8, "ä€".as_bytes()), (Encoding::Base64, &all)]
        {
            let text = serde_json::to_string(&encoding.encode(bytes)).expect("JSON");
            assert_eq!(text.len(), json_bytes(encoding, bytes));
        }
    }
}
