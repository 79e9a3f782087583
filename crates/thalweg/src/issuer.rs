//! The public keys of the issuer of JSON Web Tokens: from a file, from a URL, or from where its description says
//! (OpenID Connect Discovery 1.0, section 4).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use broker::Broker;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, HOST};
use hyper::{Request, StatusCode, Uri};
use net::Drain;
use net::tls::trust::{self, Roots, Trust};
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::exchange::exchange;

/// Path of the description of an issuer, below its URL.
const DESCRIPTION: &str = "/.well-known/openid-configuration";
/// Maximum size of a document in bytes.
const DOCUMENT_BYTES_MAX: usize = 256 << 10;
/// Time limit for one document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which keys of a URL are read again.
const REFRESH_EVERY: Duration = Duration::from_secs(600);
/// Minimum interval between two reads because a token names an unknown key.
const WANTED_EVERY: Duration = Duration::from_secs(5);
/// Wait after a first failure. It doubles with each further one, up to `REFRESH_EVERY`.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Interval between looks at a file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Source of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// File with the set of keys.
    File(PathBuf),
    /// URL of the set of keys.
    Url(Uri),
    /// URL of an issuer, whose description has the URL of the set.
    Discovery(Uri),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url) | Self::Discovery(url) => write!(f, "{url}"),
        }
    }
}

impl KeySource {
    /// Returns the source that the configuration names: a file, a URL, or nothing, which is the issuer itself.
    pub(crate) fn parse(keys: &str, issuer: &str) -> Result<Self, String> {
        match keys {
            "" => Ok(Self::Discovery(parse_url(&format!("{}{DESCRIPTION}", issuer.trim_end_matches('/')))?)),
            url if url.contains("://") => Ok(Self::Url(parse_url(url)?)),
            file => Ok(Self::File(file.into())),
        }
    }
}

/// Parses a URL of which nobody on the way can replace the answer.
fn parse_url(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|error| format!("{url}: {error}; write an https URL"))?;
    let is_local = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if is_local => Ok(uri),
        _ => Err(format!("{url}: write an https URL; http is accepted only for this machine")),
    }
}

/// Reads the keys of a file, so that a mistake ends the start.
pub(crate) fn read_file(source: &KeySource, broker: &Broker) -> io::Result<()> {
    let KeySource::File(path) = source else { return Ok(()) };
    let wrap = |error: &dyn std::fmt::Display| io::Error::other(format!("oidc_jwks: {}: {error}", path.display()));
    let set = std::fs::read(path).map_err(|error| wrap(&error))?;
    broker.security.set_issuer_keys(&set).map(drop).map_err(|error| wrap(&error))
}

/// Keeps the keys up to date until the drain begins. If they cannot be read, the previous ones stay.
pub(crate) async fn follow(source: KeySource, broker: Arc<Broker>, mut drain: Drain) {
    match source {
        KeySource::File(path) => follow_file(&path, &broker, &mut drain).await,
        source => follow_url(&source, &broker, &mut drain).await,
    }
}

async fn follow_file(path: &std::path::Path, broker: &Broker, drain: &mut Drain) {
    let stamp = || std::fs::metadata(path).and_then(|about| Ok((about.modified()?, about.len()))).ok();
    let mut seen: Option<(SystemTime, u64)> = None;
    loop {
        let now = stamp();
        if now != seen {
            seen = now;
            let set = std::fs::read(path).map_err(|error| error.to_string());
            let outcome = set.and_then(|set| broker.security.set_issuer_keys(&set).map_err(|error| error.to_string()));
            report(&path.display().to_string(), outcome);
        }
        if drain.or_begun(tokio::time::sleep(LOOK_EVERY)).await.is_none() {
            return;
        }
    }
}

