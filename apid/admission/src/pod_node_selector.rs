//! PodNodeSelector: restricts the node selectors of pods by namespace.
//! The plugin adds the node selector of the namespace annotation, or the configured default, to each pod. It
//! rejects selectors outside the configured limit of the namespace.
//!
//! # Reference
//!
//! The configuration is `podNodeSelectorPluginConfig`: one selector `a=b,c=d` for each limited namespace, and
//! `clusterDefaultNodeSelector` for namespaces without the annotation.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use kinds::format;

use crate::{Attributes, Interest, Operation, Plugin, PluginConfiguration, PluginConfigurationError};

/// Required labels of a node.
type Selector = BTreeMap<String, String>;

/// Configuration key of the cluster default; all other keys are namespaces.
const DEFAULT: &str = "clusterDefaultNodeSelector";

pub(crate) struct PodNodeSelector {
    /// Default selector for namespaces without the annotation.
    default_selector: Selector,
    /// Labels that node selectors of pods may require, by namespace. Without an entry, all labels are
    /// allowed.
    limits: BTreeMap<String, Selector>,
}

impl PodNodeSelector {
    /// Builds the plugin with the selectors of its configuration.
    ///
    /// # Errors
    ///
    /// The configuration is invalid.
    pub(crate) fn new(configuration: Option<&PluginConfiguration>) -> Result<Self, PluginConfigurationError> {
        let mut limits = BTreeMap::new();
        if let Some(configuration) = configuration {
            limits = configuration.decode_fields(|fields| {
                let mut limits = BTreeMap::new();
                for (namespace, text) in fields.text_map("podNodeSelectorPluginConfig") {
                    let path = fields.path().child("podNodeSelectorPluginConfig").child(&namespace);
                    match parse_selector(&text) {
                        Ok(selector) => drop(limits.insert(namespace, selector)),
                        Err(reason) => fields.errors().add_text(&path, &reason),
                    }
                }
                limits
            })?;
        }
        Ok(PodNodeSelector { default_selector: limits.remove(DEFAULT).unwrap_or_default(), limits })
    }

    /// Returns the node selector of the namespace, or the default; 500 if the annotation is invalid.
    async fn namespace_selector(&self, attributes: &Attributes<'_>) -> Result<Selector, Status> {
        let (environment, namespace) = (attributes.environment, attributes.namespace);
        let annotation = environment.names.label_sub_key("scheduler.alpha", "node-selector");
        match environment.reader.namespace(namespace).await?.annotation(&annotation) {
            Some(text) => parse_selector(text)
                .map_err(|reason| Status::internal(format!("namespace {namespace:?}: {reason}"))),
            None => Ok(self.default_selector.clone()),
        }
    }

    /// Returns the node selector of the namespace; 403 if the selector of the pod conflicts with this selector.
    async fn checked_selector(&self, attributes: &Attributes<'_>, pod: &Object) -> Result<Selector, Status> {
        let expected = self.namespace_selector(attributes).await?;
        let differs =
            |(key, value): (&str, &str)| expected.get(key).is_some_and(|expected| expected != value);
        match node_selector(pod).any(differs) {
            true => Err(attributes
                .forbidden("pod node label selector conflicts with its namespace node label selector")),
            false => Ok(expected),
        }
    }
}

impl Plugin for PodNodeSelector {
    const INTEREST: Interest = Interest::PODS.on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let namespace_selector = self.checked_selector(attributes, pod).await?;
        if let (false, Some(Value::Object(spec))) = (namespace_selector.is_empty(), pod.get_mut("spec")) {
            let selector = spec.entry("nodeSelector").or_insert_with(|| Value::Object(Default::default()));
            if let Value::Object(selector) = selector {
                selector
                    .extend(namespace_selector.into_iter().map(|(key, value)| (key, Value::String(value))));
            }
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        self.checked_selector(attributes, pod).await?;
        let limit = self.limits.get(attributes.namespace).filter(|limit| !limit.is_empty());
        let is_within = |limit: &Selector| {
            node_selector(pod).all(|(key, value)| limit.get(key).is_some_and(|allowed| allowed == value))
        };
        match limit {
            Some(limit) if !is_within(limit) => {
                Err(attributes
                    .forbidden("pod node label selector labels conflict with its namespace whitelist"))
            }
            _ => Ok(()),
        }
    }
}

/// Node selector of a pod.
fn node_selector(pod: &Object) -> impl Iterator<Item = (&str, &str)> {
    let selector = pod.at(&["spec", "nodeSelector"]).and_then(Value::as_object);
    selector.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
}

