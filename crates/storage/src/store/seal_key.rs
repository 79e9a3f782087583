//! Key with which the broker seals secrets before it writes them to a topic. It is a file of its own, so that neither a
//! copy of a topic nor of the journal contains both the secrets and their key.

use std::path::PathBuf;

use engine::Result;

use super::Store;
use crate::disk::{damaged, failed, read_whole, replace};

const NAME: &str = "seal.key";

impl Store {
    /// Returns the key of this directory; `None` if it has none yet.
    pub fn seal_key(&self) -> Result<Option<[u8; 32]>> {
        let path = self.seal_key_path();
        let Some(bytes) = read_whole(&*self.shared.disk, &path).map_err(failed("read", &path))? else {
            return Ok(None);
        };
        let length = bytes.len();
        let key = bytes.try_into().map_err(|_bytes| damaged(&path, 0, format!("it has {length} bytes and not 32")))?;
        Ok(Some(key))
    }

    /// Writes the key of this directory, which is durable when this returns. Only this user can read the file.
    pub fn put_seal_key(&self, key: &[u8; 32]) -> Result<()> {
        let path = self.seal_key_path();
        replace(&*self.shared.disk, &path, key).map_err(failed("write", &path))
    }

    fn seal_key_path(&self) -> PathBuf {
        self.shared.dir.join(NAME)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use engine::ErrorKind;

    use super::*;
    use crate::disk::RealDisk;
    use crate::store::StoreSettings;

    #[test]
    fn a_key_is_read_back_by_its_user_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = || {
            let disk = Arc::new(RealDisk);
            Store::open(disk, dir.path(), StoreSettings::default(), || 0, &mut |_| {}).expect("opened").0
        };
        // The threads of a store hold its directory until they have ended.
        let with = |call: &dyn Fn(&Store)| {
            let store = open();
            call(&store);
            store.stop().expect("stopped");
        };
        with(&|store| assert_eq!(store.seal_key(), Ok(None)));
        with(&|store| store.put_seal_key(&[7; 32]).expect("written"));
        with(&|store| assert_eq!(store.seal_key(), Ok(Some([7; 32]))));
        let path = dir.path().join(NAME);
        assert_eq!(std::fs::metadata(&path).expect("it exists").permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, [7; 31]).expect("written");
        assert_eq!(open().seal_key().expect_err("too short").kind, ErrorKind::Corrupt);
    }
}
