//! API versions that other servers serve: their APIServices, their servers, and their documents.
//!
//! # Contract
//!
//! An APIService with a Service makes the server behind the Service serve one API version. [`Aggregation`] holds the
//! current APIServices: [`Aggregation::remote`] says whether another server serves a version, and
//! [`RemoteApi::target`] where. [`Aggregation::announced`] and [`Aggregation::openapi`] are what the documents of apid
//! contain of these servers.
//!
//! Other controllers find the resources of the servers with [`Aggregation::discover`], and send requests with the
//! methods of [`RemoteResource`].
//!
//! The controllers of APIServices call [`Aggregation::set_services`] after each change, [`Backend::check`] for the
//! condition `Available`, and [`Aggregation::refresh`] for the documents. A request calls none of these.
//!
//! # Invariants
//!
//! INVARIANT (one owner of a version): an APIService with a Service takes its version from all kinds of apid, also from
//! custom kinds. Without the APIService, the kinds of apid are served again.
//! INVARIANT (bounded): a document of a server has at most [`MAX_DOCUMENT_BYTES`], and each own request to a server
//! ends within a fixed time.
//!
//! # Reference
//!
//! kube-aggregator of Kubernetes 1.33: users and headers of own requests, reasons of the condition, `Stale` versions.

mod api_service;
mod backend;
mod client;
mod documents;
mod query;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::object::Object;
use arc_swap::ArcSwap;
use discovery::openapi::RemoteOpenApi;
use discovery::{AnnouncedVersion, AnnouncedVersions, RemoteResources};
use forwarding::{Forwarding, ServiceResolver};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

pub use api_service::{ApiService, BackendReference};
pub use backend::{Backend, CheckFailure, MAX_DOCUMENT_BYTES, UnusableBackend};
pub use client::{ObjectMetadata, is_unsupported};
pub use query::sorted_query;
pub use resources::{DiscoveredResources, RemoteKind, RemoteResource};

use backend::Environment;
use documents::RemoteDocuments;

/// Number of reports of unreachable servers that wait for the controller. Further reports are dropped, because each
/// failed request makes another one.
const MAX_REPORTS: usize = 64;

/// The APIServices of a server and the servers behind them.
pub struct Aggregation {
    /// Resolver, client certificate, clock and names of all servers.
    environment: Environment,
    routes: ArcSwap<Routes>,
    /// The documents of each server, by the name of the APIService.
    documents: Mutex<BTreeMap<String, RemoteDocuments>>,
    announced: ArcSwap<AnnouncedVersions>,
    /// Notifies receivers of each change of `announced`.
    changes: watch::Sender<()>,
    openapi: ArcSwap<RemoteOpenApi>,
    reports: mpsc::Sender<String>,
    report_receiver: Mutex<Option<mpsc::Receiver<String>>>,
}

/// The current APIServices.
#[derive(Default)]
struct Routes {
    services: Vec<ApiService>,
    /// The versions that other servers serve, ordered by group and version.
    remote: Vec<Arc<RemoteApi>>,
}

/// An API version that another server serves.
pub struct RemoteApi {
    /// The name of the APIService.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The version.
    pub version: String,
    /// Whether the condition `Available` of the APIService is true.
    pub is_available: bool,
    /// The server.
    pub backend: Arc<Backend>,
}

impl RemoteApi {
    /// Returns the first segments of the paths of the version: `apis/GROUP/VERSION`.
    pub(crate) fn root(&self) -> String {
        api_service::root(&self.group, &self.version)
    }
}

impl Aggregation {
    /// Creates a state without APIServices. `services` finds the addresses of Services.
    pub fn new(
        services: ServiceResolver,
        forwarding: Arc<Forwarding>,
        names: Arc<Names>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (reports, report_receiver) = mpsc::channel(MAX_REPORTS);
        Aggregation {
            environment: Environment { names, services: Arc::new(services), forwarding, clock },
            routes: ArcSwap::default(),
            documents: Mutex::default(),
            announced: ArcSwap::default(),
            changes: watch::Sender::default(),
            openapi: ArcSwap::default(),
            reports,
            report_receiver: Mutex::new(Some(report_receiver)),
        }
    }

    /// Reads a stored APIService.
    pub fn read(&self, object: &Object) -> ApiService {
        ApiService::read(object, &self.environment.names.label_sub_key("kube-aggregator", "automanaged"))
    }

    /// Replaces the APIServices. Servers with unchanged references keep their connections.
    ///
    /// Returns the names of the APIServices with a new server, another availability or no server any more.
    pub fn set_services(&self, services: Vec<ApiService>) -> Vec<String> {
        let before = self.routes.load_full();
        let mut remote: Vec<Arc<RemoteApi>> = services
            .iter()
            .filter_map(|service| {
                let reference = service.backend.as_ref()?;
                let known = before.remote.iter().find(|known| known.name == service.name);
                let backend = match known {
                    Some(known) if known.backend.reference() == reference => Arc::clone(&known.backend),
                    _ => Arc::new(Backend::new(reference.clone(), self.environment.clone())),
                };
                Some(Arc::new(RemoteApi {
                    name: service.name.clone(),
                    group: service.group.clone(),
                    version: service.version.clone(),
                    is_available: service.is_available,
                    backend,
                }))
            })
            .collect();
        remote.sort_by(|a, b| (&a.group, &a.version).cmp(&(&b.group, &b.version)));
        let is_known = |now: &&Arc<RemoteApi>| {
            let mut known = before.remote.iter().filter(|known| known.name == now.name);
            known.any(|known| {
                known.is_available == now.is_available && Arc::ptr_eq(&known.backend, &now.backend)
            })
        };
        let is_gone = |known: &&Arc<RemoteApi>| !remote.iter().any(|now| now.name == known.name);
        let changed = remote.iter().filter(|now| !is_known(now)).chain(before.remote.iter().filter(is_gone));
        let changed = changed.map(|changed| changed.name.clone()).collect();
        self.documents.lock().retain(|name, _| remote.iter().any(|remote| remote.name == *name));
        self.routes.store(Arc::new(Routes { services, remote }));
        self.publish();
        changed
    }

