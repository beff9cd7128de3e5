//! Every field and error of the authorization configuration file.

use super::*;
use apimachinery::names::Preset;

const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";

fn parse(text: &str) -> Result<Modes, Vec<String>> {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let read = Document::read(text.as_bytes())
        .map_err(|error| vec![error])
        .and_then(|document| read(&document, &names));
    read.map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// Returns a valid webhook with `line` in place of the line of `field`, or without that line if `line` is
/// empty.
fn webhook(file: &Path, field: &str, line: &str) -> String {
    let good = [
        ("timeout", "timeout: 3s".to_owned()),
        ("subjectAccessReviewVersion", "subjectAccessReviewVersion: v1".to_owned()),
        (
            "matchConditionSubjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion: v1".to_owned(),
        ),
        ("failurePolicy", "failurePolicy: NoOpinion".to_owned()),
        (
            "connectionInfo",
            format!("connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}", file.display()),
        ),
    ];
    let mut lines: Vec<String> =
        good.into_iter().filter(|(name, _)| *name != field).map(|(_, line)| line).collect();
    if !line.is_empty() {
        lines.push(line.to_owned());
    }
    format!("{HEAD}- type: Webhook\n  name: hook\n  webhook:\n    {}\n", lines.join("\n    "))
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("client.yaml");
    std::fs::write(&path, "").unwrap();
    (dir, path)
}

#[test]
fn authorizers_keep_order_and_names() {
    let text = format!("{HEAD}- {{type: RBAC, name: rbac}}\n- {{type: AlwaysDeny, name: alwaysdeny}}\n");
    let modes = parse(&text).unwrap();
    let modes_and_names: Vec<(&str, &str)> =
        modes.entries().iter().map(|entry| (entry.kind, entry.name.as_str())).collect();
    assert_eq!(modes_and_names, [("RBAC", "rbac"), ("AlwaysDeny", "alwaysdeny")]);
}

#[test]
fn invalid_authorizer_entry_is_rejected() {
    for (authorizers, expected) in [
        ("", "line 3: authorizers: Required value: at least one authorization mode must be defined"),
        ("- {name: a}", "line 4: authorizers[0].type: Required value"),
        (
            "- {type: Foo, name: a}",
            "line 4: authorizers[0].type: Unsupported value: \"Foo\": supported values: \"ABAC\", \"AlwaysAllow\", \
             \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
        ),
        ("- {type: RBAC}", "line 4: authorizers[0].name: Required value"),
        (
            "- {type: RBAC, name: a}\n- {type: RBAC, name: b}",
            "line 5: authorizers[1].type: Duplicate value: \"RBAC\"",
        ),
        (
            "- {type: RBAC, name: a}\n- {type: AlwaysDeny, name: a}",
            "line 5: authorizers[1].name: Duplicate value: \"a\"",
        ),
        (
            "- {type: RBAC, name: Bad_Name}",
            "line 4: authorizers[0].name: Invalid value: \"Bad_Name\": authorizer name is invalid",
        ),
        (
            "- {type: RBAC, name: policy}",
            "line 4: authorizers[0].name: Invalid value: \"policy\": expected name rbac for authorizer RBAC instead \
             of policy",
        ),
        (
            "- {type: RBAC, name: webhook}",
            "line 4: authorizers[0].name: Invalid value: \"webhook\": expected name",
        ),
        (
            "- {type: AlwaysAllow, name: allow}",
            "line 4: authorizers[0].name: Invalid value: \"allow\": expected name alwaysallow",
        ),
        (
            "- {type: RBAC, name: a, webhook: {}}",
            "line 4: authorizers[0].webhook: Invalid value: \"non-null\": may only be specified when type=Webhook",
        ),
        (
            "- {type: Webhook, name: a}",
            "line 4: authorizers[0].webhook: Required value: required when type=Webhook",
        ),
        (
            "- {type: RBAC, name: a, nmae: b}",
            "line 4: strict decoding error: unknown field \"authorizers[0].nmae\"",
        ),
    ] {
        let errors = parse(&format!("{HEAD}{authorizers}\n")).unwrap_err();
        assert!(errors.iter().any(|error| error.starts_with(expected)), "{authorizers}: {errors:#?}");
    }
    // `n` is a boolean in YAML 1.1.
    let wrong_type = "line 4: authorizers[0].name: Invalid value: \"boolean\": must be a string";
    assert_eq!(parse(&format!("{HEAD}- {{type: RBAC, name: n}}\n")).unwrap_err(), [wrong_type]);
    for (version, kind) in [("v2", "AuthorizationConfiguration"), ("v1", "Foo")] {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/{version}\nkind: {kind}\nauthorizers: [{{type: RBAC, name: rbac}}]\n"
        );
        assert_eq!(parse(&text).unwrap_err().len(), 1, "{text}");
    }
}

