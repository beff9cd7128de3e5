//! APIServices with a Service: the versions that other servers serve, and the condition `Available`.
//!
//! # Contract
//!
//! After each change of an APIService, [`Aggregation`] gets all APIServices, so that requests go to the right server.
//! Each server is checked then, after each change of its Service or EndpointSlices, after a failed request, and at an
//! interval: see [`CHECK_INTERVAL`] and [`MAX_RETRY_INTERVAL`]. The result becomes the condition `Available`. After a
//! successful check the documents of the server are fetched.
//!
//! Of several apids with a common store, each checks the servers for itself, and only the leader writes the condition. Two
//! apids that reach different servers therefore do not overwrite the conditions of each other in turns.
//!
//! # Reference
//!
//! The reasons and messages are those of kube-aggregator. A Service that `--service-resolver-file` maps need not exist.

mod metrics;

use std::sync::Arc;
use std::time::Duration;

use aggregation::{Aggregation, ApiService, BackendReference, RemoteApi};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use tokio::sync::Mutex;

use metrics::AvailabilityMetrics;

use super::actor::{Actor, Target, is_race};
use super::condition::{Condition, with_conditions};
use super::derived::DerivedValues;
use super::queue::Queue;
use super::reflector::ObjectEvent;
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::Collection;

use crate::ControllerState;

/// Interval of the checks of an available server.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum interval of the checks of a server that is not available.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(15);
/// Number of servers that are checked at the same time.
const WORKERS: usize = 8;
/// Number of servers whose documents are fetched at the same time.
const DOCUMENT_WORKERS: usize = 4;

/// Group of the object without its domain, and kind.
const SERVICE: (&str, &str) = ("apiregistration", "APIService");

/// A unit of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// Tells [`Aggregation`] the APIServices.
    Register,
    /// Checks the server of the APIService with this name.
    Check(String),
}

/// The controller.
struct ServerChecks {
    actor: Actor,
    aggregation: Arc<Aggregation>,
    api_services: Arc<Collection>,
    services: Arc<Collection>,
    slices: Arc<Collection>,
    /// The label of an EndpointSlice that names the Service.
    service_label: String,
    known: Mutex<DerivedValues<ApiService>>,
    metrics: AvailabilityMetrics,
    queue: Arc<Queue<Work>>,
    /// The names of the APIServices whose documents are to be fetched.
    documents: Arc<Queue<String>>,
}

/// The controller of the documents. Its workers are its own, so that a slow document delays no check.
struct DocumentFetches {
    aggregation: Arc<Aggregation>,
}

impl Reconcile for DocumentFetches {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        self.aggregation.refresh(name).await;
        Ok(Requeue::No)
    }
}

/// Tells [`Aggregation`] the stored APIServices before the first request.
///
/// # Errors
///
/// The store cannot be read.
pub async fn load(state: &ControllerState) -> Result<(), Status> {
    let collection = stored::of_kind(&state.api_state, SERVICE)?;
    let services = stored::all(&collection).await?;
    state.aggregation.set_services(services.iter().map(|object| state.aggregation.read(object)).collect());
    Ok(())
}

/// Keeps the versions of other servers and the conditions current until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let api_state = &state.api_state;
    let (Ok(api_services), Ok(services), Ok(slices)) = (
        stored::of_kind(api_state, SERVICE),
        stored::core(api_state, "services"),
        stored::of_kind(api_state, ("discovery", "EndpointSlice")),
    ) else {
        return;
    };
    let aggregation = &state.aggregation;
    let service_label = api_state.names.label_key("service-name");
    let runner = Runner::new(&state, "available_api_services").workers(WORKERS);
    let queue = runner.queue();
    // A restart changes no object, so that no event begins the checks.
    for name in aggregation.remote_names() {
        queue.add(Work::Check(name));
    }
    let documents = Runner::new(&state, "api_service_documents").workers(DOCUMENT_WORKERS);
    let mut runner = runner.watch(&api_services.items, |_| Some(Work::Register));
    let users = |aggregation: &Aggregation, namespace: &str, name: &str| -> Vec<Work> {
        aggregation.users_of(namespace, name).into_iter().map(Work::Check).collect()
    };
    let of_service = Arc::clone(aggregation);
    runner = runner.watch(&services.items, move |event: ObjectEvent<'_>| {
        users(&of_service, event.entry().namespace(), event.entry().name())
    });
    let (of_slice, label) = (Arc::clone(aggregation), service_label.clone());
    runner = runner.watch(&slices.items, move |event: ObjectEvent<'_>| {
        let entry = event.entry();
        entry.label(&label).map(|name| users(&of_slice, entry.namespace(), name)).unwrap_or_default()
    });
    let servers = Arc::clone(aggregation);
    runner = runner
        .watch_terms(&state, move || servers.remote_names().into_iter().map(Work::Check).collect::<Vec<_>>());
    if let Some(mut reports) = aggregation.take_reports() {
        let queue = Arc::clone(&queue);
        runner = runner.source(async move {
            while let Some(name) = reports.recv().await {
                queue.add(Work::Check(name));
            }
        });
    }
    let controller = ServerChecks {
        actor: state.apiserver().of_leader(),
        aggregation: Arc::clone(aggregation),
        api_services,
        services,
        slices,
        service_label,
        known: Mutex::new(DerivedValues::new()),
        metrics: AvailabilityMetrics::new(&state.metrics),
        queue,
        documents: documents.queue(),
    };
    let fetches = DocumentFetches { aggregation: Arc::clone(aggregation) };
    tokio::join!(runner.run(Arc::new(controller)), documents.run(Arc::new(fetches)));
}

