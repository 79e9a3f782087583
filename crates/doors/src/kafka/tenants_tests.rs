//! Names of tenants in every message, and requests of all APIs by a tenant's client at a broker with another tenant.

use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

use broker::{Broker, ConfiguredUser, Door, LoginSource, SecuritySettings, Settings};
use engine::security::UserName;
use regex_lite::Regex;
use tokio::runtime::Handle;

use super::super::caller::Caller;
use super::super::map;
use super::super::messages::consumer_group_describe::ConsumerGroupDescribeRequest;
use super::super::messages::consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
use super::super::messages::create_acls::{AclCreation, CreateAclsRequest};
use super::super::messages::create_topics::{CreatableTopic, CreateTopicsRequest};
use super::super::messages::describe_acls::DescribeAclsRequest;
use super::super::messages::describe_groups::DescribeGroupsRequest;
use super::super::messages::describe_topic_partitions::DescribeTopicPartitionsRequest;
use super::super::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use super::super::messages::init_producer_id::InitProducerIdRequest;
use super::super::messages::list_transactions::ListTransactionsRequest;
use super::super::messages::metadata::MetadataRequest;
use super::super::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use super::super::messages::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use super::super::messages::share_group_heartbeat::ShareGroupHeartbeatRequest;
use super::super::messages::tests::Random;
use super::super::messages::{APIS, Request, Response, Uuid, api};
use super::super::share::ShareConnection;
use super::*;

/// Number of samples of each response, and of each request.
const SAMPLES: u64 = 300;
const REQUESTS: u64 = 60;
/// Maximum time of a request; longer than any takes that does not wait for other members.
const PATIENCE: Duration = Duration::from_secs(20);
/// Keys of the APIs that the connection answers itself: the handshake and the login of SASL, and ShareFetch, whose
/// response has no names.
const AT_THE_CONNECTION: [i16; 3] = [17, 36, 78];

fn acme() -> TenantName {
    TenantName::parse("acme").expect("a name")
}

#[test]
fn names_get_the_prefix_and_lose_it_again() {
    let acme = acme();
    for entity in [Entity::Topic, Entity::Group, Entity::Transaction, Entity::Coordinated, Entity::Configured(2)] {
        for name in ["orders", "acme.orders", "_inbox.x", ""] {
            let mut text = name.to_owned();
            assert!(to_broker(&acme, entity, &mut text));
            assert!(text.is_empty() || acme.owns(&text), "{text}");
            assert!(to_client(&acme, entity, &mut text));
            assert_eq!(text, name);
        }
        for foreign in ["other.orders", "orders", "acmes.orders", "acme.", "_inbox.x"] {
            let mut text = foreign.to_owned();
            assert!(!to_client(&acme, entity, &mut text));
            assert_eq!(text, "");
        }
    }
    for entity in [Entity::Configured(4), Entity::None] {
        let mut text = "1".to_owned();
        assert!(to_broker(&acme, entity, &mut text) && to_client(&acme, entity, &mut text));
        assert_eq!(text, "1");
    }
}

#[test]
fn texts_lose_the_prefix_of_the_names_that_they_quote() {
    let strip = |text: &str| {
        let mut text = text.to_owned();
        strip_text(&acme(), &mut text);
        text
    };
    assert_eq!(strip("topic acme.orders: see 'acme.bills' or acme.acme.x"), "topic orders: see 'bills' or acme.x");
    assert_eq!(strip("acme.orders"), "orders");
    assert_eq!(strip("my-acme.orders and acme"), "my-acme.orders and acme");
}

#[test]
fn patterns_are_for_the_names_of_the_tenant_alone() {
    let acme = acme();
    let mut text = broker_pattern(&acme, "orders|bills.*");
    assert_eq!(text, "acme\\.(?:orders|bills.*)");
    assert!(to_client(&acme, Entity::TopicPattern, &mut text));
    assert_eq!(text, "orders|bills.*");
    let mut foreign = "secret.*".to_owned();
    assert!(to_client(&acme, Entity::TopicPattern, &mut foreign));
    assert_eq!(foreign, "");
}

