//! Lock and atomics below a cap, in one place so that a model checker can replace them.

/// Value on its own cache lines: writes to it do not slow down readers of its neighbors.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

#[cfg(not(net_loom))]
pub use {
    parking_lot::Mutex,
    std::sync::atomic::{AtomicU64, Ordering},
};

#[cfg(net_loom)]
pub use {
    self::model::Mutex,
    loom::sync::atomic::{AtomicU64, Ordering},
};

#[cfg(net_loom)]
mod model {
    use loom::sync::MutexGuard;

    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("invariant: a model ends with its first panic")
        }
    }
}
