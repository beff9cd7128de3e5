//! Tests of the command line.

use std::path::PathBuf;
use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::names::Preset;

use super::*;

fn read(arguments: &[&str]) -> Result<Config, Vec<String>> {
    match Config::read(arguments.iter().map(|a| (*a).to_owned()))? {
        Command::Serve(config) => Ok(*config),
        Command::Print(text) => panic!("printed {text}"),
    }
}

#[test]
fn flag_defaults_match_kube_apiserver() {
    let config = read(&["--data-dir=/d", "--spawn-authd"]).unwrap();
    assert_eq!(
        (config.flags.serving.bind_address.to_string().as_str(), config.flags.serving.secure_port),
        ("0.0.0.0", 6443)
    );
    assert_eq!(config.cert_dir, PathBuf::from("/d/certs"));
    assert_eq!(config.flags.serving.request_timeout, Duration::from_secs(60));
    assert_eq!(config.flags.storage.history_retention, Duration::from_secs(300));
    assert_eq!(config.flags.storage.event_ttl, Duration::from_secs(3600));
    assert_eq!(config.names.preset(), Preset::Svc);
    assert_eq!(config.certificate_signing, None);
    assert!(config.allows_everything, "without a mode, AlwaysAllow applies");
    assert!(
        !read(&["--data-dir=/d", "--spawn-authd", "--authorization-mode=RBAC"]).unwrap().allows_everything
    );
}

/// Each recorded line has a policy file or flags, and whether kube-apiserver starts with them.
#[test]
fn recorded_audit_policies_and_flags_are_rejected_like_in_kube_apiserver() {
    let Some(folder) = prerequisites::audit() else { return };
    let text = std::fs::read_to_string(folder.join("bad.jsonl")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let log = format!("--audit-log-path={}", directory.path().join("audit.log").display());
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let policy = format!("--audit-policy-file={}", folder.join(row["file"].as_str().unwrap()).display());
        let flags = row["flags"].as_array().into_iter().flatten().map(|flag| flag.as_str().unwrap());
        let common = ["--data-dir=/d", "--spawn-authd", "--names=kubernetes", &log, &policy];
        let arguments: Vec<&str> = common.into_iter().chain(flags).collect();
        let result = read(&arguments).map(drop);
        assert_eq!(result.is_ok(), row["starts"].as_bool().unwrap(), "{row}: {result:?}");
        let Err(errors) = result else { continue };
        // Errors of values have the texts of kube-apiserver, those of types and flags have not.
        let error = row["error"].as_str().unwrap();
        let error = error.strip_prefix("loading audit policy file: ").unwrap_or_default();
        let expected = error.split(": from file").next().unwrap_or_default();
        for expected in expected.trim_matches(['[', ']']).split(", rules[") {
            let expected = expected.trim_start_matches("rules[");
            if expected.contains("value: ") {
                assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:?}");
            }
        }
    }
}

#[test]
fn invalid_flags_are_reported_together() {
    let errors = read(&[
        "--names=other",
        "--secure-port=70000",
        "--bind-address=here",
        "--storage-quota=much",
        "--history-retention=soon",
        "--tls-cert-file=c",
        "--nope",
    ])
    .unwrap_err();
    for word in [
        "nope",
        "names",
        "secure-port",
        "bind-address",
        "storage-quota",
        "history-retention",
        "data-dir",
        "spawn-authd",
        "tls-private-key",
    ] {
        assert!(errors.iter().any(|m| m.contains(word)), "{word} in {errors:#?}");
    }
}

#[test]
fn spawned_authd_receives_own_and_shared_flags() {
    let config = read(&[
        "--data-dir=/d",
        "--spawn-authd",
        "--names",
        "kubernetes",
        "--token-auth-file",
        "/t",
        "--anonymous-auth=false",
        "--authorization-mode=Node",
        "--authorization-mode=RBAC",
        "-v=4",
        "--audit-log-path=-",
    ])
    .unwrap();
    let Authd::Spawned { mut flags, .. } = config.authd else { panic!("not spawned") };
    flags.sort();
    assert_eq!(
        flags,
        [
            "--anonymous-auth=false",
            "--authorization-mode=Node",
            "--authorization-mode=RBAC",
            "--names=kubernetes",
            "--token-auth-file=/t",
            "--v=4",
        ]
    );
}

