//! Tests of JSON Web Tokens: right ones, and those of attackers.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rsa::{KeyPair as RsaPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use jsonwebtoken::{Algorithm, EncodingKey, encode};
use serde_json::json;

use super::*;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Issuer of tokens with a key of each kind.
struct Signer {
    rsa: EncodingKey,
    ec: EncodingKey,
    ed: EncodingKey,
    /// Set of the public keys.
    set: Value,
}

impl Signer {
    fn new() -> Self {
        let rsa = RsaPair::generate(KeySize::Rsa2048).expect("a key");
        let rsa_der = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&rsa).expect("a key");
        let (n, e) = (rsa.public_key().modulus(), rsa.public_key().exponent());
        let ec = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let ec_der = ec.to_pkcs8v1().expect("a key");
        let point = ec.public_key().as_ref();
        let ed = Ed25519KeyPair::generate().expect("a key");
        let ed_der = ed.to_pkcs8().expect("a key");
        let text = |bytes: &[u8]| BASE64.encode(bytes);
        let set = json!({ "keys": [
            { "kty": "RSA", "kid": "rsa", "use": "sig", "alg": "RS256",
              "n": text(n.big_endian_without_leading_zero()), "e": text(e.big_endian_without_leading_zero()) },
            { "kty": "EC", "kid": "ec", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..]) },
            { "kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": text(ed.public_key().as_ref()) },
            { "kty": "oct", "kid": "shared", "k": "c2VjcmV0" },
            { "kty": "of the future", "kid": "new" },
            "no key",
        ]});
        Self {
            rsa: EncodingKey::from_rsa_der(&rsa_pkcs1(rsa_der.as_ref())),
            ec: EncodingKey::from_ec_der(ec_der.as_ref()),
            ed: EncodingKey::from_ed_der(ed_der.as_ref()),
            set,
        }
    }

    fn verifier(&self) -> Jwts {
        let jwts = Jwts::new(Issuer {
            name: "https://id.example".into(),
            audiences: vec!["thalweg".into(), "other".into()],
            user_claim: "sub".into(),
            roles_claim: "groups".into(),
            tenant_claim: Some("org".into()),
            roles: BTreeMap::from([("ops".to_owned(), RoleName::parse("operator").expect("a name"))]),
            clock_skew: Duration::from_secs(60),
        });
        assert_eq!(jwts.set_keys(self.set.to_string().as_bytes()), Ok(3));
        jwts
    }

    fn sign(&self, algorithm: Algorithm, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(algorithm);
        header.kid = kid.map(str::to_owned);
        let key = match algorithm.family() {
            AlgorithmFamily::Rsa => &self.rsa,
            AlgorithmFamily::Ec => &self.ec,
            _ => &self.ed,
        };
        encode(&header, claims, key).expect("a token")
    }
}

/// Returns the key inside of PKCS #8, which ends with it.
fn rsa_pkcs1(pkcs8: &[u8]) -> Vec<u8> {
    let at = pkcs8.windows(4).position(|four| four == [0x02, 0x01, 0x00, 0x02]).expect("a key");
    pkcs8[at - 4..].to_vec()
}

fn claims(change: impl FnOnce(&mut Map<String, Value>)) -> Value {
    let claims = json!({
        "iss": "https://id.example",
        "aud": ["web", "thalweg"],
        "sub": "ann",
        "exp": now_s() + 300,
        "groups": ["ops", "admin", "ops"],
    });
    let Value::Object(mut claims) = claims else { unreachable!("it is an object") };
    change(&mut claims);
    Value::Object(claims)
}

#[test]
fn tokens_of_every_accepted_kind_of_key_are_verified() {
    let signer = Signer::new();
    let jwts = signer.verifier();
    for (algorithm, kid) in [(Algorithm::RS256, "rsa"), (Algorithm::ES256, "ec"), (Algorithm::EdDSA, "ed")] {
        for kid in [Some(kid), None] {
            let token = signer.sign(algorithm, kid, &claims(|_| {}));
            assert!(is_jwt(&token));
            for _ in 0..2 {
                let read = jwts.verify(&token, now_s() * 1000).expect("it is right");
                assert_eq!(
                    (read.user.as_str(), &read.roles[..]),
                    ("ann", &[RoleName::parse("operator").expect("a name")][..])
                );
                assert!(read.expires_ms > (now_s() + 350) * 1000);
            }
        }
    }
    let with_text = claims(|claims| drop(claims.insert("groups".into(), json!("a ops"))));
    let token = signer.sign(Algorithm::ES256, Some("ec"), &with_text);
    assert_eq!(jwts.verify(&token, 0).expect("it is right").roles.len(), 1);
    let without = claims(|claims| drop(claims.remove("groups")));
    assert!(jwts.verify(&signer.sign(Algorithm::ES256, None, &without), 0).expect("it is right").roles.is_empty());
}

#[test]
fn a_token_names_a_tenant_or_is_refused_if_it_names_no_valid_one() {
    let signer = Signer::new();
    let jwts = signer.verifier();
    let read = |value: Option<Value>| {
        let claims = claims(|claims| drop(value.map(|value| claims.insert("org".into(), value))));
        let claims = jwts.verify(&signer.sign(Algorithm::ES256, Some("ec"), &claims), 0);
        claims.map(|claims| claims.tenant.map(|tenant| tenant.to_string()))
    };
    assert_eq!(read(None).expect("it names none"), None);
    for name in ["acme", "111122223333", "project:shop"] {
        assert_eq!(read(Some(json!(name))).expect(name), Some(name.to_owned()));
    }
    for wrong in [json!(""), json!("a.b"), json!("_queues"), json!(7), json!(["acme"]), Value::Null] {
        let refused = read(Some(wrong.clone())).expect_err("no tenant");
        assert!(refused.kind == ErrorKind::Denied && refused.message.contains("claim org"), "{wrong}: {refused}");
    }
}

