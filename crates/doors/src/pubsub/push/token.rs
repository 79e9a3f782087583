//! JSON web tokens by which an endpoint verifies that a push comes from this broker, signed with the broker's key.
//!
//! Tokens have the claims of Google's (issuer, audience, e-mail address of the service account), but the broker signs
//! them, with ES256, and `jwks` returns its public key.

use std::io;

use aws_lc_rs::digest;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Lifetime of a token.
pub(super) const LIFETIME_S: u64 = 3600;

/// Key pair of a broker.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    /// Id of the key in tokens and in `jwks`.
    id: String,
    issuer: String,
}

/// Identity in the tokens of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oidc {
    pub service_account_email: String,
    /// Audience; `None`: the URL of the endpoint.
    pub audience: Option<String>,
}

impl SigningKey {
    /// Generates a key, encoded as PKCS #8.
    pub fn generate() -> io::Result<Vec<u8>> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Ok(pkcs8.map_err(io::Error::other)?.as_ref().to_vec())
    }

    /// Reads a key. `issuer` is the broker's name in the tokens.
    pub fn from_pkcs8(pkcs8: &[u8], issuer: &str) -> io::Result<Self> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8).map_err(io::Error::other)?;
        let print = digest::digest(&digest::SHA256, pair.public_key().as_ref());
        let id = URL_SAFE_NO_PAD.encode(&print.as_ref()[..12]);
        Ok(Self { pair, id, issuer: issuer.to_owned() })
    }

    /// Returns the public key as a JSON web key set, which libraries that verify tokens can read.
    pub fn jwks(&self) -> Value {
        // The first byte marks an uncompressed point, which has both coordinates.
        let (x, y) = self.pair.public_key().as_ref()[1..].split_at(32);
        let [x, y] = [x, y].map(|coordinate| URL_SAFE_NO_PAD.encode(coordinate));
        json!({ "keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id, "x": x, "y": y,
        }] })
    }

    /// Returns a token for this audience, valid from `now_s` (in seconds since 1970).
    pub(super) fn sign(&self, email: &str, audience: &str, now_s: u64) -> io::Result<String> {
        let header = json!({ "alg": "ES256", "kid": self.id, "typ": "JWT" });
        let claims = json!({
            "iss": self.issuer,
            "aud": audience,
            "azp": email,
            "sub": email,
            "email": email,
            "email_verified": true,
            "iat": now_s,
            "exp": now_s + LIFETIME_S,
        });
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).map_err(io::Error::other)?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};

    use super::*;

    #[test]
    fn a_token_verifies_with_the_key_set_of_the_reloaded_key() {
        let pkcs8 = SigningKey::generate().expect("a key");
        let key = SigningKey::from_pkcs8(&pkcs8, "thalweg").expect("the same key");
        let token = key.sign("push@p.example", "https://a/", 1000).expect("a token");
        let again = SigningKey::from_pkcs8(&pkcs8, "thalweg").expect("the same key");
        let jwk = &again.jwks()["keys"][0];
        let parts: Vec<&str> = token.split('.').collect();
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).expect("base64");
        let parse = |text: &str| serde_json::from_slice::<Value>(&decode(text)).expect("JSON");
        assert_eq!(parse(parts[0]), json!({ "alg": "ES256", "typ": "JWT", "kid": jwk["kid"] }));
        let claims = parse(parts[1]);
        assert_eq!((&claims["aud"], &claims["email"]), (&json!("https://a/"), &json!("push@p.example")));
        assert_eq!((&claims["iat"], &claims["exp"]), (&json!(1000), &json!(4600)));
        let point = |name: &str| decode(jwk[name].as_str().expect("a coordinate"));
        let public = [vec![4], point("x"), point("y")].concat();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &public);
        let signed = format!("{}.{}", parts[0], parts[1]);
        public.verify(signed.as_bytes(), &decode(parts[2])).expect("the signature holds");
        let other = format!("{}x.{}", parts[0], parts[1]);
        assert!(public.verify(other.as_bytes(), &decode(parts[2])).is_err());
    }
}
