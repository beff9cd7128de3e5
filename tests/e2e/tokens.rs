//! Service-account tokens, bootstrap tokens, signed `cluster-info`, and impersonation.

use aws_lc_rs::{hmac, signature};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, eventually};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/svc-system/secrets";
const INFO: &str = "/api/v1/namespaces/svc-public/configmaps/cluster-info";

/// Creates the service account `robot` in the namespace `default` and returns its uid.
async fn robot(admin: &Client) -> Value {
    admin.post(ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await.expect(201)["metadata"]["uid"].clone()
}

/// Requests a token of `robot`.
async fn request_token(admin: &Client, spec: Value) -> String {
    let answer = admin.post(&format!("{ACCOUNTS}/robot/token"), &json!({"spec": spec})).await.expect(201);
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// The user of a client from a SelfSubjectReview; `None` if the response is 401.
async fn self_review(plane: &ControlPlane, client: &Client, headers: &[(&str, &str)]) -> Option<Value> {
    let group = plane.names().group("authentication");
    let body = json!({"apiVersion": format!("{group}/v1"), "kind": "SelfSubjectReview"}).to_string();
    let url = format!("/apis/{group}/v1/selfsubjectreviews");
    let headers = [&[("content-type", "application/json")], headers].concat();
    let answer = client.request("POST", &url, &headers, body.as_bytes()).await;
    (answer.status != 401).then(|| answer.expect(201)["status"]["userInfo"].clone())
}

fn decoded(part: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(part).expect("base64url without padding")
}

/// Splits a JWT into header, claims, signed text and signature.
fn jwt(token: &str) -> (Value, Value, String, Vec<u8>) {
    let [header, claims, signed] = token.split('.').collect::<Vec<_>>()[..] else {
        panic!("three parts: {token}")
    };
    let json = |part: &str| serde_json::from_slice(&decoded(part)).expect("JSON");
    (json(header), json(claims), format!("{header}.{claims}"), decoded(signed))
}

#[tokio::test]
async fn service_account_token_has_requested_claims_and_ends_with_account() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let uid = robot(&admin).await;
    let token = request_token(&admin, json!({})).await;
    let user = self_review(&plane, &plane.token(&token), &[]).await.expect("the token is good");
    assert_eq!((&user["username"], &user["uid"]), (&json!("system:serviceaccount:default:robot"), &uid));
    assert_eq!(
        user["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"])
    );

    let (header, claims, signed, signature) = jwt(&token);
    let extra = plane.names().credential_id_extra();
    let id = claims["jti"].as_str().expect("an id");
    assert_eq!(user["extra"], json!({extra: [format!("JTI={id}")]}));
    assert_eq!(claims["sub"], user["username"]);
    let private = &claims[plane.names().label_key("").trim_end_matches('/')];
    assert_eq!(private["namespace"], "default");
    assert_eq!(private["serviceaccount"], json!({"name": "robot", "uid": uid}));
    let number = |claim: &str| claims[claim].as_i64().expect(claim);
    assert_eq!((number("exp") - number("iat"), number("nbf")), (3600, number("iat")));

    // The published JWKS verifies the token.
    let found = plane.token(&token).get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(found["issuer"], claims["iss"]);
    assert!(found["jwks_uri"].as_str().expect("an address").ends_with("/openid/v1/jwks"), "{found}");
    let keys = plane.token(&token).get("/openid/v1/jwks").await.expect(200);
    let keys = keys["keys"].as_array().expect("keys");
    let key = keys.iter().find(|key| key["kid"] == header["kid"]).expect("the key that the header names");
    let part = |name: &str| decoded(key[name].as_str().expect(name));
    match header["alg"].as_str() {
        Some("ES256") => {
            let point = [vec![4], part("x"), part("y")].concat();
            let key = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point);
            key.verify(signed.as_bytes(), &signature).expect("the signature fits");
        }
        Some("RS256") => {
            let key = signature::RsaPublicKeyComponents { n: part("n"), e: part("e") };
            let algorithm = &signature::RSA_PKCS1_2048_8192_SHA256;
            key.verify(algorithm, signed.as_bytes(), &signature).expect("the signature fits");
        }
        other => panic!("{other:?}"),
    }

    // The server honors the requested lifetime within its limits, and the requested audiences.
    let (_, claims, ..) = jwt(&request_token(&admin, json!({"expirationSeconds": 7200})).await);
    assert_eq!(
        claims["exp"].as_i64().zip(claims["iat"].as_i64()).map(|(end, start)| end - start),
        Some(7200)
    );
    let short = json!({"spec": {"expirationSeconds": 599}});
    admin.post(&format!("{ACCOUNTS}/robot/token"), &short).await.expect(422);
    let other_audience = request_token(&admin, json!({"audiences": ["elsewhere"]})).await;
    assert_eq!(jwt(&other_audience).1["aud"], json!(["elsewhere"]));
    assert_eq!(
        self_review(&plane, &plane.token(&other_audience), &[]).await,
        None,
        "the token has another audience"
    );

    admin.delete(&format!("{ACCOUNTS}/robot")).await.expect(200);
    assert_eq!(self_review(&plane, &plane.token(&token), &[]).await, None);
    robot(&admin).await;
    assert_eq!(
        self_review(&plane, &plane.token(&token), &[]).await,
        None,
        "a new service account with the same name has another uid"
    );
}

