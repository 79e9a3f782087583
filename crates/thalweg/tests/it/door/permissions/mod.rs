//! Walks over the tables of permissions: every call of every door is refused without each of the permissions in its
//! row, changes nothing then, and passes with exactly those. The tables are those by which the doors decide.

mod http;
mod kafka;
mod native;
mod pubsub;
mod redis;
mod sqs;

use std::cell::RefCell;
use std::collections::BTreeSet;

use client::security::{AclFilter, Operation, Principal, ResourceKind, TokenId, UserName};
use client::{Client, Record, TopicSettings};
use doors::permissions::{Call, Need, Table, tables};
use engine::{Error, ErrorKind, Start};
use futures_util::future::join_all;
use wire::caches::CacheRequest;
use wire::groups::OffsetReset;
use wire::queues::NewQueue;
use wire::security::SecurityRequest;
use wire::{CacheResponse, GroupRequest, QueueRequest, Request, Response};

use crate::support::access::acls;
use crate::support::raw::Raw;
use crate::support::server::Server;

/// Settings of the broker: `bob` is the client of the walk, and `root` prepares it. Refusals are not recorded, so that
/// the broker's own topics do not change with them.
const SET: [&str; 5] =
    ["auth=required", "authorization=true", "users=bob:secret,root:r00t", "super_users=root", "audit=off"];
const COUNT_MAX: u32 = 1000;
/// Maximum length of a response in a report.
const WORDS_CHARS_MAX: usize = 300;

/// Response to a call.
enum Answer {
    /// The call was permitted: its response, or an error that is not about permissions.
    Passed(String),
    /// Error of the door for a missing permission.
    Refused(String),
    /// Error of the door for a missing login.
    NoLogin(String),
}

impl Answer {
    /// Returns the answer in words, for a report.
    fn words(&self) -> String {
        let (kind, text) = match self {
            Self::Passed(text) => ("passed", text),
            Self::Refused(text) => ("refused", text),
            Self::NoLogin(text) => ("refused without a login", text),
        };
        format!("{kind}: {}", text.chars().take(WORDS_CHARS_MAX).collect::<String>())
    }
}

/// Example of a call.
struct Example<Q> {
    call: String,
    /// Conditions of the row that hold for the request.
    holds: Vec<&'static str>,
    /// Names of resources that differ from the usual ones, by the phrases of the row.
    names: Vec<(&'static str, &'static str)>,
    /// Text of the response that shows a resource which the row may omit.
    shows: &'static str,
    request: Q,
}

impl<Q> Example<Q> {
    fn new(call: impl Into<String>, request: Q) -> Self {
        Self { call: call.into(), holds: Vec::new(), names: Vec::new(), shows: "", request }
    }

    /// Adds a condition that holds.
    fn when(mut self, condition: &'static str) -> Self {
        self.holds.push(condition);
        self
    }

    /// Sets the name of a resource.
    fn on(mut self, of: &'static str, name: &'static str) -> Self {
        self.names.push((of, name));
        self
    }

    fn showing(self, shows: &'static str) -> Self {
        Self { shows, ..self }
    }

    /// Returns the permissions that the row requires for this request: those without which it is refused, and those
    /// without which the response omits something.
    fn needs(&self, row: &Call) -> (Vec<Need>, Vec<Need>) {
        let applies = |need: &&Need| need.when.is_empty() || self.holds.contains(&need.when);
        row.needs.iter().filter(applies).partition(|need| !need.is_filter)
    }

    /// Returns the entry that gives a permission, as [`acls`] writes it.
    fn entry(&self, operation: Operation, kind: ResourceKind, of: &str) -> String {
        let given = self.names.iter().find(|(phrase, _)| *phrase == of).map(|(_, name)| *name);
        format!("{} {} {}", operation.name(), kind.name(), given.unwrap_or_else(|| usual_name(kind, of)))
    }

    fn entry_of(&self, need: &Need) -> String {
        self.entry(need.operation, need.kind, need.of)
    }
}

/// Returns the name of a resource of [`Site::prepare`]; a name that ends with `...` is a prefix.
fn usual_name(kind: ResourceKind, of: &str) -> &'static str {
    match kind {
        ResourceKind::Topic => "t",
        ResourceKind::Group => "g",
        ResourceKind::Queue => "q",
        ResourceKind::Cache if of.starts_with("all") => "c/...",
        ResourceKind::Cache => "c/k",
        ResourceKind::Channel => "ch",
        ResourceKind::Transaction => "x",
        ResourceKind::Schema => "order",
        ResourceKind::Cluster => "cluster",
    }
}

