//! Access control entries and roles: lists and changes of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::security::{Acl, AclFilter, Pattern, RoleName, SecurityRecord, UserName};
use engine::{Error, ErrorKind, Result};

use super::{Security, listed};
use crate::fetch::aside;

impl Security {
    /// Returns the access control entries that match a filter.
    pub async fn acls(&self, filter: &AclFilter) -> Result<Vec<Acl>> {
        self.open().await?;
        Ok(self.permissions.read().acls.found(filter))
    }

    /// Returns the access control entries that match a filter, in the order of their patterns. They are collected on a
    /// thread that serves no connection, since they may be all.
    pub async fn acls_by_pattern(self: &Arc<Self>, filter: AclFilter) -> Result<Vec<Acl>> {
        self.open().await?;
        let security = self.clone();
        aside(move || {
            let mut found = security.permissions.read().acls.found(&filter);
            found.sort_by(|a, b| a.pattern.cmp(&b.pattern));
            Ok(found)
        })
        .await
    }

    /// Adds access control entries. Entries that exist already are ignored.
    pub async fn create_acls(self: &Arc<Self>, acls: Vec<Acl>) -> Result<()> {
        let entries = listed(acls.iter().map(Acl::to_string));
        let act = async {
            self.change(|tables, _| {
                acls.iter().try_for_each(Acl::validate)?;
                let fresh: BTreeSet<Acl> = acls.into_iter().filter(|acl| !tables.acls.contains(acl)).collect();
                tables.acls.check_room(&fresh)?;
                Ok((fresh.into_iter().map(|acl| SecurityRecord::Acl { acl, is_present: true }).collect(), ()))
            })
            .await
        };
        self.core.audited("create acls", &entries, act).await
    }

    /// Deletes access control entries: those that match a filter and are of a kind that the client knows. Returns the
    /// entries that each filter deleted.
    pub async fn delete_acls(
        self: &Arc<Self>,
        filters: Vec<AclFilter>,
        is_known: impl Fn(&Acl) -> bool,
    ) -> Result<Vec<Vec<Acl>>> {
        let deleted = self
            .change(|tables, _| {
                let mut found: Vec<Vec<Acl>> = filters.iter().map(|filter| tables.acls.found(filter)).collect();
                found.iter_mut().for_each(|acls| acls.retain(&is_known));
                let gone: BTreeSet<Acl> = found.iter().flatten().cloned().collect();
                Ok((gone.into_iter().map(|acl| SecurityRecord::Acl { acl, is_present: false }).collect(), found))
            })
            .await;
        let entries = deleted.as_ref().map_or_else(
            |_| String::new(),
            |found| listed(found.iter().flatten().map(Acl::to_string).collect::<Vec<_>>().into_iter()),
        );
        self.core.record_act("delete acls", &entries, deleted.as_ref().err());
        deleted
    }

    /// Replaces access control entries in one change: `decide` receives those that match a filter and returns those to
    /// have instead, with an answer. An entry outside of the filter is refused, so that a door cannot change more than
    /// it authorized.
    pub async fn replace_acls<T: Send + 'static>(
        self: &Arc<Self>,
        filter: AclFilter,
        decide: impl FnOnce(&BTreeSet<Acl>) -> Result<(BTreeSet<Acl>, T)>,
    ) -> Result<T> {
        let act = self.change(|tables, _| {
            let before: BTreeSet<Acl> = tables.acls.found(&filter).into_iter().collect();
            let (after, answer) = decide(&before)?;
            let fresh: Vec<&Acl> = after.difference(&before).collect();
            for acl in &fresh {
                acl.validate()?;
                if !filter.means(acl) {
                    let Pattern { kind, name, .. } = &acl.pattern;
                    let message = format!("an entry of {} for {} {name} is none of these", acl.principal, kind.name());
                    return Err(Error::new(ErrorKind::Denied, message));
                }
            }
            tables.acls.check_room(fresh.iter().copied())?;
            let gone: Vec<&Acl> = before.difference(&after).collect();
            let entries = [&gone, &fresh].map(|acls| listed(acls.iter().map(|acl| acl.to_string())));
            let of = |is_present: bool| move |acl: &Acl| SecurityRecord::Acl { acl: acl.clone(), is_present };
            let gone = gone.into_iter().map(of(false));
            Ok((gone.chain(fresh.into_iter().map(of(true))).collect(), (answer, entries)))
        });
        let outcome = act.await;
        let error = outcome.as_ref().err();
        match outcome.as_ref().map(|(_, entries)| entries) {
            Ok([gone, fresh]) => {
                for (action, entries) in [("delete acls", gone), ("create acls", fresh)] {
                    if !entries.is_empty() {
                        self.core.record_act(action, entries, None);
                    }
                }
            }
            Err(_) => self.core.record_act("replace acls", "", error),
        }
        outcome.map(|(answer, _)| answer)
    }

    /// Returns the members of all roles that have any: users in the order of their names, each with its roles.
    pub async fn members(&self) -> Result<Vec<(UserName, Vec<RoleName>)>> {
        self.open().await?;
        let tables = self.permissions.read();
        let of_user = |(user, roles): (&UserName, &BTreeSet<RoleName>)| (user.clone(), roles.iter().cloned().collect());
        Ok(tables.members.iter().map(of_user).collect())
    }

    /// Gives a user a role that exists, or takes one away. The user does not have to exist, as a client may also log in
    /// with a credential of another issuer.
    pub async fn set_member(self: &Arc<Self>, user: UserName, role: RoleName, is_present: bool) -> Result<()> {
        let action = if is_present { "add role" } else { "remove role" };
        let name = format!("{role} {user}");
        let act = async {
            self.change(|tables, _| {
                if tables.members.contains(&user, &role) == is_present {
                    return Ok((Vec::new(), ()));
                }
                if is_present {
                    tables.check_role(&role)?;
                }
                tables.members.check_room(usize::from(is_present))?;
                Ok((vec![SecurityRecord::Member { user, role, is_present }], ()))
            })
            .await
        };
        self.core.audited(action, &name, act).await
    }
}
