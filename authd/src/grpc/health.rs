//! `grpc.health.v1`: whether the process runs, and whether it can decide requests.
//!
//! # Contract
//!
//! The service is that of `tonic-health`. The status of the empty service name is always `SERVING`. The
//! status of `auth.v1.Decide` is `SERVING` while the mirror of an apid is complete: without it there are no decisions.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use crate::mirror::Mirrors;

/// The service name whose status follows the mirrors.
const DECIDE: &str = "auth.v1.Decide";

/// Creates the service and starts the task that sets the status of [`DECIDE`]. Needs a tokio runtime.
pub(super) fn service(mirrors: &Arc<Mirrors>) -> HealthServer<impl Health> {
    let (reporter, service) = health_reporter();
    tokio::spawn(report_mirrors(reporter, mirrors.complete()));
    service
}

/// Sets the status of [`DECIDE`] after each change of the number of complete mirrors, until the mirrors are dropped.
async fn report_mirrors(reporter: HealthReporter, complete: watch::Receiver<usize>) {
    let mut changes = WatchStream::new(complete);
    while let Some(count) = changes.next().await {
        reporter.set_service_status(DECIDE, serving_status(count)).await;
    }
}

fn serving_status(complete: usize) -> ServingStatus {
    if complete > 0 { ServingStatus::Serving } else { ServingStatus::NotServing }
}
