//! Both protocols: their differences, and their use of the same queues.

use serde_json::{Value, json};

use super::client::{ARN, NOW, Sqs, each};
use crate::support::server::Server;

/// Signature, which is not verified by default.
const SIGNED: [(&str, &str); 1] = [(
    "authorization",
    "AWS4-HMAC-SHA256 Credential=test/20261122/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=00",
)];

/// Returns the text of an element without nested elements.
fn element<'t>(xml: &'t str, name: &str) -> &'t str {
    let rest = xml.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {xml}")).1;
    rest.split_once(&format!("</{name}>")).expect("its end").0
}

#[tokio::test]
async fn a_message_goes_in_by_one_protocol_and_out_by_the_other() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let form = "Action=CreateQueue&QueueName=q&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=0\
                &Version=2012-11-05&Tag.1.Key=team&Tag.1.Value=a";
    let created = sqs.query("/", form).await;
    assert_eq!((created.status, created.header("content-type")), (200, "text/xml"));
    assert!(
        created
            .body
            .contains("<CreateQueueResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><CreateQueueResult>")
    );
    let url = element(&created.body, "QueueUrl").to_owned();
    assert_eq!(element(&created.body, "RequestId"), created.header("x-amzn-requestid"));

    let form = "Action=SendMessage&MessageBody=%3Ca%3E%0D%0A&MessageAttribute.1.Name=b\
                &MessageAttribute.1.Value.DataType=Binary&MessageAttribute.1.Value.BinaryValue=AP8%3D";
    let sent = sqs.query("/000000000000/q", form).await;
    let got = sqs.receive_with(&url, json!({"MessageAttributeNames": ["All"], "WaitTimeSeconds": 5})).await;
    assert_eq!(
        (&got[0]["Body"], got[0]["MessageId"].as_str()),
        (&json!("<a>\r\n"), Some(element(&sent.body, "MessageId")))
    );
    assert_eq!(got[0]["MD5OfMessageAttributes"].as_str(), Some(element(&sent.body, "MD5OfMessageAttributes")));

    let form = format!("Action=ReceiveMessage&QueueUrl={url}&AttributeName.1=All&MessageAttributeName.1=All");
    let xml = sqs.query("/", &form).await.body;
    assert_eq!(element(&xml, "Body"), "&lt;a&gt;&#xD;\n");
    assert!(xml.contains("<Attribute><Name>ApproximateReceiveCount</Name><Value>2</Value></Attribute>"), "{xml}");
    let value = "<Value><BinaryValue>AP8=</BinaryValue><DataType>Binary</DataType></Value>";
    let attribute = &format!("<MessageAttribute><Name>b</Name>{value}</MessageAttribute>");
    assert!(xml.contains(attribute), "{xml}");
    let receipt = element(&xml, "ReceiptHandle");
    let deleted = sqs.query("/000000000000/q", &format!("Action=DeleteMessage&ReceiptHandle={receipt}")).await.body;
    assert!(deleted.contains("<DeleteMessageResponse xmlns=") && !deleted.contains("Result"), "{deleted}");
    let empty = sqs.query("/000000000000/q", "Action=ReceiveMessage").await.body;
    assert!(empty.contains("<ReceiveMessageResult/>"), "{empty}");
    let tags = sqs.query("/queue/us-east-1/000000000000/q", "Action=ListQueueTags").await.body;
    assert!(tags.contains("<Tag><Key>team</Key><Value>a</Value></Tag>"), "{tags}");
}

#[tokio::test]
async fn a_batch_by_forms() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    sqs.create("q", json!({})).await;
    let form = "Action=SendMessageBatch&SendMessageBatchRequestEntry.1.Id=a\
                &SendMessageBatchRequestEntry.1.MessageBody=x\
                &SendMessageBatchRequestEntry.2.Id=b&SendMessageBatchRequestEntry.2.MessageBody=%01";
    let xml = sqs.query("/000000000000/q", form).await.body;
    let good = element(&xml, "SendMessageBatchResultEntry");
    let bad = element(&xml, "BatchResultErrorEntry");
    assert_eq!((element(good, "Id"), element(bad, "Id")), ("a", "b"));
    assert_eq!((element(bad, "Code"), element(bad, "SenderFault")), ("InvalidMessageContents", "true"));
    let receipt =
        element(&sqs.query("/000000000000/q", "Action=ReceiveMessage").await.body, "ReceiptHandle").to_owned();
    for (action, more) in [("ChangeMessageVisibility", "VisibilityTimeout=5"), ("DeleteMessage", "X=1")] {
        let entry = format!("{action}BatchRequestEntry.1");
        let form = format!("Action={action}Batch&{entry}.Id=a&{entry}.ReceiptHandle={receipt}&{entry}.{more}");
        let xml = sqs.query("/000000000000/q", &form).await.body;
        assert_eq!(element(element(&xml, &format!("{action}BatchResultEntry")), "Id"), "a", "{xml}");
    }
}

