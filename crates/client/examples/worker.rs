//! Processes the messages of a queue, and prints the outcome of each.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example worker`, in several terminals if you like,
//! and send a message: `thalweg queue send jobs 'one coffee'`. A message `fail` is returned and redelivered.

use std::error::Error;
use std::time::Duration;

use thalweg_client::{Client, NewQueue, ReceivedMessage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "jobs".to_owned());
    let server = args.next().unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;
    client.create_queue(NewQueue::new(&name).with("backoff_ms_min", "1000").with("backoff_ms_max", "60000")).await?;

    println!("works through {name}; stop with Ctrl-C");
    let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    let report = client.queue(&name).worker().in_flight_max(4).run(handle, stop).await?;
    println!("{} done, {} returned, {} lost", report.done, report.returned, report.lost);
    Ok(())
}

/// Processes one message. Its lease is extended for as long as this function runs.
async fn handle(received: ReceivedMessage) -> Result<(), String> {
    let body = String::from_utf8_lossy(&received.message.body);
    println!("{} (attempt {}): {body}", received.message.id, received.message.attempts);
    tokio::time::sleep(Duration::from_millis(100)).await;
    if body == "fail" { Err("it was asked to".to_owned()) } else { Ok(()) }
}
