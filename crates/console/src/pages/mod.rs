//! Pages, one in each file: data as plain values, and a function that renders them.

pub mod api;
pub mod audit;
pub mod cache;
pub mod caches;
pub mod client;
pub mod clients;
pub mod cluster;
pub mod entry;
pub mod error;
pub mod group;
pub mod groups;
pub mod login;
pub mod mesh;
pub mod overview;
pub mod queue;
pub mod queues;
pub mod record;
pub mod records;
pub mod security;
pub mod settings;
pub mod stream;
pub mod streams;
pub mod tail;
pub mod topic;
pub mod topics;
