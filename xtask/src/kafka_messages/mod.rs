//! `cargo xtask kafka-messages`: generates the messages of the Kafka door, from the schemas that Kafka publishes.
//!
//! The schemas are in the jar of Kafka's client. The output consists of tables in Rust; the macros in
//! `messages/message.rs` of the door expand them into structs and their codecs.

mod names;
mod rust;
mod schema;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::run::{Call, Outcome, root};
use rust::snake_case;
use schema::{Schema, Versions};

const FOLDER: &str = "crates/doors/src/kafka/messages/api";
/// Folder into which `bench/peers/kafka/install.sh` puts the jars.
const JARS: &str = "bench/peers/kafka/libs";

/// API that the door serves: its key, and its lowest and highest version.
type Served = (i16, i16, i16);

/// Produce and Fetch: the door has hand-written codecs for them, because it passes batches through unchanged.
const BY_HAND: &[Served] = &[(0, 3, 12), (1, 4, 12)];

/// APIs with generated codecs. The first SaslHandshake is refused, but listed: librdkafka 2.0 uses the second only if
/// the first is listed.
#[rustfmt::skip]
const GENERATED: &[Served] = &[
    (2, 1, 7), (3, 0, 12), (8, 2, 9), (9, 1, 9), (10, 0, 4), (11, 0, 9), (12, 0, 4), (13, 0, 5), (14, 0, 5),
    (15, 0, 6), (16, 0, 5), (17, 0, 1), (18, 0, 4), (19, 2, 7), (20, 1, 6), (21, 0, 2), (22, 0, 4), (23, 2, 4),
    (24, 0, 3), (25, 0, 4), (26, 0, 4), (28, 0, 4), (29, 1, 3), (30, 1, 3), (31, 1, 3), (32, 1, 4), (33, 0, 2),
    (34, 1, 2), (35, 1, 4), (36, 0, 2), (37, 0, 3), (42, 0, 2), (43, 0, 2), (44, 0, 1), (45, 0, 1), (46, 0, 0),
    (47, 0, 0), (48, 0, 1), (49, 0, 1), (50, 0, 0), (51, 0, 0), (55, 0, 2), (60, 0, 2), (61, 0, 0), (65, 0, 0), (66, 0, 1), (68, 0, 1), (69, 0, 1), (74, 0, 1), (75, 0, 0),
    (76, 1, 1), (77, 1, 1), (78, 1, 2), (79, 1, 2), (90, 0, 1), (91, 0, 0), (92, 0, 0),
];

/// Messages that members of a group embed as bytes in other messages. Each begins with its own version.
const EMBEDDED: [(&str, i16, i16); 2] = [("ConsumerProtocolSubscription", 0, 3), ("ConsumerProtocolAssignment", 0, 3)];

/// Texts of the files by their names.
type Files = BTreeMap<String, String>;

pub fn run(args: &[&str]) -> Outcome {
    let jar = match args {
        [] => find_jar()?,
        [jar] => PathBuf::from(jar),
        _ => return Err("the only argument is the path of a jar of Kafka's client".into()),
    };
    let files = write(&read_schemas(&jar.display().to_string())?)?;
    let folder = root().join(FOLDER);
    let failed = |e: std::io::Error| format!("{FOLDER}: {e}");
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        std::fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
    }
    for (name, text) in &files {
        std::fs::write(folder.join(name), text).map_err(|e| format!("{FOLDER}/{name}: {e}"))?;
    }
    Call::line("rustfmt --edition 2024").args(files.keys().map(|name| format!("{FOLDER}/{name}"))).run()?;
    println!("wrote {} files to {FOLDER}", files.len());
    Ok(())
}

fn find_jar() -> Outcome<PathBuf> {
    let missing = || format!("there is no kafka-clients-*.jar in {JARS}: bash bench/peers/kafka/install.sh");
    let is_clients = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("kafka-clients-") && name.ends_with(".jar")
    };
    let entries = std::fs::read_dir(root().join(JARS)).map_err(|e| format!("{} ({e})", missing()))?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).find(is_clients).ok_or_else(missing)
}

