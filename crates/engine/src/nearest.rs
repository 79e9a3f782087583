//! Suggestions for unknown names: the nearest of the names that exist.

/// Maximum number of names that one search compares; a broker may have many more.
const NAMES_COMPARED_MAX: usize = 4096;

/// Returns the known name that is nearest to an unknown one: at most two edits away, plus one more for every four
/// characters, and at least half of the characters are the same.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = |known: &str| 2 + known.len() / 4;
    let compared = known.filter(|known| known.len().abs_diff(name.len()) <= allowed(known)).take(NAMES_COMPARED_MAX);
    let (distance, nearest) = compared.map(|known| (distance(name, known), known)).min()?;
    (distance <= allowed(nearest) && 2 * distance <= name.len().max(nearest.len())).then_some(nearest)
}

/// Returns the known name of a topic, a queue or a cache that is nearest to an unknown one. It has the same beginning
/// up to the dot that ends the prefix of a tenant, so that no client receives a name of another tenant.
pub fn nearest_resource<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let begin = tenant_prefix(name);
    nearest(name, known.filter(|known| known.starts_with(begin)))
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
        let nearest = |name| nearest_resource(name, known.into_iter());
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
