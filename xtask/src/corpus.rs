//! `cargo xtask fuzz-corpus`: writes the seeds of the fuzz targets, from the vectors of the tests.
//!
//! Each target describes its input format in its opening comment; this module writes that format.

use std::collections::BTreeMap;
use std::path::Path;

use crate::run::{Outcome, root};

const VECTORS: &str = "crates/wire/tests/vectors";
const NODE_FRAMES: &str = "crates/cluster/tests/vectors/frames.txt";
const JOIN_FRAMES: &str = "crates/cluster/tests/vectors/join.txt";
const MESH_FRAMES: &str = "crates/mesh/tests/vectors/frames.txt";
const KAFKA_REQUESTS: &str = "crates/doors/tests/vectors/kafka_requests.txt";
const BATCHES: &str = "crates/engine/testdata/batches";
/// Maximum size of a seed: a larger one makes every input that is derived from it slow.
const SEED_BYTES_MAX: usize = 4096;
/// Length of a header: length, kind, flags, reserved, correlation id.
const HEADER_BYTES: usize = 12;
const AT_KIND: usize = 4;

/// Patterns and names that together cover every branch of the parser and of the match.
const PATTERNS: [(&str, &str); 14] = [
    ("orders", "orders"),
    ("orders.*", "orders.eu"),
    ("orders.*", "orders.eu.west"),
    ("orders.>", "orders.eu.west"),
    ("*.eu", "orders.eu"),
    (">", "a.b-c.d_e"),
    ("*", "_inbox.x"),
    ("a.*.c", "a.b.c"),
    ("a.>.c", "a.b.c"),
    ("a*", "ab"),
    ("a..b", "a..b"),
    (".", ".."),
    ("", ""),
    ("\u{e4}.*", "\u{e4}.x"),
];

