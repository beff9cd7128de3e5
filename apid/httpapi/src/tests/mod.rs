//! In-process requests to the handler, without a socket, with the memory engine and a configurable
//! authorizer.

mod aggregated;
mod api_versions;
mod apply;
mod audit;
mod backup;
mod body_types;
mod cbor;
mod component_statuses;
mod connections;
mod content_negotiation;
mod conversion;
mod custom_kinds;
mod custom_merges;
mod custom_requests;
mod custom_schemas;
mod custom_values;
mod declarative_validation;
mod deletion;
mod encrypted_objects;
mod endpoints;
mod explanations;
mod freshness;
mod headers;
mod key_order;
mod managed_fields;
mod metadata;
mod metric_families;
mod objects;
mod parameters;
mod patches;
mod policies;
mod policy_parameters;
mod protobuf;
mod proxies;
mod random_requests;
mod registered_kind;
mod request_metrics;
mod resource_versions;
mod schema_extensions;
mod separate_store;
mod service_addresses;
mod several_servers;
mod subresources;
mod unenforced;
mod user_limits;
mod validation;
mod watches;
mod work_limits;

use std::sync::Arc;
use std::time::Duration;

use admission::{
    AdmissionMetrics, Chain, Configuration, Environment, ObjectKind, ReaderServices, Writer as _,
};
use aggregation::Aggregation;
use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Object;
use async_trait::async_trait;
use bytes::Bytes;
use forwarding::{Forwarding, ForwardingOptions, ServiceResolver};
use http::{HeaderMap, HeaderName, Request};
use http_body_util::BodyExt as _;
use kinds::{BuiltInKind, CurrentRegistry, EnabledVersions, Kind, Registry};
use serde_json::{Value, json};
use serving::body::Body;
use serving::build::BuildInfo;
use serving::compatibility::CompatibilityVersions;
use serving::health::Checks;
use serving::metrics::Metrics;
use storage::cache::Limits;
use storage::engine::memory::MemoryStore;
use storage::{NewestReads, Observer, Observers, Store};
use tokio::sync::watch;

use super::{Api, Freshness, Health, HttpSettings, HttpState, RequestBody, RequestLimits, ServerLimits};
use ::audit::{AuditLog, BackendOptions, Format, Rotation};
use authclient::{Auth, PolicyRevisions};
use controllers::{AdmissionWrites, ControllerState, Leadership};
use discovery::Documents;
use verbs::addresses::ServiceAddresses;
use verbs::addresses::{NodePortRange, ServiceRange};
use verbs::conversion::{
    ConversionCallError, ConversionClient, ConversionContext, ConversionMetrics, ConversionResponse,
};
use verbs::{
    self, AdmissionBackend, ApiState, Cache, Caches, CurrentKinds, DeclarativeValidation, Item, ReadMetrics,
    SeparateStore, TokenKey, Validator,
};

/// The build that the server reports.
pub(super) const BUILD: BuildInfo =
    BuildInfo { version: "1.2.3", commit: "abc-dirty", seconds: "1767323045", compiler: "rustc 1" };

/// The default request timeout.
/// Maximum size of the future of a request. Its memory is written once for each request.
const FUTURE_BYTES: usize = 3_072;
const MINUTE: Duration = Duration::from_secs(60);

/// A server without a socket, with the names preset `svc`.
pub(super) struct Server {
    pub(super) api: Api,
    pub(super) api_state: Arc<ApiState>,
    pub(super) http_state: Arc<HttpState>,
    pub(super) controller_state: Arc<ControllerState>,
    /// The store of `api_state`.
    pub(super) memory: Arc<MemoryStore>,
    pub(super) stop: watch::Sender<bool>,
}

