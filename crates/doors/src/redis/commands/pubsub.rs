//! Channels: subscribing and publishing, with or without a topic of the same name.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Attempt, COMPARED_PER_TURN, Holding, Origin};
use engine::BatchBuilder;
use engine::glob::{Glob, Matcher};
use engine::security::Operation;
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::args::{is, matcher, pattern};
use super::session::{now, written};
use super::work::{Pace, at_once};
use crate::redis::access::{Needs, permit};
use crate::redis::channels::{ChannelSubscription, Channels, Selector, Subscribed, Unconfirmed};
use crate::redis::clients::About;
use crate::redis::codec::{Answer, Follow};
use crate::redis::command::{Command, own, wrong_part};
use crate::redis::connection::Session;
use crate::redis::door::Door;
use crate::redis::errors::{Done, Fail};
use crate::redis::later::Later;
use crate::redis::names::{Tenant, channel_name, channel_of, topic_of};
use crate::redis::shard_channels::ShardChannels;
use crate::redis::writer::Writer;

pub(super) const COMMANDS: &[Command] = &[
    own(
        "PUBLISH",
        3,
        Needs::Channels(Operation::Write),
        publish,
        ("2.0.0", "Publishes to a channel, and to the topic of the same name if it exists"),
    ),
    own("SUBSCRIBE", -2, Needs::Channels(Operation::Read), subscribe, ("2.0.0", "Subscribes to channels")),
    own("UNSUBSCRIBE", -1, Needs::Nothing, unsubscribe, ("2.0.0", "Unsubscribes from channels")),
    own(
        "PSUBSCRIBE",
        -2,
        Needs::Channels(Operation::Read),
        psubscribe,
        ("2.0.0", "Subscribes to all channels that match patterns"),
    ),
    own("PUNSUBSCRIBE", -1, Needs::Nothing, punsubscribe, ("2.0.0", "Unsubscribes from patterns")),
    own(
        "SPUBLISH",
        3,
        Needs::Channels(Operation::Write),
        spublish,
        ("7.0.0", "Publishes to a shard channel, which no other door serves"),
    ),
    own("SSUBSCRIBE", -2, Needs::Channels(Operation::Read), ssubscribe, ("7.0.0", "Subscribes to shard channels")),
    own("SUNSUBSCRIBE", -1, Needs::Nothing, sunsubscribe, ("7.0.0", "Unsubscribes from shard channels")),
    own("PUBSUB", -2, Needs::View, pubsub, ("2.8.0", "Returns channels and their numbers of subscribers")).of(&[
        ("CHANNELS", -2),
        ("NUMSUB", -2),
        ("NUMPAT", 2),
        ("SHARDCHANNELS", -2),
        ("SHARDNUMSUB", -2),
    ]),
];

/// Maximum number of channels and patterns of one connection.
const SUBSCRIBED_MAX: usize = 8192;

impl Session {
    pub(in crate::redis) fn is_subscribed(&self) -> bool {
        self.subscribed.borrow().count() + self.shard_subscriptions.len() > 0
    }

    pub(in crate::redis) fn unsubscribe_all(&mut self) {
        self.subscribed.take();
        self.shard_subscriptions.clear();
        self.update_subscribed_info();
    }

    fn update_subscribed_info(&self) {
        let shard_channels = self.shard_subscriptions.len();
        self.update_info(|about| {
            self.subscribed.borrow().update_info(about);
            about.shard_channels = shard_channels;
        });
    }
}

impl Subscribed {
    fn update_info(&self, about: &mut About) {
        about.channels = self.channels.len();
        about.patterns = self.patterns.len();
    }
}

fn publish(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    match try_publish(door, session, args[1], args[2]) {
        Ok(None) => Reply::Now(Answer::Fixed(b":0\r\n")),
        // Subscribers receive the message immediately, or when it is durable. The reply does not wait for that.
        Ok(Some(Attempt::Done(published))) => receivers(published.receivers),
        Ok(Some(Attempt::Commits(committing))) => receivers(committing.published().receivers),
        Ok(Some(Attempt::Waits(waiting))) => {
            let broker = door.broker.clone();
            let mut writer = session.writer();
            let wait = async move {
                match waiting.finish(&broker, &mut broker::Wakes::default()).await {
                    Ok(published) => writer.int(i64::from(published.receivers)),
                    Err(error) => writer.error(&error.into()),
                }
                Answer::Written(writer.bytes)
            };
            Reply::Alone(once(wait.boxed_local()))
        }
        Err(fail) => session.fail(&fail),
    }
}

