//! Credentials over gRPC.

use std::time::Duration;

use authproto::auth;
use authproto::auth::decide_request::Query;
use authproto::auth::decide_response::Answer;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

use super::harness::Authd;

fn token(token: &str) -> auth::AuthenticateRequest {
    auth::AuthenticateRequest { bearer_token: token.to_owned(), ..auth::AuthenticateRequest::default() }
}

fn chain(chain: &[&[u8]]) -> auth::AuthenticateRequest {
    let certificate_chain = chain.iter().map(|der| der.to_vec()).collect();
    auth::AuthenticateRequest { certificate_chain, ..auth::AuthenticateRequest::default() }
}

#[tokio::test]
async fn static_tokens_and_anonymous_requests_are_authenticated() {
    let authd = Authd::start(&["--authorization-mode=RBAC", "--api-audiences=api"]).await;
    let mut decide = authd.decide().await;

    let identity = decide.authenticate(token("alice-token")).await.unwrap();
    let user = identity.user.unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("alice", "alice-uid"));
    assert_eq!(user.groups, ["team-a", "system:authenticated"]);
    assert!(!identity.anonymous && identity.audiences.is_empty() && identity.expires_at_ms == 0);

    let audiences = vec!["other".to_owned(), "api".to_owned()];
    let identity =
        decide.authenticate(auth::AuthenticateRequest { audiences, ..token("alice-token") }).await.unwrap();
    assert_eq!(identity.audiences, ["api"]);
    let audiences = vec!["other".to_owned()];
    assert!(
        decide.authenticate(auth::AuthenticateRequest { audiences, ..token("alice-token") }).await.is_err()
    );

    let detail = decide.authenticate(token("wrong-token")).await.unwrap_err();
    assert_eq!(detail, "token-file: the token is not in the file");

    let identity = decide.authenticate(token("")).await.unwrap();
    let user = identity.user.unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups.as_slice()),
        ("system:anonymous", &["system:unauthenticated".to_owned()][..])
    );
    assert!(identity.anonymous);
}

#[tokio::test]
async fn anonymous_access_off_rejects_request_without_credentials() {
    let authd = Authd::start(&["--authorization-mode=RBAC", "--anonymous-auth=false"]).await;
    let detail = authd.decide().await.authenticate(token("")).await.unwrap_err();
    assert_eq!(detail, "no credentials, and anonymous access is off");
    // AlwaysAllow turns anonymous access off by default.
    let authd = Authd::start(&[]).await;
    assert!(authd.decide().await.authenticate(token("")).await.is_err());
}

/// Certificate parameters valid from an hour ago until `hours` from now.
fn params(name: &str, organization: Option<&str>, hours: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(organization) = organization {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    let now = unix_seconds_now();
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now - 7200);
    params.not_after =
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.saturating_add_signed(hours * 3600));
    params
}

fn unix_seconds_now() -> u64 {
    use apimachinery::clock::{Clock, SystemClock};
    SystemClock::new().now().as_second().unsigned_abs()
}

fn authority(name: &str) -> CertificateParams {
    let mut params = params(name, None, 24);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn client(name: &str, organization: &str, hours: i64) -> CertificateParams {
    let mut params = params(name, Some(organization), hours);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

#[tokio::test]
async fn only_certificates_of_configured_ca_are_accepted() {
    let key = || KeyPair::generate().unwrap();
    let root = CertifiedIssuer::self_signed(authority("root"), key()).unwrap();
    let other = CertifiedIssuer::self_signed(authority("root"), key()).unwrap();
    let middle = CertifiedIssuer::signed_by(authority("middle"), key(), &root).unwrap();
    let leaf = |params: CertificateParams, issuer: &CertifiedIssuer<'static, KeyPair>| {
        params.signed_by(&key(), issuer).unwrap().der().to_vec()
    };

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, root.pem()).unwrap();
    let flag = format!("--client-ca-file={}", file.display());
    let authd = Authd::start(&["--authorization-mode=RBAC", &flag]).await;
    let mut decide = authd.decide().await;

    let good = leaf(client("jane", "dev", 1), &root);
    let identity = decide.authenticate(chain(&[&good])).await.unwrap();
    let user = identity.user.unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups.as_slice()),
        ("jane", &["dev".to_owned(), "system:authenticated".into()][..])
    );
    let credential = &user.extra["authentication.kubernetes.io/credential-id"].items;
    assert!(credential[0].starts_with("X509SHA256=") && credential.len() == 1, "{credential:?}");
    assert!(identity.expires_at_ms > 0);

    let leaf_of_middle = leaf(client("joe", "ops", 1), &middle);
    assert_eq!(
        decide.authenticate(chain(&[&leaf_of_middle, middle.der()])).await.unwrap().user.unwrap().name,
        "joe"
    );

    let mut server = client("jane", "dev", 1);
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for (case, request) in [
        ("another authority", chain(&[&leaf(client("jane", "dev", 1), &other)])),
        ("expired", chain(&[&leaf(client("jane", "dev", -1), &root)])),
        ("for servers", chain(&[&leaf(server, &root)])),
        ("no intermediate", chain(&[&leaf_of_middle])),
        ("garbage", chain(&[&[0x30, 0x82, 1, 2, 3]])),
    ] {
        let detail = decide.authenticate(request).await.unwrap_err();
        assert!(detail.starts_with("x509: "), "{case}: {detail}");
    }

    // Every credential is tried: a valid token beside an invalid certificate, and vice versa.
    let bad = leaf(client("jane", "dev", 1), &other);
    let with_both_credentials =
        auth::AuthenticateRequest { bearer_token: "alice-token".into(), ..chain(&[&bad]) };
    assert_eq!(decide.authenticate(with_both_credentials).await.unwrap().user.unwrap().name, "alice");
    let with_both_credentials = auth::AuthenticateRequest { bearer_token: "wrong".into(), ..chain(&[&good]) };
    assert_eq!(decide.authenticate(with_both_credentials).await.unwrap().user.unwrap().name, "jane");
}

/// A token webhook that never responds gets thousands of tokens at once.
/// While these requests wait, users of other authenticators still authenticate.
#[tokio::test]
async fn hanging_token_webhook_does_not_block_other_authenticators() {
    const FLOOD: usize = 3000;
    let service = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("webhook.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters: [{{name: it, cluster: {{server: 'https://{}/'}}}}]\nusers: []\n\
         contexts: [{{name: here, context: {{cluster: it}}}}]\n",
        service.local_addr().unwrap()
    );
    std::fs::write(&config, text).unwrap();
    let webhook = format!("--authentication-token-webhook-config-file={}", config.display());
    let authd = Authd::start(&["--authorization-mode=RBAC", &webhook]).await;
    let mut flood = authd.decide().await;
    for i in 0..FLOOD {
        flood.send(Some(Query::Authenticate(token(&format!("opaque-{i}"))))).await;
    }
    // 1,024 requests wait for the webhook; the others fail at once.
    for _ in 0..FLOOD - 1024 {
        let is_rejected = match flood.next().await.answer.unwrap() {
            Answer::Authenticate(answer) => {
                matches!(answer.outcome, Some(auth::authenticate_response::Outcome::Rejected(_)))
            }
            Answer::Failure(_) => true,
            other => panic!("{other:?}"),
        };
        assert!(is_rejected);
    }
    let identity = authd.decide().await.authenticate(token("alice-token")).await.unwrap();
    assert_eq!(identity.user.unwrap().name, "alice");
}
