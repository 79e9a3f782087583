//! Settings of share groups and consumer groups under Kafka's names.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use broker::{AcquireLimits, Broker, Isolation, SHARE_IN_FLIGHT_MAX, ShareStart};
use bytes::Bytes;
use engine::groups::GroupName;
use engine::limits::{SESSION_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MIN};
use engine::{Error, Result};

use super::super::configs::{Kind, Steps, wrong};
use super::super::errors::{self, Code};
use super::super::outcome::Failure;

/// Kind of the documents that store the settings of groups: a line `name=value` for each.
const DOCUMENT: &str = "kafka.group";
/// Bounds of the acquisition lock. Kafka's maximum is a minute; a consumer that needs more time has to renew there.
const LEASE_MS: (u64, u64) = (100, 3_600_000);
const HEARTBEAT_MS: (u64, u64) = (100, 60_000);
const SESSION_MS: (u64, u64) = (SESSION_TIMEOUT_MS_MIN as u64, SESSION_TIMEOUT_MS_MAX as u64);
const ATTEMPTS: (u64, u64) = (1, 1000);

/// Settings of a group. Those of share groups have no effect on other groups, and the reverse.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct GroupSettings {
    /// Session timeout and heartbeat interval of members to which the broker assigns partitions.
    pub consumer_session_timeout_ms: u32,
    pub consumer_heartbeat_ms: u32,
    pub start: ShareStart,
    pub isolation: Isolation,
    /// Duration of a member's lease on a message.
    pub lease_ms: u64,
    /// Maximum number of deliveries of a message.
    pub attempts_max: u32,
    /// Maximum number of messages of one partition that are leased at a time.
    pub in_flight_max: usize,
    /// Session timeout and heartbeat interval of members of share groups.
    pub session_timeout_ms: u32,
    pub heartbeat_ms: u32,
    /// `true` if members may renew leases.
    pub renews: bool,
}

impl Default for GroupSettings {
    /// Returns Kafka's defaults.
    fn default() -> Self {
        Self {
            consumer_session_timeout_ms: 45_000,
            consumer_heartbeat_ms: 5_000,
            start: ShareStart::Live,
            isolation: Isolation::Uncommitted,
            lease_ms: 30_000,
            attempts_max: 5,
            in_flight_max: 2000,
            session_timeout_ms: 45_000,
            heartbeat_ms: 5_000,
            renews: true,
        }
    }
}

const CONSUMER_SESSION: &str = "consumer.session.timeout.ms";
const SHARE_SESSION: &str = "share.session.timeout.ms";

struct Setting {
    name: &'static str,
    kind: Kind,
    default: &'static str,
    help: &'static str,
    set: fn(&mut GroupSettings, &str) -> Result<()>,
}