#[test]
fn unimplemented_flags_are_accepted_and_listed() {
    let config =
        read(&["--data-dir=/d", "--authd-socket=/s", "--profiling", "--token-auth-file=/t"]).unwrap();
    assert_eq!(config.unimplemented_flags, ["profiling"]);
    assert!(config.warnings.iter().any(|w| w.contains("token-auth-file")));
    assert_eq!(config.authd, Authd::At("/s".into()));
}

/// These flags need no implementation: a log line has the reason, and no warning mentions them.
#[test]
fn etcd_and_watch_cache_flags_are_accepted_with_reason() {
    let config = read(&[
        "--data-dir=/d",
        "--spawn-authd",
        "--etcd-prefix=/registry",
        "--etcd-compaction-interval=5m",
        "--etcd-count-metric-poll-period=1m",
        "--storage-media-type=application/json",
        "--policy-consistency=bounded",
        "--watch-cache=true",
        "--default-watch-cache-size=100",
        "--watch-cache-sizes=pods#1000,nodes#100",
        "--event-ttl=90m",
    ])
    .unwrap();
    assert_eq!(config.unimplemented_flags, Vec::<String>::new());
    assert_eq!(config.warnings, Vec::<String>::new());
    let unneeded: Vec<&str> = config.unneeded_flags.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        unneeded,
        [
            "default-watch-cache-size",
            "etcd-compaction-interval",
            "etcd-count-metric-poll-period",
            "etcd-prefix",
            "policy-consistency",
            "storage-media-type",
            "watch-cache",
            "watch-cache-sizes"
        ]
    );
    assert!(config.unneeded_flags.iter().all(|(_, reason)| !reason.is_empty()));
    assert_eq!(config.flags.storage.event_ttl, Duration::from_secs(5400));
}

#[test]
fn flags_of_etcd_take_effect_with_servers() {
    const BASE: [&str; 3] =
        ["--data-dir=/d", "--spawn-authd", "--etcd-servers=https://a:2379,https://b:2379"];
    let config = read(&[&BASE[..], &["--etcd-prefix=/x", "--storage-media-type=application/json"]].concat());
    let config = config.unwrap();
    assert_eq!(config.flags.etcd.servers(), ["https://a:2379", "https://b:2379"]);
    assert_eq!(config.unneeded_flags, []);
    assert_eq!(config.flags.etcd.policy_consistency, PolicyConsistencyName::Fresh);
    let bounded = read(&[&BASE[..], &["--policy-consistency=bounded"]].concat()).unwrap();
    assert_eq!(bounded.flags.etcd.policy_consistency, PolicyConsistencyName::Bounded);
    let errors = |flag: &str| read(&[&BASE[..], &[flag]].concat()).unwrap_err().join("; ");
    assert!(errors("--policy-consistency=old").contains("use one of fresh, bounded"));
    assert!(errors("--etcd-certfile=/c").contains("`--etcd-keyfile` require each other"));
    assert!(errors("--storage-media-type=application/yaml").contains("application/json"));
    let plain = read(&["--data-dir=/d", "--spawn-authd", "--etcd-servers=a:2379"]).unwrap_err().join("; ");
    assert!(plain.contains("`a:2379` has no scheme"), "{plain}");
    let user = ["--data-dir=/d", "--spawn-authd", "--etcd-servers=https://root:password@a:2379"];
    let user = read(&user).unwrap_err().join("; ");
    assert!(user.contains("a URL has a user") && !user.contains("password"), "{user}");
}