    /// Returns the API version that another server serves; None if apid itself serves the version or nobody does.
    pub fn remote(&self, group: &str, version: &str) -> Option<Arc<RemoteApi>> {
        let routes = self.routes.load();
        let key =
            |remote: &Arc<RemoteApi>| (remote.group.as_str(), remote.version.as_str()).cmp(&(group, version));
        let index = routes.remote.binary_search_by(key).ok()?;
        routes.remote.get(index).cloned()
    }

    /// Returns the API version of an APIService with a Service.
    pub fn remote_of_service(&self, name: &str) -> Option<Arc<RemoteApi>> {
        self.routes.load().remote.iter().find(|remote| remote.name == name).cloned()
    }

    /// Returns the names of all APIServices with a Service.
    pub fn remote_names(&self) -> Vec<String> {
        self.routes.load().remote.iter().map(|remote| remote.name.clone()).collect()
    }

    /// Returns the names of the APIServices that refer to a Service.
    pub fn users_of(&self, namespace: &str, name: &str) -> Vec<String> {
        let routes = self.routes.load();
        let uses = |remote: &&Arc<RemoteApi>| {
            let reference = remote.backend.reference();
            reference.namespace == namespace && reference.name == name
        };
        routes.remote.iter().filter(uses).map(|remote| remote.name.clone()).collect()
    }

    /// Reports a failed exchange with the server of an APIService, so that the controller checks the server.
    pub fn report_unreachable(&self, remote: &RemoteApi) {
        remote.backend.forget_target();
        // A full queue has reports of the same servers.
        let _ = self.reports.try_send(remote.name.clone());
    }

    /// Takes the receiver of the reports; None after the first call.
    pub fn take_reports(&self) -> Option<mpsc::Receiver<String>> {
        self.report_receiver.lock().take()
    }

    /// Returns the versions of all APIServices, with the resources of other servers.
    pub fn announced(&self) -> Arc<AnnouncedVersions> {
        self.announced.load_full()
    }

    /// Returns a receiver that sees each change of [`Aggregation::announced`].
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the OpenAPI documents of other servers.
    pub fn openapi(&self) -> Arc<RemoteOpenApi> {
        self.openapi.load_full()
    }

    /// Fetches the documents of the server of an APIService that is available.
    pub async fn refresh(&self, name: &str) {
        let Some(remote) = self.remote_of_service(name) else { return };
        let before = self.documents.lock().get(name).cloned().unwrap_or_default();
        let fetched = documents::fetch(&remote, &self.environment.names, before).await;
        let is_current =
            self.remote_of_service(name).is_some_and(|now| Arc::ptr_eq(&now.backend, &remote.backend));
        if is_current {
            self.documents.lock().insert(name.to_owned(), fetched);
            self.publish();
        }
    }

    /// Forgets the resources of the server of an APIService that is not available: its version becomes stale.
    pub fn mark_stale(&self, name: &str) {
        if let Some(documents) = self.documents.lock().get_mut(name) {
            documents.mark_stale();
        }
        self.publish();
    }

    /// Publishes the documents if they have changed: readers compare the pointers.
    fn publish(&self) {
        // The lock comes first, so that the last of several publications has the newest routes.
        let documents = self.documents.lock();
        let routes = self.routes.load_full();
        let mut announced = AnnouncedVersions::default();
        let mut openapi = RemoteOpenApi::default();
        let mut services: Vec<&ApiService> = routes.services.iter().collect();
        services.sort_by_key(|service| {
            (-service.priority.group, -service.priority.version, service.name.clone())
        });
        for service in services {
            let known = documents.get(&service.name);
            let remote = service.backend.as_ref().map(|_| {
                known.map_or_else(RemoteResources::default, |documents| documents.resources.clone())
            });
            let entry = AnnouncedVersion {
                priority: service.priority,
                remote,
                is_always_listed: !service.is_automatic,
            };
            announced.insert(service.group.clone(), service.version.clone(), entry);
            if let Some(documents) = known {
                openapi.specs.extend(documents.spec.clone());
                openapi.v3_urls.extend(documents.v3_url.clone().map(|url| (service.root(), url)));
                let converted = documents.spec.clone().filter(|_| documents.is_converted);
                openapi.converted.extend(converted.map(|spec| (service.root(), spec)));
            }
            openapi.versions.extend(service.backend.as_ref().map(|_| service.root()));
        }
        if **self.announced.load() != announced {
            self.announced.store(Arc::new(announced));
            self.changes.send_replace(());
        }
        if **self.openapi.load() != openapi {
            self.openapi.store(Arc::new(openapi));
        }
    }
}
