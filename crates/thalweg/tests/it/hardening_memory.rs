//! What takes little room on the way in, but stands for much.

use engine::codec::Codec;
use engine::{DraftBatch, Record};

use crate::kafka::raw::{Raw, batch, produce, produced};
use crate::server::Server;

/// Kafka's code for a batch that is too large: its producers split it.
const MESSAGE_TOO_LARGE: i16 = 10;

/// The rule is that of the largest batch; see `Sender.completeBatch` of Kafka's clients for what they make of the code.
#[tokio::test]
async fn a_small_batch_that_stands_for_much_is_refused_as_too_large() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    for codec in Codec::ALL {
        let fits = batch(codec, &[Record::new(vec![1; 9 << 20])]);
        assert_eq!(produced(&raw.call(9, produce("t", 0, -1, fits)).await).0, 0, "{}", codec.name());
        if codec == Codec::None {
            continue;
        }
        let mut bomb = DraftBatch::of_one(1, None, Some(&vec![1; 10 << 20]), &[]).expect("it gets small");
        bomb.recompress(codec).expect("compressed");
        let (code, _, message) = produced(&raw.call(9, produce("t", 0, -1, bomb.into_bytes())).await);
        assert_eq!(code, MESSAGE_TOO_LARGE, "{}", codec.name());
        assert!(message.as_ref().is_some_and(|text| text.contains("record_expansion_max")), "{message:?}");
    }
}
