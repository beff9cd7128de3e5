//! `grpc.health.v1`: whether the process runs, and whether it can decide requests.
//!
//! # Contract
//!
//! The service is that of `tonic-health`. The status of the empty service name is always `SERVING`. The
//! status of `auth.v1.Decide` is `SERVING` while the mirror is complete: without it there are no decisions.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::mirror::{Mirror, Progress};

/// The service name whose status follows the mirror.
const DECIDE: &str = "auth.v1.Decide";

/// Creates the service and starts the task that sets the status of [`DECIDE`]. Needs a tokio runtime.
pub(super) fn service(mirror: &Arc<Mirror>) -> HealthServer<impl Health> {
    let (reporter, service) = health_reporter();
    tokio::spawn(report_mirror(reporter, Arc::clone(mirror)));
    service
}

/// Sets the status of [`DECIDE`] after each change of the mirror, until the mirror is dropped.
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