#[tokio::test]
async fn bound_token_is_rejected_after_object_deletion() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    robot(&admin).await;
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/default/pods";
    let pod = admin.post(pods, &pod).await.expect(201);
    let secrets = "/api/v1/namespaces/default/secrets";
    admin.post(secrets, &json!({"metadata": {"name": "s"}})).await.expect(201);
    let node = admin.post("/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await.expect(201);
    for (kind, name, path) in [
        ("Pod", "p", format!("{pods}/p?gracePeriodSeconds=0")),
        ("Secret", "s", format!("{secrets}/s")),
        ("Node", "n", "/api/v1/nodes/n".to_owned()),
    ] {
        let reference = json!({"apiVersion": "v1", "kind": kind, "name": name});
        let token = request_token(&admin, json!({"boundObjectRef": reference})).await;
        let client = plane.token(&token);
        let user = self_review(&plane, &client, &[]).await.expect(kind);
        let (one, uid) = match kind {
            "Pod" => ("pod", &pod["metadata"]["uid"]),
            "Node" => ("node", &node["metadata"]["uid"]),
            _ => ("", &Value::Null),
        };
        if !one.is_empty() {
            for (part, value) in [("name", &json!(name)), ("uid", uid)] {
                let key = plane.names().label_sub_key("authentication", &format!("{one}-{part}"));
                assert_eq!(user["extra"][key.as_str()], json!([value]), "{user}");
            }
        }
        admin.delete(&path).await.expect(200);
        assert_eq!(self_review(&plane, &client, &[]).await, None, "{kind}");
        let again = json!({"spec": {"boundObjectRef": reference}});
        admin.post(&format!("{ACCOUNTS}/robot/token"), &again).await.expect(404);
    }
}

#[tokio::test]
async fn service_account_token_flags_are_applied() {
    let flags = [
        "--service-account-issuer=https://issuer.example",
        "--api-audiences=one,two",
        "--service-account-jwks-uri=https://keys.example/jwks",
        "--service-account-max-token-expiration=2h",
        "--service-account-lookup=false",
    ];
    let options = flags.iter().fold(Options::default(), |options, flag| options.flag(flag));
    let plane = ControlPlane::start(options).await;
    let admin = plane.admin();
    robot(&admin).await;
    let token = request_token(&admin, json!({"expirationSeconds": 1_000_000})).await;
    let (_, claims, ..) = jwt(&token);
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!("https://issuer.example"), &json!(["one", "two"])));
    assert_eq!(
        claims["exp"].as_i64().zip(claims["iat"].as_i64()).map(|(end, start)| end - start),
        Some(7200)
    );
    let found = admin.get("/.well-known/openid-configuration").await.expect(200);
    assert_eq!(found["jwks_uri"], "https://keys.example/jwks");
    admin.delete(&format!("{ACCOUNTS}/robot")).await.expect(200);
    assert!(
        self_review(&plane, &plane.token(&token), &[]).await.is_some(),
        "the server does not check that the service account exists"
    );
}

