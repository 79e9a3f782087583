//! Kinds of frames: the byte in a header that identifies the request, answer or push.

/// Kinds of frames that clients send. An answer has the kind of its request with the highest bit set.
pub mod request {
    /// Kind of [`Request::Hello`](crate::Request::Hello).
    pub const HELLO: u8 = 0x01;
    /// Kind of [`Request::Publish`](crate::Request::Publish).
    pub const PUBLISH: u8 = 0x02;
    /// Kind of [`Request::Subscribe`](crate::Request::Subscribe).
    pub const SUBSCRIBE: u8 = 0x03;
    /// Kind of [`Request::Unsubscribe`](crate::Request::Unsubscribe).
    pub const UNSUBSCRIBE: u8 = 0x04;
    /// Kind of [`Request::Credit`](crate::Request::Credit).
    pub const CREDIT: u8 = 0x05;
    /// Kind of [`Request::Fetch`](crate::Request::Fetch).
    pub const FETCH: u8 = 0x06;
    /// Kind of [`Request::TopicCreate`](crate::Request::TopicCreate).
    pub const TOPIC_CREATE: u8 = 0x07;
    /// Kind of [`Request::TopicDelete`](crate::Request::TopicDelete).
    pub const TOPIC_DELETE: u8 = 0x08;
    /// Kind of [`Request::TopicDescribe`](crate::Request::TopicDescribe).
    pub const TOPIC_DESCRIBE: u8 = 0x09;
    /// Kind of [`Request::TopicList`](crate::Request::TopicList).
    pub const TOPIC_LIST: u8 = 0x0a;
    /// Kind of [`Request::Stats`](crate::Request::Stats).
    pub const STATS: u8 = 0x0b;
    /// Kind of [`Request::Ping`](crate::Request::Ping).
    pub const PING: u8 = 0x0c;
    /// Kind of [`Request::InitProducer`](crate::Request::InitProducer).
    pub const INIT_PRODUCER: u8 = 0x0d;
    /// Kind of [`Request::TopicGrow`](crate::Request::TopicGrow).
    pub const TOPIC_GROW: u8 = 0x0e;
    /// Kind of [`Request::RecordsDelete`](crate::Request::RecordsDelete).
    pub const RECORDS_DELETE: u8 = 0x0f;
    /// Kind of [`GroupRequest::Heartbeat`](crate::GroupRequest::Heartbeat).
    pub const GROUP_HEARTBEAT: u8 = 0x10;
    /// Kind of [`GroupRequest::Commit`](crate::GroupRequest::Commit).
    pub const OFFSET_COMMIT: u8 = 0x11;
    /// Kind of [`GroupRequest::Fetch`](crate::GroupRequest::Fetch).
    pub const OFFSET_FETCH: u8 = 0x12;
    /// Kind of [`GroupRequest::List`](crate::GroupRequest::List).
    pub const GROUP_LIST: u8 = 0x13;
    /// Kind of [`GroupRequest::Describe`](crate::GroupRequest::Describe).
    pub const GROUP_DESCRIBE: u8 = 0x14;
    /// Kind of [`GroupRequest::Delete`](crate::GroupRequest::Delete).
    pub const GROUP_DELETE: u8 = 0x15;
    /// Kind of [`GroupRequest::Reset`](crate::GroupRequest::Reset).
    pub const OFFSET_RESET: u8 = 0x16;
    /// Kind of [`CacheRequest::Get`](crate::CacheRequest::Get).
    pub const CACHE_GET: u8 = 0x17;
    /// Kind of [`CacheRequest::MultiGet`](crate::CacheRequest::MultiGet).
    pub const CACHE_MULTI_GET: u8 = 0x18;
    /// Kind of [`CacheRequest::Put`](crate::CacheRequest::Put).
    pub const CACHE_PUT: u8 = 0x19;
    /// Kind of [`CacheRequest::Remove`](crate::CacheRequest::Remove).
    pub const CACHE_REMOVE: u8 = 0x1a;
    /// Kind of [`CacheRequest::Add`](crate::CacheRequest::Add).
    pub const CACHE_ADD: u8 = 0x1b;
    /// Kind of [`CacheRequest::Touch`](crate::CacheRequest::Touch).
    pub const CACHE_TOUCH: u8 = 0x1c;
    /// Kind of [`CacheRequest::Scan`](crate::CacheRequest::Scan).
    pub const CACHE_SCAN: u8 = 0x1d;
    /// Kind of [`CacheRequest::Watch`](crate::CacheRequest::Watch).
    pub const CACHE_WATCH: u8 = 0x1e;
    /// Kind of [`CacheRequest::Flush`](crate::CacheRequest::Flush).
    pub const CACHE_FLUSH: u8 = 0x1f;
    /// Kind of [`Request::TopicAlter`](crate::Request::TopicAlter).
    pub const TOPIC_ALTER: u8 = 0x20;
    /// Kind of [`SecurityRequest::PutUser`](crate::SecurityRequest::PutUser).
    pub const USER_PUT: u8 = 0x21;
    /// Kind of [`SecurityRequest::DeleteUser`](crate::SecurityRequest::DeleteUser).
    pub const USER_DELETE: u8 = 0x22;
    /// Kind of [`SecurityRequest::ListUsers`](crate::SecurityRequest::ListUsers).
    pub const USER_LIST: u8 = 0x23;
    /// Kind of [`SecurityRequest::CreateAcls`](crate::SecurityRequest::CreateAcls).
    pub const ACL_CREATE: u8 = 0x24;
    /// Kind of [`SecurityRequest::DeleteAcls`](crate::SecurityRequest::DeleteAcls).
    pub const ACL_DELETE: u8 = 0x25;
    /// Kind of [`SecurityRequest::ListAcls`](crate::SecurityRequest::ListAcls).
    pub const ACL_LIST: u8 = 0x26;
    /// Kind of [`SecurityRequest::SetMember`](crate::SecurityRequest::SetMember).
    pub const MEMBER_SET: u8 = 0x2d;
    /// Kind of [`SecurityRequest::ListMembers`](crate::SecurityRequest::ListMembers).
    pub const MEMBER_LIST: u8 = 0x2e;
    /// Kind of the other requests about security, which begin with an action.
    pub const SECURITY: u8 = 0x2f;
    /// Kind of [`Request::Login`](crate::Request::Login).
    pub const LOGIN: u8 = 0x27;
    /// Kind of [`CacheRequest::Create`](crate::CacheRequest::Create).
    pub const CACHE_CREATE: u8 = 0x28;
    /// Kind of [`CacheRequest::Open`](crate::CacheRequest::Open).
    pub const CACHE_OPEN: u8 = 0x29;
    /// Kind of [`CacheRequest::Delete`](crate::CacheRequest::Delete).
    pub const CACHE_DELETE: u8 = 0x2a;
    /// Kind of [`CacheRequest::Describe`](crate::CacheRequest::Describe).
    pub const CACHE_DESCRIBE: u8 = 0x2b;
    /// Kind of [`CacheRequest::List`](crate::CacheRequest::List).
    pub const CACHE_LIST: u8 = 0x2c;
    /// Kind of [`QueueRequest::Create`](crate::QueueRequest::Create).
    pub const QUEUE_CREATE: u8 = 0x30;
    /// Kind of [`QueueRequest::Alter`](crate::QueueRequest::Alter).
    pub const QUEUE_ALTER: u8 = 0x31;
    /// Kind of [`QueueRequest::Delete`](crate::QueueRequest::Delete).
    pub const QUEUE_DELETE: u8 = 0x32;
    /// Kind of [`QueueRequest::Describe`](crate::QueueRequest::Describe).
    pub const QUEUE_DESCRIBE: u8 = 0x33;
    /// Kind of [`QueueRequest::List`](crate::QueueRequest::List).
    pub const QUEUE_LIST: u8 = 0x34;
    /// Kind of [`QueueRequest::Send`](crate::QueueRequest::Send).
    pub const QUEUE_SEND: u8 = 0x35;
    /// Kind of [`QueueRequest::Receive`](crate::QueueRequest::Receive).
    pub const QUEUE_RECEIVE: u8 = 0x36;
    /// Kind of [`QueueRequest::Ack`](crate::QueueRequest::Ack).
    pub const QUEUE_ACK: u8 = 0x37;
    /// Kind of [`QueueRequest::Nack`](crate::QueueRequest::Nack).
    pub const QUEUE_NACK: u8 = 0x38;
    /// Kind of [`QueueRequest::Extend`](crate::QueueRequest::Extend).
    pub const QUEUE_EXTEND: u8 = 0x39;
    /// Kind of [`QueueRequest::Peek`](crate::QueueRequest::Peek).
    pub const QUEUE_PEEK: u8 = 0x3a;
    /// Kind of [`QueueRequest::Purge`](crate::QueueRequest::Purge).
    pub const QUEUE_PURGE: u8 = 0x3b;
    /// Kind of [`QueueRequest::Seek`](crate::QueueRequest::Seek).
    pub const QUEUE_SEEK: u8 = 0x3c;
    /// Kind of [`QueueRequest::StartRedrive`](crate::QueueRequest::StartRedrive).
    pub const REDRIVE_START: u8 = 0x3d;
    /// Kind of [`QueueRequest::ListRedrives`](crate::QueueRequest::ListRedrives).
    pub const REDRIVE_LIST: u8 = 0x3e;
    /// Kind of [`QueueRequest::CancelRedrive`](crate::QueueRequest::CancelRedrive).
    pub const REDRIVE_CANCEL: u8 = 0x3f;
    /// Kind of the requests about the nodes of a cluster, which begin with an action. Kinds from 0x40 to 0x5f are
    /// those of pushes.
    pub const CLUSTER: u8 = 0x60;
    /// Kind of the requests about the mesh of sites, which begin with an action.
    pub const MESH: u8 = 0x61;
    /// Kind of the requests about backups, which begin with an action.
    pub const BACKUP: u8 = 0x62;
    /// Kind of the requests about open connections of clients, which begin with an action.
    pub const CONNECTION: u8 = 0x63;
}

