//! Field masks of updates.

use std::collections::HashSet;

use prost_types::FieldMask;

/// Returns each path of a mask once, in the order of their first occurrence; none without a mask.
///
/// A client can repeat a path as often as its request has room for. A repeated path means nothing, and each one would
/// copy a field as large as the request.
pub(super) fn distinct(mask: Option<FieldMask>) -> Vec<String> {
    let paths = mask.map(|mask| mask.paths).unwrap_or_default();
    let mut seen = HashSet::new();
    let is_first: Vec<bool> = paths.iter().map(|path| seen.insert(path.as_str())).collect();
    paths.into_iter().zip(is_first).filter_map(|(path, is_first)| is_first.then_some(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(paths: impl IntoIterator<Item = &'static str>) -> Option<FieldMask> {
        Some(FieldMask { paths: paths.into_iter().map(str::to_owned).collect() })
    }

    #[test]
    fn each_path_of_a_mask_is_used_once() {
        assert_eq!(distinct(None), [""; 0]);
        let repeated = std::iter::repeat_n(["labels", "push_config", "labels"], 100_000).flatten();
        assert_eq!(distinct(mask(repeated)), ["labels", "push_config"]);
        assert_eq!(distinct(mask(["a.b", "a", "a.b", "a.c"])), ["a.b", "a", "a.c"]);
    }
}
