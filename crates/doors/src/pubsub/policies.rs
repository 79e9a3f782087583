//! IAM policies: stored and returned, but not enforced. Access is controlled by the broker's own rules.

use prost::Message;

use super::access::has_permission;
use super::errors::{Code, Failure, Result};
use super::map::{Ask, Door};
use super::names::{Kind, Name};
use super::proto::iam::{
    GetIamPolicyRequest, Policy, SetIamPolicyRequest, TestIamPermissionsRequest, TestIamPermissionsResponse,
};

const DOCUMENT: &str = "pubsub.policy";
const BINDINGS_MAX: usize = 1500;
const PERMISSIONS_MAX: usize = 100;

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

async fn read(door: &Door, name: &Name) -> Result<Policy> {
    let Some(document) = door.broker.documents.get(DOCUMENT, &name.to_string()).await? else {
        return Ok(Policy { etag: etag(&[]), ..Policy::default() });
    };
    Policy::decode(document.clone())
        .map(|policy| Policy { etag: etag(&document), ..policy })
        .map_err(|error| Failure::new(Code::DataLoss, format!("the policy of {name} cannot be read: {error}")))
}

/// Returns a tag that differs if the policy does (FNV-1a).
fn etag(document: &[u8]) -> bytes::Bytes {
    let hash = document
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    bytes::Bytes::copy_from_slice(&hash.to_be_bytes())
}

pub(super) async fn get(ask: Ask, request: GetIamPolicyRequest) -> Result<Policy> {
    let name = resource(&ask.door, &request.resource).await?;
    read(&ask.door, &name).await
}

pub(super) async fn set(ask: Ask, request: SetIamPolicyRequest) -> Result<Policy> {
    let name = resource(&ask.door, &request.resource).await?;
    let policy = request.policy.ok_or_else(|| Failure::invalid("Policy is missing."))?;
    if policy.bindings.len() > BINDINGS_MAX {
        return Err(Failure::invalid(format!("A policy has at most {BINDINGS_MAX} bindings.")));
    }
    if policy.bindings.iter().any(|binding| binding.role.is_empty()) {
        return Err(Failure::invalid("Role name must not be empty."));
    }
    if !policy.etag.is_empty() && policy.etag != read(&ask.door, &name).await?.etag {
        let message =
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.";
        return Err(Failure::new(Code::Aborted, message));
    }
    let document = Policy { etag: bytes::Bytes::new(), ..policy }.encode_to_vec();
    ask.door.broker.documents.put(DOCUMENT, &name.to_string(), Some(document.into())).await?;
    read(&ask.door, &name).await
}

/// Returns the tested permissions that the client has.
pub(super) async fn test(ask: Ask, request: TestIamPermissionsRequest) -> Result<TestIamPermissionsResponse> {
    let name = Name::parse_any(&request.resource)?;
    if request.permissions.len() > PERMISSIONS_MAX {
        return Err(Failure::invalid(format!("At most {PERMISSIONS_MAX} permissions are tested at a time.")));
    }
    let of_kind = format!("pubsub.{}.", name.kind.collection());
    match request.permissions.iter().find(|permission| !permission.starts_with(&of_kind)) {
        Some(other) => Err(Failure::invalid(format!("Permission {other} is not valid for this resource."))),
        None => {
            let mut permissions = request.permissions;
            permissions.retain(|permission| has_permission(&ask.door, &ask, &name, permission));
            Ok(TestIamPermissionsResponse { permissions })
        }
    }
}

pub(super) async fn forget(door: &Door, name: &Name) -> Result<()> {
    let key = name.to_string();
    match door.broker.documents.get(DOCUMENT, &key).await? {
        Some(_) => Ok(door.broker.documents.put(DOCUMENT, &key, None).await?),
        None => Ok(()),
    }
}
