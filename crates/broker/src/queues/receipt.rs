//! Receipts as text, which can be neither forged nor used for another queue.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use engine::queue::QueueDefinition;
use engine::{Error, Result};

use super::receipt_key::{PLAIN_BYTES, ReceiptKey, SEAL_BYTES};
use crate::queues::Queues;
use crate::view::Receipt;

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

    fn receipt_key(&self) -> Result<&ReceiptKey> {
        let key = self.receipt_key.get();
        key.ok_or_else(|| Error::busy("the broker has just started and is still restoring its queues"))
    }
}
