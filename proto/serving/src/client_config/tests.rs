//! Tests of every field, of every error, and of arbitrary input.

use super::*;
use apimachinery::names::Preset;

fn names() -> Names {
    Names::new(Preset::Svc, "example.test").unwrap()
}

fn parse(text: &str) -> Result<ClientConfig, Vec<String>> {
    ClientConfig::parse(text.as_bytes(), Path::new("/etc/webhook/config")).map_err(|e| e.errors)
}

/// Parses a file with one cluster and one user; the arguments are their fields in YAML flow style.
fn target(cluster: &str, user: &str) -> Result<Target, Vec<String>> {
    let text = format!(
        "clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n\
         contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
    );
    parse(&text).unwrap().target(None, &names()).map_err(|e| e.errors)
}

const WHOLE: &str = r#"
apiVersion: v1
kind: Config
preferences: {colors: true}
extensions: [{name: tool, extension: {}}]
current-context: both
clusters:
- name: here
  cluster:
    server: https://127.0.0.1:8443/base
    tls-server-name: webhook.example.test
    certificate-authority: ca/ca.crt
    certificate-authority-data: UEVN
    insecure-skip-tls-verify: true
    proxy-url: http://me:proxy-secret@proxy.example.test:3128
    disable-compression: true
    extensions:
    - name: client.authentication.example.test/exec
      extension: {audience: api, level: 3}
- name: there
  cluster: {server: "https://there"}
users:
- name: me
  user:
    client-certificate: me.crt
    client-certificate-data: |
      UEV
      N
    client-key: /abs/me.key
    client-key-data: a2V5LXNlY3JldA==
    token: token-secret
    tokenFile: token
    username: user
    password: password-secret
    as: jane
    as-uid: u-1
    as-groups: [a, b]
    as-user-extra: {scopes: [x, z]}
    auth-provider: {name: oidc, config: {a: b}}
    exec:
      command: ./plugin
      args: [one, two]
      env: [{name: A, value: env-secret}]
      apiVersion: client.authentication.example.test/v1
      installHint: "get it"
      provideClusterInfo: true
      interactiveMode: IfAvailable
    extensions: []
contexts:
- name: both
  context: {cluster: here, user: me, namespace: ns, extensions: []}
"#;

#[test]
fn client_config_with_every_field_is_parsed() {
    let config = parse(WHOLE).unwrap();
    assert_eq!(config.warnings, [""; 0]);
    assert_eq!(config.current_context, "both");
    let context = Context { cluster: "here".into(), user: "me".into(), namespace: "ns".into() };
    assert_eq!(config.contexts["both"], context);
    let cluster = &config.clusters["here"];
    assert_eq!(cluster.server, "https://127.0.0.1:8443/base");
    assert_eq!(cluster.tls_server_name.as_deref(), Some("webhook.example.test"));
    assert!(cluster.insecure_skip_tls_verify && cluster.disable_compression);
    assert_eq!(cluster.certificate_authority.as_deref(), Some(Path::new("/etc/webhook/ca/ca.crt")));
    assert_eq!(cluster.certificate_authority_data.as_deref(), Some(&b"PEM"[..]));
    let proxy = cluster.proxy_url.as_ref().and_then(Secret::text);
    assert_eq!(proxy, Some("http://me:proxy-secret@proxy.example.test:3128"));
    assert_eq!(cluster.extensions["client.authentication.example.test/exec"]["level"], 3);
    let me = &config.users["me"];
    assert_eq!(me.client_certificate.as_deref(), Some(Path::new("/etc/webhook/me.crt")));
    assert_eq!(me.client_certificate_data, Some(Secret::new("PEM")));
    assert_eq!(me.client_key.as_deref(), Some(Path::new("/abs/me.key")));
    assert_eq!(me.client_key_data, Some(Secret::new("key-secret")));
    assert_eq!(me.token, Some(Secret::new("token-secret")));
    assert_eq!(me.token_file.as_deref(), Some(Path::new("/etc/webhook/token")));
    assert_eq!((me.username.as_deref(), &me.password), (Some("user"), &Some(Secret::new("password-secret"))));
    assert_eq!((me.impersonate.name.as_str(), me.impersonate.uid.as_str()), ("jane", "u-1"));
    assert_eq!(me.impersonate.groups, ["a", "b"]);
    assert_eq!(me.impersonate.extra["scopes"], ["x", "z"]);
    assert_eq!(me.auth_provider.as_deref(), Some("oidc"));
    let exec = me.exec.as_ref().unwrap();
    assert_eq!((exec.command.as_str(), exec.dir.as_path()), ("./plugin", Path::new("/etc/webhook")));
    assert_eq!(exec.args, ["one", "two"]);
    assert_eq!(exec.env, [("A".to_owned(), Secret::new("env-secret"))]);
    assert_eq!(exec.api_version, "client.authentication.example.test/v1");
    assert_eq!((exec.install_hint.as_str(), exec.interactive_mode.as_str()), ("get it", "IfAvailable"));
    assert!(exec.provide_cluster_info);
    for secret in ["proxy-secret", "key-secret", "token-secret", "password-secret", "env-secret"] {
        assert!(!format!("{config:?}").contains(secret), "{secret} is shown by Debug");
    }
}

