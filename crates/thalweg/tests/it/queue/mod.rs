//! Queues: with the client and the command line, and with messages of any size.

mod queues;
mod large_messages;