/// Reads the schemas of all messages that clients and brokers exchange.
fn read_schemas(jar: &str) -> Outcome<Vec<Schema>> {
    let list = Call::new("unzip").args(["-Z1", jar, "common/message/*.json"]).output()?;
    // One text for all of them: each is an object, without separators.
    let text = Call::new("unzip").args(["-p", jar, "common/message/*.json"]).output()?;
    let schemas = schema::parse_all(&text)?;
    if schemas.len() != list.lines().count() {
        return Err(format!("{} schemas in {} files of {jar}, not one in each", schemas.len(), list.lines().count()));
    }
    Ok(schemas)
}

fn write(schemas: &[Schema]) -> Outcome<Files> {
    names::check(schemas)?;
    let mut files = Files::new();
    let mut by_hand = String::new();
    let mut generated = String::new();
    let mut modules = Vec::new();
    for (served, is_by_hand) in BY_HAND.iter().map(|s| (s, true)).chain(GENERATED.iter().map(|s| (s, false))) {
        let &(key, low, high) = served;
        let [request, response] = ["request", "response"].map(|kind| {
            let found = schemas.iter().find(|schema| schema.key == Some(key) && schema.kind == kind);
            found.ok_or_else(|| format!("there is no {kind} with the key {key}"))
        });
        let request = request?;
        let response = response?;
        let versions = Versions { low, high };
        check_served(request, versions)?;
        check_served(response, versions)?;
        let name = request.name.trim_end_matches("Request");
        let module = snake_case(name);
        let row = format!("{key} {name} {low}..={high}, flexible {:?}", request.flexible_since(versions));
        if is_by_hand {
            writeln!(by_hand, "        {row};").map_err(|e| e.to_string())?;
        } else {
            let types = format!("{module} {} {};", request.name, response.name);
            writeln!(generated, "        {row},\n            {types}").map_err(|e| e.to_string())?;
            files.insert(
                format!("{module}.rs"),
                rust::file(&format!("{name} ({key})"), versions, &[request, response])?,
            );
            modules.push(module);
        }
    }
    for (name, low, high) in EMBEDDED {
        let schema = schemas.iter().find(|schema| schema.name == name).ok_or_else(|| format!("there is no {name}"))?;
        let versions = Versions { low, high };
        check_served(schema, versions)?;
        files.insert(format!("{}.rs", snake_case(name)), rust::file(name, versions, &[schema])?);
        modules.push(snake_case(name));
    }
    files.insert("mod.rs".into(), rust::table(&modules, &by_hand, &generated));
    Ok(files)
}

