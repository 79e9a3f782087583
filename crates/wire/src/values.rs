//! Values that several requests and answers contain: errors, starts, settings of a topic.

use bytes::{Buf, BufMut, BytesMut};
use engine::limits::PARTITIONS_MAX;
use engine::mesh::MeshMode;
use engine::{Codec, Error, ErrorKind, Result, RetryClass, Start, Storage, TopicSettings};

use crate::field::{Fields, get_code, get_flags, put_flags, put_str};

/// Maximum bytes of the message of an error.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Maximum bytes of the address in a redirect: a host name with its scheme and port.
const ADDRESS_BYTES_MAX: usize = 272;

/// Writes the fields of an error. In a redirect the first line of the message is the address, or empty: a longer body
/// could not be read by clients that know no redirects.
pub(crate) fn put_error(b: &mut BytesMut, error: &Error) {
    b.put_u16(error.kind.code());
    b.put_u8(error.retry_class().code());
    b.put_u32(error.retry_after_ms);
    // A message is for people; its end is its least important part.
    let cut = |text: &str| text.floor_char_boundary(MESSAGE_BYTES_MAX);
    if error.retry_class() == RetryClass::Redirect {
        let address = error.redirect.as_deref().filter(|address| is_address(address)).unwrap_or_default();
        let text = format!("{address}\n{}", error.message);
        put_str(b, &text[..cut(&text)]);
    } else {
        put_str(b, &error.message[..cut(&error.message)]);
    }
}

/// Returns `true` if the text can be sent as the address of a redirect.
fn is_address(text: &str) -> bool {
    (1..=ADDRESS_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control)
}

pub(crate) fn get_error<B: Buf>(f: &mut Fields<B>) -> Result<Error> {
    let code = f.u16()?;
    let class = f.u8()?;
    let retry_after_ms = f.u32()?;
    let message = f.str()?;
    // An unknown kind of a later version becomes a kind with the same retry class.
    let kind = ErrorKind::from_code(code).unwrap_or(match RetryClass::from_code(class) {
        Some(RetryClass::Retry) => ErrorKind::Corrupt,
        Some(RetryClass::RetryAfter) => ErrorKind::Busy,
        Some(RetryClass::Redirect) => ErrorKind::NotLeader,
        Some(RetryClass::Fatal) => ErrorKind::Unsupported,
        // The outcome is unknown, or the class is.
        _ => ErrorKind::Internal,
    });
    let mut error = Error::new(kind, message);
    if kind.retry_class() == RetryClass::Redirect
        && let Some((address, text)) = error.message.split_once('\n')
        && (address.is_empty() || is_address(address))
    {
        error.redirect = Some(address).filter(|address| !address.is_empty()).map(Box::from);
        error.message = text.to_owned();
    }
    error.retry_after_ms = retry_after_ms;
    Ok(error)
}

pub(crate) fn put_start(b: &mut BytesMut, start: &Start) {
    match start {
        Start::Live => b.put_u8(0),
        Start::Earliest => b.put_u8(1),
        Start::Offset(offset) => {
            b.put_u8(2);
            b.put_u64(*offset);
        }
        Start::Time(timestamp_ms) => {
            b.put_u8(3);
            b.put_i64(*timestamp_ms);
        }
        Start::Offsets(offsets) => {
            b.put_u8(4);
            b.put_u32(offsets.len() as u32);
            for (partition, offset) in offsets {
                b.put_u32(*partition);
                b.put_u64(*offset);
            }
        }
    }
}

/// Reads the fields that follow the code of a start.
pub(crate) fn get_start<B: Buf>(code: u8, f: &mut Fields<B>) -> Result<Start> {
    Ok(match code {
        0 => Start::Live,
        1 => Start::Earliest,
        2 => Start::Offset(f.u64()?),
        3 => Start::Time(f.i64()?),
        4 => {
            let count = f.count(12)?;
            if count > PARTITIONS_MAX as usize {
                return Err(Error::too_large(format!("a start has at most {PARTITIONS_MAX} offsets, not {count}")));
            }
            Start::Offsets((0..count).map(|_| Ok((f.u32()?, f.u64()?))).collect::<Result<_>>()?)
        }
        other => return Err(Error::malformed(format!("a start is 0 to 4, not {other}"))),
    })
}

