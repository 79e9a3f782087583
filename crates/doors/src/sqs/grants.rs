//! Changes of a queue's policy with authorization: its statements are access control entries of the queue.
//!
//! The text of a policy is a note of the queue, and the entries are what takes effect. A client that may alter the
//! queue gives by its policy only what it may do there itself; one that may alter the cluster gives anything. The
//! entries and the queue are changed together, also if the client leaves in between.

use std::collections::BTreeSet;

use broker::Broker;
use engine::security::{Acl, AclFilter, Operation, Resource};
use engine::{Error, ErrorKind};
use futures_util::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;

use super::address::Place;
use super::attributes::{self, Attributes};
use super::errors::{ACCESS_DENIED, Failure, Result};
use super::map::{Found, RequestContext, Sqs};
use super::policy::{Accounts, Policied};
use super::queues::alter_queue;

/// Change of the entries of a queue.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Grants {
    fresh: BTreeSet<Acl>,
    gone: BTreeSet<Acl>,
}

impl Grants {
    /// Returns the change from the entries of one policy to those of another, of which some may exist.
    fn between(before: &BTreeSet<Acl>, after: &BTreeSet<Acl>, existing: &BTreeSet<Acl>) -> Self {
        Self { fresh: after - existing, gone: &(before - after) & existing }
    }

    fn reversed(self) -> Self {
        Self { fresh: self.gone, gone: self.fresh }
    }

    fn is_empty(&self) -> bool {
        self.fresh.is_empty() && self.gone.is_empty()
    }

    fn each(&self) -> impl Iterator<Item = &Acl> {
        self.fresh.union(&self.gone)
    }
}

/// Change of the entries of a queue that was checked, and is not made yet.
pub(super) struct Planned {
    filter: AclFilter,
    before: BTreeSet<Acl>,
    after: BTreeSet<Acl>,
    grants: Grants,
}

impl Planned {
    async fn make(&self, broker: &Broker) -> engine::Result<()> {
        let Self { before, after, grants, .. } = self;
        let (before, after, grants) = (before.clone(), after.clone(), grants.clone());
        let decide = move |existing: &BTreeSet<Acl>| {
            if Grants::between(&before, &after, existing) != grants {
                let message = "the entries of the queue changed at the same time: try again";
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Ok((&(existing - &grants.gone) | &grants.fresh, ()))
        };
        broker.security.replace_acls(self.filter.clone(), decide).await
    }

    async fn take_back(self, broker: &Broker) -> engine::Result<()> {
        let Grants { fresh, gone } = self.grants.reversed();
        let decide = move |entries: &BTreeSet<Acl>| Ok((&(entries - &gone) | &fresh, ()));
        broker.security.replace_acls(self.filter, decide).await
    }
}

/// Right to change policies, while no other request does.
pub(super) type Turn = Option<OwnedMutexGuard<()>>;

impl Sqs {
    /// Waits until no other policy is changed, if a change concerns one.
    pub(super) async fn policy_turn(&self, has_policy: bool) -> Turn {
        let is_wanted = has_policy && self.broker.is_authorizing();
        if is_wanted { Some(self.changing_policy.clone().lock_owned().await) } else { None }
    }

