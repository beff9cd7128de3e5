//! PodTolerationRestriction: adds the tolerations of a namespace to its pods and enforces an allowlist.
//!
//! # Reference
//!
//! Annotations of the namespace hold both lists as JSON; the configuration supplies defaults. A pod whose QoS
//! class is not BestEffort also tolerates memory pressure. Violations of the allowlist are 403;
//! kube-apiserver returns 500.

use std::fmt::Display;

use apimachinery::codec::{Limits, json};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use crate::plugin_configuration::ConfigurationType;
use crate::{
    Attributes, Environment, Interest, Operation, Plugin, PluginConfiguration, PluginConfigurationError,
    tolerations,
};

pub(crate) struct PodTolerationRestriction {
    /// Key of the annotation with the tolerations to add.
    default_key: String,
    /// Key of the annotation with the allowlist.
    limit_key: String,
    /// Tolerations to add in namespaces without the annotation.
    default: Vec<Value>,
    /// Allowlist of namespaces without the annotation; an empty one allows everything.
    limit: Vec<Value>,
    /// Toleration of memory pressure, for pods other than BestEffort.
    memory_pressure: Value,
}

impl PodTolerationRestriction {
    /// Builds the plugin with the lists of its configuration.
    ///
    /// # Errors
    ///
    /// The configuration is invalid.
    pub(crate) fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        let names = &*environment.names;
        let (default, limit) = configuration
            .map(|configuration| read_configuration(configuration, names))
            .transpose()?
            .unwrap_or_default();
        let annotation = |name: &str| names.label_sub_key("scheduler.alpha", name);
        Ok(PodTolerationRestriction {
            default_key: annotation("defaultTolerations"),
            limit_key: annotation("tolerationsWhitelist"),
            default,
            limit,
            memory_pressure: serde_json::json!({
                "key": names.label_sub_key("node", "memory-pressure"),
                "operator": "Exists",
                "effect": "NoSchedule",
            }),
        })
    }

    /// Returns the tolerations in the namespace annotation `key`; `default` without the annotation. 500 if
    /// the annotation is invalid.
    async fn namespace_tolerations(
        &self,
        attributes: &Attributes<'_>,
        key: &str,
        default: &[Value],
    ) -> Result<Vec<Value>, Status> {
        let namespace = attributes.namespace;
        let internal_error =
            |reason: &dyn Display| Status::internal(format!("namespace {namespace:?}: {key}: {reason}"));
        match attributes.environment.reader.namespace(namespace).await?.annotation(key) {
            None => Ok(default.to_vec()),
            Some("") => Ok(Vec::new()),
            Some(text) => {
                let decoded = json::decode(text.as_bytes(), Limits::BODY);
                let decoded = decoded.map_err(|error| internal_error(&error))?;
                tolerations::check(&decoded.value).map_err(|error| internal_error(&error))
            }
        }
    }
}

/// Parses the lists `default` and `whitelist` of a configuration.
fn read_configuration(
    configuration: &PluginConfiguration,
    names: &Names,
) -> Result<(Vec<Value>, Vec<Value>), PluginConfigurationError> {
    let expected = ConfigurationType {
        group: "podtolerationrestriction.admission",
        versions: &["v1alpha1"],
        kind: "Configuration",
    };
    configuration.decode(names, expected, |fields| {
        let mut list = |field: &'static str| match fields.value(field).map(tolerations::check) {
            None => Vec::new(),
            Some(Ok(list)) => list,
            Some(Err(error)) => {
                fields.errors().add_text(&fields.path().child(field), &error.to_string());
                Vec::new()
            }
        };
        (list("default"), list("whitelist"))
    })
}

impl Plugin for PodTolerationRestriction {
    const INTEREST: Interest = Interest::PODS;

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let mut all_tolerations = tolerations::pod_tolerations(pod).to_vec();
        if attributes.operation == Operation::Create {
            let default = self.namespace_tolerations(attributes, &self.default_key, &self.default).await?;
            if !default.is_empty() {
                all_tolerations = tolerations::merge(&default, &all_tolerations);
            }
        }
        if kinds::quality_of_service(pod) != "BestEffort" {
            let memory_pressure = std::slice::from_ref(&self.memory_pressure);
            all_tolerations = tolerations::merge(&all_tolerations, memory_pressure);
        }
        if !all_tolerations.is_empty() {
            tolerations::set(pod, all_tolerations);
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let pod_tolerations = object.map_or(&[][..], tolerations::pod_tolerations);
        if pod_tolerations.is_empty() {
            return Ok(());
        }
        let limit = self.namespace_tolerations(attributes, &self.limit_key, &self.limit).await?;
        let is_allowed = |t: &Value| limit.iter().any(|allowed| tolerations::covers(allowed, t));
        match limit.is_empty() || pod_tolerations.iter().all(is_allowed) {
            true => Ok(()),
            false => Err(attributes.forbidden(
                "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::Configuration;
    use crate::testing::{Fake, TestedWrite};

    fn plugin(fake: &Fake, lists: &str) -> Result<PodTolerationRestriction, String> {
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{{name: PodTolerationRestriction, configuration: {{apiVersion: podtolerationrestriction.admission.k8s.io/v1alpha1, kind: Configuration, {lists}}}}}]}}"
        );
        let file =
            Configuration::parse("f", text.as_bytes(), &fake.names, &|_| Err(std::io::Error::other("none")))
                .unwrap();
        PodTolerationRestriction::new(&fake.environment, file.for_plugin("PodTolerationRestriction"))
            .map_err(|error| error.to_string())
    }