#[tokio::test]
async fn errors_of_forms_are_xml() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    sqs.create("q", json!({})).await;
    let error = async |path: &str, form: &str| {
        let answer = sqs.query(path, form).await;
        (answer.status, element(&answer.body, "Code").to_owned(), element(&answer.body, "Message").to_owned())
    };
    let missing = error("/", "Action=GetQueueUrl&QueueName=nothing").await;
    let text = "The specified queue does not exist for this wsdl version.";
    assert_eq!(missing, (400, "AWS.SimpleQueueService.NonExistentQueue".into(), text.into()));
    let text = "The action CreateQueue is not valid for this endpoint.";
    assert_eq!(
        error("/000000000000/q", "Action=CreateQueue&QueueName=x").await,
        (400, "InvalidAction".into(), text.into())
    );
    assert_eq!(error("/000000000000/q", "Action=ListQueues").await.1, "InvalidAction");
    assert_eq!(error("/", "Action=Nonsense").await.1, "InvalidAction");
    assert_eq!(error("/", "").await.1, "MissingAction");
    assert_eq!(error("/", "Action=SendMessage&QueueUrl=q&MessageBody=x&DelaySeconds=x").await.1, "MalformedInput");
    assert_eq!(error("/a/b/c", "Action=ReceiveMessage").await.1, "InvalidAddress");
    assert_eq!(error("/", "Action=ReceiveMessage").await.1, "MissingParameter");
    let unknown = sqs.send("GET", "/000000000000/q", &[], "").await;
    assert_eq!((unknown.status, &*unknown.body), (404, "<UnknownOperationException/>"));
    let by_get = sqs.send("GET", "/000000000000/q?Action=SendMessage&MessageBody=hello", &SIGNED, "").await;
    assert_eq!(element(&by_get.body, "MD5OfMessageBody"), "5d41402abc4b2a76b9719d911017c592");
}

/// A link or an image of a web page makes a browser send a GET, and so do programs that fetch URLs for others. AWS
/// accepts GET for every action of the Query protocol, but only if it is signed ("Making Query API requests using HTTPS
/// in Amazon SQS").
#[tokio::test]
async fn actions_with_side_effects_require_a_post_or_a_signature() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    sqs.send_body(&url, "kept").await;
    let get = async |query: &str, headers: &[(&str, &str)]| sqs.send("GET", query, headers, "").await;
    let presigned = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/20261122/us-east-1/sqs/aws4_request\
                     &X-Amz-Date=20261122T000000Z&X-Amz-SignedHeaders=host&X-Amz-Signature=00";
    for action in
        ["CreateQueue&QueueName=x", "DeleteQueue", "PurgeQueue", "ReceiveMessage", "SendMessage&MessageBody=x"]
    {
        for more in ["", presigned] {
            let query = format!("/?Action={action}&QueueUrl={url}&{more}");
            for method in ["GET", "PUT", "HEAD"] {
                let refused = sqs.send(method, &query, &[], "").await;
                assert_eq!(refused.status, 403, "{method} {query}: {refused:?}");
                if method == "GET" {
                    assert_eq!(element(&refused.body, "Code"), "AccessDenied");
                    assert!(element(&refused.body, "Message").contains("POST"), "{refused:?}");
                }
            }
        }
    }
    for action in ["GetQueueUrl&QueueName=q", "ListQueues", "ListQueueTags", "GetQueueAttributes"] {
        assert_eq!(get(&format!("/?Action={action}&QueueUrl={url}"), &[]).await.status, 200, "{action}");
    }
    assert_eq!(sqs.counts(&url).await[0], "1");
    assert_eq!(get(&format!("/?Action=PurgeQueue&QueueUrl={url}"), &SIGNED).await.status, 200);
    assert_eq!(sqs.counts(&url).await[0], "0");
}

