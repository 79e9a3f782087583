//! Publishes a thousand records to a topic, then one whose position it prints.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example publish`, with another topic or
//! another broker as `cargo run -p thalweg-client --example publish -- orders 127.0.0.1:7400`.

use std::error::Error;

use thalweg_client::{Acks, Client, Record};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());
    let server = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;

    // A publisher gathers records into batches and keeps many in flight. Records with the same key go to the same
    // partition, which holds each once and in order, even if the connection breaks in the meantime.
    let publisher = client.publisher(&topic).acks(Acks::Accepted).open().await?;
    for i in 0..1000 {
        let record = Record::new(format!("hello number {i}")).with_key(format!("key-{}", i % 10));
        publisher.send(&record).await?;
    }
    // `send` returns the outcome of one record; `flush` that of all records.
    publisher.flush().await?;
    println!("published 1000 records to {topic}");

    let last = Record::new("and one more").with_header("content-type", "text/plain");
    let place = client.publish(&topic, last).await?;
    println!("the last is at offset {} of partition {}", place.base_offset, place.partition);
    Ok(())
}
