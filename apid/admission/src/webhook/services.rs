//! Services and EndpointSlices for the resolution of webhook addresses.

use std::sync::Arc;

use apimachinery::object::Object;
use webhooks::{LookupFuture, ServiceLookup};

use crate::{ObjectKind, Reader};

const SERVICE: ObjectKind = ObjectKind::new("", "Service");
const ENDPOINT_SLICE: ObjectKind = ObjectKind::new("discovery", "EndpointSlice");

/// Service lookup that reads the watch cache.
pub struct ReaderServices(pub Arc<dyn Reader>);

impl ServiceLookup for ReaderServices {
    fn service<'a>(&'a self, namespace: &'a str, name: &'a str) -> LookupFuture<'a, Option<Arc<Object>>> {
        Box::pin(self.0.get(SERVICE, namespace, name).get())
    }

    fn endpoint_slices<'a>(&'a self, namespace: &'a str) -> LookupFuture<'a, Vec<Arc<Object>>> {
        Box::pin(self.0.list(ENDPOINT_SLICE, namespace).get())
    }
}