/// Fields of responses with texts that are no names of topics, groups or transactions: of the client itself, of
/// members, of the broker, and of settings.
const NO_NAMES: [&str; 16] = [
    "acknowledge_error_message",
    "cluster_id",
    "documentation",
    "error_message",
    "group_instance_id",
    "host",
    "key",
    "leader",
    "log_dir",
    "mechanisms",
    "member_id",
    "protocol_name",
    "protocol_type",
    "rack",
    "unknown_state_filters",
    "value",
];

/// Other fields with such texts. Their names have another meaning in other messages.
const NO_NAMES_THERE: [&str; 17] = [
    // Users, and client ids.
    "AlterClientQuotas.entity_name",
    "AlterClientQuotas.entity_type",
    "AlterUserScramCredentials.user",
    "DeleteAcls.principal",
    "DescribeAcls.principal",
    "DescribeClientQuotas.entity_name",
    "DescribeClientQuotas.entity_type",
    "DescribeUserScramCredentials.user",
    // Features, settings and listeners.
    "ApiVersions.name",
    "DescribeConfigs.name",
    "DescribeQuorum.name",
    // The broker, if the type is not that of a topic or a group.
    "AlterConfigs.resource_name",
    "DescribeConfigs.resource_name",
    "IncrementalAlterConfigs.resource_name",
    "ListConfigResources.resource_name",
    // `acls` translates them, as the name and the type of a pattern depend on each other.
    "DeleteAcls.resource_name",
    "DescribeAcls.resource_name",
];

/// Every text of a response that names a topic, a group or a transaction is found by the traversal of the response.
#[test]
fn a_response_keeps_no_name_of_another_tenant() {
    let acme = acme();
    let field = Regex::new("([a-z_]+): (?:Some\\()?\\[?(?:\"[a-z.]+\", )*\"globex.classified\"").expect("a pattern");
    let mut kept = BTreeSet::new();
    for seed in 0..SAMPLES {
        for mut response in Response::samples(&mut Random::among(seed, &["globex.classified"], Vec::new())) {
            let name = api(response.key()).expect("it is served").name;
            response.names(&mut |entity, text| to_client(&acme, entity, text));
            let shown = format!("{response:?}");
            let fields = field.captures_iter(&shown).map(|found| found[1].to_owned());
            kept.extend(fields.filter(|field| !NO_NAMES.contains(&&**field)).map(|field| format!("{name}.{field}")));
        }
    }
    let expected: BTreeSet<String> = NO_NAMES_THERE.into_iter().map(str::to_owned).collect();
    assert_eq!(kept, expected);
}

/// Broker with a client of each of two tenants, and one without a tenant. All of them have every permission.
struct Stand {
    broker: Arc<Broker>,
    acme: Caller,
    globex: Caller,
    root: Caller,
}

impl Stand {
    async fn start(is_authorizing: bool) -> Self {
        let users = ["ann", "bob", "root"].map(|name| UserName::parse(name).expect("a name"));
        let configured = users.clone().map(|name| ConfiguredUser { name, password: "secret".into() });
        let security = SecuritySettings {
            users: configured.to_vec(),
            super_users: users.to_vec(),
            is_authorizing,
            ..SecuritySettings::default()
        };
        let broker =
            Broker::start(Settings { security, ..Settings::default() }, &[Handle::current()]).expect("started");
        let [ann, bob, root] = users;
        for (user, tenant) in [(&ann, "acme"), (&bob, "globex")] {
            let tenant = TenantName::parse(tenant).expect("a name");
            broker.security.assign_tenant(user.clone(), tenant).await.expect("assigned");
        }
        let [acme, globex, root] =
            [caller(&broker, ann).await, caller(&broker, bob).await, caller(&broker, root).await];
        Self { broker, acme, globex, root }
    }

