//! The commands with which operators look after a cluster.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::support::cluster::Cluster;
use crate::support::command::{on, thalweg};
use crate::support::ports::free_ports;
use crate::support::server::{Server, until};

/// Returns the state of the cluster, as the command shows it.
fn status(cluster: &Cluster) -> Value {
    cluster.on(cluster.running()[0], &["cluster", "status", "--json"]).json()
}

/// Returns the numbers of the nodes, in their order.
fn nodes(status: &Value) -> Vec<u64> {
    status["nodes"].as_array().expect("nodes").iter().map(|of| of["node"].as_u64().expect("a number")).collect()
}

#[tokio::test]
async fn a_cluster_is_shown_with_its_nodes_and_changes_its_leader_on_demand() {
    let cluster = Cluster::with(3, &["audit=on"]).await;
    let leader = cluster.leader().await;
    let [one, other] = cluster.followers().await[..] else { panic!("two followers") };
    let shown = status(&cluster);
    assert_eq!((&shown["leader"], nodes(&shown)), (&json!(leader), vec![1, 2, 3]));
    for of in shown["nodes"].as_array().expect("nodes") {
        assert_eq!(
            (&of["is_voter"], &of["is_alive"], &of["program"]),
            (&json!(true), &json!(true), &json!(env!("CARGO_PKG_VERSION")))
        );
        assert!(of["doors"]["kafka"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")), "{of}");
    }
    let text = cluster.on(one, &["cluster", "status"]).ok();
    assert!(text.contains(&format!("node {leader} leads in term ")), "{text}");
    assert!(text.contains("3 of 3 voters answer: 1 node may fail"), "{text}");
    let (code, over_http) = cluster.http(one, "GET", "/v1/cluster", &Value::Null).await;
    assert_eq!((code, &over_http["leader"], nodes(&over_http)), (200, &json!(leader), vec![1, 2, 3]));

    let said = cluster.on(one, &["cluster", "transfer", &other.to_string()]).ok();
    assert!(said.starts_with(&format!("node {other} leads in term ")), "{said}");
    assert_eq!(cluster.leader().await, other);
    let said = cluster.on(one, &["cluster", "transfer", &other.to_string()]).ok();
    assert_eq!(said, format!("node {other} leads already\n"));
    let wrong = cluster.on(one, &["cluster", "transfer", "9"]).failed(4);
    assert!(wrong.contains("the cluster has no node 9: its nodes are 1, 2, 3"), "{wrong}");

    let said = cluster.on(one, &["cluster", "drain", &one.to_string()]).ok();
    assert_eq!(said, format!("node {one} does not lead, node {other} does: nothing was to be done\n"));
    let drained = cluster.on(one, &["--json", "cluster", "drain", &other.to_string()]).json();
    assert_eq!((&drained["node"], &drained["is_changed"]), (&json!(other), &json!(true)));
    assert_eq!(drained["leader"], cluster.leader().await);

    let (code, _) = cluster.http(one, "POST", "/v1/cluster/leader", &json!({ "node": leader })).await;
    assert_eq!(code, 202);
    until("the transfer over HTTP", async || cluster.leader().await == leader).await;
    let audit = ["--json", "audit", "--from", "earliest", "--until-end", "--action", "transfer leadership"];
    let records = cluster.on(one, &audit).ok();
    let acts = |name: &str| records.lines().filter(|line| line.contains(name)).count();
    assert_eq!((acts(&format!("\"node {leader}\"")), acts("\"node 9\"")), (1, 1), "{records}");
    assert!(acts(&format!("\"node {other}\"")) >= 1, "{records}");
}

#[tokio::test]
async fn nodes_leave_and_new_ones_join_with_tokens_that_work_once() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let [gone, lost] = cluster.followers().await[..] else { panic!("two followers") };

    // A running cluster issues tokens, over each of its doors.
    let token = cluster.on(gone, &["cluster", "token"]).ok();
    let fourth = cluster.join(token.trim()).expect("joined");
    assert_eq!(fourth, 4);
    let error = cluster.join(token.trim()).expect_err("it was used");
    assert!(error.contains("token"), "{error}");
    cluster.restart(fourth);
    cluster.until_voters(4).await;
    let (code, issued) = cluster.http(gone, "POST", "/v1/cluster/tokens", &json!({ "minutes": 1 })).await;
    assert_eq!(code, 201);
    assert!(issued["token"].as_str().is_some_and(|token| token.starts_with("thalweg-join-")));
    let (code, wrong) = cluster.http(gone, "POST", "/v1/cluster/tokens", &json!({ "minutes": 0 })).await;
    assert_eq!(code, 400, "{wrong}");

    let said = cluster.on(leader, &["cluster", "leave", &gone.to_string()]).ok();
    assert!(said.contains("has left the cluster") && said.contains("Delete its data directory"), "{said}");
    // It learns that, ends by itself, and does not start again.
    cluster.until_ended(gone).await;
    assert!(cluster.log(gone).contains("was removed from the cluster"), "{}", cluster.log(gone));
    let again = cluster.refused(gone);
    assert!(again.contains("node 2 was removed") || again.contains("node 3 was removed"), "{again}");
    cluster.forget(gone);
    cluster.until_voters(3).await;
    assert!(!nodes(&status(&cluster)).contains(&gone));

    let said = cluster.on(leader, &["cluster", "replace", &lost.to_string()]).failed(1);
    assert!(said.contains(&format!("node {lost} answers, so it is not lost")), "{said}");
    cluster.kill(lost);
    until("the silence", async || {
        let shown = cluster.on(leader, &["cluster", "status"]).ok();
        shown.contains("silent for ") && shown.contains("2 of 3 voters answer: if one more fails")
    })
    .await;
    // Without node 4, the leader would need the lost one.
    let refused = cluster.on(leader, &["cluster", "leave", &fourth.to_string()]).failed(2);
    assert!(refused.contains("no majority"), "{refused}");
    let replaced = cluster.on(leader, &["--json", "cluster", "replace", &lost.to_string()]).json();
    assert_eq!(replaced["removed"], lost);
    // It was off when it was removed, and learns it when it asks the others.
    cluster.restart(lost);
    cluster.until_ended(lost).await;
    cluster.forget(lost);
    let fifth = cluster.join(replaced["token"].as_str().expect("a token")).expect("joined");
    assert_eq!(fifth, 5, "no number is given again");
    cluster.restart(fifth);
    cluster.until_voters(3).await;

    // The leader itself leaves.
    cluster.on(fourth, &["cluster", "leave", &leader.to_string()]).ok();
    cluster.until_ended(leader).await;
    cluster.forget(leader);
    assert_ne!(cluster.leader().await, leader);
    cluster.until_voters(2).await;
    assert_eq!(nodes(&status(&cluster)), [fourth, fifth]);
    let (code, _) = cluster.http(fourth, "DELETE", "/v1/cluster/nodes/1", &Value::Null).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn the_user_of_any_node_administers_the_cluster_whichever_leads() {
    let cluster = Cluster::with(3, &["auth=required", "authorization=true", "users=root:r00t"]).await;
    for leader in [1, 2, 3] {
        // A node fetches the token of the others' leader a moment after its election.
        until("the transfer", async || {
            cluster.on(leader, &["cluster", "transfer", &leader.to_string()]).code == Some(0)
        })
        .await;
        for node in [1, 2, 3] {
            let mut status = None;
            until("the token of the new leader", async || {
                status = Some(cluster.on(node, &["--json", "cluster", "status"]));
                status.as_ref().is_some_and(|done| done.code == Some(0))
            })
            .await;
            assert_eq!(status.expect("a status").json()["leader"], leader, "at node {node}");
        }
    }
    // Without the file, nobody is an administrator.
    let stranger = cluster.without_files(1, &["cluster", "status"]).failed(1);
    assert!(stranger.contains("log in") || stranger.contains("login"), "{stranger}");
}

#[tokio::test]
async fn a_directory_is_founded_once_and_a_broker_alone_is_no_node() {
    let mut cluster = Cluster::start(1).await;
    let again = cluster.found().failed(1);
    assert!(again.contains("is node 1 of the cluster"), "{again}");
    let alone = cluster.on(1, &["cluster", "leave", "1"]).failed(2);
    assert!(alone.contains("is the only one of the cluster"), "{alone}");
    cluster.stop(1).await;
    let again = cluster.found().failed(1);
    assert!(again.contains("is node 1 of the cluster"), "{again}");

    let server = Server::start();
    let error = on(&server, ["cluster", "status"]).failed(1);
    assert!(error.contains("this broker is not a node of a cluster; see thalweg cluster init"), "{error}");
}

#[test]
fn the_next_command_of_a_new_node_names_its_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("node.toml").display().to_string();
    let data = folder.path().join("data").display().to_string();
    std::fs::write(&file, format!("data = \"{data}\"\n")).expect("written");
    let said = thalweg(["cluster", "init", "--config", &file, "--advertise", "127.0.0.1:7402"]).ok();
    assert!(said.contains(&format!("Start it: thalweg serve --config {file} --data {data}\n")), "{said}");
}

/// Containers run the same command at each start, and have no shell to pass a token on.
#[tokio::test]
async fn a_node_asks_for_its_token_and_a_repeated_start_changes_nothing() {
    let mut cluster = Cluster::with(1, &[]).await;
    let node = cluster.join_by_asking();
    assert_eq!(node, 2);
    cluster.restart(node);
    cluster.until_voters(2).await;
    for (node, words) in [(1, vec!["init"]), (2, vec!["join", "--ask"])] {
        let data = cluster.data(node).display().to_string();
        let again = [&["cluster"], &words[..], &["--if-needed", "--data", &data]].concat();
        let said = cluster.without_files(node, &again).ok();
        assert!(said.contains(&format!("is node {node} of the cluster ")) && said.contains(" already"), "{said}");
        let twice: Vec<&str> = again.into_iter().filter(|word| *word != "--if-needed").collect();
        assert_ne!(cluster.without_files(node, &twice).code, Some(0), "{twice:?}");
    }
    assert_eq!(nodes(&status(&cluster)), [1, 2]);
}

/// All containers of a set run one command. Only the founder may found, and only while no other node can be asked.
#[tokio::test]
async fn the_founder_founds_only_if_no_node_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let join = |data: &str, advertise: &str, server: &str| {
        let data = folder.path().join(data).display().to_string();
        let words = ["cluster", "join", "--if-needed", "--ask", "--founder", "127.0.0.1:7402", "--data", &data];
        thalweg([&words[..], &["--advertise", advertise, "--server", server]].concat())
    };
    let nobody = free_ports(1);
    let silent = format!("tcp://127.0.0.1:{nobody}");
    let message = join("other", "127.0.0.1:7412", &silent).failed(3);
    assert!(message.contains("the cluster has no leader"), "another node does not found: {message}");
    let said = join("founder", "127.0.0.1:7402", &silent).ok();
    assert!(said.contains("is node 1 of the cluster"), "{said}");
    let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("tcp://{}", busy.local_addr().expect("an address"));
    drop(std::thread::spawn(move || busy.incoming().take(3).for_each(drop)));
    let done = join("second", "127.0.0.1:7402", &server);
    assert_ne!(done.code, Some(0), "a node that listens and does not answer is no reason to found: {done:?}");
    assert!(!folder.path().join("second").exists());
}
