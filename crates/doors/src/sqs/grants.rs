//! Changes of a queue's policy with authorization: its statements are access control entries of the queue.
//!
//! The text of a policy is a note of the queue, and the entries are what takes effect. A client that may alter the
//! queue gives by its policy only what it may do there itself; one that may alter the cluster gives anything.

use std::collections::BTreeSet;

use engine::security::{Acl, AclFilter, Operation, Resource};
use engine::{Error, ErrorKind};
use tokio::sync::MutexGuard;

use super::address::Place;
use super::attributes::{self, Attributes};
use super::errors::{ACCESS_DENIED, Failure, Result};
use super::map::{Found, RequestContext, Sqs};
use super::policy::{Accounts, Policied};

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

impl Sqs {
    /// Waits until no other policy is changed, if a change concerns one.
    pub(super) async fn policy_turn(&self, has_policy: bool) -> Option<MutexGuard<'_, ()>> {
        if has_policy && self.broker.is_authorizing() { Some(self.changing_policy.lock().await) } else { None }
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

    /// Makes the entries of a queue those of a new policy, if the client may give and take them. The caller changes the
    /// note, and calls [`Sqs::take_back`] if that fails.
    pub(super) async fn grant(
        &self,
        context: &RequestContext<'_>,
        place: &Place,
        before: Option<&str>,
        after: Option<&str>,
    ) -> Result<Grants> {
        if !self.broker.is_authorizing() {
            return Ok(Grants::default());
        }
        let known_as = self.names(context).inner(place);
        let queue = self.policied(place, &known_as);
        // A policy that was written without authorization may say anything, and has no entries.
        let before = before.and_then(|policy| queue.entries(policy).ok()).unwrap_or_default();
        let after = after.map(|policy| queue.entries(policy)).transpose();
        let after = after.map_err(|reason| Failure::attribute("Policy", &reason))?.unwrap_or_default();
        let grants = Grants::between(&before, &after, &self.entries_of(&queue).await?);
        self.check_may_give(context, &known_as, &grants).await?;
        let checked = grants.clone();
        let decide = move |existing: &BTreeSet<Acl>| {
            if Grants::between(&before, &after, existing) != checked {
                let message = "the entries of the queue changed at the same time: try again";
                return Err(Error::new(ErrorKind::Busy, message));
            }
            Ok((&(existing - &checked.gone) | &checked.fresh, ()))
        };
        if !grants.is_empty() {
            self.broker.security.replace_acls(AclFilter::of_pattern(queue.pattern()), decide).await?;
        }
        Ok(grants)
    }

    /// Undoes a change of entries.
    pub(super) async fn take_back(&self, context: &RequestContext<'_>, place: &Place, grants: Grants) -> Result<()> {
        let Grants { fresh, gone } = grants.reversed();
        if fresh.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let known_as = self.names(context).inner(place);
        let filter = AclFilter::of_pattern(self.policied(place, &known_as).pattern());
        Ok(self.broker.security.replace_acls(filter, |entries| Ok((&(entries - &gone) | &fresh, ()))).await?)
    }

    /// Deletes the entries of the policy of a deleted queue. Entries that deny stay, as a client that only may delete
    /// the queue would lift what an administrator forbade.
    pub(super) async fn forget_policy(&self, context: &RequestContext<'_>, found: &Found) -> Result<()> {
        let written = attributes::policy_text(&found.definition.notes).filter(|_| self.broker.is_authorizing());
        let queue = self.policied(&found.place, found.name());
        let Some(mut gone) = written.and_then(|policy| queue.entries(policy).ok()) else { return Ok(()) };
        if !self.gives_anything(context) {
            gone.retain(|acl| acl.is_allowed);
        }
        let filter = AclFilter::of_pattern(queue.pattern());
        Ok(self.broker.security.replace_acls(filter, |entries| Ok((entries - &gone, ()))).await?)
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
        let grants = self.grant(context, &found.place, shown.as_deref(), after.as_deref()).await?;
        let put = |attributes: &mut Attributes| {
            attributes.put_policy(after.as_deref());
            Ok(())
        };
        let altered = self.alter(found, put).await;
        if altered.is_err() {
            self.take_back(context, &found.place, grants).await?;
        }
        altered
    }
}
