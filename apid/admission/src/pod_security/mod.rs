//! PodSecurity: enforces the Pod Security Standards by namespace.
//!
//! # Contract
//!
//! Namespace labels define a level (`privileged`, `baseline`, `restricted`) and a release for each of three
//! modes. *enforce* rejects pods, *audit* adds an audit annotation, *warn* returns a warning. Pod templates
//! only cause audit annotations and warnings, because their pods are checked later. The plugin rejects writes
//! that make a label invalid. A namespace write with stricter enforcement returns warnings about existing
//! pods that violate the new level.
//!
//! # Invariants
//!
//! INVARIANT (stored labels fail closed): an invalid stored enforce level counts as `restricted`.
//! INVARIANT (pinned releases stay): the rules of a release never change; see [`controls`].
//!
//! # Reference
//!
//! The plugin evaluates a pod update only if an image, a seccomp annotation or the number of containers
//! changes. No other mutable field affects a control.

use apimachinery::field::aggregate;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::{
    Attributes, Environment, Interest, ObjectKind, Operation, Plugin, PluginConfiguration,
    PluginConfigurationError, WriteTarget,
};

mod change;
mod controls;
mod existing;
mod pod;
mod policy;
mod settings;

#[cfg(test)]
mod tests;

use controls::{Violation, violations};
use pod::{Keys, Pod};
use policy::{LabelKeys, Level, Mode, ParsedPolicy, Standard};
use settings::Settings;

/// The evaluated writes. A pod subresource is evaluated if it can change containers.
const EVALUATED_TARGETS: &[WriteTarget] = &[
    (ObjectKind::NAMESPACE, ""),
    (ObjectKind::POD, ""),
    (ObjectKind::POD, "ephemeralcontainers"),
    (ObjectKind::POD, "resize"),
    (ObjectKind::new("", "PodTemplate"), ""),
    (ObjectKind::new("", "ReplicationController"), ""),
    (ObjectKind::new("apps", "DaemonSet"), ""),
    (ObjectKind::new("apps", "Deployment"), ""),
    (ObjectKind::new("apps", "ReplicaSet"), ""),
    (ObjectKind::new("apps", "StatefulSet"), ""),
    (ObjectKind::new("batch", "CronJob"), ""),
    (ObjectKind::new("batch", "Job"), ""),
];

pub(crate) struct PodSecurity {
    settings: Settings,
    labels: LabelKeys,
    keys: Keys,
    audit: AuditKeys,
}

/// Keys of the audit annotations.
struct AuditKeys {
    enforced: String,
    violations: String,
    exempt: String,
    error: String,
}

impl AuditKeys {
    fn new(names: &Names) -> Self {
        let key = |name: &str| names.label_sub_key("pod-security", name);
        AuditKeys {
            enforced: key("enforce-policy"),
            violations: key("audit-violations"),
            exempt: key("exempt"),
            error: key("error"),
        }
    }
}

