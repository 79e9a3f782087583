//! Permissions that each request requires, in Kafka's terms.
//!
//! A request is answered as a whole or for each resource that it names. A denied resource is answered with the code for
//! its kind, which does not reveal whether the resource exists.

use broker::{Broker, Door};
use engine::security::Operation::{
    Alter, AlterConfigs, Create, Delete, Describe, DescribeConfigs, IdempotentWrite, Read, Write,
};
use engine::security::{Operation, Resource, ResourceKind};

use super::caller::Caller;
use super::errors::Code;
use super::messages;
use super::security::BEFORE_LOGIN;
use crate::permissions::{Alternative, Call, Need, Table};

/// Kafka's name of the cluster, the only resource of its kind.
pub(super) const CLUSTER: &str = "kafka-cluster";
/// Value for the permitted operations if the client did not request them.
const NOT_ASKED: i32 = i32::MIN;

/// Row of an API: the permissions that a request requires. There is one for each operation on a kind of resource, and
/// the first one for a kind holds for the resources that the request names.
pub(super) struct Row {
    pub key: i16,
    pub needs: &'static [Need],
    /// Fact that the permissions do not state.
    note: &'static str,
}

macro_rules! rows {
    ($($key:literal $name:ident: [$($need:expr),*] $($note:literal)?;)*) => {
        /// Rows of all APIs, in the order of their keys.
        pub(super) const ROWS: &[Row] = &[$(Row { key: $key, needs: &[$($need),*], note: concat!($($note)?) }),*];
    };
}

const fn topics(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Topic, "each topic")
}

const fn group(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Group, "the group")
}

const fn groups(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Group, "each group")
}

const fn transaction(operation: Operation) -> Need {
    Need::new(operation, ResourceKind::Transaction, "the transactional id")
}

const fn cluster(operation: Operation) -> Need {
    Need::cluster(operation)
}

/// Topics of which a group or a transaction in the response consists.
const fn topics_within(operation: Operation, of: &'static str) -> Need {
    Need::new(operation, ResourceKind::Topic, of)
}

rows! {
    0 Produce: [topics(Write), transaction(Write).when("if the batch belongs to a transaction")];
    1 Fetch: [topics(Read)];
    2 ListOffsets: [topics(Describe)];
    3 Metadata: [
        topics(Describe),
        topics(Create).or_cluster(Create).when("if it does not exist and the client has it created")
    ] "A request for all topics omits those that the user may not describe.";
    8 OffsetCommit: [group(Read), topics(Read)];
    9 OffsetFetch: [groups(Describe), topics(Describe)]
        "A request for all topics omits those that the user may not describe.";
    10 FindCoordinator: [
        groups(Describe).when("for a group"),
        transaction(Describe).when("for a transactional id")
    ];
    11 JoinGroup: [group(Read)];
    12 Heartbeat: [group(Read)];
    13 LeaveGroup: [group(Read)];
    14 SyncGroup: [group(Read)];
    15 DescribeGroups: [groups(Describe)];
    16 ListGroups: [groups(Describe).or_cluster(Describe).filter()];
    17 SaslHandshake: [];
    18 ApiVersions: [];
    19 CreateTopics: [topics(Create).or_cluster(Create)]
        "The response has the settings of the topic if the user may `describe_configs`.";
    20 DeleteTopics: [topics(Delete)];
    21 DeleteRecords: [topics(Delete)];
    22 InitProducerId: [
        transaction(Write).when("for a transactional id"),
        cluster(IdempotentWrite).or(Write, ResourceKind::Topic, "any topic").when("without a transactional id")
    ];
    23 OffsetForLeaderEpoch: [topics(Describe)];
    24 AddPartitionsToTxn: [transaction(Write), topics(Write)];
    25 AddOffsetsToTxn: [transaction(Write), group(Read)];
    26 EndTxn: [transaction(Write)];
    28 TxnOffsetCommit: [transaction(Write), group(Read), topics(Read)];
    29 DescribeAcls: [cluster(Describe)];
    30 CreateAcls: [cluster(Alter)];
    31 DeleteAcls: [cluster(Alter)];
    32 DescribeConfigs: [
        topics(DescribeConfigs).when("for topics"),
        groups(DescribeConfigs).when("for groups"),
        cluster(DescribeConfigs).when("for the broker")
    ];
    33 AlterConfigs: [
        topics(AlterConfigs).when("for topics"),
        groups(AlterConfigs).when("for groups"),
        cluster(AlterConfigs).when("for the broker")
    ];
    34 AlterReplicaLogDirs: [cluster(Alter)];
    35 DescribeLogDirs: [cluster(Describe)];
    36 SaslAuthenticate: [];
    37 CreatePartitions: [topics(Alter)];
    42 DeleteGroups: [groups(Delete)];
    43 ElectLeaders: [cluster(Alter)];
    44 IncrementalAlterConfigs: [
        topics(AlterConfigs).when("for topics"),
        groups(AlterConfigs).when("for groups"),
        cluster(AlterConfigs).when("for the broker")
    ];
    45 AlterPartitionReassignments: [cluster(Alter)];
    46 ListPartitionReassignments: [cluster(Describe)];
    47 OffsetDelete: [group(Delete), topics(Read)];
    48 DescribeClientQuotas: [cluster(DescribeConfigs)];
    49 AlterClientQuotas: [cluster(AlterConfigs)];
    50 DescribeUserScramCredentials: [cluster(Describe)];
    51 AlterUserScramCredentials: [cluster(Alter)];
    55 DescribeQuorum: [cluster(Describe)];
    60 DescribeCluster: [];
    61 DescribeProducers: [topics(Read)];
    65 DescribeTransactions: [
        transaction(Describe),
        topics_within(Describe, "each topic of the transaction").filter()
    ];
    66 ListTransactions: [transaction(Describe).filter()];
    68 ConsumerGroupHeartbeat: [group(Read), topics(Describe)]
        "A regular expression selects only topics that the user may describe.";
    69 ConsumerGroupDescribe: [groups(Describe), topics_within(Describe, "each topic of its members")];
    74 ListConfigResources: [cluster(DescribeConfigs)];
    75 DescribeTopicPartitions: [topics(Describe)]
        "A request for all topics omits those that the user may not describe.";
    76 ShareGroupHeartbeat: [group(Read), topics(Describe)];
    77 ShareGroupDescribe: [groups(Describe), topics_within(Describe, "each topic of its members")];
    78 ShareFetch: [group(Read), topics(Read)];
    79 ShareAcknowledge: [group(Read), topics(Read)];
    90 DescribeShareGroupOffsets: [groups(Describe), topics(Describe)]
        "A request for all topics omits those that the user may not describe.";
    91 AlterShareGroupOffsets: [group(Read), topics(Read)];
    92 DeleteShareGroupOffsets: [group(Delete), topics(Read)];
}