#[test]
fn client_config_in_json_is_parsed() {
    let config = parse(r#" {"clusters": [{"name": "c", "cluster": {"server": "https://h"}}]}"#).unwrap();
    assert_eq!(config.target(None, &names()).unwrap().cluster.server, "https://h");
}

#[test]
fn client_config_errors_name_field_but_not_value() {
    for (text, expected) in [
        ("", "the file must be an object"),
        ("[]", "the file must be an object"),
        ("hunter2", "the file must be an object"),
        ("a: [hunter2", "is not valid YAML"),
        ("{\"a\": hunter2}", "is not valid JSON: line 1, column 7"),
        ("apiVersion: v2", "apiVersion: must be `v1`"),
        ("kind: Pod", "kind: must be `Config`"),
        ("current-context: 3", "current-context: Invalid value: \"number\": must be a string"),
        ("clusters: hunter2", "clusters: Invalid value: \"string\": must be a list of objects"),
        ("clusters: [hunter2]", "clusters[0]: Invalid value: \"string\": must be an object"),
        ("users: [{user: {}}]", "users[0].name: is missing"),
        ("users: [{name: '', user: {}}]", "users[0].name: is missing"),
        ("users: [{name: 1}]", "users[0].name: Invalid value: \"number\": must be a string"),
        ("users: [{name: u, user: []}]", "users[0].user: Invalid value: \"array\": must be an object"),
        (
            "users: [{name: u, user: {token: 5}}]",
            "users[0].user.token: Invalid value: \"number\": must be a string",
        ),
        (
            "users: [{name: u, user: {client-key-data: 'hunter2!'}}]",
            "users[0].user.client-key-data: must be base64",
        ),
        (
            "users: [{name: u, user: {as-groups: hunter2}}]",
            "users[0].user.as-groups: Invalid value: \"string\": must be a list of strings",
        ),
        (
            "users: [{name: u, user: {as-groups: [1]}}]",
            "users[0].user.as-groups[0]: Invalid value: \"number\": must be a string",
        ),
        (
            "users: [{name: u, user: {as-user-extra: {a: b}}}]",
            "users[0].user.as-user-extra: Invalid value: \"object\": must be a map of lists of strings",
        ),
        (
            "users: [{name: u, user: {exec: hunter2}}]",
            "users[0].user.exec: Invalid value: \"string\": must be an object",
        ),
        (
            "users: [{name: u, user: {exec: {env: [{value: v}]}}}]",
            "users[0].user.exec.env[0].name: must name a variable",
        ),
        (
            "users: [{name: u, user: {exec: {env: [{name: 'A=B'}]}}}]",
            "users[0].user.exec.env[0].name: must name a variable",
        ),
        (
            "clusters: [{name: c, cluster: {insecure-skip-tls-verify: 'yes'}}]",
            "clusters[0].cluster.insecure-skip-tls-verify: Invalid value: \"string\": must be true or false",
        ),
        (
            "users: [{name: u}, {name: u}]",
            "users[1].name: duplicate name in users, so users[1].user is ambiguous",
        ),
        (
            "clusters: [{name: c}, {name: c}]",
            "clusters[1].name: duplicate name in clusters, so clusters[1].cluster is ambiguous",
        ),
        (
            "contexts: [{name: x}, {name: x}]",
            "contexts[1].name: duplicate name in contexts, so contexts[1].context is ambiguous",
        ),
    ] {
        let errors = parse(text).unwrap_err();
        assert_eq!(errors.len(), 1, "{text}: {errors:?}");
        let error = errors[0].strip_prefix("line 1: ").unwrap_or(&errors[0]);
        assert!(error.starts_with(expected), "{text}: {errors:?}");
        assert!(!errors[0].contains("hunter2"), "{errors:?}");
    }
    let all = parse("kind: Pod\nusers: 3\nclusters: 4").unwrap_err();
    assert_eq!(all.len(), 3, "all together: {all:?}");
}

#[test]
fn unknown_client_config_fields_return_warnings() {
    for (text, expected) in [
        ("user: []", "unknown field \"user\""),
        ("currentContext: x", "unknown field \"currentContext\" (a similar field is \"current-context\")"),
        (
            "users: [{name: u, user: {token_file: x}}]",
            "unknown field \"users[0].user.token_file\" (a similar field is \"tokenFile\")",
        ),
        (
            "users: [{name: u, user: {exec: {interactive-mode: Never}}}]",
            "unknown field \"users[0].user.exec.interactive-mode\" (a similar field is \"interactiveMode\")",
        ),
        ("clusters: [{name: c, server: https://h}]", "unknown field \"clusters[0].server\""),
        ("kind: Config\nkind: Config", "duplicate field \"kind\""),
    ] {
        let line = text.lines().count();
        assert_eq!(parse(text).unwrap().warnings, [format!("line {line}: {expected}; ignored")], "{text}");
    }
}

#[test]
fn client_config_context_selection_and_single_context_default() {
    let file = |rest: &str| {
        format!(
            "clusters: [{{name: a, cluster: {{server: 'https://a'}}}}, {{name: b, cluster: {{server: 'https://b'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n{rest}"
        )
    };
    let two = "contexts: [{name: x, context: {cluster: a, user: u}}, {name: w, context: {cluster: b}}]\n";
    for (rest, named, expected) in [
        (format!("{two}current-context: x"), None, Ok(("a", "u"))),
        (format!("{two}current-context: w"), None, Ok(("b", ""))),
        (format!("{two}current-context: w"), Some("x"), Ok(("a", "u"))),
        (two.to_owned(), None, Err("current-context is missing and there are several contexts (`w`, `x`)")),
        (format!("{two}current-context: z"), None, Err("current-context: `z` is not in contexts (`w`, `x`)")),
        (two.to_owned(), Some("z"), Err("the context `z` is not in contexts (`w`, `x`)")),
        ("contexts: [{name: x, context: {cluster: a, user: u}}]".to_owned(), None, Ok(("a", "u"))),
        (
            "contexts: [{name: x, context: {cluster: q, user: u}}]".to_owned(),
            None,
            Err("the cluster `q` is not in clusters (`a`, `b`)"),
        ),
        (
            "contexts: [{name: x, context: {cluster: a, user: q}}]".to_owned(),
            None,
            Err("the user `q` is not in users (`u`)"),
        ),
        (
            "contexts: [{name: x}]\ncurrent-context: x".to_owned(),
            None,
            Err("the context `x` names no cluster"),
        ),
        (String::new(), None, Err("current-context is missing and there are several clusters or users")),
    ] {
        let actual = parse(&file(&rest)).unwrap().target(named, &names());
        let actual = actual.map(|t| (t.cluster_name, t.user_name)).map_err(|e| e.errors.join("; "));
        assert_eq!(
            actual,
            expected.map(|(c, u)| (c.to_owned(), u.to_owned())).map_err(str::to_owned),
            "{rest}"
        );
    }
    let only = "clusters: [{name: a, cluster: {server: 'https://a'}}]\n";
    let with_user = format!("{only}users: [{{name: u, user: {{token: t}}}}]");
    assert_eq!(parse(only).unwrap().target(None, &names()).unwrap().user_name, "");
    assert_eq!(parse(&with_user).unwrap().target(None, &names()).unwrap().user_name, "u");
    let none = parse("users: []").unwrap().target(None, &names()).unwrap_err();
    assert_eq!(none.to_string(), "/etc/webhook/config: clusters is empty: it must contain the server");
}

#[test]
fn unusable_clusters_and_users_return_reasons() {
    let good = "server: 'https://h:8443/p?q=1'";
    for (cluster, user, expected) in [
        (good, "", None),
        ("server: 'http://h'", "token: t, tokenFile: f", None),
        (good, "client-certificate: c, client-key-data: UEVN", None),
        (good, "as: jane, as-groups: [g]", None),
        ("", "", Some("cluster `c`: server is missing")),
        ("server: 'h:8443'", "", Some("cluster `c`: server: must begin with https://")),
        ("server: 'ftp://h'", "", Some("cluster `c`: server: must begin with https://")),
        ("server: 'https://'", "", Some("cluster `c`: server: is not a URL")),
        ("server: 'https://me:pw@h'", "", Some("cluster `c`: server: must not contain credentials")),
        ("server: 'https://h:99999'", "", Some("cluster `c`: server: ")),
        (
            "server: 'https://h', certificate-authority: f, certificate-authority-data: UEVN",
            "",
            Some("cluster `c`: certificate-authority and certificate-authority-data are both given"),
        ),
        (
            "server: 'https://h', insecure-skip-tls-verify: true, certificate-authority: f",
            "",
            Some("cluster `c`: insecure-skip-tls-verify cannot be combined"),
        ),
        (
            "server: 'https://h', proxy-url: 'gopher://p'",
            "",
            Some("cluster `c`: proxy-url: has the scheme `gopher`"),
        ),
        ("server: 'https://h', proxy-url: 'p:80'", "", Some("cluster `c`: proxy-url: ")),
        (good, "token: t, username: me", Some("user `u`: a token and a username are both given")),
        (good, "tokenFile: t, password: p", Some("user `u`: a token and a username are both given")),
        (good, "client-certificate: c", Some("user `u`: a client certificate needs client-key")),
        (good, "client-key-data: UEVN", Some("user `u`: a client key needs client-certificate")),
        (
            good,
            "client-certificate: c, client-certificate-data: UEVN, client-key: k",
            Some("user `u`: client-certificate and client-certificate-data are both given"),
        ),
        (
            good,
            "client-certificate: c, client-key-data: UEVN, client-key: k",
            Some("user `u`: client-key and client-key-data are both given"),
        ),
        (good, "token: \"a\\nb\"", Some("user `u`: token: contains characters")),
        (good, "as-groups: [g]", Some("user `u`: as-uid, as-groups and as-user-extra need `as`")),
        (good, "as-uid: x", Some("user `u`: as-uid, as-groups and as-user-extra need `as`")),
        (good, "as: \"a\\nb\"", Some("user `u`: as: contains characters")),
        (
            good,
            "auth-provider: {name: gcp}",
            Some("user `u`: auth-provider `gcp` is not supported: use exec"),
        ),
        (
            good,
            "exec: {command: c, apiVersion: client.authentication.example.test/v1beta1}, token: t",
            Some("user `u`: exec cannot be combined"),
        ),
        (
            good,
            "exec: {apiVersion: client.authentication.example.test/v1beta1}",
            Some("user `u`: exec: command is missing"),
        ),
    ] {
        match (target(cluster, user), expected) {
            (Ok(_), None) => {}
            (Err(errors), Some(expected)) => {
                assert_eq!(errors.len(), 1, "{errors:?}");
                assert!(errors[0].starts_with(expected), "{errors:?} for {expected}");
                assert!(!errors[0].contains("pw"), "{errors:?}");
            }
            (actual, expected) => panic!("{cluster} {user}: {actual:?}, not {expected:?}"),
        }
    }
}

#[test]
fn missing_client_config_file_is_named_in_error() {
    let error = ClientConfig::load(Path::new("/no/such/config")).unwrap_err();
    assert!(error.to_string().starts_with("/no/such/config: No such file"), "{error}");
}

/// Body of the fuzz target: parsing any bytes ends without a panic, and no message contains a secret.
fn load_anything(bytes: &[u8]) {
    let config = match ClientConfig::parse(bytes, Path::new("/etc/f")) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().contains("-secret"), "{error}"),
    };
    for context in config.contexts.keys().map(Some).chain([None]) {
        drop(config.target(context.map(String::as_str), &names()));
    }
}

#[test]
fn fuzzed_client_config_does_not_panic_or_leak_secrets() {
    let parts: Vec<&str> = WHOLE.split_inclusive("\nusers:").collect();
    fuzzing::run("client configuration", &[&[WHOLE], &parts[..]].concat(), load_anything);
}
