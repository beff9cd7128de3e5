//! LimitRanger: applies default resource amounts and enforces the LimitRanges of a namespace.
//!
//! # Reference
//!
//! The plugin sets defaults only at pod creation, because resources are immutable afterwards. It validates
//! resizes and no other pod updates; it validates creations and updates of claims. The error lists all
//! violations of one LimitRange.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::pod_containers::{CONTAINERS, INIT_CONTAINERS, containers, items_mut, name};
use crate::pod_resources::{ResourceList, of_container, of_pod};
use crate::quantity::{Amounts, Quantity, amounts};
use crate::tree::{annotate, object_at};
use crate::{Attributes, Environment, Interest, MaybeFuture, ObjectKind, Operation, Plugin, Reader};

const LIMIT_RANGE: ObjectKind = ObjectKind::new("", "LimitRange");
const CLAIM: ObjectKind = ObjectKind::new("", "PersistentVolumeClaim");

pub(crate) struct LimitRanger {
    reader: Arc<dyn Reader>,
    annotation: String,
}

impl LimitRanger {
    pub(crate) fn new(environment: &Environment) -> Self {
        LimitRanger { reader: Arc::clone(&environment.reader), annotation: annotation(&environment.names) }
    }
}

/// Key of the annotation that lists the applied defaults.
fn annotation(names: &Names) -> String {
    names.label_key("limit-ranger")
}

/// Whether the plugin handles a write.
fn concerns(attributes: &Attributes<'_>) -> bool {
    let is_pod = attributes.is_of(ObjectKind::POD);
    let updates = attributes.operation == Operation::Update;
    !attributes.old.is_some_and(Object::is_terminating)
        && match attributes.subresource {
            "resize" => is_pod && updates,
            _ => !is_pod || !updates,
        }
}

impl Plugin for LimitRanger {
    fn interest(&self) -> Interest {
        Interest::Only(&[(ObjectKind::POD, ""), (ObjectKind::POD, "resize"), (CLAIM, "")])
    }

    fn mutate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        let Some(pod) = object.filter(|_| attributes.is_of(ObjectKind::POD) && concerns(attributes)) else {
            return MaybeFuture::Ready(Ok(()));
        };
        let ranges = self.reader.list(LIMIT_RANGE, attributes.namespace);
        MaybeFuture::later(async move {
            for range in ranges.get().await? {
                let given = apply_defaults(&range, pod);
                if !given.is_empty() {
                    let text = format!("LimitRanger plugin set: {}", given.join("; "));
                    annotate(pod, &self.annotation, text);
                }
            }
            Ok(())
        })
    }

    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        let Some(object) = object.filter(|_| concerns(attributes)) else {
            return MaybeFuture::Ready(Ok(()));
        };
        let ranges = self.reader.list(LIMIT_RANGE, attributes.namespace);
        MaybeFuture::later(async move {
            for range in ranges.get().await? {
                let wrong = if attributes.is_of(ObjectKind::POD) {
                    check_pod(&range, object)
                } else {
                    check_claim(&range, object)
                };
                if !wrong.is_empty() {
                    return Err(attributes.forbidden(&join_messages(wrong)));
                }
            }
            Ok(())
        })
    }
}

/// Maximum number of messages in a rejection.
const MESSAGES_MAX: usize = 100;

/// Joins distinct messages, at most the first hundred.
fn join_messages(messages: Vec<String>) -> String {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    let unique: Vec<String> =
        messages.iter().filter(|message| seen.insert(message)).take(MESSAGES_MAX).cloned().collect();
    match unique.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Limits of a LimitRange for one type.
fn limits<'a>(range: &'a Object, of: &'a str) -> impl Iterator<Item = &'a Value> + use<'a> {
    let all = range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten();
    all.filter(move |limit| limit.get("type").and_then(Value::as_str) == Some(of))
}

/// Sets default requests and limits of containers; returns a description of the changes.
fn apply_defaults(range: &Object, pod: &mut Object) -> Vec<String> {
    let (mut requests, mut most) = (Vec::new(), Vec::new());
    for limit in limits(range, "Container") {
        for (field, all) in [("defaultRequest", &mut requests), ("default", &mut most)] {
            let entries = limit.get(field).and_then(Value::as_object).into_iter().flatten();
            all.extend(entries.map(|(resource, amount)| (resource.clone(), amount.clone())));
        }
    }
    let mut given = Vec::new();
    for (list, what) in [(CONTAINERS, "container"), (INIT_CONTAINERS, "init container")] {
        for container in items_mut(pod, list) {
            for (sort, defaults, word) in
                [(ResourceList::Requests, &requests, "request"), (ResourceList::Limits, &most, "limit")]
            {
                let set = fill_resources(container, sort, defaults);
                if !set.is_empty() {
                    given.push(format!("{} {word} for {what} {}", set.join(", "), name(container)));
                }
            }
        }
    }
    given
}

