//! `grpc.health.v1`: liveness of the process, and whether it can decide requests.

use std::pin::Pin;
use std::sync::Arc;

use authproto::health::health_check_response::ServingStatus;
use authproto::health::health_server::Health;
use authproto::health::{HealthCheckRequest, HealthCheckResponse};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::status;
use crate::mirror::{Mirror, Progress};

/// The service whose health is that of the mirror: without a mirror there are no decisions.
const DECIDE: &str = "auth.v1.Decide";

/// Responds with the state of the mirror.
pub(super) struct Service(pub(super) Arc<Mirror>);

fn answer(serving: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: serving.into() }
}

fn deciding(progress: &Progress) -> ServingStatus {
    if progress.synced { ServingStatus::Serving } else { ServingStatus::NotServing }
}

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "" => Ok(Response::new(answer(ServingStatus::Serving))),
            DECIDE => Ok(Response::new(answer(deciding(&self.0.progress())))),
            other => Err(status::unknown_service(other)),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = request.into_inner().service;
        let mut told = None;
        let states = WatchStream::new(self.0.changes()).filter_map(move |progress| {
            let now = match service.as_str() {
                "" => ServingStatus::Serving,
                DECIDE => deciding(&progress),
                _ => ServingStatus::ServiceUnknown,
            };
            (told.replace(now) != Some(now)).then(|| Ok(answer(now)))
        });
        Ok(Response::new(Box::pin(states)))
    }
}