/// Checks the versions: one that the schema no longer has would be generated without the fields of that version.
fn check_served(schema: &Schema, versions: Versions) -> Outcome {
    if schema.versions.low <= versions.low && versions.high <= schema.versions.high {
        return Ok(());
    }
    Err(format!("{} has the versions {}, not all of {versions}", schema.name, schema.versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_becomes_a_table() {
        let text = r#"// A "comment" {
            { "apiKey": 3, "type": "request", "name": "GetRequest", "validVersions": "0-4", "flexibleVersions": "3+",
              "fields": [
                { "name": "Ids", "type": "[]Id", "versions": "0+", "nullableVersions": "2+", "fields": [ // of all
                  { "name": "TopicID", "type": "uuid", "versions": "2-3" },
                  { "name": "Old", "type": "int8", "versions": "0" },
                  { "name": "Type", "type": "string", "versions": "1+", "nullableVersions": "1+", "default": "null" }
                ]},
                { "name": "Wait", "type": "int32", "versions": "4+", "default": "0x10", "about": "not // a comment" },
                { "name": "New", "type": "bool", "versions": "5+" },
                { "name": "Epoch", "type": "int64", "versions": "3+", "tag": 1, "taggedVersions": "3+", "default": "-1" }
              ] }"#;
        let schemas = schema::parse_all(text).expect("a schema");
        let file = rust::file("Get (3)", Versions { low: 1, high: 4 }, &[&schemas[0]]).expect("a table");
        let expected = "\
message! {
    struct GetRequest (1..=4, flexible Some(3)) {
        0.., null 2.. => ids: Option<Vec<Id>> = Some(Vec::new());
        4.. => wait: i32 = 0x10;
    } tagged {
        1 in 3.. => epoch: i64 = -1;
    }

    struct Id {
        2..=3 => topic_id: Uuid;
        1.. => r#type: Option<String>;
    }
}
";
        assert!(file.ends_with(expected), "{file}");
        assert!(file.contains("use super::super::Uuid;"), "{file}");
    }

    #[test]
    fn structs_of_one_name_with_other_fields_get_another_name_in_the_response() {
        let of = |kind: &str, fields: &str| {
            let name = format!("Get{kind}");
            format!(
                r#"{{"apiKey": 1, "type": "{kind}", "name": "{name}", "validVersions": "0", "flexibleVersions": "none", "fields": [
                  {{ "name": "Topics", "type": "[]Topic", "versions": "0+", "fields": [
                    {{ "name": "Partitions", "type": "[]Partition", "versions": "0+", "fields": [{fields}] }} ]}} ]}}"#
            )
        };
        let place = r#"{ "name": "Place", "type": "int32", "versions": "0+" }"#;
        let code = r#"{ "name": "Code", "type": "int16", "versions": "0+" }"#;
        let file = |request: &str, response: &str| {
            let text = [of("Request", request), of("Response", response)].concat();
            let schemas = schema::parse_all(&text).expect("schemas");
            rust::file("Get (1)", Versions { low: 0, high: 0 }, &[&schemas[0], &schemas[1]]).expect("a table")
        };
        let same = file(place, place);
        assert!(!same.contains("ResponseTopic") && same.matches("struct Topic {").count() == 1, "{same}");
        let other = file(place, code);
        let expected = "\
    struct GetResponse (0..=0, flexible None) {
        0.. => topics: Vec<ResponseTopic>;
    }

    struct ResponseTopic {
        0.. => partitions: Vec<ResponsePartition>;
    }

    struct ResponsePartition {
        0.. => code: i16;
    }
}
";
        assert!(other.ends_with(expected), "{other}");
        assert!(other.contains("struct Partition {\n        0.. => place: i32;"), "{other}");
    }

    #[test]
    fn a_field_says_what_it_names() {
        let text = r#"{ "apiKey": 32, "type": "request", "name": "DescribeConfigsRequest", "validVersions": "0",
              "fields": [
                { "name": "Groups", "type": "[]string", "versions": "0+", "entityType": "groupId" },
                { "name": "Producer", "type": "int64", "versions": "0+", "entityType": "producerId" },
                { "name": "ErrorMessage", "type": "string", "versions": "0+" },
                { "name": "ResourceType", "type": "int8", "versions": "0+" },
                { "name": "ResourceName", "type": "string", "versions": "0+" }
              ] }"#;
        let file = |text: &str| {
            let schemas = schema::parse_all(text).expect("a schema");
            rust::file("Describe (32)", Versions { low: 0, high: 0 }, &[&schemas[0]])
        };
        let expected = "\
        0.. => groups: Vec<String> as Group;
        0.. => producer: i64;
        0.. => error_message: String as Text;
        0.. => resource_type: i8;
        0.. => resource_name: String as Configured(resource_type);
";
        let found = file(text).expect("a table");
        assert!(found.contains(expected), "{found}");
        assert!(file(&text.replace("groupId", "deviceId")).is_err_and(|error| error.contains("deviceId")));
    }

    #[test]
    fn versions_that_a_schema_lacks_are_refused() {
        let text = r#"{"apiKey": 1, "type": "request", "name": "A", "validVersions": "2-4", "flexibleVersions": "none", "fields": []}"#;
        let schema = &schema::parse_all(text).expect("a schema")[0];
        assert_eq!(check_served(schema, Versions { low: 2, high: 4 }), Ok(()));
        assert!(check_served(schema, Versions { low: 1, high: 4 }).is_err());
        assert!(check_served(schema, Versions { low: 2, high: 5 }).is_err());
    }
}