fn receivers(count: u32) -> Reply<Answer, Later> {
    let mut writer = Writer::new(false);
    writer.int(i64::from(count));
    now(writer)
}

fn try_publish(door: &Door, session: &mut Session, channel: &[u8], message: &[u8]) -> Done<Option<Attempt>> {
    let topic = topic_of(session.tenant(), channel)?;
    let mut builder = BatchBuilder::new();
    builder.push(door.broker.now_ms() as i64, None, Some(message), &[])?;
    let batch = builder.finish().expect("invariant: it has a record");
    Ok(door.broker.publish_to_channel(&topic, batch, &mut session.wakes)?)
}

fn subscribe(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    subscribe_to(door, session, args, "subscribe", Selector::Channel, |subscribed| &mut subscribed.channels)
}

fn psubscribe(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    subscribe_to(
        door,
        session,
        args,
        "psubscribe",
        |name| Selector::Pattern(Arc::new(Glob::new(&name))),
        |subscribed| &mut subscribed.patterns,
    )
}

type Subscriptions = BTreeMap<Vec<u8>, ChannelSubscription>;

fn subscribe_to(
    door: &Door,
    session: &mut Session,
    args: &[&[u8]],
    word: &'static str,
    selector: fn(Vec<u8>) -> Selector,
    subscriptions: fn(&mut Subscribed) -> &mut Subscriptions,
) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    let origin = Origin { connection: session.peer.id, thread: Some(session.peer.worker), ..Origin::default() };
    let identity = session.identity.borrow().clone();
    let permit = permit(&door.broker, &identity);
    let broker = door.broker.clone();
    let channels = door.channels.clone();
    let events = door.notices.events.clone();
    let client = session.client.clone();
    let subscribed = session.subscribed.clone();
    let tenant = session.tenant.clone();
    let names: Vec<Vec<u8>> = args[1..].iter().map(|name| name.to_vec()).collect();
    let mut work = async move {
        let mut unconfirmed = Unconfirmed::default();
        let mut compared = 0;
        for name in names {
            if compared >= COMPARED_PER_TURN {
                compared = 0;
                tokio::task::yield_now().await;
            }
            let (is_new, count) = {
                let mut subscribed = subscribed.borrow_mut();
                (!subscriptions(&mut subscribed).contains_key(&name), subscribed.count())
            };
            if is_new {
                if count == SUBSCRIBED_MAX {
                    writer
                        .error(&Fail::new(format!("ERR a connection subscribes to at most {SUBSCRIBED_MAX} channels")));
                    continue;
                }
                if let Err(fail) = pattern(&name) {
                    writer.error(&fail);
                    continue;
                }
                let subscribing = async {
                    let hold = broker.security.hold(broker::Door::Redis, &identity, Holding::Subscription)?;
                    let selector = selector(name.clone());
                    let events = events.register(&client, &identity, tenant.as_ref(), &selector)?;
                    let selector = (tenant.clone(), selector);
                    let (mut subscription, ready) =
                        channels.subscribe(&broker, &client, origin, permit.clone(), hold, selector).await?;
                    subscription.events = events;
                    Ok::<_, Fail>((subscription, ready))
                };
                match subscribing.await {
                    Ok((subscription, ready)) => {
                        subscription.events.iter().for_each(|events| unconfirmed.add(events.receiver()));
                        compared += ready.compared();
                        unconfirmed.add_ready(ready);
                        subscriptions(&mut subscribed.borrow_mut()).insert(name.clone(), subscription);
                    }
                    Err(fail) => {
                        writer.error(&fail);
                        continue;
                    }
                }
            }
            write_change(&mut writer, word, Some(&name), subscribed.borrow().count());
        }
        subscribed.borrow().update_info(&mut client.about.lock());
        Answer::Written(writer.bytes).before(Follow::Subscribed(unconfirmed))
    }
    .boxed_local();
    // Only patterns that match many topics, or are compared with many names, have to wait.
    match (&mut work).now_or_never() {
        Some(answer) => Reply::Now(answer),
        None => Reply::Alone(once(work)),
    }
}