/// All settings, in the order of their names.
const SETTINGS: [Setting; 10] = [
    Setting {
        name: "consumer.heartbeat.interval.ms",
        kind: Kind::Int,
        default: "5000",
        help: "Interval between heartbeats of a member with group.protocol=consumer",
        set: |settings, value| number(value, HEARTBEAT_MS).map(|ms| settings.consumer_heartbeat_ms = ms as u32),
    },
    Setting {
        name: CONSUMER_SESSION,
        kind: Kind::Int,
        default: "45000",
        help: "Time without a heartbeat after which a member with group.protocol=consumer is removed",
        set: |settings, value| number(value, SESSION_MS).map(|ms| settings.consumer_session_timeout_ms = ms as u32),
    },
    Setting {
        name: "share.auto.offset.reset",
        kind: Kind::Text,
        default: "latest",
        help: "Where a group begins to read a topic: earliest, latest or by_duration:PT1H",
        set: |settings, value| start(value).map(|start| settings.start = start),
    },
    Setting {
        name: "share.delivery.count.limit",
        kind: Kind::Int,
        default: "5",
        help: "Maximum number of deliveries of a record before it is dropped",
        set: |settings, value| number(value, ATTEMPTS).map(|limit| settings.attempts_max = limit as u32),
    },
    Setting {
        name: "share.heartbeat.interval.ms",
        kind: Kind::Int,
        default: "5000",
        help: "Interval between heartbeats of a member",
        set: |settings, value| number(value, HEARTBEAT_MS).map(|ms| settings.heartbeat_ms = ms as u32),
    },
    Setting {
        name: "share.isolation.level",
        kind: Kind::Text,
        default: "read_uncommitted",
        help: "Whether records of open and aborted transactions are delivered",
        set: |settings, value| {
            settings.isolation = match value {
                "read_committed" => Isolation::Committed,
                "read_uncommitted" => Isolation::Uncommitted,
                _ => return Err(Error::invalid("it is read_committed or read_uncommitted")),
            };
            Ok(())
        },
    },
    Setting {
        name: "share.partition.max.record.locks",
        kind: Kind::Int,
        default: "2000",
        help: "Maximum number of leased records per partition",
        set: |settings, value| {
            number(value, (1, SHARE_IN_FLIGHT_MAX.into())).map(|max| settings.in_flight_max = max as usize)
        },
    },
    Setting {
        name: "share.record.lock.duration.ms",
        kind: Kind::Int,
        default: "30000",
        help: "Duration of the lease of a record",
        set: |settings, value| number(value, LEASE_MS).map(|ms| settings.lease_ms = ms),
    },
    Setting {
        name: "share.renew.acknowledge.enable",
        kind: Kind::Bool,
        default: "true",
        help: "Whether members may extend the lease of a record",
        set: |settings, value| {
            let parsed = value.parse().or(Err(Error::invalid("it is true or false")));
            parsed.map(|renews| settings.renews = renews)
        },
    },
    Setting {
        name: SHARE_SESSION,
        kind: Kind::Int,
        default: "45000",
        help: "Time without a heartbeat after which a member is removed",
        set: |settings, value| number(value, SESSION_MS).map(|ms| settings.session_timeout_ms = ms as u32),
    },
];

fn number(value: &str, (least, most): (u64, u64)) -> Result<u64> {
    let parsed = value.trim().parse().ok().filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| Error::invalid(format!("it is a whole number from {least} to {most}")))
}

fn start(value: &str) -> Result<ShareStart> {
    match value.split_once(':') {
        None if value == "earliest" => Ok(ShareStart::Earliest),
        None if value == "latest" => Ok(ShareStart::Live),
        Some(("by_duration", ago)) => duration(ago).map(ShareStart::Ago).ok_or_else(wrong_duration),
        _ => Err(Error::invalid("it is earliest, latest or by_duration with a duration, as in by_duration:PT1H30M")),
    }
}

fn wrong_duration() -> Error {
    Error::invalid("a duration is written as P1DT2H30M or PT0.5S")
}

/// Parses an ISO 8601 duration in days, hours, minutes and seconds.
fn duration(text: &str) -> Option<Duration> {
    let (days, time) = match text.strip_prefix('P')?.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (text.strip_prefix('P')?, ""),
    };
    let mut seconds = 0.0;
    let mut count = 0;
    for (mut rest, units) in [(days, &[('D', 86_400.0)][..]), (time, &[('H', 3600.0), ('M', 60.0), ('S', 1.0)][..])] {
        for (unit, factor) in units {
            if let Some((number, after)) = rest.split_once(*unit) {
                let is_number = number.bytes().all(|b| b.is_ascii_digit() || (b == b'.' && *unit == 'S'));
                seconds += number.parse::<f64>().ok().filter(|_| is_number)? * factor;
                rest = after;
                count += 1;
            }
        }
        if !rest.is_empty() {
            return None;
        }
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|_| count > 0)
}

impl GroupSettings {
    pub(in super::super) async fn of(broker: &Broker, group: &GroupName) -> Result<Self> {
        let kept = broker.documents.get(DOCUMENT, group.as_str()).await?;
        Ok(Self::read(kept.iter().flat_map(|kept| lines(kept))))
    }

