//! Permissions that each request requires, in Kafka's terms.
//!
//! A request is answered as a whole or for each resource that it names. A denied resource is answered with the code for
//! its kind, which does not reveal whether the resource exists.

use broker::Broker;
use engine::security::{Operation, Resource, ResourceKind};

use super::caller::Caller;
use super::errors::Code;

/// Kafka's name of the cluster, the only resource of its kind.
pub(super) const CLUSTER: &str = "kafka-cluster";
/// Value for the permitted operations if the client did not request them.
const NOT_ASKED: i32 = i32::MIN;

/// Operation that a request requires on each resource of a kind.
pub(super) struct Need {
    pub key: i16,
    pub kind: ResourceKind,
    pub operation: Operation,
}

macro_rules! needs {
    ($($key:literal $name:ident: $($operation:ident $kind:ident),+;)*) => {
        /// Requirements of every API that has any, in the order of their keys.
        pub(super) const NEEDS: &[Need] = &[$($(
            Need { key: $key, kind: ResourceKind::$kind, operation: Operation::$operation },
        )+)*];
    };
}

needs! {
    0 Produce: Write Topic, Write Transaction;
    1 Fetch: Read Topic;
    2 ListOffsets: Describe Topic;
    3 Metadata: Describe Topic;
    8 OffsetCommit: Read Group, Read Topic;
    9 OffsetFetch: Describe Group, Describe Topic;
    10 FindCoordinator: Describe Group, Describe Transaction;
    11 JoinGroup: Read Group;
    12 Heartbeat: Read Group;
    13 LeaveGroup: Read Group;
    14 SyncGroup: Read Group;
    15 DescribeGroups: Describe Group;
    16 ListGroups: Describe Group, Describe Cluster;
    19 CreateTopics: Create Topic;
    20 DeleteTopics: Delete Topic;
    21 DeleteRecords: Delete Topic;
    22 InitProducerId: Write Transaction, IdempotentWrite Cluster;
    23 OffsetForLeaderEpoch: Describe Topic;
    24 AddPartitionsToTxn: Write Transaction, Write Topic;
    25 AddOffsetsToTxn: Write Transaction, Read Group;
    26 EndTxn: Write Transaction;
    28 TxnOffsetCommit: Write Transaction, Read Group, Read Topic;
    29 DescribeAcls: Describe Cluster;
    30 CreateAcls: Alter Cluster;
    31 DeleteAcls: Alter Cluster;
    32 DescribeConfigs: DescribeConfigs Topic, DescribeConfigs Cluster, DescribeConfigs Group;
    33 AlterConfigs: AlterConfigs Topic, AlterConfigs Cluster, AlterConfigs Group;
    34 AlterReplicaLogDirs: Alter Cluster;
    35 DescribeLogDirs: Describe Cluster;
    37 CreatePartitions: Alter Topic;
    42 DeleteGroups: Delete Group;
    43 ElectLeaders: Alter Cluster;
    44 IncrementalAlterConfigs: AlterConfigs Topic, AlterConfigs Cluster, AlterConfigs Group;
    45 AlterPartitionReassignments: Alter Cluster;
    46 ListPartitionReassignments: Describe Cluster;
    47 OffsetDelete: Delete Group, Read Topic;
    48 DescribeClientQuotas: DescribeConfigs Cluster;
    49 AlterClientQuotas: AlterConfigs Cluster;
    50 DescribeUserScramCredentials: Describe Cluster;
    51 AlterUserScramCredentials: Alter Cluster;
    55 DescribeQuorum: Describe Cluster;
    61 DescribeProducers: Read Topic;
    65 DescribeTransactions: Describe Transaction;
    66 ListTransactions: Describe Transaction;
    68 ConsumerGroupHeartbeat: Read Group, Describe Topic;
    69 ConsumerGroupDescribe: Describe Group, Describe Topic;
    74 ListConfigResources: DescribeConfigs Cluster;
    75 DescribeTopicPartitions: Describe Topic;
    76 ShareGroupHeartbeat: Read Group, Describe Topic;
    77 ShareGroupDescribe: Describe Group, Describe Topic;
    78 ShareFetch: Read Group, Read Topic;
    79 ShareAcknowledge: Read Group, Read Topic;
    90 DescribeShareGroupOffsets: Describe Group, Describe Topic;
    91 AlterShareGroupOffsets: Read Group, Read Topic;
    92 DeleteShareGroupOffsets: Delete Group, Read Topic;
}

/// Returns the operation that the API with this key requires on resources of this kind; `None` if it requires none.
pub(super) fn need(key: i16, kind: ResourceKind) -> Option<Operation> {
    NEEDS.iter().find(|need| need.key == key && need.kind == kind).map(|need| need.operation)
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
        need(key, resource.kind).map_or(Ok(()), |operation| self.may(broker, operation, resource))
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
    use Operation::{
        Alter, AlterConfigs, ClusterAction, Create, Delete, Describe, DescribeConfigs, IdempotentWrite, Read, Write,
    };
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
    fn needs_are_those_of_operations_that_their_resources_have() {
        for (i, Need { key, kind, operation }) in NEEDS.iter().enumerate() {
            assert!(operations_of(*kind).contains(operation), "{key}: {operation:?} {kind:?}");
            assert!(super::super::messages::api(*key).is_some(), "{key}");
            assert!(!NEEDS[..i].iter().any(|other| other.key == *key && other.kind == *kind), "{key} {kind:?} twice");
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
