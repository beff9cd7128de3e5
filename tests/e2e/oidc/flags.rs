//! The `--oidc-*` flags: one issuer without a configuration file.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, program};

use super::issuer::{ALGORITHMS, Issuer, Key};
use super::{token_user, token_username, wait_for_log};

/// Starts a control plane with the issuer `one` and additional flags.
async fn plane(issuer: &Issuer, flags: &[&str]) -> ControlPlane {
    let mut options = Options::default()
        .flag(&format!("--oidc-issuer-url={}", issuer.url("one")))
        .flag("--oidc-client-id=x")
        .flag(&format!("--oidc-ca-file={}", issuer.ca_file().display()));
    for flag in flags {
        options = options.flag(flag);
    }
    ControlPlane::start(options).await
}

#[tokio::test]
async fn id_token_maps_to_prefixed_user_without_permissions() {
    let key = Key::rsa("k");
    let issuer = Issuer::start(&[&key]).await;
    let plane = plane(&issuer, &[]).await;
    let good = key.sign("RS256", &issuer.claims("one", json!({})));
    let user = token_user(&plane, &good).await.expect("the token is good");
    assert_eq!(user["username"], format!("{}#jane", issuer.url("one")));
    assert_eq!(user["groups"], json!(["system:authenticated"]));
    assert_eq!(plane.token(&good).get("/api/v1/namespaces/default/configmaps").await.status, 403);
    assert_eq!(plane.admin().get("/login").await.status, 404, "the server has no login endpoint");
    assert_eq!(issuer.requested_paths("one"), ["/.well-known/openid-configuration", "/keys"]);

    let (head, tail) = good.rsplit_once('.').expect("three parts");
    let bent = format!("{head}.{}{}", if tail.starts_with('A') { 'B' } else { 'A' }, &tail[1..]);
    let claims = |more: Value| key.sign("RS256", &issuer.claims("one", more));
    let now = jiff::Timestamp::now().as_second();
    for (token, reason) in [
        (bent, "no key of the issuer verifies the signature"),
        (claims(json!({"exp": now - 60})), "the token expired "),
        (claims(json!({"aud": "another"})), "the token has none of the audiences x"),
        (
            key.sign_text(
                r#"{"alg":"RS256","kid":"k","typ":"at+jwt"}"#,
                &issuer.claims("one", json!({})).to_string(),
            ),
            "the type is `at+jwt`, not `JWT`",
        ),
        (
            Key::ec("k", "ES256").sign("ES256", &issuer.claims("one", json!({}))),
            "the algorithm `ES256` is not accepted",
        ),
    ] {
        assert_eq!(token_user(&plane, &token).await, None, "{reason}");
        wait_for_log(&plane, &format!("issuer {}: {reason}", issuer.url("one"))).await;
    }
    assert_eq!(token_user(&plane, "an-opaque-access-token").await, None);
    wait_for_log(&plane, "token-file: the token is not in the file").await;
    // Only the tampered signature triggers a further JWKS fetch.
    assert_eq!(issuer.requested_paths("one"), ["/.well-known/openid-configuration", "/keys", "/keys"]);

    issuer.set_unavailable(true);
    assert_eq!(
        token_username(&plane, &claims(json!({"sub": "joe"}))).await,
        format!("{}#joe", issuer.url("one"))
    );
    assert_eq!(
        issuer.requested_paths("one").len(),
        3,
        "authentication of a request sends no request to the issuer"
    );
}