/// Credentials with the parser that reads each: PLAIN, OAUTHBEARER, a token, rules and a subject, SCRAM.
const CREDENTIALS: [(u8, &str); 10] = [
    (0, "\0ann\0pencil"),
    (0, "ann\0ann\0pen cil"),
    (1, "n,a=ann,\u{1}host=h\u{1}auth=Bearer t\u{1}\u{1}"),
    (2, "tw_0123456789abcdef_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
    (3, "RULE:^CN=(.*?),OU=(.*)$/$1@$2/L, DEFAULT\nCN=Ann,OU=Sales"),
    (3, "RULE:a\\/(b)/$1$$/U\na/b"),
    (3, "DEFAULT\nO=Sales"),
    (4, "n,,n=ann,r=nonce"),
    (4, "y,a=b=2Cc,n=ann=3D,r=nonce,x=y"),
    (5, "\u{2}\0"),
];

/// Values in each form that Redis writes: a string, compressed text, lists, sets, hashes and sorted sets.
const REDIS_VALUES: [&[u8]; 17] = [
    b"\x00\x03abc",
    b"\x00\xc1\x00\x80",
    b"\x00\xc3\x05\x0a\x00a\xe0\x00\x00",
    b"\x01\x02\x01a\xc0\x05",
    b"\x02\x02\x01a\x01b",
    b"\x03\x02\x01m\x031.5\x01n\xff",
    b"\x04\x01\x05field\x05value",
    b"\x05\x01\x01m\x00\x00\x00\x00\x00\x00\xf8\x3f",
    b"\x09\x0a\x01\x01a\x01\x00b\xff",
    b"\x0a\x11\x11\x00\x00\x00\x0d\x00\x00\x00\x02\x00\x00\x01a\x03\xf3\xff",
    b"\x0b\x0e\x02\x00\x00\x00\x03\x00\x00\x00\xd0\x8a\x01\x00\x02\x00",
    b"\x0e\x01\x11\x11\x00\x00\x00\x0d\x00\x00\x00\x02\x00\x00\x01a\x03\xf3\xff",
    b"\x10\x11\x11\x00\x00\x00\x04\x00\x81a\x02\x01\x01\x81b\x02\x02\x01\xff",
    b"\x11\x15\x15\x00\x00\x00\x04\x00\x81b\x02\xdf\xfe\x02\x81a\x02\x831.5\x04\xff",
    b"\x12\x01\x02\x0f\x0f\x00\x00\x00\x03\x00\x81a\x02\x81b\x02\x03\x01\xff",
    b"\x12\x01\x01\x05plain",
    b"\x14\x0d\x0d\x00\x00\x00\x02\x00\x81a\x02\x81b\x02\xff",
];
/// Data that scripts read: a library (0: `cjson`, 1: `cmsgpack`, 2: `struct` with a format up to a zero), and the data.
const LUA_DATA: [(u8, &[u8]); 14] = [
    (0, br#"{"a":[1,-2.5e3,null,"x\u00e4\ud83d\ude00",{}],"1":false,"":true}"#),
    (0, b"[[[[]]],0.1,1e308,-0,\"\\\\\\n\"]"),
    (0, b"[nan,inf,-infinity,0x1F]"),
    (0, b"  12345678901234567890 "),
    (1, b"\x93\x01\xcb\x3f\xf8\0\0\0\0\0\0\x81\xa1a\xc0"),
    (1, b"\xdc\x00\x02\xc2\xc3\xde\x00\x01\x01\xd9\x03abc"),
    (1, b"\xcc\xff\xcd\xff\xff\xce\xff\xff\xff\xff\xcf\x00\x20\0\0\0\0\0\0"),
    (1, b"\xd0\x80\xd1\x80\x00\xd2\x80\0\0\0\xd3\x80\0\0\0\0\0\0\0\xe0"),
    (1, b"\xca\x3f\xc0\0\0\xc4\x01b\xc5\x00\x01b\xc6\0\0\0\x01b\xda\x00\x01c"),
    (1, b"\x83\x01\xa1a\x02\xa1b\x04\xa1c"),
    (2, b">I2 s b\0\x01\x02text\0\xff"),
    (2, b"<!4bi4xhHlLT\0\x01\0\0\0\x02\0\0\0\0\0\x03\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    (2, b"fd\0\0\0\xc0\x3f\0\0\0\0\0\0\0\xf8\x3f"),
    (2, b"Bc0c3\0\x02abcde"),
];
/// Rules of `ACL SETUSER` that together reach every kind of rule and every refusal.
const REDIS_RULES: [&str; 12] = [
    "~a* +@read",
    "~* &* +@all",
    "%R~a %W~b %RW~c %rw~d +@read +@write",
    "~a %R~* %W~* +@read +@write",
    "allkeys resetkeys ~b[0-9]? +@all -@admin",
    "&news.* &a resetchannels &* allchannels +@pubsub",
    "allcommands nocommands +@admin clearselectors",
    "+@all -@write -@pubsub +get -xadd -@stream",
    "+client|list -config|set +ping +@transaction +@keyspace",
    "%~a %X~a (~a) ~ & +@nope -nope|x foo",
    "+@write ~a",
    "~\u{e4}\\* &[^a-c] +@PubSub +@READ",
];

/// Policies of a queue with the entries that are deleted, one bit each.
const SQS_POLICIES: [(&str, u64, &str); 10] = [
    ("none", 0, r#"{"Statement":[]}"#),
    (
        "one",
        0,
        r#"{"Version":"2012-10-17","Id":"i",
            "Statement":{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*"}}"#,
    ),
    (
        "deleted",
        5,
        r#"{"Statement":[{"Sid":"a","Effect":"Allow","Principal":{"AWS":["111122223333","*"]},
            "Action":["sqs:SendMessage","sqs:ReceiveMessage"],"Resource":"*"},{"Sid":"a-1","Effect":"Deny",
            "Principal":"*","Action":"SQS:deletequeue","Resource":["*"]}]}"#,
    ),
    (
        "user",
        1,
        r#"{"Statement":[{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::000000000000:user/a/b"},
            "Action":["sqs:Get*","sqs:SetQueueAttributes","sqs:?eleteQueue"],"Resource":"*"}]}"#,
    ),
    (
        "role",
        2,
        r#"{"Version":"2008-10-17","Statement":[{"Effect":"Deny","Principal":{"AWS":["arn:aws:iam::000000000000:role/r",
            "arn:aws:iam::000000000000:root"]},"Action":["sqs:PurgeQueue","sqs:*"],"Resource":"*"}]}"#,
    ),
    (
        "condition",
        0,
        r#"{"Statement":{"Effect":"Allow","Principal":"*","Action":"*","Resource":"*","Condition":{"Bool":{}}}}"#,
    ),
    ("service", 0, r#"{"Statement":[{"Effect":"Allow","Principal":{"Service":"s3"},"Action":"*","Resource":"*"}]}"#),
    ("twice", 0, r#"{"Statement":[{"Effect":"Allow","Effect":"Deny","Principal":"*","Action":"*","Resource":"*"}]}"#),
    ("partial", 0, r#"{"Statement":[{"Effect":"Allow","Principal":"*","Action":"sqs:DeleteMessage","Resource":"*"}]}"#),
    (
        "wildcard",
        0,
        r#"{"Statement":[{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::000000000000:user/*"},
            "Action":"*","Resource":"*"}]}"#,
    ),
];

/// Filters that together cover every branch of the parser, with the attributes of a message.
const QUEUE_FILTERS: [(&str, &str); 14] = [
    ("attributes:a", "a=b"),
    ("attributes.a = \"b\"", "a=b"),
    ("attributes.a!='b'", ""),
    ("hasPrefix(attributes.a, \"b\")", "a=bc"),
    ("NOT attributes:a AND -attributes:b", "c=d"),
    ("attributes:a OR attributes:b OR attributes:c", "b="),
    ("attributes:a AND (attributes.b = \"c\" OR NOT (attributes:d))", "a=b\nb=c"),
    ("attributes.\"iana.org/language_tag\" != \"en\"", "iana.org/language_tag=en"),
    ("attributes:'\\a\\n\\\\\\'\\x41\\101\\u20ac\\U0001f600'", ""),
    ("attributes:a AND attributes:b OR attributes:c", ""),
    ("attributes:a.b", ""),
    ("((((attributes:a))))", "a=b"),
    ("hasPrefix(\"a\", \"b\")", ""),
    ("attributes.a = \"\\ud800\"", ""),
];