fn write_change(writer: &mut Writer, word: &str, name: Option<&[u8]>, count: usize) {
    writer.push(3);
    writer.bulk(word.as_bytes());
    writer.maybe(name);
    writer.len(count);
}

fn unsubscribe(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    stop(session, args, "unsubscribe", |subscribed| &mut subscribed.channels)
}

fn punsubscribe(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    stop(session, args, "punsubscribe", |subscribed| &mut subscribed.patterns)
}

fn stop(
    session: &mut Session,
    args: &[&[u8]],
    word: &str,
    subscriptions: fn(&mut Subscribed) -> &mut Subscriptions,
) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    let names: Vec<Vec<u8>> = match args {
        [_] => subscriptions(&mut session.subscribed.borrow_mut()).keys().cloned().collect(),
        args => args[1..].iter().map(|name| name.to_vec()).collect(),
    };
    if names.is_empty() {
        write_change(&mut writer, word, None, session.subscribed.borrow().count());
    }
    for name in names {
        let mut subscribed = session.subscribed.borrow_mut();
        subscriptions(&mut subscribed).remove(&name);
        write_change(&mut writer, word, Some(&name), subscribed.count());
    }
    session.update_subscribed_info();
    now(writer)
}

fn spublish(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let name = channel_name(session.tenant(), args[1]);
    written(session, |writer| {
        writer.len(door.shard_channels.publish(&door.broker, &name, args[2]));
        Ok(())
    })
}

fn ssubscribe(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    let mut unconfirmed = Unconfirmed::default();
    for name in &args[1..] {
        if !session.shard_subscriptions.contains_key(*name) {
            if session.shard_subscriptions.len() == SUBSCRIBED_MAX {
                writer.error(&Fail::new(format!(
                    "ERR a connection subscribes to at most {SUBSCRIBED_MAX} shard channels"
                )));
                continue;
            }
            if let Err(fail) = pattern(name) {
                writer.error(&fail);
                continue;
            }
            let identity = session.identity.borrow().clone();
            let hold = match door.broker.security.hold(broker::Door::Redis, &identity, Holding::Subscription) {
                Ok(hold) => hold,
                Err(error) => {
                    writer.error(&error.into());
                    continue;
                }
            };
            let full = channel_name(session.tenant(), name);
            let subscription = door.shard_channels.subscribe(&session.client, &identity, &full, hold);
            unconfirmed.add(subscription.receiver());
            session.shard_subscriptions.insert(name.to_vec(), subscription);
        }
        write_change(&mut writer, "ssubscribe", Some(name), session.shard_subscriptions.len());
    }
    session.update_subscribed_info();
    unconfirmed.confirmed_by(now(writer))
}

fn sunsubscribe(_door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let mut writer = session.writer();
    let names: Vec<Vec<u8>> = match args {
        [_] => session.shard_subscriptions.keys().cloned().collect(),
        args => args[1..].iter().map(|name| name.to_vec()).collect(),
    };
    if names.is_empty() {
        write_change(&mut writer, "sunsubscribe", None, 0);
    }
    for name in names {
        session.shard_subscriptions.remove(&name);
        write_change(&mut writer, "sunsubscribe", Some(&name), session.shard_subscriptions.len());
    }
    session.update_subscribed_info();
    now(writer)
}

/// Number of channels, of at most 1,024 bytes each, that `PUBSUB` visits in one step. With more it runs in slices.
const STEP_MAX: usize = 1024;
/// Number of bytes of names that cost as much as a visit of a channel.
const UNIT_BYTES: usize = 256;

/// Channels, or shard channels.
#[derive(Clone)]
enum Directory {
    Channels(Arc<Channels>),
    Shard(Arc<ShardChannels>),
}

impl Directory {
    fn len(&self) -> usize {
        match self {
            Self::Channels(channels) => channels.len(),
            Self::Shard(channels) => channels.len(),
        }
    }

    fn page(&self, tenant: Tenant<'_>, after: Option<&[u8]>) -> Vec<Vec<u8>> {
        match self {
            Self::Channels(channels) => channels.page(tenant, after),
            Self::Shard(channels) => channels.page(tenant, after),
        }
    }

