//! Whom to believe: the system's certificates, a file's, or, on loopback, anyone.

use std::path::Path;

use engine::{Error, ErrorKind, Result};
use net::tls::trust::{self, Trust};
use rustls::{ClientConfig, RootCertStore};

/// The TLS settings for a broker. A loopback connection never leaves the machine, and there a broker
/// without configuration has a certificate that nobody vouches for.
pub(crate) fn client_config(ca_file: Option<&Path>, is_loopback: bool) -> Result<ClientConfig> {
    let trust = if ca_file.is_none() && is_loopback { Trust::Anyone } else { Trust::Roots(roots(ca_file)?) };
    trust::client_config(trust, &[wire::negotiate::ALPN])
        .map_err(|e| Error::new(ErrorKind::Internal, format!("TLS is not usable: {e}")))
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore> {
    if let Some(path) = ca_file {
        return trust::roots_of(path).map_err(|e| Error::invalid(e.to_string()));
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(Error::invalid("no certificate to trust was found; name one with --ca"));
    }
    Ok(roots)
}