#[test]
fn invalid_authorizer_webhook_is_rejected() {
    let (dir, file) = file();
    let connection = |text: &str| format!("connectionInfo: {text}");
    let sixty_five =
        (0..65).map(|i| format!("{{expression: 'request.user == \"{i}\"'}}")).collect::<Vec<_>>().join(", ");
    for (field, line, expected) in [
        ("timeout", String::new(), "timeout: Required value"),
        ("timeout", "timeout: 31s".into(), "timeout: Invalid value: \"31s\": must be > 0s and <= 30s"),
        ("timeout", "timeout: soon".into(), "timeout: Invalid value: \"soon\""),
        ("timeout", "timeout: 30".into(), "timeout: Invalid value: \"number\": must be a string"),
        ("timeout", "timeout: -60s".into(), "timeout: Invalid value: \"-1m0s\": must be > 0s and <= 30s"),
        ("timeout", "timeout: 0s".into(), "timeout: Required value"),
        ("-", "authorizedTTL: -1s".into(), "authorizedTTL: Invalid value: \"-1s\": must be > 0s"),
        ("-", "unauthorizedTTL: -1h".into(), "unauthorizedTTL: Invalid value: \"-1h0m0s\": must be > 0s"),
        ("subjectAccessReviewVersion", String::new(), "subjectAccessReviewVersion: Required value"),
        (
            "subjectAccessReviewVersion",
            "subjectAccessReviewVersion: v2".into(),
            "subjectAccessReviewVersion: Unsupported value: \"v2\": supported values: \"v1\", \"v1beta1\"",
        ),
        (
            "matchConditionSubjectAccessReviewVersion",
            "matchConditions: [{expression: 'true'}]".into(),
            "matchConditionSubjectAccessReviewVersion: Required value",
        ),
        (
            "matchConditionSubjectAccessReviewVersion",
            "matchConditionSubjectAccessReviewVersion: v1beta1".into(),
            "matchConditionSubjectAccessReviewVersion: Unsupported value",
        ),
        ("failurePolicy", String::new(), "failurePolicy: Required value"),
        ("failurePolicy", "failurePolicy: Allow".into(), "failurePolicy: Unsupported value: \"Allow\""),
        ("connectionInfo", String::new(), "connectionInfo.type: Required value"),
        ("connectionInfo", connection("{type: Other}"), "connectionInfo.type: Unsupported value: \"Other\""),
        (
            "connectionInfo",
            connection("{type: InClusterConfig}"),
            "connectionInfo.type: Invalid value: \"InClusterConfig\": InClusterConfig is not allowed",
        ),
        (
            "connectionInfo",
            connection("{type: KubeConfigFile}"),
            "connectionInfo.kubeConfigFile: Required value",
        ),
        (
            "connectionInfo",
            connection("{type: KubeConfigFile, kubeConfigFile: a/b}"),
            "connectionInfo.kubeConfigFile: Invalid value: \"a/b\": must be an absolute path",
        ),
        (
            "connectionInfo",
            connection(&format!("{{type: KubeConfigFile, kubeConfigFile: {}}}", dir.path().display())),
            "must be a regular file",
        ),
        (
            "connectionInfo",
            connection("{type: KubeConfigFile, kubeConfigFile: /no/such/file}"),
            "error loading file",
        ),
        (
            "-",
            format!("matchConditions: [{sixty_five}]"),
            "matchConditions: Too many: 65: must have at most 64 items",
        ),
        (
            "-",
            "matchConditions: [{expression: request.user}]".into(),
            "matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool",
        ),
        (
            "-",
            "matchConditions: [{expression: 'a.b == 1'}]".into(),
            "matchConditions[0].expression: Invalid value: \"a.b == 1\": compilation failed",
        ),
        ("-", "matchConditions: [{}]".into(), "matchConditions[0].expression: Required value"),
        (
            "-",
            "matchConditions: [{expression: 'true'}, {expression: 'true'}]".into(),
            "matchConditions[1].expression: Duplicate value",
        ),
        (
            "-",
            "matchConditions: [{expression: 'true', name: x}]".into(),
            "unknown field \"authorizers[0].webhook.matchConditions[0].name\"",
        ),
    ] {
        let errors = parse(&webhook(&file, field, &line)).unwrap_err();
        assert!(errors.iter().any(|error| error.contains(expected)), "{field} {line}: {errors:#?}");
    }
}