#[tokio::test]
async fn oidc_flags_set_claims_prefixes_and_required_claims() {
    let key = Key::rsa("k");
    let issuer = Issuer::start(&[&key]).await;
    let one = issuer.url("one");
    for (flags, cases) in [
        (
            &["--oidc-username-claim=name", "--oidc-groups-claim=roles", "--oidc-groups-prefix=g:"][..],
            vec![
                (json!({"name": "n", "roles": ["a", "b"]}), format!("{one}#n g:a g:b system:authenticated")),
                (json!({"name": "n", "roles": "a"}), format!("{one}#n g:a system:authenticated")),
                (json!({}), String::new()),
            ],
        ),
        (
            &["--oidc-username-claim=email", "--oidc-groups-claim=roles"],
            vec![
                (json!({"email": "a@b", "roles": ["r"]}), "a@b r system:authenticated".to_owned()),
                (json!({"email": "a@b", "email_verified": false}), String::new()),
            ],
        ),
        (
            &["--oidc-username-prefix=oidc:", "--oidc-required-claim=hd=h", "--oidc-required-claim=of=o"],
            vec![
                (json!({"hd": "h", "of": "o"}), "oidc:jane system:authenticated".to_owned()),
                (json!({"hd": "h", "of": "x"}), String::new()),
                (json!({"hd": "h"}), String::new()),
            ],
        ),
        (&["--oidc-username-prefix=-"], vec![(json!({}), "jane system:authenticated".to_owned())]),
    ] {
        let plane = plane(&issuer, flags).await;
        for (claims, want) in cases {
            let user = token_user(&plane, &key.sign("RS256", &issuer.claims("one", claims.clone()))).await;
            let printed = user.map(|user| {
                let groups = user["groups"].as_array().cloned().unwrap_or_default();
                let words = std::iter::once(&user["username"]).chain(&groups);
                words.filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(printed.unwrap_or_default(), want, "{flags:?} {claims}");
        }
    }
}

#[tokio::test]
async fn signing_algorithms_are_accepted_only_if_configured() {
    let rsa = Key::rsa("rsa");
    let ec = ["ES256", "ES384", "ES512"].map(|name| Key::ec(name, name));
    let issuer = Issuer::start(&[&rsa, &ec[0], &ec[1], &ec[2]]).await;
    let token = |algorithm: &str| {
        let key = ec.iter().find(|key| key.kid == algorithm).unwrap_or(&rsa);
        key.sign(algorithm, &issuer.claims("one", json!({})))
    };
    for some in ALGORITHMS.chunks(3) {
        let plane = plane(&issuer, &[&format!("--oidc-signing-algs={}", some.join(","))]).await;
        for algorithm in ALGORITHMS {
            let accepted = token_user(&plane, &token(algorithm)).await.is_some();
            assert_eq!(accepted, some.contains(&algorithm), "{algorithm} of {some:?}");
        }
    }
}

#[tokio::test]
async fn issuer_certificate_without_configured_ca_is_rejected() {
    let key = Key::rsa("k");
    let issuer = Issuer::start(&[&key]).await;
    let token = key.sign("RS256", &issuer.claims("one", json!({})));
    let dir = tempfile::tempdir().unwrap();
    // The leaf certificate of the server is no CA certificate, and no system root has issued it.
    let own = issuer.certificate_file();
    let leaf = dir.path().join("leaf.crt");
    let pem = std::fs::read_to_string(own).unwrap();
    let end = pem.find("-----END CERTIFICATE-----").unwrap() + "-----END CERTIFICATE-----\n".len();
    std::fs::write(&leaf, &pem[..end]).unwrap();
    for (flag, reason) in [
        (Some(format!("--oidc-ca-file={}", leaf.display())), "no CA certificate (CA:TRUE) in the bundle"),
        (None, "invalid peer certificate"),
    ] {
        let mut options = Options::default()
            .flag(&format!("--oidc-issuer-url={}", issuer.url("one")))
            .flag("--oidc-client-id=x");
        if let Some(flag) = &flag {
            options = options.flag(flag);
        }
        let plane = ControlPlane::start(options).await;
        assert_eq!(token_user(&plane, &token).await, None, "{reason}");
        wait_for_log(&plane, reason).await;
    }
}

/// Runs authd with invalid flags until it exits with code 64; returns its standard error.
fn failed_startup(flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(program("authd"))
        .arg(format!("--socket={}", dir.path().join("s").display()))
        .args(["--service-account-issuer=https://own.test"])
        .args(flags)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64), "{flags:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn invalid_oidc_flags_or_file_fail_startup() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("authentication.yaml");
    let write = |text: &str| {
        let head = "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\n";
        std::fs::write(&file, format!("{head}{text}")).unwrap();
        format!("--authentication-config={}", file.display())
    };
    let one = "--oidc-issuer-url=https://a.test";
    let config = write("");
    for (flags, fault) in [
        (&[one][..], "--oidc-issuer-url and --oidc-client-id must be set"),
        (&["--oidc-client-id=x"], "--oidc-issuer-url and --oidc-client-id must be set"),
        (&["--oidc-issuer-url=http://a.test", "--oidc-client-id=x"], "URL scheme must be https"),
        (
            &["--oidc-issuer-url=https://own.test", "--oidc-client-id=x"],
            "must not overlap with disallowed issuers",
        ),
        (&[one, "--oidc-client-id=x", "--oidc-signing-algs=HS256"], "`HS256` is not supported: use RS256"),
        (&[one, "--oidc-client-id=x", "--oidc-signing-algs=none"], "`none` is not supported: use RS256"),
        (&[one, "--oidc-client-id=x", &config], "exclude each other"),
        (&[&config, "--feature-gates=StructuredAuthenticationConfiguration=false"], "needs --feature-gates"),
        (&["--authentication-config=/nonexistent"], "/nonexistent: No such file"),
    ] {
        let output = failed_startup(flags);
        assert!(output.contains(fault), "{flags:?}\n{output}");
    }
    let config = write("anonymous: {enabled: true}\n");
    assert!(
        failed_startup(&[&config, "--anonymous-auth=true"]).contains("excludes the flag --anonymous-auth")
    );
    let config = write("jwt:\n- issuer: {url: https://own.test, audiences: [x]}\n  claimMappings: {}\n");
    let output = failed_startup(&[&config]);
    for fault in ["line 4: jwt[0].issuer.url: ", "line 5: jwt[0].claimMappings.username: "] {
        assert!(output.contains(fault), "{output}");
    }
}

#[test]
fn authd_check_validates_configuration_files_offline() {
    let dir = tempfile::tempdir().unwrap();
    let (good, bad) = (dir.path().join("good.yaml"), dir.path().join("bad.yaml"));
    let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n";
    std::fs::write(&good, head).unwrap();
    std::fs::write(&bad, format!("{head}jwt:\n- issuers: {{}}\n")).unwrap();
    let check = |files: &[&std::path::Path]| {
        let mut command = std::process::Command::new(program("authd"));
        command.args(["check", "--names=kubernetes"]).args(files);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(
        check(&[&good]),
        (
            Some(0),
            format!("{}: good: AuthenticationConfiguration: 0 JWT authenticators\n", good.display()),
            String::new()
        )
    );
    let (code, output, faults) = check(&[&good, &bad, &dir.path().join("absent")]);
    assert_eq!((code, output.lines().count()), (Some(1), 1));
    let unknown = format!("{}:4: strict decoding error: unknown field \"jwt[0].issuers\"", bad.display());
    assert!(faults.contains(&unknown) && faults.contains("absent: No such file"), "{faults}");
    assert_eq!(check(&[]).0, Some(64));
}
