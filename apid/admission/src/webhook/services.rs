//! Services and EndpointSlices for the resolution of the addresses of webhooks and aggregated APIs.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use async_trait::async_trait;
use forwarding::ServiceLookup;

use crate::{ObjectKind, Reader};

const SERVICE: ObjectKind = ObjectKind::new("", "Service");
const ENDPOINT_SLICE: ObjectKind = ObjectKind::new("discovery", "EndpointSlice");

/// Service lookup that reads the watch cache.
pub struct ReaderServices(pub Arc<dyn Reader>);

#[async_trait]
impl ServiceLookup for ReaderServices {
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status> {
        self.0.get(SERVICE, namespace, name).await
    }

    async fn endpoint_slices(&self, namespace: &str) -> Result<Vec<Arc<Object>>, Status> {
        self.0.list(ENDPOINT_SLICE, namespace).await
    }
}
