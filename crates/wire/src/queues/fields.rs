//! Fields of the requests and answers about queues.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::{Error, Result};

use super::{
    LeaseAnswer, MessageInfo, NONE_U32, Named, OutMessage, QueueCounts, QueueInfo, RedriveInfo, RedriveState, Sent,
};
use crate::field::{Fields, get_code, get_option, non_empty, put_list, put_option, put_str};
use crate::values::get_error;

pub(super) const OUT_MESSAGE_BYTES_MIN: usize = 11;
pub(super) const MESSAGE_BYTES_MIN: usize = 35;
pub(super) const INFO_BYTES_MIN: usize = 30;
pub(super) const REDRIVE_BYTES_MIN: usize = 43;

pub(super) fn get_flags<B: Buf>(f: &mut Fields<B>, known: u8) -> Result<u8> {
    let flags = f.u8()?;
    match flags & !known {
        0 => Ok(flags),
        unknown => Err(Error::malformed(format!("unknown flags {unknown:#04x}"))),
    }
}

pub(super) fn put_named(b: &mut BytesMut, named: &[(String, String)]) {
    put_list(b, named, |b, (name, value)| {
        put_str(b, name);
        put_str(b, value);
    });
}

pub(super) fn get_named<B: Buf>(f: &mut Fields<B>) -> Result<Named> {
    f.list(4, |f| Ok((f.str()?, f.str()?)))
}

pub(super) fn put_bytes(b: &mut BytesMut, bytes: &Bytes) {
    b.put_u32(bytes.len() as u32);
    b.put_slice(bytes);
}

pub(super) fn get_bytes<B: Buf>(f: &mut Fields<B>) -> Result<Bytes> {
    let length = f.u32()? as usize;
    f.bytes(length)
}

pub(super) fn put_headers(b: &mut BytesMut, headers: &[(String, Bytes)]) {
    put_list(b, headers, |b, (name, value)| {
        put_str(b, name);
        put_bytes(b, value);
    });
}

pub(super) fn get_headers<B: Buf>(f: &mut Fields<B>) -> Result<Vec<(String, Bytes)>> {
    f.list(6, |f| Ok((f.str()?, get_bytes(f)?)))
}

pub(super) fn put_out_message(b: &mut BytesMut, message: &OutMessage) {
    put_bytes(b, &message.body);
    put_option(b, message.group.as_ref(), put_bytes);
    put_option(b, message.dedup.as_ref(), |b, dedup| put_str(b, dedup));
    put_option(b, message.delay_ms.as_ref(), |b, delay_ms| b.put_u64(*delay_ms));
    put_headers(b, &message.headers);
}

pub(super) fn get_out_message<B: Buf>(f: &mut Fields<B>) -> Result<OutMessage> {
    Ok(OutMessage {
        body: get_bytes(f)?,
        group: get_option(f, get_bytes)?,
        dedup: get_option(f, Fields::str)?,
        delay_ms: get_option(f, Fields::u64)?,
        headers: get_headers(f)?,
    })
}

pub(super) fn get_sent<B: Buf>(f: &mut Fields<B>) -> Result<Result<Sent>> {
    Ok(if f.bool()? {
        Ok(Sent { id: f.str()?, partition: f.u32()?, offset: f.u64()?, is_duplicate: f.bool()? })
    } else {
        Err(get_error(f)?)
    })
}

pub(super) fn put_message(b: &mut BytesMut, message: &MessageInfo) {
    put_str(b, &message.id);
    b.put_u32(message.partition);
    b.put_u64(message.offset);
    b.put_u64(message.sent_ms);
    b.put_u32(message.attempts);
    put_bytes(b, &message.body);
    put_option(b, message.group.as_ref(), put_bytes);
    put_headers(b, &message.headers);
}

pub(super) fn get_message<B: Buf>(f: &mut Fields<B>) -> Result<MessageInfo> {
    Ok(MessageInfo {
        id: f.str()?,
        partition: f.u32()?,
        offset: f.u64()?,
        sent_ms: f.u64()?,
        attempts: f.u32()?,
        body: get_bytes(f)?,
        group: get_option(f, get_bytes)?,
        headers: get_headers(f)?,
    })
}

pub(super) fn get_answer<B: Buf>(f: &mut Fields<B>) -> Result<LeaseAnswer> {
    get_code(f, "answer about a lease", |code| LeaseAnswer::ALL.into_iter().find(|answer| *answer as u8 == code))
}

pub(super) fn put_info(b: &mut BytesMut, info: &QueueInfo) {
    put_str(b, &info.queue);
    put_str(b, &info.topic);
    b.put_u8(u8::from(info.owns_topic));
    b.put_u64(info.created_ms);
    b.put_u64(info.altered_ms);
    put_named(b, &info.settings);
    put_named(b, &info.notes);
    put_option(b, info.counts.as_ref(), |b, counts| {
        for count in [counts.visible, counts.in_flight, counts.delayed, counts.bytes, counts.noisy_groups] {
            b.put_u64(count);
        }
        put_option(b, counts.oldest_ms.as_ref(), |b, oldest_ms| b.put_u64(*oldest_ms));
    });
}

pub(super) fn get_info<B: Buf>(f: &mut Fields<B>) -> Result<QueueInfo> {
    Ok(QueueInfo {
        queue: f.str()?,
        topic: f.str()?,
        owns_topic: f.bool()?,
        created_ms: f.u64()?,
        altered_ms: f.u64()?,
        settings: get_named(f)?,
        notes: get_named(f)?,
        counts: get_option(f, |f| {
            let visible = f.u64()?;
            let in_flight = f.u64()?;
            let delayed = f.u64()?;
            let bytes = f.u64()?;
            let noisy_groups = f.u64()?;
            let oldest_ms = get_option(f, Fields::u64)?;
            Ok(QueueCounts { visible, in_flight, delayed, bytes, oldest_ms, noisy_groups })
        })?,
    })
}

pub(super) fn put_redrive(b: &mut BytesMut, redrive: &RedriveInfo) {
    b.put_u64(redrive.redrive);
    put_str(b, &redrive.from);
    put_str(b, redrive.to.as_deref().unwrap_or_default());
    b.put_u32(redrive.rate.unwrap_or(NONE_U32));
    b.put_u64(redrive.started_ms);
    b.put_u8(redrive.state as u8);
    b.put_u64(redrive.moved);
    b.put_u64(redrive.to_move);
    put_str(b, redrive.failure.as_deref().unwrap_or_default());
}

pub(super) fn get_redrive<B: Buf>(f: &mut Fields<B>) -> Result<RedriveInfo> {
    let state = |code: u8| RedriveState::ALL.into_iter().find(|state| *state as u8 == code);
    Ok(RedriveInfo {
        redrive: f.u64()?,
        from: f.str()?,
        to: non_empty(f.str()?),
        rate: Some(f.u32()?).filter(|rate| *rate != NONE_U32),
        started_ms: f.u64()?,
        state: get_code(f, "state of a move", state)?,
        moved: f.u64()?,
        to_move: f.u64()?,
        failure: non_empty(f.str()?),
    })
}