#[test]
fn authorizer_webhook_has_documented_defaults() {
    let (_dir, file) = file();
    let sixty_four =
        (0..64).map(|i| format!("{{expression: 'request.user == \"{i}\"'}}")).collect::<Vec<_>>().join(", ");
    for (line, (allow, deny), conditions) in [
        (String::new(), (300, 30), false),
        ("authorizedTTL: 1m\n    unauthorizedTTL: 5s".into(), (60, 5), false),
        ("authorizedTTL: 0s\n    unauthorizedTTL: -0s".into(), (300, 30), false),
        (format!("matchConditions: [{sixty_four}]"), (300, 30), true),
    ] {
        let modes = parse(&webhook(&file, "-", &line)).unwrap();
        let hook = modes.entries()[0].webhook.clone().unwrap();
        let seconds = (hook.authorized_ttl.as_secs(), hook.unauthorized_ttl.as_secs());
        assert_eq!((seconds, !hook.conditions.is_empty()), ((allow, deny), conditions), "{line}");
        assert_eq!((hook.timeout, hook.on_failure), (Duration::from_secs(3), OnFailure::NoOpinion));
    }
}

#[test]
fn condition_version_is_required_only_beside_conditions() {
    const FIELD: &str = "matchConditionSubjectAccessReviewVersion";
    let (_dir, file) = file();
    for (line, expected) in [
        ("", 0),
        ("matchConditions: []", 0),
        ("matchConditionSubjectAccessReviewVersion: ''", 0),
        ("matchConditions: [{expression: 'true'}]", 1),
    ] {
        let errors = parse(&webhook(&file, FIELD, line)).err().unwrap_or_default();
        assert_eq!(errors.len(), expected, "{line}: {errors:?}");
    }
}

#[test]
fn reload_that_drops_authorizer_type_is_rejected() {
    let modes = |types: &[&str]| {
        let list: Vec<String> =
            types.iter().map(|kind| format!("- {{type: {kind}, name: {}}}\n", kind.to_lowercase())).collect();
        parse(&format!("{HEAD}{}", list.concat())).unwrap()
    };
    for (before, after, expected) in [
        (&["RBAC"][..], &["AlwaysDeny", "RBAC"][..], &[][..]),
        (&["AlwaysDeny", "RBAC"], &["RBAC", "AlwaysDeny"], &[]),
        (&["AlwaysDeny", "RBAC"], &["AlwaysDeny"], &["RBAC"]),
    ] {
        assert_eq!(missing_types(&modes(before), &modes(after)), expected, "{before:?} {after:?}");
    }
}