    /// Answers a request as the connection does.
    async fn ask(&self, caller: &Caller, request: Request) -> Response {
        let key = request.key();
        let mut body = Body::Control(request);
        caller.tenant().into_iter().for_each(|tenant| enter(tenant, &mut body));
        let Body::Control(request) = body else { unreachable!("it is one of the table") };
        let answer = tokio::time::timeout(PATIENCE, map::answer(&self.broker, caller, request)).await;
        let mut answer = Answer::Control(answer.unwrap_or_else(|_| panic!("the API {key} waits")));
        caller.tenant().into_iter().for_each(|tenant| leave(tenant, &mut answer));
        let Answer::Control(response) = answer else { unreachable!("it is one of the table") };
        response
    }

    /// Creates whatever a tenant can have, with the names of `all`, and returns the ids of the topics.
    async fn fill(&self, caller: &Caller, all: &[&str]) -> Vec<Uuid> {
        let names = || all.iter().map(|name| (*name).to_owned());
        let topic = |name| CreatableTopic { name, num_partitions: 2, replication_factor: 1, ..Default::default() };
        let request = CreateTopicsRequest { topics: names().map(topic).collect(), ..Default::default() };
        let Response::CreateTopics(created) = self.ask(caller, Request::CreateTopics(request)).await else {
            unreachable!("it is the response");
        };
        assert!(created.topics.iter().all(|topic| topic.error_code == 0), "{created:?}");
        for name in names() {
            let partition = OffsetCommitRequestPartition { committed_offset: 5, ..Default::default() };
            let topics = vec![OffsetCommitRequestTopic { name: name.clone(), partitions: vec![partition] }];
            let group_id = name.clone();
            let generation_id_or_member_epoch = -1;
            let request = OffsetCommitRequest { group_id, generation_id_or_member_epoch, topics, ..Default::default() };
            self.ask(caller, Request::OffsetCommit(request)).await;
            let transactional_id = Some(format!("{name}-transaction"));
            let transaction_timeout_ms = 60_000;
            let request = InitProducerIdRequest { transactional_id, transaction_timeout_ms, ..Default::default() };
            self.ask(caller, Request::InitProducerId(request)).await;
            let request = ShareGroupHeartbeatRequest {
                group_id: format!("{name}-share"),
                member_id: "member".to_owned(),
                subscribed_topic_names: Some(vec![name.clone()]),
                ..Default::default()
            };
            self.ask(caller, Request::ShareGroupHeartbeat(request)).await;
            let request = ConsumerGroupHeartbeatRequest {
                group_id: format!("{name}-members"),
                member_id: "member".to_owned(),
                rebalance_timeout_ms: 60_000,
                subscribed_topic_names: Some(vec![name.clone()]),
                subscribed_topic_regex: Some("class.*|orders".to_owned()),
                ..Default::default()
            };
            self.ask(caller, Request::ConsumerGroupHeartbeat(request)).await;
            for resource_name in [name.as_str(), "*"] {
                let creation = AclCreation {
                    resource_type: 2,
                    resource_name: resource_name.to_owned(),
                    principal: "User:someone".to_owned(),
                    host: "*".to_owned(),
                    operation: 3,
                    permission_type: 3,
                    ..Default::default()
                };
                self.ask(caller, Request::CreateAcls(CreateAclsRequest { creations: vec![creation] })).await;
            }
            let config = AlterableConfig {
                name: "consumer.session.timeout.ms".to_owned(),
                value: Some("46000".to_owned()),
                ..Default::default()
            };
            let resource = AlterConfigsResource { resource_type: 32, resource_name: name, configs: vec![config] };
            let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
            self.ask(caller, Request::IncrementalAlterConfigs(request)).await;
        }
        created.topics.iter().map(|topic| topic.topic_id).collect()
    }

    /// Returns all that a client sees of its names: the responses of lists and descriptions.
    async fn seen(&self, caller: &Caller) -> String {
        let mut seen = String::new();
        for request in everything() {
            let response = self.ask(caller, request).await;
            seen += &format!("{response:#?}\n");
        }
        seen
    }
}

async fn caller(broker: &Arc<Broker>, user: UserName) -> Caller {
    let source = LoginSource { door: Door::Kafka, address: None };
    let identity = broker.security.log_in(user, "secret".into(), source).await.expect("the password is right");
    Caller {
        client: "test".into(),
        identity: Arc::new(identity),
        advertised: ("localhost".into(), 9092),
        version: 1,
        leaving: Default::default(),
        shares: ShareConnection::new(Arc::default(), Weak::new()).into(),
        mute: Default::default(),
        wait_ms: Default::default(),
    }
}