    fn all(key: &str) -> Value {
        json!({"key": key, "operator": "Exists"})
    }

    #[tokio::test]
    async fn namespace_tolerations_are_merged_and_allowlist_enforced() {
        let pressure = json!({"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"});
        let conflict = "pods \"p\" is forbidden: pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist";
        let default = |text: &str| json!({"scheduler.alpha.kubernetes.io/defaultTolerations": text});
        let limit = |text: &str| json!({"scheduler.alpha.kubernetes.io/tolerationsWhitelist": text});
        let of_a = r#"[{"key": "a", "operator": "Exists"}]"#;
        let update =
            || TestedWrite { operation: Operation::Update, old: Some(json!({})), ..TestedWrite::default() };
        for (annotations, lists, write, quality, present, expected, message) in [
            (json!({}), "", TestedWrite::default(), "BestEffort", json!([]), json!([]), ""),
            (
                default(of_a),
                "",
                TestedWrite::default(),
                "BestEffort",
                json!([all("b")]),
                json!([all("a"), all("b")]),
                "",
            ),
            (default(of_a), "", update(), "BestEffort", json!([all("b")]), json!([all("b")]), ""),
            (
                default(of_a),
                "",
                TestedWrite::default(),
                "Burstable",
                json!([]),
                json!([all("a"), pressure]),
                "",
            ),
            (
                json!({}),
                "default: [{key: d, operator: Exists}]",
                TestedWrite::default(),
                "BestEffort",
                json!([]),
                json!([all("d")]),
                "",
            ),
            (
                default(""),
                "default: [{key: d, operator: Exists}]",
                TestedWrite::default(),
                "BestEffort",
                json!([]),
                json!([]),
                "",
            ),
            (limit(of_a), "", TestedWrite::default(), "BestEffort", json!([all("a")]), json!([all("a")]), ""),
            (
                limit(of_a),
                "",
                TestedWrite::default(),
                "BestEffort",
                json!([all("b")]),
                json!([all("b")]),
                conflict,
            ),
            (
                json!({}),
                "whitelist: [{key: a, operator: Exists}]",
                update(),
                "BestEffort",
                json!([all("b")]),
                json!([all("b")]),
                conflict,
            ),
            (limit("[]"), "", TestedWrite::default(), "BestEffort", json!([all("b")]), json!([all("b")]), ""),
        ] {
            let namespace = json!({"metadata": {"name": "team", "annotations": annotations}});
            let fake = Fake::new(Preset::Kubernetes).with_objects("", "Namespace", &[namespace]);
            let plugin = plugin(&fake, lists).unwrap();
            let pod = json!({
                "metadata": {"name": "p"}, "spec": {"tolerations": present}, "status": {"qosClass": quality},
            });
            let answer = fake.run_plugin(&plugin, write, pod).await;
            assert_eq!(answer.message(), message, "{annotations} {lists}");
            assert_eq!(answer.object["spec"]["tolerations"], expected, "{annotations} {lists}");
        }
    }

    #[tokio::test]
    async fn quality_of_service_of_a_new_pod_is_computed() {
        let fake = Fake::new(Preset::Kubernetes).with_objects(
            "",
            "Namespace",
            &[json!({"metadata": {"name": "team"}})],
        );
        let plugin = plugin(&fake, "").unwrap();
        let requests = json!({"requests": {"cpu": "1"}});
        for (resources, count) in [(json!({}), 0), (requests, 1)] {
            let spec = json!({"containers": [{"name": "c", "resources": resources}]});
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let answer = fake.run_plugin(&plugin, TestedWrite::default(), pod).await;
            let tolerations = answer.object["spec"]["tolerations"].as_array().map_or(0, Vec::len);
            assert_eq!(tolerations, count, "{resources}");
        }
    }

    #[tokio::test]
    async fn invalid_toleration_lists_are_rejected() {
        let fake = Fake::new(Preset::Kubernetes);
        for (bad, word) in
            [("default: [{}]", "default"), ("whitelist: {}", "whitelist"), ("limit: []", "limit")]
        {
            assert!(plugin(&fake, bad).err().unwrap().contains(word), "{bad}");
        }
        for text in ["{", "{}", "[1]"] {
            let annotations = json!({"scheduler.alpha.kubernetes.io/defaultTolerations": text});
            let namespace = json!({"metadata": {"name": "team", "annotations": annotations}});
            let fake = Fake::new(Preset::Kubernetes).with_objects("", "Namespace", &[namespace]);
            let plugin = PodTolerationRestriction::new(&fake.environment, None).unwrap();
            let answer = fake.run_plugin(&plugin, TestedWrite::default(), json!({"spec": {}})).await;
            assert_eq!(answer.result.unwrap_err().code, 500, "{text}");
        }
    }
}
