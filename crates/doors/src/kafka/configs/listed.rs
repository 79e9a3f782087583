//! List of the resources that have settings.

use std::ops::Bound;

use broker::{Broker, TopicOutline};
use engine::security::{Operation, Resource};
use tokio::task::yield_now;

use super::super::caller::Caller;
use super::super::cluster::node_ids;
use super::super::errors::{self, Code};
use super::super::groups;
use super::super::messages::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use super::{BROKER, GROUP, TOPIC};

const LIST_CONFIG_RESOURCES: i16 = 74;
/// Names that a list looks at before other tasks of the thread get their turn.
const NAMES_PER_TURN: usize = 256;

/// Lists the resources. Other tasks of the thread run between slices of names.
pub(in super::super) async fn list_config_resources(
    broker: &Broker,
    caller: &Caller,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    // A client of a tenant is shown what is the tenant's, which is not the broker.
    let is_whole = caller.tenant().is_none();
    if is_whole && let Err(Code(error_code)) = caller.may_use(broker, LIST_CONFIG_RESOURCES, &Resource::CLUSTER) {
        return ListConfigResourcesResponse { error_code, ..Default::default() };
    }
    // Version 0 requests client metrics, which the broker does not support.
    let is_asked =
        |kind| caller.version > 0 && (request.resource_types.is_empty() || request.resource_types.contains(&kind));
    let may_describe =
        |resource: &Resource<'_>| broker.security.allows(&caller.identity, Operation::DescribeConfigs, resource);
    let mut config_resources = Vec::new();
    if is_asked(TOPIC) {
        let mut from = Bound::Unbounded;
        loop {
            let slice = broker.outline_topics_from(from.as_ref().map(String::as_str), NAMES_PER_TURN);
            let Some(last) = slice.last() else {
                break;
            };
            from = Bound::Excluded(last.name.to_string());
            let sees = |topic: &TopicOutline| is_whole || may_describe(&Resource::topic(topic.name.as_str()));
            let named =
                |topic: TopicOutline| ConfigResource { resource_name: topic.name.to_string(), resource_type: TOPIC };
            config_resources.extend(slice.into_iter().filter(sees).map(named));
            yield_now().await;
        }
    }
    if is_whole && is_asked(BROKER) {
        let named = |id: i32| ConfigResource { resource_name: id.to_string(), resource_type: BROKER };
        config_resources.extend(node_ids(broker).into_iter().map(named));
    }
    if is_asked(GROUP) {
        let mut from = Bound::Unbounded;
        loop {
            let slice = groups::set_groups(broker, from.as_ref().map(String::as_str), NAMES_PER_TURN).await;
            let groups = match slice {
                Ok(groups) => groups,
                Err(error) => {
                    return ListConfigResourcesResponse { error_code: errors::code(&error).0, ..Default::default() };
                }
            };
            let Some(last) = groups.last() else {
                break;
            };
            from = Bound::Excluded(last.clone());
            let sees = |group: &String| is_whole || may_describe(&Resource::group(group));
            let named = |resource_name| ConfigResource { resource_name, resource_type: GROUP };
            config_resources.extend(groups.into_iter().filter(sees).map(named));
            yield_now().await;
        }
    }
    ListConfigResourcesResponse { config_resources, ..Default::default() }
}
