//! A manifest of another node is refused, or survives encoding and decoding, with offsets that are in order.
//!
//! Input: the bytes of the manifest.

use storage::Manifest;

pub fn check(input: &[u8]) {
    let Ok(manifest) = Manifest::decode(input) else {
        return;
    };
    let encoded = manifest.encode();
    assert_eq!(Manifest::decode(&encoded).as_ref(), Ok(&manifest));
    // Settings have several encodings, of which the shortest is written.
    assert!(encoded.len() <= input.len());
    for (id, topic) in &manifest.catalog.topics {
        assert!(*id < manifest.catalog.next_id);
        assert_eq!(topic.partitions.len(), topic.settings.partitions as usize);
        assert!(topic.partitions.iter().all(|partition| partition.start <= partition.end));
    }
}
