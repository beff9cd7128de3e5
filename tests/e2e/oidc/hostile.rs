//! Tokens that mean harm: each is refused, named in the log, and costs little.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::issuer::{Issuer, Key};
use super::{file, logged, name, who};
use crate::harness::{ControlPlane, Options};

#[tokio::test]
async fn forged_and_absurd_tokens_are_refused_and_named() {
    let key = Key::rsa("k");
    let ec = Key::ec("ec", "ES256");
    let issuer = Issuer::start(&[&key, &ec]).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("authentication.yaml");
    std::fs::write(&path, file(&issuer, &[("one", "")])).unwrap();
    let plane =
        ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display())))
            .await;
    let good = issuer.claims("one", json!({})).to_string();
    assert_eq!(name(&plane, &key.sign_text(r#"{"alg":"RS256","kid":"k"}"#, &good)).await, "jane");

    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let unsigned = |header: &str| format!("{}.{}.", encode(header), encode(&good));
    let hmac = |secret: &[u8]| {
        let input = format!("{}.{}", encode(r#"{"alg":"HS256","kid":"k"}"#), encode(&good));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), input.as_bytes());
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(tag))
    };
    let rs256 = |header: &str, claims: &str| key.sign_text(header, claims);
    let header = r#"{"alg":"RS256","kid":"k"}"#;
    let with = |more: &str| format!("{}{more}}}", good.strip_suffix('}').unwrap());
    let now = jiff::Timestamp::now().as_second();
    let claims = |more: Value| issuer.claims("one", more).to_string();
    let other = Key::rsa("k");
    let der = pem(&key.public_der());
    for (what, token, reason) in [
        ("no signature", unsigned(r#"{"alg":"none"}"#), "the algorithm `none` is not supported"),
        ("no signature, in capitals", unsigned(r#"{"alg":"NONE"}"#), "the algorithm `NONE` is not supported"),
        ("an empty signature", unsigned(header), "no key of the issuer verifies the signature"),
        ("an HMAC with the public key", hmac(&key.public_der()), "the algorithm `HS256` is not supported"),
        ("an HMAC with its PEM", hmac(der.as_bytes()), "the algorithm `HS256` is not supported"),
        ("another's key", other.sign_text(header, &good), "no key of the issuer verifies the signature"),
        (
            "an EC key's name for RSA",
            rs256(r#"{"alg":"RS256","kid":"ec"}"#, &good),
            "no key of the issuer verifies the signature (key id `ec`)",
        ),
        ("a key in the header", other.sign_text(&with_jwk(header, &other), &good), "no key of the issuer"),
        (
            "a token for access",
            rs256(r#"{"alg":"RS256","kid":"k","typ":"at+jwt"}"#, &good),
            "the type is `at+jwt`",
        ),
        ("a critical header", rs256(r#"{"alg":"RS256","kid":"k","crit":["exp"]}"#, &good), "critical header"),
        (
            "two algorithms",
            rs256(r#"{"alg":"none","alg":"RS256","kid":"k"}"#, &good),
            "the header cannot be read",
        ),
        ("a claim twice", rs256(header, &with(r#","sub":"admin""#)), "duplicate claim `sub`"),
        ("a nested claim twice", rs256(header, &with(r#","a":{"b":1,"b":2}"#)), "duplicate claim `a.b`"),
        (
            "deep claims",
            rs256(header, &with(&format!(",\"a\":{}{}", "[".repeat(60), "]".repeat(60)))),
            "the claims nest deeper than 32 levels",
        ),
        (
            "very deep claims",
            rs256(header, &with(&format!(",\"a\":{}{}", "[".repeat(20_000), "]".repeat(20_000)))),
            "the claims nest deeper than 32 levels",
        ),
        (
            "from the future",
            rs256(header, &claims(json!({"iat": now + 3600}))),
            "the token will be issued in",
        ),
        (
            "a clock that is far ahead",
            rs256(header, &claims(json!({"nbf": now + 400}))),
            "the token will be valid in",
        ),
        ("expired a moment ago", rs256(header, &claims(json!({"exp": now - 1}))), "the token expired"),
        ("no end", rs256(header, &claims(json!({"exp": null}))), "the claim `exp` is missing"),
        (
            "an end that is no number",
            rs256(header, &claims(json!({"exp": "9999999999"}))),
            "not a number of seconds",
        ),
        ("no object", rs256(header, "[]"), "the claims cannot be read"),
        ("two issuers", rs256(header, &with(r#","iss":"https://x""#)), "duplicate field `iss`"),
        ("no issuer", rs256(header, r#"{"aud":"x"}"#), "the token has no issuer"),
        ("no base64", format!("{}.!.x", encode(header)), "the payload is not base64url without padding"),
    ] {
        assert_eq!(who(&plane, &token).await, None, "{what}");
        logged(&plane, reason).await;
    }

    // Too large for a request's header, and small enough for a review's body.
    let group = plane.names().group("authentication");
    for (bytes, reason) in [(150_000, "duplicate claim `sub`"), (1_000_000, "the token is too long")] {
        let claims = with(&format!(",\"sub\":\"x\",\"a\":\"{}\"", "a".repeat(bytes)));
        let review = json!({"apiVersion": format!("{group}/v1"), "kind": "TokenReview",
                            "spec": {"token": rs256(header, &claims)}});
        let answer = plane.admin().post(&format!("/apis/{group}/v1/tokenreviews"), &review).await.expect(201);
        assert_ne!(answer["status"]["authenticated"], true, "{bytes}");
        logged(&plane, reason).await;
    }
    assert_eq!(name(&plane, &key.sign_text(header, &good)).await, "jane");
    // A good token is no secret of the log.
    let signature = key.sign_text(header, &good).rsplit('.').next().unwrap().to_owned();
    assert!(!plane.log().contains(&signature[..40]));
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

/// A header that brings its own key along.
fn with_jwk(header: &str, key: &Key) -> String {
    let mut header: Value = serde_json::from_str(header).unwrap();
    header["jwk"] = key.jwk();
    header.to_string()
}
