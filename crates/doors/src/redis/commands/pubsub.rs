//! Channels: subscribing and publishing, with or without a topic of the same name.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::{Attempt, Holding, Origin};
use engine::BatchBuilder;
use engine::glob::Glob;
use engine::security::Operation;
use futures_util::FutureExt;
use net::service::{Reply, once};

use super::args::{is, matcher, pattern};
use super::session::{now, written};
use crate::redis::access::{Needs, permit};
use crate::redis::channels::{ChannelSubscription, Ready, Selector, Subscribed};
use crate::redis::clients::About;
use crate::redis::codec::{Answer, Follow};
use crate::redis::command::{Command, own, wrong_part};
use crate::redis::connection::{Door, Later, Session};
use crate::redis::errors::{Done, Fail};
use crate::redis::events::Registration;
use crate::redis::names::{channel_name, topic_of};
use crate::redis::receiver::Unconfirmed;
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
        let mut ready = Vec::new();
        let mut receivers = Vec::new();
        for name in names {
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
                    let (mut subscription, is_ready) =
                        channels.subscribe(&broker, &client, origin, permit.clone(), hold, selector).await?;
                    subscription.events = events;
                    Ok::<_, Fail>((subscription, is_ready))
                };
                match subscribing.await {
                    Ok((subscription, is_ready)) => {
                        receivers.extend(subscription.events.as_ref().map(Registration::receiver));
                        subscriptions(&mut subscribed.borrow_mut()).insert(name.clone(), subscription);
                        ready.push(is_ready);
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
        ready.into_iter().for_each(Ready::begin);
        let answer = Answer::Written(writer.bytes);
        if receivers.is_empty() { answer } else { answer.before(Follow::Subscribed(Unconfirmed(receivers))) }
    }
    .boxed_local();
    // Only a pattern that matches many topics has to wait.
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
            session.shard_subscriptions.insert(name.to_vec(), subscription);
        }
        write_change(&mut writer, "ssubscribe", Some(name), session.shard_subscriptions.len());
    }
    session.update_subscribed_info();
    now(writer)
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

fn write_channels(writer: &mut Writer, mut channels: Vec<(Vec<u8>, usize)>, pattern: &[&[u8]]) -> Done {
    let mut matcher = pattern.first().map(|pattern| matcher(pattern)).transpose()?;
    channels.retain(|(channel, _)| matcher.as_mut().is_none_or(|matcher| matcher.matches(channel)));
    writer.array(channels.len());
    channels.iter().for_each(|(channel, _)| writer.bulk(channel));
    Ok(())
}

fn write_counts(writer: &mut Writer, channels: &[&[u8]], count: impl Fn(&[u8]) -> usize) {
    writer.array(2 * channels.len());
    for channel in channels {
        writer.bulk(channel);
        writer.len(count(channel));
    }
}

fn pubsub(door: &Door, session: &mut Session, args: &[&[u8]]) -> Reply<Answer, Later> {
    let tenant = session.tenant.clone();
    let tenant = tenant.as_ref();
    written(session, |writer| {
        match &args[1..] {
            [word, pattern @ ..] if is(word, "CHANNELS") && pattern.len() < 2 => {
                write_channels(writer, door.channels.channels(tenant), pattern)?;
            }
            [word, pattern @ ..] if is(word, "SHARDCHANNELS") && pattern.len() < 2 => {
                write_channels(writer, door.shard_channels.all(tenant), pattern)?;
            }
            [word, channels @ ..] if is(word, "NUMSUB") => {
                write_counts(writer, channels, |channel| door.channels.subscribers(tenant, channel));
            }
            [word, channels @ ..] if is(word, "SHARDNUMSUB") => {
                write_counts(writer, channels, |channel| door.shard_channels.subscribers(tenant, channel));
            }
            [word] if is(word, "NUMPAT") => writer.len(door.channels.patterns(tenant)),
            _ => return Err(wrong_part("PUBSUB", args[1])),
        }
        Ok(())
    })
}
