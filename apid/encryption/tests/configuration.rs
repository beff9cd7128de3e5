//! The configuration file: recorded files of kube-apiserver, and no key material in messages.

use std::path::Path;

use encryption::{Configuration, ConfigurationError, ProviderConfiguration};
use serde_json::{Value, json};

use crate::environment::{for_secrets, names};

fn parse(file: &Value) -> Result<Configuration, ConfigurationError> {
    Configuration::parse(Path::new("enc.yaml"), file.to_string().as_bytes(), &names())
}

/// The secrets in a configuration.
fn secrets(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("secret").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| secrets(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| secrets(value, found)),
        _ => {}
    }
}

#[test]
fn recorded_bad_configurations_fail_with_the_recorded_reason() {
    /// Cases with a text of our own: the recorded one names Go types, or quotes the file, or a key.
    const OWN_TEXTS: [&str; 5] = [
        "no kind \"EncryptionConfiguration\"",
        "Object 'Kind' is missing",
        "provider does not contain any",
        "more than one provider",
        "KMSv1 is deprecated",
    ];
    let Some(folder) = prerequisites::encryption() else { return };
    let text = std::fs::read_to_string(folder.join("bad-configs.jsonl")).unwrap();
    let mut rejected = 0;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let Some(config) = line.get("config").filter(|config| config.is_object()) else { continue };
        let result = parse(config);
        if line["exit"] != 1 {
            assert!(result.is_ok(), "{}: {}", line["case"], result.unwrap_err());
            continue;
        }
        let message = result.expect_err(&line.to_string()).to_string();
        let recorded = line["error"].as_str().unwrap();
        let reason = recorded.split_once("file: ").or_else(|| recorded.split_once("transformers: "));
        let reason = reason.map_or(recorded, |(_, reason)| reason);
        let own = OWN_TEXTS.iter().find(|text| recorded.contains(*text));
        match own {
            None => assert!(message.contains(reason), "{message}\nrecorded: {reason}"),
            Some(text)
                if text.starts_with("provider") || text.starts_with("more") || text.starts_with("KMS") =>
            {
                assert!(message.contains(text), "{message}");
            }
            Some(_) => assert!(message.contains("apiVersion") || message.contains("kind"), "{message}"),
        }
        let mut keys = Vec::new();
        secrets(config, &mut keys);
        for key in keys.iter().filter(|key| !key.is_empty()) {
            assert!(!message.contains(key.as_str()), "the message shows a key: {message}");
        }
        rejected += 1;
    }
    assert!(rejected > 20, "{rejected} files are rejected");
}

#[test]
fn recorded_configurations_are_accepted() {
    let Some(folder) = prerequisites::encryption() else { return };
    let text = std::fs::read_to_string(folder.join("configs.jsonl")).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let parsed = parse(&line["encryption"]).unwrap();
        let mut keys = Vec::new();
        secrets(&line["encryption"], &mut keys);
        let debug = format!("{parsed:?}");
        assert!(keys.iter().all(|key| !debug.contains(key.as_str())), "{debug}");
    }
}

#[test]
fn syntax_error_does_not_quote_the_file() {
    let bytes =
        b"kind: EncryptionConfiguration\nresources: [{providers: [{aescbc: {keys: [{secret: 'c2VjcmV0";
    let error = Configuration::parse(Path::new("enc.yaml"), bytes, &names()).unwrap_err().to_string();
    assert!(error.contains("is not valid YAML or JSON") && !error.contains("c2Vj"), "{error}");
    let error = Configuration::parse(Path::new("enc.yaml"), b" \n", &names()).unwrap_err().to_string();
    assert_eq!(error, "encryption provider configuration file `enc.yaml` is empty");
}

#[test]
fn overlapping_and_masked_resources_are_rejected() {
    let rule = |resources: Value| json!({"resources": resources, "providers": [{"identity": {}}]});
    let file = |rules: Value| json!({"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": rules});
    for (rules, expected) in [
        (json!([rule(json!(["secrets", "*."]))]), Some("using overlapping resources")),
        (json!([rule(json!(["pods", "*.*"]))]), Some("using overlapping resources")),
        (json!([rule(json!(["deployments.apps", "*.apps"]))]), Some("using overlapping resources")),
        (json!([rule(json!(["secrets", "*.apps"]))]), None),
        (
            json!([rule(json!(["*.apps"])), rule(json!(["deployments.apps"]))]),
            Some("is masked by earlier rule \"*.apps\""),
        ),
        (json!([rule(json!(["deployments.apps"])), rule(json!(["*.apps"])), rule(json!(["*.*"]))]), None),
        (json!([rule(json!(["pods.extensions"]))]), Some("'extensions' group has been removed")),
        (json!([rule(json!([]))]), Some("resources[0].resources: Required value")),
        (
            json!([{"resources": ["secrets"], "providers": [{"identity": {}}], "more": 1}]),
            Some("unknown field"),
        ),
    ] {
        let result = parse(&file(rules.clone()));
        match expected {
            None => assert!(result.is_ok(), "{rules}"),
            Some(text) => {
                let message = result.expect_err(&rules.to_string()).to_string();
                assert!(message.contains(text), "{rules}: {message}");
            }
        }
    }
}

#[test]
fn kms_endpoint_and_timeout_are_read() {
    let kms = |endpoint: &str| {
        for_secrets(
            &json!([{"kms": {"apiVersion": "v2", "name": "p", "endpoint": endpoint, "timeout": "250ms"}}]),
        )
    };
    for (endpoint, socket) in
        [("unix:///run/kms.sock", "/run/kms.sock"), ("unix:///@kms", "@kms"), ("unix://@kms", "@kms")]
    {
        let parsed = parse(&kms(endpoint)).unwrap();
        let ProviderConfiguration::Kms(kms) = &parsed.rules[0].providers[0] else { panic!("{parsed:?}") };
        assert_eq!((kms.socket.as_str(), kms.timeout.as_millis()), (socket, 250), "{endpoint}");
    }
    for endpoint in ["unix://", "tcp://127.0.0.1:1", "run"] {
        assert!(parse(&kms(endpoint)).is_err(), "{endpoint}");
    }
}
