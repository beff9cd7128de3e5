//! LimitRanger: applies default resource amounts and enforces the LimitRanges of a namespace.
//!
//! # Reference
//!
//! The plugin sets defaults only at pod creation and resize, the only writes that set container resources. It
//! validates creations and resizes of pods, and creations and updates of claims. The error lists the
//! violations of one LimitRange, at most [`MESSAGES_MAX`].

use std::collections::BTreeSet;

use apimachinery::field::aggregate;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::pod_containers::{CONTAINERS, INIT_CONTAINERS, containers, items_mut, name};
use crate::pod_resources::{ResourceList, container_amounts, pod_amounts};
use crate::quantity::{Amounts, Quantity, amounts};
use crate::tree::{annotate, items_at, object_at, text};
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

const LIMIT_RANGE: ObjectKind = ObjectKind::new("", "LimitRange");
/// Path of the limits of a LimitRange.
const LIMITS: &[&str] = &["spec", "limits"];
const CLAIM: ObjectKind = ObjectKind::new("", "PersistentVolumeClaim");

pub(crate) struct LimitRanger;

/// Key of the annotation that lists the applied defaults.
fn annotation(names: &Names) -> String {
    names.label_key("limit-ranger")
}

/// Whether the plugin handles a write. It ignores terminating objects, and updates of pods except resizes.
fn handles_write(attributes: &Attributes<'_>) -> bool {
    let is_pod = attributes.is_of(ObjectKind::POD);
    let is_update = attributes.operation == Operation::Update;
    !attributes.old.is_some_and(Object::is_terminating)
        && match attributes.subresource {
            "resize" => is_pod && is_update,
            _ => !is_pod || !is_update,
        }
}

impl Plugin for LimitRanger {
    const INTEREST: Interest =
        Interest::only(&[(ObjectKind::POD, ""), (ObjectKind::POD, "resize"), (CLAIM, "")]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| attributes.is_of(ObjectKind::POD) && handles_write(attributes))
        else {
            return Ok(());
        };
        for range in attributes.environment.reader.list(LIMIT_RANGE, attributes.namespace).await? {
            let changes = apply_defaults(&range, pod);
            if !changes.is_empty() {
                let text = format!("LimitRanger plugin set: {}", changes.join("; "));
                annotate(pod, &annotation(&attributes.environment.names), text);
            }
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(object) = object.filter(|_| handles_write(attributes)) else { return Ok(()) };
        for range in attributes.environment.reader.list(LIMIT_RANGE, attributes.namespace).await? {
            let errors = match attributes.is_of(ObjectKind::POD) {
                true => check_pod(&range, object),
                false => check_claim(&range, object),
            };
            if !errors.is_empty() {
                return Err(attributes.forbidden(&join_messages(errors)));
            }
        }
        Ok(())
    }
}

/// Maximum number of messages in a rejection; further messages are omitted.
const MESSAGES_MAX: usize = 100;

/// Joins the first [`MESSAGES_MAX`] distinct messages.
fn join_messages(messages: Vec<String>) -> String {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let unique: Vec<&String> =
        messages.iter().filter(|message| seen.insert(message)).take(MESSAGES_MAX).collect();
    aggregate(&unique)
}

/// Limits of a LimitRange for one type.
fn limits<'a>(range: &'a Object, limit_type: &'a str) -> impl Iterator<Item = &'a Value> + use<'a> {
    items_at(range, LIMITS).iter().filter(move |limit| text(limit, "type") == limit_type)
}

/// Sets default requests and limits of containers; returns a description of the changes.
fn apply_defaults(range: &Object, pod: &mut Object) -> Vec<String> {
    let (mut requests, mut max) = (Vec::new(), Vec::new());
    for limit in limits(range, "Container") {
        for (field, defaults) in [("defaultRequest", &mut requests), ("default", &mut max)] {
            let entries = limit.get(field).and_then(Value::as_object).into_iter().flatten();
            defaults.extend(entries.map(|(resource, amount)| (resource.clone(), amount.clone())));
        }
    }
    let mut changes = Vec::new();
    for (list, container_type) in [(CONTAINERS, "container"), (INIT_CONTAINERS, "init container")] {
        for container in items_mut(pod, list) {
            for (resource_list, defaults, word) in
                [(ResourceList::Requests, &requests, "request"), (ResourceList::Limits, &max, "limit")]
            {
                let added = fill_resources(container, resource_list, defaults);
                if !added.is_empty() {
                    changes.push(format!(
                        "{} {word} for {container_type} {}",
                        added.join(", "),
                        name(container)
                    ));
                }
            }
        }
    }
    changes
}

