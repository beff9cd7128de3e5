//! Services and EndpointSlices for the addresses of webhooks, from the watch cache.

use std::sync::Arc;

use admission::{ObjectKind, Reader as _};
use apimachinery::object::Object;
use webhooks::{LookupFuture, ServiceLookup};

use super::AdmissionBackend;

const SERVICE: ObjectKind = ObjectKind::new("", "Service");
const ENDPOINT_SLICE: ObjectKind = ObjectKind::new("discovery", "EndpointSlice");

impl ServiceLookup for AdmissionBackend {
    fn service<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Option<Arc<Object>>> {
        Box::pin(self.get(SERVICE, namespace, name).get())
    }

    fn endpoint_slices<'a>(&'a self, namespace: &'a str) -> LookupFuture<'a, Vec<Arc<Object>>> {
        Box::pin(self.list(ENDPOINT_SLICE, namespace).get())
    }
}
