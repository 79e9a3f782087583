//! The table of doors: how each one is configured and opened. To add a door, add its folder to the crate `doors`, a row
//! to [`broker::Door`], and a row here. Its keys are in `config/keys.rs`.

use std::sync::Arc;
use std::time::Duration;

use broker::Door;
use doors::sqs::is_region;
use doors::sqs::sigv4::{Auth, Credentials};
use engine::security::Account;
use net::quic::Windows;
use net::tls::Tls;

use crate::config::keys::Scope;
use crate::config::{Config, ConfigError, Origin};

type Result<T> = std::result::Result<T, ConfigError>;
type Closed = Result<Box<dyn doors::Door>>;

/// QUIC windows of the broker: the bytes that publishers may have in flight to it on one connection and on one stream,
/// and the bytes that may be in flight to one connection of subscribers. They stay within the buffer of a UDP socket (4
/// MiB on stock Linux): with a short round trip, larger windows are not faster, but packets are lost and sent again.
/// With a round trip of 100 ms they allow 40 MB/s per connection.
const PUBLISH_CONNECTION_WINDOW: u64 = 4 << 20;
const PUBLISH_STREAM_WINDOW: u64 = 2 << 20;
const EVENT_SEND_WINDOW: u64 = 4 << 20;

/// Row of a door.
pub(crate) struct Row {
    door: Door,
    /// Reads and checks the keys of the door. The door opens with the result.
    pub settings: fn(&Config, Common) -> Closed,
}

/// Rows in the order of [`Door::ALL`].
pub(crate) const TABLE: [Row; Door::ALL.len()] = [
    Row { door: Door::Native, settings: native },
    Row { door: Door::Http, settings: http },
    Row { door: Door::Kafka, settings: kafka },
    Row { door: Door::Pubsub, settings: pubsub },
    Row { door: Door::Redis, settings: redis },
    Row { door: Door::Sqs, settings: sqs },
];

const _: () = {
    let mut at = 0;
    while at < TABLE.len() {
        assert!(TABLE[at].door as usize == at, "the rows are in the order of Door::ALL");
        at += 1;
    }
};

/// Returns the row of a door.
pub(crate) fn row(door: Door) -> &'static Row {
    &TABLE[door as usize]
}

/// Settings that every door gets.
pub(crate) struct Common {
    tls: Option<Arc<Tls>>,
    hello_timeout: Duration,
    allow_plain: bool,
    is_login_required: bool,
}

impl Common {
    pub(crate) fn new(config: &Config, tls: Option<Arc<Tls>>) -> Self {
        Self {
            tls,
            hello_timeout: config.millis("hello_timeout_ms"),
            allow_plain: config.bool("insecure"),
            is_login_required: config.is_login_required(),
        }
    }

    /// Returns settings with which the keys of a door are checked, and no door is opened.
    pub(crate) fn to_check(config: &Config) -> Self {
        Self::new(config, None)
    }
}

fn native(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, is_login_required, .. } = common;
    let windows = Windows {
        connection_receive: PUBLISH_CONNECTION_WINDOW,
        stream_receive: PUBLISH_STREAM_WINDOW,
        send: EVENT_SEND_WINDOW,
        // One stream more than workers, for all other requests.
        bidirectional_streams: config.size("pub_workers_per_conn") as u32 + 1,
        unidirectional_streams: 0,
    };
    Ok(Box::new(doors::native::Settings { hello_timeout, allow_plain, is_login_required, windows }))
}

fn http(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, is_login_required, tls } = common;
    let is_origin = |origin: &&str| {
        let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        *origin == "*" || site.is_some_and(|site| !site.is_empty() && !site.contains(['/', ' ', '*']))
    };
    if let Some(wrong) = config.list("http_cors_origins").find(|origin| !is_origin(origin)) {
        return Err(ConfigError(format!(
            "http_cors_origins: '{wrong}' is not an origin; write https://host or http://host:port without a path, \
             or *"
        )));
    }
    Ok(Box::new(doors::http::Settings {
        header_timeout: hello_timeout,
        body_bytes_max: config.size("http_body_max_bytes"),
        allow_plain,
        is_login_required,
        tls,
        hosts: config.http_hosts()?,
        cors_origins: config.list("http_cors_origins").map(str::to_owned).collect(),
        trusted_proxies: config.trusted_proxies()?,
        access_log: config.bool("http_access_log"),
        has_console: config.bool("http_console"),
        shown_settings: shown_settings(config),
        pubsub_project: config.text("pubsub_project").to_owned(),
    }))
}