    fn policied<'p>(&'p self, place: &'p Place, known_as: &'p str) -> Policied<'p> {
        let stored = Some((&*self.broker.security, self.default.account.as_str()));
        Policied { place, known_as, accounts: Accounts { auth: &self.auth, stored } }
    }

    async fn entries_of(&self, queue: &Policied<'_>) -> Result<BTreeSet<Acl>> {
        let entries = self.broker.security.acls(&AclFilter::of_pattern(queue.pattern())).await?;
        Ok(entries.into_iter().collect())
    }

    /// Returns the policy of a queue: what was written, as far as it takes effect.
    pub(super) async fn policy_of(&self, found: &Found) -> Result<Option<String>> {
        let Some(written) = attributes::policy_text(&found.definition.notes) else { return Ok(None) };
        if !self.broker.is_authorizing() {
            return Ok(Some(written.to_owned()));
        }
        let queue = self.policied(&found.place, found.name());
        Ok(queue.shown(written, &self.entries_of(&queue).await?))
    }

    /// Plans to make the entries of a queue those of a new policy, if the client may give and take them. Returns `None`
    /// if that changes nothing.
    pub(super) async fn plan(
        &self,
        context: &RequestContext<'_>,
        place: &Place,
        before: Option<&str>,
        after: Option<&str>,
    ) -> Result<Option<Planned>> {
        if !self.broker.is_authorizing() {
            return Ok(None);
        }
        let known_as = self.names(context).inner(place);
        let queue = self.policied(place, &known_as);
        // A policy that was written without authorization may say anything, and has no entries.
        let before = before.and_then(|policy| queue.entries(policy).ok()).unwrap_or_default();
        let after = after.map(|policy| queue.entries(policy)).transpose();
        let after = after.map_err(|reason| Failure::attribute("Policy", &reason))?.unwrap_or_default();
        let grants = Grants::between(&before, &after, &self.entries_of(&queue).await?);
        self.check_may_give(context, &known_as, &grants).await?;
        if grants.is_empty() {
            return Ok(None);
        }
        Ok(Some(Planned { filter: AclFilter::of_pattern(queue.pattern()), before, after, grants }))
    }

    /// Makes a planned change of entries, and then a change of the queue. If that fails, the entries are as before.
    /// Nothing is left half done if the client leaves.
    pub(super) async fn make<T, E>(
        &self,
        turn: Turn,
        planned: Option<Planned>,
        change: BoxFuture<'static, Result<T, E>>,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let broker = self.broker.clone();
        broker::finish(async move {
            let _turn = turn;
            if let Some(planned) = &planned {
                planned.make(&broker).await?;
            }
            let changed = change.await;
            if changed.is_err()
                && let Some(planned) = planned
            {
                planned.take_back(&broker).await?;
            }
            changed
        })
        .await
    }

    /// Returns the entries that are deleted with a queue: those of its policy. Entries that deny stay, as a client that
    /// only may delete the queue would lift what an administrator forbade.
    pub(super) fn entries_of_policy(&self, context: &RequestContext<'_>, found: &Found) -> (AclFilter, BTreeSet<Acl>) {
        let written = attributes::policy_text(&found.definition.notes).filter(|_| self.broker.is_authorizing());
        let queue = self.policied(&found.place, found.name());
        let mut entries = written.and_then(|policy| queue.entries(policy).ok()).unwrap_or_default();
        if !self.gives_anything(context) {
            entries.retain(|acl| acl.is_allowed);
        }
        (AclFilter::of_pattern(queue.pattern()), entries)
    }

    fn gives_anything(&self, context: &RequestContext<'_>) -> bool {
        self.broker.security.allows(&context.identity, Operation::Alter, &Resource::CLUSTER)
    }

    /// Checks that a client may give and take these permissions on a queue.
    async fn check_may_give(&self, context: &RequestContext<'_>, queue: &str, grants: &Grants) -> Result<()> {
        if grants.is_empty() || self.gives_anything(context) {
            return Ok(());
        }
        self.broker.authorize_queue(&context.identity, Operation::Alter, queue).await?;
        for acl in grants.each() {
            if !acl.is_allowed {
                let message = "A statement with the Effect Deny is added and removed only by who may alter the \
                               cluster: see thalweg acl.";
                return Err(Failure::new(&ACCESS_DENIED, message));
            }
            let whole = [acl.operation];
            let operations = if acl.operation == Operation::All { Operation::ALL } else { &whole };
            for operation in operations {
                let may = self.broker.authorize_queue(&context.identity, *operation, queue).await;
                may.map_err(|error| {
                    let denied = Failure::from(error);
                    let rule = "a policy gives and takes only what its author may do on the queue, unless the author \
                                may alter the cluster";
                    Failure::new(denied.code, format!("{}: {rule}.", denied.message))
                })?;
            }
        }
        Ok(())
    }

    /// Replaces the policy of a queue by one that is made from the one that it has.
    pub(super) async fn change_policy(
        &self,
        context: &RequestContext<'_>,
        turn: Turn,
        found: &Found,
        change: impl FnOnce(&mut Attributes) -> Result<()>,
    ) -> Result<super::codec::Answer> {
        if !self.broker.is_authorizing() {
            return self.alter(found, change).await;
        }
        let mut attributes = Attributes::of(&found.definition);
        let shown = self.policy_of(found).await?;
        attributes.put_policy(shown.as_deref());
        change(&mut attributes)?;
        let after = attributes::policy_text(&attributes.notes).map(str::to_owned);
        // What is shown may have more statements than a policy may have, and then says nothing.
        let before = attributes::policy_text(&found.definition.notes);
        let planned = self.plan(context, &found.place, before, after.as_deref()).await?;
        let put = move |attributes: &mut Attributes| {
            attributes.put_policy(after.as_deref());
            Ok(())
        };
        let altered = alter_queue(self.broker.clone(), found.name().to_owned(), put);
        self.make(turn, planned, Box::pin(altered)).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::time::Duration;

    use broker::{Door, LoginSource, SecuritySettings, Settings};
    use engine::security::{Pattern, PatternKind, Principal, ResourceKind};
    use futures_util::FutureExt;
    use net::Shutdown;
    use parking_lot::Mutex;
    use tokio::runtime::Handle;

    use super::*;
    use crate::sqs::address::Home;
    use crate::sqs::model::{CreateQueue, DeleteQueue};
    use crate::sqs::sigv4::Auth;

    const URL: &str = "http://localhost/000000000000/q";
    const POLICY: &str = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"*"},
        "Action":"SQS:SendMessage","Resource":"arn:aws:sqs:us-east-1:000000000000:q"}]}"#;

    fn sqs() -> Sqs {
        let security = SecuritySettings { is_authorizing: true, ..SecuritySettings::default() };
        let broker = Broker::start(Settings { security, ..Settings::default() }, &[Handle::current()]);
        Sqs::new(broker.expect("started"), Arc::new(Auth::Off), home(), None, Duration::ZERO)
    }

    fn home() -> Home {
        Home { account: "000000000000".to_owned(), region: "us-east-1".to_owned() }
    }

    /// Returns the context of an administrator.
    fn context(sqs: &Sqs) -> RequestContext<'static> {
        let source = LoginSource { door: Door::Sqs, address: None };
        RequestContext {
            home: home(),
            is_bound: false,
            base: "http://localhost".to_owned(),
            host: "localhost",
            trace: None,
            drain: Shutdown::default().drain(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            identity: sqs.broker.security.log_in_owner(source),
            held: Mutex::default(),
        }
    }

    fn create() -> CreateQueue<'static> {
        let attributes = serde_json::json!({ "Policy": POLICY });
        let request = serde_json::json!({ "QueueName": "q", "Attributes": attributes }).to_string();
        serde_json::from_str(request.leak()).expect("a request")
    }

    fn delete() -> DeleteQueue<'static> {
        let request = serde_json::json!({ "QueueUrl": URL }).to_string();
        serde_json::from_str(request.leak()).expect("a request")
    }

    /// Returns whether the queue exists, and whether it has entries, once what has begun has ended.
    async fn exists(sqs: &Sqs) -> (bool, bool) {
        drop(sqs.policy_turn(true).await);
        let of_queue = |acl: &Acl| acl.pattern.name == "q";
        let entries = sqs.broker.security.acls(&AclFilter::default()).await.expect("read");
        (sqs.broker.queues.get("q").await.is_ok(), entries.iter().any(of_queue))
    }

    #[tokio::test]
    async fn a_queue_is_created_with_its_entries_even_if_the_client_leaves() {
        let sqs = sqs();
        let context = context(&sqs);
        let mut creating = Box::pin(sqs.create_queue(&context, create()));
        // It waits for its entries to be written.
        assert!((&mut creating).now_or_never().is_none());
        drop(creating);
        assert_eq!(exists(&sqs).await, (true, true));
    }

    #[tokio::test]
    async fn the_entries_of_a_queue_are_deleted_with_it_even_if_the_client_leaves() {
        let sqs = sqs();
        let context = context(&sqs);
        sqs.create_queue(&context, create()).await.expect("created");
        assert_eq!(exists(&sqs).await, (true, true));
        // Another change, which has to end first, makes the deletion wait after its first step.
        let other = Acl {
            pattern: Pattern { kind: ResourceKind::Topic, name: "t".into(), matching: PatternKind::Literal },
            principal: Principal::Everyone,
            host: "*".into(),
            operation: Operation::Read,
            is_allowed: true,
        };
        let mut changing = Box::pin(sqs.broker.security.create_acls(vec![other]));
        assert!((&mut changing).now_or_never().is_none());
        let mut deleting = Box::pin(sqs.delete_queue(&context, delete()));
        assert!((&mut deleting).now_or_never().is_none());
        drop(deleting);
        assert_eq!(exists(&sqs).await, (false, false));
    }
}
