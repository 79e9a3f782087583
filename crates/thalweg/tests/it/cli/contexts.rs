//! Contexts of the command line, `thalweg login` and `thalweg logout`.

use std::fs::Permissions;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use super::terminal::Terminal;
use crate::support::certificates::{Authority, Folder};
use crate::support::command::{self, Done};
use crate::support::server::{Server, program};

/// Exit codes as documented by `thalweg --help`.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NO_BROKER: i32 = 3;
const NOT_FOUND: i32 = 4;

/// Folder with the configuration of one user, who works in an empty directory.
struct Home {
    folder: TempDir,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let work = folder.path().join("work");
        std::fs::create_dir(&work).expect("created");
        for file in ["ca.pem", "ci.token"] {
            std::fs::write(work.join(file), "").expect("written");
        }
        Self { folder }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = program();
        // The administrator's token of another user, which these commands must not find.
        command.env("XDG_RUNTIME_DIR", self.folder.path().join("run"));
        command.env("XDG_CONFIG_HOME", self.folder.path().join("config")).current_dir(self.work()).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        self.feed(args, "")
    }

    fn feed(&self, args: &[&str], input: &str) -> Done {
        command::run(&mut self.command(args), input.as_bytes())
    }

    fn with(&self, variables: &[(&str, &str)], args: &[&str]) -> Done {
        command::run(self.command(args).envs(variables.iter().copied()), b"")
    }

    fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn contexts(&self) -> PathBuf {
        self.folder.path().join("config/thalweg/contexts")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.contexts().join(format!("{name}.toml"))
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).expect("a context")
    }

    /// Stores the text of a context, as an editor does.
    fn write(&self, name: &str, text: &str, mode: u32) {
        std::fs::create_dir_all(self.contexts()).expect("created");
        std::fs::write(self.file(name), text).expect("written");
        std::fs::set_permissions(self.file(name), Permissions::from_mode(mode)).expect("set");
    }

    /// Returns the value of a key and its source.
    fn shown(&self, variables: &[(&str, &str)], args: &[&str], key: &str) -> (String, String) {
        let all = self.with(variables, &[args, &["--json", "config", "show", key]].concat()).json();
        let text = |field: &str| all[key][field].as_str().expect("text").to_owned();
        (text("value"), text("origin"))
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

/// Broker that requires logins and checks permissions. `bob` may read and write the topics that begin with `b`.
fn locked(set: &[&str]) -> Server {
    let server = Server::with(&[&["auth=required", "authorization=true", "users=bob:secret"][..], set].concat());
    command::on(&server, ["acl", "add", "User:bob", "create,read,write,delete", "topic", "b", "--prefix"]).ok();
    server
}

#[test]
fn contexts_are_added_listed_selected_shown_and_deleted() {
    let home = Home::new();
    assert!(home.run(&["context", "list"]).ok().contains("no contexts yet"));
    assert!(home.run(&["context", "show"]).failed(USAGE).contains("thalweg context add NAME"));
    home.run(&["context", "add", "prod", "--server", "broker.lan", "--ca-file", "ca.pem", "--user", "ann"]).ok();
    let ci = ["context", "add", "ci", "--server", "tls://ci.lan:7", "--token-file", "ci.token"];
    home.run(&[&ci[..], &["--set", "request_timeout_ms=5s", "--use"]].concat()).ok();
    assert_eq!((mode(&home.file("prod")), mode(&home.contexts())), (0o600, 0o700));
    assert_eq!(mode(&home.folder.path().join("config/thalweg")), 0o700);

    let listed = home.run(&["--json", "context", "list"]).json();
    let rows: Vec<_> =
        listed.as_array().expect("rows").iter().map(|row| (&row["context"], &row["is_current"])).collect();
    assert_eq!(rows, [(&json!("ci"), &json!(true)), (&json!("prod"), &json!(false))]);
    let listed = home.run(&["context", "ls"]).ok();
    let row = listed.lines().find(|line| line.contains("prod")).expect("a row");
    assert!(row.contains("broker.lan") && row.contains("ann") && !row.contains('*'), "{listed}");
    assert!(listed.lines().any(|line| line.trim_start().starts_with("* ") && line.contains("ci")), "{listed}");

    // Paths are absolute, so that commands may run in any directory.
    let absolute = |name: &str| home.work().canonicalize().expect("a path").join(name).display().to_string();
    assert_eq!(home.shown(&[], &[], "token_file"), (absolute("ci.token"), "context ci".to_owned()));
    assert_eq!(home.shown(&[], &["--context", "prod"], "ca_file"), (absolute("ca.pem"), "context prod".to_owned()));
    assert_eq!(home.shown(&[], &[], "request_timeout_ms"), ("5000".to_owned(), "context ci".to_owned()));
    let shown = home.run(&["context", "show"]).ok();
    assert!(
        shown.starts_with("# context ci, the current one") && shown.contains("request_timeout_ms = \"5s\""),
        "{shown}"
    );

    home.run(&["context", "use", "prod"]).ok();
    assert_eq!(home.run(&["--json", "context", "show"]).json()["keys"]["user"], "ann");
    home.run(&["context", "use", "--none"]).ok();
    assert_eq!(home.shown(&[], &[], "server"), ("127.0.0.1:7400".to_owned(), "default".to_owned()));

    home.run(&["context", "use", "prod"]).ok();
    home.run(&["context", "rm", "prod"]).ok();
    assert_eq!(home.shown(&[], &[], "server").1, "default", "the current context was deleted");
    assert!(
        home.run(&["context", "delete", "prod"]).failed(NOT_FOUND).contains("there is no context prod; there are ci")
    );
    let left: Vec<_> =
        std::fs::read_dir(home.contexts()).expect("a folder").map(|file| file.expect("a file")).collect();
    assert_eq!(left.len(), 1, "no drafts are left: {left:?}");
}

#[test]
fn a_context_that_does_not_exist_is_refused_with_those_that_do() {
    let home = Home::new();
    let missing = home.run(&["--context", "prod", "topic", "list"]).failed(USAGE);
    assert!(missing.contains("there is no context prod, and no other; thalweg context add prod"), "{missing}");
    for name in ["dev", "ci"] {
        home.run(&["context", "add", name, "--server", "localhost"]).ok();
    }
    for (variables, args) in [
        (&[][..], &["--context", "prod", "topic", "list"][..]),
        (&[("THALWEG_CONTEXT", "prod")], &["topic", "list"]),
        (&[], &["--context", "prod", "login"]),
    ] {
        let missing = home.with(variables, args).failed(USAGE);
        assert!(missing.contains("there is no context prod; there are ci, dev"), "{missing}");
    }
    assert!(home.run(&["context", "use", "prod"]).failed(NOT_FOUND).contains("there are ci, dev"));
    assert!(home.run(&["context", "show", "prod"]).failed(NOT_FOUND).contains("there are ci, dev"));
    for name in ["", ".ci", "../ci", "a/b", "a b", "-a", "ü", &"a".repeat(65)] {
        let refused = home.run(&["context", "add", "--server", "localhost", "--", name]).failed(USAGE);
        assert!(refused.contains("is not the name of a context"), "{name}: {refused}");
    }
    assert!(home.with(&[("THALWEG_CONTEXT", "../ci")], &["topic", "list"]).failed(USAGE).contains("$THALWEG_CONTEXT"));
    // An empty name stands for none.
    home.run(&["context", "use", "dev"]).ok();
    assert_eq!(home.shown(&[("THALWEG_CONTEXT", "")], &[], "server").1, "default");
    assert_eq!(home.shown(&[("THALWEG_CONTEXT", "ci")], &["--context", ""], "server").1, "default");
}

#[test]
fn a_context_is_added_once_and_without_secrets_on_the_command_line() {
    let home = Home::new();
    for (args, why) in [
        (&[][..], "--server is missing"),
        (&["--server", "a", "--set", "token=geheim"], "use --token-file, or thalweg login"),
        (&["--server", "a", "--set", "password=geheim"], "use --password-file, or thalweg login"),
        (&["--server", "a", "--set", "memory_max=1GiB"], "memory_max is a key of the broker"),
        (&["--server", "ftp://a"], "'ftp' is not quic, tcp, tls or unix"),
        (&["--server", "a", "--user", "ann", "--token-file", "f"], "cannot be used with"),
        (&["--server", "a", "--client-cert", "f"], "--client-key"),
        (&["--server", "a", "--password-file", "f"], "--user"),
        (&["--server", "a", "--user", ""], "--user is empty"),
        (&["--server", "a", "--ca-file", "none.pem"], "--ca-file: cannot read "),
        (&["--server", "a", "--token-file", "none"], "none: No such file"),
        (&["--server", "a", "--set", "client_cert=none", "--set", "client_key=ca.pem"], "--client-cert: cannot read "),
    ] {
        let refused = home.run(&[&["context", "add", "prod"][..], args].concat()).failed(USAGE);
        assert!(refused.contains(why) && !refused.contains("geheim"), "{args:?}: {refused}");
    }
    assert!(!home.contexts().exists(), "nothing is stored");
    home.run(&["context", "add", "prod", "--server", "a"]).ok();
    assert!(home.run(&["context", "add", "prod", "--server", "b"]).failed(FAILED).contains("--replace"));
    assert_eq!(home.shown(&[], &["--context", "prod"], "server").0, "a");
    home.run(&["context", "add", "prod", "--server", "b", "--replace"]).ok();
    assert_eq!(home.shown(&[], &["--context", "prod"], "server").0, "b");
}

/// An option takes precedence over a variable, that over the context, that over the file, and that over the default.
#[test]
fn a_context_is_between_the_variables_and_the_file() {
    let home = Home::new();
    let key = "connect_timeout_ms";
    let default = home.shown(&[], &[], key);
    assert_eq!(default, ("5000".to_owned(), "default".to_owned()));
    std::fs::write(home.work().join("thalweg.toml"), "[client]\nconnect_timeout_ms = 1\nuser = \"eve\"")
        .expect("written");
    assert_eq!(home.shown(&[], &[], key), ("1".to_owned(), "thalweg.toml".to_owned()));
    home.run(&["context", "add", "prod", "--server", "prod.lan", "--set", "connect_timeout_ms=2"]).ok();
    home.run(&["context", "add", "ci", "--server", "ci.lan", "--set", "connect_timeout_ms=22", "--use"]).ok();
    assert_eq!(home.shown(&[], &[], key), ("22".to_owned(), "context ci".to_owned()));
    let variables = [("THALWEG_CONTEXT", "prod")];
    assert_eq!(home.shown(&variables, &[], key), ("2".to_owned(), "context prod".to_owned()));
    assert_eq!(home.shown(&variables, &["--context", "ci"], key), ("22".to_owned(), "context ci".to_owned()));
    let variables = [("THALWEG_CONTEXT", "prod"), ("THALWEG_CONNECT_TIMEOUT_MS", "3")];
    assert_eq!(home.shown(&variables, &[], key), ("3".to_owned(), "$THALWEG_CONNECT_TIMEOUT_MS".to_owned()));
    let set = ["--set", "connect_timeout_ms=4"];
    assert_eq!(home.shown(&variables, &set, key), ("4".to_owned(), "--set connect_timeout_ms".to_owned()));
    // The user of the file is not one of the context's broker.
    assert_eq!(home.shown(&[], &[], "user"), (String::new(), "default".to_owned()));
    assert_eq!(home.shown(&[], &["--context", ""], "user"), ("eve".to_owned(), "thalweg.toml".to_owned()));
    assert!(home.run(&["config", "show"]).ok().starts_with("# context ci, chosen by thalweg context use\n"));
}

/// The secrets of a context are sent to its broker, and to no other.
#[test]
fn a_context_is_not_used_for_another_broker() {
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", "prod.lan:7400", "--token-file", "ci.token", "--use"]).ok();
    let shown = |variables: &[(&str, &str)], args: &[&str]| home.shown(variables, args, "token_file").1;
    assert_eq!(shown(&[], &[]), "context prod");
    assert_eq!(shown(&[], &["--server", "tls://PROD.lan"]), "context prod", "another transport to the same port");
    for args in [&["--server", "localhost"][..], &["--server", "prod.lan:7401"], &["--set", "server=localhost"]] {
        assert_eq!(shown(&[], args), "default", "{args:?}");
    }
    assert_eq!(shown(&[("THALWEG_SERVER", "localhost")], &[]), "default");
    let text = home.run(&["--server", "localhost", "config", "show"]).ok();
    assert!(text.starts_with("# context prod is not used: --server names another broker\n"), "{text}");
    // Two names at the same level are a mistake.
    let both = home.run(&["--context", "prod", "--server", "localhost", "topic", "list"]).failed(USAGE);
    assert!(both.contains("--context prod is for the broker at prod.lan:7400, and --server names localhost"), "{both}");
    let variables = [("THALWEG_SERVER", "localhost"), ("THALWEG_CONTEXT", "prod")];
    assert!(
        home.with(&variables, &["topic", "list"]).failed(USAGE).contains("$THALWEG_CONTEXT prod is for the broker")
    );
    assert!(
        home.with(&variables[..1], &["--context", "prod", "topic", "list"]).failed(USAGE).contains("$THALWEG_SERVER")
    );
    assert_eq!(shown(&variables[1..], &["--server", "localhost"]), "default", "an option wins over a variable");
    let login = home.run(&["--server", "localhost", "login", "--user", "ann"]).failed(USAGE);
    assert!(login.contains("context prod is for the broker at prod.lan:7400"), "{login}");
}

#[test]
fn a_damaged_context_is_named_and_its_secrets_are_not_shown() {
    let home = Home::new();
    home.run(&["context", "add", "good", "--server", "localhost"]).ok();
    home.run(&["context", "add", "bad", "--server", "localhost", "--use"]).ok();
    for (text, why) in [
        ("server = \"a\"\n[login]\ntoken = \"geheim\n", "bad.toml: line 3: "),
        ("server = \"a\"\n[login]\nuser = \"ann\"\n", "[login]: it has not one of token and password"),
        ("server = \"a\"\n[login]\nuser = \"ann\"\ntoken = \"geheim\"\n", "expires_ms is not a time"),
        ("server = \"a\"\n[login]\nuser = \"ann\"\nsecret = \"geheim\"\n", "there is no key secret"),
        ("server = \"a\"\ntoken = [\"geheim\"]\n", "token is a text, a number or a bool, not array"),
        ("user = \"ann\"\n", "server is missing"),
        ("server = \"a\"\nusr = \"ann\"\n", "did you mean user?"),
        ("server = \"a\"\nmemory_max = 1\n", "memory_max belongs at the top of the file"),
        ("", "server is missing"),
        ("\0", "bad.toml: line 1: "),
    ] {
        home.write("bad", text, 0o600);
        let refused = home.run(&["topic", "list"]).failed(USAGE);
        assert!(refused.contains(why) && !refused.contains("geheim"), "{text:?}: {refused}");
        assert!(home.run(&["context", "use", "bad"]).failed(USAGE).contains(why), "{text:?}");
        let listed = home.run(&["context", "list"]).ok();
        assert!(listed.contains("good") && listed.contains("cannot be read"), "{listed}");
        let rows = home.run(&["--json", "context", "list"]).json();
        assert!(rows[0]["error"].as_str().is_some_and(|error| error.contains(why)), "{rows}");
    }
    home.write("bad", &format!("server = \"a\" #{}", "x".repeat(64 << 10)), 0o600);
    assert!(home.run(&["topic", "list"]).failed(USAGE).contains("is larger than 65536 bytes"));
    // Commands that connect to no other broker do not need it.
    assert!(!home.run(&["inspect", "/nowhere"]).failed(NOT_FOUND).contains("bad.toml"));
    home.run(&["context", "delete", "bad"]).ok();
    // The name of the current context can be damaged, too.
    std::fs::write(home.contexts().with_file_name("current-context"), "a/b").expect("written");
    assert!(home.run(&["topic", "list"]).failed(USAGE).contains("thalweg context use NAME"));
    home.run(&["context", "use", "good"]).ok();
    assert_eq!(home.shown(&[], &[], "server").1, "context good");
}

#[test]
fn a_context_with_a_secret_that_others_may_read_is_refused() {
    let home = Home::new();
    home.write("prod", "server = \"localhost\"\ntoken = \"geheim\"\n", 0o644);
    let refused = home.run(&["--context", "prod", "topic", "list"]).failed(USAGE);
    assert!(refused.contains("(mode 644): chmod 600 /") && !refused.contains("geheim"), "{refused}");
    home.write("prod", "server = \"localhost\"\ntoken = \"geheim\"\n", 0o600);
    for args in
        [&["context", "show", "prod"][..], &["--context", "prod", "config", "show"], &["--json", "context", "list"]]
    {
        let shown = home.run(args).ok();
        assert!(shown.contains("(hidden)") && !shown.contains("geheim"), "{shown}");
    }
    home.write("open", "server = \"localhost\"\n", 0o644);
    home.run(&["--context", "open", "config", "show"]).ok();
}

#[test]
fn after_a_login_commands_need_no_option_and_after_the_logout_they_are_refused() {
    let server = locked(&[]);
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", &server.url("tcp"), "--use"]).ok();
    let denied = home.run(&["topic", "create", "b1"]).failed(FAILED);
    assert!(denied.contains("requires a login") && denied.contains("thalweg login"), "{denied}");
    assert!(home.run(&["logout"]).failed(FAILED).contains("is not logged in"));
    assert!(home.run(&["login"]).failed(USAGE).contains("--user"));
    assert!(home.run(&["login", "--user", "bob"]).failed(USAGE).contains("--password-stdin"));
    for (user, password) in [("bob", "geheim"), ("nobody", "secret")] {
        let refused = home.feed(&["login", "--user", user, "--password-stdin"], password).failed(FAILED);
        assert!(refused.contains("denied") && !refused.contains("token"), "{refused}");
        assert!(!refused.contains(password) && !home.text("prod").contains("login"), "nothing is stored");
    }

    let login = home.feed(&["login", "--user", "bob", "--password-stdin"], "secret\n").ok();
    assert!(login.starts_with("context prod logs in as bob until 20"), "{login}");
    home.run(&["topic", "create", "b1"]).ok();
    home.run(&["publish", "b1", "hello"]).ok();
    assert!(home.run(&["topic", "create", "c1"]).failed(FAILED).contains("may not create"), "no more than bob may");
    let text = home.text("prod");
    let token = text.lines().find_map(|line| line.strip_prefix("token = \"")?.strip_suffix('"')).expect("a token");
    assert!(token.starts_with("tw_") && !text.contains("secret"), "{text}");
    assert_eq!(mode(&home.file("prod")), 0o600);
    for args in [
        &["context", "show"][..],
        &["context", "list"],
        &["config", "show"],
        &["token", "list"],
        &["--json", "context", "show"],
    ] {
        let shown = home.run(args).ok();
        assert!(!shown.contains(&token[20..]), "{args:?} shows the token");
    }
    assert!(!server.log().contains(&token[20..]));
    // A second login replaces the first, whose token ends. It asks for the user of the first.
    home.feed(&["login", "--password-stdin", "--expires", "12h"], "secret").ok();
    let listed = home.run(&["--json", "token", "list"]).json();
    assert_eq!(listed.as_array().expect("rows").len(), 1, "{listed}");
    assert!(!home.text("prod").contains(token));
    let refused = home.with(&[("THALWEG_TOKEN", token)], &["topic", "list"]).failed(FAILED);
    assert!(refused.contains("token is unknown") && !refused.contains(&token[20..]), "{refused}");

    // A token that is still valid is not lost by mistake.
    assert!(home.run(&["context", "delete", "prod"]).failed(FAILED).contains("thalweg logout --context prod"));
    let replace = ["context", "add", "prod", "--server", "localhost", "--replace"];
    assert!(home.run(&replace).failed(FAILED).contains("thalweg logout --context prod"));
    let text = home.text("prod");
    let token = text.lines().find_map(|line| line.strip_prefix("token = \"")?.strip_suffix('"')).expect("a token");
    assert_eq!(home.run(&["logout"]).ok(), "user bob is logged out of context prod\n");
    assert!(home.run(&["topic", "list"]).failed(FAILED).contains("requires a login"));
    assert!(home.with(&[("THALWEG_TOKEN", token)], &["topic", "list"]).failed(FAILED).contains("token is unknown"));
    assert!(!home.text("prod").contains("tw_"));
    assert_eq!(command::on(&server, ["--json", "token", "list"]).json(), json!([]));
    home.run(&["context", "delete", "prod"]).ok();
}

/// Options and variables about users, passwords and tokens replace a stored login.
#[test]
fn another_user_of_an_option_or_a_variable_wins_over_a_stored_login() {
    let server = locked(&["super_users=root"]);
    command::feed(&server, ["user", "add", "root"], "r00t").ok();
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", &server.url("tcp"), "--user", "bob", "--use"]).ok();
    home.feed(&["login", "--password-stdin"], "secret").ok();
    let create =
        |variables: &[(&str, &str)], args: &[&str]| home.with(variables, &[&["topic", "create"][..], args].concat());
    create(&[("THALWEG_USER", "root"), ("THALWEG_PASSWORD", "r00t")], &["c1"]).ok();
    create(&[("THALWEG_PASSWORD", "r00t")], &["c2", "--set", "user=root"]).ok();
    assert!(create(&[], &["c3", "--set", "user=root"]).failed(USAGE).contains("password of user root is missing"));
    // A password alone is one of the context's user.
    create(&[("THALWEG_PASSWORD", "secret")], &["b1"]).ok();
    assert!(create(&[("THALWEG_PASSWORD", "r00t")], &["b2"]).failed(FAILED).contains("denied"));
    let other = command::on(&server, ["token", "create", "root"]).ok();
    create(&[("THALWEG_TOKEN", other.trim())], &["c4"]).ok();
    std::fs::write(home.work().join("token"), other).expect("written");
    create(&[], &["c5", "--token-file", "token"]).ok();
    assert!(create(&[], &["c6"]).failed(FAILED).contains("User:bob may not create"));
}

/// The token of a login ends with the password, with the user and with its time, and the error says what to do.
#[test]
fn a_login_that_has_ended_is_renewed() {
    let server = locked(&[]);
    command::feed(&server, ["user", "add", "ann"], "pencil").ok();
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", &server.url("tcp"), "--user", "ann", "--use"]).ok();
    home.feed(&["login", "--password-stdin"], "pencil").ok();
    home.run(&["topic", "list"]).ok();
    command::feed(&server, ["user", "add", "ann"], "crayon").ok();
    let ended = home.run(&["topic", "list"]).failed(FAILED);
    assert!(ended.contains("log in again: thalweg login --context prod"), "{ended}");
    assert!(home.feed(&["login", "--password-stdin"], "pencil").failed(FAILED).contains("denied"));
    home.feed(&["login", "--password-stdin"], "crayon").ok();
    home.run(&["topic", "list"]).ok();
    command::on(&server, ["user", "delete", "ann"]).ok();
    assert!(home.run(&["topic", "list"]).failed(FAILED).contains("log in again"));
    let text = home.text("prod");
    let expiry = text.lines().find(|line| line.starts_with("expires_ms")).expect("a line");
    home.write("prod", &text.replace(expiry, "expires_ms = 1"), 0o600);
    assert!(home.run(&["context", "list"]).ok().contains("token expired 1970-01-01"));
    // A token that the broker has deleted already needs no deletion.
    home.run(&["logout"]).ok();
    for expires in ["never", "0s", "soon", "91d"] {
        let args = ["login", "--user", "bob", "--password-stdin", "--expires", expires];
        home.feed(&args, "secret").failed(USAGE);
    }
}

/// A broker that creates no token is no reason to store the password, unless that is requested.
#[test]
fn a_password_is_stored_only_on_request() {
    let server = locked(&[]);
    let home = Home::new();
    let url = server.url("tcp");
    for number in 0..16 {
        let name = format!("c{number}");
        home.run(&["context", "add", &name, "--server", &url, "--user", "bob"]).ok();
        home.feed(&["--context", &name, "login", "--password-stdin"], "secret").ok();
    }
    home.run(&["context", "add", "prod", "--server", &url, "--user", "bob", "--use"]).ok();
    let full = home.feed(&["login", "--password-stdin"], "secret").failed(FAILED);
    assert!(full.contains("the password of bob is right, but the broker created no token"), "{full}");
    assert!(full.contains("16 tokens of their own") && full.contains("--store-password"), "{full}");
    assert!(!home.text("prod").contains("[login]"), "nothing is stored");
    assert!(home.feed(&["login", "--password-stdin", "--store-password"], "wrong").failed(FAILED).contains("denied"));
    let stored = home.feed(&["login", "--password-stdin", "--store-password"], "secret").ok();
    assert!(stored.contains("with the password in /"), "{stored}");
    assert_eq!(mode(&home.file("prod")), 0o600);
    home.run(&["topic", "create", "b1"]).ok();
    for args in [&["context", "show"][..], &["config", "show"], &["context", "list"]] {
        assert!(!home.run(args).ok().contains("secret\""), "{args:?}");
    }
    // A user sees and deletes tokens of their own, also those of other contexts.
    let listed = home.run(&["--json", "token", "list"]).json();
    let ids: Vec<_> = listed.as_array().expect("rows").iter().map(|row| row["id"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), 16);
    home.run(&["token", "delete", ids[0]]).ok();
    home.run(&["logout"]).ok();
    assert!(!home.text("prod").contains("secret"));
    home.feed(&["login", "--password-stdin"], "secret").ok();
    let others = command::on(&server, ["token", "create", "bob"]).ok();
    let id = &others[3..19];
    assert!(home.run(&["token", "delete", id]).failed(FAILED).contains("may not alter the cluster"));
}

/// Returns an address of this machine that is not loopback, if it has one. No packet is sent.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Reserved for documentation (RFC 5737).
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

/// A token is sent to another machine only over TLS, so a login without it stores none. Runs only on a machine with a
/// network.
#[test]
fn a_login_without_tls_stores_no_token_that_could_not_be_sent() {
    let Some(address) = outer_address() else { return };
    let server = Server::with(&["auth=required", "users=bob:secret", "native=0.0.0.0:0", "insecure=true"]);
    let home = Home::new();
    let port = server.address.port();
    home.run(&["context", "add", "prod", "--server", &format!("tcp://{address}:{port}"), "--use"]).ok();
    let refused = home.feed(&["login", "--user", "bob", "--password-stdin"], "secret").failed(FAILED);
    assert!(refused.contains("only over TLS") && refused.contains("--store-password"), "{refused}");
    assert!(!home.text("prod").contains("[login]"), "nothing is stored");
    let url = format!("tcp://127.0.0.1:{port}");
    let tokens = home
        .with(&[("THALWEG_PASSWORD", "secret")], &["--json", "--server", &url, "--set", "user=bob", "token", "list"]);
    assert_eq!(tokens.json(), json!([]), "no token is left at the broker");
    home.feed(&["login", "--user", "bob", "--password-stdin", "--store-password"], "secret").ok();
    home.run(&["topic", "create", "b1"]).ok();
}

#[test]
fn a_logout_without_a_broker_is_forced() {
    let mut server = locked(&[]);
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", &server.url("tcp"), "--user", "bob", "--use"]).ok();
    home.feed(&["login", "--password-stdin"], "secret").ok();
    server.crash();
    let refused = home.run(&["logout"]).failed(NO_BROKER);
    assert!(refused.contains("the token is still valid at the broker") && refused.contains("--force"), "{refused}");
    assert!(home.text("prod").contains("[login]"));
    let done = home.run(&["logout", "--force"]);
    assert!(done.err.contains("until it expires"), "{done:?}");
    assert!(!home.text("prod").contains("[login]"));
}

/// On a terminal, user and password are asked for, and the password is not shown.
#[test]
fn a_login_asks_on_a_terminal() {
    let server = locked(&[]);
    let home = Home::new();
    home.run(&["context", "add", "prod", "--server", &server.url("tcp"), "--use"]).ok();
    let mut terminal = Terminal::open(&mut home.command(&["login"]));
    terminal.shows("user: ");
    terminal.types("bob\n");
    terminal.shows("password of bob: ");
    terminal.types("secret\r");
    let shown = terminal.ends(0);
    assert!(shown.contains("context prod logs in as bob until") && !shown.contains("secret"), "{shown}");
    home.run(&["topic", "create", "b1"]).ok();
    let mut terminal = Terminal::open(&mut home.command(&["login"]));
    terminal.shows("password of bob: ");
    terminal.types("\u{1b}");
    terminal.ends(FAILED);
    home.run(&["topic", "list"]).ok();
}

/// A context has all that a broker with TLS requires: the authority, and the certificate of the client.
#[test]
fn a_context_has_a_client_certificate() {
    let ca = Authority::new();
    let folder = Folder::new();
    folder.put("broker", &ca.issue("broker", &["localhost"], 2100));
    folder.put("client", &ca.issue("bob", &[], 2100));
    folder.write("ca.pem", &ca.pem);
    let path = |name: &str| folder.path(name).display().to_string();
    let set = [
        format!("tls_cert={}", path("broker.crt")),
        format!("tls_key={}", path("broker.key")),
        format!("tls_client_ca={}", path("ca.pem")),
        "tls_client_auth=required".to_owned(),
    ];
    let server = locked(&set.iter().map(String::as_str).collect::<Vec<_>>());
    let home = Home::new();
    for scheme in ["tls", "quic"] {
        let url = format!("{scheme}://localhost:{}", server.address.port());
        let add = ["context", "add", scheme, "--server", &url, "--ca-file", &path("ca.pem")];
        home.run(&[&add[..], &["--client-cert", &path("client.crt"), "--client-key", &path("client.key")]].concat())
            .ok();
        let topic = format!("b-{scheme}");
        home.run(&["--context", scheme, "topic", "create", &topic]).ok();
        home.run(&["--context", scheme, "publish", &topic, "hello"]).ok();
        let listed = home.run(&["context", "list"]).ok();
        assert!(listed.contains("certificate"), "{listed}");
        // Of another certificate on the command line, the context's key is not the key.
        let other = format!("client_cert={}", path("broker.crt"));
        let refused = home.run(&["--context", scheme, "--set", &other, "topic", "list"]).failed(USAGE);
        assert!(refused.contains("belong together"), "{refused}");
        // A login over a connection with a certificate is one of the password's user.
        home.feed(&["--context", scheme, "login", "--user", "bob", "--password-stdin"], "secret").ok();
        home.run(&["--context", scheme, "topic", "list"]).ok();
        home.run(&["--context", scheme, "logout"]).ok();
        home.run(&["--context", scheme, "topic", "delete", &topic]).ok();
    }
    let add = ["context", "add", "without", "--server"];
    let url = format!("tls://localhost:{}", server.address.port());
    home.run(&[&add[..], &[&url, "--ca-file", &path("ca.pem")]].concat()).ok();
    home.run(&["--context", "without", "topic", "list"]).failed(NO_BROKER);
}

/// Several addresses may be named wherever one may: a context, an option, a variable.
#[test]
fn a_list_of_nodes_is_an_address() {
    let server = Server::start();
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let nodes = format!("tcp://{free},{}", server.address);
    let home = Home::new();
    home.run(&["--server", &nodes, "topic", "create", "t"]).ok();
    assert!(home.with(&[("THALWEG_SERVER", &nodes)], &["topic", "list"]).ok().contains('t'));
    home.run(&["context", "add", "prod", "--server", &nodes, "--use"]).ok();
    assert!(home.run(&["topic", "list"]).ok().contains('t'));
    // One node of the context is still the context's broker; a list with another broker is not.
    let used = |server: &str| home.run(&["--server", server, "config", "show"]).ok();
    assert!(!used(&server.url("tcp")).contains("is not used"));
    assert!(used(&format!("{nodes},other.example")).contains("context prod is not used"));

    let refused = home.run(&["--server", "a,unix:/run/b.sock", "topic", "list"]).failed(USAGE);
    assert!(refused.contains("a Unix socket leads to one node, so name it alone"), "{refused}");
    let closed = format!("tcp://{free},{free}");
    let refused = home.run(&["--server", &closed, "--set", "connect_timeout_ms=200", "topic", "list"]);
    assert!(refused.failed(NO_BROKER).contains("cannot reach a broker at tcp://"));
}