/// Returns the settings as the console shows them, without secrets.
fn shown_settings(config: &Config) -> Vec<doors::http::ShownSetting> {
    let of_broker = config.entries().filter(|(key, ..)| key.scope == Scope::Broker);
    let shown = of_broker.map(|(key, value, origin)| doors::http::ShownSetting {
        key: key.name.to_owned(),
        value: value.to_owned(),
        origin: origin.to_string(),
        help: key.help.to_owned(),
        is_set: !matches!(origin, Origin::Default | Origin::Profile(_) | Origin::Size(_)),
    });
    shown.collect()
}

fn kafka(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, is_login_required, .. } = common;
    let advertised = match config.text("kafka_advertised") {
        "" => None,
        written => {
            let parts = written.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
            match parts {
                Some((host, port)) if !host.is_empty() => Some((host.trim_matches(['[', ']']).to_owned(), port)),
                _ => {
                    let message = format!("kafka_advertised: '{written}' is not an address; write host:port");
                    return Err(ConfigError(message));
                }
            }
        }
    };
    Ok(Box::new(doors::kafka::Settings { advertised, hello_timeout, allow_plain, is_login_required }))
}

fn pubsub(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, is_login_required, tls } = common;
    let project = config.text("pubsub_project").to_owned();
    if !doors::pubsub::is_project(&project) {
        return Err(ConfigError(format!("pubsub_project: '{project}' is not a project id")));
    }
    let push_allow = config.text("pubsub_push_allow").parse();
    Ok(Box::new(doors::pubsub::Settings {
        header_timeout: hello_timeout,
        allow_plain,
        is_login_required,
        tls,
        hosts: config.http_hosts()?,
        project,
        push_allow: push_allow
            .map_err(|e: doors::pubsub::push::NoAllow| ConfigError(format!("pubsub_push_allow: {e}")))?,
    }))
}

fn redis(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, is_login_required, .. } = common;
    let is_durable = config.bool("redis_durable");
    if is_durable && config.data().is_none() && config.address(Door::Redis.key())?.is_some() {
        return Err(ConfigError("redis_durable needs a data directory; start with --data DIR".into()));
    }
    let keyspace_events = config.text("redis_keyspace_events").to_owned();
    doors::redis::check_flags(&keyspace_events).map_err(|why| {
        ConfigError(format!("redis_keyspace_events: '{keyspace_events}' has an unknown letter. {why}"))
    })?;
    Ok(Box::new(doors::redis::Settings {
        hello_timeout,
        allow_plain,
        is_login_required,
        is_durable,
        keyspace_events,
        transaction_time_max: doors::redis::TRANSACTION_TIME_MAX,
    }))
}

fn sqs(config: &Config, common: Common) -> Closed {
    let Common { hello_timeout, allow_plain, tls, .. } = common;
    let account = config.text("sqs_account").to_owned();
    let region = config.text("sqs_region").to_owned();
    let url = config.text("sqs_url");
    if !Account::is_valid(&account) {
        return Err(ConfigError(format!("sqs_account: '{account}' is not an account; write 12 digits")));
    }
    if !is_region(&region) {
        return Err(ConfigError(format!("sqs_region: '{region}' is not a region; write a name such as us-east-1")));
    }
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    if !url.is_empty() && host.is_none_or(|host| host.is_empty() || host.contains(['/', ' ', '?'])) {
        return Err(ConfigError(format!("sqs_url: '{url}' is not a URL; write http://host:port")));
    }
    Ok(Box::new(doors::sqs::Settings {
        account,
        region,
        url: Some(url.to_owned()).filter(|url| !url.is_empty()),
        cooldown: Duration::from_secs(config.count("sqs_cooldown_s")),
        auth: sqs_auth(config)?,
        header_timeout: hello_timeout,
        allow_plain,
        tls,
        hosts: config.http_hosts()?,
        trusted_proxies: config.trusted_proxies()?,
        access_log: config.bool("http_access_log"),
    }))
}

/// Returns `true` if SQS requests have to be signed: by their own key, or because every door requires a login.
pub(crate) fn verifies_signatures(config: &Config) -> bool {
    config.text("sqs_auth") == "verify" || config.is_login_required()
}

/// Returns the authentication of SQS requests, with the access keys for their signatures.
pub(crate) fn sqs_auth(config: &Config) -> Result<Auth> {
    let credentials = Credentials::parse(config.list("sqs_credentials"), config.text("sqs_account"))
        .map_err(|e| ConfigError(format!("sqs_credentials: {}", e.message)))?;
    if !verifies_signatures(config) {
        return Ok(Auth::Off);
    }
    Ok(Auth::Verify(credentials))
}