impl Reconcile for ServerChecks {
    type Key = Work;

    async fn reconcile(&self, work: &Work) -> Result<Requeue, Status> {
        match work {
            Work::Register => {
                self.register().await?;
                Ok(Requeue::No)
            }
            Work::Check(name) => self.check(name).await,
        }
    }
}

impl ServerChecks {
    /// Tells [`Aggregation`] the APIServices, and begins the checks of those whose server or condition has changed.
    async fn register(&self) -> Result<(), Status> {
        let mut known = self.known.lock().await;
        known.update(&self.api_services, |object| self.aggregation.read(&object)).await?;
        let changed = self.aggregation.set_services(known.values().cloned().collect());
        drop(known);
        for name in changed {
            self.queue.add(Work::Check(name));
        }
        Ok(())
    }

    /// Checks a server, writes the condition, and fetches the documents of an available server.
    async fn check(&self, name: &str) -> Result<Requeue, Status> {
        let Some(remote) = self.aggregation.remote_of_service(name) else {
            self.metrics.remove(name);
            return Ok(Requeue::No);
        };
        remote.backend.forget_target();
        let condition = self.condition(&remote).await?;
        let is_available = condition.status_is_true;
        let Some(object) = stored::get_decodable(&self.api_services, "", name).await? else {
            return Ok(Requeue::No);
        };
        if self.aggregation.read(&object).backend.as_ref() != Some(remote.backend.reference()) {
            // The change has its own check.
            return Ok(Requeue::No);
        }
        let has_failed = !is_available && !is_unavailable(&object);
        self.metrics.record(name, is_available, has_failed.then_some(condition.reason));
        if remote.is_available && !is_available {
            tracing::warn!(
                name,
                reason = condition.reason,
                message = condition.message,
                "API service is not available"
            );
        } else if !remote.is_available && is_available {
            tracing::info!(name, "API service is available");
        }
        if !is_available {
            self.aggregation.mark_stale(name);
        }
        let now = apimachinery::time::time(self.actor.api_state().clock.now());
        if self.actor.may_write()
            && let Some(next) = with_conditions(&object, &[condition], &now)
        {
            let target =
                Target { collection: &self.api_services, namespace: "", name, subresource: "status" };
            match self.actor.update(target, next).await {
                Err(status) if is_race(&status) => return Ok(Requeue::Poll),
                result => drop(result?),
            }
        }
        if !is_available {
            return Ok(Requeue::BackoffUpTo(MAX_RETRY_INTERVAL));
        }
        self.documents.add(name.to_owned());
        Ok(Requeue::After(CHECK_INTERVAL))
    }

    /// Returns the condition of an APIService: the Service, its port and endpoints, and the answer of the server.
    async fn condition(&self, remote: &RemoteApi) -> Result<Condition, Status> {
        let reference = remote.backend.reference();
        let unavailable =
            |reason, message| Condition { kind: "Available", status_is_true: false, reason, message };
        if !remote.backend.is_mapped() {
            let service =
                stored::get_decodable(&self.services, &reference.namespace, &reference.name).await?;
            let slices = self.slices_of(reference).await?;
            if let Some((reason, message)) = missing_part(reference, service.as_ref(), &slices) {
                return Ok(unavailable(reason, message));
            }
        }
        Ok(match remote.backend.check(&remote.group, &remote.version).await {
            Ok(()) => Condition {
                kind: "Available",
                status_is_true: true,
                reason: "Passed",
                message: "all checks passed".to_owned(),
            },
            Err(failure) => unavailable("FailedDiscoveryCheck", failure.to_string()),
        })
    }

