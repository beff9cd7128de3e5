//! APIServices of custom resource definitions, and the condition `Available` of all local APIServices.
//!
//! # Reference
//!
//! An APIService with the label `automanaged: "true"` belongs to apid. apid restores it after changes and
//! deletions, and deletes it when no definition serves its group version. The spec of an APIService without
//! that label is left unchanged. A local APIService has no `spec.service`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use kinds::ApiPriority;
use serde_json::json;
use tokio::sync::Mutex;

use super::{StartObject, api_services, ensure, with_desired_spec};
use crate::ControllerState;
use crate::actor::{Actor, Target, ignore_race};
use crate::condition::with_conditions;
use crate::derived::DerivedValues;
use crate::runner::{Reconcile, Requeue, Runner};
use crate::stored;
use verbs::Collection;
use verbs::deletion::options::DeleteOptions;

const DEFINITION: (&str, &str) = ("apiextensions", "CustomResourceDefinition");
const SERVICE: (&str, &str) = ("apiregistration", "APIService");

/// Writes the APIServices after each change of a definition or APIService while this apid leads, until the process ends.
pub(super) async fn run(state: &ControllerState, actor: Actor) {
    let kind = |kind| stored::of_kind(&state.api_state, kind);
    let (Ok(definitions), Ok(services)) = (kind(DEFINITION), kind(SERVICE)) else { return };
    let runner = Runner::new(state, "crd_autoregister")
        .watch(&definitions.items, |_| Some(()))
        .watch(&services.items, |_| Some(()))
        .watch_terms(state, || Some(()));
    let known = Mutex::new(Known { versions: DerivedValues::new(), services: DerivedValues::new() });
    runner.run(Arc::new(ServiceRegistration { actor, definitions, services, known })).await;
}

/// The controller, with one key for all APIServices.
struct ServiceRegistration {
    actor: Actor,
    definitions: Arc<Collection>,
    services: Arc<Collection>,
    known: Mutex<Known>,
}

/// The parts of the stored objects that a reconciliation needs.
struct Known {
    /// Group and version of each served version, for each definition.
    versions: DerivedValues<Vec<(String, String)>>,
    services: DerivedValues<Object>,
}

impl Reconcile for ServiceRegistration {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        if !self.actor.may_write() {
            return Ok(Requeue::No);
        }
        reconcile(&self.actor, &self.definitions, &self.services, &mut *self.known.lock().await).await?;
        Ok(Requeue::No)
    }
}

async fn reconcile(
    actor: &Actor,
    definitions: &Collection,
    services: &Collection,
    Known { versions, services: current }: &mut Known,
) -> Result<(), Status> {
    let api_state = actor.api_state();
    let key = api_services::automanaged(&api_state.names);
    versions.update(definitions, |definition| served(&definition)).await?;
    current.update(services, |service| service).await?;
    let served: BTreeSet<&(String, String)> = versions.values().flatten().collect();
    let desired: BTreeMap<String, StartObject> = served
        .iter()
        .map(|(group, version)| start_object(group, version, &key))
        .map(|service| (service.object.name().to_owned(), service))
        .collect();
    let now = apimachinery::time::time(api_state.clock.now());
    let correct: HashSet<&str> = current
        .values()
        .filter(|service| {
            let is_met = |desired: &StartObject| match is_remote(service) {
                true => service.label(&key) != Some("true"),
                false => desired.is_met_by(service, &now),
            };
            desired.get(service.name()).is_some_and(is_met)
        })
        .map(Object::name)
        .collect();
    for (_, service) in desired.iter().filter(|(name, _)| !correct.contains(name.as_str())) {
        ensure(actor, service).await?;
    }
    let conditions = [api_services::available_condition()];
    for service in current.values() {
        let target = Target { collection: services, namespace: "", name: service.name(), subresource: "" };
        let result = if service.label(&key) == Some("true") && !desired.contains_key(service.name()) {
            actor.delete(target, &DeleteOptions::if_unchanged(service.resource_version())).await.map(drop)
        } else if !is_remote(service)
            && let Some(next) = with_conditions(service, &conditions, &now)
        {
            actor.update(Target { subresource: "status", ..target }, next).await.map(drop)
        } else {
            Ok(())
        };
        ignore_race(result)?;
    }
    Ok(())
}

/// Whether an APIService names the server of its version. Such an object stays as its author wrote it, also when a
/// definition serves the same version.
fn is_remote(service: &Object) -> bool {
    service.at(&["spec", "service"]).is_some_and(Value::is_object)
}

/// Returns group and version of each version that a definition serves.
fn served(definition: &Object) -> Vec<(String, String)> {
    let group = definition.str_at(&["spec", "group"]).unwrap_or("");
    let versions = definition.at(&["spec", "versions"]).and_then(Value::as_array).into_iter().flatten();
    versions
        .filter(|version| version.get("served").and_then(Value::as_bool) == Some(true))
        .filter_map(|version| Some((group.to_owned(), version.get("name")?.as_str()?.to_owned())))
        .collect()
}

fn start_object(group: &str, version: &str, key: &str) -> StartObject {
    let ApiPriority { group: group_priority, version: version_priority } = ApiPriority::CUSTOM;
    let object = json!({
        "metadata": {"name": api_services::name(group, version), "labels": {key: "true"}},
        "spec": {
            "group": group, "version": version,
            "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
        },
    });
    let restore = |current: &Object, desired: &Object| {
        let (key, own_value) = desired.labels().next()?;
        if current.label(key) == Some(own_value) { with_desired_spec(current, desired) } else { None }
    };
    StartObject {
        condition: Some(api_services::available_condition()),
        ..StartObject::new(SERVICE.0, SERVICE.1, object).restored_by(restore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_service_of_crd_is_restored_only_if_automanaged() {
        let definition = json!({"spec": {"group": "g.example.com", "versions": [
            {"name": "v1", "served": true}, {"name": "v1beta1", "served": false}, {"name": "v2", "served": true},
        ]}});
        let served = served(&Object::from_value(definition).unwrap());
        assert_eq!(served.iter().map(|(_, version)| version.as_str()).collect::<Vec<_>>(), ["v1", "v2"]);
        let service = start_object("g.example.com", "v1", "managed");
        assert_eq!(service.object.name(), "v1.g.example.com");
        for (label, restored) in [("true", true), ("false", false), ("onstart", false)] {
            let current = json!({"metadata": {"labels": {"managed": label}}, "spec": {"group": "other"}});
            let current = Object::from_value(current).unwrap();
            assert_eq!((service.restore)(&current, &service.object).is_some(), restored, "{label}");
        }
    }
}
