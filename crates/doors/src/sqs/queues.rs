//! Queue actions: create, find, describe, change, purge and delete.

use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use broker::{Broker, NewQueue};
use engine::queue::{QueueDefinition, QueueName};
use engine::security::{Account, ResourceKind};
use engine::{Error, ErrorKind};

use super::address::{Place, is_name};
use super::attributes::{self, Attributes, RedriveAllow};
use super::codec::Answer;
use super::errors::{Failure, PURGE_IN_PROGRESS, QUEUE_DELETED_RECENTLY, QUEUE_NAME_EXISTS, Result};
use super::map::{Found, RequestContext, Sqs};
use super::model::{
    CreateQueue, DeleteQueue, GetQueueAttributes, GetQueueUrl, Int, List, ListDeadLetterSourceQueues, ListQueues, Map,
    PurgeQueue, SetQueueAttributes, Text, required, required_text,
};
use super::names::Names;
use super::permissions::add_tags;

/// Maximum number of queues in one page.
const PAGE_MAX: usize = 1000;
const NAME_REASON: &str = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
const FIFO_NAME_REASON: &str = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or \
                                underscores, must end with .fifo suffix and be 1 to 80 in length.";
const FIFO_FLAG_REASON: &str = "A name with the suffix .fifo is that of a FIFO queue: the attribute FifoQueue is \
                                missing, or is not true.";

impl Sqs {
    pub async fn create_queue(&self, context: &RequestContext<'_>, request: CreateQueue<'_>) -> Result<Answer> {
        let name = required_text("QueueName", &request.queue_name)?;
        let given = request.attributes.unwrap_or_default();
        let wants_fifo = given.iter().any(|(name, value)| name == "FifoQueue" && attributes::is_true(value.as_str()));
        let place = Place::new(&context.home, name);
        if wants_fifo && !place.is_fifo() {
            return Err(Failure::parameter(FIFO_NAME_REASON));
        }
        if !is_name(name) {
            return Err(Failure::parameter(NAME_REASON));
        }
        if place.is_fifo() && !wants_fifo {
            return Err(Failure::parameter(format!("{NAME_REASON}. {FIFO_FLAG_REASON}")));
        }
        let url = self.url_of(context, &place);
        if let Ok(existing) = self.find_place(context, place.clone()).await {
            self.expect_same(context, &existing, &given)?;
            return Ok(Answer::QueueUrl(url));
        }
        let known_as = self.names(context).inner(&place);
        if !self.cooldown.is_zero() && self.deleted.lock().get(&known_as, Instant::now()).is_some() {
            let message = "You must wait 60 seconds after deleting a queue before you can create another with the \
                           same name.";
            return Err(Failure::new(&QUEUE_DELETED_RECENTLY, message));
        }
        let mut attributes = Attributes::new(place.is_fifo());
        attributes.apply(&place, self.names(context), given.iter().map(|(name, value)| (name, value.as_str())))?;
        self.check_redrive(context, &place, &attributes, &given).await?;
        add_tags(&mut attributes, &place, &request.tags.unwrap_or_default())?;
        let mut new = NewQueue::new(QueueName::parse(&known_as)?);
        new.settings = attributes.settings;
        new.notes = attributes.notes;
        self.broker.authorize_queue_creation(&context.identity, &known_as, None).await?;
        let policy = attributes::policy_text(&new.notes).map(str::to_owned);
        let turn = self.policy_turn(policy.is_some()).await;
        let planned = self.plan(context, &place, None, policy.as_deref()).await?;
        let broker = self.broker.clone();
        let created = self.make(turn, planned, Box::pin(async move { broker.queues.create(new).await })).await;
        match created {
            // Another client created the queue in the meantime.
            Err(error) if error.kind == ErrorKind::AlreadyExists => {
                self.expect_same(context, &self.find_place(context, place).await?, &given)?;
            }
            created => drop(created?),
        }
        Ok(Answer::QueueUrl(url))
    }

