//! Namespace writes: label validation, and evaluation of existing pods under a new policy.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use super::controls::violations;
use super::pod::Pod;
use super::policy::{Level, NamespacePolicy, Standard};
use super::{PodSecurity, Violation};
use crate::tree::items_at;
use crate::{Attributes, ObjectKind, Operation};

/// Maximum number of evaluated pods per namespace write; further pods are not evaluated.
const MAX_PODS: usize = 3_000;
/// Maximum evaluation time per namespace write; the remaining pods are not evaluated.
const MAX_EVALUATION_TIME: Duration = Duration::from_secs(1);

impl PodSecurity {
    /// Checks a created or updated namespace.
    pub(super) async fn check_namespace(
        &self,
        attributes: &Attributes<'_>,
        object: &Object,
    ) -> Result<(), Status> {
        let new = self.namespace_policy(object);
        let old = attributes.old.filter(|_| attributes.operation == Operation::Update);
        let old = old.map(|old| self.namespace_policy(old));
        let has_same_errors = old.as_ref().is_some_and(|old| old.errors == new.errors);
        if !new.errors.is_empty() && !has_same_errors {
            let kind = attributes.resource;
            let kind = GroupKind { group: String::new(), kind: kind.name().to_owned() };
            return Err(Status::invalid(&kind, attributes.name, &new.errors));
        }
        let is_stricter_policy = old.is_none_or(|old| is_stricter(new.policy.enforce, old.policy.enforce));
        if !is_stricter_policy {
            return Ok(());
        }
        if self.settings.namespaces.iter().any(|exempt| exempt == object.name()) {
            if let Some(warning) = self.exempt_labels_warning(object, &new.policy) {
                attributes.recorder.warn(warning);
            } else if attributes.operation == Operation::Update {
                attributes.recorder.annotate(self.audit.exempt.clone(), "namespace");
            }
            return Ok(());
        }
        if attributes.operation == Operation::Create {
            return Ok(());
        }
        let environment = attributes.environment;
        let warnings = match environment.reader.list(ObjectKind::POD, object.name()).await {
            Ok(pods) => self.evaluate_existing(object.name(), pods, new.policy.enforce, &*environment.clock),
            Err(_) => vec!["failed to list pods while checking new PodSecurity enforce level".to_owned()],
        };
        attributes.recorder.warn_all(warnings);
        Ok(())
    }

    /// Warning that the labels of an exempt namespace have no effect. None if the policy is the configured
    /// default or allows everything.
    fn exempt_labels_warning(&self, namespace: &Object, policy: &NamespacePolicy) -> Option<String> {
        if policy.is_equivalent(&self.settings.defaults) || policy.is_equivalent(&NamespacePolicy::default())
        {
            return None;
        }
        let modes = self.labels.labelled_modes(|key| namespace.label(key), policy);
        let modes: Vec<String> =
            modes.iter().map(|(mode, standard)| format!("{}={standard}", mode.as_str())).collect();
        Some(format!(
            "namespace {:?} is exempt from Pod Security, and the policy ({}) will be ignored",
            namespace.name(),
            modes.join(", ")
        ))
    }

    /// Evaluates the existing pods of a namespace and returns the warnings. After the summary there is one
    /// line for each combination of violations, with the smallest name of the pods that have the combination.
    fn evaluate_existing(
        &self,
        namespace: &str,
        pods: Vec<Arc<Object>>,
        enforce: Standard,
        clock: &dyn Clock,
    ) -> Vec<String> {
        let pods = self.order_by_distinct_controller(pods);
        let total = pods.len();
        let deadline = clock.monotonic() + MAX_EVALUATION_TIME;
        let mut checked = 0;
        let mut faults: BTreeMap<String, (usize, &str)> = BTreeMap::new();
        for pod in pods.iter().take(MAX_PODS) {
            checked += 1;
            let found = violations(enforce, &self.view(pod));
            if !found.is_empty() {
                let (count, first) = faults.entry(format_reasons(&found)).or_insert((0, pod.name()));
                *count += 1;
                *first = pod.name().min(first);
            }
            if clock.monotonic() >= deadline {
                break;
            }
        }
        let mut warnings = Vec::new();
        if checked < total {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
            ));
        }
        if !faults.is_empty() {
            warnings.push(format!(
                "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{enforce}\""
            ));
        }
        let mut lines: Vec<String> = faults
            .iter()
            .map(|(faults, (count, first))| match count {
                1 => format!("{first}: {faults}"),
                2 => format!("{first} (and 1 other pod): {faults}"),
                _ => format!("{first} (and {} other pods): {faults}", count - 1),
            })
            .collect();
        lines.sort_unstable();
        warnings.append(&mut lines);
        warnings
    }

    /// Moves the pods without a controller and one pod of each controller to the front, because the pods of a
    /// controller are alike. Omits pods with an exempt runtime class.
    fn order_by_distinct_controller(&self, pods: Vec<Arc<Object>>) -> Vec<Arc<Object>> {
        let mut seen = HashSet::new();
        let evaluated = pods.into_iter().filter(|pod| !self.is_exempt_class(&self.view(pod)));
        let (mut first, mut more): (Vec<_>, Vec<_>) =
            evaluated.partition(|pod| controller(pod).is_none_or(|uid| seen.insert(uid.to_owned())));
        first.append(&mut more);
        first
    }

    fn view<'a>(&'a self, pod: &'a Object) -> Pod<'a> {
        Pod::new(&self.keys, pod.get("metadata"), pod.get("spec"))
    }
}

/// Whether `new` may reject pods that `old` allowed.
fn is_stricter(new: Standard, old: Standard) -> bool {
    let is_relaxed = new.version == old.version && new.level <= old.level;
    new != old && new.level != Level::Privileged && !is_relaxed
}

fn format_reasons(violations: &[Violation]) -> String {
    let reasons: Vec<&str> = violations.iter().map(|violation| violation.reason).collect();
    reasons.join(", ")
}

/// Uid of the controller of an object.
fn controller(object: &Object) -> Option<&str> {
    let is_controller = |owner: &&Value| owner.get("controller").and_then(Value::as_bool) == Some(true);
    items_at(object, &["metadata", "ownerReferences"]).iter().find(is_controller)?.get("uid")?.as_str()
}
