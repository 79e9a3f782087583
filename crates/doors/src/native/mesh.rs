//! Maps requests about the mesh of sites to calls of the broker.

use std::sync::Arc;

use broker::Broker;
use engine::Result;
use wire::Response;
use wire::mesh::{MeshRequest, MeshResponse};

pub(super) async fn answer(broker: &Arc<Broker>, request: MeshRequest) -> Result<Response> {
    let answer = match request {
        MeshRequest::Describe => MeshResponse::Described(broker.describe_mesh()?),
        MeshRequest::Init { site } => MeshResponse::Initialized(broker.init_mesh(site).await?),
        MeshRequest::Join { site, invitation } => MeshResponse::Joined(broker.join_mesh(site, &invitation).await?),
        MeshRequest::Invite { minutes } => MeshResponse::Invited(broker.invite_site(minutes).await?),
        MeshRequest::Remove { site } => {
            broker.remove_site(&site).await?;
            MeshResponse::Removed
        }
        MeshRequest::Leave => {
            broker.leave_mesh().await?;
            MeshResponse::Left
        }
        MeshRequest::Topics => MeshResponse::Topics(broker.mesh_topics()?),
    };
    Ok(Response::Mesh(answer))
}
