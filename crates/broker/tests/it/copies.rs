//! Copies of topics of other sites: their offsets are those of the origin, and clients only read them.

use broker::{Broker, Wakes};
use engine::mesh::MeshMode;
use engine::{BatchBuilder, ErrorKind, Offset, RecordBatch, SettingsChange, TopicName, TopicSettings};

use crate::durable::open;
use crate::support::publish;

fn batch(base: Offset, values: &[&str]) -> RecordBatch {
    let mut builder = BatchBuilder::new();
    for value in values {
        builder.push(1, None, Some(value.as_bytes()), &[]).expect("a small record");
    }
    builder.finish().expect("records").stamp(base)
}

async fn rows(broker: &Broker, name: &TopicName) -> Vec<(Offset, String)> {
    let (mut rows, mut offset) = (Vec::new(), 0);
    loop {
        let fetched = broker.fetch(name.as_str(), 0, offset, 1 << 20, std::time::Duration::ZERO).await.expect("read");
        let Some(last) = fetched.batches.last() else { return rows };
        offset = last.next_offset();
        for batch in &fetched.batches {
            for record in &batch.records().expect("records") {
                let record = record.expect("a record");
                let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
                rows.push((record.offset, value));
            }
        }
    }
}

fn of(found: &[(Offset, &str)]) -> Vec<(Offset, String)> {
    found.iter().map(|(offset, value)| (*offset, (*value).to_owned())).collect()
}

#[tokio::test]
async fn batches_are_appended_once_at_their_offsets_also_after_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = TopicName::parse("a.orders").expect("a name");
    let mut wakes = Wakes::default();
    let found = of(&[(3, "x"), (4, "y"), (10, "z")]);
    {
        let broker = open(dir.path());
        let id = broker.create_copy(&name, TopicSettings::of_broker()).await.expect("created").id;
        broker.append_copied(&name, id, 0, batch(3, &["x", "y"]), &mut wakes).await.expect("appended");
        broker.append_copied(&name, id, 0, batch(3, &["x", "y"]), &mut wakes).await.expect("it is there");
        let across = broker.append_copied(&name, id, 0, batch(4, &["y", "other"]), &mut wakes).await;
        assert!(across.is_err_and(|error| error.kind == ErrorKind::OutOfSequence));
        broker.append_copied(&name, id, 0, batch(10, &["z"]), &mut wakes).await.expect("appended");
        broker.skip_copied(&name, id, 0, 20, &mut wakes).await.expect("extended");
        broker.skip_copied(&name, id, 0, 12, &mut wakes).await.expect("it is past");
        assert_eq!(broker.copy_ends(&name).expect("a copy").1, [20]);
        while broker.describe_partition("a.orders", 0).expect("there").end < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(rows(&broker, &name).await, found);
    }
    let broker = open(dir.path());
    let (id, ends) = broker.copy_ends(&name).expect("a copy");
    assert_eq!(ends, [20]);
    assert_eq!(rows(&broker, &name).await, found);
    broker.append_copied(&name, id, 0, batch(20, &["more"]), &mut wakes).await.expect("appended");
    let far = broker.skip_copied(&name, id, 0, 1 << 60, &mut wakes).await;
    assert!(far.is_err_and(|error| error.kind == ErrorKind::OutOfRange));
    // Another topic of this name is left alone.
    broker.delete_topic("a.orders").await.expect("deleted");
    let other = broker.create_copy(&name, TopicSettings::of_broker()).await.expect("created").id;
    let gone = broker.append_copied(&name, id, 0, batch(0, &["x"]), &mut wakes).await;
    assert!(gone.is_err_and(|error| error.kind == ErrorKind::NotFound));
    broker.append_copied(&name, other, 0, batch(0, &["x"]), &mut wakes).await.expect("appended");
    assert_eq!(broker.copy_ends(&name).expect("a copy"), (other, vec![1]));
}

#[tokio::test]
async fn clients_neither_choose_nor_write_copies() {
    let dir = tempfile::tempdir().expect("a folder");
    let broker = open(dir.path());
    let name = TopicName::parse("a.orders").expect("a name");
    let chosen = TopicSettings { mesh: MeshMode::Copy, ..TopicSettings::of_broker() };
    assert!(broker.create_topic("b.orders", chosen).await.is_err_and(|error| error.kind == ErrorKind::Invalid));
    let id = broker.create_copy(&name, TopicSettings::of_broker()).await.expect("created").id;
    broker.create_copy(&name, TopicSettings::of_broker()).await.expect("it is there");
    assert!(publish(&broker, "a.orders", 0).await.is_err_and(|error| error.message.contains("is a copy")));
    broker.create_topic("c.orders", TopicSettings::of_broker()).await.expect("created");
    let other = TopicName::parse("c.orders").expect("a name");
    for refused in [
        broker.create_copy(&other, TopicSettings::of_broker()).await.map(drop),
        broker.append_copied(&other, id, 0, batch(0, &["x"]), &mut Wakes::default()).await,
        broker.copy_ends(&other).map(drop),
    ] {
        assert!(refused.is_err_and(|error| error.kind == ErrorKind::AlreadyExists));
    }
    // A copy that ends is a topic like any other.
    let change = SettingsChange { mesh: Some(MeshMode::Off), ..SettingsChange::default() };
    broker.alter_topic("a.orders", change).await.expect("altered");
    publish(&broker, "a.orders", 0).await.expect("published");
    assert!(broker.append_copied(&name, id, 0, batch(1, &["x"]), &mut Wakes::default()).await.is_err());
}
