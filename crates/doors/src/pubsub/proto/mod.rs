//! Google's messages: structs with their codec, and the descriptors that paths and JSON are read from.
//!
//! Everything below is written by `cargo xtask codegen`.

#![allow(clippy::all, clippy::pedantic, missing_docs)]

pub mod google {
    //! The packages, nested as their names are.

    pub mod iam {
        //! Policies.
        pub mod v1;
    }
    pub mod pubsub {
        //! Topics, subscriptions, schemas.
        pub mod v1;
    }
    pub mod rpc;
    pub mod r#type;
}

pub use google::iam::v1 as iam;
pub use google::pubsub::v1::*;

/// All of it, and what it builds on, as a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
