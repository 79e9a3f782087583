//! State that a site keeps of its mesh: its identity, the members, and open invitations. They are documents of the
//! broker, so they are as durable as its queues, and every node of a cluster has them.

use std::sync::Arc;

use broker::Broker;
use bytes::{Buf, BufMut, Bytes};
use engine::mesh::{Member, Members, SiteName};
use engine::{Error, ErrorKind, Result, TopicId, TopicName};

use crate::identity::Identity;
use crate::invitation::OPEN_INVITATIONS_MAX;

/// Topic with the records of documents.
const DOCUMENTS_TOPIC: &str = "_queues";
/// Kind of the documents.
const KIND: &str = "mesh";
/// Name of the document with the identity.
const IDENTITY: &str = "identity";
/// Beginning of the names of documents with a member, and with an invitation.
const SITE: &str = "site.";
const INVITATION: &str = "invitation.";
/// Beginning of the names of documents about the origin of a copy.
const COPY: &str = "copy.";
/// Version of the documents.
const VERSION: u8 = 1;

/// Reads the identity of this site, and the members of its mesh. Returns `None` if it is in no mesh.
pub(crate) async fn load(broker: &Arc<Broker>) -> Result<Option<(Identity, Members)>> {
    // Documents are restored with the queues, which takes time, and a broker in no mesh may not need them yet.
    if !broker.has_topic(DOCUMENTS_TOPIC) {
        return Ok(None);
    }
    let Some(document) = broker.documents.get(KIND, IDENTITY).await? else { return Ok(None) };
    let identity = read_identity(broker, document)?;
    let mut members = Members::default();
    for (_, entry) in broker.documents.list(KIND, SITE).await? {
        members.merge(Member::decode(&entry)?)?;
    }
    Ok(Some((identity, members)))
}

fn read_identity(broker: &Arc<Broker>, mut document: Bytes) -> Result<Identity> {
    let cut = |error: bytes::TryGetError| Error::new(ErrorKind::Corrupt, format!("the identity of the site: {error}"));
    let version = document.try_get_u8().map_err(cut)?;
    if version != VERSION {
        let text = format!("the identity of the site has version {version}, this program reads {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    let length = usize::from(document.try_get_u8().map_err(cut)?);
    if document.len() < length {
        return Err(Error::new(ErrorKind::Corrupt, "the identity of the site is cut short"));
    }
    let name = document.split_to(length);
    let name = std::str::from_utf8(&name).map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))?;
    Identity::from_secret(SiteName::parse(name)?, &broker.security.unseal_site_key(&document)?)
}

/// Stores the identity of this site. It is durable when this returns.
pub(crate) async fn put_identity(broker: &Arc<Broker>, identity: &Identity) -> Result<()> {
    let sealed = broker.security.seal_site_key(identity.secret()).await?;
    let mut document = vec![VERSION, identity.site.as_str().len() as u8];
    document.put_slice(identity.site.as_str().as_bytes());
    document.put_slice(&sealed);
    broker.documents.put(KIND, IDENTITY, Some(document.into())).await
}

pub(crate) async fn put_member(broker: &Arc<Broker>, member: &Member) -> Result<()> {
    broker.documents.put(KIND, &format!("{SITE}{}", member.key), Some(member.encode().into())).await
}

/// Stores the hash of an invitation's secret until it is used.
pub(crate) async fn put_invitation(broker: &Arc<Broker>, hash: &[u8; 32], expires_s: u64, now_s: u64) -> Result<()> {
    let mut open = 0;
    for (name, expires) in broker.documents.list(KIND, INVITATION).await? {
        if expires.clone().try_get_u64().is_ok_and(|expires_s| expires_s > now_s) {
            open += 1;
        } else {
            broker.documents.put(KIND, &name, None).await?;
        }
    }
    if open >= OPEN_INVITATIONS_MAX {
        return Err(Error::busy(format!(
            "{OPEN_INVITATIONS_MAX} invitations are open, which is the limit: use them, or wait until some have expired"
        )));
    }
    broker.documents.put(KIND, &name_of(hash), Some(expires_s.to_be_bytes().to_vec().into())).await
}

/// Uses an invitation up. Fails if it was not issued here, was used, or has expired.
pub(crate) async fn take_invitation(broker: &Arc<Broker>, hash: &[u8; 32], now_s: u64) -> Result<()> {
    let denied = |text: &str| Error::new(ErrorKind::Denied, text);
    let document = broker.documents.get(KIND, &name_of(hash)).await?;
    let mut document = document.ok_or_else(|| {
        denied("the invitation was used already, or has expired: issue another one with `thalweg mesh invite`")
    })?;
    broker.documents.put(KIND, &name_of(hash), None).await?;
    match document.try_get_u64() {
        Ok(expires_s) if expires_s > now_s => Ok(()),
        _ => Err(denied(
            "the invitation has expired: issue another one with `thalweg mesh invite`; if it is new, check the clocks",
        )),
    }
}

/// Topic of another site that a topic of this one copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Provenance {
    pub copy: TopicId,
    pub origin: TopicId,
    /// Reason why the copy has stopped.
    pub diverged: Option<String>,
}

pub(crate) async fn provenance(broker: &Arc<Broker>, copy: &TopicName) -> Result<Option<Provenance>> {
    let Some(mut document) = broker.documents.get(KIND, &format!("{COPY}{copy}")).await? else { return Ok(None) };
    if document.len() < 33 || document.get_u8() != VERSION {
        return Err(Error::new(ErrorKind::Corrupt, format!("it is not known what {copy} is a copy of: delete it")));
    }
    let mut ids = [[0; 16]; 2];
    ids.iter_mut().for_each(|id| document.copy_to_slice(id));
    let [copy, origin] = ids.map(TopicId::from_bytes);
    let why = String::from_utf8_lossy(&document).into_owned();
    Ok(Some(Provenance { copy, origin, diverged: Some(why).filter(|why| !why.is_empty()) }))
}

pub(crate) async fn put_provenance(broker: &Arc<Broker>, copy: &TopicName, of: &Provenance) -> Result<()> {
    let mut document = vec![VERSION];
    document.put_slice(&of.copy.to_bytes());
    document.put_slice(&of.origin.to_bytes());
    document.put_slice(of.diverged.as_deref().unwrap_or_default().as_bytes());
    broker.documents.put(KIND, &format!("{COPY}{copy}"), Some(document.into())).await
}

/// Stores that a copy has stopped, so that it is not continued even if its origin reaches its end again.
pub(crate) async fn put_divergence(broker: &Arc<Broker>, copy: &TopicName, id: TopicId, why: &str) -> Result<()> {
    match provenance(broker, copy).await?.filter(|known| known.copy == id) {
        Some(known) => put_provenance(broker, copy, &Provenance { diverged: Some(why.to_owned()), ..known }).await,
        None => Ok(()),
    }
}

/// Forgets the mesh: the identity of this site, all members and all invitations.
pub(crate) async fn forget(broker: &Arc<Broker>) -> Result<()> {
    // First the identity: without it the rest has no meaning.
    broker.documents.put(KIND, IDENTITY, None).await?;
    // What was copied from where stays: the copies do.
    for prefix in [SITE, INVITATION] {
        for (name, _) in broker.documents.list(KIND, prefix).await? {
            broker.documents.put(KIND, &name, None).await?;
        }
    }
    Ok(())
}

fn name_of(hash: &[u8; 32]) -> String {
    hash.iter().fold(INVITATION.to_owned(), |name, byte| name + &format!("{byte:02x}"))
}
