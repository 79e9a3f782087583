//! Trust in a broker's certificate: the system's roots, those of a file, or on loopback any certificate.

use std::path::Path;

use engine::{Error, ErrorKind, Result};
use net::tls::Identity;
use net::tls::trust::{self, Refusal, Roots, Trust};
use rustls::{ClientConfig, RootCertStore};

use crate::settings::ClientSettings;

/// Returns the TLS settings for a broker, with the certificate of this client, and the place that receives the reason
/// if the broker's certificate is refused.
///
/// A loopback connection never leaves the machine, and a broker without configuration uses a self-signed certificate
/// there.
pub(crate) fn client_config(settings: &ClientSettings, is_loopback: bool) -> Result<(ClientConfig, Refusal)> {
    let ca_file = settings.ca_file.as_deref();
    let identity = settings.identity.as_ref().map(|(certificate, key)| Identity::from_pem(certificate, key));
    let identity =
        identity.transpose().map_err(|error| Error::invalid(format!("the certificate of this client: {error}")))?;
    let (trust, refusal) = if ca_file.is_none() && is_loopback {
        (Trust::Anyone, Refusal::default())
    } else {
        let roots = roots(ca_file)?;
        let refusal = roots.refusal();
        (Trust::Roots(roots), refusal)
    };
    let config = trust::client_config(trust, &[wire::negotiate::ALPN], identity)
        .map_err(|e| Error::new(ErrorKind::Internal, format!("TLS is not usable: {e}")))?;
    Ok((config, refusal))
}

fn roots(ca_file: Option<&Path>) -> Result<Roots> {
    if let Some(path) = ca_file {
        return Roots::of_file(path).map_err(|e| Error::invalid(e.to_string()));
    }
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(Error::invalid(
            "this system has no trusted certificates: name that of the broker with --ca-file, or connect to tcp://",
        ));
    }
    Ok(roots.into())
}