#[tokio::test]
async fn service_account_secret_gets_token_without_expiry() {
    let plane = ControlPlane::start(Options::default()).await;
    let (admin, names) = (plane.admin(), plane.names());
    let uid = robot(&admin).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let kind = names.label_key("service-account-token");
    let account_annotations = |account: &str| json!({names.label_key("service-account.name"): account});
    let secret =
        json!({"metadata": {"name": "s", "annotations": account_annotations("robot")}, "type": kind});
    admin.post(secrets, &secret).await.expect(201);
    let path = format!("{secrets}/s");
    let secret = eventually("the Secret has a token", || async {
        let secret = admin.get(&path).await.expect(200);
        secret["data"]["token"].is_string().then_some(secret)
    })
    .await;
    assert_eq!(secret["metadata"]["annotations"][names.label_key("service-account.uid").as_str()], uid);
    let token = STANDARD.decode(secret["data"]["token"].as_str().expect("text")).expect("base64");
    let token = String::from_utf8(token).expect("text");
    assert!(jwt(&token).1.get("exp").is_none());
    let user = self_review(&plane, &plane.token(&token), &[]).await.expect("the token is good");
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    let used = names.label_key("legacy-token-last-used");
    eventually("the label of the last use is set", || async {
        admin.get(&path).await.expect(200)["metadata"]["labels"][used.as_str()].as_str().map(|_| ())
    })
    .await;
    admin.delete(&format!("{ACCOUNTS}/robot")).await.expect(200);
    assert_eq!(self_review(&plane, &plane.token(&token), &[]).await, None);
    eventually("the Secret is deleted with its service account", || async {
        (admin.get(&path).await.status == 404).then_some(())
    })
    .await;
}

