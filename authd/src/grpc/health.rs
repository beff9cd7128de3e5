//! `grpc.health.v1`: liveness of the process, and whether it can decide requests.
//!
//! # Contract
//!
//! The service of `tonic-health`. The empty service name is always serving. `auth.v1.Decide` has the state of
//! the mirror: without a complete mirror there are no decisions.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::mirror::{Mirror, Progress};

/// The service whose health is that of the mirror.
const DECIDE: &str = "auth.v1.Decide";

/// Creates the service and starts the task that reports the state of the mirror. Needs a runtime.
pub(super) fn service(mirror: &Arc<Mirror>) -> HealthServer<impl Health> {
    let (reporter, service) = health_reporter();
    tokio::spawn(report_mirror(reporter, Arc::clone(mirror)));
    service
}

/// Reports each change of the mirror until the mirror is dropped.
async fn report_mirror(reporter: HealthReporter, mirror: Arc<Mirror>) {
    let mut changes = WatchStream::new(mirror.changes());
    drop(mirror);
    while let Some(progress) = changes.next().await {
        reporter.set_service_status(DECIDE, serving_status(&progress)).await;
    }
}

fn serving_status(progress: &Progress) -> ServingStatus {
    if progress.synced { ServingStatus::Serving } else { ServingStatus::NotServing }
}