/// Settings of a server.
struct Settings<'a> {
    preset: Preset,
    /// Feature gates.
    gates: &'a str,
    /// The emulated release and the oldest compatible release.
    versions: CompatibilityVersions,
    /// The declarative validation.
    validator: Validator,
    rng: Arc<dyn Rng>,
    /// The clock of everything except authentication and authorization.
    clock: Arc<dyn Clock>,
    /// Additional kinds.
    kinds: &'a [&'static [BuiltInKind]],
    /// Cache limits.
    limits: Limits,
    request_timeout: Duration,
    request_limits: RequestLimits,
    conversion_client: Arc<dyn ConversionClient>,
    /// Ranges of cluster IP addresses.
    ranges: &'a [ServiceRange],
    /// Connections to other servers.
    forwarding: ForwardingOptions,
    /// Waits for other servers.
    freshness: Option<Arc<Freshness>>,
    /// Whether several servers use the store.
    is_shared: bool,
    /// A pair of `--runtime-config`, without `kinds`; `""` for the versions that are enabled by default.
    runtime_config: &'a str,
    /// The revisions of the policy on which the authorizer decides; None if no policy write concerns it.
    policy: Option<Arc<PolicyRevisions>>,
    /// Opens the store of Events if they have one of their own, with the cache as its observer.
    open_events: Option<&'a (dyn Fn(Arc<Cache>) -> Arc<dyn Store> + Sync)>,
}

/// A client of conversion webhooks for tests without such webhooks.
struct NoWebhook;

#[async_trait]
impl ConversionClient for NoWebhook {
    async fn post(
        &self,
        _client_config: &Value,
        _review: Value,
    ) -> Result<ConversionResponse, ConversionCallError> {
        Err(webhooks::InvalidConfiguration::NoAddress.into())
    }
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Settings {
            preset: Preset::Svc,
            gates: "",
            versions: CompatibilityVersions::default(),
            validator: verbs::type_table_validator(),
            rng: Arc::new(SeededRng::new(7)),
            clock: Arc::new(SystemClock::new()),
            kinds: &[],
            limits: Limits::default(),
            request_timeout: MINUTE,
            request_limits: RequestLimits { server: ServerLimits { reads: 0, writes: 0 }, is_fair: false },
            conversion_client: Arc::new(NoWebhook),
            ranges: &[ServiceRange::DEFAULT],
            forwarding: ForwardingOptions::default(),
            freshness: None,
            is_shared: false,
            runtime_config: "",
            policy: None,
            open_events: None,
        }
    }
}

/// A complete response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    /// The body as JSON; null if it is not JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Returns the state of aggregated APIs.
fn aggregation(api_state: &ApiState, reader: Arc<AdmissionBackend>) -> Arc<Aggregation> {
    let ApiState { forwarding, names, rng, clock, .. } = api_state;
    let (map, addresses) = (forwarding.service_map.clone(), forwarding.addresses.clone());
    let services =
        ServiceResolver::new(Arc::new(ReaderServices(reader)), map, names.clone(), rng.clone(), addresses);
    Arc::new(Aggregation::new(services, forwarding.clone(), names.clone(), clock.clone()))
}

impl Server {
    /// Starts a server that allows every request, with the namespaces `a` and `b`.
    pub(super) async fn start() -> Self {
        Server::start_with_gates("").await
    }

    /// Like [`Server::start`], with feature gates.
    pub(super) async fn start_with_gates(gates: &str) -> Self {
        Server::with_auth(|clock| Auth::allow_all(clock), AuditLog::off(), gates)
            .await
            .with_namespaces()
            .await
    }

    async fn with_namespaces(self) -> Self {
        for name in ["a", "b"] {
            assert_eq!(self.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await.code, 201);
            // Pods require the service account `default`. The controller that creates it does not run here.
            let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
            assert_eq!(self.post(&accounts, json!({"metadata": {"name": "default"}})).await.code, 201);
        }
        self
    }

    pub(super) async fn start_with_audit(
        auth: impl FnOnce(Arc<SystemClock>) -> Arc<Auth>,
        audit: AuditLog,
    ) -> Self {
        Server::with_auth(auth, audit, "").await
    }

    async fn with_auth(
        auth: impl FnOnce(Arc<SystemClock>) -> Arc<Auth>,
        audit: AuditLog,
        gates: &str,
    ) -> Self {
        Server::with_settings(auth, audit, Settings { gates, ..Settings::default() }).await
    }