#[test]
fn wrong_claims_are_refused_with_their_reason() {
    let signer = Signer::new();
    let jwts = signer.verifier();
    let why = |claim: &str, value: Value| {
        let claims = claims(|claims| match value {
            Value::Null => drop(claims.remove(claim)),
            value => drop(claims.insert(claim.into(), value)),
        });
        jwts.verify(&signer.sign(Algorithm::ES256, Some("ec"), &claims), 0).expect_err(claim).message
    };
    for (claim, value, wanted) in [
        ("exp", json!(now_s() - 61), "expired"),
        ("exp", Value::Null, "no claim exp"),
        ("exp", json!("tomorrow"), "no claim exp"),
        ("nbf", json!(now_s() + 90), "not valid yet"),
        ("iss", json!("https://evil.example"), "issuer"),
        ("iss", Value::Null, "no claim iss"),
        ("aud", json!("web"), "audience"),
        ("aud", json!([]), "audience"),
        ("aud", Value::Null, "no claim aud"),
        ("sub", Value::Null, "no claim sub"),
        ("sub", json!(7), "no claim sub"),
        ("sub", json!(""), "name of a user"),
        ("sub", json!("a\nb"), "name of a user"),
    ] {
        let message = why(claim, value.clone());
        assert!(message.contains(wanted), "{claim} {value}: {message}");
    }
    // Clocks may differ by a minute.
    for (claim, value) in [("exp", now_s() - 30), ("nbf", now_s() + 30)] {
        let claims = claims(|claims| drop(claims.insert(claim.into(), json!(value))));
        assert!(jwts.verify(&signer.sign(Algorithm::EdDSA, None, &claims), 0).is_ok(), "{claim}");
    }
}

/// The attacks of RFC 8725, sections 2.1 and 3.
#[test]
fn confused_and_forged_tokens_are_refused() {
    let signer = Signer::new();
    let jwts = signer.verifier();
    let good = signer.sign(Algorithm::RS256, Some("rsa"), &claims(|_| {}));
    let [header, body, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
    let part = |value: Value| BASE64.encode(value.to_string());
    let admin = part(claims(|claims| drop(claims.insert("sub".into(), json!("admin")))));
    let none = |alg: &str| format!("{}.{body}.", part(json!({ "alg": alg, "typ": "JWT" })));
    // The public key as a shared secret.
    let public = signer.set["keys"][0]["n"].as_str().expect("text");
    let secrets = [public.as_bytes().to_vec(), signer.set["keys"][0].to_string().into_bytes(), b"secret".to_vec()];
    let mut hs = Header::new(Algorithm::HS256);
    let mut wrong = vec![
        none("none"),
        none("None"),
        none(""),
        format!("{header}.{admin}.{signature}"),
        format!("{header}.{body}."),
        format!("{header}.{body}.{}", &signature[..signature.len() - 4]),
        format!("{header}.{body}"),
        format!("{header}.{body}.{signature}.x"),
        format!(" {good}"),
        "eyJ.eyJ.x".into(),
        "..".into(),
        Signer::new().sign(Algorithm::RS256, Some("rsa"), &claims(|_| {})),
        signer.sign(Algorithm::RS256, Some("ec"), &claims(|_| {})),
        signer.sign(Algorithm::RS256, Some("unknown"), &claims(|_| {})),
        // The key is for RS256 alone.
        signer.sign(Algorithm::PS256, Some("rsa"), &claims(|_| {})),
        signer.sign(Algorithm::ES256, Some("ec"), &json!([1])),
        format!("{header}.{}.{signature}", "A".repeat(TOKEN_BYTES_MAX)),
    ];
    for kid in [None, Some("rsa"), Some("shared")] {
        hs.kid = kid.map(str::to_owned);
        wrong.extend(
            secrets
                .iter()
                .map(|secret| encode(&hs, &claims(|_| {}), &EncodingKey::from_secret(secret)).expect("a token")),
        );
    }
    let mut critical = Header::new(Algorithm::EdDSA);
    critical.crit = Some(vec!["exp".into()]);
    wrong.push(encode(&critical, &claims(|_| {}), &signer.ed).expect("a token"));
    for wrong in wrong {
        let refused = jwts.verify(&wrong, 0).expect_err(&wrong);
        assert_eq!(refused.kind, ErrorKind::Denied, "{wrong}");
        assert!(!refused.message.contains(signature), "{refused}");
    }
    assert!(jwts.verify(&good, 0).is_ok());
}

#[test]
fn keys_are_replaced_as_a_whole_or_not_at_all() {
    let [first, second] = [Signer::new(), Signer::new()];
    let jwts = first.verifier();
    let sign = |signer: &Signer| signer.sign(Algorithm::EdDSA, Some("ed"), &claims(|_| {}));
    let [of_first, of_second] = [sign(&first), sign(&second)];
    assert!(jwts.verify(&of_first, 0).is_ok() && jwts.verify(&of_second, 0).is_err());
    for wrong in ["", "[]", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#] {
        assert!(jwts.set_keys(wrong.as_bytes()).is_err(), "{wrong}");
    }
    assert!(jwts.verify(&of_first, 0).is_ok());
    assert_eq!(jwts.set_keys(second.set.to_string().as_bytes()), Ok(3));
    assert!(jwts.verify(&of_first, 0).is_err() && jwts.verify(&of_second, 0).is_ok());
}
