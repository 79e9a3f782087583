//! IAM policies: views of the access control entries of a resource.
//!
//! With authorization, a policy is written as entries with exactly the name of its resource, which are the truth: a
//! policy that is read says what they say, even if they were changed at another door. The text that was written is kept
//! as well, so that it is read back unchanged as long as it says the same. Without authorization no entry takes effect,
//! so the text is all that there is.

use std::collections::BTreeSet;

use engine::security::{Acl, AclFilter};
use prost::Message;

use super::access::{has_permission, pattern_of};
use super::errors::{Code, Failure, Result};
use super::grants::Granted;
use super::map::{Ask, Door};
use super::names::{Kind, Name};
use super::proto::iam::{
    GetIamPolicyRequest, Policy, SetIamPolicyRequest, TestIamPermissionsRequest, TestIamPermissionsResponse,
};

const DOCUMENT: &str = "pubsub.policy";
const BINDINGS_MAX: usize = 1500;
const PERMISSIONS_MAX: usize = 100;
/// Parts of a policy that can be changed; Google changes the first two unless a request names some.
const PATHS: [&str; 3] = ["bindings", "etag", "version"];

/// Parses the name of a resource and checks that it exists.
async fn resource(door: &Door, text: &str) -> Result<Name> {
    let name = Name::parse_any(text)?;
    match name.kind {
        Kind::Topic => door.topic(&name).await.map(drop)?,
        Kind::Subscription => door.subscription(&name).await.map(drop)?,
        Kind::Snapshot => super::snapshots::find(door, &name).await.map(drop)?,
        Kind::Schema => super::schemas::expect(door, &name).await?,
    }
    Ok(name)
}

/// Returns the policy that was last written, as it was written.
async fn written(door: &Door, name: &Name) -> Result<Option<Policy>> {
    let Some(document) = door.broker.documents.get(DOCUMENT, &name.to_string()).await? else {
        return Ok(None);
    };
    let policy = Policy::decode(document);
    policy
        .map(Some)
        .map_err(|error| Failure::new(Code::DataLoss, format!("the policy of {name} cannot be read: {error}")))
}

fn granted(door: &Door, name: &Name) -> Granted {
    let pattern = pattern_of(door, name);
    Granted { kind: name.kind, pattern, is_login_required: door.is_login_required }
}

async fn read(door: &Door, name: &Name) -> Result<Policy> {
    let written = written(door, name).await?;
    if !door.broker.is_authorizing() {
        return Ok(tagged(written.unwrap_or_default()));
    }
    let granted = granted(door, name);
    let entries = door.broker.security.acls(&AclFilter::of_pattern(granted.pattern.clone())).await?;
    Ok(tagged(granted.policy(&entries.into_iter().collect(), written)))
}

/// Returns the policy with a tag that differs if the policy does (FNV-1a).
fn tagged(policy: Policy) -> Policy {
    let policy = Policy { etag: bytes::Bytes::new(), ..policy };
    let hash = policy
        .encode_to_vec()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    Policy { etag: bytes::Bytes::copy_from_slice(&hash.to_be_bytes()), ..policy }
}

/// Checks that the policy to be written is based on the current one, if it says on which one it is based.
fn check_unchanged(current: Policy, new: &Policy) -> Result<()> {
    if new.etag.is_empty() || new.etag == tagged(current).etag {
        return Ok(());
    }
    let message =
        "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.";
    Err(Failure::new(Code::Aborted, message))
}

pub(super) async fn get(ask: Ask, request: GetIamPolicyRequest) -> Result<Policy> {
    let name = resource(&ask.door, &request.resource).await?;
    read(&ask.door, &name).await
}

pub(super) async fn set(ask: Ask, request: SetIamPolicyRequest) -> Result<Policy> {
    let door = &ask.door;
    let name = resource(door, &request.resource).await?;
    let policy = request.policy.ok_or_else(|| Failure::invalid("Policy is missing."))?;
    if policy.bindings.len() > BINDINGS_MAX {
        return Err(Failure::invalid(format!("A policy has at most {BINDINGS_MAX} bindings.")));
    }
    if policy.bindings.iter().any(|binding| binding.role.is_empty()) {
        return Err(Failure::invalid("Role name must not be empty."));
    }
    let _turn = door.changing_policy.lock().await;
    let before = written(door, &name).await?;
    if door.broker.is_authorizing() {
        let paths = request.update_mask.map(|mask| mask.paths).unwrap_or_default();
        let has_bindings = paths.is_empty() || paths.iter().any(|path| path == PATHS[0]);
        if !has_bindings || paths.iter().any(|path| !PATHS.contains(&path.as_str())) {
            let message = "The update mask of a policy names bindings, and may name etag and version; nothing else.";
            return Err(Failure::invalid(message));
        }
        grant(door, &granted(door, &name), &policy, before).await?;
    } else {
        check_unchanged(before.unwrap_or_default(), &policy)?;
    }
    let document = Policy { etag: bytes::Bytes::new(), ..policy }.encode_to_vec();
    door.broker.documents.put(DOCUMENT, &name.to_string(), Some(document.into())).await?;
    read(door, &name).await
}

/// Replaces the entries of a resource that a policy can express by those of a new policy, in one change.
async fn grant(door: &Door, granted: &Granted, new: &Policy, before: Option<Policy>) -> Result<()> {
    let wanted = granted.entries(new)?;
    let decide = |entries: &BTreeSet<Acl>| {
        if let Err(failure) = check_unchanged(granted.policy(entries, before), new) {
            return Ok((entries.clone(), Err(failure)));
        }
        let others = entries - &granted.shown(entries);
        Ok((&others | &wanted, Ok(())))
    };
    door.broker.security.replace_acls(AclFilter::of_pattern(granted.pattern.clone()), decide).await?
}

/// Returns the tested permissions that the client has; none if the resource does not exist.
pub(super) async fn test(ask: Ask, request: TestIamPermissionsRequest) -> Result<TestIamPermissionsResponse> {
    let name = Name::parse_any(&request.resource)?;
    if request.permissions.len() > PERMISSIONS_MAX {
        return Err(Failure::invalid(format!("At most {PERMISSIONS_MAX} permissions are tested at a time.")));
    }
    let mut permissions = Vec::new();
    for permission in request.permissions {
        if has_permission(&ask, &name, &permission).await? {
            permissions.push(permission);
        }
    }
    match resource(&ask.door, &request.resource).await {
        Ok(_) => {}
        Err(failure) if failure.code == Code::NotFound => permissions.clear(),
        Err(failure) => return Err(failure),
    }
    Ok(TestIamPermissionsResponse { permissions })
}

/// Deletes the policy of a deleted resource, with the entries that it wrote.
pub(super) async fn forget(door: &Door, name: &Name) -> Result<()> {
    let _turn = door.changing_policy.lock().await;
    let Some(policy) = written(door, name).await? else {
        return Ok(());
    };
    let granted = granted(door, name);
    if let Ok(gone) = granted.entries(&policy)
        && !gone.is_empty()
    {
        let filter = AclFilter::of_pattern(granted.pattern.clone());
        door.broker.security.replace_acls(filter, |entries| Ok((entries - &gone, ()))).await?;
    }
    Ok(door.broker.documents.put(DOCUMENT, &name.to_string(), None).await?)
}