/// Returns the permission that the API with this key requires on the resources of this kind that it names; `None` if it
/// requires none.
fn need(key: i16, kind: ResourceKind) -> Option<&'static Need> {
    ROWS.iter().find(|row| row.key == key)?.needs.iter().find(|need| need.kind == kind)
}

/// Returns the permissions that each API requires.
pub(crate) fn permissions() -> Table {
    let call = |row: &Row| {
        let name = messages::api(row.key).map_or("", |api| api.name);
        Call::new(name, row.needs).open(BEFORE_LOGIN.contains(&row.key)).note(row.note)
    };
    let about = "A refused resource has the error code of its kind, such as `TOPIC_AUTHORIZATION_FAILED`, which does \
                 not reveal whether the resource exists; a request about the cluster is refused as a whole.";
    Table { door: Door::Kafka, about, calls: ROWS.iter().map(call).collect() }
}

impl Caller {
    /// Checks that the caller may perform this operation.
    pub(super) fn may(&self, broker: &Broker, operation: Operation, resource: &Resource<'_>) -> Result<(), Code> {
        broker.security.authorize(&self.identity, operation, resource).map_err(|error| {
            tracing::debug!(host = self.identity.host(), %error, "not allowed");
            code_of(resource.kind)
        })
    }

    /// Checks that the caller may use the API with this key on a resource.
    pub(super) fn may_use(&self, broker: &Broker, key: i16, resource: &Resource<'_>) -> Result<(), Code> {
        need(key, resource.kind).map_or(Ok(()), |need| self.has(broker, need, resource))
    }

    /// Checks that the caller may create a topic by the API with this key.
    pub(super) fn may_create(&self, broker: &Broker, key: i16, topic: &str) -> Result<(), Code> {
        let needs = ROWS.iter().find(|row| row.key == key).map_or(&[][..], |row| row.needs);
        let creates = |need: &&Need| need.operation == Create && need.kind == ResourceKind::Topic;
        match needs.iter().find(creates) {
            Some(need) => self.has(broker, need, &Resource::topic(topic)),
            None => Err(Code::TOPIC_AUTHORIZATION_FAILED),
        }
    }

    /// Checks that the caller has a permission on a resource, or the one for the cluster that suffices as well.
    fn has(&self, broker: &Broker, need: &Need, resource: &Resource<'_>) -> Result<(), Code> {
        if self.has_alternative(broker, need) { Ok(()) } else { self.may(broker, need.operation, resource) }
    }

