//! Readers of subscriptions: clients, and the mesh.

/// Reader of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    #[default]
    Client,
    /// The mesh, to know which records to take to other sites.
    Router,
    /// The mesh, to take records to another site that has readers.
    Forward,
}

impl Reader {
    pub(crate) fn is_mesh(self) -> bool {
        self != Self::Client
    }
}