/// Typical Redis commands: together they reach all kinds of values, and all modifications of them.
const REDIS_REQUESTS: [&str; 12] = [
    "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n10\r\n*2\r\n$4\r\nINCR\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
    "set a 'x y' ex 10 get\nappend a \"\\x00\\n\"\nsetrange a 5 z\ngetrange a -3 -1\nlcs a b idx\n\
     mset a 1 b 2\nmget a b c\n",
    "setbit a 9 1\nbitcount a 0 -1 bit\nbitpos a 1\nbitop not b a\n\
     bitfield a set u8 #1 255 overflow sat incrby i5 3 9\n",
    "incrbyfloat a 1.5e3\nexpire a 10 nx\npexpireat a 9999999999999\nttl a\npersist a\ntype a\nobject encoding a\n",
    "rpush l a b c\nlpop l 2\nlinsert l before c d\nlrem l -1 d\nltrim l 0 -2\nlpos l c rank -1\n\
     lmove l m left right\nblpop l m 0\n",
    "hset h a 1 b 2\nhincrby h a 5\nhgetall h\nhscan h 0 match a* count 1\nhrandfield h -3 withvalues\nhdel h a b\n",
    "sadd s a b 1\nsadd t b\nsinterstore u s t\nsunion s t\nsdiff s t\nspop s 2\nsmove t s b\n\
     sintercard 2 s t limit 1\n",
    "zadd z 1 a 2.5 b -inf c\nzadd z gt ch 3 a\nzrange z (1 +inf byscore limit 0 2 withscores\n\
     zrangebylex z [a (c\nzpopmin z 2\n",
    "zadd z 1 a 2 b\nzadd y 3 a\nzunionstore x 2 z y weights 2 nan aggregate max\nzinter 2 z y withscores\n\
     zmpop 1 z max count 2\n",
    "rpush l 3 1 2\nsort l desc limit 0 2\nset w_1 9\nsort l by w_* get # get w_* store m\nsort_ro l alpha\n",
    "scan 0 match * count 3 type string\nkeys [a-z]*\nrandomkey\ndbsize\nrename a b\ncopy b c replace\n\
     memory usage c\nflushdb\n",
    "*1\r\n$536870912\r\n",
];

/// Requests of SQS: the index of the action in the table of the door, with the highest bit set for the Query protocol.
const SQS_REQUESTS: [(&str, u8, &str); 16] = [
    (
        "send",
        0,
        r#"{"QueueUrl":"q","MessageBody":"\t","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"AP8="}}}"#,
    ),
    ("send-fifo", 0, r#"{"QueueUrl":"q","MessageBody":"x","MessageGroupId":"g","MessageDeduplicationId":"d"}"#),
    ("send-batch", 1, r#"{"QueueUrl":"q","Entries":[{"Id":"a","MessageBody":"x"},{"Id":"b","MessageBody":"y"}]}"#),
    ("receive", 2, r#"{"QueueUrl":"http://h/0/q","AttributeNames":["All"],"MaxNumberOfMessages":10.0}"#),
    ("create", 7, r#"{"QueueName":"q","Attributes":{"RedrivePolicy":"{\"maxReceiveCount\":1}"},"tags":{"a":"b"}}"#),
    (
        "send-number",
        0,
        r#"{"QueueUrl":"http://h/queue/q","MessageBody":"\ud83d\ude00","DelaySeconds":900,"MessageAttributes":
            {"n":{"DataType":"Number.int","StringValue":"-1.5e10"},"s":{"DataType":"String","StringValue":"x"}},
            "MessageSystemAttributes":{"AWSTraceHeader":{"DataType":"String","StringValue":"Root=1"}}}"#,
    ),
    (
        "send-batch-fifo",
        1,
        r#"{"QueueUrl":"q.fifo","Entries":[{"Id":"a-_1","MessageBody":"x","MessageGroupId":"g",
            "MessageDeduplicationId":"d","MessageAttributes":{"a":{"DataType":"Binary","BinaryValue":"AA=="}}}]}"#,
    ),
    (
        "delete-batch",
        4,
        r#"{"QueueUrl":"http://sqs.r.h/000000000000/q","Entries":[{"Id":"a","ReceiptHandle":"r"}],"More":[{}]}"#,
    ),
    (
        "create-fifo",
        7,
        r#"{"QueueName":"q.fifo","Attributes":{"FifoQueue":"true","ContentBasedDeduplication":"true",
            "DeduplicationScope":"messageGroup","FifoThroughputLimit":"perMessageGroupId",
            "RedriveAllowPolicy":"{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[\"arn:aws:sqs:r:1:q\"]}",
            "RedrivePolicy":"{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:0:d.fifo\",\"maxReceiveCount\":\"5\"}",
            "KmsMasterKeyId":"","Policy":"{\"Statement\":[]}"}}"#,
    ),
    (
        "create-all",
        7,
        r#"{"QueueName":"a-b_C","Attributes":{"DelaySeconds":"900","MaximumMessageSize":"1024","VisibilityTimeout":"0",
            "MessageRetentionPeriod":"60","ReceiveMessageWaitTimeSeconds":"20","SqsManagedSseEnabled":"false",
            "KmsDataKeyReusePeriodSeconds":"300"}}"#,
    ),
    (
        "send-form-attributes",
        0x80,
        "QueueUrl=q&MessageBody=%F0%9F%98%80%0d&MessageAttribute.2.Name=b&MessageAttribute.2.Value.DataType=Binary\
         &MessageAttribute.2.Value.BinaryValue=AP8%3D&MessageAttribute.10.Name=a\
         &MessageAttribute.10.Value.DataType=Number&MessageAttribute.10.Value.StringValue=%2B1&DelaySeconds=-0",
    ),
    (
        "receive-form",
        0x82,
        "QueueUrl=q&AttributeName.1=All&AttributeName.02=x&AttributeName.1a=y&MessageAttributeName.member.1=.*\
         &MaxNumberOfMessages=99999999999999999999&VisibilityTimeout=-99999999999999999999&a%zz=%&&=",
    ),
    ("permissions-form", 0x92, "Label=l&AWSAccountId.1=1&AWSAccountId.1.x=2&ActionName.1=*&ActionName=&QueueUrl.a.b=c"),
    (
        "send-form",
        0x80,
        "MessageBody=a%20b+c&MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String\
         &MessageAttribute.1.Value.StringValue=x",
    ),
    (
        "send-batch-form",
        0x81,
        "SendMessageBatchRequestEntry.2.Id=b&Entries.entry.10.Id=c&Entries.entry.2.MessageBody=x",
    ),
    ("create-form", 0x87, "QueueName=q&Attribute.Name=DelaySeconds&Attribute.Value=5&Tag.1.Key=a&Tag.1.Value=b"),
];