/// Broker with resources of each kind, and an administrator.
struct Site {
    server: Server,
    admin: Client,
    root: RefCell<Option<Raw>>,
}

impl Site {
    async fn open(set: &[&str]) -> Self {
        let server = Server::with(&[&SET[..], set].concat());
        let admin = server.client("tcp").await;
        let mut root = Raw::open(server.address).await;
        let login = Request::Login { mechanism: "PLAIN".to_owned(), message: b"\0root\0r00t".to_vec() };
        assert!(matches!(root.call(&login).await, Response::Login { is_done: true, .. }));
        let site = Self { server, admin, root: RefCell::new(Some(root)) };
        site.admin.create_topic("t", TopicSettings::default()).await.expect("created");
        site.admin.publish("t", Record::new("v")).await.expect("published");
        site.prepare().await;
        site
    }

    /// Sends requests as an administrator, and returns the responses.
    async fn ask(&self, requests: Vec<Request>) -> Vec<Response> {
        let mut root = self.root.take().expect("nothing else uses the connection");
        let mut answers = Vec::new();
        for request in &requests {
            answers.push(root.call(request).await);
        }
        self.root.replace(Some(root));
        answers
    }

    /// Creates the resources that the examples name, as far as they do not exist, and deletes those that they create.
    async fn prepare(&self) {
        let queue = |name: &str, topic: &str| {
            Request::Queue(QueueRequest::Create(NewQueue {
                queue: name.to_owned(),
                topic: topic.to_owned(),
                is_live: false,
                storage: engine::Storage::Memory,
                settings: Vec::new(),
                notes: Vec::new(),
            }))
        };
        let topic = |name: &str| Request::TopicCreate { topic: name.to_owned(), settings: TopicSettings::default() };
        let reset = |group: &str| {
            Request::Group(GroupRequest::Reset(OffsetReset {
                group: group.to_owned(),
                topic: "t".to_owned(),
                partitions: vec![0],
                to: Some(Start::Earliest),
                is_dry_run: false,
            }))
        };
        let cache = |name: &str| {
            Request::Cache(CacheRequest::Create { cache: name.to_owned(), settings: client::CacheSettings::default() })
        };
        let token = SecurityRequest::PutToken {
            id: TokenId::of_bytes([9; 8]),
            hash: [9; 32],
            user: UserName::parse("ann").expect("a name"),
            roles: Vec::new(),
            expires_ms: None,
        };
        let answers = self
            .ask(vec![
                Request::Queue(QueueRequest::Delete { queue: "fresh".to_owned() }),
                Request::TopicDelete { topic: "fresh".to_owned() },
                Request::Cache(CacheRequest::Delete { cache: "fresh".to_owned() }),
                topic("t"),
                topic("base"),
                topic("gone"),
                queue("q", ""),
                queue("dead", ""),
                queue("over", "base"),
                queue("gone-queue", ""),
                cache("c"),
                cache("gone"),
                reset("g"),
                reset("gone"),
                Request::Security(token),
            ])
            .await;
        for answer in answers {
            let known = [ErrorKind::AlreadyExists, ErrorKind::NotFound, ErrorKind::Invalid];
            if let Response::Error(error) = answer {
                assert!(known.contains(&error.kind), "{error:?}");
            }
        }
    }

