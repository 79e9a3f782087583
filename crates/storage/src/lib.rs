//! Where log bytes live. Today: in memory.

mod memory;

pub use memory::MemoryLog;