/// Bodies of Pub/Sub calls by gRPC: the index of the call in the table of the door, with a bit that allows compression,
/// the sizes of the pieces, and the bytes.
const PUBSUB_GRPC: [(&str, u8, [u8; 4], &[u8]); 9] = [
    ("whole", 3, [0; 4], b"\0\0\0\0\x17\x0a\x15projects/p/topics/abc"),
    ("bytewise", 3, [1; 4], b"\0\0\0\0\x17\x0a\x15projects/p/topics/abc"),
    ("two", 16, [5, 1, 2, 0], b"\0\0\0\0\x04\x0a\x00\x18\x01\0\0\0\0\x00"),
    ("publish", 2, [7, 0, 0, 0], b"\0\0\0\0\x12\x0a\x01t\x12\x0d\x0a\x01x\x12\x08\x0a\x01k\x12\x01v\x2a\x00"),
    (
        "compressed",
        0x43,
        [11, 0, 0, 0],
        b"\x01\0\0\0\x2b\x1f\x8b\x08\0\0\0\0\0\x02\x03\xe3\x12\
          -(\xca\xcfJM.)\xd6/\xc8/\xc9/\xc8L.\xd6OLJ\x06\0\xb7\xa3\x81i\
          \x17\0\0\0",
    ),
    ("no-compression", 3, [0; 4], b"\x01\0\0\0\x01a"),
    ("no-gzip", 0x43, [0; 4], b"\x01\0\0\0\x04\x1f\x8b\x08\0"),
    ("too-long", 0, [0; 4], b"\0\xff\xff\xff\xff"),
    ("cut", 0, [3, 0, 0, 0], b"\0\0\0\0\x02a"),
];