    async fn slices_of(&self, reference: &BackendReference) -> Result<Vec<Object>, Status> {
        let scope = self.slices.kind.key(&reference.namespace, "");
        let is_of_service = |item: &verbs::Item| {
            stored::entry(item).is_some_and(|entry| entry.label(&self.service_label) == Some(&reference.name))
        };
        stored::selected_objects(&self.slices, &scope, is_of_service).await
    }
}

/// Whether the condition `Available` of an APIService is false.
fn is_unavailable(object: &Object) -> bool {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
    let text =
        |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).map(str::to_owned);
    let mut available =
        conditions.filter(|condition| text(condition, "type").as_deref() == Some("Available"));
    available.any(|condition| text(condition, "status").as_deref() == Some("False"))
}

/// Returns reason and message of the first part that a Service lacks; None if its server can be asked.
fn missing_part(
    reference: &BackendReference,
    service: Option<&Object>,
    slices: &[Object],
) -> Option<(&'static str, String)> {
    let BackendReference { namespace, name, port, .. } = reference;
    let Some(service) = service else {
        return Some(("ServiceNotFound", format!("service/{name} in {namespace:?} is not present")));
    };
    if !matches!(service.str_at(&["spec", "type"]), None | Some("ClusterIP")) {
        return None;
    }
    let Some(port_name) = forwarding::service_port_name(service, *port) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {port}");
        return Some(("ServicePortError", message));
    };
    if slices.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(("EndpointsNotFound", message));
    }
    if !slices.iter().any(|slice| has_ready_address(slice, port_name)) {
        let message = format!(
            "endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}"
        );
        return Some(("MissingEndpoints", message));
    }
    None
}

/// Whether a slice has a ready endpoint with an address, and a port with this name.
fn has_ready_address(slice: &Object, port_name: &str) -> bool {
    let list = |field: &str| slice.get(field).and_then(Value::as_array).into_iter().flatten();
    let is_ready = |endpoint: &Value| {
        let addresses = endpoint.get("addresses").and_then(Value::as_array);
        let ready = endpoint.get("conditions").and_then(|conditions| conditions.get("ready"));
        addresses.is_some_and(|addresses| !addresses.is_empty())
            && ready.and_then(Value::as_bool) != Some(false)
    };
    let has_name = |port: &Value| port.get("name").and_then(Value::as_str).unwrap_or_default() == port_name;
    list("endpoints").any(is_ready) && list("ports").any(has_name)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    /// Each Service with its slices, and the expected reason and end of the message.
    #[test]
    fn missing_part_of_service_has_the_reason_of_the_reference() {
        let reference = BackendReference {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
            port: 8443,
            ca_bundle: Bytes::new(),
            is_insecure: true,
        };
        let service = |spec: Value| Some(object(json!({"spec": spec})));
        let with_port = json!({"type": "ClusterIP", "ports": [{"name": "https", "port": 8443}]});
        let slice = |port: &str, endpoints: Value| {
            object(json!({"ports": [{"name": port, "port": 1}], "endpoints": endpoints}))
        };
        let address = json!([{"addresses": ["10.0.0.1"]}]);
        for (service, slices, expected) in [
            (None, vec![], Some(("ServiceNotFound", "service/s in \"n\" is not present"))),
            (service(json!({"type": "ExternalName"})), vec![], None),
            (
                service(json!({"ports": [{"port": 80}]})),
                vec![],
                Some(("ServicePortError", "is not listening on port 8443")),
            ),
            (
                service(with_port.clone()),
                vec![],
                Some(("EndpointsNotFound", "cannot find endpointslices for service/s in \"n\"")),
            ),
            (
                service(with_port.clone()),
                vec![slice("other", address.clone()), slice("https", json!([]))],
                Some(("MissingEndpoints", "have no addresses with port name \"https\"")),
            ),
            (
                service(with_port.clone()),
                vec![slice("https", json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}]))],
                Some(("MissingEndpoints", "have no addresses with port name \"https\"")),
            ),
            (service(with_port), vec![slice("https", address)], None),
        ] {
            let found = missing_part(&reference, service.as_ref(), &slices);
            let (reason, message) = found.clone().unzip();
            assert_eq!(reason, expected.map(|(reason, _)| reason));
            let end = expected.map_or("", |(_, message)| message);
            assert!(message.unwrap_or_default().ends_with(end), "{found:?}");
        }
    }
}
