//! The page of metrics, which is made once for all who ask for it at a time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use broker::{Broker, Held};
use bytes::Bytes;
use tokio::sync::Mutex;

use super::errors::Result;

/// Bytes that a page takes until its length is known.
const PAGE_BYTES: usize = 256 << 10;

/// Gives pages to those who ask.
#[derive(Default)]
pub(super) struct MetricsPages {
    /// Requests so far.
    asked: AtomicU64,
    newest: Mutex<Newest>,
}

/// A page, as long as somebody has it.
#[derive(Default)]
struct Newest {
    /// Requests that were there before it was made: it tells them of all that they may know of.
    answers: u64,
    page: Weak<MetricsPage>,
}

/// A page that was made, in memory that it holds.
pub(super) struct MetricsPage {
    pub text: Bytes,
    _held: Held,
}

impl MetricsPages {
    /// A page that is no older than the request.
    pub async fn read(&self, broker: &Broker, address: IpAddr) -> Result<Arc<MetricsPage>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut newest = self.newest.lock().await;
        if newest.answers >= number
            && let Some(page) = newest.page.upgrade()
        {
            return Ok(page);
        }
        let answers = broker.answers();
        // Before it is made: that takes longer than to refuse it.
        let mut held = answers.try_take(Some(address), PAGE_BYTES).ok_or_else(|| answers.refuse())?;
        newest.answers = self.asked.load(Ordering::SeqCst);
        let mut text = answers.work(PAGE_BYTES, || broker.stats()).await?;
        text.shrink_to_fit();
        held.overdraw(text.len().saturating_sub(held.bytes()));
        held.shrink(text.len());
        let page = Arc::new(MetricsPage { text: text.into(), _held: held });
        newest.page = Arc::downgrade(&page);
        Ok(page)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use broker::Settings;
    use tokio::runtime::Handle;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_together_share_a_page_and_who_asks_later_gets_a_new_one() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let pages = MetricsPages::default();
        let read = || pages.read(&broker, Ipv4Addr::LOCALHOST.into());
        // Both have asked before a page is made.
        let lock = pages.newest.lock().await;
        let (first, second, _) = tokio::join!(read(), read(), async { drop(lock) });
        let (first, second) = (first.expect("a page"), second.expect("a page"));
        assert!(Arc::ptr_eq(&first, &second));
        let later = read().await.expect("a page");
        assert!(!Arc::ptr_eq(&first, &later));
    }
}
