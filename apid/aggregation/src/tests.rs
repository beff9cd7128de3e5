//! Set-up of the tests: APIServices without servers.

use apimachinery::clock::{SeededRng, SystemClock};
use apimachinery::names::Preset;
use apimachinery::status::Status;
use async_trait::async_trait;
use bytes::Bytes;
use forwarding::{ForwardingOptions, ServiceLookup, ServiceMap};
use kinds::ApiPriority;
use serde_json::Value;

use super::*;

/// No Service exists.
struct NoServices;

#[async_trait]
impl ServiceLookup for NoServices {
    async fn service(&self, _: &str, _: &str) -> Result<Option<Arc<Object>>, Status> {
        Ok(None)
    }

    async fn endpoint_slices(&self, _: &str) -> Result<Vec<Arc<Object>>, Status> {
        Ok(Vec::new())
    }
}

pub(crate) fn aggregation() -> Aggregation {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let forwarding =
        Arc::new(Forwarding::new(ForwardingOptions::default(), &clock, &SeededRng::new(1)).unwrap());
    let services = ServiceResolver::new(
        Arc::new(NoServices),
        ServiceMap::default(),
        Arc::clone(&names),
        Arc::new(SeededRng::new(1)),
        Arc::default(),
    );
    Aggregation::new(services, forwarding, names, clock)
}

/// Returns an APIService of the group `e.com`.
pub(crate) fn api_service(version: &str, priority: i64, is_available: bool) -> ApiService {
    ApiService {
        name: format!("{version}.e.com"),
        group: "e.com".to_owned(),
        version: version.to_owned(),
        priority: ApiPriority { group: 1, version: priority },
        backend: Some(BackendReference {
            namespace: "n".to_owned(),
            name: "s".to_owned(),
            port: 443,
            ca_bundle: Bytes::new(),
            is_insecure: true,
        }),
        is_available,
        is_automatic: false,
    }
}

impl Aggregation {
    /// Sets the resources of an APIService as if its server had answered.
    pub(crate) fn set_resources(&self, name: &str, resources: Vec<Value>) {
        let resources = RemoteResources { resources, is_current: true };
        self.documents.lock().entry(name.to_owned()).or_default().resources = resources;
        self.publish();
    }
}
