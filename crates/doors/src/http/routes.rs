//! Table of all routes of this door, except those of the console.

use std::sync::Arc;

use axum::http::Method;
use axum::routing::{MethodFilter, MethodRouter, on};
use engine::security::{Operation, ResourceKind};

use super::access::Needs;
use super::{HEALTHZ, Http, METRICS, READYZ, audit, caches, cluster, connections, groups, map, mesh, queues, security};

/// Route: one method of one path.
pub(super) struct Route {
    pub method: Method,
    pub path: &'static str,
    pub needs: Needs,
    pub serve: fn(MethodFilter) -> MethodRouter<Arc<Http>>,
}

/// All routes of this door, except those of the console.
pub(super) static ROUTES: [Route; 72] = [
    Route { method: Method::GET, path: "/", needs: Needs::Nothing, serve: |method| on(method, map::help) },
    Route {
        method: Method::GET,
        path: "/v1/topics",
        needs: Needs::List(ResourceKind::Topic),
        serve: |method| on(method, map::list_topics),
    },
    Route {
        method: Method::PUT,
        path: "/v1/topics/{topic}",
        needs: Needs::CreateTopic,
        serve: |method| on(method, map::create_topic),
    },
    Route {
        method: Method::GET,
        path: "/v1/topics/{topic}",
        needs: Needs::Topic(Operation::Describe),
        serve: |method| on(method, map::describe_topic),
    },
    Route {
        method: Method::PATCH,
        path: "/v1/topics/{topic}",
        needs: Needs::Topic(Operation::AlterConfigs),
        serve: |method| on(method, map::alter_topic),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/topics/{topic}",
        needs: Needs::Topic(Operation::Delete),
        serve: |method| on(method, map::delete_topic),
    },
    Route {
        method: Method::POST,
        path: "/v1/topics/{topic}/records",
        needs: Needs::Publish,
        serve: |method| on(method, map::publish),
    },
    Route {
        method: Method::GET,
        path: "/v1/topics/{topic}/records",
        needs: Needs::Topic(Operation::Read),
        serve: |method| on(method, map::fetch),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/topics/{topic}/records",
        needs: Needs::Topic(Operation::Delete),
        serve: |method| on(method, map::delete_records),
    },
    Route {
        method: Method::GET,
        path: "/v1/topics/{topic}/events",
        needs: Needs::Subscribe,
        serve: |method| on(method, map::events),
    },
    Route {
        method: Method::GET,
        path: "/v1/topics/{topic}/ws",
        needs: Needs::WebSocket,
        serve: |method| on(method, map::web_socket),
    },
    Route {
        method: Method::GET,
        path: "/v1/queues",
        needs: Needs::List(ResourceKind::Queue),
        serve: |method| on(method, queues::list),
    },
    Route {
        method: Method::PUT,
        path: "/v1/queues/{queue}",
        needs: Needs::CreateQueue,
        serve: |method| on(method, queues::create),
    },
    Route {
        method: Method::GET,
        path: "/v1/queues/{queue}",
        needs: Needs::Queue(Operation::Describe),
        serve: |method| on(method, queues::describe),
    },
    Route {
        method: Method::PATCH,
        path: "/v1/queues/{queue}",
        needs: Needs::AlterQueue,
        serve: |method| on(method, queues::alter),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/queues/{queue}",
        needs: Needs::Queue(Operation::Delete),
        serve: |method| on(method, queues::delete),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/messages",
        needs: Needs::Queue(Operation::Write),
        serve: |method| on(method, queues::send),
    },
    Route {
        method: Method::GET,
        path: "/v1/queues/{queue}/messages",
        needs: Needs::Queue(Operation::Read),
        serve: |method| on(method, queues::peek),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/queues/{queue}/messages",
        needs: Needs::Queue(Operation::Delete),
        serve: |method| on(method, queues::purge),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/receive",
        needs: Needs::Queue(Operation::Read),
        serve: |method| on(method, queues::receive),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/acks",
        needs: Needs::Queue(Operation::Read),
        serve: |method| on(method, queues::ack),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/nacks",
        needs: Needs::Queue(Operation::Read),
        serve: |method| on(method, queues::nack),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/extensions",
        needs: Needs::Queue(Operation::Read),
        serve: |method| on(method, queues::extend),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/seek",
        needs: Needs::Queue(Operation::Alter),
        serve: |method| on(method, queues::seek),
    },
    Route {
        method: Method::POST,
        path: "/v1/queues/{queue}/redrives",
        needs: Needs::Redrive,
        serve: |method| on(method, queues::start_redrive),
    },
    Route {
        method: Method::GET,
        path: "/v1/queues/{queue}/redrives",
        needs: Needs::Queue(Operation::Describe),
        serve: |method| on(method, queues::list_redrives),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/queues/{queue}/redrives/{redrive}",
        needs: Needs::Queue(Operation::Alter),
        serve: |method| on(method, queues::cancel_redrive),
    },
    Route {
        method: Method::GET,
        path: "/v1/caches",
        needs: Needs::List(ResourceKind::Cache),
        serve: |method| on(method, caches::list),
    },
    Route {
        method: Method::PUT,
        path: "/v1/caches/{cache}",
        needs: Needs::Cache(Operation::Create),
        serve: |method| on(method, caches::create),
    },
    Route {
        method: Method::GET,
        path: "/v1/caches/{cache}",
        needs: Needs::Cache(Operation::Describe),
        serve: |method| on(method, caches::describe),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/caches/{cache}",
        needs: Needs::Cache(Operation::Delete),
        serve: |method| on(method, caches::delete),
    },
    Route {
        method: Method::GET,
        path: "/v1/caches/{cache}/entries",
        needs: Needs::Cache(Operation::Read),
        serve: |method| on(method, caches::entries),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/caches/{cache}/entries",
        needs: Needs::Cache(Operation::Delete),
        serve: |method| on(method, caches::flush),
    },
    Route {
        method: Method::GET,
        path: "/v1/caches/{cache}/entries/{key}",
        needs: Needs::Entry(Operation::Read),
        serve: |method| on(method, caches::get),
    },
    Route {
        method: Method::PUT,
        path: "/v1/caches/{cache}/entries/{key}",
        needs: Needs::Entry(Operation::Write),
        serve: |method| on(method, caches::put),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/caches/{cache}/entries/{key}",
        needs: Needs::Entry(Operation::Write),
        serve: |method| on(method, caches::remove),
    },
    Route {
        method: Method::POST,
        path: "/v1/caches/{cache}/entries/{key}/add",
        needs: Needs::Count,
        serve: |method| on(method, caches::add),
    },
    Route {
        method: Method::GET,
        path: "/v1/groups",
        needs: Needs::List(ResourceKind::Group),
        serve: |method| on(method, groups::list),
    },
    Route {
        method: Method::GET,
        path: "/v1/groups/{group}",
        needs: Needs::Group(Operation::Describe),
        serve: |method| on(method, groups::describe),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/groups/{group}",
        needs: Needs::Group(Operation::Delete),
        serve: |method| on(method, groups::delete),
    },
    Route {
        method: Method::PUT,
        path: "/v1/groups/{group}/offsets",
        needs: Needs::Reset,
        serve: |method| on(method, groups::reset),
    },
    Route {
        method: Method::GET,
        path: "/v1/cluster",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, cluster::describe),
    },
    Route {
        method: Method::POST,
        path: "/v1/cluster/tokens",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, cluster::issue_token),
    },
    Route {
        method: Method::POST,
        path: "/v1/cluster/leader",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, cluster::transfer),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/cluster/nodes/{node}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, cluster::remove),
    },
    Route {
        method: Method::GET,
        path: "/v1/mesh",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, mesh::describe),
    },
    Route {
        method: Method::POST,
        path: "/v1/mesh/init",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, mesh::init),
    },
    Route {
        method: Method::POST,
        path: "/v1/mesh/join",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, mesh::join),
    },
    Route {
        method: Method::POST,
        path: "/v1/mesh/invitations",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, mesh::invite),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/mesh/sites/{site}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, mesh::remove),
    },
    Route {
        method: Method::POST,
        path: "/v1/mesh/leave",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, mesh::leave),
    },
    Route {
        method: Method::GET,
        path: "/v1/mesh/topics",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, mesh::topics),
    },
    Route {
        method: Method::GET,
        path: "/v1/users",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, security::list_users),
    },
    Route {
        method: Method::PUT,
        path: "/v1/users/{user}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::put_user),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/users/{user}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::delete_user),
    },
    Route {
        method: Method::GET,
        path: "/v1/roles",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, security::list_roles),
    },
    Route {
        method: Method::PUT,
        path: "/v1/users/{user}/roles/{role}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::add_role),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/users/{user}/roles/{role}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::remove_role),
    },
    Route {
        method: Method::GET,
        path: "/v1/tokens",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, security::list_tokens),
    },
    Route {
        method: Method::POST,
        path: "/v1/tokens",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::create_token),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/tokens/{token}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::delete_token),
    },
    Route {
        method: Method::GET,
        path: "/v1/acls",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, security::list_acls),
    },
    Route {
        method: Method::POST,
        path: "/v1/acls",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::create_acls),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/acls",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, security::delete_acls),
    },
    Route { method: Method::GET, path: "/v1/audit", needs: Needs::Audit, serve: |method| on(method, audit::list) },
    Route {
        method: Method::GET,
        path: "/v1/connections",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, connections::list),
    },
    Route {
        method: Method::GET,
        path: "/v1/connections/{connection}",
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, connections::describe),
    },
    Route {
        method: Method::DELETE,
        path: "/v1/connections/{connection}",
        needs: Needs::Cluster(Operation::Alter),
        serve: |method| on(method, connections::disconnect),
    },
    Route {
        method: Method::GET,
        path: "/v1/openapi.json",
        needs: Needs::Nothing,
        serve: |method| on(method, map::openapi),
    },
    Route {
        method: Method::GET,
        path: METRICS,
        needs: Needs::Cluster(Operation::Describe),
        serve: |method| on(method, map::metrics),
    },
    Route { method: Method::GET, path: HEALTHZ, needs: Needs::Nothing, serve: |method| on(method, map::healthy) },
    Route { method: Method::GET, path: READYZ, needs: Needs::Nothing, serve: |method| on(method, map::ready) },
];