/// Adds the missing defaults to one resource list of a container; returns the sorted names of the additions.
fn fill_resources(
    container: &mut Value,
    resource_list: ResourceList,
    defaults: &[(String, Value)],
) -> Vec<String> {
    let Some(container) = container.as_object_mut().filter(|_| !defaults.is_empty()) else {
        return Vec::new();
    };
    let resources = object_at(container, "resources");
    let list = resources.and_then(|resources| object_at(resources, resource_list.field()));
    let Some(list) = list else { return Vec::new() };
    let mut added = Vec::new();
    for (resource, amount) in defaults {
        if list.get(resource).is_none_or(Value::is_null) {
            added.push(resource.clone());
            list.insert(resource.clone(), amount.clone());
        }
    }
    added.sort_unstable();
    added
}

fn check_pod(range: &Object, pod: &Object) -> Vec<String> {
    let mut errors = Vec::new();
    for limit in items_at(range, LIMITS) {
        match text(limit, "type") {
            "Container" => {
                for container in containers(pod, CONTAINERS).chain(containers(pod, INIT_CONTAINERS)) {
                    let requested = RequestsAndLimits::new(|list| container_amounts(container, list));
                    requested.check(limit, "Container", &mut errors);
                }
            }
            "Pod" => {
                let requested = RequestsAndLimits::new(|list| pod_amounts(pod, list));
                requested.check(limit, "Pod", &mut errors);
            }
            _ => {}
        }
    }
    errors
}

fn check_claim(range: &Object, claim: &Object) -> Vec<String> {
    let mut errors = Vec::new();
    let requests = amounts(claim.at(&["spec", "resources", "requests"]));
    for limit in limits(range, "PersistentVolumeClaim") {
        let requested = RequestsAndLimits { requests: requests.clone(), limits: Amounts::new() };
        for (resource, min) in amounts(limit.get("min")) {
            requested.check_min(&resource, min, "PersistentVolumeClaim", &mut errors);
        }
        for (resource, max) in amounts(limit.get("max")) {
            let bound = format!("maximum {resource} usage per PersistentVolumeClaim is {max}");
            match requests.get(&resource) {
                None => errors.push(format!("{bound}.  No request is specified")),
                Some(request) if *request > max => errors.push(format!("{bound}, but request is {request}")),
                Some(_) => {}
            }
        }
    }
    errors
}

/// Requests and limits of a container or pod.
struct RequestsAndLimits {
    requests: Amounts,
    limits: Amounts,
}

impl RequestsAndLimits {
    fn new(amounts: impl Fn(ResourceList) -> Amounts) -> Self {
        RequestsAndLimits { requests: amounts(ResourceList::Requests), limits: amounts(ResourceList::Limits) }
    }

    fn check(&self, limit: &Value, limit_type: &str, errors: &mut Vec<String>) {
        for (resource, min) in amounts(limit.get("min")) {
            self.check_min(&resource, min, limit_type, errors);
        }
        for (resource, max) in amounts(limit.get("max")) {
            self.check_max(&resource, max, limit_type, errors);
        }
        for (resource, ratio) in amounts(limit.get("maxLimitRequestRatio")) {
            self.check_ratio(&resource, ratio, limit_type, errors);
        }
    }

    fn request_and_limit(&self, resource: &str) -> (Option<Quantity>, Option<Quantity>) {
        (self.requests.get(resource).copied(), self.limits.get(resource).copied())
    }

    fn check_min(&self, resource: &str, min: Quantity, limit_type: &str, errors: &mut Vec<String>) {
        let bound = format!("minimum {resource} usage per {limit_type} is {min}");
        match self.request_and_limit(resource) {
            (None, _) => errors.push(format!("{bound}.  No request is specified")),
            (Some(request), _) if request < min => errors.push(format!("{bound}, but request is {request}")),
            (_, Some(limit)) if limit < min => errors.push(format!("{bound}, but limit is {limit}")),
            _ => {}
        }
    }

    fn check_max(&self, resource: &str, max: Quantity, limit_type: &str, errors: &mut Vec<String>) {
        let bound = format!("maximum {resource} usage per {limit_type} is {max}");
        match self.request_and_limit(resource) {
            (_, None) => errors.push(format!("{bound}.  No limit is specified")),
            (_, Some(limit)) if limit > max => errors.push(format!("{bound}, but limit is {limit}")),
            (Some(request), _) if request > max => errors.push(format!("{bound}, but request is {request}")),
            _ => {}
        }
    }

    fn check_ratio(&self, resource: &str, ratio: Quantity, limit_type: &str, errors: &mut Vec<String>) {
        let bound = format!("{resource} max limit to request ratio per {limit_type} is {ratio}");
        let non_zero = |amount: Option<Quantity>| amount.filter(|amount| !amount.is_zero());
        let (request, limit) = self.request_and_limit(resource);
        match (non_zero(request), non_zero(limit)) {
            (None, _) => errors.push(format!("{bound}, but no request is specified or request is 0")),
            (_, None) => errors.push(format!("{bound}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let actual = limit.ratio(request);
                if actual > ratio.ratio(Quantity::from_integer(1)) {
                    errors.push(format!("{bound}, but provided ratio is {actual:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/limit_ranger.rs"]
mod tests;