/// The Secret of a valid bootstrap token.
fn bootstrap(plane: &ControlPlane) -> Value {
    json!({"metadata": {"name": "bootstrap-token-abcdef"},
        "type": plane.names().label_sub_key("bootstrap", "token"),
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true"}})
}

const BOOTSTRAP: &str = "abcdef.0123456789abcdef";

#[tokio::test]
async fn bootstrap_token_follows_its_secret() {
    let plane =
        ControlPlane::start(Options::default().flag("--enable-bootstrap-token-auth").flag("-v=8")).await;
    let (admin, client) = (plane.admin(), plane.token(BOOTSTRAP));
    let good = bootstrap(&plane);
    let (mut renamed, mut grouped) = (good.clone(), good.clone());
    renamed["metadata"]["name"] = json!("bootstrap-token-zzzzzz");
    grouped["stringData"]["auth-extra-groups"] = json!("system:bootstrappers:a,system:bootstrappers:b");
    let system = "svc-system";
    for (case, namespace, secret, expected) in [
        ("as it stands", system, good.clone(), Some(json!(["system:bootstrappers", "system:authenticated"]))),
        (
            "more groups",
            system,
            grouped,
            Some(json!([
                "system:bootstrappers",
                "system:bootstrappers:a",
                "system:bootstrappers:b",
                "system:authenticated"
            ])),
        ),
        ("another namespace", "default", good.clone(), None),
        ("another name", system, renamed, None),
    ] {
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        let stored = admin.post(&secrets, &secret).await.expect(201);
        assert_eq!(stored["data"]["token-id"], STANDARD.encode("abcdef"), "{case}");
        let user = self_review(&plane, &client, &[]).await;
        assert_eq!(user.as_ref().map(|user| user["groups"].clone()), expected, "{case}");
        assert!(user.is_none_or(|user| user["username"] == "system:bootstrap:abcdef"), "{case}");
        let name = secret["metadata"]["name"].as_str().expect("a name");
        admin.delete(&format!("{secrets}/{name}")).await.expect(200);
        assert_eq!(self_review(&plane, &client, &[]).await, None, "{case}: its Secret is gone");
    }
    // A Secret with a deletion timestamp no longer authenticates.
    let mut changed = good.clone();
    changed["metadata"]["finalizers"] = json!(["example.com/hold"]);
    admin.post(SECRETS, &changed).await.expect(201);
    assert!(self_review(&plane, &client, &[]).await.is_some());
    admin.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await.expect(200);
    admin.get(&format!("{SECRETS}/bootstrap-token-abcdef")).await.expect(200);
    assert_eq!(self_review(&plane, &client, &[]).await, None);
    assert!(!plane.log().contains("0123456789abcdef"), "the log contains no token secret");
}

#[tokio::test]
async fn bootstrap_tokens_are_off_without_flag() {
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    admin.post(SECRETS, &bootstrap(&plane)).await.expect(201);
    assert_eq!(self_review(&plane, &plane.token(BOOTSTRAP), &[]).await, None);

    // The signer and the cleaner are off without their flag. The Secret that gets a token shows that
    // controllers run.
    let mut expired = bootstrap(&plane);
    expired["metadata"]["name"] = json!("bootstrap-token-zzzzzz");
    expired["stringData"]["token-id"] = json!("zzzzzz");
    expired["stringData"]["expiration"] = json!("2001-01-01T00:00:00Z");
    admin.post(SECRETS, &expired).await.expect(201);
    let info = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "x"}});
    admin.post(INFO.trim_end_matches("/cluster-info"), &info).await.expect(201);
    robot(&admin).await;
    let names = plane.names();
    let later = json!({"metadata": {"name": "s", "annotations": {names.label_key("service-account.name"): "robot"}},
        "type": names.label_key("service-account-token")});
    admin.post("/api/v1/namespaces/default/secrets", &later).await.expect(201);
    eventually("the Secret has a token", || async {
        let secret = admin.get("/api/v1/namespaces/default/secrets/s").await.expect(200);
        secret["data"]["token"].as_str().map(|_| ())
    })
    .await;
    admin.get(&format!("{SECRETS}/bootstrap-token-zzzzzz")).await.expect(200);
    assert_eq!(admin.get(INFO).await.expect(200)["data"], json!({"kubeconfig": "x"}));
}

