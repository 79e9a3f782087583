//! Other clients of the same broker, which must not be affected by the errors of a test's peers.

use client::{Client, ErrorKind, Start, Subscription};

use super::reading::{publish, subscribe, values};
use super::server::{Server, within};

pub struct Bystander {
    clients: [Client; 2],
    subscriptions: [Subscription; 2],
    round: usize,
}

impl Bystander {
    /// Opens one client over TCP and one over QUIC, both in use.
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

    /// Checks that publishing and receiving work, over connections that were open before and over a new one.
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

    /// Returns a client for the metrics, over a connection that was open before.
    pub fn watcher(&self) -> &Client {
        &self.clients[0]
    }
}

/// Returns the kind of the error with which a client's call fails.
pub async fn kind_of<T>(what: &str, call: impl Future<Output = client::Result<T>>) -> Result<(), ErrorKind> {
    within(what, call).await.map(drop).map_err(|error| error.kind)
}
