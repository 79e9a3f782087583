//! Kafka client that sends exactly the given requests.

use std::net::SocketAddr;

use bytes::{Buf, Bytes, BytesMut};
use engine::codec::Codec;
use engine::{BatchBuilder, Record, RecordBatch};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, MetadataRequest, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader,
    TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::server::{Server, within};

pub struct Raw {
    stream: TcpStream,
    correlation: i32,
}

impl Raw {
    pub async fn connect(server: &Server) -> Self {
        Self::connect_to(server.kafka).await
    }

    pub async fn connect_to(address: SocketAddr) -> Self {
        Self::try_connect(address).await.expect("connected")
    }

    /// Connects; `None` if there is no broker.
    pub async fn try_connect(address: SocketAddr) -> Option<Self> {
        let stream = within("a connection", TcpStream::connect(address)).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Self { stream, correlation: 0 })
    }

    /// Sends a request and waits for the response.
    pub async fn call<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        self.send(version, &request).await;
        self.answer::<R>(version).await
    }

    /// Sends a request; returns `None` if the broker stopped in the meantime.
    pub async fn try_call<R: Request>(&mut self, version: i16, request: &R) -> Option<R::Response> {
        self.send(version, request).await;
        self.try_answer::<R>(version).await
    }

    /// Creates a topic by requesting its metadata.
    pub async fn create(&mut self, name: &str) {
        let wanted = MetadataRequestTopic::default().with_name(Some(topic(name)));
        let response = self.call(4, MetadataRequest::default().with_topics(Some(vec![wanted]))).await;
        assert_eq!(response.topics[0].error_code, 0, "{name}");
    }

    /// Sends a request without waiting.
    pub async fn send<R: Request>(&mut self, version: i16, request: &R) {
        let frame = self.frame_of(version, request);
        self.send_bytes(&frame).await;
    }

    /// Sends a request with an arbitrary body.
    pub async fn send_body(&mut self, key: i16, version: i16, header_version: i16, body: &[u8]) {
        let frame = self.frame_of_body(key, version, header_version, body);
        self.send_bytes(&frame).await;
    }

    /// Returns the frame of a request, for tests that send several together.
    pub fn frame_of<R: Request>(&mut self, version: i16, request: &R) -> BytesMut {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).expect("a request of this version");
        self.frame_of_body(R::KEY, version, R::header_version(version), &body)
    }

    fn frame_of_body(&mut self, key: i16, version: i16, header_version: i16, body: &[u8]) -> BytesMut {
        self.correlation += 1;
        let header = RequestHeader::default()
            .with_request_api_key(key)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(StrBytes::from_static_str("raw")));
        let mut frame = BytesMut::zeroed(4);
        header.encode(&mut frame, header_version).expect("a header");
        frame.extend_from_slice(body);
        let length = frame.len() as i32 - 4;
        frame[..4].copy_from_slice(&length.to_be_bytes());
        frame
    }

    /// Sends arbitrary bytes. The broker may already have disconnected.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap_or_default();
    }

    /// Reads the response to the oldest unanswered request. Only callers of [`Raw::frame`] check the correlation id.
    pub async fn answer<R: Request>(&mut self, version: i16) -> R::Response {
        self.try_answer::<R>(version).await.expect("an answer")
    }

    /// Reads the response to the oldest unanswered request; `None` if the broker has disconnected.
    pub async fn try_answer<R: Request>(&mut self, version: i16) -> Option<R::Response> {
        self.frame().await.map(|frame| decoded::<R>(version, frame))
    }

    /// Reads the next frame; `None` if the broker has disconnected.
    pub async fn frame(&mut self) -> Option<Bytes> {
        let mut length = [0; 4];
        within("an answer", self.stream.read_exact(&mut length)).await.ok()?;
        let mut frame = vec![0; (&length[..]).get_i32() as usize];
        within("an answer", self.stream.read_exact(&mut frame)).await.ok()?;
        Some(frame.into())
    }
}

fn decoded<R: Request>(version: i16, mut frame: Bytes) -> R::Response {
    ResponseHeader::decode(&mut frame, R::Response::header_version(version)).expect("a header");
    let response = R::Response::decode(&mut frame, version).expect("an answer of this version");
    assert!(frame.is_empty(), "{} bytes are left behind an answer", frame.len());
    response
}

pub fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

pub fn topic(name: &str) -> TopicName {
    TopicName(text(name))
}

/// Returns a batch as a client builds it.
pub fn batch(codec: Codec, records: &[Record]) -> Bytes {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.push_record(record, 1).expect("a record");
    }
    builder.finish_with(codec, None).expect("records").into_bytes()
}

pub fn produce(name: &str, partition: i32, acks: i16, batch: Bytes) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
    let topic = TopicProduceData::default().with_name(topic(name)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(1000).with_topic_data(vec![topic])
}

/// Returns the code, the base offset and the message of the only batch.
pub fn produced(response: &ProduceResponse) -> (i16, i64, Option<String>) {
    let partition = &response.responses[0].partition_responses[0];
    let message = partition.error_message.as_ref().map(ToString::to_string);
    (partition.error_code, partition.base_offset, message)
}

pub fn fetch(name: &str, partition: i32, offset: i64, wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_current_leader_epoch(-1)
        .with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic(topic(name)).with_partitions(vec![partition]);
    FetchRequest::default().with_max_wait_ms(wait_ms).with_min_bytes(1).with_max_bytes(1 << 24).with_topics(vec![topic])
}

/// Returns the code, the end of the log and the batches of the only partition.
pub fn fetched(response: &FetchResponse) -> (i16, i64, Vec<RecordBatch>) {
    let partition = &response.responses[0].partitions[0];
    let mut bytes = partition.records.clone().unwrap_or_default();
    let mut batches = Vec::new();
    while bytes.len() > 12 {
        let length = 12 + u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        batches.push(RecordBatch::parse(bytes.split_to(length)).expect("a batch"));
    }
    (partition.error_code, partition.high_watermark, batches)
}

pub fn records(batches: &[RecordBatch]) -> Vec<Record> {
    let own = |batch: &RecordBatch| {
        let records = batch.records().expect("readable");
        records.iter().map(|record| records.own(&record.expect("a record"))).collect::<Vec<_>>()
    };
    batches.iter().flat_map(own).collect()
}
