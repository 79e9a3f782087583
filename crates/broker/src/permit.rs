//! Permission of a subscription to read: asked for each topic and channel that it would join.

use std::fmt;
use std::sync::Arc;

use engine::{Error, ErrorKind, Result, TopicName};

/// Decides whether a subscription may read a topic, or a channel, which is a name without a topic. The broker asks each
/// time the subscription would join one, and again after each change of permissions.
#[derive(Clone, Default)]
pub struct Permit(Option<Arc<Decide>>);

/// Returns `true` if the name may be read; the second argument is `true` for a channel.
type Decide = dyn Fn(&TopicName, bool) -> bool + Send + Sync;

impl Permit {
    /// Permits everything.
    pub const ALL: Self = Self(None);

    pub fn new(decide: impl Fn(&TopicName, bool) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(decide)))
    }

    /// Returns `true` if some names may be refused.
    pub(crate) fn is_limited(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn allows(&self, name: &TopicName, is_channel: bool) -> bool {
        self.0.as_ref().is_none_or(|decide| decide(name, is_channel))
    }

    pub(crate) fn check(&self, name: &TopicName, is_channel: bool) -> Result<()> {
        if self.allows(name, is_channel) { Ok(()) } else { Err(refused(name)) }
    }
}

/// Returns the error of a subscription that may not read this name, or may not read it any more.
pub(crate) fn refused(name: &TopicName) -> Error {
    Error::new(ErrorKind::Denied, format!("reading {name} is not permitted; see thalweg acl"))
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_limited() { "Permit(limited)" } else { "Permit(all)" })
    }
}
