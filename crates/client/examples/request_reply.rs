//! Asks and answers: one task turns words to capitals, the other asks it to and prints what comes back.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example request_reply`, with another broker
//! as `cargo run -p thalweg-client --example request_reply -- 127.0.0.1:7400`.

use std::error::Error;
use std::time::Duration;

use client::{Client, Missing, Record, Subscription};

const TOPIC: &str = "capitals";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;

    // Of several that answer in one group, each request goes to one.
    // The topic is created with the first request, and may be missing until then.
    let questions = client.subscribe(TOPIC).group("answerers").missing(Missing::Wait).open().await?;
    let answering = tokio::spawn(answer(client.clone(), questions));
    for word in ["hello", "from", "thalweg"] {
        let reply = client.request(TOPIC, Record::new(word), Duration::from_secs(1)).await?;
        println!("{word} -> {}", String::from_utf8_lossy(reply.value()));
    }
    answering.abort();

    // Where nobody answers, the client says so at once and does not wait.
    match client.request("nobody-there", Record::new("hello"), Duration::from_secs(1)).await {
        Ok(reply) => println!("somebody answered: {}", String::from_utf8_lossy(reply.value())),
        Err(error) => println!("as expected: {error}"),
    }
    Ok(())
}

async fn answer(client: Client, mut questions: Subscription) -> client::Result<()> {
    loop {
        let question = questions.next().await?.record;
        let capitals = String::from_utf8_lossy(question.value()).to_uppercase();
        client.reply(&question, Record::new(capitals)).await?;
    }
}
