//! Dependencies that are allowed between crates, and names that a crate may not use.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::source::{Source, find_words};
use super::{TextFile, Violation};

/// Packages of this workspace with those that each may use. Tests may use more: `[dev-dependencies]` are ignored.
const ARROWS: &[(&str, &[&str])] = &[
    ("engine", &[]),
    ("storage", &["engine"]),
    ("wire", &["engine"]),
    ("net", &[]),
    ("console", &[]),
    ("consensus", &[]),
    ("sim", &["broker", "cluster", "consensus", "engine", "storage"]),
    ("cluster", &["consensus", "engine", "storage"]),
    ("broker", &["engine", "storage"]),
    ("mesh", &["broker", "engine", "net"]),
    ("doors", &["broker", "engine", "wire", "net", "console"]),
    ("client", &["wire", "engine", "net"]),
    ("bench", &["client", "net", "console"]),
    (
        "thalweg",
        &[
            "engine",
            "storage",
            "wire",
            "net",
            "broker",
            "doors",
            "client",
            "bench",
            "cluster",
            "consensus",
            "mesh",
            "console",
        ],
    ),
    ("xtask", &[]),
];

/// Names that the code of a crate may not use, except in tests, and the reasons.
const BARRED: &[(&str, &[&str], &str)] = &[
    (
        "engine",
        &["tokio", "std::fs", "std::net", "std::thread", "std::time::Instant", "std::time::SystemTime"],
        "the engine is pure: take it as an argument or return it as a value",
    ),
    (
        "consensus",
        &["tokio", "std::fs", "std::net", "std::thread", "std::time"],
        "consensus is values in and values out: time, disk and network are its caller's",
    ),
    ("wire", &["tokio", "quinn", "std::net"], "the protocol is values: sockets are for net, client and doors"),
    ("broker", &["tokio::net"], "the broker has no sockets: they are for net and doors"),
];

/// Crates that may not depend on another one, not even for their tests.
const BARRED_DEPENDENCIES: &[(&str, &str)] = &[("engine", "tokio")];

pub fn check(files: &[TextFile], sources: &[Source<'_>]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        if let Some(name) = crate_of_manifest(&file.path) {
            match file.text.parse::<Table>() {
                Ok(manifest) => check_manifest(file, name, &manifest, &mut violations),
                Err(e) => violations.push(Violation::new(&file.path, 1, "arrows", format!("fix the manifest: {e}"))),
            }
        }
    }
    for (name, words, why) in BARRED {
        let prefix = format!("crates/{name}/src/");
        for source in sources.iter().filter(|source| source.path.starts_with(&prefix)) {
            for word in *words {
                for at in find_named(source, word) {
                    let advice = format!("do not use {word}: {why}");
                    violations.push(Violation::new(source.path, source.line_of(at), "barred", advice));
                }
            }
        }
    }
    violations
}

fn crate_of_manifest(path: &str) -> Option<&str> {
    let folder = path.strip_suffix("/Cargo.toml")?;
    match folder.strip_prefix("crates/") {
        Some(name) if !name.contains('/') => Some(name),
        _ => (folder == "xtask").then_some(folder),
    }
}

fn check_manifest(file: &TextFile, name: &str, manifest: &Table, violations: &mut Vec<Violation>) {
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
        let advice = format!("list the crates that {name} may use, in ARROWS of xtask/src/tidy/arrows.rs");
        violations.push(Violation::new(&file.path, 1, "arrows", advice));
        return;
    };
    for used in dependencies(manifest, &["dependencies", "build-dependencies"]) {
        let is_ours = ARROWS.iter().any(|(ours, _)| *ours == used);
        if is_ours && !allowed.contains(&used.as_str()) {
            let allowed = if allowed.is_empty() { "no crate of this workspace".to_owned() } else { allowed.join(", ") };
            let advice = format!("drop the dependency on {used}: {name} may use {allowed}");
            violations.push(Violation::new(&file.path, line_naming(&file.text, &used), "arrows", advice));
        }
    }
    let all = dependencies(manifest, &["dependencies", "build-dependencies", "dev-dependencies"]);
    for (_, barred) in BARRED_DEPENDENCIES.iter().filter(|(from, barred)| *from == name && all.contains(*barred)) {
        let advice = format!("drop the dependency on {barred}: {name} does without it, in tests too");
        violations.push(Violation::new(&file.path, line_naming(&file.text, barred), "arrows", advice));
    }
}

/// Returns the packages in the tables of these names, including those for one platform only. A package of this
/// workspace is named by its folder, in any notation.
fn dependencies(manifest: &Table, names: &[&str]) -> BTreeSet<String> {
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let owners = [manifest].into_iter().chain(platforms.filter_map(Value::as_table));
    let tables = owners.flat_map(|owner| names.iter().filter_map(|name| owner.get(*name)?.as_table()));
    let packages = tables.flatten().map(|(key, value)| {
        let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
        package.strip_prefix("thalweg-").unwrap_or(package).to_owned()
    });
    packages.collect()
}

fn line_naming(text: &str, word: &str) -> usize {
    1 + text.lines().position(|line| line.trim_start().starts_with(word)).unwrap_or(0)
}

/// Returns the positions at which the code names a path: written out, or as one of the names in `parent::{..}`.
fn find_named(source: &Source<'_>, path: &str) -> Vec<usize> {
    let mut found = source.find(path);
    if let Some((parent, name)) = path.rsplit_once("::") {
        let group = format!("{parent}::{{");
        for at in source.find(&group) {
            let names = &source.code[at + group.len()..];
            let end = names.find(['}', ';']).unwrap_or(names.len());
            found.extend(find_words(&names[..end], name).into_iter().map(|inside| at + group.len() + inside));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| TextFile { path: (*path).into(), text: (*text).into() };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        check(&files, &Source::read_all(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_arrow_the_wrong_way_is_found_however_it_is_written() {
        let cases = [
            "[dependencies]\nclient.workspace = true\n",
            "[dependencies]\nclient = { workspace = true }\n",
            "[dependencies]\nclient2 = { package = \"thalweg-client\", path = \"../client\" }\n",
            "[build-dependencies]\nthalweg-client.path = \"../client\"\n",
            "[target.'cfg(unix)'.dependencies]\nclient.workspace = true\n",
        ];
        for manifest in cases {
            let found = violations(&[("crates/wire/Cargo.toml", manifest)]);
            assert_eq!(found.len(), 1, "{manifest}: {found:?}");
            assert!(found[0].ends_with("drop the dependency on client: wire may use engine"), "{found:?}");
        }
        let fine = "[dependencies]\nengine.workspace = true\n[dev-dependencies]\nclient.workspace = true\n";
        assert!(violations(&[("crates/wire/Cargo.toml", fine)]).is_empty());
        assert_eq!(violations(&[("crates/common/Cargo.toml", "")]).len(), 1, "a crate without a line in the table");
        assert_eq!(violations(&[("crates/engine/Cargo.toml", "[dev-dependencies]\ntokio = \"1\"\n")]).len(), 1);
    }

    #[test]
    fn sockets_in_the_broker_are_found_also_inside_of_groups() {
        let path = "crates/broker/src/a.rs";
        for text in
            ["use tokio::net::TcpStream;", "use tokio::{\n    net::TcpStream, sync};", "fn f() { tokio::net::x() }"]
        {
            assert_eq!(violations(&[(path, text)]).len(), 1, "{text}");
        }
        for text in ["// tokio::net", "use tokio::network;", "#[cfg(test)] mod tests { use tokio::net; }"] {
            assert!(violations(&[(path, text)]).is_empty(), "{text}");
        }
    }
}