    async fn start_with_settings(settings: Settings<'_>) -> Self {
        Server::with_settings(|clock| Auth::allow_all(clock), AuditLog::off(), settings)
            .await
            .with_namespaces()
            .await
    }

    /// Like [`Server::start`], with another random source and additional kinds.
    pub(super) async fn start_with_kinds(rng: Arc<dyn Rng>, kinds: &[&'static [BuiltInKind]]) -> Self {
        Server::start_with_settings(Settings { rng, kinds, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with feature gates and another declarative validation.
    pub(super) async fn start_with_validator(gates: &str, validator: Validator) -> Self {
        Server::start_with_settings(Settings { gates, validator, ..Settings::default() }).await
    }

    /// Like [`Server::start`], for an emulated release.
    pub(super) async fn start_with_versions(versions: CompatibilityVersions) -> Self {
        Server::start_with_settings(Settings { versions, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with other cache limits.
    pub(super) async fn start_with_cache_limits(limits: Limits) -> Self {
        Server::start_with_settings(Settings { limits, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with another request timeout.
    pub(super) async fn start_with_timeout(request_timeout: Duration) -> Self {
        Server::start_with_settings(Settings { request_timeout, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with feature gates and another clock.
    pub(super) async fn start_with_clock(gates: &str, clock: Arc<dyn Clock>) -> Self {
        Server::start_with_settings(Settings { gates, clock, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with plain limits of reads and writes; 0 means no limit.
    pub(super) async fn start_with_limits(reads: usize, writes: usize) -> Self {
        let request_limits = RequestLimits { server: ServerLimits { reads, writes }, is_fair: false };
        Server::start_with_settings(Settings { request_limits, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with flow schemas and priority levels.
    pub(super) async fn start_with_fairness() -> Self {
        let request_limits =
            RequestLimits { server: ServerLimits { reads: 400, writes: 200 }, is_fair: true };
        Server::start_with_settings(Settings { request_limits, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with ranges of cluster IP addresses.
    pub(super) async fn start_with_ranges(preset: Preset, ranges: &[ServiceRange]) -> Self {
        Server::start_with_settings(Settings { preset, ranges, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with options of connections to other servers.
    pub(super) async fn start_with_forwarding(forwarding: ForwardingOptions) -> Self {
        Server::start_with_settings(Settings { forwarding, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with the names of a preset.
    pub(super) async fn start_with_preset(preset: Preset) -> Self {
        Server::start_with_settings(Settings { preset, ..Settings::default() }).await
    }

    /// Like [`Server::start`], with another client of conversion webhooks.
    pub(super) async fn start_with_converter(conversion_client: Arc<dyn ConversionClient>) -> Self {
        Server::start_with_settings(Settings { conversion_client, ..Settings::default() }).await
    }

    /// Like [`Server::start`], on a store to which other servers write.
    pub(super) async fn start_with_freshness(freshness: Arc<Freshness>) -> Self {
        Server::start_with_settings(Settings { freshness: Some(freshness), ..Settings::default() }).await
    }

    /// Like [`Server::start`], on a store that several servers use.
    pub(super) async fn start_among_servers() -> Self {
        Server::start_with_settings(Settings { is_shared: true, ..Settings::default() }).await
    }

    async fn with_settings(
        auth: impl FnOnce(Arc<SystemClock>) -> Arc<Auth>,
        audit: AuditLog,
        settings: Settings<'_>,
    ) -> Self {
        let Settings {
            preset,
            gates,
            versions,
            validator,
            rng,
            clock,
            kinds,
            limits,
            request_timeout,
            request_limits,
            conversion_client,
            ranges,
            forwarding,
            freshness,
            is_shared,
            runtime_config,
            policy,
            open_events,
        } = settings;
        let names = Arc::new(Names::new(preset, "example.test").unwrap());
        let registry = match runtime_config {
            "" => Registry::with(&names, kinds),
            pair => Registry::with_versions(&names, &EnabledVersions::parse([pair], &names).unwrap().0),
        };
        let current_registry = Arc::new(CurrentRegistry::new(registry));
        let registry = current_registry.get();
        let cache = Arc::new(Cache::new(limits));
        let addresses = Arc::new(ServiceAddresses::new(
            &registry,
            names.clone(),
            rng.clone(),
            ranges,
            NodePortRange { first: 30_000, last: 30_099 },
        ));
        let policy = policy.map(|policy| policy as Arc<dyn Observer>);
        let others = [addresses.clone() as Arc<dyn Observer>, cache.clone()];
        let observers = Observers(policy.into_iter().chain(others).collect());
        let memory = Arc::new(match is_shared {
            true => MemoryStore::of_several_servers(Arc::new(observers)),
            false => MemoryStore::new(Arc::new(observers)),
        });
        let store: Arc<dyn Store> = memory.clone();
        cache.attach(&store);
        let separate_store = open_events.map(|open| {
            let main_cache = cache.clone();
            let cache = Arc::new(Cache::new(limits));
            let store = open(cache.clone());
            cache.attach(&store);
            let key_prefix = registry.find_stored("", "v1", "events").unwrap().key_prefix.clone();
            let reads = NewestReads::of(&store, "override-0", |_| ()).unwrap();
            let freshness = freshness.as_ref().unwrap();
            let (main_reads, needs_newest_policy) = (freshness.reads(), freshness.is_fresh());
            Arc::new(SeparateStore {
                key_prefix,
                store,
                cache,
                reads,
                main_cache,
                main_reads,
                needs_newest_policy,
            })
        });
        let separate_cache =
            separate_store.as_ref().map(|separate| (separate.key_prefix.clone(), separate.cache.clone()));
        let caches = Caches::new(&cache, separate_cache);
        let backend = Arc::new(AdmissionBackend::new(&registry, caches.clone()));
        let writes = Arc::new(AdmissionWrites::default());
        let no_addresses = Default::default();
        let (gates, _) = serving::gates::FeatureGates::parse(gates, versions.emulated).unwrap();
        let metrics = Arc::new(Metrics::default());
        let environment = Environment {
            webhooks: admission::webhook_clients(backend.clone(), &no_addresses, &names, &clock, &rng),
            metrics: Arc::new(AdmissionMetrics::new(&metrics)),
            gates: gates.clone(),
            limits: apimachinery::codec::Limits::BODY,
            names: names.clone(),
            clock: clock.clone(),
            rng: rng.clone(),
            reader: backend.clone(),
            writer: writes.clone(),
            authorizer: backend.clone(),
            registry: current_registry.clone(),
            reservations: Arc::default(),
        };
        let admission = Chain::new(&[], &[], &Configuration::default(), &environment).unwrap();
        let (stop, stopping) = watch::channel(false);
        let checks = || Checks::new().with("ping", || Ok(()));
        let token_key = TokenKey::load_or_create(&*store).await.unwrap();
        let conversion = ConversionContext {
            names: names.clone(),
            rng: rng.clone(),
            client: conversion_client,
            clock: clock.clone(),
            metrics: Arc::new(ConversionMetrics::new(&metrics)),
        };
        let forwarding = Forwarding::new(forwarding, &clock, &*rng).unwrap().into();
        let api_state = Arc::new(ApiState {
            names,
            clock: clock.clone(),
            rng,
            kinds: CurrentKinds::new(current_registry, caches, conversion),
            store,
            cache,
            separate_store,
            addresses,
            auth: auth(Arc::new(SystemClock::new())),
            admission,
            declarative_validation: DeclarativeValidation::new(&gates, validator, &metrics),
            gates,
            forwarding,
            token_key,
            read_metrics: ReadMetrics::new(&metrics),
            body_limits: apimachinery::codec::Limits::BODY,
            min_watch_timeout: Duration::from_secs(1800),
            stopping,
        });
        let (audit, health) =
            (Arc::new(audit), Health { livez: checks(), readyz: checks(), healthz: checks() });
        let settings = HttpSettings {
            build: BUILD,
            compatibility_versions: versions,
            server_address: "127.0.0.1:6443".to_owned(),
            request_timeout,
            request_limits,
            delete_workers: 4,
        };
        let aggregation = aggregation(&api_state, backend.clone());
        let http_state = Arc::new(HttpState::new(
            api_state.clone(),
            audit.clone(),
            metrics.clone(),
            health,
            settings,
            aggregation.clone(),
            freshness,
        ));
        let controller_state = Arc::new(ControllerState::new(
            api_state.clone(),
            audit,
            metrics.clone(),
            false,
            aggregation,
            http_state.flow_control().cloned(),
            Leadership::of_single_server(),
        ));
        backend.attach(&api_state);
        writes.attach(&controller_state);
        api_state.auth.register_metrics(&metrics);
        let api = Api::new(http_state.clone()).unwrap();
        Server { api, api_state, http_state, controller_state, memory, stop }
    }

    /// The documents of the served kinds.
    pub(super) fn documents(&self) -> Arc<Documents> {
        self.http_state.documents_of(self.api_state.kinds.registry())
    }

    pub(super) async fn open(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> http::Response<Body> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(HeaderName::from_bytes(name.as_bytes()).unwrap(), *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let handling = self.api.handle_request(head, RequestBody::Whole(body), Arc::default());
        assert!(size_of_val(&handling) <= FUTURE_BYTES, "{} bytes", size_of_val(&handling));
        handling.await
    }

    pub(super) async fn send(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        let response = self.open(method, url, headers, body.into()).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { code: head.status.as_u16(), headers: head.headers, body }
    }

    pub(super) async fn get(&self, url: &str) -> Reply {
        self.send("GET", url, &[], "").await
    }

    pub(super) async fn post(&self, url: &str, body: Value) -> Reply {
        self.send("POST", url, &[("content-type", "application/json")], body.to_string()).await
    }

    /// Returns cached objects of a collection in the namespace `a`.
    pub(super) async fn cached_items(
        &self,
        resource: &Arc<Kind>,
        names: &[impl AsRef<str>],
    ) -> Vec<Arc<Item>> {
        let collection = self.api_state.kinds.collection(resource).unwrap();
        let mut items = Vec::new();
        for name in names {
            let (item, _) = collection.items.get(&resource.key("a", name.as_ref())).await.unwrap();
            items.push(item.unwrap());
        }
        items
    }

    /// Creates a ConfigMap in the namespace `a` as apid itself does, without an HTTP request.
    pub(super) async fn create_as_apid(&self, metadata: Value) {
        let writer = AdmissionWrites::default();
        writer.attach(&self.controller_state);
        let mut object = Object::from_value(json!({ "metadata": metadata })).unwrap();
        object.set_meta("namespace", "a");
        writer.create(ObjectKind::new("", "ConfigMap"), object).await.unwrap();
    }

    pub(super) async fn put(&self, url: &str, body: Value) -> Reply {
        self.send("PUT", url, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(super) async fn merge(&self, url: &str, body: Value) -> Reply {
        self.send("PATCH", url, &[("content-type", "application/merge-patch+json")], body.to_string()).await
    }

    pub(super) async fn delete(&self, url: &str, body: Value) -> Reply {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.send("DELETE", url, &[("content-type", "application/json")], text).await
    }
}

/// The ConfigMaps of the namespace `a`.
pub(super) const MAPS: &str = "/api/v1/namespaces/a/configmaps";

/// An audit log that appends to a file.
pub(super) fn audit_log(path: &std::path::Path) -> AuditLog {
    audit_log_with(path, None)
}

/// An audit log in a file with the policy of another file.
pub(super) fn audit_log_with(path: &std::path::Path, policy: Option<&std::path::Path>) -> AuditLog {
    let clock = Arc::new(SystemClock::new());
    let names = Names::new(Preset::Svc, "example.test").unwrap();
    let (rotation, options) = (Rotation::default(), BackendOptions::BLOCKING);
    let mut audit = AuditLog::new(&names, clock);
    if let Some(policy) = policy {
        audit = audit.with_policy_file(policy, &names).unwrap();
    }
    audit.with_log(path.to_str().unwrap(), rotation, Format::Json, options).unwrap()
}

/// A ConfigMap with one entry.
pub(super) fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"k": value}})
}
