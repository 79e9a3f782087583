//! Mapping of error kinds to Kafka's codes (<https://kafka.apache.org/protocol#protocol_error_codes>).

use engine::groups::{GroupError, Reason};
use engine::{Error, ErrorKind};
use net::service::{Fault, FaultKind};

/// Kafka's error code. 0 is success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Code(pub i16);

impl Code {
    pub const NONE: Self = Self(0);
    pub const UNKNOWN_SERVER_ERROR: Self = Self(-1);
    pub const OFFSET_OUT_OF_RANGE: Self = Self(1);
    pub const CORRUPT_MESSAGE: Self = Self(2);
    pub const UNKNOWN_TOPIC_OR_PARTITION: Self = Self(3);
    pub const LEADER_NOT_AVAILABLE: Self = Self(5);
    pub const NOT_LEADER_OR_FOLLOWER: Self = Self(6);
    pub const REQUEST_TIMED_OUT: Self = Self(7);
    pub const REPLICA_NOT_AVAILABLE: Self = Self(9);
    pub const MESSAGE_TOO_LARGE: Self = Self(10);
    pub const OFFSET_METADATA_TOO_LARGE: Self = Self(12);
    pub const COORDINATOR_LOAD_IN_PROGRESS: Self = Self(14);
    pub const COORDINATOR_NOT_AVAILABLE: Self = Self(15);
    pub const NOT_COORDINATOR: Self = Self(16);
    pub const INVALID_TOPIC_EXCEPTION: Self = Self(17);
    pub const INVALID_REQUIRED_ACKS: Self = Self(21);
    pub const ILLEGAL_GENERATION: Self = Self(22);
    pub const INCONSISTENT_GROUP_PROTOCOL: Self = Self(23);
    pub const INVALID_GROUP_ID: Self = Self(24);
    pub const UNKNOWN_MEMBER_ID: Self = Self(25);
    pub const INVALID_SESSION_TIMEOUT: Self = Self(26);
    pub const REBALANCE_IN_PROGRESS: Self = Self(27);
    pub const INVALID_COMMIT_OFFSET_SIZE: Self = Self(28);
    pub const TOPIC_AUTHORIZATION_FAILED: Self = Self(29);
    pub const GROUP_AUTHORIZATION_FAILED: Self = Self(30);
    pub const CLUSTER_AUTHORIZATION_FAILED: Self = Self(31);
    pub const UNSUPPORTED_SASL_MECHANISM: Self = Self(33);
    pub const ILLEGAL_SASL_STATE: Self = Self(34);
    pub const UNSUPPORTED_VERSION: Self = Self(35);
    pub const TOPIC_ALREADY_EXISTS: Self = Self(36);
    pub const INVALID_PARTITIONS: Self = Self(37);
    pub const INVALID_REPLICATION_FACTOR: Self = Self(38);
    pub const INVALID_REPLICA_ASSIGNMENT: Self = Self(39);
    pub const INVALID_CONFIG: Self = Self(40);
    pub const INVALID_REQUEST: Self = Self(42);
    pub const OUT_OF_ORDER_SEQUENCE_NUMBER: Self = Self(45);
    pub const INVALID_PRODUCER_EPOCH: Self = Self(47);
    pub const INVALID_TXN_STATE: Self = Self(48);
    pub const INVALID_PRODUCER_ID_MAPPING: Self = Self(49);
    pub const INVALID_TRANSACTION_TIMEOUT: Self = Self(50);
    pub const CONCURRENT_TRANSACTIONS: Self = Self(51);
    pub const TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Self = Self(53);
    pub const SECURITY_DISABLED: Self = Self(54);
    pub const OPERATION_NOT_ATTEMPTED: Self = Self(55);
    pub const KAFKA_STORAGE_ERROR: Self = Self(56);
    pub const LOG_DIR_NOT_FOUND: Self = Self(57);
    pub const SASL_AUTHENTICATION_FAILED: Self = Self(58);
    pub const NON_EMPTY_GROUP: Self = Self(68);
    pub const GROUP_ID_NOT_FOUND: Self = Self(69);
    pub const FETCH_SESSION_ID_NOT_FOUND: Self = Self(70);
    pub const FENCED_LEADER_EPOCH: Self = Self(74);
    pub const UNKNOWN_LEADER_EPOCH: Self = Self(75);
    pub const MEMBER_ID_REQUIRED: Self = Self(79);
    pub const GROUP_MAX_SIZE_REACHED: Self = Self(81);
    pub const PREFERRED_LEADER_NOT_AVAILABLE: Self = Self(80);
    pub const FENCED_INSTANCE_ID: Self = Self(82);
    pub const ELECTION_NOT_NEEDED: Self = Self(84);
    pub const NO_REASSIGNMENT_IN_PROGRESS: Self = Self(85);
    pub const GROUP_SUBSCRIBED_TO_TOPIC: Self = Self(86);
    pub const INVALID_RECORD: Self = Self(87);
    pub const UNSTABLE_OFFSET_COMMIT: Self = Self(88);
    pub const PRODUCER_FENCED: Self = Self(90);
    pub const RESOURCE_NOT_FOUND: Self = Self(91);
    pub const DUPLICATE_RESOURCE: Self = Self(92);
    pub const UNACCEPTABLE_CREDENTIAL: Self = Self(93);
    pub const UNKNOWN_TOPIC_ID: Self = Self(100);
    pub const TRANSACTIONAL_ID_NOT_FOUND: Self = Self(105);
    pub const FENCED_MEMBER_EPOCH: Self = Self(110);
    pub const UNRELEASED_INSTANCE_ID: Self = Self(111);
    pub const UNSUPPORTED_ASSIGNOR: Self = Self(112);
    pub const STALE_MEMBER_EPOCH: Self = Self(113);
    pub const MISMATCHED_ENDPOINT_TYPE: Self = Self(114);
    pub const UNSUPPORTED_ENDPOINT_TYPE: Self = Self(115);
    pub const INVALID_RECORD_STATE: Self = Self(121);
    pub const POLICY_VIOLATION: Self = Self(44);
    pub const THROTTLING_QUOTA_EXCEEDED: Self = Self(89);
    pub const SHARE_SESSION_NOT_FOUND: Self = Self(122);
    pub const INVALID_SHARE_SESSION_EPOCH: Self = Self(123);
    pub const INVALID_REGULAR_EXPRESSION: Self = Self(128);
    pub const SHARE_SESSION_LIMIT_REACHED: Self = Self(133);
}

