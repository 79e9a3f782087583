//! Admission of clients at each open door: whether they need TLS, how they log in, and why a door is exempt.

use std::net::SocketAddr;
use std::path::PathBuf;

use broker::Door;
use broker::metrics::{Collect, Exposition};

use crate::config::Config;
use crate::door_table::verifies_signatures;
use crate::server::Server;

/// Reason why a door admits clients without TLS or without a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exemption {
    /// Only this machine reaches the door.
    Loopback,
    /// The setting `insecure` permits it.
    Insecure,
}

impl Exemption {
    /// Returns the word for it in metrics and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Insecure => "insecure",
        }
    }
}

/// Admission of clients at one open door.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Door that it is about.
    pub door: Door,
    /// Address to which the door is bound.
    pub address: SocketAddr,
    /// Unix socket of the door. Its clients use no TLS, and the broker's own user and root need no login there.
    pub unix: Option<PathBuf>,
    /// `true` if clients of other machines need TLS. Those of this machine never do.
    pub is_tls_required: bool,
    /// Ways to log in, of which each client needs one; empty if none is required.
    pub logins: Vec<&'static str>,
}

impl Admission {
    /// Returns the admission at every open door, by its address.
    pub fn of_all(config: &Config, address: impl Fn(Door) -> Option<SocketAddr>) -> Vec<Self> {
        let open = Door::ALL.into_iter().filter_map(|door| Some((door, address(door)?)));
        open.map(|(door, address)| Self::new(config, door, address)).collect()
    }

    fn new(config: &Config, door: Door, address: SocketAddr) -> Self {
        let is_required = match door {
            Door::Sqs => verifies_signatures(config),
            Door::Native | Door::Http | Door::Kafka | Door::Pubsub | Door::Redis => config.is_login_required(),
        };
        let settings = config.server();
        Self {
            door,
            address,
            unix: config.unix_socket(door).map(|socket| socket.path),
            is_tls_required: !address.ip().is_loopback() && !settings.allow_plain,
            logins: if is_required { logins(door, settings.client_auth.is_some()) } else { Vec::new() },
        }
    }

    /// Returns why clients need no TLS or no login; `None` if they need both.
    pub fn exemption(&self) -> Option<Exemption> {
        if self.address.ip().is_loopback() {
            Some(Exemption::Loopback)
        } else {
            (!self.is_tls_required || self.logins.is_empty()).then_some(Exemption::Insecure)
        }
    }

    /// Returns whether clients of other machines need TLS, as a word.
    pub fn tls(&self) -> &'static str {
        if self.is_tls_required { "required" } else { "optional" }
    }

    /// Returns the ways to log in as a list, or `none`.
    pub fn login(&self) -> String {
        if self.logins.is_empty() { "none".to_owned() } else { self.logins.join(", ") }
    }

    /// Returns what clients need not have; `None` if they need all.
    fn missing(&self) -> Option<&'static str> {
        match (self.is_tls_required, self.logins.is_empty()) {
            (true, false) => None,
            (true, true) => Some("no login"),
            (false, false) => Some("no TLS"),
            (false, true) => Some("no TLS and no login"),
        }
    }
}

/// Returns the ways to log in at a door.
fn logins(door: Door, has_certificates: bool) -> Vec<&'static str> {
    let of_door: &[&str] = match door {
        Door::Sqs => &["signature"],
        Door::Native | Door::Http | Door::Kafka | Door::Pubsub | Door::Redis => &["password", "token"],
    };
    of_door.iter().copied().chain(has_certificates.then_some("certificate")).collect()
}

/// Returns a sentence for each reason that exempts doors from TLS or logins, and one for Unix sockets.
pub fn exemptions(of: &[Admission]) -> Vec<String> {
    let mut groups: Vec<((Exemption, &str), Vec<&str>)> = Vec::new();
    for admission in of {
        let Some(group) = admission.exemption().zip(admission.missing()) else { continue };
        let key = admission.door.key();
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, doors)) => doors.push(key),
            None => groups.push((group, vec![key])),
        }
    }
    let sentence = |((why, missing), doors): ((Exemption, &str), Vec<&str>)| match why {
        Exemption::Loopback => format!("{}: {missing} needed, as only this machine reaches them", doors.join(", ")),
        Exemption::Insecure => format!("{}: {missing} needed from other machines (--insecure)", doors.join(", ")),
    };
    let mut sentences: Vec<String> = groups.into_iter().map(sentence).collect();
    if of.iter().any(|admission| admission.unix.is_some()) {
        sentences.push("unix: no TLS needed, and no login for the broker's own user and root".to_owned());
    }
    sentences
}

