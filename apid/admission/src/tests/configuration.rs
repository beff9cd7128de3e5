//! Tests of valid and invalid files of `--admission-control-config-file`.

use std::io;

use apimachinery::names::Preset;

use super::*;
use crate::testing::Fake;

fn parse(text: &str) -> Result<Configuration, Vec<String>> {
    let read = |path: &str| match path {
        "limits.yaml" => {
            Ok(b"apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n".to_vec())
        }
        "twice.yaml" => Ok(b"a: 1\na: 2\n".to_vec()),
        _ => Err(io::Error::other("No such file")),
    };
    Configuration::parse("f.yaml", text.as_bytes(), &Fake::new(Preset::Kubernetes).names, &read)
}

fn file(plugins: &str) -> String {
    format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: {plugins}\n")
}

#[test]
fn plugin_configuration_is_read_inline_or_from_path() {
    let inline = "[{name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b}}}, {name: EventRateLimit, path: limits.yaml}]";
    let alpha = file(inline).replace("apiserver.config.k8s.io/v1\n", "apiserver.k8s.io/v1alpha1\n");
    for text in [file(inline), alpha] {
        let configuration = parse(&text).unwrap();
        assert_eq!(configuration.names().collect::<Vec<_>>(), ["EventRateLimit", "PodNodeSelector"]);
        let decoded = configuration.for_plugin("PodNodeSelector").unwrap().decode_fields(|fields| {
            fields.object("podNodeSelectorPluginConfig", |inner| inner.text("clusterDefaultNodeSelector"))
        });
        assert_eq!(decoded, Ok(Some("a=b".to_owned())));
        assert!(configuration.for_plugin("PodSecurity").is_none());
    }
    let json =
        r#"{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": null}"#;
    assert_eq!(parse(json).unwrap().names().count(), 0);
}

#[test]
fn configuration_errors_name_file_line_and_field() {
    for (text, errors) in [
        (file("[{name: Nothing}]"), vec!["line 3: plugins[0]: plugin `Nothing` is unknown"]),
        (
            file("\n- {name: PodSecurity}\n- {name: PodSecurity}\n- {path: limits.yaml}\n"),
            vec![
                "line 5: plugins[1]: plugin `PodSecurity` is configured twice",
                "line 6: plugins[2].name: must be set",
            ],
        ),
        (file("[{name: PodSecurity, path: gone.yaml}]"), vec!["line 3: plugins[0].path: No such file"]),
        (
            file("[{name: PodSecurity, path: limits.yaml, configuration: {}}]"),
            vec!["line 3: plugins[0].path: excludes `configuration`"],
        ),
        (
            file("[{name: PodSecurity, config: {}}]"),
            vec!["line 3: strict decoding error: unknown field \"plugins[0].config\""],
        ),
        (
            file("[]").replace("plugins", "plugin"),
            vec!["line 3: strict decoding error: unknown field \"plugin\""],
        ),
        (file("[]\nplugins: []"), vec!["line 4: strict decoding error: duplicate field \"plugins\""]),
        (
            "kind: AdmissionConfiguration\napiVersion: v1\n".to_owned(),
            vec![
                "line 2: apiVersion: Unsupported value: \"v1\": supported values: \
                 \"apiserver.config.k8s.io/v1\", \"apiserver.k8s.io/v1alpha1\"",
            ],
        ),
        ("[]".to_owned(), vec!["line 1: the file must be an object"]),
    ] {
        let errors: Vec<String> = errors.iter().map(|error| format!("file `f.yaml`: {error}")).collect();
        assert_eq!(parse(&text).unwrap_err(), errors, "{text}");
    }
    assert!(parse("a: [").unwrap_err()[0].starts_with("file `f.yaml`: line 1: "));
}

#[test]
fn errors_of_a_plugin_configuration_name_its_file() {
    let error = |plugin: &str| {
        let configuration = parse(&file(plugin)).unwrap();
        let decoded =
            configuration.for_plugin("PodSecurity").unwrap().decode_fields(|fields| fields.text("a"));
        decoded.unwrap_err().to_string()
    };
    let text = error("[{name: PodSecurity, path: twice.yaml}]");
    assert!(text.starts_with("file `twice.yaml`: line 2: "), "{text}");
    assert!(text.contains("duplicate field \"a\""), "{text}");
    let text = error("[{name: PodSecurity, configuration: {a: 1}}]");
    assert_eq!(
        text,
        "file `f.yaml`: line 3: plugins[0].configuration.a: Invalid value: \"number\": must be a string"
    );
}
