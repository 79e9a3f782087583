//! Requests and replies: one task turns words into capitals, the other sends requests to it and prints the replies.
//!
//! Start `thalweg serve` first; then `cargo run -p thalweg-client --example request_reply`, with another broker
//! as `cargo run -p thalweg-client --example request_reply -- 127.0.0.1:7400`.

use std::error::Error;
use std::time::Duration;

use thalweg_client::{Client, Missing, Record, Subscription};

const TOPIC: &str = "capitals";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7400".to_owned());
    let client = Client::connect(&server).await?;

    // Each request is delivered to one member of the group.
    // The topic is created with the first request, and may be missing until then.
    let questions = client.subscribe(TOPIC).group("answerers").missing(Missing::Wait).open().await?;
    let answering = tokio::spawn(answer(client.clone(), questions));
    for word in ["hello", "from", "thalweg"] {
        let reply = client.request(TOPIC, Record::new(word), Duration::from_secs(1)).await?;
        println!("{word} -> {}", String::from_utf8_lossy(reply.value()));
    }
    answering.abort();

    // If the topic has no subscriber, the client returns an error immediately instead of waiting.
    match client.request("nobody-there", Record::new("hello"), Duration::from_secs(1)).await {
        Ok(reply) => println!("somebody answered: {}", String::from_utf8_lossy(reply.value())),
        Err(error) => println!("as expected: {error}"),
    }
    Ok(())
}

async fn answer(client: Client, mut questions: Subscription) -> thalweg_client::Result<()> {
    loop {
        let question = questions.next().await?.record;
        let capitals = String::from_utf8_lossy(question.value()).to_uppercase();
        client.reply(&question, Record::new(capitals)).await?;
    }
}