    /// Returns an error if an existing queue differs from the requested attributes. Otherwise it is returned like a new
    /// one.
    fn expect_same(&self, context: &RequestContext<'_>, existing: &Found, given: &Map<'_, Text<'_>>) -> Result<()> {
        let names = self.names(context);
        let is_now = Attributes::of(&existing.definition);
        let mut wanted = is_now.clone();
        wanted.apply(&existing.place, names, given.iter().map(|(name, value)| (name, value.as_str())))?;
        let get = |attributes: &Attributes, name: &str| attributes.get(name, &existing.place, names);
        match given.iter().find(|(name, _)| get(&wanted, name) != get(&is_now, name)) {
            None => Ok(()),
            Some((name, _)) => {
                let message =
                    format!("A queue already exists with the same name and a different value for attribute {name}");
                Err(Failure::new(&QUEUE_NAME_EXISTS, message))
            }
        }
    }

    /// Checks that the given dead-letter queue exists and accepts messages of this queue.
    async fn check_redrive(
        &self,
        context: &RequestContext<'_>,
        place: &Place,
        set: &Attributes,
        given: &Map<'_, Text<'_>>,
    ) -> Result<()> {
        let policy = given.iter().find(|(name, _)| *name == "RedrivePolicy").map(|(_, value)| value.as_str());
        let (Some(policy), Some(target)) = (policy, &set.settings.dead_letter) else {
            return Ok(());
        };
        self.broker.authorize_dead_letters(&context.identity, target.as_str()).await?;
        let refused = |reason: &str| Failure::value("RedrivePolicy", policy, reason);
        let target = match self.broker.queues.get(target.as_str()).await {
            Err(error) if error.kind == ErrorKind::NotFound => {
                return Err(refused("Dead letter target does not exist."));
            }
            target => target?,
        };
        let is_allowed = match attributes::redrive_allow(&target.notes) {
            RedriveAllow::All => true,
            RedriveAllow::Nobody => false,
            RedriveAllow::Some(arns) => arns.contains(&place.arn()),
        };
        if is_allowed {
            Ok(())
        } else {
            Err(refused("The dead-letter queue does not allow this queue by its RedriveAllowPolicy."))
        }
    }

    pub async fn delete_queue(&self, context: &RequestContext<'_>, request: DeleteQueue<'_>) -> Result<Answer> {
        let turn = self.policy_turn(true).await;
        let found = self.find(context, &request.queue_url).await?;
        let (filter, gone) = self.entries_of_policy(context, &found);
        let deleted = (!self.cooldown.is_zero()).then(|| self.deleted.clone());
        let broker = self.broker.clone();
        let name = found.name().to_owned();
        // The next queue of this name must not have the entries of this one, even if the client leaves in between.
        broker::finish(async move {
            let _turn = turn;
            broker.queues.delete(&name).await?;
            if !gone.is_empty() {
                broker.security.replace_acls(filter, move |entries| Ok((entries - &gone, ()))).await?;
            }
            if let Some(deleted) = deleted {
                deleted.lock().insert(name, (), Instant::now());
            }
            Ok(Answer::Nothing)
        })
        .await
    }

    pub async fn queue_url(&self, context: &RequestContext<'_>, request: GetQueueUrl<'_>) -> Result<Answer> {
        let name = required_text("QueueName", &request.queue_name)?;
        let mut home = context.home.clone();
        if let Some(owner) = &request.queue_owner {
            home.account = owner.as_str().to_owned();
        }
        if !is_name(name) || !Account::is_valid(&home.account) {
            return Err(Failure::no_queue());
        }
        let found = self.find_place(context, Place::new(&home, name)).await?;
        Ok(Answer::QueueUrl(self.url_of(context, &found.place)))
    }

    pub async fn list_queues(&self, context: &RequestContext<'_>, request: ListQueues<'_>) -> Result<Answer> {
        let prefix = request.queue_name_prefix.as_ref().map_or("", Text::as_str);
        let page = Page::of(&request.next_token, request.max_results)?;
        self.list(context, page, prefix, |_| true, false).await
    }

