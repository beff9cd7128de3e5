//! The state that all request handlers share.

use std::sync::Arc;
use std::time::Duration;

use aggregation::Aggregation;
use apimachinery::names::Names;
use audit::AuditLog;
use discovery::{DocumentCache, Documents, Served};
use flowcontrol::FlowControl;
use http::HeaderName;
use kinds::Registry;
use serving::build::BuildInfo;
use serving::compatibility::CompatibilityVersions;
use serving::gates::Gate;
use serving::health::Checks;
use serving::metrics::Metrics;
use tokio::sync::Semaphore;
use verbs::ApiState;

use crate::audited_streams::AuditedStreams;
use crate::flow::{RequestFlow, RequestLimits};
use crate::freshness::Freshness;
use crate::metrics::{self, RequestMetrics, StreamMetrics};
use crate::response::protobuf::MessageCache;

/// The state of the HTTP layer: the state of the API, and what only the endpoints use.
pub struct HttpState {
    /// The state that the verbs use.
    pub api_state: Arc<ApiState>,
    /// The audit log.
    pub audit: Arc<AuditLog>,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// The checks of `/livez`, `/readyz` and `/healthz`.
    pub health: Health,
    /// Fixed facts and limits.
    pub settings: HttpSettings,
    /// The API versions that other servers serve.
    pub aggregation: Arc<Aggregation>,
    /// The freshness of reads despite writes of other servers; None if no other server writes to the store.
    pub(crate) freshness: Option<Arc<Freshness>>,
    /// Decides which requests run.
    pub(crate) flow: RequestFlow,
    /// The response headers with the uids of the flow schema and of the priority level.
    pub(crate) flow_headers: [HeaderName; 2],
    /// The discovery and OpenAPI documents.
    pub(crate) documents: DocumentCache,
    /// The metrics of requests.
    pub(crate) request_metrics: RequestMetrics,
    /// The metrics of the streams and logs of containers.
    pub(crate) stream_metrics: StreamMetrics,
    /// The keys of the annotations of a decision in audit events.
    pub(crate) decision_keys: DecisionKeys,
    /// The streams whose last audit event is not written yet.
    pub(crate) audited_streams: AuditedStreams,
    /// Cache of the Protobuf encodings of objects in the watch cache.
    pub(crate) messages: MessageCache,
    /// The semaphore with one permit, because only one backup may run at a time.
    pub(crate) backups: Arc<Semaphore>,
    /// The lock of the thread that builds OpenAPI documents, because only one thread may build at a time.
    pub(crate) openapi_builds: Arc<tokio::sync::Mutex<()>>,
}

/// The keys of the annotations of a decision in audit events.
pub(crate) struct DecisionKeys {
    /// `allow` or `forbid`.
    pub(crate) decision: String,
    /// The reason of the authorizer.
    pub(crate) reason: String,
}

impl DecisionKeys {
    fn new(names: &Names) -> Self {
        let domain = names.group("authorization");
        DecisionKeys { decision: format!("{domain}/decision"), reason: format!("{domain}/reason") }
    }
}

/// The facts and limits of the HTTP layer that do not change while the process runs.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Version, commit, date and compiler of the program.
    pub build: BuildInfo,
    /// The emulated release and the oldest compatible release.
    pub compatibility_versions: CompatibilityVersions,
    /// The `host:port` of this server in discovery documents.
    pub server_address: String,
    /// The timeout of requests other than watches (`--request-timeout`).
    pub request_timeout: Duration,
    /// The limits of requests at once.
    pub request_limits: RequestLimits,
    /// Number of objects that one deletecollection request deletes concurrently
    /// (`--delete-collection-workers`).
    pub delete_workers: usize,
}

/// The checks of the health endpoints.
pub struct Health {
    /// `/livez`: a failure means that the process must be restarted.
    pub livez: Checks,
    /// `/readyz`: whether the process can serve requests.
    pub readyz: Checks,
    /// `/healthz`, the older endpoint of kube-apiserver.
    pub healthz: Checks,
}

impl HttpState {
    /// Constructs the state and registers the metrics of requests, of the audit log and of the API.
    pub fn new(
        api_state: Arc<ApiState>,
        audit: Arc<AuditLog>,
        metrics: Arc<Metrics>,
        health: Health,
        settings: HttpSettings,
        aggregation: Arc<Aggregation>,
        freshness: Option<Arc<Freshness>>,
    ) -> Self {
        audit.register_metrics(&metrics);
        metrics::collect_state(&metrics, &api_state, &settings.build);
        let documents = DocumentCache::new(
            Served::own(api_state.kinds.registry()),
            Arc::clone(&api_state.names),
            settings.server_address.clone(),
            api_state.gates.enabled(Gate::StorageVersionHash),
        );
        HttpState {
            request_metrics: RequestMetrics::new(&metrics),
            stream_metrics: StreamMetrics::new(&metrics),
            decision_keys: DecisionKeys::new(&api_state.names),
            audited_streams: AuditedStreams::default(),
            flow: RequestFlow::new(settings.request_limits, &api_state.clock, &metrics),
            flow_headers: <[_; 2]>::from(api_state.names.flow_control_headers()).map(HeaderName::from_static),
            documents,
            messages: MessageCache::default(),
            backups: Arc::new(Semaphore::new(1)),
            openapi_builds: Arc::default(),
            api_state,
            audit,
            metrics,
            health,
            settings,
            aggregation,
            freshness,
        }
    }

    /// Returns the documents of the kinds of a registry and of the servers behind APIServices.
    pub(crate) fn documents_of(&self, registry: Arc<Registry>) -> Arc<Documents> {
        let (announced, remote_openapi) = (self.aggregation.announced(), self.aggregation.openapi());
        self.documents.of(&Served { registry, announced, remote_openapi })
    }

    /// Flow control by schemas and levels; None without `--enable-priority-and-fairness`.
    pub fn flow_control(&self) -> Option<&Arc<FlowControl>> {
        self.flow.control()
    }

    /// Waits until the last audit events of all streams are written, at most for `timeout`. For the shutdown, after
    /// [`ApiState::stopping`] has ended the streams.
    pub async fn finish_streams(&self, timeout: Duration) {
        self.audited_streams.finish(timeout).await;
    }

    /// Returns the task that measures the peak number of concurrent requests. It runs until the process ends.
    pub fn measure_peaks(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.request_metrics.measure_peaks()
    }
}