#[test]
fn events_alone_can_have_a_cluster_of_their_own() {
    const BASE: [&str; 4] =
        ["--data-dir=/d", "--spawn-authd", "--names=kubernetes", "--etcd-servers=https://a:2379"];
    let overrides = |flags: &[&str]| {
        let flags = flags.iter().map(|value| format!("--etcd-servers-overrides={value}"));
        let words: Vec<String> = BASE.iter().map(|&word| word.to_owned()).chain(flags).collect();
        let config = read(&words.iter().map(String::as_str).collect::<Vec<_>>());
        config.map(|config| config.flags.etcd.event_servers(&config.names)).map_err(|e| e.join("; "))
    };
    let both = vec!["https://c:2379".to_owned(), "https://d:2379".to_owned()];
    assert_eq!(overrides(&[]), Ok(Vec::new()));
    for given in [
        &["/events#https://c:2379;https://d:2379"][..],
        &["events.k8s.io/events#https://c:2379;https://d:2379"],
        &["/events#https://c:2379;https://d:2379,events.k8s.io/events#https://c:2379;https://d:2379"],
        &["/events#https://c:2379;https://d:2379", "/events#https://c:2379;https://d:2379"],
    ] {
        assert_eq!(overrides(given).as_ref(), Ok(&both), "{given:?}");
    }
    const FORM: &str = "--etcd-servers-overrides invalid, must be of format: group/resource#servers, where servers are \
                        URLs, semicolon separated";
    for given in
        ["/events", "events#https://c:2379", "/events#https://c:2379#x", "a/b/events#https://c", "/events#"]
    {
        assert_eq!(overrides(&[given]).unwrap_err(), FORM, "{given}");
    }
    for (given, part) in [
        (
            "/secrets#https://c:2379",
            "\"/secrets\": only Events (`/events`) can have an etcd cluster of their own",
        ),
        ("apps/deployments#https://c:2379", "\"apps/deployments\": only Events"),
        ("rbac.authorization.k8s.io/roles#https://c:2379", "or decide about requests"),
        ("/*#https://c:2379", "\"/*\": only Events"),
        ("/events#c:2379", "`--etcd-servers-overrides`: `c:2379` has no scheme"),
        ("/events#https://c:2379;", "has no scheme"),
        ("/events#https://c:2379,/events#https://d:2379", "Events have several clusters"),
    ] {
        let errors = overrides(&[given]).unwrap_err();
        assert!(errors.contains(part), "{given}: {errors}");
    }
    let user = overrides(&["/events#https://root:password@c:2379"]).unwrap_err();
    assert!(user.contains("a URL has a user") && !user.contains("password"), "{user}");
    let embedded = ["--data-dir=/d", "--spawn-authd", "--etcd-servers-overrides=/events#https://c:2379"];
    let embedded = read(&embedded).unwrap_err().join("; ");
    assert!(embedded.contains("`--etcd-servers-overrides` requires `--etcd-servers`"), "{embedded}");
}

#[test]
fn certificate_signing_requires_both_files_and_the_controller() {
    const BASE: [&str; 2] = ["--spawn-authd", "--data-dir=/d"];
    let signing = |words: &[&str]| read(&[&BASE, words].concat()).map(|config| config.certificate_signing);
    let (cert, key) = ("--cluster-signing-cert-file=/ca.crt", "--cluster-signing-key-file=/ca.key");
    let expected = |duration| CertificateSigning { cert: "/ca.crt".into(), key: "/ca.key".into(), duration };
    let year = Duration::from_secs(8760 * 3600);
    assert_eq!(signing(&[cert, key]).unwrap(), Some(expected(year)));
    let short = signing(&[cert, key, "--cluster-signing-duration=1h"]).unwrap();
    assert_eq!(short, Some(expected(Duration::from_secs(3600))));
    assert_eq!(signing(&[cert, key, "--controllers=*,-csrsigning"]).unwrap(), None);
    let errors = signing(&[cert, key, "--cluster-signing-duration=0s"]).unwrap_err();
    assert_eq!(errors, ["`--cluster-signing-duration`: must be at least 1s"]);
    for (flag, missing) in [(cert, "cluster-signing-key-file"), (key, "cluster-signing-cert-file")] {
        let errors = signing(&[flag]).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(missing)), "{errors:?}");
    }
}