/// Parses a selector `a=b,c=d`.
fn parse_selector(text: &str) -> Result<Selector, String> {
    let parts = text.split(',').filter(|_| !text.is_empty());
    parts
        .map(|part| {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) if !value.contains('=') => (key.trim(), value.trim()),
                _ => return Err(format!("invalid selector: [{}]", part.replace('=', " "))),
            };
            let errors = format::qualified_name(key).into_iter().chain(format::label_value(value));
            match errors.into_iter().next() {
                Some(reason) => Err(format!("invalid selector `{part}`: {reason}")),
                None => Ok((key.to_owned(), value.to_owned())),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::Configuration;
    use crate::testing::{Fake, TestedWrite};

    fn plugin(fake: &Fake, selectors: &str) -> Result<PodNodeSelector, String> {
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AdmissionConfiguration, plugins: [{{name: PodNodeSelector, configuration: {{podNodeSelectorPluginConfig: {selectors}}}}}]}}"
        );
        let file =
            Configuration::parse("f", text.as_bytes(), &fake.names, &|_| Err(std::io::Error::other("none")))
                .unwrap();
        PodNodeSelector::new(file.for_plugin("PodNodeSelector")).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn namespace_node_selector_is_merged_into_pods() {
        let annotated = |text: &str| json!({"scheduler.alpha.kubernetes.io/node-selector": text});
        let conflict = "pods \"p\" is forbidden: pod node label selector conflicts with its namespace node label selector";
        let beyond =
            "pods \"p\" is forbidden: pod node label selector labels conflict with its namespace whitelist";
        for (annotations, selectors, selector, expected, message) in [
            (json!({}), "{}", json!(null), json!(null), ""),
            (annotated(""), "{clusterDefaultNodeSelector: a=b}", json!(null), json!(null), ""),
            (annotated(" a = b ,c=d"), "{}", json!(null), json!({"a": "b", "c": "d"}), ""),
            (annotated("a=b"), "{}", json!({"a": "b", "x": "y"}), json!({"a": "b", "x": "y"}), ""),
            (annotated("a=b"), "{}", json!({"a": "c"}), json!({"a": "c"}), conflict),
            (json!({}), "{clusterDefaultNodeSelector: a=b}", json!(null), json!({"a": "b"}), ""),
            (json!({}), "{team: 'a=b,c=d'}", json!({"c": "d"}), json!({"c": "d"}), ""),
            (json!({}), "{team: 'a=b'}", json!({"c": "d"}), json!({"c": "d"}), beyond),
            (annotated("a=b"), "{team: 'c=d'}", json!(null), json!({"a": "b"}), beyond),
            (json!({}), "{other: 'a=b'}", json!({"c": "d"}), json!({"c": "d"}), ""),
        ] {
            let namespace = json!({"metadata": {"name": "team", "annotations": annotations}});
            let fake = Fake::new(Preset::Kubernetes).with_objects("", "Namespace", &[namespace]);
            let plugin = plugin(&fake, selectors).unwrap();
            let mut spec = json!({"containers": []});
            if !selector.is_null() {
                spec["nodeSelector"] = selector;
            }
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let answer = fake.run_plugin(&plugin, TestedWrite::default(), pod).await;
            assert_eq!(answer.message(), message, "{annotations} {selectors}");
            let have = answer.object["spec"].get("nodeSelector").cloned().unwrap_or_default();
            assert_eq!(have, expected, "{annotations} {selectors}");
        }
    }

    #[tokio::test]
    async fn invalid_node_selector_is_rejected() {
        let fake = Fake::new(Preset::Kubernetes);
        for bad in ["{team: a}", "{team: 'a=b=c'}", "{team: 'a b=c'}", "{team: 'a=b,'}"] {
            assert!(plugin(&fake, bad).err().unwrap().contains("podNodeSelectorPluginConfig"), "{bad}");
        }
        let annotations = json!({"scheduler.alpha.kubernetes.io/node-selector": "a"});
        let namespace = json!({"metadata": {"name": "team", "annotations": annotations}});
        let fake = fake.with_objects("", "Namespace", &[namespace]);
        let plugin = PodNodeSelector::new(None).unwrap();
        let answer = fake.run_plugin(&plugin, TestedWrite::default(), json!({"spec": {}})).await;
        assert_eq!(answer.result.unwrap_err().code, 500);
    }
}
