//! Fields of the authentication configuration file and their effect on tokens.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually};

use super::issuer::{ALGORITHMS, Issuer, Key};
use super::{authentication_config, token_user, token_username, wait_for_log};

/// The expected result of a token.
enum Expected {
    /// A user with these fields.
    User(Value),
    /// 401, with this reason in the log.
    Rejected(&'static str),
}
use Expected::{Rejected, User};

/// Starts a control plane with an authentication configuration file.
async fn plane(dir: &std::path::Path, text: &str) -> ControlPlane {
    let path = dir.join("authentication.yaml");
    std::fs::write(&path, text).unwrap();
    ControlPlane::start(Options::default().flag(&format!("--authentication-config={}", path.display()))).await
}

/// An authenticator: its name, its fields after `issuer`, and claims with the expected results.
type Row = (&'static str, &'static str, Vec<(Value, Expected)>);

async fn check(rows: Vec<Row>) {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    let entries: Vec<(&str, &str)> = rows.iter().map(|(name, fields, _)| (*name, *fields)).collect();
    let plane = plane(dir.path(), &authentication_config(&issuer, &entries)).await;
    for (name, _, cases) in &rows {
        for (claims, want) in cases {
            let token = key.sign("ES256", &issuer.claims(name, claims.clone()));
            let user = token_user(&plane, &token).await;
            match want {
                User(parts) => {
                    let user = user.unwrap_or_else(|| panic!("{name}: {claims} is rejected"));
                    for (part, value) in parts.as_object().unwrap() {
                        assert_eq!(&user[part], value, "{name}: {claims}: {part} of {user}");
                    }
                }
                Rejected(reason) => {
                    assert_eq!(user, None, "{name}: {claims}");
                    wait_for_log(&plane, &format!("issuer {}: {reason}", issuer.url(name))).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn claim_mappings_set_username_groups_uid_and_extra() {
    let groups = |groups: Value| json!({"groups": groups});
    check(vec![
        (
            "prefix",
            "  claimMappings: {username: {claim: sub, prefix: 'p:'}, groups: {claim: roles, prefix: 'g:'}, uid: {claim: oid}}\n",
            vec![
                (
                    json!({"oid": "7", "roles": ["a", "b"]}),
                    User(json!({"username": "p:jane", "groups": ["g:a", "g:b", "system:authenticated"], "uid": "7"})),
                ),
                (json!({"oid": "7", "roles": "a"}), User(groups(json!(["g:a", "system:authenticated"])))),
                (json!({"oid": "7"}), User(groups(json!(["system:authenticated"])))),
                (json!({"oid": "7", "roles": [1]}), Rejected("groups: the claim `roles` is neither a string nor a list")),
                (json!({}), Rejected("uid: the claim `oid` is missing")),
                (json!({"oid": "7", "sub": null}), Rejected("username: the claim `sub` is missing")),
                (json!({"oid": "7", "sub": 3}), Rejected("username: the claim `sub` is not a string")),
                (json!({"oid": "7", "sub": ""}), Rejected("username: empty")),
                (
                    json!({"oid": "7", "_claim_names": {"roles": "s"}, "_claim_sources": {"s": {"endpoint": "https://x"}}}),
                    Rejected("groups: the claim `roles` is a distributed claim, which is not supported"),
                ),
            ],
        ),
        (
            "expressions",
            "  claimMappings:\n    username: {expression: '\"x:\" + claims.sub'}\n    groups: {expression: claims.roles}\n    uid: {expression: 'claims.oid + \"-x\"'}\n    extra:\n    - {key: example.org/tenant, valueExpression: claims.t}\n    - {key: example.org/more, valueExpression: 'has(claims.m) ? claims.m : []'}\n",
            vec![
                (
                    json!({"oid": "7", "roles": ["a", "", "b"], "t": "one", "m": ["p", "q"]}),
                    User(json!({
                        "username": "x:jane", "uid": "7-x", "groups": ["a", "b", "system:authenticated"],
                        "extra": {"example.org/tenant": ["one"], "example.org/more": ["p", "q"]},
                    })),
                ),
                (
                    json!({"oid": "7", "roles": "a", "t": "", "m": []}),
                    User(json!({"groups": ["a", "system:authenticated"], "extra": null})),
                ),
                (
                    json!({"oid": "7", "roles": [], "t": null, "m": null, "jti": "id"}),
                    Rejected("extra `example.org/tenant`: `claims.t`: no such key: t"),
                ),
                (
                    json!({"oid": "7", "roles": [], "t": "a", "jti": "id"}),
                    User(json!({"extra": {
                        "example.org/tenant": ["a"], "authentication.svc.internal/credential-id": ["JTI=id"],
                    }})),
                ),
                (json!({"oid": "7", "roles": {"a": "b"}, "t": "a"}), Rejected("groups: `claims.roles`: must evaluate to string or list of strings")),
                (json!({"oid": 7, "roles": [], "t": "a"}), Rejected("uid: `claims.oid + \"-x\"`: ")),
                (
                    json!({"oid": "7", "t": "a", "_claim_names": {"roles": "s"}}),
                    Rejected("groups: `claims.roles`: no such key: roles"),
                ),
            ],
        ),
        (
            "empty",
            "  claimMappings: {username: {expression: 'claims.sub == \"jane\" ? \"\" : claims.sub'}}\n",
            vec![
                (json!({}), Rejected("username: empty")),
                (json!({"sub": "joe"}), User(json!({"username": "joe"}))),
            ],
        ),
        (
            "email",
            "  claimMappings: {username: {claim: email, prefix: ''}}\n",
            vec![
                (json!({"email": "a@b"}), User(json!({"username": "a@b"}))),
                (json!({"email": "a@b", "email_verified": true}), User(json!({"username": "a@b"}))),
                (json!({"email": "a@b", "email_verified": false}), Rejected("username: the email is not verified")),
                (json!({"email": "a@b", "email_verified": "true"}), Rejected("username: the claim `email_verified` is not true or false")),
            ],
        ),
    ])
    .await;
}

#[tokio::test]
async fn claim_and_user_validation_rules_must_all_pass() {
    const USERNAME: &str =
        "  claimMappings: {username: {claim: sub, prefix: ''}, groups: {claim: roles, prefix: ''}}\n";
    let mappings_with_rules =
        |rules: &str| -> &'static str { Box::leak(format!("{USERNAME}{rules}").into_boxed_str()) };
    check(vec![
        (
            "claim-rules",
            mappings_with_rules("  claimValidationRules:\n  - {claim: hd, requiredValue: x}\n  - {expression: 'claims.n < 10', message: n is too large}\n"),
            vec![
                (json!({"hd": "x", "n": 9}), User(json!({"username": "jane"}))),
                (json!({"hd": "y", "n": 9}), Rejected("the claim `hd` does not have the required value")),
                (json!({"n": 9}), Rejected("the required claim `hd` is missing")),
                (json!({"hd": ["x"], "n": 9}), Rejected("the required claim `hd` is not a string")),
                (json!({"hd": "x", "n": 10}), Rejected("claim rule `claims.n < 10` is not met: n is too large")),
                (json!({"hd": "x"}), Rejected("claim rule `claims.n < 10` cannot be evaluated: no such key: n")),
            ],
        ),
        (
            "user-rules",
            mappings_with_rules("  userValidationRules:\n  - {expression: '!user.username.startsWith(\"system:\")', message: reserved name}\n  - {expression: 'user.groups.all(g, !g.startsWith(\"system:\"))', message: reserved group}\n"),
            vec![
                (json!({"roles": ["a"]}), User(json!({"username": "jane"}))),
                (json!({"sub": "system:admin"}), Rejected("user rule `!user.username.startsWith(\"system:\")` is not met: reserved name")),
                (json!({"roles": ["a", "system:masters"]}), Rejected("user rule `user.groups.all(g, !g.startsWith(\"system:\"))` is not met: reserved group")),
            ],
        ),
    ])
    .await;
}

#[tokio::test]
async fn multiple_authenticators_accept_their_audiences_with_all_algorithms() {
    let (rsa, [p256, p384, p521]) =
        (Key::rsa("rsa"), ["ES256", "ES384", "ES512"].map(|name| Key::ec(name, name)));
    let issuer = Issuer::start(&[&rsa, &p256, &p384, &p521]).await;
    let dir = tempfile::tempdir().unwrap();
    let text = authentication_config(&issuer, &[("one", ""), ("two", "")]).replacen(
        "audiences: [x]",
        "audiences: [x, z]\n    audienceMatchPolicy: MatchAny",
        1,
    );
    let plane = plane(dir.path(), &text).await;
    for algorithm in ALGORITHMS {
        let key = match algorithm {
            "ES256" => &p256,
            "ES384" => &p384,
            "ES512" => &p521,
            _ => &rsa,
        };
        for (of, audience) in [("one", "x"), ("one", "z"), ("two", "x")] {
            let claims = issuer.claims(of, json!({"aud": audience, "sub": algorithm}));
            assert_eq!(token_username(&plane, &key.sign(algorithm, &claims)).await, algorithm, "{of}");
        }
    }
    let other = rsa.sign("RS256", &issuer.claims("two", json!({"aud": "z"})));
    assert_eq!(token_user(&plane, &other).await, None);
    let unknown_issuer = rsa.sign("RS256", &issuer.claims("three", json!({})));
    assert_eq!(token_user(&plane, &unknown_issuer).await, None);
    wait_for_log(&plane, &format!("no authenticator for the issuer `{}`", issuer.url("three"))).await;
    // An invalid token does not become an anonymous request. An authenticated user has no permissions by
    // default.
    let good = plane.token(&rsa.sign("RS256", &issuer.claims("one", json!({}))));
    assert_eq!(good.get("/api/v1/namespaces/default/configmaps").await.status, 403);
    assert_eq!(plane.token(&unknown_issuer).get("/api/v1/namespaces/default/configmaps").await.status, 401);
    assert_eq!(plane.token(&unknown_issuer).get("/healthz").await.status, 401);
}

#[tokio::test]
async fn discovery_url_overrides_issuer_and_discovery_failures_are_logged() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    issuer.set_response(
        "/elsewhere/meta",
        Some((
            200,
            json!({"issuer": "https://away.test", "jwks_uri": issuer.url("elsewhere/keys")}).to_string(),
        )),
    );
    issuer.set_response(
        "/liar/.well-known/openid-configuration",
        Some((200, json!({"issuer": issuer.url("other"), "jwks_uri": issuer.url("liar/keys")}).to_string())),
    );
    issuer.set_response("/silent/.well-known/openid-configuration", Some((404, String::new())));
    let mut text =
        authentication_config(&issuer, &[("override", ""), ("liar", ""), ("silent", ""), ("untrusted", "")])
            .replace(
                &issuer.url("override"),
                &format!("https://away.test\n    discoveryURL: {}", issuer.url("elsewhere/meta")),
            );
    let at = text.rfind("    certificateAuthority").unwrap();
    let end = at + text[at..].find('\n').unwrap() + 1;
    text.replace_range(at..end, "");
    let plane = plane(dir.path(), &text).await;
    let token = |iss: &str| key.sign("ES256", &issuer.claims("", json!({"iss": iss})));
    assert_eq!(token_username(&plane, &token("https://away.test")).await, "jane");
    assert_eq!(issuer.requested_paths("elsewhere"), ["/meta", "/keys"]);
    for (of, reason) in [
        ("liar", "issuer mismatch: `"),
        ("silent", "unexpected HTTP status 404 Not Found"),
        ("untrusted", "cannot connect: "),
    ] {
        assert_eq!(token_user(&plane, &token(&issuer.url(of))).await, None, "{of}");
        wait_for_log(
            &plane,
            &format!("issuer {}: the keys of the issuer are not known yet: ", issuer.url(of)),
        )
        .await;
        wait_for_log(&plane, reason).await;
    }
}

#[tokio::test]
async fn anonymous_conditions_limit_paths_and_are_reloaded() {
    let key = Key::ec("k", "ES256");
    let issuer = Issuer::start(&[&key]).await;
    let dir = tempfile::tempdir().unwrap();
    let text = authentication_config(&issuer, &[("one", "")])
        + "anonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n  - path: /readyz\n";
    let plane = plane(dir.path(), &text).await;
    let anonymous = plane.anonymous();
    for (path, want) in
        [("/livez", 200), ("/readyz", 200), ("/healthz", 401), ("/version", 401), ("/api", 401)]
    {
        assert_eq!(anonymous.get(path).await.status, want, "{path}");
    }
    assert_eq!(token_username(&plane, &key.sign("ES256", &issuer.claims("one", json!({})))).await, "jane");
    std::fs::write(dir.path().join("authentication.yaml"), text.replace("/livez", "/version")).unwrap();
    eventually("anonymous requests may get /version", || async {
        (anonymous.get("/version").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(anonymous.get("/livez").await.status, 401);
}