#[tokio::test]
async fn cluster_info_is_signed_with_bootstrap_tokens() {
    let controllers =
        "--controllers=*,-root-ca-certificate-publisher-controller,tokencleaner,bootstrapsigner";
    let plane = ControlPlane::start(Options::default().flag(controllers)).await;
    let admin = plane.admin();
    let cluster = json!({"server": "https://127.0.0.1:6443", "certificate-authority-data": "YQ=="});
    let config = |name: &str| {
        let config =
            json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": name, "cluster": cluster}]});
        config.to_string()
    };
    let info = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": config("one")}});
    for namespace in ["svc-public", "default"] {
        admin.post(&format!("/api/v1/namespaces/{namespace}/configmaps"), &info).await.expect(201);
    }
    admin.post(SECRETS, &bootstrap(&plane)).await.expect(201);
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]}]);
    plane.grant("svc-public", "info", "Group/system:unauthenticated", &rules).await;

    let unsigned_path = "/api/v1/namespaces/default/configmaps/cluster-info";
    let anonymous = plane.anonymous();
    let signed = async |case: &str, good: &dyn Fn(&Value) -> bool| {
        eventually(case, || async {
            let data = anonymous.get(INFO).await.expect(200)["data"].clone();
            good(&data).then_some(data)
        })
        .await
    };
    let mut before = Value::Null;
    for name in ["one", "two"] {
        let text = config(name);
        admin
            .patch(INFO, "application/merge-patch+json", &json!({"data": {"kubeconfig": text}}))
            .await
            .expect(200);
        let data = signed("a signature", &|data| {
            data["jws-kubeconfig-abcdef"].is_string() && data["jws-kubeconfig-abcdef"] != before
        })
        .await;
        before = data["jws-kubeconfig-abcdef"].clone();
        let read: Value =
            serde_json::from_str(data["kubeconfig"].as_str().expect("text")).expect("a configuration");
        assert_eq!((&read["kind"], &read["clusters"][0]["cluster"]), (&json!("Config"), &cluster));
        let (header, signature) = before.as_str().and_then(|text| text.split_once("..")).expect("detached");
        let whole = format!("{header}.{}", URL_SAFE_NO_PAD.encode(&text));
        let key = hmac::Key::new(hmac::HMAC_SHA256, BOOTSTRAP.as_bytes());
        hmac::verify(&key, whole.as_bytes(), &decoded(signature)).expect("the signature fits");
        let header: Value = serde_json::from_slice(&decoded(header)).expect("JSON");
        assert_eq!(header, json!({"alg": "HS256", "kid": "abcdef"}));
        let patch = json!({"data": {"kubeconfig": text}});
        let other = admin.patch(unsigned_path, "application/merge-patch+json", &patch).await.expect(200);
        assert_eq!(
            other["data"].as_object().map(serde_json::Map::len),
            Some(1),
            "only one namespace is signed"
        );
    }
    admin.delete(&format!("{SECRETS}/bootstrap-token-abcdef")).await.expect(200);
    signed("the signature is removed with its token", &|data| data.get("jws-kubeconfig-abcdef").is_none())
        .await;

    // An expired bootstrap token signs nothing, and the token cleaner deletes it.
    let mut expired = bootstrap(&plane);
    expired["stringData"]["expiration"] = json!("2001-01-01T00:00:00Z");
    admin.post(SECRETS, &expired).await.expect(201);
    eventually("the token cleaner deletes the Secret", || async {
        (admin.get(&format!("{SECRETS}/bootstrap-token-abcdef")).await.status == 404).then_some(())
    })
    .await;
    for path in [INFO, unsigned_path] {
        let data = admin.get(path).await.expect(200)["data"].clone();
        assert!(data.get("jws-kubeconfig-abcdef").is_none(), "{path}: {data}");
    }
}

