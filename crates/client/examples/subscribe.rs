//! Prints every record of a topic or a pattern: first the stored records from the oldest on, then new ones.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example subscribe`, with another topic or
//! another broker as `cargo run -p thalweg-client --example subscribe -- 'orders.>' 127.0.0.1:7400`.

use std::error::Error;

use thalweg_client::{Client, Event, Missing, Start};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let topic = args.next().unwrap_or_else(|| "greetings".to_owned());
    let server = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;

    // A pattern has no single history to start from: it gets the records that are published from now on.
    let start = if topic.contains(['*', '>']) { Start::Live } else { Start::Earliest };
    // Reading creates no topic by itself; here the subscriber may start before the first publisher.
    let mut subscription = client.subscribe(&topic).start(start).missing(Missing::Wait).open().await?;
    println!("waiting for {topic}; stop with Ctrl-C");
    // `next` returns one record at a time; `next_event` also reports gaps.
    loop {
        match subscription.next_event().await? {
            Event::Batch(batch) => {
                for record in &batch.records()? {
                    let record = record?;
                    let value = String::from_utf8_lossy(record.value.unwrap_or_default());
                    println!("{} {}/{}: {value}", batch.topic, batch.partition, record.offset);
                }
            }
            Event::Gap { topic, partition, from, to } => {
                println!("{topic} {partition}: records {from} to {} are gone", to - 1);
            }
            Event::Reconnected => println!("the connection was made again; something may be missing"),
            Event::Restarted => println!("the broker was restarted; its topics in memory are empty"),
            // Later versions may report more.
            _ => {}
        }
    }
}