    fn read<'a>(kept: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut settings = Self::default();
        for (name, value) in kept {
            // A setting that another version stored and this one does not know is treated as unset.
            if let Ok(setting) = find(name) {
                (setting.set)(&mut settings, value).unwrap_or_default();
            }
        }
        settings
    }

    /// Checks that the values are consistent, as Kafka requires: a member whose heartbeat interval is not shorter than
    /// its session timeout would be removed from the group repeatedly.
    fn check(&self) -> Result<(), Failure> {
        for (name, session_ms, heartbeat_ms) in [
            (CONSUMER_SESSION, self.consumer_session_timeout_ms, self.consumer_heartbeat_ms),
            (SHARE_SESSION, self.session_timeout_ms, self.heartbeat_ms),
        ] {
            if session_ms <= heartbeat_ms {
                let heartbeat = name.replace("session.timeout", "heartbeat.interval");
                return Err(wrong(format!(
                    "{name} = {session_ms} is not greater than {heartbeat} = {heartbeat_ms}: raise it, or set \
                     {heartbeat} to less in the same request"
                )));
            }
        }
        Ok(())
    }

    /// Returns the limits for acquiring messages.
    pub(in super::super) fn limits(&self) -> AcquireLimits {
        AcquireLimits {
            records_max: 0,
            bytes_max: 0,
            wait: Duration::ZERO,
            lease_ms: self.lease_ms,
            attempts_max: self.attempts_max,
            in_flight_max: self.in_flight_max,
            isolation: self.isolation,
        }
    }
}

fn lines(kept: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    std::str::from_utf8(kept).unwrap_or_default().lines().filter_map(|line| line.split_once('='))
}

fn find(name: &str) -> Result<&'static Setting, Failure> {
    let found = SETTINGS.iter().find(|setting| setting.name == name);
    found.ok_or_else(|| wrong(format!("'{name}' is not a setting of a group")))
}

/// Returns up to `count_max` names of groups that have settings, from a name on, in their order.
pub(in super::super) async fn set_groups(broker: &Broker, from: Bound<&str>, count_max: usize) -> Result<Vec<String>> {
    let found = broker.documents.list_from(DOCUMENT, from, count_max).await?;
    Ok(found.into_iter().map(|(name, _)| name).collect())
}

/// Setting of a group in a description.
pub(in super::super) struct Shown {
    pub name: &'static str,
    pub kind: Kind,
    pub value: String,
    pub default: &'static str,
    pub help: &'static str,
}

/// Describes all settings of a group.
pub(in super::super) async fn describe_settings(broker: &Broker, name: &str) -> Result<Vec<Shown>, Failure> {
    let kept = kept(broker, name).await?;
    let shown = |setting: &Setting| Shown {
        name: setting.name,
        kind: setting.kind,
        value: kept.get(setting.name).map_or(setting.default, String::as_str).to_owned(),
        default: setting.default,
        help: setting.help,
    };
    Ok(SETTINGS.iter().map(shown).collect())
}

