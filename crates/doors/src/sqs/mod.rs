//! The SQS door: what Amazon's SDKs speak to queues.

pub mod sigv4;