    pub async fn list_sources(
        &self,
        context: &RequestContext<'_>,
        request: ListDeadLetterSourceQueues<'_>,
    ) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let page = Page::of(&request.next_token, request.max_results)?;
        let topic = &found.definition.topic;
        self.list(context, page, "", |queue| queue.settings.dead_letter.as_ref() == Some(topic), true).await
    }

    async fn list(
        &self,
        context: &RequestContext<'_>,
        page: Page,
        prefix: &str,
        is_meant: impl Fn(&QueueDefinition) -> bool,
        are_sources: bool,
    ) -> Result<Answer> {
        let names = self.names(context);
        let prefix = format!("{}{prefix}", names.prefix(&context.home));
        let is_shown = |queue: &str| self.broker.is_shown(&context.identity, ResourceKind::Queue, queue);
        let mut urls = Vec::new();
        let mut after = page.after;
        let mut next_token = None;
        'pages: loop {
            let (queues, is_last) = self.broker.queues.list(&prefix, &after, PAGE_MAX, is_shown).await?;
            for queue in &queues {
                let place = names.outer(queue.name.as_str());
                let Some(place) = place.filter(|place| place.home == context.home && is_meant(queue)) else {
                    continue;
                };
                if urls.len() == page.max {
                    next_token = page.is_asked_for.then(|| BASE64.encode(&after));
                    break 'pages;
                }
                urls.push(self.url_of(context, &place));
                after = queue.name.as_str().to_owned();
            }
            match queues.last() {
                Some(last) if !is_last => last.name.as_str().clone_into(&mut after),
                _ => break,
            }
            // Any number of queues may be none of those that are listed.
            tokio::task::yield_now().await;
        }
        Ok(Answer::QueueUrls { urls, next_token, are_sources })
    }

    pub async fn queue_attributes(
        &self,
        context: &RequestContext<'_>,
        request: GetQueueAttributes<'_>,
    ) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        let List(wanted) = request.attribute_names.unwrap_or_default();
        let is_known = |name: &str| name == "All" || attributes::NAMES.contains(&name);
        if let Some(unknown) = wanted.iter().find(|name| !is_known(name.as_str())) {
            return Err(Failure::unknown_attribute(unknown.as_str()));
        }
        let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted.as_str() == "All" || wanted.as_str() == name);
        let names = attributes::NAMES.into_iter().filter(|name| is_wanted(name));
        let counts = if attributes::NAMES.iter().any(|name| name.starts_with("Approximate") && is_wanted(name)) {
            self.broker.queues.counts(found.name()).await?
        } else {
            broker::QueueCounts::default()
        };
        let definition = &found.definition;
        let mut attributes = Attributes::of(&found.definition);
        if is_wanted(attributes::POLICY) {
            attributes.put_policy(self.policy_of(&found).await?.as_deref());
        }
        let value = |name: &'static str| {
            let value = match name {
                "ApproximateNumberOfMessages" => counts.visible.to_string(),
                "ApproximateNumberOfMessagesNotVisible" => counts.in_flight.to_string(),
                "ApproximateNumberOfMessagesDelayed" => counts.delayed.to_string(),
                "CreatedTimestamp" => (definition.created_ms / 1000).to_string(),
                "LastModifiedTimestamp" => (definition.altered_ms / 1000).to_string(),
                _ => attributes.get(name, &found.place, self.names(context))?,
            };
            Some((name, value))
        };
        Ok(Answer::Attributes(names.filter_map(value).collect()))
    }

    pub async fn set_queue_attributes(
        &self,
        context: &RequestContext<'_>,
        request: SetQueueAttributes<'_>,
    ) -> Result<Answer> {
        let given = required("Attributes", &request.attributes)?;
        let has_policy = given.iter().any(|(name, _)| name == attributes::POLICY);
        let turn = self.policy_turn(has_policy).await;
        let found = self.find(context, &request.queue_url).await?;
        let pairs = || given.iter().map(|(name, value)| (name, value.as_str()));
        let mut preview = Attributes::of(&found.definition);
        let names = self.names(context);
        preview.apply(&found.place, names, pairs())?;
        self.check_redrive(context, &found.place, &preview, given).await?;
        if !has_policy {
            return self.alter(&found, |attributes| attributes.apply(&found.place, names, pairs())).await;
        }
        let [before, after] = [&found.definition.notes, &preview.notes].map(attributes::policy_text);
        let planned = self.plan(context, &found.place, before, after).await?;
        let name = found.name().to_owned();
        let pairs: Vec<(String, String)> = pairs().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let (place, home, tenant) = (found.place, self.default.clone(), context.identity.tenant().cloned());
        let apply = move |attributes: &mut Attributes| {
            let names = Names { default: &home, tenant: tenant.as_ref() };
            attributes.apply(&place, names, pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
        };
        self.make(turn, planned, Box::pin(alter_queue(self.broker.clone(), name, apply))).await
    }

    /// Changes the attributes of a queue if the change is valid.
    pub async fn alter(&self, found: &Found, change: impl FnOnce(&mut Attributes) -> Result<()>) -> Result<Answer> {
        alter_queue(self.broker.clone(), found.name().to_owned(), change).await
    }

    pub async fn purge_queue(&self, context: &RequestContext<'_>, request: PurgeQueue<'_>) -> Result<Answer> {
        let found = self.find(context, &request.queue_url).await?;
        if !self.cooldown.is_zero() {
            let name = found.name().to_owned();
            let now = Instant::now();
            let mut purged = self.purged.lock();
            if purged.get(&name, now).is_some() {
                let place = &found.place.name;
                let message = format!("Only one PurgeQueue operation on {place} is allowed every 60 seconds.");
                return Err(Failure::new(&PURGE_IN_PROGRESS, message));
            }
            purged.insert(name, (), now);
        }
        self.broker.queues.purge(found.name()).await?;
        Ok(Answer::Nothing)
    }
}

