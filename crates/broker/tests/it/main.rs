//! Tests of the broker as doors use it, with many concurrent threads and no socket.

mod support;

mod altering;
mod channels;
mod classic_groups;
mod consumer_groups;
mod delivering;
mod copies;
mod durable;
mod groups;
mod growing;
mod identity;
mod joining;
mod lanes;
mod leaderships;
mod limits;
mod old_directory;
mod security;
mod tenants;
mod topics;
