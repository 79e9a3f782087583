//! Somebody else on the same broker, whom another's mistakes must not touch.

use client::{Client, ErrorKind, Start, Subscription};

use crate::reading::{publish, subscribe, values};
use crate::server::{Server, within};

pub struct Bystander {
    clients: [Client; 2],
    subscriptions: [Subscription; 2],
    round: usize,
}

impl Bystander {
    /// One over TCP and one over QUIC, both at work already.
    pub async fn of(server: &Server) -> Self {
        let clients = [server.client("tcp").await, server.client("quic").await];
        let subscriptions = [
            subscribe(&clients[0], "bystander", Start::Live).await,
            subscribe(&clients[1], "bystander", Start::Live).await,
        ];
        let mut bystander = Self { clients, subscriptions, round: 0 };
        bystander.is_unharmed().await;
        bystander
    }

    /// Publishes and receives over connections that were open before, and a new one.
    pub async fn is_unharmed(&mut self) {
        for client in &self.clients {
            publish(client, "bystander", [self.round]).await;
        }
        for subscription in &mut self.subscriptions {
            let round = self.round.to_string();
            assert_eq!(values(subscription, 2).await, [round.as_str(), round.as_str()]);
        }
        self.round += 1;
    }

    /// The metrics, over a connection that was open before.
    pub fn watcher(&self) -> &Client {
        &self.clients[0]
    }
}

/// What a client's call says that it failed with.
pub async fn kind_of<T>(what: &str, call: impl Future<Output = client::Result<T>>) -> Result<(), ErrorKind> {
    within(what, call).await.map(drop).map_err(|error| error.kind)
}