/// Changes the attributes of a queue if the change is valid.
pub(super) async fn alter_queue(
    broker: Arc<Broker>,
    name: String,
    change: impl FnOnce(&mut Attributes) -> Result<()>,
) -> Result<Answer> {
    let mut refused = None;
    let altered = broker.queues.alter(&name, |definition| {
        let mut attributes = Attributes::of(definition);
        if let Err(failure) = change(&mut attributes) {
            refused = Some(failure);
            return Err(Error::invalid("the change was refused"));
        }
        definition.settings = attributes.settings;
        definition.notes = attributes.notes;
        Ok(())
    });
    match (altered.await, refused) {
        (_, Some(failure)) => Err(failure),
        (altered, None) => {
            let _: Arc<QueueDefinition> = altered?;
            Ok(Answer::Nothing)
        }
    }
}

/// Page of a list.
struct Page {
    after: String,
    max: usize,
    /// `true` if the client requested pages, and so gets a token for the next one.
    is_asked_for: bool,
}

impl Page {
    fn of(token: &Option<Text<'_>>, max: Option<Int>) -> Result<Self> {
        let max = match max {
            None => None,
            Some(Int(max)) if (1..=PAGE_MAX as i64).contains(&max) => Some(max as usize),
            Some(Int(max)) => {
                return Err(Failure::value("MaxResults", max, "Must be between 1 and 1000, if provided."));
            }
        };
        let after = match token.as_ref().map(Text::as_str).filter(|token| !token.is_empty()) {
            None => String::new(),
            Some(token) => {
                let name = BASE64.decode(token).ok().and_then(|name| String::from_utf8(name).ok());
                name.ok_or_else(|| Failure::value("NextToken", token, "It is not a token of this endpoint."))?
            }
        };
        Ok(Self { after, max: max.unwrap_or(PAGE_MAX), is_asked_for: max.is_some() })
    }
}
