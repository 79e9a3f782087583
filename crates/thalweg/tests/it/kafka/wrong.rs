//! What is wrong is answered as the protocol says, and harms nobody else.

use bytes::BytesMut;
use engine::Record;
use engine::codec::Codec;
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, MetadataRequest};

use super::raw::{Raw, batch, fetch, fetched, produce, produced};
use crate::server::{Server, until};

/// Batches that cannot be taken, and what their producer hears. The connection lives on.
#[tokio::test]
async fn wrong_batches_are_refused_one_by_one() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    let good = batch(Codec::None, &[Record::new("v")]);
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, good.clone())).await;
    let changed = |at: usize, to: u8| {
        let mut bytes = BytesMut::from(&good[..]);
        bytes[at] = to;
        bytes.freeze()
    };
    let cases = [
        ("a bit of a record", changed(good.len() - 1, 0xff), 2),
        ("an old magic", changed(16, 1), 87),
        ("a length that is none", changed(11, 0xff), 87),
        ("nothing", good.slice(..0), 87),
        ("half of it", good.slice(..good.len() / 2), 87),
        ("no topic", good.clone(), 17),
        ("a topic that is not there", good.clone(), 3),
        ("a partition that is not there", good.clone(), 3),
        ("what is the broker's own", good.clone(), 3),
    ];
    for (what, bytes, code) in cases {
        let (name, partition) = match what {
            "no topic" => ("not a name", 0),
            "a topic that is not there" => ("u", 0),
            "a partition that is not there" => ("t", 7),
            "what is the broker's own" => ("_offsets", 0),
            _ => ("t", 0),
        };
        let response = raw.call(9, produce(name, partition, -1, bytes)).await;
        let (found, offset, message) = produced(&response);
        assert_eq!((found, offset), (code, -1), "{what}: {message:?}");
        assert!(message.is_some_and(|message| message.len() > 10), "{what}");
    }
    let response = raw.call(9, produce("t", 0, 7, good.clone())).await;
    assert_eq!(produced(&response).0, 21, "acks = 7");
    assert_eq!(produced(&raw.call(9, produce("t", 0, -1, good)).await), (0, 1, None));
}

/// Reading where nothing is.
#[tokio::test]
async fn wrong_places_are_refused_one_by_one() {
    let server = Server::start();
    let mut raw = Raw::connect(&server).await;
    raw.create("t").await;
    raw.call(9, produce("t", 0, -1, batch(Codec::None, &[Record::new("v")]))).await;
    for (name, partition, offset, code) in
        [("t", 0, 2, 1), ("t", 0, -5, 1), ("t", 1, 0, 3), ("u", 0, 0, 3), ("t", 0, 1, 0)]
    {
        let response = raw.call(11, fetch(name, partition, offset, 0)).await;
        assert_eq!(fetched(&response).0, code, "{name} {partition} {offset}");
    }
    // A session that nobody began; a leader that there never was.
    let response = raw.call(11, fetch("t", 0, 0, 0).with_session_id(5).with_session_epoch(1)).await;
    assert_eq!(response.error_code, 70);
    let mut request = fetch("t", 0, 0, 0);
    request.topics[0].partitions[0].current_leader_epoch = 3;
    assert_eq!(fetched(&raw.call(11, request).await).0, 75);
}

/// Frames that cannot be understood end their connection, with a word in the log, and no other.
#[tokio::test]
async fn wrong_frames_end_their_connection() {
    let server = Server::start();
    let mut bystander = Raw::connect(&server).await;
    let frames: [(&str, &[u8]); 7] = [
        ("too long", &[0x7f, 0xff, 0xff, 0xff]),
        ("a negative length", &[0xff, 0xff, 0xff, 0xff]),
        ("too short", &[0, 0, 0, 4, 0, 18, 0, 0]),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n"),
        ("an API that is none", &[0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff]),
        ("a version that is none", &[0, 0, 0, 10, 0, 0, 0, 99, 0, 0, 0, 1, 0xff, 0xff]),
        ("a name that is no text", &[0, 0, 0, 12, 0, 18, 0, 0, 0, 0, 0, 1, 0, 2, 0xc3, 0x28]),
    ];
    for (what, bytes) in frames {
        let mut raw = Raw::connect(&server).await;
        raw.send_bytes(bytes).await;
        assert!(raw.frame().await.is_none(), "{what}");
        assert_eq!(bystander.call(3, ApiVersionsRequest::default()).await.error_code, 0, "{what}");
    }
    // A huge array costs nothing.
    let mut raw = Raw::connect(&server).await;
    raw.send_body(ApiKey::Metadata as i16, 4, 1, &[0x7f, 0xff, 0xff, 0xff]).await;
    assert!(raw.frame().await.is_none());
    until("a word in the log", async || server.log().matches("closed a Kafka connection").count() >= 8).await;
    assert_eq!(bystander.call(4, MetadataRequest::default()).await.brokers.len(), 1);
}
