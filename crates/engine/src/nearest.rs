//! Suggestions for unknown names: the nearest of the names that exist.

/// Maximum work of one search, in compared pairs of characters; a broker may have many more names than that allows.
const NEAREST_WORK_MAX: usize = 1 << 19;
/// Work that each name costs in addition, also if it is too long or too short.
const NAME_WORK: usize = 8;

/// Returns the known name that is nearest to an unknown one: at most two edits away, plus one more for every four
/// characters, and at least half of the characters are the same.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut work_left = NEAREST_WORK_MAX;
    nearest_within(name, known, |_| true, &mut work_left)
}

/// Returns the known name of a topic, a queue or a cache that is nearest to an unknown one. It has the same beginning
/// up to the dot that ends the prefix of a tenant, so that no client receives a name of another tenant. Subtracts its
/// work, and compares fewer names if not enough is left.
pub fn nearest_resource<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
    work_left: &mut usize,
) -> Option<&'a str> {
    let begin = tenant_prefix(name);
    let is_own = move |known: &&str| known.starts_with(begin);
    nearest_within(name, known, is_own, work_left)
}

fn nearest_within<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
    is_eligible: impl Fn(&&str) -> bool,
    work_left: &mut usize,
) -> Option<&'a str> {
    let allowed = |known: &str| 2 + known.len() / 4;
    let mut work = NEAREST_WORK_MAX.min(*work_left);
    let before = work;
    let mut best: Option<(usize, &str)> = None;
    for known in known {
        let is_compared = is_eligible(&known) && known.len().abs_diff(name.len()) <= allowed(known);
        let needed = NAME_WORK + if is_compared { name.len() * known.len() } else { 0 };
        let Some(left) = work.checked_sub(needed) else {
            break;
        };
        work = left;
        if is_compared {
            let found = (distance(name, known), known);
            best = Some(best.map_or(found, |best| best.min(found)));
        }
    }
    *work_left -= before - work;
    let (distance, nearest) = best?;
    (distance <= allowed(nearest) && 2 * distance <= name.len().max(nearest.len())).then_some(nearest)
}

/// Returns the beginning of a name that is the prefix of a tenant, if there is such a tenant: see
/// [`TenantName`](crate::security::TenantName). It is empty if the name has no such beginning.
fn tenant_prefix(name: &str) -> &str {
    // Only the prefix of a project has two dots.
    let at = if name.starts_with('_') { 1 } else { 0 };
    name.match_indices('.').nth(at).map_or("", |(dot, _)| &name[..=dot])
}

/// Returns the Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_name_that_was_meant() {
        let known = ["orders", "orders.eu", "payments", "t"];
        let nearest = |name| nearest(name, known.into_iter());
        assert_eq!(nearest("ordres"), Some("orders"));
        assert_eq!(nearest("Orders"), Some("orders"));
        assert_eq!(nearest("order.eu"), Some("orders.eu"));
        assert_eq!(nearest("payment"), Some("payments"));
        assert_eq!(nearest("shipping"), None);
        assert_eq!(nearest("x"), None, "nothing of it is alike");
        assert_eq!(nearest("nope"), None);
        assert_eq!(super::nearest("foo", ["jobs", "logs"].into_iter()), None);
    }

    #[test]
    fn the_nearest_name_is_one_of_the_same_tenant() {
        let known = ["acme.orders", "acmf.order", "_project.shop.order", "_project.shoq.ordes", "order"];
        let nearest = |name| nearest_resource(name, known.into_iter(), &mut { 100_000 });
        assert_eq!(nearest("acme.order"), Some("acme.orders"));
        assert_eq!(nearest("acmg.orders"), None);
        assert_eq!(nearest("_project.shop.orders"), Some("_project.shop.order"));
        assert_eq!(nearest("_project.shoe.order"), None);
        assert_eq!(nearest("ordre"), Some("order"));
        for tenant in ["acme", "project:shop"].map(|name| crate::security::TenantName::parse(name).expect("a name")) {
            assert_eq!(tenant_prefix(&tenant.inner("a.b")), tenant.prefix());
        }
    }
}
