//! A broker inside this program, without a socket: one task publishes, two subscribe, one of them by a pattern.
//!
//! Nothing has to run before: `cargo run -p thalweg --example embedded`.

use std::error::Error;

use thalweg::Embedded;
use thalweg_client::{Client, Record, Start};

const COUNT: usize = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let broker = Embedded::start()?;

    // Each client has connections of its own, through memory; everything else is as over a network.
    let mut everything = broker.client().subscribe("sensors.*").open().await?;
    let publishing = tokio::spawn(publish(broker.client()));
    for _ in 0..COUNT {
        let message = everything.next().await?;
        println!("{}: {}", message.topic, String::from_utf8_lossy(message.record.value()));
    }
    publishing.await??;

    // Published records are kept and can be read again, here from the third record on.
    let mut again = broker.client().subscribe("sensors.kitchen").start(Start::Offset(2)).open().await?;
    let third = again.next().await?;
    println!("the third was {}", String::from_utf8_lossy(third.record.value()));
    Ok(())
}

async fn publish(client: Client) -> thalweg_client::Result<()> {
    for i in 0..COUNT {
        client.publish("sensors.kitchen", Record::new(format!("{} degrees", 20 + i))).await?;
    }
    Ok(())
}
