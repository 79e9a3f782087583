//! Receipts as text, which can be neither forged nor used for another queue.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::queue::QueueDefinition;
use engine::{Error, Result};

use crate::queues::Queues;
use crate::view::Receipt;

/// Length of the key with which receipts are sealed, in bytes.
pub(super) const KEY_BYTES: usize = 32;
/// Length of partition, offset and lease together, in bytes; they precede the seal.
const PLAIN_BYTES: usize = 20;
/// Length of the seal in bytes: the beginning of a longer MAC, long enough that it cannot be guessed.
const SEAL_BYTES: usize = 16;

pub(super) struct ReceiptKey(hmac::Key);

impl ReceiptKey {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    fn seal(&self, queue: u64, plain: &[u8; PLAIN_BYTES]) -> [u8; SEAL_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&queue.to_be_bytes());
        context.update(plain);
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&context.sign().as_ref()[..SEAL_BYTES]);
        seal
    }
}

impl Queues {
    /// Returns a receipt as text that only this broker can create, for this queue.
    pub fn seal(&self, queue: &QueueDefinition, receipt: &Receipt) -> Result<String> {
        let mut plain = [0; PLAIN_BYTES];
        plain[..4].copy_from_slice(&receipt.partition.to_be_bytes());
        plain[4..12].copy_from_slice(&receipt.offset.to_be_bytes());
        plain[12..].copy_from_slice(&receipt.lease.to_be_bytes());
        let seal = self.receipt_key()?.seal(queue.id, &plain);
        let mut sealed = [0; PLAIN_BYTES + SEAL_BYTES];
        sealed[..PLAIN_BYTES].copy_from_slice(&plain);
        sealed[PLAIN_BYTES..].copy_from_slice(&seal);
        Ok(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// Returns the receipt that a text represents, if it belongs to this queue.
    pub fn unseal(&self, queue: &QueueDefinition, text: &str) -> Result<Receipt> {
        let wrong = || Error::invalid("this is not a receipt of this queue");
        let mut sealed = [0; PLAIN_BYTES + SEAL_BYTES];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut sealed).ok();
        if length != Some(sealed.len()) {
            return Err(wrong());
        }
        let (plain, seal) = sealed.split_first_chunk::<PLAIN_BYTES>().ok_or_else(wrong)?;
        let expected = self.receipt_key()?.seal(queue.id, plain);
        aws_lc_rs::constant_time::verify_slices_are_equal(&expected, seal).or(Err(wrong()))?;
        let part = |from: usize| u64::from_be_bytes(std::array::from_fn(|i| plain[from + i]));
        let partition = u32::from_be_bytes(std::array::from_fn(|i| plain[i]));
        Ok(Receipt { partition, offset: part(4), lease: part(12) })
    }

    fn receipt_key(&self) -> Result<&super::receipt::ReceiptKey> {
        let key = self.receipt_key.get();
        key.ok_or_else(|| Error::busy("the broker has just started and is still restoring its queues"))
    }
}
