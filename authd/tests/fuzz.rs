//! Fuzz targets for the decoders of untrusted documents.
//! The inputs are configuration files, key sets, metadata and tokens. No decoder panics, and accepted input
//! has the documented properties.
//!
//! [`fuzzing::run`] describes the environment variables.

use std::sync::{Arc, LazyLock};

use apimachinery::names::{Names, Preset};
use authd::authn::jwt::{claims, discovery};
use authd::config::authentication::{self, Context, MAX_AUTHENTICATORS};
use authd::tokens::algorithm::Algorithm;
use authd::tokens::claims::unverified_issuer;
use authd::tokens::jose::{self, SignedToken};
use authd::tokens::jwk::{KeySet, MAX_KEYS};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fuzzing::run;
use jiff::Timestamp;

static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context {
    names: Arc::new(Names::new(Preset::Svc, "svc.internal").unwrap()),
    disallowed_issuers: vec!["https://own.test".to_owned()],
    anonymous_conditions: true,
});

/// Each accepted configuration has all required fields. Each error has a text, and its line is in the file.
fn configuration(data: &[u8]) {
    let lines = data.split(|byte| matches!(*byte, b'\n' | b'\r')).count();
    match authentication::read(data, &CONTEXT) {
        Ok(read) => {
            assert!(read.jwt.len() <= MAX_AUTHENTICATORS);
            for one in &read.jwt {
                assert!(
                    one.issuer.url.to_lowercase().starts_with("https://") && !one.issuer.audiences.is_empty()
                );
                assert_ne!(one.issuer.url, "https://own.test");
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty() && errors.len() <= 100);
            for error in errors {
                assert!(!error.text.is_empty());
                assert!(error.line.is_none_or(|line| line >= 1 && line <= lines + 1), "{error}");
            }
        }
    }
}

/// An accepted key set is within its limits, and a second decoding has the same result.
/// A key set verifies no random signature.
fn key_set(data: &[u8]) {
    let Ok(set) = KeySet::parse(data) else { return };
    assert!(set.len() <= MAX_KEYS && set.skipped_keys.len() <= MAX_KEYS);
    let again = KeySet::parse(data).unwrap();
    assert!(set.is_within(&again) && again.is_within(&set));
    for algorithm in Algorithm::ALL {
        let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"{algorithm}\"}}"));
        let token = format!("{header}.e30.{}", URL_SAFE_NO_PAD.encode([7; 64]));
        let signed = SignedToken::parse(&token).ok().unwrap();
        assert!(set.verify(&signed).is_none());
    }
}

/// Accepted metadata contains a JWKS URL, which is https.
fn metadata(data: &[u8]) {
    if let Ok(url) = discovery::keys_url(data, "https://a.test") {
        assert!(url.to_lowercase().starts_with("https://"));
        assert!(String::from_utf8_lossy(data).contains("jwks_uri"));
    }
}

/// Both decoders split a token in the same way; accepted claims have the checked values.
fn token(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let payload = jose::unverified_payload(&text);
    if let Ok(signed) = SignedToken::parse(&text) {
        assert_eq!(payload.as_deref(), Some(signed.unverified_payload()));
    }
    // The input is also tried as a payload without base64, so that most rounds reach the claims.
    for payload in [payload.as_deref(), Some(data)].into_iter().flatten() {
        let issuer = unverified_issuer(payload);
        let Ok(read) = claims::read(payload) else { continue };
        let audiences = ["x".to_owned()];
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        if let Ok(ends) = claims::check(&read, "https://a.test", &audiences, now) {
            assert_eq!(issuer.ok().flatten().as_deref(), Some("https://a.test"));
            assert!(ends.expires.as_second() >= now.as_second() - 1 && read.contains_key("aud"));
        }
    }
}

const CONFIGURATIONS: &[&str] = &[
    "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: https://a.test\n    discoveryURL: https://b.test/meta\n    audiences: [x, z]\n    audienceMatchPolicy: MatchAny\n  claimValidationRules:\n  - {claim: hd, requiredValue: x}\n  - {expression: 'claims.n == 1', message: m}\n  claimMappings:\n    username: {expression: 'claims.email_verified ? claims.email : claims.sub'}\n    groups: {claim: g, prefix: 'g:'}\n    uid: {claim: oid}\n    extra:\n    - {key: a.test/x, valueExpression: claims.t}\n  userValidationRules:\n  - {expression: 'size(user.groups) < 9'}\nanonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n",
    r#"{"apiVersion":"apiserver.config.svc.internal/v1beta1","kind":"AuthenticationConfiguration","jwt":[{"issuer":{"url":"https://a.test","audiences":["x"],"certificateAuthority":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"},"claimMappings":{"username":{"claim":"sub","prefix":""}}}]}"#,
    "a: &a [1]\nb: *a\n<<: {c: *a}\n",
];
const KEYS: &[&str] = &[
    r#"{"keys":[{"kty":"EC","kid":"k","use":"sig","alg":"ES256","crv":"P-256","x":"axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY","y":"T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"}]}"#,
    r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-384","x":"AA","y":"AA"},{"kty":"oct","k":"AA"}]}"#,
];
const METADATA: &[&str] = &[
    r#"{"issuer":"https://a.test","jwks_uri":"https://a.test/keys","response_types_supported":["id_token"]}"#,
];
const TOKENS: &[&str] = &[
    "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2EudGVzdCJ9.AAAA",
    r#"{"iss":"https://a.test","aud":["x","y"],"exp":1900000000,"iat":1700000000,"nbf":1700000000.5,"sub":"jane"}"#,
    r#"{"iss":"https://a.test","aud":"x","exp":19e8,"a":{"b":[1,{"c":null}]}}"#,
];

#[test]
fn fuzz_configurations() {
    run("configuration", CONFIGURATIONS, configuration);
}

#[test]
fn fuzz_key_sets() {
    run("key set", KEYS, key_set);
}

#[test]
fn fuzz_issuer_metadata() {
    run("metadata", METADATA, metadata);
}

#[test]
fn fuzz_tokens() {
    run("token", TOKENS, token);
}