#[test]
fn controllers_flag_selects_controllers_of_both_processes() {
    let controllers = |flag: &str| {
        let config = read(&["--data-dir=/d", "--spawn-authd", flag]).unwrap();
        let Authd::Spawned { flags, .. } = config.authd else { panic!("not spawned") };
        (config.controllers, flags)
    };
    let names = ["namespace-controller", "garbage-collector-controller", "serviceaccount-controller"];
    let enabled = |flag: &str| names.map(|name| controllers(flag).0.is_enabled(name));
    let (_, flags) = controllers("--controllers=");
    assert_eq!(flags, ["--controllers="]);
    assert_eq!(enabled("--controllers="), [false, false, false]);
    assert_eq!(enabled("--controllers=*,-serviceaccount"), [true, true, false]);
    assert_eq!(enabled("--enable-garbage-collector=false"), [true, false, true]);
    let (some, _) = controllers("--root-ca-file=/ca");
    assert!(some.is_enabled("root-ca-certificate-publisher-controller"), "{some:?}");
}

#[test]
fn decode_limits_follow_flags_and_reject_zero() {
    let limits = |words: &[&str]| {
        read(&[&["--spawn-authd", "--data-dir=/d"], words].concat()).map(|c| c.flags.limits.body_limits())
    };
    assert_eq!(limits(&[]).unwrap(), Limits::BODY);
    let given = limits(&["--max-request-elements=1000", "--max-request-tree-bytes=8Mi"]).unwrap();
    assert_eq!(given, Limits { elements: 1000, tree_bytes: 8 << 20, ..Limits::BODY });
    let errors = limits(&["--max-request-elements=0", "--max-request-tree-bytes=some"]).unwrap_err();
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[test]
fn external_authd_does_not_allow_everything_without_a_mode_flag() {
    let config = read(&["--data-dir=/d", "--authd-socket=/s"]).unwrap();
    assert!(!config.allows_everything, "the mode is a flag of the external authd");
}

#[test]
fn proxy_headers_are_read_only_with_their_ca() {
    let headers = [
        "--data-dir=/d",
        "--spawn-authd",
        "--requestheader-username-headers=X-User,X-Name",
        "--requestheader-group-headers=X-Group",
        "--requestheader-extra-headers-prefix=X-Extra-",
    ];
    let config = read(&headers).unwrap();
    assert!(config.proxy_headers.names.is_empty() && config.published_config.proxy.is_none());
    let config = read(&[&headers[..], &["--requestheader-client-ca-file=/ca"]].concat()).unwrap();
    assert_eq!(config.proxy_headers.names, ["x-user", "x-name", "x-group"]);
    assert_eq!(config.proxy_headers.prefixes, ["x-extra-"]);
    let proxy = config.published_config.proxy.unwrap();
    let names = proxy.lists.iter().find(|(name, _)| *name == "requestheader-username-headers").unwrap();
    assert_eq!(names.1, ["X-User", "X-Name"]);
}

#[test]
fn help_states_stability_of_alpha_and_beta_versions() {
    let help = command().render_long_help().to_string();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "Alpha versions are for short-lived test clusters",
        "beta versions are not recommended for production",
    ] {
        assert!(help.contains(text), "{text}:\n{help}");
    }
}

#[test]
fn runtime_config_selects_versions_and_reports_errors() {
    let config =
        read(&["--data-dir=/d", "--authd-socket=/s", "--runtime-config=api/beta,batch/v1=false"]).unwrap();
    let registry = kinds::Registry::with_versions(&config.names, &config.enabled_versions);
    assert!(registry.find("batch", "v1", "jobs").is_none());
    assert!(registry.find(&config.names.group("networking"), "v1beta1", "ipaddresses").is_some());
    let errors = read(&["--data-dir=/d", "--authd-socket=/s", "--runtime-config=batch"]).unwrap_err();
    assert!(
        errors.iter().any(|error| error.starts_with("`--runtime-config`: invalid key batch")),
        "{errors:?}"
    );
}

#[test]
fn help_shows_defaults_groups_and_feature_gates() {
    let Ok(Command::Print(help)) = Config::read(["--help".to_owned()]) else { panic!("no help") };
    for text in [
        format!("[default: {}]", Limits::BODY.elements),
        format!("[default: {}Mi]", Limits::BODY.tree_bytes >> 20),
        "Storage flags:".to_owned(),
        "Authorization flags of authd:".to_owned(),
        "  AuthorizeNodeWithSelectors=true|false (BETA - default=true)\n".to_owned(),
        "  WatchList=true|false (BETA - default=false)\n".to_owned(),
    ] {
        assert!(help.contains(&text), "{text} in {help}");
    }
}

