//! Fields of the records in the broker's own topics. All integers are big-endian; a text or a byte string is its length
//! (2 bytes) and its bytes. Texts are UTF-8. An optional field is a byte, 0 or 1, and then the field if it is 1. A list
//! is its length (u32) and its items. Partitions are a list of topics (text), each with a list of its partitions (u32).

use std::collections::BTreeSet;

use bytes::{Buf, BufMut};

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{TopicName, TopicPartition};

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Writes a byte string that may be longer: its length has 4 bytes.
pub(crate) fn put_long(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.put_slice(bytes);
}

pub(crate) fn put_optional<T>(out: &mut Vec<u8>, field: Option<&T>, put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u8(field.is_some().into());
    field.into_iter().for_each(|field| put(out, field));
}

pub(crate) fn put_list<T>(out: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.put_u32(items.len() as u32);
    items.iter().for_each(|item| put(out, item));
}

pub(crate) fn put_partitions(out: &mut Vec<u8>, partitions: &BTreeSet<TopicPartition>) {
    let all: Vec<&TopicPartition> = partitions.iter().collect();
    let topics: Vec<&[&TopicPartition]> = all.chunk_by(|a, b| a.topic == b.topic).collect();
    put_list(out, &topics, |out, of_topic| {
        put_text(out, of_topic[0].topic.as_str());
        put_list(out, of_topic, |out, partition| out.put_u32(partition.partition));
    });
}

/// Returns the error for a key or a value with a version that only a later broker can have written.
pub(crate) fn unknown_version(what: &str, version: u16) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the {what} has the unknown version {version}"))
}

/// Reader of fields, one after the other.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.0.try_get_u8().map_err(cut_short)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.0.try_get_u16().map_err(cut_short)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.0.try_get_u32().map_err(cut_short)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.0.try_get_u64().map_err(cut_short)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = usize::from(self.u16()?);
        self.run(length)
    }

    /// Reads a byte string of a fixed length.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.run(N)?);
        Ok(array)
    }

    /// Reads a byte string with a length of 4 bytes.
    pub(crate) fn long(&mut self) -> Result<&'a [u8]> {
        let length = self.u32()? as usize;
        self.run(length)
    }

    fn run(&mut self, length: usize) -> Result<&'a [u8]> {
        let cut = || Error::malformed("a field is longer than the remaining bytes");
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|e| Error::malformed(format!("a string is not UTF-8: {e}")))
    }

    /// Reads a one-byte code. Fails if `from_code` does not know it.
    pub(crate) fn code<T>(&mut self, from_code: impl Fn(u8) -> Option<T>) -> Result<T> {
        let code = self.u8()?;
        from_code(code).ok_or_else(|| Error::malformed(format!("unknown code {code}")))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        self.code(|code| [false, true].get(usize::from(code)).copied())
    }

    pub(crate) fn optional<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Option<T>> {
        Ok(if self.flag()? { Some(read(self)?) } else { None })
    }

    /// Reads a list. Memory is reserved only for items that are there.
    pub(crate) fn list<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let count = self.u32()?;
        (0..count).map(|_| read(self)).collect()
    }

    pub(crate) fn partitions(&mut self) -> Result<BTreeSet<TopicPartition>> {
        let of_topic = self.list(|fields| {
            let topic = TopicName::parse(fields.text()?)?;
            fields.list(|fields| Ok(TopicPartition { topic: topic.clone(), partition: fields.u32()? }))
        })?;
        Ok(of_topic.into_iter().flatten().collect())
    }

    /// Checks the version at the beginning of a value: only one version exists so far.
    pub(crate) fn check_version(&mut self, what: &str, known: u16) -> Result<()> {
        match self.u16()? {
            version if version == known => Ok(()),
            version => Err(unknown_version(what, version)),
        }
    }

    /// Checks that no bytes are left.
    pub(crate) fn end(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(Error::malformed(format!("{left} bytes are left after the last field"))),
        }
    }
}

fn cut_short(error: bytes::TryGetError) -> Error {
    Error::malformed(format!("it ends before its last field: {error}"))
}