impl PodSecurity {
    /// Builds the plugin with the settings of its configuration.
    ///
    /// # Errors
    ///
    /// The configuration is invalid.
    pub(crate) fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        let names = &*environment.names;
        Ok(PodSecurity {
            settings: configuration
                .map(|configuration| Settings::read(configuration, names))
                .transpose()?
                .unwrap_or_default(),
            labels: LabelKeys::new(names),
            keys: Keys::new(names),
            audit: AuditKeys::new(names),
        })
    }

    /// Parses the policy of a namespace.
    fn namespace_policy(&self, namespace: &Object) -> ParsedPolicy {
        self.labels.read(|key| namespace.label(key), self.settings.defaults)
    }

    /// Whether the write is exempt; adds an audit annotation if so.
    fn is_exempt(&self, attributes: &Attributes<'_>) -> bool {
        let is_listed = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let reason = if is_listed(&self.settings.namespaces, attributes.namespace) {
            "namespace"
        } else if is_listed(&self.settings.users, &attributes.user.name) {
            "user"
        } else {
            return false;
        };
        attributes.recorder.annotate(self.audit.exempt.clone(), reason);
        true
    }

    fn is_exempt_class(&self, pod: &Pod<'_>) -> bool {
        let class = pod.text("runtimeClassName");
        !class.is_empty() && self.settings.runtime_classes.iter().any(|exempt| exempt == class)
    }

    async fn check_pod(&self, attributes: &Attributes<'_>, object: &Object) -> Result<(), Status> {
        if self.is_exempt(attributes) {
            return Ok(());
        }
        let namespace = attributes.environment.reader.namespace(attributes.namespace).await?;
        let parsed = self.namespace_policy(&namespace);
        if parsed.errors.is_empty() && parsed.policy.is_privileged(&Mode::ALL) {
            attributes.recorder.annotate(self.audit.enforced.clone(), Standard::default().to_string());
            return Ok(());
        }
        if let (Operation::Update, Some(old)) = (attributes.operation, attributes.old)
            && !change::affects_controls(object, old, &self.keys)
        {
            return Ok(());
        }
        let pod = Pod::new(&self.keys, object.get("metadata"), object.get("spec"));
        self.evaluate(attributes, &parsed, &pod, true)
    }

    async fn check_template(&self, attributes: &Attributes<'_>, object: &Object) -> Result<(), Status> {
        if self.is_exempt(attributes) {
            return Ok(());
        }
        let Ok(namespace) = attributes.environment.reader.namespace(attributes.namespace).await else {
            // The pods of the template are checked at their creation, so the plugin allows the object.
            let reason = format!("failed to lookup namespace {:?}", attributes.namespace);
            attributes.recorder.annotate(self.audit.error.clone(), reason);
            return Ok(());
        };
        let parsed = self.namespace_policy(&namespace);
        if parsed.errors.is_empty() && parsed.policy.is_privileged(&[Mode::Audit, Mode::Warn]) {
            return Ok(());
        }
        let path: &[&str] = match attributes.resource.name() {
            "PodTemplate" => &["template"],
            "CronJob" => &["spec", "jobTemplate", "spec", "template"],
            _ => &["spec", "template"],
        };
        let Some(template) = object.at(path).filter(|template| template.is_object()) else { return Ok(()) };
        let pod = Pod::new(&self.keys, template.get("metadata"), template.get("spec"));
        self.evaluate(attributes, &parsed, &pod, false)
    }

    /// Evaluates a pod under the policy; `enforce`: whether the plugin may reject the pod.
    fn evaluate(
        &self,
        attributes: &Attributes<'_>,
        parsed: &ParsedPolicy,
        pod: &Pod<'_>,
        enforce: bool,
    ) -> Result<(), Status> {
        let recorder = attributes.recorder;
        if self.is_exempt_class(pod) {
            recorder.annotate(self.audit.exempt.clone(), "runtimeClass");
            return Ok(());
        }
        let policy = &parsed.policy;
        if !parsed.errors.is_empty() {
            let reason = format!("Failed to parse policy: {}", aggregate(&parsed.errors));
            recorder.annotate(self.audit.error.clone(), reason);
        }
        let mut cache = EvaluationCache::default();
        if enforce {
            recorder.annotate(self.audit.enforced.clone(), policy.enforce.to_string());
        }
        let rejection = match enforce {
            true => cache.describe_violations(policy.enforce, pod),
            false => None,
        };
        if let Some(faults) = cache.describe_violations(policy.audit, pod) {
            let message = format!("would violate PodSecurity \"{}\": {faults}", policy.audit);
            recorder.annotate(self.audit.violations.clone(), message);
        }
        if let Some(faults) = rejection {
            let reason = format!("violates PodSecurity \"{}\": {faults}", policy.enforce);
            return Err(attributes.forbidden(&reason));
        }
        if let Some(faults) = cache.describe_violations(policy.warn, pod) {
            recorder.warn(format!("would violate PodSecurity \"{}\": {faults}", policy.warn));
        }
        Ok(())
    }
}

impl Plugin for PodSecurity {
    const INTEREST: Interest = Interest::only(EVALUATED_TARGETS);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        match (object, attributes.resource.name()) {
            (None, _) => Ok(()),
            (Some(object), "Namespace") => self.check_namespace(attributes, object).await,
            (Some(object), "Pod") => self.check_pod(attributes, object).await,
            (Some(object), _) => self.check_template(attributes, object).await,
        }
    }
}

/// Violations of one pod by standard; evaluates each standard once.
#[derive(Default)]
struct EvaluationCache(Vec<(Standard, Option<String>)>);

impl EvaluationCache {
    fn describe_violations(&mut self, standard: Standard, pod: &Pod<'_>) -> Option<String> {
        if standard.level == Level::Privileged {
            return None;
        }
        if let Some((_, text)) = self.0.iter().find(|(evaluated, _)| *evaluated == standard) {
            return text.clone();
        }
        let found = violations(standard, pod);
        let faults = (!found.is_empty()).then(|| format_with_details(&found));
        self.0.push((standard, faults.clone()));
        faults
    }
}

/// Formats violations as `privileged (container "a" must not …), host namespaces (hostPID=true)`.
fn format_with_details(violations: &[Violation]) -> String {
    let texts: Vec<String> =
        violations.iter().map(|Violation { reason, detail }| format!("{reason} ({detail})")).collect();
    texts.join(", ")
}
