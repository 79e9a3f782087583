//! One thread and one runtime a core: a connection stays on the shard that it was given.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

/// The shards of a process. Dropping it stops them.
pub struct Shards {
    shards: Vec<Shard>,
    stop: watch::Sender<bool>,
}

struct Shard {
    handle: Handle,
    load: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Shards {
    pub fn start(count: usize) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let shards = (0..count.max(1))
            .map(|i| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                let handle = runtime.handle().clone();
                let mut stopped = stopped.clone();
                let thread = std::thread::Builder::new().name(format!("shard-{i}")).spawn(move || {
                    // An error means that the sender is gone, which is a stop too.
                    runtime.block_on(async { stopped.wait_for(|stop| *stop).await.map(drop).unwrap_or_default() });
                    runtime.shutdown_background();
                })?;
                Ok(Shard { handle, load: Arc::default(), thread: Some(thread) })
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { shards, stop })
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    pub fn handle(&self, shard: usize) -> &Handle {
        &self.shards[shard % self.shards.len()].handle
    }

    pub fn handles(&self) -> Vec<Handle> {
        self.shards.iter().map(|shard| shard.handle.clone()).collect()
    }

    /// Connections of each shard.
    pub fn loads(&self) -> Vec<usize> {
        self.shards.iter().map(|shard| shard.load.load(Ordering::Relaxed)).collect()
    }

    /// A place on the shard that has the fewest connections.
    pub fn place(&self) -> Place {
        let shard =
            (0..self.shards.len()).min_by_key(|i| self.shards[*i].load.load(Ordering::Relaxed)).unwrap_or_default();
        self.place_on(shard)
    }

    pub fn place_on(&self, shard: usize) -> Place {
        let load = self.shards[shard].load.clone();
        load.fetch_add(1, Ordering::Relaxed);
        Place { shard, load }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for shard in &mut self.shards {
            if let Some(thread) = shard.thread.take()
                && thread.join().is_err()
            {
                tracing::error!("a shard ended with a panic");
            }
        }
    }
}

/// A connection's place on a shard, given back when it is dropped.
pub struct Place {
    pub shard: usize,
    load: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.load.fetch_sub(1, Ordering::Relaxed);
    }
}
