//! The mesh of sites.

use engine::Result;
use engine::mesh::{Invitation, MeshStatus, MeshTopic, SiteName};
use wire::mesh::{MeshRequest, MeshResponse};
use wire::{Request, Response};

use crate::client::Client;
use crate::link::unexpected;

impl Client {
    /// Makes the broker a site of a new mesh.
    pub async fn init_mesh(&self, site: SiteName) -> Result<MeshStatus> {
        match self.of_mesh(MeshRequest::Init { site }).await? {
            MeshResponse::Initialized(status) => Ok(status),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Makes the broker a site of the mesh that issued an invitation.
    pub async fn join_mesh(&self, site: SiteName, invitation: Invitation) -> Result<MeshStatus> {
        match self.of_mesh(MeshRequest::Join { site, invitation }).await? {
            MeshResponse::Joined(status) => Ok(status),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Issues an invitation with which one site can join within a number of minutes, at most a week.
    pub async fn invite_site(&self, minutes: u32) -> Result<Invitation> {
        match self.of_mesh(MeshRequest::Invite { minutes }).await? {
            MeshResponse::Invited(invitation) => Ok(invitation),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Removes another site from the mesh. Every site disconnects it and refuses its key from then on.
    pub async fn remove_site(&self, site: SiteName) -> Result<()> {
        match self.of_mesh(MeshRequest::Remove { site }).await? {
            MeshResponse::Removed => Ok(()),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Has the broker leave the mesh, and delete the key of its site.
    pub async fn leave_mesh(&self) -> Result<()> {
        match self.of_mesh(MeshRequest::Leave).await? {
            MeshResponse::Left => Ok(()),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Returns the state of the mesh from the point of view of the broker's site. A broker without a mesh answers with
    /// an error of the kind unsupported.
    pub async fn describe_mesh(&self) -> Result<MeshStatus> {
        match self.of_mesh(MeshRequest::Describe).await? {
            MeshResponse::Described(status) => Ok(status),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    /// Returns the topics of the broker's site that are in the mesh, in the order of their names.
    pub async fn mesh_topics(&self) -> Result<Vec<MeshTopic>> {
        match self.of_mesh(MeshRequest::Topics).await? {
            MeshResponse::Topics(topics) => Ok(topics),
            other => Err(unexpected(&Response::Mesh(other))),
        }
    }

    async fn of_mesh(&self, request: MeshRequest) -> Result<MeshResponse> {
        match self.session.call(&Request::Mesh(request)).await? {
            Response::Mesh(response) => Ok(response),
            other => Err(unexpected(&other)),
        }
    }
}
