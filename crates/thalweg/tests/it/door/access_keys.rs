//! Access keys of the broker at the SQS door: signatures, accounts, and their end. The signer is written after AWS's
//! description, apart from the code that verifies
//! (<https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html>).

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use aws_lc_rs::{digest, hmac};
use serde_json::{Value, json};

use super::sqs::client::{Answer, NOW, Sqs};
use crate::support::command::{self, feed};
use crate::support::server::{Server, until, within};

/// Name and secret of an access key.
#[derive(Clone)]
pub(super) struct Key {
    id: String,
    secret: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the current time as `YYYYMMDDTHHMMSSZ`.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // The calendar of Howard Hinnant's `civil_from_days`, for days after 1970.
    let era_days = days + 719_468;
    let (era, day) = (era_days / 146_097, era_days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{date:02}T{:02}{:02}{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Sends a request that is signed with a key.
pub(super) async fn call(sqs: Sqs, key: &Key, action: &str, body: Value) -> Answer {
    let target = format!("AmazonSQS.{action}");
    let (time, signed) = sign(key, "POST", "/", Some(&target), &body.to_string());
    sqs.call_with(action, body, &[("host", "localhost"), ("x-amz-date", &time), ("authorization", &signed)]).await
}

/// Returns the time and the signature of a request to the host `localhost`.
pub(super) fn sign(key: &Key, method: &str, path: &str, target: Option<&str>, body: &str) -> (String, String) {
    let time = now();
    let date = &time[..8];
    let hash = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
    let (names, of_target) = match target {
        Some(target) => ("host;x-amz-date;x-amz-target", format!("x-amz-target:{target}\n")),
        None => ("host;x-amz-date", String::new()),
    };
    let body_hash = hash(body.as_bytes());
    let headers = format!("host:localhost\nx-amz-date:{time}\n{of_target}");
    let canonical = format!("{method}\n{path}\n\n{headers}\n{names}\n{body_hash}");
    let scope = format!("{date}/us-east-1/sqs/aws4_request");
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hash(canonical.as_bytes()));
    let sign = |key: &[u8], text: &str| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes());
    let first = sign(format!("AWS4{}", key.secret).as_bytes(), date);
    let signing = ["us-east-1", "sqs", "aws4_request"].iter().fold(first, |key, part| sign(key.as_ref(), part));
    let signature = hex(sign(signing.as_ref(), &to_sign).as_ref());
    let id = &key.id;
    let signed = format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}");
    (time, signed)
}

/// Creates an access key of a user with these options.
pub(super) fn create(server: &Server, user: &str, options: &[&str]) -> Key {
    let printed = command::on(server, [&["key", "create", user], options].concat()).ok();
    let value = |name: &str| {
        let line = printed.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {printed}")).to_owned()
    };
    Key { id: value("AWS_ACCESS_KEY_ID="), secret: value("AWS_SECRET_ACCESS_KEY=") }
}

pub(super) async fn status(sqs: Sqs, key: &Key, action: &str, body: Value) -> (u16, String) {
    let answer = call(sqs, key, action, body).await;
    (answer.status, if answer.status == 200 { String::new() } else { answer.code() })
}

fn refused() -> (u16, String) {
    (403, "InvalidClientTokenId".into())
}

