//! Reads a topic or a pattern as a member of a consumer group, and prints its records and the changes of its
//! assignment.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example consumer` in several terminals, with
//! another group and topic as `cargo run -p thalweg-client --example consumer -- billing 'orders.>'`.

use std::error::Error;

use thalweg_client::{Client, ConsumerEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let group = args.next().unwrap_or_else(|| "readers".to_owned());
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());
    let server = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;

    let mut consumer = client.consumer(&group).topic(&topic).open().await?;
    println!("a member of {group}, which reads {topic}; stop with Ctrl-C");
    loop {
        let event = tokio::select! {
            event = consumer.next_event() => event?,
            _ = tokio::signal::ctrl_c() => break,
        };
        match event {
            ConsumerEvent::Batch(batch) => {
                for record in &batch.records()? {
                    let record = record?;
                    let value = String::from_utf8_lossy(record.value.unwrap_or_default());
                    println!("{} {}/{}: {value}", batch.topic, batch.partition, record.offset);
                }
            }
            ConsumerEvent::Gap { topic, partition, from, to } => {
                println!("{topic} {partition}: records {from} to {} are gone", to - 1);
            }
            ConsumerEvent::End { topic, partition, end } => println!("{topic} {partition}: read up to {end}"),
            ConsumerEvent::Assigned(gained) => println!("reads {} partitions more", gained.len()),
            ConsumerEvent::Revoked(given_up) => println!("gives {} partitions up", given_up.len()),
            ConsumerEvent::Lost(lost) => println!("was removed from its group, and lost {} partitions", lost.len()),
            // Later versions may report more.
            _ => {}
        }
    }
    // Commits the printed records.
    Ok(consumer.close().await?)
}