/// Requests for all that exists.
fn everything() -> Vec<Request> {
    vec![
        Request::Metadata(MetadataRequest { topics: None, ..Default::default() }),
        Request::ListGroups(Default::default()),
        Request::ListTransactions(ListTransactionsRequest { duration_filter: -1, ..Default::default() }),
        Request::ListConfigResources(Default::default()),
        Request::DescribeTopicPartitions(DescribeTopicPartitionsRequest {
            response_partition_limit: 100,
            ..Default::default()
        }),
        Request::DescribeAcls(DescribeAclsRequest {
            resource_type_filter: 1,
            resource_name_filter: None,
            pattern_type_filter: 1,
            principal_filter: None,
            host_filter: None,
            operation: 1,
            permission_type: 1,
        }),
        Request::DescribeGroups(DescribeGroupsRequest {
            groups: vec!["classified".into(), "orders".into(), "classified-members".into(), "orders-members".into()],
            ..Default::default()
        }),
        Request::ConsumerGroupDescribe(ConsumerGroupDescribeRequest {
            group_ids: vec!["classified-members".into(), "orders-members".into()],
            ..Default::default()
        }),
        Request::OffsetFetch(OffsetFetchRequest {
            group_id: "classified".into(),
            topics: Some(vec![OffsetFetchRequestTopic { name: "classified".into(), partition_indexes: vec![0] }]),
            ..Default::default()
        }),
    ]
}

/// Requests of all APIs, with the names of the other tenant's topics, groups and transactions, and the ids of its
/// topics, show nothing of the other tenant, and change nothing of it.
#[tokio::test]
async fn no_request_reaches_another_tenant() {
    for is_authorizing in [false, true] {
        let mut stand = Stand::start(is_authorizing).await;
        let foreign = stand.fill(&stand.globex, &["classified", "orders"]).await;
        let own = stand.fill(&stand.acme, &["orders"]).await;
        assert!(foreign.iter().chain(&own).all(|id| *id != Uuid::default()));
        let before = stand.seen(&stand.globex).await;
        assert!(before.contains("\"classified\"") && before.contains("\"classified-transaction\""), "{before}");
        assert_eq!(before.contains("User:someone"), is_authorizing, "{before}");
        assert!(!before.contains("globex") && !before.contains("acme"), "{before}");
        assert!(!stand.seen(&stand.acme).await.contains("globex"));
        let whole = stand.seen(&stand.root).await;
        assert!(whole.contains("\"globex.classified\"") && whole.contains("\"acme.orders\""), "{whole}");
        // Requests that would wait for other members are answered.
        stand.acme.leaving.begin();
        // No name that a client of the tenant sends is that of the other's topic, so that only a leak shows it.
        let texts = &["orders", "orders-members", "orders-transaction", "", "*", "member", "User:someone"];
        let ids: Vec<Uuid> = foreign.iter().copied().chain([Uuid::default()]).collect();
        let mut answered = BTreeSet::new();
        for seed in 0..REQUESTS {
            let random = &mut Random::among(seed, texts, ids.clone());
            for request in Request::samples(random) {
                let api = api(request.key()).expect("it is served");
                if AT_THE_CONNECTION.contains(&api.key) {
                    continue;
                }
                let span = u64::from((api.version_max - api.version_min).unsigned_abs()) + 1;
                let version = api.version_min + random.below(span) as i16;
                stand.acme.version = version;
                let asked = format!("{request:?}");
                let shown = format!("{:?}", stand.ask(&stand.acme, request).await);
                assert!(!shown.contains("classified") && !shown.contains("globex"), "{asked}: {shown}");
                answered.insert(api.key);
            }
        }
        let expected = APIS.iter().map(|api| api.key).filter(|key| *key > 1 && !AT_THE_CONNECTION.contains(key));
        assert_eq!(answered, expected.collect());
        assert_eq!(stand.seen(&stand.globex).await, before);
    }
}