    /// Returns the state that calls could change.
    async fn state(&self) -> Vec<String> {
        let list = || (String::new(), COUNT_MAX);
        let (after, count_max) = list();
        let opened = self.ask(vec![Request::Cache(CacheRequest::Open { cache: "c".to_owned() })]).await;
        let [Response::Cache(CacheResponse::Opened(opened))] = &opened[..] else { panic!("{opened:?}") };
        let names = self
            .ask(vec![Request::Queue(QueueRequest::List { prefix: String::new(), after: list().0, count_max })])
            .await;
        let mut requests = vec![
            Request::TopicList { after: after.clone(), count_max },
            Request::Group(GroupRequest::List { after: after.clone(), count_max }),
            Request::Group(GroupRequest::Fetch { group: "g".to_owned(), partitions: Vec::new() }),
            Request::Cache(CacheRequest::List { after, count_max }),
            Request::Cache(CacheRequest::Scan {
                cache: opened.cache,
                from: client::ScanCursor(0),
                count_max,
                with_values: true,
                prefix: bytes::Bytes::new(),
            }),
            Request::Security(SecurityRequest::ListUsers),
            Request::Security(SecurityRequest::ListAcls(AclFilter::default())),
            Request::Security(SecurityRequest::ListMembers),
            Request::Security(SecurityRequest::ListTokens),
            Request::Security(SecurityRequest::ListAccessKeys),
            Request::Security(SecurityRequest::ListQuotas),
        ];
        for queue in ["q", "dead", "over", "gone-queue"] {
            requests.push(Request::Queue(QueueRequest::Describe { queue: queue.to_owned() }));
            requests.push(Request::Queue(QueueRequest::ListRedrives { queue: queue.to_owned() }));
        }
        let mut state = vec![format!("{names:?}")];
        for answer in self.ask(requests).await {
            match answer {
                Response::Topics { topics, .. } => state.extend(topics.iter().map(|topic| format!("{topic:?}"))),
                other => state.push(format!("{other:?}")),
            }
        }
        state
    }

    async fn grant(&self, entries: &[String]) {
        let filter = AclFilter { principal: Some(Principal::parse("User:bob").expect("bob")), ..AclFilter::default() };
        self.admin.delete_acls(filter).await.expect("deleted");
        let given: Vec<_> = entries.iter().flat_map(|entry| acls("User:bob", entry, true)).collect();
        if !given.is_empty() {
            self.admin.create_acls(given).await.expect("added");
        }
    }

    /// Makes every call of a door as its row says. `send` sends a request, as `bob` or without a login; `restore`
    /// creates the resources that only this door knows.
    async fn walk<Q>(
        &self,
        door: &str,
        examples: &[Example<Q>],
        restore: impl AsyncFn(),
        send: impl AsyncFn(bool, &Q) -> Answer,
    ) {
        let table = tables().into_iter().find(|table| table.door.key() == door).expect("a table");
        let faults = Faults::default();
        faults.check_cover(&table, examples);
        self.walk_without_login(&table, examples, &faults, &send).await;
        for example in examples {
            let Some(row) = table.calls.iter().find(|row| row.name == example.call) else { continue };
            self.walk_one(row, example, &faults, &restore, &send).await;
        }
        let faults = faults.0.take();
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }

    /// Makes every call without a login. They are made together, as the broker delays the answers to wrong logins.
    async fn walk_without_login<Q>(
        &self,
        table: &Table,
        examples: &[Example<Q>],
        faults: &Faults,
        send: &impl AsyncFn(bool, &Q) -> Answer,
    ) {
        let before = self.state().await;
        let answers = join_all(examples.iter().map(|example| send(false, &example.request))).await;
        for (example, answer) in examples.iter().zip(answers) {
            let is_open = table.calls.iter().any(|row| row.name == example.call && row.is_open);
            match (answer, is_open) {
                (Answer::NoLogin(_), false) | (Answer::Passed(_), true) => {}
                (answer, _) => faults.add(format!("{} without a login {}", example.call, answer.words())),
            }
        }
        faults.check_same("a call without a login", &before, &self.state().await);
    }