/// Maps the reason for a group's refusal; the only such mapping.
pub(super) fn of_group(refused: &GroupError) -> Code {
    match refused.reason {
        Reason::NoSuchGroup => Code::GROUP_ID_NOT_FOUND,
        Reason::UnknownMember => Code::UNKNOWN_MEMBER_ID,
        Reason::StaleEpoch => Code::FENCED_MEMBER_EPOCH,
        Reason::StaleGeneration => Code::ILLEGAL_GENERATION,
        Reason::ReplacedInstance => Code::FENCED_INSTANCE_ID,
        Reason::InstanceInUse => Code::UNRELEASED_INSTANCE_ID,
        Reason::NotOwner => Code::STALE_MEMBER_EPOCH,
        Reason::HasMembers => Code::NON_EMPTY_GROUP,
        Reason::Subscribed => Code::GROUP_SUBSCRIBED_TO_TOPIC,
        Reason::RebalanceInProgress => Code::REBALANCE_IN_PROGRESS,
        Reason::InconsistentProtocol => Code::INCONSISTENT_GROUP_PROTOCOL,
        Reason::GroupFull => Code::GROUP_MAX_SIZE_REACHED,
        Reason::InvalidTimeout => Code::INVALID_SESSION_TIMEOUT,
        Reason::Other => match refused.error.kind {
            // Clients retry these.
            ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::DiskFull => Code::COORDINATOR_LOAD_IN_PROGRESS,
            ErrorKind::ShuttingDown | ErrorKind::Disconnected => Code::COORDINATOR_NOT_AVAILABLE,
            // Clients look for the coordinator again.
            ErrorKind::NotLeader => Code::NOT_COORDINATOR,
            ErrorKind::Denied => Code::GROUP_AUTHORIZATION_FAILED,
            _ => code(&refused.error),
        },
    }
}

