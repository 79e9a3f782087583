//! Pagination of lists. A token is the name at which the next page begins, so that it stays valid as items come and go.

use super::errors::{Failure, Result};

/// Default and maximum number of items of a page.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

pub(super) struct Page<T> {
    pub items: Vec<T>,
    /// Token of the next page; empty after the last page.
    pub next_page_token: String,
}

/// Returns the number of items of a page for the number that a client wants.
pub(super) fn page_size(size: i32) -> Result<usize> {
    match usize::try_from(size) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_MAX)),
        Err(error) => Err(Failure::invalid(format!("Invalid page size: {size} ({error})"))),
    }
}

/// Returns the page that begins with this token, from items in any order.
pub(super) fn page<T>(
    items: impl Iterator<Item = T>,
    name: impl Fn(&T) -> String,
    size: i32,
    token: &str,
) -> Result<Page<T>> {
    let size = page_size(size)?;
    if !token.is_empty() && !token.starts_with("projects/") {
        return Err(Failure::invalid("Invalid page token"));
    }
    let mut named: Vec<(String, T)> =
        items.map(|item| (name(&item), item)).filter(|(name, _)| name.as_str() >= token).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let next_page_token = named.get(size).map(|(name, _)| name.clone()).unwrap_or_default();
    named.truncate(size);
    Ok(Page { items: named.into_iter().map(|(_, item)| item).collect(), next_page_token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_together_are_the_list() {
        let names: Vec<String> = (0..7).rev().map(|i| format!("projects/p/topics/t{i}")).collect();
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let page = page(names.iter(), |name| (*name).clone(), 3, &token).expect("a page");
            assert!(page.items.len() <= 3);
            seen.extend(page.items);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert!(seen.is_sorted() && seen.len() == 7, "{seen:?}");
        assert!(page(names.iter(), |name| (*name).clone(), -1, "").is_err());
        assert!(page(names.iter(), |name| (*name).clone(), 1, "zz").is_err());
    }
}