/// Fills one resource list of a container; returns the added resources in order.
fn fill_resources(container: &mut Value, sort: ResourceList, defaults: &[(String, Value)]) -> Vec<String> {
    let Some(container) = container.as_object_mut().filter(|_| !defaults.is_empty()) else {
        return Vec::new();
    };
    let resources = object_at(container, "resources");
    let list = resources.and_then(|resources| object_at(resources, sort.field()));
    let Some(list) = list else { return Vec::new() };
    let mut set = Vec::new();
    for (resource, amount) in defaults {
        if list.get(resource).is_none_or(Value::is_null) {
            set.push(resource.clone());
            list.insert(resource.clone(), amount.clone());
        }
    }
    set.sort_unstable();
    set
}

fn check_pod(range: &Object, pod: &Object) -> Vec<String> {
    let mut wrong = Vec::new();
    let all = range.at(&["spec", "limits"]).and_then(Value::as_array).into_iter().flatten();
    for limit in all {
        match limit.get("type").and_then(Value::as_str) {
            Some("Container") => {
                for container in containers(pod, CONTAINERS).chain(containers(pod, INIT_CONTAINERS)) {
                    let asked = PodAmounts {
                        requests: of_container(container, ResourceList::Requests),
                        limits: of_container(container, ResourceList::Limits),
                    };
                    asked.check(limit, "Container", &mut wrong);
                }
            }
            Some("Pod") => {
                let asked = PodAmounts {
                    requests: of_pod(pod, ResourceList::Requests),
                    limits: of_pod(pod, ResourceList::Limits),
                };
                asked.check(limit, "Pod", &mut wrong);
            }
            _ => {}
        }
    }
    wrong
}

fn check_claim(range: &Object, claim: &Object) -> Vec<String> {
    let mut wrong = Vec::new();
    let requests = amounts(claim.at(&["spec", "resources", "requests"]));
    for limit in limits(range, "PersistentVolumeClaim") {
        let asked = PodAmounts { requests: requests.clone(), limits: Amounts::new() };
        for (resource, least) in amounts(limit.get("min")) {
            asked.at_least(&resource, least, "PersistentVolumeClaim", &mut wrong);
        }
        for (resource, most) in amounts(limit.get("max")) {
            let told = format!("maximum {resource} usage per PersistentVolumeClaim is {most}");
            match requests.get(&resource) {
                None => wrong.push(format!("{told}.  No request is specified")),
                Some(request) if *request > most => wrong.push(format!("{told}, but request is {request}")),
                Some(_) => {}
            }
        }
    }
    wrong
}

/// Requests and limits of a container or pod.
struct PodAmounts {
    requests: Amounts,
    limits: Amounts,
}

impl PodAmounts {
    fn check(&self, limit: &Value, of: &str, wrong: &mut Vec<String>) {
        for (resource, least) in amounts(limit.get("min")) {
            self.at_least(&resource, least, of, wrong);
        }
        for (resource, most) in amounts(limit.get("max")) {
            self.at_most(&resource, most, of, wrong);
        }
        for (resource, ratio) in amounts(limit.get("maxLimitRequestRatio")) {
            self.within(&resource, ratio, of, wrong);
        }
    }

    fn of(&self, resource: &str) -> (Option<Quantity>, Option<Quantity>) {
        (self.requests.get(resource).copied(), self.limits.get(resource).copied())
    }

    fn at_least(&self, resource: &str, least: Quantity, of: &str, wrong: &mut Vec<String>) {
        let told = format!("minimum {resource} usage per {of} is {least}");
        match self.of(resource) {
            (None, _) => wrong.push(format!("{told}.  No request is specified")),
            (Some(request), _) if request < least => wrong.push(format!("{told}, but request is {request}")),
            (_, Some(limit)) if limit < least => wrong.push(format!("{told}, but limit is {limit}")),
            _ => {}
        }
    }

    fn at_most(&self, resource: &str, most: Quantity, of: &str, wrong: &mut Vec<String>) {
        let told = format!("maximum {resource} usage per {of} is {most}");
        match self.of(resource) {
            (_, None) => wrong.push(format!("{told}.  No limit is specified")),
            (_, Some(limit)) if limit > most => wrong.push(format!("{told}, but limit is {limit}")),
            (Some(request), _) if request > most => wrong.push(format!("{told}, but request is {request}")),
            _ => {}
        }
    }

    fn within(&self, resource: &str, ratio: Quantity, of: &str, wrong: &mut Vec<String>) {
        let told = format!("{resource} max limit to request ratio per {of} is {ratio}");
        let something = |amount: Option<Quantity>| amount.filter(|amount| !amount.is_zero());
        let (request, limit) = self.of(resource);
        match (something(request), something(limit)) {
            (None, _) => wrong.push(format!("{told}, but no request is specified or request is 0")),
            (_, None) => wrong.push(format!("{told}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let have = limit.ratio(request);
                if have > ratio.ratio(Quantity::whole(1)) {
                    wrong.push(format!("{told}, but provided ratio is {have:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/limit_ranger.rs"]
mod tests;