/// Requests of REST: the index of the method in the target, the address and the body.
const PUBSUB_REST: [(&str, u8, &str, &str); 14] = [
    ("get", 0, "/v1/projects/p/topics/a%7Ebc?alt=json&$prettyPrint=0", ""),
    ("list", 0, "/v1/projects/p/schemas?view=FULL&page_size=3&pageToken=a%26b+c", "{}"),
    ("policy", 0, "/v1/projects/p/topics/abc:getIamPolicy?options.requestedPolicyVersion=3", ""),
    ("policy-set", 2, "/v1/projects/p/a/b/c:setIamPolicy", r#"{"policy":{"bindings":[{"role":"r","condition":{}}]}}"#),
    ("create", 1, "/v1/projects/p/topics/abc", r#"{"labels":{"a":"b"},"messageRetentionDuration":"600.5s"}"#),
    (
        "subscribe",
        1,
        "/v1/projects/p/subscriptions/abc",
        r#"{"topic":"t","pushConfig":{"pushEndpoint":"http://h","oidcToken":{},"noWrapper":{"writeMetadata":true}},
            "retryPolicy":{"minimumBackoff":"-1s"},"deadLetterPolicy":{"maxDeliveryAttempts":5.0}}"#,
    ),
    (
        "publish",
        2,
        "/v1/projects/p/topics/abc:publish",
        r#"{"messages":[{"data":"_-8=","attributes":{"\ud83d\ude00":""}}]}"#,
    ),
    (
        "update",
        3,
        "/v1/projects/p/topics/abc?updateMask=message_retention_duration,labels&topic.kmsKeyName=x",
        r#"{"topic":{"name":"x","state":"ACTIVE","schemaSettings":{"encoding":2}}}"#,
    ),
    (
        "update-snapshot",
        3,
        "/v1/projects/p/snapshots/abc",
        r#"{"snapshot":{"expireTime":"2026-01-01T00:00:00.5+01:00"}}"#,
    ),
    ("seek", 2, "/v1/projects/p/subscriptions/abc:seek", r#"{"time":"9999-12-31T23:59:59Z","snapshot":"s"}"#),
    ("ack", 2, "/v1/projects/p/subscriptions/abc:modifyAckDeadline", r#"{"ackIds":["a"],"ackDeadlineSeconds":"600"}"#),
    ("schema", 2, "/v1/projects/p/schemas?schemaId=s", r#"{"type":"AVRO","definition":"\"int\"","revisionId":null}"#),
    ("delete", 4, "/v1/projects/p/schemas/abc@0a:deleteRevision?revisionId=x", ""),
    ("permissions", 2, "/v1/projects/p/topics/abc:testIamPermissions", r#"{"permissions":["pubsub.topics.get"]}"#),
];

/// Requests for the service of its target: each is a kind, a tag, a length and that number of words.
const SERVICE: [(&str, &[u8]); 8] = [
    ("now", b"\x00\x01\x02hi\x00\x02\x00"),
    ("later", b"\x01\x01\x03\x03ab\x00\x02\x01c"),
    ("alone", b"\x02\x01\x01\x02\x01\x02\x01\x03\x00\x03\x00"),
    ("last", b"\x01\x01\x01\x03\x03\x02\x01z\x00\x03\x01y"),
    ("message", b"\x04\x00\x01\x03\x00\x01\x01a"),
    ("body", b"\x05\x01\x01\x05\x06\x01\x02ab\x07\x01\x03cde\x00\x02\x01x"),
    ("cut", b"\x05\x01\x00\x06\x01\x02ab"),
    ("malformed", b"\x01\x01\x01\x03\x05\x02\x00\xff\x00\x00"),
];

/// Definitions of schemas with matching messages: the choice of language and encoding, the definition and the message.
const SCHEMAS: [(&str, u8, &str, &[u8]); 12] = [
    ("avro-json", 0, AVRO, br#"{"a": 1, "b": {"string": "x"}, "c": {"k": [0.5]}, "d": "X", "e": "ab"}"#),
    ("avro-binary", 2, AVRO, b"\x02\x02\x02x\x02\x02k\x02\0\0\0\0\0\0\xe0\x3f\0\0\0ab"),
    ("avro-list", 2, r#"{"type":"record","name":"L","fields":[{"name":"n","type":["null","L"]}]}"#, b"\x02\x02\x00"),
    ("proto-json", 1, PROTO, br#"{"a": "1", "b": [true], "c": {"1": {"e": "Y"}}, "d": "AA=="}"#),
    ("proto-binary", 3, PROTO, b"\x08\x01\x12\x01\x01\x1a\x04\x08\x01\x12\x00\x22\x01x"),
    (
        "proto-group",
        3,
        "syntax = \"proto2\"; message A { required group G = 1 { optional fixed32 f = 2; } }",
        b"\x0b\x0c",
    ),
    ("avro-logical", 2, r#"{"type":"bytes","logicalType":"decimal","precision":4}"#, b"\x06abc"),
    (
        "avro-names",
        0,
        r#"[{"type":"error","name":"E","namespace":"n","aliases":["o.F","G"],"fields":[{"name":"f","aliases":["g"],
            "type":{"type":"enum","name":"S","symbols":["A","B"],"default":"A"},"default":"B"}]},"n.S","boolean"]"#,
        br#"{"n.E": {"f": "B"}}"#,
    ),
    (
        "avro-blocks",
        2,
        r#"{"type":"array","items":["float","double","long",{"type":"map","values":"boolean"}]}"#,
        b"\x01\x0a\x00\0\0\0\x3f\x04\x04\xff\x01\x06\x02\x02a\x01\x00\x00",
    ),
    (
        "proto-packed",
        3,
        "syntax = \"proto3\"; package p.q; message M { repeated sint32 a = 1; repeated fixed64 b = 2; \
         optional float f = 3; double d = 4; reserved 5 to 9, 12; sfixed32 g = 10; sfixed64 h = 11; }",
        b"\x0a\x02\x01\x02\x11\x01\0\0\0\0\0\0\0\x1d\0\0\x80\x3f\x55\x01\0\0\0\x62\x00",
    ),
    (
        "proto-required",
        1,
        "syntax = \"proto2\"; message A { required uint64 a = 1; repeated group G = 2 { optional string f = 3 \
         [default = \"x\"]; } extensions 100 to 199; enum E { option allow_alias = true; P = 0; Q = 0; } \
         optional E e = 4 [json_name = \"j\"]; }",
        br#"{"a": 18446744073709551615, "g": [{"f": "\u00e4"}, {}], "j": "Q"}"#,
    ),
    (
        "proto-numbers",
        1,
        "syntax = \"proto3\"; message M { double d = 1; float f = 2; uint32 u = 3; sint64 s = 4; \
         map<string, bytes> m = 5; map<bool, M> b = 6; }",
        br#"{"d": "-Infinity", "f": 1e3, "u": 4.0, "s": "-1", "m": {"": "_-8"}, "b": {"true": {}}}"#,
    ),
];
const AVRO: &str = r#"{"type":"record","name":"n.R","fields":[{"name":"a","type":"int"},
    {"name":"b","type":["null","string"]},
    {"name":"c","type":{"type":"map","values":{"type":"array","items":"double"}}},
    {"name":"d","type":{"type":"enum","name":"E","symbols":["X","Y"]}},
    {"name":"e","type":{"type":"fixed","name":"F","size":2}}]}"#;
const PROTO: &str = "syntax = \"proto3\"; message M { int64 a = 1; repeated bool b = 2; map<int32, N> c = 3; \
    oneof o { bytes d = 4; string f = 5; } message N { E e = 1; enum E { X = 0; Y = 1; } M m = 2; } }";

/// Produce and Fetch in their first and their last version: key, version and body. Batches have a separate target.
const KAFKA_BY_HAND: [(&str, &[u8]); 4] = [
    ("Produce-3", b"\0\0\0\x03\xff\xff\xff\xff\0\0\x03\xe8\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0\0\0\0\x02hi"),
    ("Produce-12", b"\0\0\0\x0c\0\xff\xff\0\0\x03\xe8\x02\x02t\x02\0\0\0\0\x03hi\0\0\0"),
    (
        "Fetch-4",
        b"\0\x01\0\x04\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\x04\0\x01\0\0\0\x01\0\x01t\0\0\0\x01\
          \0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0",
    ),
    (
        "Fetch-12",
        b"\0\x01\0\x0c\xff\xff\xff\xff\0\0\0\x01\0\0\0\x01\0\0\x04\0\x01\0\0\0\0\xff\xff\xff\xff\
          \x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0\
          \0\0\x04\0\0\0\x01\x01\0",
    ),
];

/// Producers of a snapshot: id, epoch, and for each run its sequence, its number of records and its offset.
type Snapshot = &'static [(i64, i16, &'static [(u32, u32, u64)])];

const PRODUCERS: [(&str, Snapshot); 5] = [
    ("none", &[]),
    ("one", &[(1, 0, &[(0, 3, 0)])]),
    ("runs", &[(1, 2, &[(5, 3, 10), (8, 1, 20), (9, 4, 30)]), (7, 0, &[(0, 1, 40)])]),
    ("wrap", &[(255, 0, &[(0x7fff_fff0, 0x0f, 1), (0x7fff_ffff, 5, 50)])]),
    ("half", &[(3, 0x7fff, &[(0, 1 << 30, 0)])]),
];
/// Sends that are combined with each snapshot: none, one, another one, and two.
const SENDS: [&[u8]; 4] =
    [b"", b"\x01\0\0\x01\0\0\0\x03", b"\x03\0\xff\0\0\0\0\0", b"\xff\0\x07\x01\0\0\0\x04\x01\x01\0\0\0\0\0\0"];

/// Seeds by the names of their target and of the seed.
type Seeds = BTreeMap<(&'static str, String), Vec<u8>>;

pub fn run() -> Outcome {
    let seeds = seeds()?;
    for target in crate::fuzz::TARGETS {
        clear(&root().join("fuzz/corpus").join(target)).map_err(|e| format!("fuzz/corpus/{target}: {e}"))?;
    }
    for ((target, name), bytes) in &seeds {
        let path = format!("fuzz/corpus/{target}/{name}.seed");
        std::fs::write(root().join(&path), bytes).map_err(|e| format!("{path}: {e}"))?;
    }
    let bytes: usize = seeds.values().map(Vec::len).sum();
    println!("wrote {} seeds of {bytes} bytes to fuzz/corpus", seeds.len());
    Ok(())
}

fn clear(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::read_dir(folder)?.try_for_each(|entry| std::fs::remove_file(entry?.path()))
}

/// Returns tokens of joining programs, of which the checksum is computed, and lines that are none.
/// Inserts a seed, and its beginnings of several lengths.
fn insert_with_cuts(seeds: &mut Seeds, target: &'static str, name: &str, seed: Vec<u8>) {
    for quarters in 1..4 {
        let cut = seed[..seed.len() * quarters / 4].to_vec();
        seeds.insert((target, format!("{name}-cut_{quarters}")), cut);
    }
    seeds.insert((target, name.to_owned()), seed);
}

fn tokens() -> [(&'static str, Vec<u8>); 4] {
    // Version, fingerprint, id, expiry, an address with its length, signature.
    let good = |version: u8, address: &str| {
        [&[0, version], &[7; 32][..], &[1; 16], &[0; 8], &[0, address.len() as u8], address.as_bytes(), &[9; 32]]
            .concat()
    };
    [
        ("good", good(1, "broker-1.example:7402")),
        ("address", good(1, "nowhere")),
        ("version", good(2, "a:1")),
        ("text", b"\x01thalweg-join-AQID".to_vec()),
    ]
}

fn invitations() -> [(&'static str, Vec<u8>); 4] {
    // Version, key, secret, expiry, addresses with their length.
    let good = |version: u8, address: &str| {
        [&[0, version][..], &[7; 32], &[1; 16], &[0; 8], &[0, address.len() as u8], address.as_bytes()].concat()
    };
    [
        ("good", good(1, "berlin.example:7403,[::1]:7403")),
        ("address", good(1, "nowhere")),
        ("version", good(2, "a:1")),
        ("text", b"\x01thalweg-mesh-AQID".to_vec()),
    ]
}

fn seeds() -> Outcome<Seeds> {
    let mut seeds = Seeds::new();
    for (name, frame) in vectors(NODE_FRAMES)? {
        seeds.insert(("node_link", name), frame);
    }
    for (name, frame) in vectors(JOIN_FRAMES)? {
        insert_with_cuts(&mut seeds, "join_message", &name, frame);
    }
    for (name, token) in tokens() {
        insert_with_cuts(&mut seeds, "join_token", name, token);
    }
    for (name, frame) in vectors(MESH_FRAMES)? {
        insert_with_cuts(&mut seeds, "mesh_link", &name, frame);
    }
    for (name, invitation) in invitations() {
        insert_with_cuts(&mut seeds, "mesh_invitation", name, invitation);
    }
    for (name, snapshot) in PRODUCERS {
        insert_with_cuts(&mut seeds, "node_manifest", name, encode_manifest(snapshot));
    }
    let mut stream = Vec::new();
    for (family, target) in [("requests", "request"), ("responses", "response"), ("pushes", "response")] {
        for (name, frame) in vectors(&format!("{VECTORS}/{family}.txt"))? {
            if frame.len() < HEADER_BYTES {
                return Err(format!("{family}: {name} is not a frame"));
            }
            let kind_and_body = [&[frame[AT_KIND]], &frame[HEADER_BYTES..]].concat();
            seeds.insert((target, format!("{family}-{name}")), kind_and_body);
            stream.extend_from_slice(&frame);
        }
        // Size limit, sizes of the pieces, KiB of zeros after the stream, and the stream.
        for (cut, cuts) in [[0u8; 4], [1, 11, 12, 200], [3, 3, 90, 7]].iter().enumerate() {
            let stream: Vec<u8> = stream.iter().copied().take(SEED_BYTES_MAX - 6).collect();
            seeds.insert(("frames", format!("{family}-{cut}")), [&[1], &cuts[..], &[0], &stream].concat());
        }
        stream.clear();
    }
    // Body that is mostly zeros appended to the input: large enough to be read in place.
    let large = [0, 0, 0x80, 0, 2, 0, 0, 0, 0, 0, 0, 1, b'x'];
    seeds.insert(("frames", "large".into()), [&[1, 5, 200, 255, 16, 40][..], &large].concat());
    for (name, batch) in batches()? {
        seeds.insert(("record_batch", format!("{name}-sealed")), [&[1], &batch[..]].concat());
        seeds.insert(("record_batch", name), [&[0], &batch[..]].concat());
    }
    for (name, snapshot) in PRODUCERS {
        for (i, sends) in SENDS.iter().enumerate() {
            let input = [&[(sends.len() / 8) as u8], &encode_producers(snapshot)[..], sends].concat();
            seeds.insert(("producers", format!("{name}-{i}")), input);
        }
    }
    for (i, (pattern, topic)) in PATTERNS.iter().enumerate() {
        seeds.insert(("pattern", format!("{i:02}")), format!("{pattern}\n{topic}").into_bytes());
    }
    for (i, (filter, attributes)) in QUEUE_FILTERS.iter().enumerate() {
        seeds.insert(("queue_filter", format!("{i:02}")), format!("{filter}\n{attributes}").into_bytes());
    }
    for (i, (choice, text)) in CREDENTIALS.iter().enumerate() {
        seeds.insert(("credential", format!("{i:02}")), [&[*choice], text.as_bytes()].concat());
    }
    for (i, rules) in REDIS_RULES.iter().enumerate() {
        seeds.insert(("redis_rules", format!("{i:02}")), rules.as_bytes().to_vec());
    }
    for (i, value) in REDIS_VALUES.iter().enumerate() {
        seeds.insert(("redis_value", format!("{i:02}")), value.to_vec());
    }
    for (i, (library, data)) in LUA_DATA.iter().enumerate() {
        seeds.insert(("lua_data", format!("{i:02}")), [&[*library][..], data].concat());
    }
    for (name, gone, policy) in SQS_POLICIES {
        seeds.insert(("sqs_policy", name.to_owned()), [&gone.to_be_bytes(), policy.as_bytes()].concat());
    }
    for (name, choice, text, message) in SCHEMAS {
        let seed = [&[choice], text.as_bytes(), &[0], message].concat();
        seeds.insert(("pubsub_schema", name.to_owned()), seed);
    }
    for (name, said) in SERVICE {
        for (cut, cuts) in [[0u8; 4], [1, 1, 1, 1], [2, 5, 0, 7]].iter().enumerate() {
            seeds.insert(("service", format!("{name}-{cut}")), [&cuts[..], said].concat());
        }
    }
    for (name, asked, body) in SQS_REQUESTS {
        seeds.insert(("sqs_request", name.to_owned()), [&[asked], body.as_bytes()].concat());
    }
    for (name, asked, cuts, body) in PUBSUB_GRPC {
        seeds.insert(("pubsub_request", format!("grpc-{name}")), [&[asked], &cuts[..], body].concat());
    }
    for (name, method, uri, body) in PUBSUB_REST {
        let seed = [&[0x80 | method], uri.as_bytes(), b"\n", body.as_bytes()].concat();
        seeds.insert(("pubsub_request", format!("rest-{name}")), seed);
    }
    let by_hand = KAFKA_BY_HAND.iter().map(|(name, request)| ((*name).to_owned(), request.to_vec()));
    for (name, request) in vectors(KAFKA_REQUESTS)?.into_iter().chain(by_hand) {
        seeds.insert(("kafka_request", name), request);
    }
    for (at, lines) in REDIS_REQUESTS.iter().enumerate() {
        for how in [0, 7] {
            seeds.insert(("redis_request", format!("{at}-{how}")), [&[how], lines.as_bytes()].concat());
        }
    }
    seeds.retain(|_, bytes| bytes.len() <= SEED_BYTES_MAX);
    Ok(seeds)
}

/// Encodes a manifest as `storage::Manifest` does: one topic whose two partitions have these producers.
fn encode_manifest(snapshot: Snapshot) -> Vec<u8> {
    let producers = encode_producers(snapshot);
    let mut bytes = [1u32, 8].map(u32::to_le_bytes).concat();
    bytes.extend(3000u64.to_le_bytes());
    bytes.extend([1u32, 7].map(u32::to_le_bytes).concat());
    bytes.extend(6u16.to_le_bytes());
    bytes.extend(b"orders");
    bytes.extend(2u32.to_le_bytes());
    bytes.extend([1u64 << 30, 0].map(u64::to_le_bytes).concat());
    // It is on disk and compacted.
    bytes.extend([2, 1]);
    for _ in 0..2 {
        bytes.extend([5u64, 100, 90, 50, 1_700_000_000_000, 100].map(u64::to_le_bytes).concat());
        bytes.extend((producers.len() as u32).to_le_bytes());
        bytes.extend(&producers);
    }
    bytes
}

/// Encodes producers as `engine::producers` does: the last run of each is an open transaction, and one was aborted.
fn encode_producers(snapshot: Snapshot) -> Vec<u8> {
    let mut bytes = vec![2];
    bytes.extend((snapshot.len() as u32).to_be_bytes());
    for (id, epoch, runs) in snapshot {
        bytes.extend(id.to_be_bytes());
        bytes.extend(epoch.to_be_bytes());
        let (_, count, open) = runs.last().copied().unwrap_or((0, 1, 0));
        let next_offset = open + u64::from(count);
        let timestamp_ms = 1_700_000_000_000u64;
        bytes.extend([next_offset.to_be_bytes(), timestamp_ms.to_be_bytes(), open.to_be_bytes()].concat());
        bytes.push(runs.len() as u8);
        for (sequence, count, base_offset) in *runs {
            bytes.extend([sequence.to_be_bytes(), count.to_be_bytes()].concat());
            bytes.extend(base_offset.to_be_bytes());
        }
    }
    bytes.extend(1u32.to_be_bytes());
    bytes.extend([7u64, 3, 5].map(u64::to_be_bytes).concat());
    bytes
}

/// Returns the named vectors of a file: each line is a name and the bytes in hex.
fn vectors(path: &str) -> Outcome<Vec<(String, Vec<u8>)>> {
    let text = std::fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, hex) = line.split_once(' ').ok_or_else(|| format!("{path}: no bytes in '{line}'"))?;
            let bytes = from_hex(hex).map_err(|e| format!("{path}: {name}: {e}"))?;
            Ok((name.to_owned(), bytes))
        })
        .collect()
}

/// Returns the batches of another implementation: the last line of each file, in hex.
fn batches() -> Outcome<Vec<(String, Vec<u8>)>> {
    let failed = |e: std::io::Error| format!("{BATCHES}: {e}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(BATCHES)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "hex") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        let batch = from_hex(text.lines().last().unwrap_or_default()).map_err(|e| format!("{BATCHES}/{name}: {e}"))?;
        found.push((name, batch));
    }
    found.sort();
    Ok(found)
}

/// Decodes pairs of hex digits; spaces between fields are ignored.
fn from_hex(text: &str) -> Outcome<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err("an odd number of digits".into());
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(|| format!("'{}' is not a digit", byte as char));
    pairs.iter().map(|[high, low]| Ok((digit(*high)? * 16 + digit(*low)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_gets_small_seeds() {
        let seeds = seeds().expect("the vectors exist");
        for target in crate::fuzz::TARGETS {
            assert!(seeds.keys().filter(|(of, _)| *of == target).count() >= 10, "{target}");
        }
        let hello = &seeds[&("request", "requests-hello".to_owned())];
        assert_eq!(hello[..5], [1, 0x54, 0x48, 0x4c, 0x57], "the kind, then the body");
    }

    #[test]
    fn hex_is_read_or_refused() {
        assert_eq!(from_hex("00 fF"), Ok(vec![0, 255]));
        assert!(from_hex("000").is_err());
        assert!(from_hex("0g").is_err());
    }
}