#[tokio::test]
async fn invalid_requests_are_refused_in_the_format_of_their_protocol() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let send = async |target: &str, body: &'static str| {
        let headers = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", target)];
        sqs.send("POST", "/", &headers, body).await
    };
    for body in ["x", "[]", "{\"QueueUrl\":5}", "{\"MaxNumberOfMessages\":\"1\"}", "{\"QueueUrl\":\"q\"", "\u{0}"] {
        let answer = send("AmazonSQS.ReceiveMessage", body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["__type"], "com.amazon.coral.service#SerializationException", "{body}");
    }
    for target in ["AmazonSQS.Nonsense", "Nonsense", ""] {
        let answer = send(target, "{}").await;
        assert_eq!(answer.json()["__type"], "com.amazon.coral.service#UnknownOperationException", "{target}");
    }
    let of_page = [("origin", "http://evil.example"), ("content-type", "text/plain")];
    let refused = sqs.send("POST", "/", &of_page, format!("Action=PurgeQueue&QueueUrl={url}")).await;
    assert_eq!((refused.status, element(&refused.body, "Code")), (403, "AccessDenied"));
}

/// URLs contain the host that the client connected to, whatever address the broker is bound to.
#[tokio::test]
async fn urls_lead_to_where_the_client_came_to() {
    let server = Server::with(&["http_hosts=queues.test"]);
    let sqs = Sqs::of(&server);
    let target = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.CreateQueue")];
    let create = async |sqs: &Sqs| {
        let headers = [&target[..], &[("host", "queues.test:4566")]].concat();
        let answer = sqs.send("POST", "/", &headers, r#"{"QueueName":"q"}"#).await.ok();
        answer["QueueUrl"].as_str().expect("a URL").to_owned()
    };
    assert_eq!(create(&sqs).await, "http://queues.test:4566/000000000000/q");
    for url in
        ["http://queues.test/000000000000/q", "https://sqs.us-east-1.amazonaws.com/000000000000/q", "q", "/queue/q"]
    {
        sqs.send_body(url, "x").await;
    }
    assert_eq!(sqs.counts("q").await[0], "4");
    let fixed = ["sqs_url=https://mq.example", "sqs_account=123456789012", "sqs_region=eu-west-1"];
    let fixed = Server::with(&[&fixed[..], &["http_hosts=queues.test"]].concat());
    let sqs = Sqs::of(&fixed);
    assert_eq!(create(&sqs).await, "https://mq.example/123456789012/q");
    // A client that follows such a URL sends its host.
    let list = json!({}).to_string();
    let target = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.ListQueues")];
    for (host, status) in [("mq.example", 200), ("mq2.example", 421)] {
        let headers = [&target[..], &[("host", host)]].concat();
        let answer = sqs.send("POST", "/", &headers, list.clone()).await;
        assert_eq!(answer.status, status, "{host}: {answer:?}");
        assert!(status == 200 || answer.body.contains("http_hosts"), "{answer:?}");
    }
}

#[tokio::test]
async fn messages_are_looked_at_without_being_received() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    for body in ["taken", "there"] {
        sqs.send_body(&url, body).await;
    }
    sqs.call("SendMessage", json!({"QueueUrl": url, "MessageBody": "later", "DelaySeconds": 900})).await.ok();
    sqs.receive(&url, 1, 5).await;
    let peek = async |path: &str| {
        let answer = sqs.send("GET", path, &[("accept", "application/json")], "").await.ok();
        let messages = listed(&answer["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]);
        messages.iter().map(|message| message["Body"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(peek(&format!("/_aws/sqs/messages?QueueUrl={url}")).await, ["there"]);
    let path = "/_aws/sqs/messages/us-east-1/000000000000/q";
    assert_eq!(peek(&format!("{path}?ShowInvisible=true")).await, ["taken", "there"]);
    assert_eq!(peek(&format!("{path}?ShowInvisible=1&ShowDelayed=true")).await, ["taken", "there", "later"]);
    let xml = sqs.send("GET", path, &[], "").await.body;
    assert!(xml.contains("<ReceiveMessageResult><Message>") && element(&xml, "Body") == "there", "{xml}");
    assert_eq!(sqs.counts(&url).await, ["1", "1", "1"]);
    assert_eq!(sqs.receive(&url, 10, NOW).await.len(), 1);
}

/// Parses the messages in LocalStack's JSON: none, one, or a list.
fn listed(messages: &Value) -> Vec<Value> {
    match messages {
        Value::Null => Vec::new(),
        Value::Array(messages) => messages.clone(),
        one => vec![one.clone()],
    }
}

/// Requests of LocalStack's own tests of this path (`test_sqs_developer_api.py`).
#[tokio::test]
async fn messages_are_looked_at_as_with_localstack() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let path = "/_aws/sqs/messages";
    let json = [("accept", "application/json")];
    sqs.send_body(&url, "1").await;
    sqs.send_body(&url, "2").await;
    // A message that is visible again is shown as such, even if it was not received since.
    sqs.receive_with(&url, json!({"VisibilityTimeout": 0, "MaxNumberOfMessages": 1})).await;
    let answer = sqs.send("GET", &format!("{path}?QueueUrl={url}"), &json, "").await;
    assert_eq!(answer.header("content-type"), "application/json");
    let result = answer.ok()["ReceiveMessageResponse"]["ReceiveMessageResult"].take();
    let attributes = |message: &Value| {
        let listed = message["Attribute"].as_array().expect("a list").iter();
        let pairs = listed.map(|one| (one["Name"].as_str().expect("text").to_owned(), one["Value"].clone()));
        pairs.collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(each(&listed(&result["Message"]), "Body"), ["1", "2"]);
    let [first, second] = [0, 1].map(|i| attributes(&result["Message"][i]));
    assert_eq!((&first["ApproximateReceiveCount"], &second["ApproximateReceiveCount"]), (&json!("1"), &json!("0")));
    assert_eq!(
        (&first["SenderId"], &second["ApproximateFirstReceiveTimestamp"]),
        (&json!("000000000000"), &json!("0"))
    );
    // As the endpoint of an SDK, in both protocols; the number of messages is ignored.
    let target = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.ReceiveMessage")];
    let body = json!({"QueueUrl": url, "MaxNumberOfMessages": 1}).to_string();
    let answer = sqs.send("POST", path, &target, body).await;
    assert_eq!(answer.header("content-type"), "application/x-amz-json-1.0");
    assert_eq!(each(answer.ok()["Messages"].as_array().expect("a list"), "Body"), ["1", "2"]);
    let answer = sqs.query(path, &format!("Action=ReceiveMessage&QueueUrl={url}")).await;
    assert_eq!((answer.status, answer.body.matches("<Message>").count()), (200, 2), "{answer:?}");
    let plain = [("content-type", "application/json")];
    let answer = sqs.send("POST", path, &plain, json!({"QueueUrl": url, "ShowInvisible": true}).to_string()).await.ok();
    let shown = listed(&answer["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]);
    assert_eq!(attributes(&shown[0])["IsVisible"], "true");

    let target = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", "AmazonSQS.SendMessage")];
    let body = json!({"QueueUrl": url, "MessageBody": "x"}).to_string();
    let text = "This endpoint only accepts ReceiveMessage calls";
    assert_eq!(sqs.send("POST", path, &target, body).await.error(), (400, "InvalidRequest".into(), text.into()));
    let answer = sqs.query(path, &format!("Action=PurgeQueue&QueueUrl={url}")).await;
    assert_eq!((answer.status, element(&answer.body, "Code")), (400, "InvalidRequest"));
    let body = json!({"QueueUrl": url, "Action": "SendMessage", "MessageBody": "x"}).to_string();
    let answer = sqs.send("POST", path, &plain, body).await;
    assert_eq!((answer.status, &answer.json()["ErrorResponse"]["Error"]["Code"]), (400, &json!("InvalidRequest")));
    // Headers and body that curl sends with `-d` alone.
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = sqs.send("POST", path, &form, json!({"QueueUrl": url}).to_string()).await;
    assert_eq!((answer.status, answer.body.matches("<Message>").count()), (200, 2), "{answer:?}");
    assert_eq!(sqs.counts(&url).await, ["2", "0", "0"]);
    let code = async |path: &str| {
        let answer = sqs.send("GET", path, &json, "").await;
        (answer.status, answer.json()["ErrorResponse"]["Error"]["Code"].as_str().expect("text").to_owned())
    };
    let missing = (404, "AWS.SimpleQueueService.NonExistentQueue".to_owned());
    assert_eq!(code(path).await, missing);
    assert_eq!(code("/_aws/sqs/messages/us-east-1/000000000000/none").await, missing);
    assert_eq!(code("/_aws/sqs/messages?QueueUrl=http://localhost:4566/000000000000/none").await, missing);
    let invalid = (404, "InvalidAddress".to_owned());
    assert_eq!(code("/_aws/sqs/messages?QueueUrl=http://localhost:4566/nonsense").await, invalid);
    assert_eq!(code("/_aws/sqs/messages/a/b").await, invalid);
    // A message cannot be received while an earlier one of its group is in flight.
    let fifo = sqs.create_fifo("q.fifo", json!({"ContentBasedDeduplication": "true"})).await;
    for (group, body) in [("1", "a"), ("1", "b"), ("2", "c"), ("2", "d")] {
        let request = json!({"QueueUrl": fifo, "MessageBody": body, "MessageGroupId": group});
        sqs.call("SendMessage", request).await.ok();
    }
    sqs.receive(&fifo, 1, NOW).await;
    for (more, expected) in [("", &["c", "d"][..]), ("&ShowInvisible=true", &["a", "b", "c", "d"])] {
        let answer = sqs.send("GET", &format!("{path}?QueueUrl={fifo}{more}"), &json, "").await.ok();
        let shown = listed(&answer["ReceiveMessageResponse"]["ReceiveMessageResult"]["Message"]);
        assert_eq!(each(&shown, "Body"), expected);
    }
}

/// Queries that accept JSON get the service's JSON form: LocalStack's tests of AWS,
/// `test_get_queue_attributes_json_format` and `test_get_list_queues_fails_json_format`.
#[tokio::test]
async fn queries_that_accept_json_are_answered_in_it() {
    let server = Server::start();
    let sqs = Sqs::of(&server);
    let url = sqs.create("q", json!({})).await;
    let query = async |path: &str| sqs.send("GET", path, &[("accept", "application/json, */*")], "").await;
    let at = "/000000000000/q";
    let answer = query(&format!("{at}?Action=GetQueueAttributes&AttributeName.1=QueueArn")).await;
    assert_eq!(answer.header("content-type"), "application/json");
    let result = &answer.ok()["GetQueueAttributesResponse"]["GetQueueAttributesResult"];
    assert_eq!(result, &json!({"Attributes": [{"Name": "QueueArn", "Value": format!("{ARN}q")}]}));
    let signed = [("accept", "application/json, */*"), SIGNED[0]];
    let receive = async || sqs.send("GET", &format!("{at}?Action=ReceiveMessage"), &signed, "").await;
    let none = receive().await.ok();
    assert_eq!(none["ReceiveMessageResponse"]["ReceiveMessageResult"], json!({"messages": null}));
    sqs.send_body(&url, "x").await;
    let one = receive().await.ok();
    assert_eq!(one["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0]["Body"], "x");
    let list = query("/?Action=ListQueues").await.ok();
    assert_eq!(list["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"], json!([url]));
    let wrong = query(&format!("{at}?Action=ListQueues")).await;
    let text = "The action ListQueues is not valid for this endpoint.";
    let error = &wrong.json()["Error"];
    assert_eq!((wrong.status, &error["Code"], &error["Message"]), (400, &json!("InvalidAction"), &json!(text)));
    let unknown = query(at).await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("<UnknownOperationException"), "{unknown:?}");
}

#[tokio::test]
async fn the_url_of_a_queue_of_another_host_is_refused() {
    let server = Server::with(&["http_hosts=broker"]);
    let sqs = Sqs::of(&server);
    sqs.create("q", json!({})).await;
    let counts = async |url: &str| {
        sqs.call("GetQueueAttributes", json!({"QueueUrl": url, "AttributeNames": ["QueueArn"]})).await
    };
    let refused = counts("http://example.com/000000000000/q").await.error();
    assert_eq!((refused.0, &*refused.1), (404, "InvalidAddress"));
    let text = "The address http://example.com/000000000000/q is not valid for this endpoint.";
    assert!(refused.2.starts_with(text) && refused.2.contains("sqs_url"), "{}", refused.2);
    let own = ["http://localhost:4566/000000000000/q", "https://queue.amazonaws.com/000000000000/q", "q", "/queue/q"];
    for url in own {
        counts(url).await.ok();
    }
    // A client that uses another host name gets URLs with it, which others may use.
    let by_name = [("host", "broker:9324")];
    let url = sqs.call_with("GetQueueUrl", json!({"QueueName": "q"}), &by_name).await.ok()["QueueUrl"].clone();
    assert_eq!(url, "http://broker:9324/000000000000/q");
    counts(url.as_str().expect("text")).await.ok();
}

#[tokio::test]
async fn requests_are_signed_where_that_is_asked_for() {
    let server = Server::with(&["sqs_auth=verify", "sqs_credentials=AKIDEXAMPLE:secret"]);
    let sqs = Sqs::of(&server);
    let unsigned = sqs.call("ListQueues", json!({})).await;
    assert_eq!((unsigned.status, unsigned.code()), (403, "MissingAuthenticationToken".into()));
    let signed =
        "AWS4-HMAC-SHA256 Credential=nobody/20261122/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=00";
    let more = [("authorization", signed), ("x-amz-date", "20261122T000000Z")];
    let unknown = sqs.call_with("ListQueues", json!({}), &more).await;
    assert_eq!(unknown.status, 403, "{unknown:?}");
    let form = sqs.query("/", "Action=ListQueues").await;
    assert_eq!((form.status, element(&form.body, "Code")), (403, "MissingAuthenticationToken"));
}
