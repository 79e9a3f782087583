//! Reference page of Kafka's settings, and the results of drafts.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;
use broker::Settings;

const HEAD: &str = "\
# Kafka's settings

<!-- Written by `UPDATE=1 cargo test -p thalweg-doors kafka`: change the program, not this file. -->

This page lists the topic settings that the Kafka door supports under Kafka's names.

- [Coming from Kafka](../guides/coming-from-kafka.md) describes how to move from Kafka.
- [Permissions](permissions.md#kafka) lists the permissions that each request needs.

## Settings of topics

`kafka-configs.sh`, `kafka-topics.sh --config` and the admin clients read and write these settings.
The broker refuses a setting that is not listed, and a value that is not allowed, with
`INVALID_CONFIG`; the message says why.

| Name | Value here | When it is set | Why |
|---|---|---|---|
";

fn page() -> String {
    let broker_free = "as the broker is set";
    let mut page = HEAD.to_owned();
    for setting in SETTINGS {
        let (value, set) = match setting.rule {
            Rule::CleanupPolicy => ("`delete`", "as in Kafka"),
            Rule::RetentionMs | Rule::RetentionBytes => {
                (broker_free, "as in Kafka; -1 while records are only compacted")
            }
            Rule::BatchBytesMax => ("`10485760`", "128 to 10485760"),
            Rule::TimestampType => ("`CreateTime`", "as in Kafka"),
            Rule::TombstoneMs => (broker_free, "accepted up to that, without effect"),
            Rule::InSync => ("`1`, or a majority of the nodes that vote", "accepted up to that, without effect"),
            Rule::Compression => ("`producer`", "as in Kafka"),
            Rule::SegmentBytes => (broker_free, "1048576 to 2147483647"),
            Rule::SegmentMs | Rule::LagMsMax => ("no limit", "as in Kafka"),
            Rule::LagMsMin => ("`0`", "as in Kafka"),
            Rule::Only(FOREVER) => ("no limit", "only this value is accepted"),
            Rule::Only(value) => (value, "only this value is accepted"),
            Rule::Harmless("") => ("nothing", "accepted, without effect"),
            Rule::Harmless(value) => (value, "accepted, without effect"),
        };
        let value =
            if value.contains([' ', '`']) || value == "nothing" { value.to_owned() } else { format!("`{value}`") };
        writeln!(page, "| `{}` | {value} | {set} | {} |", setting.name, setting.help).expect("a text");
    }
    page
}

#[test]
fn the_page_of_settings_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/kafka-settings.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, page()).expect("written");
    }
    assert!(
        std::fs::read_to_string(&path).expect("the page") == page(),
        "run the test with UPDATE=1 to write it again"
    );
}

#[tokio::test]
async fn a_draft_converts_kafka_settings() {
    let broker = Broker::start(Settings::default(), &[tokio::runtime::Handle::current()]).expect("started");
    let of = |settings: &[(&str, &str)]| {
        let mut draft = Draft::new(&broker, 1);
        settings.iter().try_for_each(|(name, value)| draft.set(name, Some(value)))?;
        let TopicSettings { retention_ms, retention_bytes, compact, .. } = draft.settings();
        Ok::<_, Failure>((compact, retention_ms, retention_bytes))
    };
    let ms = 3_600_000;
    let bytes = 64 << 20;
    assert_eq!(of(&[]), Ok((false, ms, bytes)));
    assert_eq!(of(&[("retention.ms", "-1")]), Ok((false, 0, bytes)));
    // Kafka's 0 keeps as little as possible; the broker's 0 means no limit.
    assert_eq!(of(&[("retention.ms", "0"), ("retention.bytes", "0")]), Ok((false, 1, 1)));
    assert_eq!(of(&[("retention.ms", "9223372036854775807")]).map(|found| found.1), Ok(i64::MAX as u64));
    assert_eq!(of(&[("cleanup.policy", "compact"), ("retention.ms", "77")]), Ok((true, 0, 0)));
    assert_eq!(of(&[("retention.ms", "77"), ("cleanup.policy", " compact , delete ")]), Ok((true, 77, bytes)));
    for (name, value) in [("retention.ms", "-2"), ("cleanup.policy", ""), ("preallocate", "perhaps")] {
        assert_eq!(of(&[(name, value)]).map_err(|(code, _)| code), Err(Code::INVALID_CONFIG), "{name} {value}");
    }
}

#[tokio::test]
async fn settings_of_segments_of_compaction_and_of_compression_are_taken_and_shown() {
    let broker = Broker::start(Settings::default(), &[tokio::runtime::Handle::current()]).expect("started");
    let set = |settings: &[(&str, &str)]| {
        let mut draft = Draft::new(&broker, 1);
        settings.iter().try_for_each(|(name, value)| draft.set(name, Some(value)))?;
        Ok::<_, Failure>(draft.settings())
    };
    let named = [
        ("compression.type", "zstd"),
        ("segment.bytes", "2097152"),
        ("segment.ms", "60000"),
        ("min.compaction.lag.ms", "5"),
        ("max.compaction.lag.ms", "70"),
    ];
    let settings = set(&named).expect("taken");
    assert_eq!(settings.compression, Some(Codec::Zstd));
    assert_eq!((settings.segment_bytes, settings.segment_ms), (2 << 20, 60_000));
    assert_eq!(settings.compaction_lag_ms, (5, 70));
    for (name, value) in named {
        assert_eq!(find(name).expect("there").value(&broker, &settings), value);
        let mut draft = Draft::of(&broker, settings);
        draft.set(name, None).expect("the default");
        let shown = find(name).expect("there").value(&broker, &draft.settings());
        assert_eq!(shown, find(name).expect("there").value(&broker, &TopicSettings::default()), "{name}");
    }
    let none = set(&[("compression.type", "uncompressed"), ("max.compaction.lag.ms", FOREVER)]).expect("taken");
    assert_eq!((none.compression, none.compaction_lag_ms), (Some(Codec::None), (0, 0)));
    for (name, value) in [("compression.type", "none"), ("segment.ms", "0"), ("min.compaction.lag.ms", "-1")] {
        assert_eq!(set(&[(name, value)]).map_err(|(code, _)| code), Err(Code::INVALID_CONFIG), "{name} {value}");
    }
}

#[tokio::test]
async fn a_setting_of_the_broker_that_does_not_change_is_named() {
    let broker = Broker::start(Settings::default(), &[tokio::runtime::Handle::current()]).expect("started");
    let why = |name| of_broker::why_fixed(&broker, name);
    assert_eq!(
        why("num.partitions"),
        "num.partitions is the key default_partitions of thalweg.toml: change it there, and restart the broker"
    );
    assert_eq!(why("log.retention.hours"), "log.retention.hours is read-only, as in Kafka: set log.retention.ms");
    assert!(why("log.cleanup.policy").ends_with("set cleanup.policy of a topic"));
    assert_eq!(why("log.preallocate"), "log.preallocate cannot be changed for all topics: set preallocate of a topic");
    assert_eq!(why("node.id"), "node.id cannot be changed");
    assert_eq!(why("nonsense"), "'nonsense' is not a setting of the broker");
}