/// Maps the broker's error kinds; the only such mapping. An API may map a kind more narrowly: see [`of_produce`].
pub(super) fn code(error: &Error) -> Code {
    match error.kind {
        ErrorKind::Malformed | ErrorKind::Invalid => Code::INVALID_REQUEST,
        ErrorKind::Corrupt => Code::CORRUPT_MESSAGE,
        ErrorKind::TooLarge => Code::MESSAGE_TOO_LARGE,
        ErrorKind::Unsupported => Code::UNSUPPORTED_VERSION,
        ErrorKind::NotFound => Code::UNKNOWN_TOPIC_OR_PARTITION,
        ErrorKind::AlreadyExists => Code::TOPIC_ALREADY_EXISTS,
        ErrorKind::OutOfRange => Code::OFFSET_OUT_OF_RANGE,
        // From KIP-599: clients retry after the throttle time in the response.
        ErrorKind::Busy if error.is_throttled() => Code::THROTTLING_QUOTA_EXCEEDED,
        // Clients retry these.
        ErrorKind::Busy | ErrorKind::Timeout | ErrorKind::SlowSubscriber => Code::REQUEST_TIMED_OUT,
        // Clients retry this one, too, and it names the reason: Kafka's own clients treat `KafkaStorageException` as an
        // `InvalidMetadataException`, which is retriable, and librdkafka's producer sends again.
        ErrorKind::DiskFull => Code::KAFKA_STORAGE_ERROR,
        // Clients request the metadata again, which names the leader.
        ErrorKind::ShuttingDown | ErrorKind::Disconnected | ErrorKind::NotLeader => Code::NOT_LEADER_OR_FOLLOWER,
        ErrorKind::OutOfSequence => Code::OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorKind::Fenced => Code::INVALID_PRODUCER_EPOCH,
        ErrorKind::Denied => Code::TOPIC_AUTHORIZATION_FAILED,
        ErrorKind::NoResponders | ErrorKind::Internal => Code::UNKNOWN_SERVER_ERROR,
    }
}

/// Maps an error about a produced batch: an invalid batch is reported as an invalid record.
///
/// A quota that refuses the batch is reported as a problem of the storage, which a producer of each client repeats. The
/// code of KIP-599 would fit, but only Java's producer repeats it: librdkafka takes it for permanent
/// (`rd_kafka_err_action` in its `rdkafka_request.c`), and drops the records.
pub(super) fn of_produce(error: &Error) -> Code {
    match error.kind {
        ErrorKind::Busy if error.is_throttled() => Code::KAFKA_STORAGE_ERROR,
        ErrorKind::Malformed | ErrorKind::Invalid | ErrorKind::Unsupported => Code::INVALID_RECORD,
        _ => code(error),
    }
}

/// Returns the fault of a frame that ends its connection, because it cannot be parsed or the client could not read the
/// response.
pub(super) fn to_fault(error: Error) -> Fault {
    let kind = match error.kind {
        ErrorKind::TooLarge => FaultKind::TooLarge,
        ErrorKind::Unsupported => FaultKind::Unsupported,
        _ => FaultKind::Malformed,
    };
    Fault::new(kind, error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_a_storage_error_that_clients_repeat() {
        assert_eq!(of_produce(&Error::new(ErrorKind::DiskFull, "why")), Code::KAFKA_STORAGE_ERROR);
        assert_eq!(Code::KAFKA_STORAGE_ERROR.0, 56);
        let throttled = Error::throttled("why", 1000);
        assert_eq!((of_produce(&throttled), code(&throttled)), (Code(56), Code::THROTTLING_QUOTA_EXCEEDED));
    }

    #[test]
    fn clients_look_for_another_leader_or_coordinator() {
        let elsewhere = Error::not_leader("why", Some("b.example:7400"));
        assert_eq!((code(&elsewhere), of_produce(&elsewhere)), (Code(6), Code(6)));
        let refused = GroupError { reason: Reason::Other, error: elsewhere };
        assert_eq!(of_group(&refused), Code(16));
    }
}