#[test]
fn every_flag_has_help() {
    let command = read::command();
    for arg in command.get_arguments() {
        assert!(arg.get_help().is_some_and(|help| !help.to_string().is_empty()), "{arg}");
    }
    command.debug_assert();
}

/// Requirement D-DEP-28 of `docs/spec`.
#[test]
fn deprecated_flag_is_accepted_with_warning() {
    let config = read(&["--data-dir=/d", "--spawn-authd", "--apiserver-count=1"]).unwrap();
    assert!(
        matches!(&config.warnings[..], [warning] if warning.contains("`--apiserver-count` has been deprecated")),
        "{:?}",
        config.warnings
    );
}

#[test]
fn warnings_of_deprecated_flags_can_be_disabled() {
    let flags = ["--data-dir=/d", "--spawn-authd", "--apiserver-count=1", "--warn-of-deprecated-flags=false"];
    assert_eq!(read(&flags).unwrap().warnings, [""; 0]);
}

/// Writes a configuration file and returns its flag.
fn configuration_file(dir: &tempfile::TempDir, text: &str) -> String {
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    format!("--config={}", path.display())
}

#[test]
fn configuration_file_sets_flags_and_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let flag = configuration_file(
        &dir,
        "apiVersion: config.k8s.io/v1alpha1\nkind: ServerConfiguration\n\
         apid: {names: kubernetes, data-dir: /d, spawn-authd: true, request-timeout: 5s, secure-port: 1}\n\
         authd: {names: kubernetes, authorization-mode: [Node, RBAC], anonymous-auth: false}\n",
    );
    let config = read(&[&flag, "--secure-port=2", "--authorization-mode=RBAC"]).unwrap();
    let serving = &config.flags.serving;
    assert_eq!((serving.request_timeout, serving.secure_port), (Duration::from_secs(5), 2));
    assert!(!config.allows_everything);
    let Authd::Spawned { mut flags, .. } = config.authd else { panic!("not spawned") };
    flags.sort();
    assert_eq!(flags, ["--anonymous-auth=false", "--authorization-mode=RBAC", "--names=kubernetes"]);
}

#[test]
fn configuration_file_is_for_apid_and_for_a_separate_authd() {
    let dir = tempfile::tempdir().unwrap();
    let text = "apiVersion: config.svc.internal/v1alpha1\nkind: ServerConfiguration\n\
                apid: {data-dir: /d, authd-socket: /s}\n\
                authd: {socket: /s, socket-mode: '0660', generated-key-file: /k, authorization-mode: [RBAC]}\n";
    let flag = configuration_file(&dir, text);
    let config = read(&[&flag]).unwrap();
    assert!(matches!(config.authd, Authd::At(_)));
    assert_eq!(config.warnings, [""; 0]);
    let flag = configuration_file(&dir, &text.replace("authd-socket: /s", "spawn-authd: true"));
    let errors = read(&[&flag]).unwrap_err();
    assert_eq!(errors.len(), 3, "{errors:#?}");
    assert!(errors[0].contains("with `spawn-authd`, apid sets this flag itself"), "{errors:#?}");
    assert!(read(&[&flag, "--spawn-authd=false", "--authd-socket=/s"]).is_ok());
}