#[tokio::test]
async fn requests_are_signed_with_keys_of_the_broker() {
    let server = Server::with(&["auth=required", "authorization=true", "users=root:r00t", "sqs=127.0.0.1:0"]);
    let sqs = Sqs::of(&server);
    let key = create(&server, "worker", &[]);
    assert_eq!((key.id.len(), key.secret.len()), (20, 40));
    let queue = || json!({"QueueName": "q"});
    let denied = status(sqs, &key, "CreateQueue", queue()).await;
    assert_eq!(denied, (403, "AccessDenied".into()), "its user has no permission yet");
    command::on(&server, ["role", "add", "admin", "worker"]).ok();
    assert_eq!(status(sqs, &key, "CreateQueue", queue()).await.0, 200);

    let wrong = Key { secret: format!("{}x", key.secret), ..key.clone() };
    assert_eq!(status(sqs, &wrong, "ListQueues", json!({})).await, (403, "SignatureDoesNotMatch".into()));
    let unknown = Key { id: format!("{}X", key.id), ..key.clone() };
    assert_eq!(status(sqs, &unknown, "ListQueues", json!({})).await, refused());

    let listed = command::on(&server, ["key", "list", "--json"]).ok();
    assert!(listed.contains(&key.id) && listed.contains("worker") && !listed.contains(&key.secret), "{listed}");
    command::on(&server, ["key", "delete", &key.id]).ok();
    assert_eq!(status(sqs, &key, "ListQueues", json!({})).await, refused());
    assert!(command::on(&server, ["key", "delete", &key.id]).failed(4).contains("thalweg key list"));
    assert!(!server.log().contains(&key.secret));
}

/// A key ends with its deletion, with its user, or at its time, and so do the receives that wait.
#[tokio::test]
async fn a_receive_ends_with_its_key() {
    let server = Server::with(&["sqs_auth=verify", "sqs=127.0.0.1:0"]);
    let sqs = Sqs::of(&server);
    assert!(feed(&server, ["user", "add", "ann"], "pencil\n").ok().contains("ann"));
    let ends: [(Key, &[&str]); 2] = [
        (create(&server, "worker", &[]), &["key", "delete"]),
        (create(&server, "ann", &[]), &["user", "delete", "ann"]),
    ];
    for (key, end) in ends {
        let url = call(sqs, &key, "CreateQueue", json!({"QueueName": "q"})).await.ok()["QueueUrl"].clone();
        let receive = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
        let (waiting, of_key) = (receive.clone(), key.clone());
        let waiting = tokio::spawn(async move { call(sqs, &of_key, "ReceiveMessage", waiting).await });
        // A request that has not begun to wait is refused all the same.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let id = [key.id.as_str()];
        command::on(&server, [end, if end[0] == "key" { &id } else { &[] }].concat()).ok();
        let ended = within("the end of a receive", waiting).await.expect("answered");
        assert_eq!((ended.status, ended.code()), (403, "AccessDenied".into()));
        assert_eq!(status(sqs, &key, "ReceiveMessage", receive).await, refused());
    }
    let brief = create(&server, "worker", &["--expires", "1s"]);
    let is_over = async || status(sqs, &brief, "ListQueues", json!({})).await == refused();
    until("the key has expired", is_over).await;
}

