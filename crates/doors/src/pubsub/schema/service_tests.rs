//! Revisions of schemas with in-memory documents.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;

use super::*;

#[derive(Default)]
struct InMemory(Mutex<BTreeMap<String, Bytes>>);

impl Documents for InMemory {
    async fn put(&self, name: &str, value: Option<Bytes>) -> engine::Result<()> {
        let mut documents = self.0.lock();
        match value {
            Some(value) => documents.insert(name.to_owned(), value),
            None => documents.remove(name),
        };
        Ok(())
    }

    async fn list(&self, prefix: &str) -> engine::Result<Vec<(String, Bytes)>> {
        let documents = self.0.lock();
        let found = documents.iter().filter(|(name, _)| name.starts_with(prefix));
        Ok(found.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

const NAME: &str = "projects/p/schemas/orders";

fn record(fields: &[&str]) -> String {
    let fields: Vec<String> =
        fields.iter().map(|name| format!(r#"{{"name": "{name}", "type": "int", "default": 0}}"#)).collect();
    format!(r#"{{"type": "record", "name": "R", "fields": [{}]}}"#, fields.join(","))
}

fn code<T>(result: Result<T, Refusal>) -> Option<(Code, String)> {
    result.err().map(|refusal| (refusal.code, refusal.message))
}

fn refused(code: Code, message: &str) -> Option<(Code, String)> {
    Some((code, message.to_owned()))
}

/// Google's samples and its emulator commit the same text repeatedly and get a revision each time; `AlreadyExists` is
/// not among the documented errors of `CommitSchema`.
#[tokio::test]
async fn a_commit_of_the_newest_text_is_a_new_revision() {
    let schemas = Schemas::new(InMemory::default());
    let first = schemas.create(NAME, Kind::Avro, &record(&["a"]), 1).await.expect("created");
    let second = schemas.commit(NAME, Kind::Avro, &record(&["a"]), 2).await.expect("committed");
    let third = schemas.commit(NAME, Kind::Avro, &record(&["a"]), 3).await.expect("committed");
    assert_eq!((&second.definition, &third.definition), (&first.definition, &first.definition));
    let ids = schemas.revisions(NAME).await.map(|all| all.into_iter().map(|one| one.id).collect::<Vec<_>>());
    assert_eq!(ids, Ok(vec![third.id.clone(), second.id.clone(), first.id.clone()]));
    assert!(first.id != second.id && second.id != third.id && first.id != third.id);
    assert_eq!(schemas.get(NAME).await, Ok(third));
}

#[tokio::test]
async fn a_schema_is_created_revised_rolled_back_and_deleted() {
    let schemas = Schemas::new(InMemory::default());
    let first = schemas.create(NAME, Kind::Avro, &record(&["a"]), 5).await.expect("created");
    assert!(first.id.len() == 8 && first.id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", first.id);
    assert_eq!((first.created_ms, schemas.get(NAME).await), (5, Ok(first.clone())));
    let again = schemas.create(NAME, Kind::Avro, "\"int\"", 6).await;
    assert_eq!(code(again), refused(Code::AlreadyExists, "Schema already exists"));
    let second = schemas.commit(NAME, Kind::Avro, &record(&["a", "b"]), 4).await.expect("committed");
    // The clock stepped back, but the order is that of the commits.
    let ids = |all: Vec<Revision>| all.into_iter().map(|revision| revision.id).collect::<Vec<_>>();
    assert_eq!(schemas.revisions(NAME).await.map(ids), Ok(vec![second.id.clone(), first.id.clone()]));
    let incompatible = code(schemas.commit(NAME, Kind::Avro, "\"int\"", 7).await).expect("refused");
    assert!(incompatible.0 == Code::InvalidArgument && incompatible.1.contains(&second.id), "{incompatible:?}");
    let other = schemas.commit(NAME, Kind::ProtocolBuffer, "syntax = \"proto3\"; message R {}", 7).await;
    assert_eq!(code(other).map(|(code, _)| code), Some(Code::InvalidArgument));
    let third = schemas.roll_back(NAME, &first.id, 8).await.expect("rolled back");
    assert_eq!((&third.definition, schemas.get(NAME).await), (&first.definition, Ok(third.clone())));
    assert_eq!(schemas.get(&format!("{NAME}@{}", second.id)).await, Ok(second.clone()));
    assert_eq!(schemas.delete_revision(NAME, &third.id).await, Ok(second.clone()));
    let gone = schemas.get(&format!("{NAME}@{}", third.id)).await;
    assert_eq!(code(gone), refused(Code::NotFound, "Schema revision not found"));
    schemas.delete_revision(NAME, &first.id).await.expect("deleted");
    let last = schemas.delete_revision(NAME, &second.id).await;
    assert_eq!(code(last), refused(Code::InvalidArgument, "Cannot delete last revision. Please use DeleteSchema."));
    assert_eq!(schemas.list("projects/p").await, Ok(vec![NAME.to_owned()]));
    schemas.delete(NAME).await.expect("deleted");
    assert!(schemas.documents().0.lock().is_empty(), "nothing is left behind");
    for refusal in
        [code(schemas.get(NAME).await), code(schemas.revisions(NAME).await), code(schemas.delete(NAME).await)]
    {
        assert_eq!(refusal, refused(Code::NotFound, "Schema not found"));
    }
    schemas.create(NAME, Kind::Avro, "\"int\"", 9).await.expect("created again");
}

#[tokio::test]
async fn limits_and_names_are_those_of_the_service() {
    let schemas = Schemas::new(InMemory::default());
    for name in [
        "",
        "orders",
        "projects/p/schemas/ab",
        "projects//schemas/abc",
        "projects/p/schemas/1bc",
        "projects/p/schemas/Google-x",
        "projects/p/schemas/a@b",
        "projects/p/schemas/abc/d",
        "projects/p/topics/abc",
    ] {
        let expected = refused(Code::InvalidArgument, &format!("Invalid [schemas] name: (name={name})"));
        assert_eq!(code(schemas.create(name, Kind::Avro, "\"int\"", 0).await), expected);
    }
    let large = format!("\"int\"{}", " ".repeat(DEFINITION_BYTES_MAX));
    let large = code(schemas.create(NAME, Kind::Avro, &large, 0).await).expect("refused");
    assert!(large.1.contains("bytes, at most 307200"), "{large:?}");
    let broken = code(schemas.create(NAME, Kind::Avro, "\"x\"", 0).await);
    assert_eq!(broken, refused(Code::InvalidArgument, "Could not parse schema definition: unknown type: x"));
    assert!(schemas.documents().0.lock().is_empty());

    schemas.create(NAME, Kind::Avro, &record(&["a"]), 0).await.expect("created");
    let texts = [record(&["a", "b"]), record(&["a"])];
    for i in 0..REVISIONS_MAX - 1 {
        schemas.commit(NAME, Kind::Avro, &texts[i % 2], 0).await.expect("committed");
    }
    let full = refused(Code::ResourceExhausted, "Already at maximum number of schema revisions");
    assert_eq!(code(schemas.commit(NAME, Kind::Avro, &record(&["c"]), 0).await), full);
    let newest = schemas.get(NAME).await.expect("there");
    assert_eq!(code(schemas.roll_back(NAME, &newest.id, 0).await), full);
    schemas.delete_revision(NAME, &newest.id).await.expect("deleted");
    schemas.commit(NAME, Kind::Avro, &record(&["c"]), 0).await.expect("there is room");
}

#[tokio::test]
async fn deleted_revisions_are_forgotten_at_last() {
    let schemas = Schemas::new(InMemory::default());
    schemas.create(NAME, Kind::Avro, &record(&["a"]), 0).await.expect("created");
    let texts = [record(&["a", "b"]), record(&["a", "c"])];
    for i in 0..150 {
        let revision = schemas.commit(NAME, Kind::Avro, &texts[i % 2], 0).await.expect("committed");
        schemas.delete_revision(NAME, &revision.id).await.expect("deleted");
    }
    assert_eq!(schemas.documents().0.lock().len(), 101);
}

#[tokio::test]
async fn projects_are_listed_apart() {
    let schemas = Schemas::new(InMemory::default());
    for name in ["projects/p/schemas/ccc", "projects/p/schemas/aaa", "projects/p/schemas/bbb", "projects/q/schemas/aaa"]
    {
        schemas.create(name, Kind::Avro, "\"int\"", 0).await.expect("created");
    }
    let names = ["aaa", "bbb", "ccc"].map(|name| format!("projects/p/schemas/{name}"));
    assert_eq!(schemas.list("projects/p").await, Ok(names.to_vec()));
    assert_eq!(schemas.list("projects/r").await, Ok(vec![]));
}

#[tokio::test]
async fn messages_follow_the_newest_revision_of_the_range_that_takes_them() {
    let schemas = Schemas::new(InMemory::default());
    let a = schemas.create(NAME, Kind::Avro, &record(&["a"]), 0).await.expect("created").id;
    let b = schemas.commit(NAME, Kind::Avro, &record(&["a", "b"]), 0).await.expect("committed").id;
    let c = schemas.commit(NAME, Kind::Avro, &record(&["a", "b", "c"]), 0).await.expect("committed").id;
    let check = async |first: &str, last: &str, text: &str| {
        schemas.check(NAME, Range { first, last }, Encoding::Json, text.as_bytes()).await
    };
    let one = r#"{"a": 1}"#;
    let two = r#"{"a": 1, "b": 2}"#;
    let three = r#"{"a": 1, "b": 2, "c": 3}"#;
    assert_eq!(check("", "", one).await.as_ref(), Ok(&a));
    assert_eq!(check("", "", three).await.as_ref(), Ok(&c));
    assert_eq!(check("", &b, two).await.as_ref(), Ok(&b));
    assert!(check("", &b, three).await.is_err() && check(&b, "", one).await.is_err());
    let refusal = check(&b, &c, r#"{"a": "x"}"#).await.expect_err("no revision takes it");
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (Code::InvalidArgument, "Invalid data in message: Message failed schema validation.")
    );
    let info = refusal.info.expect("details");
    assert_eq!(info.reason, "INVALID_JSON_AVRO_MESSAGE");
    let tried = format!(
        "Could not validate message with any schema revision for schema: {NAME}, last checked revision: \
         revision_id={b} failed with status: JSON object with type string does not match schema which expected \
         number_integer at line 1 column 9"
    );
    assert_eq!(info.metadata[1], ("revisionInfo", tried));
    for (first, last, refusal) in [
        (a.as_str(), c.as_str(), None),
        ("", "", None),
        ("x", "", refused(Code::NotFound, "First revision could not be found")),
        ("", "x", refused(Code::NotFound, "Last revision could not be found")),
        (&c, &a, refused(Code::InvalidArgument, "First revision creation time is after last revision creation time")),
    ] {
        assert_eq!(code(schemas.check_range(NAME, Range { first, last }).await), refusal);
    }
    // A range keeps its position if its first or last revision is deleted.
    schemas.delete_revision(NAME, &b).await.expect("deleted");
    assert_eq!(check("", &b, one).await.as_ref(), Ok(&a));
    assert!(check("", &b, three).await.is_err() && check("", &b, two).await.is_err());
    assert_eq!(check(&b, "", three).await.as_ref(), Ok(&c));
    let newest = schemas.check_against(NAME, Encoding::Json, three.as_bytes()).await;
    assert!(newest.is_ok() && schemas.check_against(NAME, Encoding::Json, one.as_bytes()).await.is_err());
    schemas.check_against(&format!("{NAME}@{a}"), Encoding::Json, one.as_bytes()).await.expect("the first takes it");
    assert_eq!(
        code(schemas.check_against("projects/p/schemas/none", Encoding::Json, b"{}").await),
        refused(Code::NotFound, "Schema not found")
    );
    schemas.delete(NAME).await.expect("deleted");
    assert_eq!(code(check("", "", one).await), refused(Code::NotFound, "Schema associated with topic deleted."));
}

#[tokio::test]
async fn cached_schemas_are_bounded_and_read_again() {
    let schemas = Schemas::new(InMemory::default());
    for i in 0..40 {
        let text = format!("\"int\"{}", " ".repeat(DEFINITION_BYTES_MAX - 10));
        let name = format!("projects/p/schemas/s{i:02}");
        schemas.create(&name, Kind::Avro, &text, 0).await.expect("created");
        schemas.check(&name, Range::default(), Encoding::Json, b"1").await.expect("a message");
    }
    assert!(schemas.cached_bytes() <= 8 << 20, "{}", schemas.cached_bytes());
    schemas.check("projects/p/schemas/s00", Range::default(), Encoding::Json, b"1").await.expect("read again");
}

/// Other tasks run between the revisions that refuse a message.
#[tokio::test]
async fn a_message_that_many_revisions_refuse_does_not_stop_a_thread() {
    let schemas = Schemas::new(InMemory::default());
    schemas.create(NAME, Kind::Avro, &record(&["a"]), 1).await.expect("created");
    for revision in 2..=REVISIONS_MAX as u64 {
        schemas.commit(NAME, Kind::Avro, &record(&["a"]), revision).await.expect("committed");
    }
    let candidates = schemas.candidates(NAME, Range::default()).await.expect("candidates");
    let mut checking = std::pin::pin!(candidates.check(Encoding::Json, b"[]"));
    let mut pauses = 0;
    let outcome = std::future::poll_fn(|context| {
        let polled = checking.as_mut().poll(context);
        pauses += usize::from(polled.is_pending());
        polled
    })
    .await;
    assert!(outcome.is_err());
    assert_eq!(pauses, REVISIONS_MAX);
}