#[test]
fn configuration_file_errors_are_reported_with_those_of_flags() {
    let dir = tempfile::tempdir().unwrap();
    let version = "apiVersion: config.svc.internal/v1alpha1\nkind: ServerConfiguration\n";
    for (sections, texts) in [
        ("apid: {data-dirr: /d}\n", &["`data-dirr`; a similar flag is `data-dir`"][..]),
        ("authd: {data-dir: /d}\n", &["`authd.data-dir` is a flag of apid"]),
        ("apid: {data-dir: /d, names: kubernetes}\n", &["config.k8s.io/v1alpha1"]),
        ("apid: {data-dir: [/d]}\n", &["`data-dir` takes one value, not a list"]),
        ("apid: {data-dir: /d, secure-port: 70000}\n", &["--secure-port=70000"]),
        ("other: 1\n", &["line 3: strict decoding error: unknown field \"other\""]),
    ] {
        let flag = configuration_file(&dir, &format!("{version}{sections}"));
        let errors = read(&[&flag, "--spawn-authd", "--nope"]).unwrap_err();
        for text in texts.iter().chain(&["--nope"]) {
            assert!(errors.iter().any(|error| error.contains(text)), "{text} in {errors:#?}");
        }
        assert!(!errors.iter().any(|error| error.contains("is required")), "{errors:#?}");
    }
    let errors = read(&["--config=/no/file"]).unwrap_err();
    assert!(matches!(&errors[..], [error] if error.contains("/no/file")), "{errors:#?}");
}

#[test]
fn unknown_controllers_are_reported_with_other_errors() {
    let errors = read(&["--controllers=*,-garbagecollectors", "--nope"]).unwrap_err();
    for text in [
        "`--controllers`: `-garbagecollectors` is not in the list of known controllers; a similar controller is `garbagecollector`",
        "--nope",
        "`--data-dir` is required",
    ] {
        assert!(errors.iter().any(|error| error.contains(text)), "{text} in {errors:#?}");
    }
}

#[test]
fn flags_of_the_reference_without_an_effect_have_a_reason() {
    let config = read(&[
        "--data-dir=/d",
        "--spawn-authd",
        "--allow-privileged=true",
        "--contention-profiling=false",
        "--vmodule=a=1",
    ]);
    let config = config.unwrap();
    let names: Vec<&str> = config.unneeded_flags.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["allow-privileged", "contention-profiling"]);
    assert_eq!(config.unimplemented_flags, ["vmodule"]);
    let errors = read(&["--data-dir=/d", "--spawn-authd", "--disable-http2-serving"]).unwrap_err();
    assert!(errors.iter().any(|error| error.contains("`--disable-http2-serving`")), "{errors:?}");
}

#[test]
fn emulated_version_sets_gates_and_api_versions_of_release() {
    let flags = ["--data-dir=/d", "--spawn-authd", "--names=kubernetes"];
    let read_with = |more: &[&str]| read(&[&flags[..], more].concat());
    let config = read_with(&["--emulated-version=1.32"]).unwrap();
    let versions = config.compatibility_versions;
    assert_eq!((versions.emulated, versions.min_compatible), (32, 31));
    assert!(config.gates.enabled(serving::gates::Gate::WatchList), "on in 1.32, off in 1.33");
    assert!(!config.enabled_versions.is_enabled("networking", "v1", "servicecidrs"), "new in 1.33");
    assert!(config.enabled_versions.is_enabled("apps", "v1", "deployments"));
    assert_eq!(
        read_with(&["--min-compatibility-version=1.33"]).unwrap().compatibility_versions.min_compatible,
        33
    );
    let errors = read_with(&[
        "--emulated-version=1.32",
        "--min-compatibility-version=1.33",
        "--feature-gates=ListFromCacheSnapshot=true",
        "--runtime-config=resource.k8s.io/v1beta2/resourceclaims",
    ])
    .unwrap_err();
    let expected =
        "`--min-compatibility-version`: minCompatibilityVersion version 1.33 is not between [1.30, 1.32]";
    assert!(errors.iter().any(|error| error.contains(expected)), "{errors:?}");
    let errors =
        read_with(&["--emulated-version=1.32", "--feature-gates=ListFromCacheSnapshot=true"]).unwrap_err();
    let part = "feature is PreAlpha at emulated version 1.32";
    assert!(errors.iter().any(|error| error.contains(part)), "{errors:?}");
    let errors =
        read_with(&["--emulated-version=1.32", "--runtime-config=resource.k8s.io/v1beta2/resourceclaims"])
            .unwrap_err();
    let part = "which release 1.33 introduces and the emulated release 1.32 does not have";
    assert!(errors.iter().any(|error| error.contains(part)), "{errors:?}");
}