    fn subscribers(&self, tenant: Tenant<'_>, channel: &[u8]) -> usize {
        match self {
            Self::Channels(channels) => channels.subscribers(tenant, channel),
            Self::Shard(channels) => channels.subscribers(tenant, channel),
        }
    }
}

/// Request about channels.
enum Lookup {
    /// Names of all channels, or of those that match a pattern.
    Names(Option<Matcher>),
    /// Numbers of subscribers of these channels.
    Counts(Vec<Box<[u8]>>),
}

impl Lookup {
    /// Writes the reply. A channel that exists during the whole time is in it once.
    async fn write(self, directory: &Directory, tenant: Tenant<'_>, out: &mut Writer, pace: &mut Pace) -> Done {
        match self {
            Self::Names(mut matcher) => {
                let begin = out.bytes.len();
                let mut count = 0;
                let mut page = directory.page(tenant, None);
                while let Some(last) = page.last().filter(|_| !out.is_too_large) {
                    let channels = page.iter().filter_map(|name| channel_of(tenant, name));
                    for channel in channels.filter(|name| matcher.as_mut().is_none_or(|it| it.matches(name))) {
                        out.bulk(channel);
                        count += 1;
                    }
                    pace.spend(units(&page)).await;
                    page = directory.page(tenant, Some(last));
                }
                out.begin_with(begin, |out| out.array(count));
            }
            Self::Counts(channels) => {
                out.array(2 * channels.len());
                for channels in channels.chunks(STEP_MAX) {
                    for channel in channels {
                        out.bulk(channel);
                        out.len(directory.subscribers(tenant, channel));
                    }
                    pace.spend(units(channels)).await;
                }
            }
        }
        out.check()
    }
}

fn units<T: AsRef<[u8]>>(names: &[T]) -> u64 {
    let bytes: usize = names.iter().map(|name| name.as_ref().len()).sum();
    (names.len() + bytes / UNIT_BYTES) as u64
}

fn pubsub(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let channels = || Directory::Channels(door.channels.clone());
    let shard = || Directory::Shard(door.shard_channels.clone());
    let names = |pattern: &[&[u8]]| pattern.first().map(|pattern| matcher(pattern)).transpose().map(Lookup::Names);
    let counts = |names: &[&[u8]]| Ok(Lookup::Counts(names.iter().map(|name| (*name).into()).collect()));
    let (directory, lookup) = match &args[1..] {
        [word, pattern @ ..] if is(word, "CHANNELS") && pattern.len() < 2 => (channels(), names(pattern)),
        [word, pattern @ ..] if is(word, "SHARDCHANNELS") && pattern.len() < 2 => (shard(), names(pattern)),
        [word, names @ ..] if is(word, "NUMSUB") => (channels(), counts(names)),
        [word, names @ ..] if is(word, "SHARDNUMSUB") => (shard(), counts(names)),
        [word] if is(word, "NUMPAT") => {
            return written(session, |writer| {
                writer.len(door.channels.patterns(session.tenant()));
                Ok(())
            });
        }
        _ => return session.fail(&wrong_part("PUBSUB", args[1])),
    };
    match lookup {
        Ok(lookup) => look_up(door, session, directory, lookup),
        Err(fail) => session.fail(&fail),
    }
}

/// Answers a request about channels: here, or in slices if there are many.
fn look_up(door: &Door, session: &mut Session, directory: Directory, lookup: Lookup) -> Reply<Answer, Later> {
    let units = match &lookup {
        Lookup::Names(_) => directory.len(),
        Lookup::Counts(names) => names.len(),
    };
    let tenant = session.tenant.clone();
    let mut writer = session.writer();
    if units <= STEP_MAX {
        let done = at_once(lookup.write(&directory, tenant.as_ref(), &mut writer, &mut Pace::at_once()));
        return match done {
            Ok(()) => now(writer),
            Err(fail) => session.fail(&fail),
        };
    }
    writer.bytes_max = session.room();
    let mut failed = session.writer();
    let slices = door.slices.clone();
    door.in_slices(session, async move {
        let _turn = slices.turn(units as u64).await;
        match lookup.write(&directory, tenant.as_ref(), &mut writer, &mut Pace::sliced()).await {
            Ok(()) => Answer::Written(writer.bytes),
            Err(fail) => {
                failed.error(&fail);
                Answer::Written(failed.bytes)
            }
        }
    })
}
