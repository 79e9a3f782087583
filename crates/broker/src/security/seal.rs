//! Secrets that the broker has to know are stored sealed, by AES-256-GCM (NIST SP 800-38D).
//!
//! A sealed secret is the version 1 (u8), the nonce (12 bytes), the ciphertext and the tag (16 bytes). The name of the
//! secret is authenticated with it, so that one secret cannot take the place of another.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use engine::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use zeroize::Zeroizing;

use super::random::random;
use crate::core::Core;

const VERSION: u8 = 1;

/// The key of the data directory, once it has been read or created.
#[derive(Default)]
pub(super) struct Seal(RwLock<Option<RandomizedNonceKey>>);

impl Seal {
    /// Reads the key of the data directory, if it has one. Returns `true` if it does.
    pub(super) fn open(&self, core: &Core) -> Result<bool> {
        if let Some(key) = core.store().map(|store| store.seal_key()).transpose()?.flatten() {
            *self.0.write() = Some(key_of(&Zeroizing::new(key))?);
        }
        Ok(self.0.read().is_some())
    }

    /// Creates the key of the data directory. Without a directory it is lost with the process, as is all it has sealed.
    pub(super) fn create(&self, core: &Core) -> Result<()> {
        let mut kept = self.0.write();
        if kept.is_some() {
            return Ok(());
        }
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(&Zeroizing::new(random(32)?));
        if let Some(store) = core.store() {
            store.put_seal_key(&key)?;
        }
        *kept = Some(key_of(&key)?);
        Ok(())
    }

    pub(super) fn seal(&self, name: &str, secret: &str) -> Result<Box<[u8]>> {
        let kept = self.0.read();
        let key = kept.as_ref().ok_or_else(no_key)?;
        // No byte of the secret is left behind by a buffer that grows.
        let mut text = Zeroizing::new(Vec::with_capacity(secret.len() + AES_256_GCM.tag_len()));
        text.extend_from_slice(secret.as_bytes());
        let nonce = key
            .seal_in_place_append_tag(Aad::from(name), &mut *text)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot seal a secret: {error}")))?;
        Ok([&[VERSION][..], nonce.as_ref(), &text].concat().into())
    }

    pub(super) fn unseal(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<String>> {
        let kept = self.0.read();
        let key = kept.as_ref().ok_or_else(no_key)?;
        let wrong = || Error::new(ErrorKind::Corrupt, format!("the secret of {name} was sealed with another seal.key"));
        let (version, sealed) = sealed.split_first().ok_or_else(wrong)?;
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN).ok_or_else(wrong)?;
        if *version != VERSION {
            let message =
                format!("the secret of {name} is sealed in version {version}, which this broker does not know");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_length| wrong())?;
        let mut text = Zeroizing::new(text.to_vec());
        let open = key.open_in_place(nonce, Aad::from(name), &mut text).map_err(|_unauthentic| wrong())?;
        Ok(Zeroizing::new(std::str::from_utf8(open).map_err(|_not_text| wrong())?.to_owned()))
    }
}

fn key_of(key: &[u8; 32]) -> Result<RandomizedNonceKey> {
    RandomizedNonceKey::new(&AES_256_GCM, key)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot use the key of secrets: {error}")))
}

fn no_key() -> Error {
    Error::new(ErrorKind::Corrupt, "the file seal.key of the data directory is missing: restore it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_unsealed_with_its_key_and_name_only() {
        let [seal, other] = [1, 2].map(|key| Seal(RwLock::new(Some(key_of(&[key; 32]).expect("a key")))));
        let sealed = seal.seal("key1", "the secret").expect("sealed");
        assert_ne!(sealed, seal.seal("key1", "the secret").expect("sealed"), "each has its own nonce");
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(*seal.unseal("key1", &sealed).expect("unsealed"), "the secret");
        assert!(seal.unseal("key2", &sealed).is_err() && other.unseal("key1", &sealed).is_err());
        for cut in 0..sealed.len() {
            assert!(seal.unseal("key1", &sealed[..cut]).is_err(), "{cut}");
            let mut flipped = sealed.clone();
            flipped[cut] ^= 1;
            assert!(seal.unseal("key1", &flipped).is_err(), "{cut}");
        }
        assert!(Seal::default().seal("key1", "the secret").is_err());
    }
}
