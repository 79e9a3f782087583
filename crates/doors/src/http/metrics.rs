//! Page of metrics, which is generated once for all concurrent requests.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use broker::{Broker, Held};
use bytes::Bytes;
use tokio::sync::Mutex;

use super::errors::Result;

/// Number of bytes that are charged for a page until its length is known.
const PAGE_BYTES: usize = 256 << 10;

/// Source of metrics pages.
#[derive(Default)]
pub(super) struct MetricsPages {
    /// Number of requests so far.
    asked: AtomicU64,
    newest: Mutex<Newest>,
}

/// Newest page, while a response holds it.
#[derive(Default)]
struct Newest {
    /// Number of requests that arrived before the page was generated, for which it is therefore new enough.
    answers: u64,
    page: Weak<MetricsPage>,
}

/// Generated page, with its memory.
pub(super) struct MetricsPage {
    pub text: Bytes,
    _held: Held,
}

impl MetricsPages {
    /// Returns a page that is no older than the request.
    pub async fn read(&self, broker: &Broker, address: IpAddr) -> Result<Arc<MetricsPage>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut newest = self.newest.lock().await;
        if newest.answers >= number
            && let Some(page) = newest.page.upgrade()
        {
            return Ok(page);
        }
        let answers = broker.answers();
        // The memory is reserved before the page is generated, since generating takes longer than a refusal.
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
    async fn concurrent_requests_share_a_page_and_later_ones_get_a_new_one() {
        let broker = Broker::start(Settings::default(), &[Handle::current()]).expect("started");
        let pages = MetricsPages::default();
        let read = || pages.read(&broker, Ipv4Addr::LOCALHOST.into());
        // Both requests are waiting before a page is generated.
        let lock = pages.newest.lock().await;
        let (first, second, _) = tokio::join!(read(), read(), async { drop(lock) });
        let first = first.expect("a page");
        let second = second.expect("a page");
        assert!(Arc::ptr_eq(&first, &second));
        let later = read().await.expect("a page");
        assert!(!Arc::ptr_eq(&first, &later));
    }
}