async fn follow_url(source: &KeySource, broker: &Broker, drain: &mut Drain) {
    let Some(wanted) = broker.security.issuer_keys_wanted() else { return };
    let mut retry = RETRY_MIN;
    loop {
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch_keys(source));
        let Some(fetched) = drain.or_begun(fetched).await else { return };
        let set = fetched.unwrap_or_else(|elapsed| Err(elapsed.into())).map_err(|error| error.to_string());
        let outcome = set.and_then(|set| broker.security.set_issuer_keys(&set).map_err(|error| error.to_string()));
        let wait = match &outcome {
            Ok(_) => {
                retry = RETRY_MIN;
                REFRESH_EVERY
            }
            Err(_) => {
                let wait = retry;
                retry = (retry * 2).min(REFRESH_EVERY);
                wait
            }
        };
        report(&source.to_string(), outcome);
        let soonest = wait.min(WANTED_EVERY);
        if drain.or_begun(tokio::time::sleep(soonest)).await.is_none() {
            return;
        }
        let rest = async {
            tokio::select! {
                () = wanted.notified() => {}
                () = tokio::time::sleep(wait - soonest) => {}
            }
        };
        if drain.or_begun(rest).await.is_none() {
            return;
        }
    }
}

fn report(source: &str, outcome: Result<usize, String>) {
    match outcome {
        Ok(keys) => tracing::info!(source, keys, "read the keys of the issuer of tokens"),
        Err(error) => {
            tracing::error!(source, error, "cannot read the keys of the issuer of tokens; those read before stay");
        }
    }
}

async fn fetch_keys(source: &KeySource) -> io::Result<Bytes> {
    match source {
        KeySource::File(path) => Ok(std::fs::read(path)?.into()),
        KeySource::Url(url) => fetch(url).await,
        KeySource::Discovery(url) => {
            let description: Value = serde_json::from_slice(&fetch(url).await?)?;
            let keys = description.get("jwks_uri").and_then(Value::as_str);
            let keys = keys.ok_or_else(|| io::Error::other(format!("{url}: it names no jwks_uri")))?;
            fetch(&parse_url(keys).map_err(io::Error::other)?).await
        }
    }
}

async fn fetch(url: &Uri) -> io::Result<Bytes> {
    let wrap = |error: io::Error| io::Error::other(format!("{url}: {error}"));
    let authority = url.authority().ok_or_else(|| io::Error::other("no host"))?;
    let is_secure = url.scheme_str() == Some("https");
    let host = authority.host().trim_matches(['[', ']']);
    let port = authority.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
    let socket = TcpStream::connect((host, port)).await.map_err(wrap)?;
    if !is_secure {
        return get(socket, url).await.map_err(wrap);
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = trust::client_config(Trust::Roots(Roots::from(roots)), &[b"http/1.1"], None)?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(wrap)?;
    get(stream, url).await.map_err(wrap)
}

async fn get(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, url: &Uri) -> io::Result<Bytes> {
    let request = Request::builder()
        .uri(url.path_and_query().map_or("/", |path| path.as_str()))
        .header(HOST, url.authority().map_or("", |authority| authority.as_str()))
        .header(ACCEPT, "application/json")
        .body(Full::default())
        .map_err(io::Error::other)?;
    let answer = exchange(stream, request, DOCUMENT_BYTES_MAX).await?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status => Err(io::Error::other(format!("the answer has status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_a_file_a_url_or_the_issuer() {
        let of = |keys: &str, issuer: &str| KeySource::parse(keys, issuer);
        assert_eq!(of("keys.json", "x"), Ok(KeySource::File("keys.json".into())));
        assert_eq!(of("https://a.example/k", "x"), Ok(KeySource::Url(Uri::from_static("https://a.example/k"))));
        assert_eq!(of("http://localhost:80/k", "x"), Ok(KeySource::Url(Uri::from_static("http://localhost:80/k"))));
        let described = Uri::from_static("https://a.example/r/.well-known/openid-configuration");
        assert_eq!(of("", "https://a.example/r/"), Ok(KeySource::Discovery(described)));
        for (keys, issuer) in [("http://a.example/k", "x"), ("ftp://a/k", "x"), ("", "accounts"), ("https://", "x")] {
            assert!(of(keys, issuer).is_err(), "{keys} {issuer}");
        }
    }
}
