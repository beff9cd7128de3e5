//! Tests of valid and invalid files of `--admission-control-config-file`.

use apimachinery::names::Preset;

use super::*;
use crate::testing::Fake;

fn parse(text: &str) -> Result<Configuration, Vec<String>> {
    let read = |path: &str| match path {
        "limits.yaml" => {
            Ok(b"apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n".to_vec())
        }
        "twice.yaml" => Ok(b"a: 1\na: 2\n".to_vec()),
        _ => Err("No such file".to_owned()),
    };
    Configuration::parse("f.yaml", text.as_bytes(), &Fake::new(Preset::Kubernetes).names, &read)
}

fn file(plugins: &str) -> String {
    format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins: {plugins}\n")
}

#[test]
fn plugin_configuration_is_read_inline_or_from_path() {
    let inline = "[{name: PodNodeSelector, configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: a=b}}}, {name: EventRateLimit, path: limits.yaml}]";
    for text in [file(inline), file(inline).replace("/v1\n", "/v1alpha1\n")] {
        let configuration = parse(&text).unwrap();
        assert_eq!(configuration.names().collect::<Vec<_>>(), ["EventRateLimit", "PodNodeSelector"]);
        let mut fields = configuration.of("PodNodeSelector").unwrap().fields().unwrap();
        let mut inner = fields.object("podNodeSelectorPluginConfig").unwrap();
        assert_eq!(inner.text("clusterDefaultNodeSelector"), Ok(Some("a=b".to_owned())));
        assert_eq!(inner.end(), Ok(()));
        assert!(configuration.of("PodSecurity").is_none());
    }
    let json =
        r#"{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": null}"#;
    assert_eq!(parse(json).unwrap().names().count(), 0);
}

#[test]
fn configuration_errors_name_file_and_field() {
    for (text, errors) in [
        (file("[{name: Nothing}]"), vec!["file `f.yaml`, plugins[0]: plugin `Nothing` is unknown"]),
        (
            file("[{name: PodSecurity}, {name: PodSecurity}, {path: x}]"),
            vec![
                "file `f.yaml`, plugins[1]: plugin `PodSecurity` is configured twice",
                "file `f.yaml`, plugins[2].name: must be set",
            ],
        ),
        (
            file("[{name: PodSecurity, path: gone.yaml}]"),
            vec!["file `f.yaml`, plugins[0].path: No such file"],
        ),
        (file("[{name: PodSecurity, path: twice.yaml}]"), vec!["file `twice.yaml`: duplicate key `a`"]),
        (
            file("[{name: PodSecurity, path: limits.yaml, configuration: {}}]"),
            vec!["file `f.yaml`, plugins[0].path: excludes `configuration`"],
        ),
        (file("[{name: PodSecurity, config: {}}]"), vec!["file `f.yaml`, plugins[0].config: is unknown"]),
        (file("[]").replace("plugins", "plugin"), vec!["file `f.yaml`, plugin: is unknown"]),
        (
            "kind: AdmissionConfiguration\napiVersion: v1\n".to_owned(),
            vec![
                "file `f.yaml`: is kind `AdmissionConfiguration` of `v1`, expected kind `AdmissionConfiguration` of `apiserver.config.k8s.io/v1` or `apiserver.config.k8s.io/v1alpha1`",
            ],
        ),
        ("[]".to_owned(), vec!["file `f.yaml`: must be an object"]),
    ] {
        assert_eq!(parse(&text).unwrap_err(), errors, "{text}");
    }
    assert!(parse("a: [").unwrap_err()[0].starts_with("file `f.yaml`: "));
}

#[test]
fn configuration_fields_are_type_checked() {
    let text = file("[{name: PodSecurity, configuration: {a: 1, b: [x], c: {d: e}, f: true}}]");
    let configuration = parse(&text).unwrap();
    let fields = || configuration.of("PodSecurity").unwrap().fields().unwrap();
    assert_eq!(fields().integer("a"), Ok(Some(1)));
    assert_eq!(fields().texts("b"), Ok(vec!["x".to_owned()]));
    assert_eq!(fields().text_map("c").unwrap().get("d").map(String::as_str), Some("e"));
    assert_eq!(fields().boolean("f"), Ok(Some(true)));
    let at = "file `f.yaml`, plugins[0].configuration";
    for (have, reason) in [
        (fields().text("a").err(), "a: must be a string"),
        (fields().integer("b").err(), "b: must be an integer"),
        (fields().boolean("a").err(), "a: must be true or false"),
        (fields().texts("c").err(), "c: must be a list of strings"),
        (fields().text_map("b").err(), "b: must be a map of strings"),
        (fields().objects("c").err(), "c: must be a list"),
        (fields().object("f").err(), "f: must be an object"),
    ] {
        assert_eq!(have, Some(format!("{at}.{reason}")));
    }
}
