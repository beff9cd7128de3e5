//! The writes of the token controllers for mirrored objects.

use apimachinery::names::Preset;
use authproto::auth::mirror_object::Kind;

use super::*;
use crate::mirror::{Contents, Mirror};
use crate::tokens::keyring::Keyring;
use crate::tokens::keys;
use crate::tokens::service_account::IssuerOptions;

fn names() -> Arc<Names> {
    Arc::new(Names::new(Preset::Kubernetes, "").unwrap())
}

fn words(text: &str) -> Vec<String> {
    text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[test]
fn controllers_flag_enables_and_disables_controllers() {
    for (flag, expected) in [
        ("", (true, true, false, false)),
        ("*", (true, true, false, false)),
        ("*,tokencleaner", (true, true, true, false)),
        ("*,bootstrapsigner,tokencleaner", (true, true, true, true)),
        ("tokencleaner", (false, false, true, false)),
        ("tokencleaner,-token-cleaner-controller", (false, false, true, false)),
        ("-tokencleaner,tokencleaner,*", (true, true, false, false)),
        ("*,-serviceaccount-token", (true, false, false, false)),
        ("*,-clusterrole-aggregation", (false, true, false, false)),
        ("clusterrole-aggregation-controller", (true, false, false, false)),
    ] {
        let enabled = EnabledControllers::parse(&words(flag));
        let values = (enabled.aggregation, enabled.tokens, enabled.cleaner, enabled.signer);
        assert_eq!(values, expected, "{flag}");
    }
    let without_entries = EnabledControllers::parse(&[String::new()]);
    assert!(!without_entries.aggregation && !without_entries.tokens, "an empty value enables nothing");
}

fn object(namespace: &str, name: &str, kind: Kind) -> auth::MirrorPut {
    let annotations = match &kind {
        Kind::Secret(secret) if secret.r#type.starts_with("kubernetes") => {
            [("kubernetes.io/service-account.name".to_owned(), "robot".to_owned())].into()
        }
        _ => Default::default(),
    };
    let object = auth::MirrorObject {
        namespace: namespace.into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        annotations,
        kind: Some(kind),
        ..auth::MirrorObject::default()
    };
    auth::MirrorPut { revision: 1, object: Some(object) }
}

