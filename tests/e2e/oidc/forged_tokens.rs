//! Forged and malformed tokens: each is rejected with a reason in the log.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

use super::issuer::{Issuer, Key};
use super::{authentication_config, token_user, token_username, wait_for_log};

#[tokio::test]
async fn forged_and_malformed_tokens_are_rejected_with_logged_reason() {
    let key = Key::rsa("k");
    let ec = Key::ec("ec", "ES256");
    let issuer = Issuer::start(&[&key, &ec]).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("authentication.yaml");
    std::fs::write(&path, authentication_config(&issuer, &[("one", "")])).unwrap();
    let plane =
        ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display())))
            .await;
    let good = issuer.claims("one", json!({})).to_string();
    assert_eq!(token_username(&plane, &key.sign_text(r#"{"alg":"RS256","kid":"k"}"#, &good)).await, "jane");

    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let unsigned = |header: &str| format!("{}.{}.", encode(header), encode(&good));
    let hmac = |secret: &[u8]| {
        let input = format!("{}.{}", encode(r#"{"alg":"HS256","kid":"k"}"#), encode(&good));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), input.as_bytes());
        format!("{input}.{}", URL_SAFE_NO_PAD.encode(tag))
    };
    let rs256 = |header: &str, claims: &str| key.sign_text(header, claims);
    let header = r#"{"alg":"RS256","kid":"k"}"#;
    let claims_with = |more: &str| format!("{}{more}}}", good.strip_suffix('}').unwrap());
    let other = Key::rsa("k");
    let der = pem(&key.public_der());
    for (case, token, reason) in [
        ("no signature", unsigned(r#"{"alg":"none"}"#), "the algorithm `none` is not supported"),
        ("an empty signature", unsigned(header), "no key of the issuer verifies the signature"),
        ("an HMAC with the public key", hmac(&key.public_der()), "the algorithm `HS256` is not supported"),
        ("an HMAC with its PEM", hmac(der.as_bytes()), "the algorithm `HS256` is not supported"),
        (
            "the key of another issuer",
            other.sign_text(header, &good),
            "no key of the issuer verifies the signature",
        ),
        (
            "the key id of an EC key for RSA",
            rs256(r#"{"alg":"RS256","kid":"ec"}"#, &good),
            "no key of the issuer verifies the signature (key id `ec`)",
        ),
        ("a key in the header", other.sign_text(&with_jwk(header, &other), &good), "no key of the issuer"),
        (
            "an access token",
            rs256(r#"{"alg":"RS256","kid":"k","typ":"at+jwt"}"#, &good),
            "the type is `at+jwt`",
        ),
        ("duplicate issuer", rs256(header, &claims_with(r#","iss":"https://x""#)), "duplicate field `iss`"),
        ("no issuer", rs256(header, r#"{"aud":"x"}"#), "the token has no issuer"),
        ("invalid base64", format!("{}.!.x", encode(header)), "the payload is not base64url without padding"),
    ] {
        assert_eq!(token_user(&plane, &token).await, None, "{case}");
        wait_for_log(&plane, reason).await;
    }

    // These tokens exceed the limit of a request header but fit into the body of a TokenReview.
    let group = plane.names().group("authentication");
    for (bytes, reason) in [(150_000, "duplicate claim `sub`"), (1_000_000, "the token is too long")] {
        let claims = claims_with(&format!(",\"sub\":\"x\",\"a\":\"{}\"", "a".repeat(bytes)));
        let review = json!({"apiVersion": format!("{group}/v1"), "kind": "TokenReview",
                            "spec": {"token": rs256(header, &claims)}});
        let answer = plane.admin().post(&format!("/apis/{group}/v1/tokenreviews"), &review).await.expect(201);
        assert_ne!(answer["status"]["authenticated"], true, "{bytes}");
        wait_for_log(&plane, reason).await;
    }
    assert_eq!(token_username(&plane, &key.sign_text(header, &good)).await, "jane");
    // The log does not contain the signature of a valid token.
    let signature = key.sign_text(header, &good).rsplit('.').next().unwrap().to_owned();
    assert!(!plane.log().contains(&signature[..40]));
}

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
}

/// Adds a public key to a JWT header as `jwk`.
fn with_jwk(header: &str, key: &Key) -> String {
    let mut header: Value = serde_json::from_str(header).unwrap();
    header["jwk"] = key.jwk();
    header.to_string()
}