    /// Returns `true` if the caller has the permission for the cluster that suffices in place of another.
    fn has_alternative(&self, broker: &Broker, need: &Need) -> bool {
        matches!(need.or, Some(Alternative { operation, kind: ResourceKind::Cluster, .. })
            if broker.security.allows(&self.identity, operation, &Resource::CLUSTER))
    }

    /// Returns `true` if lists of the API with this key show a resource to the caller. What a list does not show is not
    /// refused.
    pub(super) fn sees(&self, broker: &Broker, key: i16, resource: &Resource<'_>) -> bool {
        need(key, resource.kind).is_none_or(|need| {
            self.has_alternative(broker, need) || broker.security.allows(&self.identity, need.operation, resource)
        })
    }

    /// Checks that the caller may obtain a producer id without a transaction: any client that may write to some topic
    /// may.
    pub(super) fn may_number(&self, broker: &Broker) -> Result<(), Code> {
        if broker.security.authorize_any(&self.identity, Operation::Write, ResourceKind::Topic).is_ok() {
            return Ok(());
        }
        self.may(broker, Operation::IdempotentWrite, &Resource::CLUSTER)
    }

    /// Returns the operations that the caller may perform on a resource, a bit for each of Kafka's operations, if
    /// requested.
    pub(super) fn operations(&self, broker: &Broker, resource: &Resource<'_>, is_asked: bool) -> i32 {
        if !is_asked {
            return NOT_ASKED;
        }
        let may = |operation: &&Operation| broker.security.authorize(&self.identity, **operation, resource).is_ok();
        let of_kind = operations_of(resource.kind).iter();
        of_kind.filter(may).fold(0, |bits, operation| bits | 1 << operation_code(*operation))
    }
}

/// Returns the operations that apply to a kind of resource of Kafka.
fn operations_of(kind: ResourceKind) -> &'static [Operation] {
    use Operation::ClusterAction;
    match kind {
        ResourceKind::Topic => &[Read, Write, Create, Describe, Delete, Alter, DescribeConfigs, AlterConfigs],
        ResourceKind::Group => &[Read, Describe, Delete, DescribeConfigs, AlterConfigs],
        ResourceKind::Cluster => {
            &[Create, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite, Alter, Describe]
        }
        ResourceKind::Transaction => &[Describe, Write],
        ResourceKind::Queue | ResourceKind::Cache | ResourceKind::Channel | ResourceKind::Schema => &[],
    }
}

fn code_of(kind: ResourceKind) -> Code {
    match kind {
        ResourceKind::Topic => Code::TOPIC_AUTHORIZATION_FAILED,
        ResourceKind::Group => Code::GROUP_AUTHORIZATION_FAILED,
        ResourceKind::Transaction => Code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _ => Code::CLUSTER_AUTHORIZATION_FAILED,
    }
}

/// Returns Kafka's number of an operation.
pub(super) fn operation_code(operation: Operation) -> i8 {
    match operation {
        Operation::All => 2,
        Operation::Read => 3,
        Operation::Write => 4,
        Operation::Create => 5,
        Operation::Delete => 6,
        Operation::Alter => 7,
        Operation::Describe => 8,
        Operation::ClusterAction => 9,
        Operation::DescribeConfigs => 10,
        Operation::AlterConfigs => 11,
        Operation::IdempotentWrite => 12,
    }
}

/// Returns Kafka's number of a kind of resource; `None` if Kafka has no such resources.
pub(super) fn kind_code(kind: ResourceKind) -> Option<i8> {
    match kind {
        ResourceKind::Topic => Some(2),
        ResourceKind::Group => Some(3),
        ResourceKind::Cluster => Some(4),
        ResourceKind::Transaction => Some(5),
        ResourceKind::Queue | ResourceKind::Cache | ResourceKind::Channel | ResourceKind::Schema => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_has_a_row_with_operations_that_its_resources_have() {
        assert!(ROWS.iter().map(|row| row.key).eq(messages::APIS.iter().map(|api| api.key)));
        for Row { key, needs, .. } in ROWS {
            for (i, Need { kind, operation, .. }) in needs.iter().enumerate() {
                assert!(operations_of(*kind).contains(operation), "{key}: {operation:?} {kind:?}");
                let is_same = |other: &Need| other.operation == *operation && other.kind == *kind;
                assert!(!needs[..i].iter().any(is_same), "{key} {operation:?} {kind:?} twice");
            }
        }
    }

    #[test]
    fn codes_of_operations_and_kinds_are_unique() {
        let mut codes: Vec<i8> = Operation::ALL.iter().map(|operation| operation_code(*operation)).collect();
        codes.sort_unstable();
        assert_eq!(codes, (2..=12).collect::<Vec<_>>());
        assert_eq!(ResourceKind::ALL.iter().filter_map(|kind| kind_code(*kind)).collect::<Vec<_>>(), [2, 3, 4, 5]);
    }
}
