//! The published exchange, and messages that differ from it.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

const SALT: &str = "W22ZaJ0SNY7soEsUEjb6gQ==";
const FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const CHALLENGE: &str = "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const LAST: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=";
/// Proofs of the client and of the server: for SHA-256 from RFC 7677, for SHA-512 computed by Python's hashlib for the
/// same messages.
const PROOFS: [(Mechanism, &str, &str); 2] = [
    (
        Mechanism::Sha256,
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
    (
        Mechanism::Sha512,
        "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
        "v=ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
    ),
];

fn credential(mechanism: Mechanism) -> Credential {
    let salt = BASE64.decode(SALT).expect("base64");
    Credential::of_password(mechanism, "pencil", salt, 4096).expect("a credential")
}

fn begin(mechanism: Mechanism, is_known: bool) -> Exchange {
    let first = ClientFirst::parse(FIRST.as_bytes()).expect("a first message");
    assert_eq!(first.user.as_str(), "user");
    let (exchange, challenge) = first.challenge(credential(mechanism), is_known, SERVER_NONCE);
    assert_eq!(challenge, CHALLENGE.as_bytes());
    exchange
}

#[test]
fn the_published_exchange_is_ours() {
    for (mechanism, proof, server_proof) in PROOFS {
        let (user, answer) = begin(mechanism, true).finish(format!("{LAST}{proof}").as_bytes()).expect("it is right");
        assert_eq!((user.as_str(), String::from_utf8_lossy(&answer).as_ref()), ("user", server_proof));
        assert!(credential(mechanism).fits("pencil") && !credential(mechanism).fits("Pencil"));
    }
}

#[test]
fn an_unknown_user_fails_as_late_and_with_the_same_message_as_a_wrong_password() {
    for (mechanism, proof, _) in PROOFS {
        let right = format!("{LAST}{proof}");
        let wrong = format!("{LAST}{}", BASE64.encode(vec![7; mechanism.key_bytes()]));
        let unknown = begin(mechanism, false).finish(right.as_bytes()).expect_err("nobody");
        let mistaken = begin(mechanism, true).finish(wrong.as_bytes()).expect_err("another password");
        assert_eq!((unknown.kind, &unknown), (ErrorKind::Denied, &mistaken));
        let decoy = |user| Credential::decoy(mechanism, user, b"secret").salt;
        assert!(decoy("a") == decoy("a") && decoy("a") != decoy("b") && decoy("a").len() == 16);
    }
}

#[test]
fn messages_of_another_exchange_are_refused() {
    let proof = PROOFS[0].1;
    for last in [
        LAST.replace("c=biws", "c=eSws") + proof,
        LAST.replace("k0,p=", "k1,p=") + proof,
        LAST.replace(",p=", ""),
        format!("{LAST}{}", &proof[4..]),
        format!("{LAST}!"),
        String::new(),
    ] {
        let refused = begin(Mechanism::Sha256, true).finish(last.as_bytes()).expect_err("refused");
        assert_eq!(refused.kind, ErrorKind::Malformed, "{last}");
    }
    for (first, kind) in [
        ("p=tls-unique,,n=user,r=x", ErrorKind::Malformed),
        ("n,,m=ext,n=user,r=x", ErrorKind::Malformed),
        ("n,,n=us=er,r=x", ErrorKind::Malformed),
        ("n,,n=user,r=", ErrorKind::Malformed),
        ("n,,n=user", ErrorKind::Malformed),
        ("n,,n=,r=x", ErrorKind::Invalid),
        ("n,a=admin,n=user,r=x", ErrorKind::Denied),
        ("", ErrorKind::Malformed),
    ] {
        assert_eq!(ClientFirst::parse(first.as_bytes()).expect_err("refused").kind, kind, "{first}");
    }
    let long = format!("n,,n=user,r={}", "x".repeat(MESSAGE_BYTES_MAX));
    assert_eq!(ClientFirst::parse(long.as_bytes()).expect_err("too long").kind, ErrorKind::TooLarge);
}

#[test]
fn names_with_signs_and_extensions_are_read() {
    let first = ClientFirst::parse("y,a=a=2Cb=3Dü,n=a=2Cb=3Dü,r=x,tokenauth=true".as_bytes()).expect("it is fine");
    assert_eq!((first.user.as_str(), first.gs2_header.as_str()), ("a,b=ü", "y,a=a=2Cb=3Dü,"));
}

#[test]
fn credentials_are_bounded() {
    let of = |password, salt: usize, iterations| {
        Credential::of_password(Mechanism::Sha256, password, vec![1; salt], iterations).map_err(|error| error.kind)
    };
    // Kafka checks the iterations of a credential, and no length of its salt (ScramControlManager.validateUpsertion).
    for salt in [0, 1, 7, 16, 255] {
        let credential = Credential::of_password(Mechanism::Sha256, "x", vec![1; salt], 4096).expect("a credential");
        assert!(credential.fits("x") && !credential.fits("y"), "a salt of {salt} bytes");
    }
    for refused in [of("", 16, 4096), of("x", 256, 4096), of("x", 16, 4095), of("x", 16, 16_385)] {
        assert_eq!(refused, Err(ErrorKind::Invalid));
    }
    assert!(Credential::of_salted(Mechanism::Sha512, &[0; 32], vec![1; 16], 4096).is_err());
}

proptest! {
    #[test]
    fn nothing_that_comes_panics_or_passes(first in ".{0,80}", last in ".{0,80}", bytes: Vec<u8>) {
        let [bare, user] = ["n,,", "n,,n="].map(|before| format!("{before}{first}"));
        for message in [first.as_bytes(), &bytes, bare.as_bytes(), user.as_bytes()] {
            drop(ClientFirst::parse(message));
        }
        for message in [last.as_bytes(), &bytes, format!("{LAST}{last}").as_bytes()] {
            prop_assert!(begin(Mechanism::Sha256, true).finish(message).is_err());
        }
    }
}