pub(crate) fn put_settings(b: &mut BytesMut, settings: &TopicSettings) {
    b.put_u32(settings.partitions);
    b.put_u64(settings.retention_bytes);
    b.put_u64(settings.retention_ms);
    b.put_u8(settings.storage as u8);
    let has_batch_bytes_max = settings.batch_bytes_max != TopicSettings::default().batch_bytes_max;
    let rest = Rest::of(settings);
    let has_rest = rest != Rest::of(&TopicSettings::default());
    let has_mesh = settings.mesh != MeshMode::Off;
    put_flags(b, &[settings.compact, has_batch_bytes_max, settings.arrival_times, has_rest, has_mesh]);
    if has_batch_bytes_max {
        b.put_u32(settings.batch_bytes_max);
    }
    if has_rest {
        rest.put(b);
    }
    if has_mesh {
        b.put_u8(settings.mesh as u8);
    }
}

pub(crate) fn get_settings<B: Buf>(f: &mut Fields<B>) -> Result<TopicSettings> {
    let partitions = f.u32()?;
    let retention_bytes = f.u64()?;
    let retention_ms = f.u64()?;
    let storage = f.u8()?;
    let storage = Storage::from_code(storage)
        .ok_or_else(|| Error::malformed(format!("a topic's storage is 0 to 3, not {storage}")))?;
    let [compact, has_batch_bytes_max, arrival_times, has_rest, has_mesh] = get_flags(f)?;
    let batch_bytes_max = if has_batch_bytes_max { f.u32()? } else { TopicSettings::default().batch_bytes_max };
    let rest = if has_rest { Rest::get(f)? } else { Rest::of(&TopicSettings::default()) };
    let Rest { compression, segment_bytes, segment_ms, compaction_lag_ms } = rest;
    let mesh = if has_mesh { get_mesh_mode(f)? } else { MeshMode::Off };
    if has_mesh && mesh == MeshMode::Off {
        return Err(Error::malformed("settings of a topic outside of the mesh have no mode in the mesh"));
    }
    Ok(TopicSettings {
        compression,
        segment_bytes,
        segment_ms,
        compaction_lag_ms,
        partitions,
        retention_bytes,
        retention_ms,
        storage,
        compact,
        batch_bytes_max,
        arrival_times,
        mesh,
        ..TopicSettings::default()
    })
}

pub(crate) fn get_mesh_mode<B: Buf>(f: &mut Fields<B>) -> Result<MeshMode> {
    get_code(f, "mode of a topic in the mesh", MeshMode::from_code)
}

/// Settings that most topics leave at their defaults.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rest {
    compression: Option<Codec>,
    segment_bytes: u64,
    segment_ms: u64,
    compaction_lag_ms: (u64, u64),
}

impl Rest {
    /// Value of the codec field that keeps batches as they were published.
    const AS_PUBLISHED: u8 = 255;

    fn of(settings: &TopicSettings) -> Self {
        let TopicSettings { compression, segment_bytes, segment_ms, compaction_lag_ms, .. } = *settings;
        Self { compression, segment_bytes, segment_ms, compaction_lag_ms }
    }

    fn put(self, b: &mut BytesMut) {
        b.put_u8(self.compression.map_or(Self::AS_PUBLISHED, |codec| codec as u8));
        let (least, most) = self.compaction_lag_ms;
        [self.segment_bytes, self.segment_ms, least, most].into_iter().for_each(|value| b.put_u64(value));
    }

    fn get<B: Buf>(f: &mut Fields<B>) -> Result<Self> {
        let compression = match f.u8()? {
            Self::AS_PUBLISHED => None,
            code => Some(Codec::from_code(code).ok_or_else(|| Error::malformed(format!("{code} is not a codec")))?),
        };
        let segment_bytes = f.u64()?;
        let segment_ms = f.u64()?;
        Ok(Self { compression, segment_bytes, segment_ms, compaction_lag_ms: (f.u64()?, f.u64()?) })
    }
}