#[tokio::test]
async fn secrets_are_sealed_and_survive_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let data_setting = format!("data={}", data.display());
    let start = || Server::with(&["sqs_auth=verify", "sqs=127.0.0.1:0", &data_setting]);
    let server = start();
    let secret_file = dir.path().join("imported");
    std::fs::write(&secret_file, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n").expect("written");
    let own = create(&server, "worker", &["--account", "111122223333"]);
    let path = secret_file.to_str().expect("text");
    let imported = create(&server, "worker", &["--id", "AKIAIOSFODNN7EXAMPLE", "--secret-file", path]);
    assert_eq!(imported.secret, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY");
    let again = ["key", "create", "ann", "--id", "AKIAIOSFODNN7EXAMPLE", "--secret-file", path];
    assert!(command::on(&server, again).failed(1).contains("AKIAIOSFODNN7EXAMPLE"));
    std::fs::remove_file(&secret_file).expect("removed");
    drop(server);

    let seal = data.join("seal.key");
    assert_eq!(std::fs::metadata(&seal).expect("it exists").permissions().mode() & 0o777, 0o600);
    let holds = |path: &std::path::Path, secret: &str| {
        std::fs::read(path).expect("read").windows(secret.len()).any(|window| window == secret.as_bytes())
    };
    for file in files(&data) {
        assert!(!holds(&file, &own.secret) && !holds(&file, &imported.secret), "{}", file.display());
    }
    let server = start();
    let sqs = Sqs::of(&server);
    for (key, account) in [(&own, "111122223333"), (&imported, "000000000000")] {
        let url = call(sqs, key, "CreateQueue", json!({"QueueName": "q"})).await.ok()["QueueUrl"].to_string();
        assert!(url.contains(account), "{url}");
    }
    drop(server);

    // Without the file no key is valid, and no other key takes its place.
    let aside = data.join("seal.aside");
    std::fs::rename(&seal, &aside).expect("moved");
    let server = start();
    assert!(server.log().contains("seal.key is missing"), "{}", server.log());
    assert_eq!(status(Sqs::of(&server), &own, "ListQueues", json!({})).await, refused());
    assert!(command::on(&server, ["key", "create", "worker"]).failed(1).contains("seal.key"));
    drop(server);
    std::fs::rename(&aside, &seal).expect("moved back");
    let server = start();
    assert_eq!(status(Sqs::of(&server), &own, "ListQueues", json!({})).await.0, 200);
}

fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// AWS gives other accounts access to a queue by its policy only
/// (<https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-overview-of-managing-access.html>).
#[tokio::test]
async fn a_key_of_one_account_cannot_use_queues_of_another() {
    let server =
        Server::with(&["sqs_auth=verify", "sqs=127.0.0.1:0", "sqs_credentials=CONFIGURED:secret:444455556666"]);
    let sqs = Sqs::of(&server);
    let owner = create(&server, "ann", &["--account", "111122223333"]);
    let configured = Key { id: "CONFIGURED".into(), secret: "secret".into() };
    let url = call(sqs, &owner, "CreateQueue", json!({"QueueName": "q"})).await.ok()["QueueUrl"].clone();
    call(sqs, &owner, "SendMessage", json!({"QueueUrl": url, "MessageBody": "kept"})).await.ok();
    let arn = "arn:aws:sqs:us-east-1:111122223333:q";
    for thief in [create(&server, "eve", &["--account", "222233334444"]), create(&server, "ann", &[]), configured] {
        for (action, body) in [
            ("PurgeQueue", json!({"QueueUrl": url})),
            ("DeleteQueue", json!({"QueueUrl": url})),
            ("SendMessage", json!({"QueueUrl": url, "MessageBody": "evil"})),
            ("ReceiveMessage", json!({"QueueUrl": url, "WaitTimeSeconds": NOW})),
            ("GetQueueUrl", json!({"QueueName": "q", "QueueOwnerAWSAccountId": "111122223333"})),
            ("StartMessageMoveTask", json!({"SourceArn": arn})),
            ("ListMessageMoveTasks", json!({"SourceArn": arn})),
            (
                "AddPermission",
                json!({"QueueUrl": url, "Label": "l", "AWSAccountIds": ["222233334444"], "Actions": ["*"]}),
            ),
        ] {
            assert_eq!(status(sqs, &thief, action, body).await, (403, "AccessDenied".into()), "{} {action}", thief.id);
        }
        let peek = "/_aws/sqs/messages/us-east-1/111122223333/q";
        let (time, signed) = sign(&thief, "GET", peek, None, "");
        let headers = [("host", "localhost"), ("x-amz-date", &*time), ("authorization", &*signed)];
        let peeked = sqs.send("GET", peek, &headers, "").await;
        assert!(peeked.status == 403 && peeked.body.contains("AccessDenied"), "{peeked:?}");
        let queues = call(sqs, &thief, "ListQueues", json!({})).await.ok();
        assert_eq!(queues["QueueUrls"], Value::Null);
    }
    let counts = json!({"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessages"]});
    let counts = call(sqs, &owner, "GetQueueAttributes", counts).await.ok();
    assert_eq!(counts["Attributes"]["ApproximateNumberOfMessages"], "1", "nothing has changed");
}