/// Kinds of frames that brokers send.
pub mod response {
    use crate::kind::request;

    /// Bit that is set in the kind of an answer.
    pub const ANSWER: u8 = 0x80;
    /// Kind of the answer to [`request::HELLO`].
    pub const HELLO_OK: u8 = ANSWER | request::HELLO;
    /// Kind of the answer to [`request::PUBLISH`].
    pub const PUBLISHED: u8 = ANSWER | request::PUBLISH;
    /// Kind of the answer to [`request::SUBSCRIBE`].
    pub const SUBSCRIBED: u8 = ANSWER | request::SUBSCRIBE;
    /// Kind of the answer to [`request::UNSUBSCRIBE`].
    pub const UNSUBSCRIBED: u8 = ANSWER | request::UNSUBSCRIBE;
    /// Kind of the answer to [`request::FETCH`].
    pub const FETCHED: u8 = ANSWER | request::FETCH;
    /// Kind of the answer to [`request::TOPIC_CREATE`].
    pub const TOPIC_CREATED: u8 = ANSWER | request::TOPIC_CREATE;
    /// Kind of the answer to [`request::TOPIC_DELETE`].
    pub const TOPIC_DELETED: u8 = ANSWER | request::TOPIC_DELETE;
    /// Kind of the answer to [`request::TOPIC_DESCRIBE`].
    pub const TOPIC_DESCRIBED: u8 = ANSWER | request::TOPIC_DESCRIBE;
    /// Kind of the answer to [`request::TOPIC_LIST`].
    pub const TOPICS: u8 = ANSWER | request::TOPIC_LIST;
    /// Kind of the answer to [`request::STATS`].
    pub const STATS: u8 = ANSWER | request::STATS;
    /// Kind of the answer to [`request::PING`].
    pub const PONG: u8 = ANSWER | request::PING;
    /// Kind of the answer to [`request::INIT_PRODUCER`].
    pub const PRODUCER: u8 = ANSWER | request::INIT_PRODUCER;
    /// Kind of the answer to [`request::TOPIC_GROW`].
    pub const TOPIC_GROWN: u8 = ANSWER | request::TOPIC_GROW;
    /// Kind of the answer to [`request::RECORDS_DELETE`].
    pub const RECORDS_DELETED: u8 = ANSWER | request::RECORDS_DELETE;
    /// Kind of the answer to [`request::GROUP_HEARTBEAT`].
    pub const GROUP_TURN: u8 = ANSWER | request::GROUP_HEARTBEAT;
    /// Kind of the answer to [`request::OFFSET_COMMIT`].
    pub const OFFSETS_COMMITTED: u8 = ANSWER | request::OFFSET_COMMIT;
    /// Kind of the answer to [`request::OFFSET_FETCH`].
    pub const OFFSETS: u8 = ANSWER | request::OFFSET_FETCH;
    /// Kind of the answer to [`request::GROUP_LIST`].
    pub const GROUPS: u8 = ANSWER | request::GROUP_LIST;
    /// Kind of the answer to [`request::GROUP_DESCRIBE`].
    pub const GROUP_DESCRIBED: u8 = ANSWER | request::GROUP_DESCRIBE;
    /// Kind of the answer to [`request::GROUP_DELETE`].
    pub const GROUP_DELETED: u8 = ANSWER | request::GROUP_DELETE;
    /// Kind of the answer to [`request::OFFSET_RESET`].
    pub const OFFSETS_RESET: u8 = ANSWER | request::OFFSET_RESET;
    /// Kind of the answer to [`request::TOPIC_ALTER`].
    pub const TOPIC_ALTERED: u8 = ANSWER | request::TOPIC_ALTER;
    /// Kind of the answer to [`request::USER_PUT`].
    pub const USER_PUT: u8 = ANSWER | request::USER_PUT;
    /// Kind of the answer to [`request::USER_DELETE`].
    pub const USER_DELETED: u8 = ANSWER | request::USER_DELETE;
    /// Kind of the answer to [`request::USER_LIST`].
    pub const USERS: u8 = ANSWER | request::USER_LIST;
    /// Kind of the answer to [`request::ACL_CREATE`].
    pub const ACLS_CREATED: u8 = ANSWER | request::ACL_CREATE;
    /// Kind of the answer to [`request::ACL_DELETE`].
    pub const ACLS_DELETED: u8 = ANSWER | request::ACL_DELETE;
    /// Kind of the answer to [`request::ACL_LIST`].
    pub const ACLS: u8 = ANSWER | request::ACL_LIST;
    /// Kind of the answer to [`request::MEMBER_SET`].
    pub const MEMBER_SET: u8 = ANSWER | request::MEMBER_SET;
    /// Kind of the answer to [`request::MEMBER_LIST`].
    pub const MEMBERS: u8 = ANSWER | request::MEMBER_LIST;
    /// Kind of the answers to [`request::SECURITY`], which begin with the action.
    pub const SECURITY: u8 = ANSWER | request::SECURITY;
    /// Kind of the answer to [`request::LOGIN`].
    pub const LOGIN: u8 = ANSWER | request::LOGIN;
    /// Kind of the answer to [`request::QUEUE_CREATE`].
    pub const QUEUE_CREATED: u8 = ANSWER | request::QUEUE_CREATE;
    /// Kind of the answer to [`request::QUEUE_ALTER`].
    pub const QUEUE_ALTERED: u8 = ANSWER | request::QUEUE_ALTER;
    /// Kind of the answer to [`request::QUEUE_DELETE`].
    pub const QUEUE_DELETED: u8 = ANSWER | request::QUEUE_DELETE;
    /// Kind of the answer to [`request::QUEUE_DESCRIBE`].
    pub const QUEUE_DESCRIBED: u8 = ANSWER | request::QUEUE_DESCRIBE;
    /// Kind of the answer to [`request::QUEUE_LIST`].
    pub const QUEUES: u8 = ANSWER | request::QUEUE_LIST;
    /// Kind of the answer to [`request::QUEUE_SEND`].
    pub const QUEUE_SENT: u8 = ANSWER | request::QUEUE_SEND;
    /// Kind of the answer to [`request::QUEUE_RECEIVE`].
    pub const QUEUE_RECEIVED: u8 = ANSWER | request::QUEUE_RECEIVE;
    /// Kind of the answer to [`request::QUEUE_ACK`].
    pub const QUEUE_ACKED: u8 = ANSWER | request::QUEUE_ACK;
    /// Kind of the answer to [`request::QUEUE_NACK`].
    pub const QUEUE_NACKED: u8 = ANSWER | request::QUEUE_NACK;
    /// Kind of the answer to [`request::QUEUE_EXTEND`].
    pub const QUEUE_EXTENDED: u8 = ANSWER | request::QUEUE_EXTEND;
    /// Kind of the answer to [`request::QUEUE_PEEK`].
    pub const QUEUE_PEEKED: u8 = ANSWER | request::QUEUE_PEEK;
    /// Kind of the answer to [`request::QUEUE_PURGE`].
    pub const QUEUE_PURGED: u8 = ANSWER | request::QUEUE_PURGE;
    /// Kind of the answer to [`request::QUEUE_SEEK`].
    pub const QUEUE_SOUGHT: u8 = ANSWER | request::QUEUE_SEEK;
    /// Kind of the answer to [`request::REDRIVE_START`].
    pub const REDRIVE_STARTED: u8 = ANSWER | request::REDRIVE_START;
    /// Kind of the answer to [`request::REDRIVE_LIST`].
    pub const REDRIVES: u8 = ANSWER | request::REDRIVE_LIST;
    /// Kind of the answer to [`request::REDRIVE_CANCEL`].
    pub const REDRIVE_CANCELLED: u8 = ANSWER | request::REDRIVE_CANCEL;
    /// Kind of the answer to [`request::CACHE_CREATE`].
    pub const CACHE_CREATED: u8 = ANSWER | request::CACHE_CREATE;
    /// Kind of the answer to [`request::CACHE_OPEN`].
    pub const CACHE_OPENED: u8 = ANSWER | request::CACHE_OPEN;
    /// Kind of the answer to [`request::CACHE_DELETE`].
    pub const CACHE_DELETED: u8 = ANSWER | request::CACHE_DELETE;
    /// Kind of the answer to [`request::CACHE_DESCRIBE`].
    pub const CACHE_DESCRIBED: u8 = ANSWER | request::CACHE_DESCRIBE;
    /// Kind of the answer to [`request::CACHE_LIST`].
    pub const CACHES: u8 = ANSWER | request::CACHE_LIST;
    /// Kind of the answer to [`request::CACHE_GET`].
    pub const CACHE_GOT: u8 = ANSWER | request::CACHE_GET;
    /// Kind of the answer to [`request::CACHE_MULTI_GET`].
    pub const CACHE_MULTI_GOT: u8 = ANSWER | request::CACHE_MULTI_GET;
    /// Kind of the answer to [`request::CACHE_PUT`].
    pub const CACHE_STORED: u8 = ANSWER | request::CACHE_PUT;
    /// Kind of the answer to [`request::CACHE_REMOVE`].
    pub const CACHE_REMOVED: u8 = ANSWER | request::CACHE_REMOVE;
    /// Kind of the answer to [`request::CACHE_ADD`].
    pub const CACHE_ADDED: u8 = ANSWER | request::CACHE_ADD;
    /// Kind of the answer to [`request::CACHE_TOUCH`].
    pub const CACHE_TOUCHED: u8 = ANSWER | request::CACHE_TOUCH;
    /// Kind of the answer to [`request::CACHE_SCAN`].
    pub const CACHE_SCANNED: u8 = ANSWER | request::CACHE_SCAN;
    /// Kind of the answer to [`request::CACHE_WATCH`].
    pub const CACHE_WATCHED: u8 = ANSWER | request::CACHE_WATCH;
    /// Kind of the answer to [`request::CACHE_FLUSH`].
    pub const CACHE_FLUSHED: u8 = ANSWER | request::CACHE_FLUSH;
    /// Kind of the answers to [`request::CLUSTER`], which begin with the action.
    pub const CLUSTER: u8 = ANSWER | request::CLUSTER;
    /// Kind of the answers to [`request::MESH`], which begin with the action.
    pub const MESH: u8 = ANSWER | request::MESH;
    /// Kind of the answers to [`request::BACKUP`], which begin with the action.
    pub const BACKUP: u8 = ANSWER | request::BACKUP;
    /// Kind of the answers to [`request::CONNECTION`], which begin with the action.
    pub const CONNECTION: u8 = ANSWER | request::CONNECTION;
    /// Kind of an error, which answers a request of any kind.
    pub const ERROR: u8 = 0xff;

    /// Kind of [`Push::Deliver`](crate::Push::Deliver).
    pub const DELIVER: u8 = 0x40;
    /// Kind of [`Push::Gap`](crate::Push::Gap).
    pub const GAP: u8 = 0x41;
    /// Kind of [`Push::Ended`](crate::Push::Ended).
    pub const ENDED: u8 = 0x42;
    /// Kind of [`Push::GoAway`](crate::Push::GoAway).
    pub const GO_AWAY: u8 = 0x43;
}
