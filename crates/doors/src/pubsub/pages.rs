//! Pagination of lists. A token is the name at which the next page begins, so that it stays valid as items come and go.

use std::collections::BTreeSet;
use std::ops::Bound;

use tokio::task::yield_now;

use super::errors::{Failure, Result};
use super::names::{Kind, Name, Names, is_id};

/// Default and maximum number of items of a page.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// Names that a list looks at before other tasks of the thread get their turn.
pub(super) const NAMES_PER_TURN: usize = 256;

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

/// Page that a client wants.
pub(super) struct Wanted<'r> {
    pub project: &'r str,
    pub size: usize,
    pub token: &'r str,
}

/// Returns a page of the names of the resources that are shown. It is looked up in the broker's order of names, in
/// slices, with other tasks in between: a token has the broker's name of the resource with which its page begins.
/// `next` returns names of the broker from one on, in their order, and none after the last.
pub(super) async fn names_of_page<F: Future<Output = Result<Vec<String>>>>(
    names: &Names,
    kind: Kind,
    wanted: Wanted<'_>,
    shows: impl Fn(&str) -> bool,
    next: impl Fn(Bound<String>) -> F,
) -> Result<Page<Name>> {
    let Wanted { project, size, token } = wanted;
    let prefix = names.prefix(project);
    let of_token = format!("projects/{project}/");
    let first = match token {
        "" => prefix.as_str(),
        token => token
            .strip_prefix(&of_token)
            .filter(|first| first.starts_with(&prefix))
            .ok_or_else(|| Failure::invalid("Invalid page token"))?,
    };
    let mut from = Bound::Included(first.to_owned());
    let mut items = Vec::new();
    loop {
        let mut slice = next(from).await?;
        for inner in &slice {
            if !inner.starts_with(&prefix) {
                return Ok(Page { items, next_page_token: String::new() });
            }
            let name = names.outer(kind, inner);
            let is_of_project = name.project == project && is_id(&name.id);
            if !is_of_project || !shows(inner) {
                continue;
            }
            if items.len() == size {
                return Ok(Page { items, next_page_token: of_token + inner });
            }
            items.push(name);
        }
        let Some(last) = slice.pop() else {
            return Ok(Page { items, next_page_token: String::new() });
        };
        from = Bound::Excluded(last);
        yield_now().await;
    }
}

/// Returns the page that begins with this token, from names in any order. `None` is a name that is not shown. Other
/// tasks of the thread run after each [`NAMES_PER_TURN`].
pub(super) async fn page_of_names(
    names: impl Iterator<Item = Option<String>>,
    size: i32,
    token: &str,
) -> Result<Page<String>> {
    let size = page_size(size)?;
    check_token(token)?;
    let mut first = BTreeSet::new();
    for (done, name) in names.enumerate() {
        first.extend(name.filter(|name| name.as_str() >= token));
        if first.len() > size + 1 {
            first.pop_last();
        }
        if done % NAMES_PER_TURN == NAMES_PER_TURN - 1 {
            yield_now().await;
        }
    }
    let next_page_token = if first.len() > size { first.pop_last() } else { None };
    Ok(Page { items: first.into_iter().collect(), next_page_token: next_page_token.unwrap_or_default() })
}

fn check_token(token: &str) -> Result<()> {
    if token.is_empty() || token.starts_with("projects/") {
        Ok(())
    } else {
        Err(Failure::invalid("Invalid page token"))
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
    check_token(token)?;
    let mut named: Vec<(String, T)> =
        items.map(|item| (name(&item), item)).filter(|(name, _)| name.as_str() >= token).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    let next_page_token = named.get(size).map(|(name, _)| name.clone()).unwrap_or_default();
    named.truncate(size);
    Ok(Page { items: named.into_iter().map(|(_, item)| item).collect(), next_page_token })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A page has the first of many names, which are looked at in slices.
    #[test]
    fn other_tasks_run_while_a_page_of_many_names_is_found() {
        let count = 4 * NAMES_PER_TURN;
        let names: Vec<String> = (0..count).rev().map(|i| format!("projects/p/subscriptions/s{i:05}")).collect();
        let shown = |name: &String| Some(name.clone()).filter(|name| !name.ends_with('7'));
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let begin = std::mem::take(&mut token);
            let mut page = std::pin::pin!(page_of_names(names.iter().map(shown), 100, &begin));
            let mut pauses = 0;
            let page = loop {
                match (&mut page).now_or_never() {
                    Some(page) => break page.expect("a page"),
                    None => pauses += 1,
                }
            };
            assert_eq!(pauses, 4);
            assert!(page.items.len() <= 100);
            seen.extend(page.items);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        let expected: Vec<String> = names.iter().rev().filter_map(shown).collect();
        assert_eq!(seen, expected);
        assert!(page_of_names(names.iter().map(shown), 1, "zz").now_or_never().is_some_and(|page| page.is_err()));
    }

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