fn secret(kind: &str, data: &[(&str, &str)]) -> Kind {
    let data = data.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
    Kind::Secret(auth::MirrorSecret { r#type: kind.into(), data })
}

fn bootstrap_secret(more: &[(&str, &str)]) -> Kind {
    let entries =
        [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
    let entries: Vec<_> = entries.iter().chain(more).copied().collect();
    secret("bootstrap.kubernetes.io/token", &entries)
}

/// Returns the first batch of writes for mirrored objects, as `verb namespace/name body`.
fn requested_writes(objects: Vec<auth::MirrorPut>, used: &[&str]) -> Vec<String> {
    let mirror = Mirror::new(names());
    let mut feed = mirror.begin();
    for object in objects {
        feed.put(object).unwrap();
    }
    feed.synced(1).unwrap();
    let mut controllers = TokenControllers::new(
        names(),
        None,
        EnabledControllers { aggregation: true, tokens: true, cleaner: true, signer: true },
    );
    controllers.mark_synced();
    let wall_time = Timestamp::from_second(1_000_000_000).unwrap();
    let mut used: BTreeSet<String> = used.iter().map(|key| (*key).to_owned()).collect();
    let found = feed.read(|contents| {
        controllers.required_writes(Duration::ZERO, wall_time, 1, &contents.identities, &mut used)
    });
    let Some(found) = found.unwrap() else { return Vec::new() };
    let batch = controllers.build_batch(Duration::ZERO, found.controller, found.writes()).unwrap();
    let writes = batch.writes.iter().map(|write| {
        let body = String::from_utf8_lossy(&write.body);
        format!("{} {:?} {}/{} {body}", batch.controller, write.verb(), write.namespace, write.name)
    });
    writes.collect()
}

#[test]
fn token_secret_is_deleted_with_its_account_and_filled_before() {
    let kind = "kubernetes.io/service-account-token";
    let account = || object("a", "robot", Kind::ServiceAccount(auth::MirrorServiceAccount {}));
    assert_eq!(
        requested_writes(vec![object("a", "t", secret(kind, &[]))], &[]),
        [r#"tokens-controller Delete a/t {"resourceVersion":"1","uid":"uid-of-t"}"#]
    );
    assert_eq!(
        requested_writes(vec![account(), object("a", "t", secret(kind, &[("token", "x")]))], &["a/t"]),
        [concat!(
            r#"tokens-controller Patch a/t {"data":{"namespace":"YQ=="},"metadata":{"annotations":"#,
            r#"{"kubernetes.io/service-account.uid":"uid-of-robot"},"#,
            r#""labels":{"kubernetes.io/legacy-token-last-used":"2001-09-09"}}}"#
        )]
    );
    assert_eq!(requested_writes(vec![object("a", "t", secret("Opaque", &[]))], &[]), Vec::<String>::new());
}

#[test]
fn token_secrets_are_filled_in_batches_with_back_off() {
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let key = keys::read(pem.as_bytes()).unwrap().pop().unwrap().signing;
    let ring = Keyring::new(Some(key.expect("a private key")), &[]);
    let issuer = Arc::new(Issuer::new(IssuerOptions::default(), ring, &names()));
    let mut feed = Mirror::new(names()).begin();
    feed.put(object("a", "robot", Kind::ServiceAccount(auth::MirrorServiceAccount {}))).unwrap();
    for n in 0..=MAX_TOKENS {
        let empty = secret("kubernetes.io/service-account-token", &[]);
        feed.put(object("a", &format!("t{n}"), empty)).unwrap();
    }
    feed.synced(1).unwrap();
    let enabled = EnabledControllers::parse(&[]);
    let mut controllers = TokenControllers::new(names(), Some(Arc::clone(&issuer)), enabled);
    let (now, wall_time) = (Duration::ZERO, Timestamp::UNIX_EPOCH);
    assert_eq!(controllers.next_wake_up(now, wall_time), None, "not before the snapshot");
    controllers.mark_synced();
    let required_writes = |controllers: &mut TokenControllers, now| {
        let mut used = ["a/t0".to_owned()].into();
        feed.read(|c| controllers.required_writes(now, wall_time, 1, &c.identities, &mut used)).unwrap()
    };
    let found = required_writes(&mut controllers, now).unwrap();
    let batch = controllers.build_batch(now, found.controller, found.writes()).unwrap();
    assert_eq!(batch.writes.len(), MAX_TOKENS);
    for write in &batch.writes {
        let body: Value = serde_json::from_slice(&write.body).unwrap();
        let token = STANDARD.decode(body["data"]["token"].as_str().unwrap()).unwrap();
        let claims = issuer.read(std::str::from_utf8(&token).unwrap(), wall_time).unwrap().unwrap();
        assert_eq!(claims.private.secret.unwrap().name, write.name);
    }
    assert!(
        required_writes(&mut controllers, now).is_none()
            && controllers.next_wake_up(now, wall_time).is_none()
    );
    let failed = auth::Failure { code: 500, ..auth::Failure::default() };
    controllers.handle_result(
        now,
        &auth::WriteResult { id: batch.id, outcomes: vec![Err(failed).into()], revision: 1 },
    );
    let pause = controllers.next_wake_up(now, wall_time).unwrap();
    assert!(!pause.is_zero() && required_writes(&mut controllers, now).is_none());
    assert!(required_writes(&mut controllers, now + pause).is_some());
    assert!(controllers.build_batch(now, TOKENS, Vec::new()).is_none(), "no token could be signed");
    assert!(controllers.next_wake_up(now, wall_time).unwrap() > pause);
}

#[test]
fn use_of_token_is_kept_until_its_label_is_written() {
    let mut feed = Mirror::new(names()).begin();
    feed.put(object("a", "robot", Kind::ServiceAccount(auth::MirrorServiceAccount {}))).unwrap();
    for n in 0..=MAX_WRITES {
        let filled = secret("kubernetes.io/service-account-token", &[("token", "x")]);
        feed.put(object("a", &format!("t{n:03}"), filled)).unwrap();
    }
    feed.synced(1).unwrap();
    let mut controllers = TokenControllers::new(names(), None, EnabledControllers::parse(&[]));
    controllers.mark_synced();
    let mut used: BTreeSet<String> = ["a/t000".to_owned(), format!("a/t{MAX_WRITES}")].into();
    let all_uses = used.clone();
    let mut now = Duration::ZERO;
    for _ in 0..2 {
        let required_writes = |contents: &Contents| {
            controllers.required_writes(now, Timestamp::UNIX_EPOCH, 1, &contents.identities, &mut used)
        };
        let found = feed.read(required_writes).unwrap().unwrap();
        let batch = controllers.build_batch(now, found.controller, found.writes()).unwrap();
        assert_eq!((batch.writes.len(), batch.writes[0].name.as_str()), (MAX_WRITES, "t000"));
        assert!(String::from_utf8_lossy(&batch.writes[0].body).contains("legacy-token-last-used"));
        assert_eq!(used, all_uses, "one use is beyond the batch, and the batch can fail");
        let failed = auth::Failure { code: 500, ..auth::Failure::default() };
        let result = auth::WriteResult { id: batch.id, outcomes: vec![Err(failed).into()], revision: 1 };
        controllers.handle_result(now, &result);
        now += controllers.next_wake_up(now, Timestamp::UNIX_EPOCH).unwrap();
    }
}

#[test]
fn expired_bootstrap_token_is_deleted() {
    for (expiration, is_deleted) in
        [("2001-09-09T01:46:40Z", true), ("2001-09-09T01:46:41Z", false), ("next tuesday", true), ("", false)]
    {
        let token =
            object("kube-system", "bootstrap-token-abcdef", bootstrap_secret(&[("expiration", expiration)]));
        let expected = concat!(
            "token-cleaner Delete kube-system/bootstrap-token-abcdef ",
            r#"{"resourceVersion":"1","uid":"uid-of-bootstrap-token-abcdef"}"#
        );
        let expected = is_deleted.then_some(expected);
        assert_eq!(requested_writes(vec![token], &[]), Vec::from_iter(expected), "{expiration}");
    }
}

#[test]
fn cluster_info_is_signed_by_each_signing_bootstrap_token() {
    let info = |extra: &[(&str, &str)]| {
        let entries = [("kubeconfig", "k")].iter().chain(extra);
        let data = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        object("kube-public", "cluster-info", Kind::ConfigMap(auth::MirrorConfigMap { data }))
    };
    let token =
        |more: &[(&str, &str)]| object("kube-system", "bootstrap-token-abcdef", bootstrap_secret(more));
    let signature = sign_detached("k", "abcdef", "abcdef.0123456789abcdef");
    let writes = requested_writes(vec![info(&[]), token(&[])], &[]);
    let expected = format!(
        r#"bootstrap-signer Patch kube-public/cluster-info {{"data":{{"jws-kubeconfig-abcdef":"{signature}"}}}}"#
    );
    assert_eq!(writes, [expected]);
    assert!(
        requested_writes(vec![info(&[("jws-kubeconfig-abcdef", &signature)]), token(&[])], &[]).is_empty()
    );
    let removed =
        [r#"bootstrap-signer Patch kube-public/cluster-info {"data":{"jws-kubeconfig-zzzzzz":null}}"#];
    assert_eq!(requested_writes(vec![info(&[("jws-kubeconfig-zzzzzz", "x")])], &[]), removed);
    let silent = token(&[("usage-bootstrap-signing", "false")]);
    assert!(requested_writes(vec![info(&[]), silent], &[]).is_empty());
    let (header, rest) = signature.split_once("..").unwrap();
    assert_eq!(URL_SAFE_NO_PAD.decode(header).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
    assert_eq!(URL_SAFE_NO_PAD.decode(rest).unwrap().len(), 32);
}
