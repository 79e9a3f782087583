//! Integration tests of the doors, each over its own protocol.

mod forwarded;
mod http;
mod http_caches;
mod http_client;
mod http_connections;
mod http_edge;
mod http_queues;
mod http_streams;
mod redis;
mod tenants;
