//! Fuzz targets: for all code that reads external bytes, what must hold for every input.
//!
//! Each public module is a target. Its `check` panics if an input breaks the property that its first lines state.

pub mod credential;
pub mod frames;
pub mod join_message;
pub mod join_token;
pub mod kafka_request;
pub mod lua_data;
pub mod mesh_invitation;
pub mod mesh_link;
pub mod node_link;
pub mod node_manifest;
pub mod pattern;
pub mod producers;
pub mod pubsub_request;
pub mod pubsub_schema;
pub mod queue_filter;
pub mod record_batch;
pub mod redis_request;
pub mod redis_rules;
pub mod redis_value;
pub mod request;
pub mod response;
pub mod service;
pub mod sqs_policy;
pub mod sqs_request;
mod support;