/// Adds the admission at each door to the metrics, where `thalweg status` reads it.
pub(crate) fn register(config: &Config, server: &Server) {
    let row = |of: &Admission| {
        let exempt = of.exemption().map_or("", Exemption::name);
        let unix = of.unix.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        [of.door.key().to_owned(), of.tls().to_owned(), of.login(), exempt.to_owned(), unix]
    };
    let rows: Vec<[String; 5]> = Admission::of_all(config, |door| server.address(door)).iter().map(row).collect();
    server.broker.register(Box::new(Collect(move |out: &mut Exposition<'_>| {
        let help = "Admission of clients at each open door";
        out.facts("thalweg_door_admission", help, ["door", "tls", "login", "exempt", "unix"], &rows)
    })));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(door: Door, address: &str, set: &[&str]) -> Admission {
        let set = set.iter().map(|set| set.split_once('=').expect("a key and a value"));
        let mut builder = Config::builder();
        for (key, value) in set {
            builder = builder.set(key, value);
        }
        let config = builder.build().expect("it is valid");
        Admission::new(&config, door, address.parse().expect("an address"))
    }

    #[test]
    fn every_door_is_exempt_alike() {
        let login = ["auth=required"];
        for door in Door::ALL {
            let local = at(door, "127.0.0.1:1", &[]);
            assert_eq!((local.exemption(), local.tls()), (Some(Exemption::Loopback), "optional"), "{door}");
            assert_eq!(at(door, "[::1]:1", &login).exemption(), Some(Exemption::Loopback), "{door}");
            let safe = at(door, "0.0.0.0:1", &login);
            assert_eq!((safe.exemption(), safe.tls()), (None, "required"), "{door}");
            let plain = at(door, "0.0.0.0:1", &[&login[..], &["insecure=true"]].concat());
            assert_eq!((plain.exemption(), plain.tls()), (Some(Exemption::Insecure), "optional"), "{door}");
            assert!(!plain.logins.is_empty() && at(door, "0.0.0.0:1", &["insecure=true"]).logins.is_empty(), "{door}");
        }
    }

    #[test]
    fn exempt_doors_are_named_with_the_reason() {
        let all = [
            at(Door::Native, "127.0.0.1:1", &["native_unix=/run/n.sock"]),
            at(Door::Http, "127.0.0.1:1", &["auth=required"]),
            at(Door::Kafka, "0.0.0.0:1", &["auth=required"]),
            at(Door::Redis, "0.0.0.0:1", &["insecure=true"]),
            at(Door::Sqs, "0.0.0.0:1", &["insecure=true", "sqs_auth=verify"]),
            at(Door::Pubsub, "127.0.0.1:1", &[]),
        ];
        let wanted = [
            "native, pubsub: no TLS and no login needed, as only this machine reaches them",
            "http: no TLS needed, as only this machine reaches them",
            "redis: no TLS and no login needed from other machines (--insecure)",
            "sqs: no TLS needed from other machines (--insecure)",
            "unix: no TLS needed, and no login for the broker's own user and root",
        ];
        assert_eq!(exemptions(&all), wanted);
    }

    #[test]
    fn the_ways_to_log_in_are_those_of_the_door() {
        let ways = |door, more: &[&str]| at(door, "127.0.0.1:1", &[&["auth=required"], more].concat()).login();
        let certificates = ["tls_cert=a", "tls_key=b", "tls_client_ca=c"];
        assert_eq!(ways(Door::Redis, &[]), "password, token");
        assert_eq!(ways(Door::Sqs, &certificates), "signature, certificate");
        assert_eq!(at(Door::Sqs, "127.0.0.1:1", &["sqs_auth=verify"]).login(), "signature");
        assert_eq!(at(Door::Http, "127.0.0.1:1", &["sqs_auth=verify"]).login(), "none");
    }
}
