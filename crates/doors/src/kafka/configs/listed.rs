//! List of the resources that have settings.

use broker::{Broker, TopicOutline};
use engine::security::Resource;

use super::super::caller::{Caller, NODE_ID};
use super::super::errors::{self, Code};
use super::super::groups;
use super::super::messages::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use super::{BROKER, GROUP, TOPIC};

pub(in super::super) async fn list_config_resources(
    broker: &Broker,
    caller: &Caller,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    if let Err(Code(error_code)) = caller.may_use(broker, 74, &Resource::CLUSTER) {
        return ListConfigResourcesResponse { error_code, ..Default::default() };
    }
    // Version 0 requests client metrics, which the broker does not support.
    let is_asked =
        |kind| caller.version > 0 && (request.resource_types.is_empty() || request.resource_types.contains(&kind));
    let mut config_resources = Vec::new();
    if is_asked(TOPIC) {
        let topics = broker.outline_topics();
        let named =
            |topic: TopicOutline| ConfigResource { resource_name: topic.name.to_string(), resource_type: TOPIC };
        config_resources.extend(topics.into_iter().map(named));
    }
    if is_asked(BROKER) {
        config_resources.push(ConfigResource { resource_name: NODE_ID.to_string(), resource_type: BROKER });
    }
    if is_asked(GROUP) {
        let groups = match groups::set_groups(broker).await {
            Ok(groups) => groups,
            Err(error) => {
                return ListConfigResourcesResponse { error_code: errors::code(&error).0, ..Default::default() };
            }
        };
        let named = |resource_name| ConfigResource { resource_name, resource_type: GROUP };
        config_resources.extend(groups.into_iter().map(named));
    }
    ListConfigResourcesResponse { config_resources, ..Default::default() }
}