#[tokio::test]
async fn impersonation_replaces_user_and_is_audited() {
    let audit = AuditLog::new();
    let plane = ControlPlane::start(Options::default().flag(&audit.flag())).await;
    let admin = plane.admin();
    let other = [
        ("impersonate-user", "eve"),
        ("impersonate-group", "team-x"),
        ("impersonate-group", "team-y"),
        ("impersonate-uid", "eve-uid"),
        ("impersonate-extra-scopes", "read"),
        ("impersonate-extra-scopes", "write"),
    ];
    let user = self_review(&plane, &admin, &other).await.expect("a response");
    assert_eq!(
        user,
        json!({"username": "eve", "uid": "eve-uid", "groups": ["team-x", "team-y", "system:authenticated"],
            "extra": {"scopes": ["read", "write"]}})
    );
    for (name, groups) in [
        ("eve", json!(["system:authenticated"])),
        (
            "system:serviceaccount:a:b",
            json!(["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"]),
        ),
    ] {
        let user = self_review(&plane, &admin, &[("impersonate-user", name)]).await.expect("a response");
        assert_eq!((&user["username"], &user["groups"]), (&json!(name), &groups));
    }

    // Impersonation needs the `impersonate` verb. Then only permissions of the impersonated user apply.
    let maps = "/api/v1/namespaces/default/configmaps";
    let refused = plane.user("alice").request("GET", maps, &[("impersonate-user", "admin")], b"").await;
    let message = refused.expect(403)["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(r#"cannot impersonate resource "users""#), "{message}");
    let refused = admin.request("GET", maps, &[("impersonate-user", "eve")], b"").await;
    let message = refused.expect(403)["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains(r#"User "eve" cannot list"#), "{message}");
    let half = admin.request("GET", maps, &[("impersonate-group", "team-x")], b"").await;
    assert!(half.status >= 400 && half.json()["kind"] == "Status", "{half:?}");

    let is_impersonated = |event: &Value| event["impersonatedUser"]["uid"] == "eve-uid";
    let event = audit.event("the audit log has the impersonated user", is_impersonated).await;
    assert_eq!(
        (&event["user"]["username"], &event["impersonatedUser"]["username"]),
        (&json!("admin"), &json!("eve"))
    );
}

#[tokio::test]
async fn impersonation_of_each_attribute_requires_its_own_permission() {
    let plane = ControlPlane::start(Options::default()).await;
    let (alice, authentication) = (plane.user("alice"), plane.names().group("authentication"));
    let account = "system:serviceaccount:default:robot";
    let eve = ("impersonate-user", "eve");
    for (index, (group, resource, name, headers)) in [
        ("", "users", "eve", vec![eve]),
        ("", "groups", "team-x", vec![eve, ("impersonate-group", "team-x")]),
        (authentication.as_str(), "uids", "u1", vec![eve, ("impersonate-uid", "u1")]),
        (
            authentication.as_str(),
            "userextras/scopes",
            "read",
            vec![eve, ("impersonate-extra-scopes", "read")],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let refused = alice.request("GET", "/version", &headers, b"").await.expect(403);
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains(&format!("cannot impersonate resource \"{resource}\"")), "{message}");
        let rules = json!([
            {"apiGroups": [group], "resources": [resource], "resourceNames": [name], "verbs": ["impersonate"]}]);
        plane.grant("", &format!("as-{index}"), "User/alice", &rules).await;
        assert_eq!(
            self_review(&plane, &alice, &headers).await.expect("a response")["username"],
            "eve",
            "{resource}"
        );
    }
    // A Role permits impersonation of service accounts in its own namespace only.
    let rules = json!([{"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}]);
    alice.request("GET", "/version", &[("impersonate-user", account)], b"").await.expect(403);
    plane.grant("default", "as", "User/alice", &rules).await;
    let user = self_review(&plane, &alice, &[("impersonate-user", account)]).await.expect("a response");
    assert_eq!(user["username"], account);
    let other_namespace = [("impersonate-user", "system:serviceaccount:svc-system:robot")];
    alice.request("GET", "/version", &other_namespace, b"").await.expect(403);
}

#[tokio::test]
async fn self_subject_review_is_open_to_authenticated_users() {
    let plane = ControlPlane::start(Options::default()).await;
    let group = plane.names().group("authentication");
    let reviews = format!("/apis/{group}/v1/selfsubjectreviews");
    let bob = plane.user("bob");
    let user = self_review(&plane, &bob, &[]).await.expect("a response");
    assert_eq!(
        (&user["uid"], &user["groups"]),
        (&json!("bob-uid"), &json!(["team-a", "team-b", "system:authenticated"]))
    );
    let listed = bob.get(&format!("/apis/{group}/v1")).await.expect(200);
    let resources = listed["resources"].as_array().expect("resources").clone();
    assert!(resources.iter().any(|resource| resource["name"] == "selfsubjectreviews"), "{listed}");
    // The server ignores a spec in a SelfSubjectReview.
    let spec = json!({"spec": {"user": "admin"}});
    let answer = bob.post(&reviews, &spec).await.expect(201);
    assert_eq!((&answer["status"]["userInfo"]["username"], answer.get("spec")), (&json!("bob"), None));
    bob.post(&format!("{reviews}?fieldValidation=Strict"), &spec).await.expect(400);
    plane.anonymous().post(&reviews, &json!({})).await.expect(403);

    let rbac = plane.names().group("rbac.authorization");
    let admin = plane.admin();
    let role = admin.get(&format!("/apis/{rbac}/v1/clusterroles/system:basic-user")).await.expect(200);
    assert!(
        role["rules"].as_array().expect("rules").iter().any(|rule| {
            let has =
                |list: &Value, item: &str| list.as_array().is_some_and(|list| list.contains(&json!(item)));
            has(&rule["apiGroups"], &group)
                && has(&rule["resources"], "selfsubjectreviews")
                && has(&rule["verbs"], "create")
        }),
        "{role}"
    );
    admin.delete(&format!("/apis/{rbac}/v1/clusterrolebindings/system:basic-user")).await.expect(200);
    bob.post(&reviews, &json!({})).await.expect(403);
}