async fn kept(broker: &Broker, name: &str) -> Result<BTreeMap<String, String>, Failure> {
    GroupName::parse(name).map_err(|error| (Code::INVALID_REQUEST, error.message))?;
    let kept = broker.documents.get(DOCUMENT, name).await.map_err(failed)?;
    Ok(kept.iter().flat_map(|kept| lines(kept)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn failed(error: Error) -> Failure {
    (errors::code(&error), error.message)
}

/// Changes the settings of a group: replaces all of them, or changes single ones.
pub(in super::super) async fn change(
    broker: &Arc<Broker>,
    name: &str,
    steps: Steps<'_>,
    is_dry_run: bool,
) -> Result<(), Failure> {
    let mut kept = kept(broker, name).await?;
    if steps.begin_anew {
        kept.clear();
    }
    for (setting, value) in steps.settings {
        let setting = find(setting)?;
        match value {
            Some(value) => {
                let why = (setting.set)(&mut GroupSettings::default(), value);
                why.map_err(|error| wrong(format!("{} = '{value}': {}", setting.name, error.message)))?;
                kept.insert(setting.name.to_owned(), value.to_owned());
            }
            None => drop(kept.remove(setting.name)),
        }
    }
    GroupSettings::read(kept.iter().map(|(name, value)| (name.as_str(), value.as_str()))).check()?;
    if is_dry_run {
        return Ok(());
    }
    let lines: String = kept.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let document = Some(Bytes::from(lines)).filter(|lines| !lines.is_empty());
    broker.documents.put(DOCUMENT, name, document).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_defaults_are_the_defaults_of_a_group() {
        let mut settings = GroupSettings { lease_ms: 1, attempts_max: 1, in_flight_max: 1, ..GroupSettings::default() };
        settings.session_timeout_ms = 1;
        settings.consumer_session_timeout_ms = 1;
        settings.consumer_heartbeat_ms = 1;
        settings.heartbeat_ms = 1;
        settings.renews = false;
        settings.isolation = Isolation::Committed;
        settings.start = ShareStart::Earliest;
        for setting in &SETTINGS {
            (setting.set)(&mut settings, setting.default).expect(setting.name);
        }
        assert_eq!(settings, GroupSettings::default());
        assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn values_are_checked() {
        let set = |name: &str, value: &str| {
            let mut settings = GroupSettings::default();
            (find(name).expect(name).set)(&mut settings, value).map(|()| settings)
        };
        for (name, value) in [
            ("share.auto.offset.reset", "newest"),
            ("share.auto.offset.reset", "by_duration:1h"),
            ("share.delivery.count.limit", "0"),
            ("share.isolation.level", "committed"),
            ("share.partition.max.record.locks", "10001"),
            ("share.record.lock.duration.ms", "-1"),
            ("share.renew.acknowledge.enable", "yes"),
            ("share.session.timeout.ms", "soon"),
            ("consumer.session.timeout.ms", "99"),
            ("consumer.heartbeat.interval.ms", "0"),
        ] {
            assert!(set(name, value).is_err(), "{name} {value}");
        }
        let hour = set("share.auto.offset.reset", "by_duration:PT1H").map(|settings| settings.start);
        assert_eq!(hour, Ok(ShareStart::Ago(Duration::from_secs(3600))));
        assert!(find("streams.session.timeout.ms").is_err());
    }

    /// `GroupConfig.validateValues` of Apache Kafka.
    #[test]
    fn a_session_is_longer_than_the_interval_of_heartbeats() {
        let check = |settings: &[(&str, &str)]| GroupSettings::read(settings.iter().copied()).check();
        for kind in ["consumer", "share"] {
            let [session, heartbeat] = ["session.timeout.ms", "heartbeat.interval.ms"].map(|of| format!("{kind}.{of}"));
            assert_eq!(check(&[(&session, "5001")]), Ok(()));
            assert_eq!(check(&[(&session, "200"), (&heartbeat, "199")]), Ok(()));
            for wrong in
                [&[(&*session, "5000")][..], &[(&heartbeat, "45000")], &[(&session, "200"), (&heartbeat, "200")]]
            {
                let (code, message) = check(wrong).expect_err(kind);
                assert!(code == Code::INVALID_CONFIG && message.contains(&session) && message.contains(&heartbeat));
            }
        }
    }

    #[test]
    fn durations_are_read() {
        let seconds = |text: &str| duration(text).map(|duration| duration.as_secs_f64());
        for (text, expected) in [
            ("PT1H", Some(3600.0)),
            ("P1DT2H3M4.5S", Some(93_784.5)),
            ("P2D", Some(172_800.0)),
            ("PT0S", Some(0.0)),
            ("P", None),
            ("PT", None),
            ("P1DT", None),
            ("PT1", None),
            ("PT-1S", None),
            ("-PT1S", None),
            ("PT1S1H", None),
            ("PTinfS", None),
            ("1H", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
