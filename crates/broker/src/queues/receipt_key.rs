//! Key with which receipts are sealed.

use aws_lc_rs::hmac;

/// Length of the key with which receipts are sealed, in bytes.
pub(super) const KEY_BYTES: usize = 32;
/// Length of partition, offset and lease together, in bytes; they precede the seal.
pub(super) const PLAIN_BYTES: usize = 20;
/// Length of the seal in bytes: the beginning of a longer MAC, long enough that it cannot be guessed.
pub(super) const SEAL_BYTES: usize = 16;

pub(super) struct ReceiptKey(hmac::Key);

impl ReceiptKey {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    pub(super) fn seal(&self, queue: u64, plain: &[u8; PLAIN_BYTES]) -> [u8; SEAL_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&queue.to_be_bytes());
        context.update(plain);
        let mut seal = [0; SEAL_BYTES];
        seal.copy_from_slice(&context.sign().as_ref()[..SEAL_BYTES]);
        seal
    }
}