    async fn walk_one<Q>(
        &self,
        row: &Call,
        example: &Example<Q>,
        faults: &Faults,
        restore: &impl AsyncFn(),
        send: &impl AsyncFn(bool, &Q) -> Answer,
    ) {
        let (required, filters) = example.needs(row);
        let entries: Vec<String> = required.iter().map(|need| example.entry_of(need)).collect();
        let what = |with: &[String]| format!("{} {:?} with {with:?}", row.name, example.holds);
        self.grant(&[]).await;
        let before = self.state().await;
        for left_out in 0..entries.len() {
            // Without any permission, and then with all but one.
            let others: Vec<String> =
                entries.iter().enumerate().filter(|(at, _)| *at != left_out).map(|(_, entry)| entry.clone()).collect();
            for given in [&[][..], &others[..]] {
                if given.is_empty() && left_out > 0 || is_covered(&entries[left_out], given) {
                    continue;
                }
                self.grant(given).await;
                let answer = send(true, &example.request).await;
                if !matches!(answer, Answer::Refused(_)) {
                    faults.add(format!("{} {}", what(given), answer.words()));
                }
            }
        }
        self.grant(&[]).await;
        faults.check_same(&row.name, &before, &self.state().await);
        for (at, need) in required.iter().enumerate() {
            let Some(or) = need.or else { continue };
            let mut given = entries.clone();
            given[at] = example.entry(or.operation, or.kind, or.of);
            self.passes(&given, example, faults, &what(&given), send).await;
            self.prepare().await;
            restore().await;
        }
        let shown = self.passes(&entries, example, faults, &what(&entries), send).await;
        self.prepare().await;
        restore().await;
        if filters.is_empty() {
            return;
        }
        if example.shows.is_empty() || shown.contains(example.shows) {
            faults.add(format!("{} shows {:?} to all: {shown}", row.name, example.shows));
        }
        let alternatives = filters.iter().filter_map(|need| need.or).map(|or| {
            let entry = example.entry(or.operation, or.kind, or.of);
            entries.iter().cloned().chain([entry]).collect::<Vec<_>>()
        });
        let whole = entries.iter().cloned().chain(filters.iter().map(|need| example.entry_of(need))).collect();
        for given in alternatives.chain([whole]) {
            let shown = self.passes(&given, example, faults, &what(&given), send).await;
            if !shown.contains(example.shows) {
                faults.add(format!("{} omits {}: {shown}", what(&given), example.shows));
            }
        }
    }

    /// Checks that a call passes with these entries, and returns its response.
    async fn passes<Q>(
        &self,
        entries: &[String],
        example: &Example<Q>,
        faults: &Faults,
        what: &str,
        send: &impl AsyncFn(bool, &Q) -> Answer,
    ) -> String {
        self.grant(entries).await;
        match send(true, &example.request).await {
            Answer::Passed(text) => text,
            answer => {
                faults.add(format!("{what} {}", answer.words()));
                String::new()
            }
        }
    }
}

/// Unexpected responses, which are reported together.
#[derive(Default)]
struct Faults(RefCell<Vec<String>>);

impl Faults {
    fn add(&self, fault: String) {
        self.0.borrow_mut().push(fault);
    }

    /// Checks that a refused call has changed nothing.
    fn check_same(&self, call: &str, before: &[String], after: &[String]) {
        for (before, after) in before.iter().zip(after).filter(|(before, after)| before != after) {
            let same = before.bytes().zip(after.bytes()).take_while(|(before, after)| before == after).count();
            let part = |text: &str| {
                let from = same.saturating_sub(WORDS_CHARS_MAX / 2);
                String::from_utf8_lossy(&text.as_bytes()[from..text.len().min(from + WORDS_CHARS_MAX)]).into_owned()
            };
            let of: String = before.chars().take(WORDS_CHARS_MAX / 4).collect();
            self.add(format!("{call} was refused and changed {of}\n  {}\n  {}", part(before), part(after)));
        }
    }

    /// Checks that each row has an example, and each condition of it one for which it holds.
    fn check_cover<Q>(&self, table: &Table, examples: &[Example<Q>]) {
        for row in &table.calls {
            let of_row: Vec<&Example<Q>> = examples.iter().filter(|example| example.call == row.name).collect();
            if of_row.is_empty() {
                self.add(format!("{} has no example in this test: write one", row.name));
            }
            let whens: BTreeSet<&str> =
                row.needs.iter().map(|need| need.when).filter(|when| !when.is_empty()).collect();
            let held: BTreeSet<&str> = of_row.iter().flat_map(|example| example.holds.iter().copied()).collect();
            if whens != held {
                self.add(format!("{} has the conditions {whens:?}, and its examples have {held:?}", row.name));
            }
        }
        for example in examples.iter().filter(|example| !table.calls.iter().any(|row| row.name == example.call)) {
            self.add(format!("{} is in this test and not in the table", example.call));
        }
    }
}

/// Returns `true` if an entry for a prefix gives what another one gives.
fn is_covered(entry: &str, others: &[String]) -> bool {
    others.iter().filter_map(|other| other.strip_suffix("...")).any(|prefix| entry.starts_with(prefix))
}

/// Returns the answer for an error of the broker itself.
fn of_error(error: &Error) -> Answer {
    let text = format!("{error:?}");
    match error.kind {
        ErrorKind::Denied if error.message.contains("requires a login") => Answer::NoLogin(text),
        ErrorKind::Denied => Answer::Refused(text),
        _ => Answer::Passed(text),
    }
}
