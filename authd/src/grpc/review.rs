//! `Review`: the review resources of the API.

use authproto::auth::{self, review_response::Outcome};
use tonic::{Request, Response, Status};

use super::{Components, min_revision, status};
use crate::review::{Review, ReviewError, Reviewer};

pub(super) struct ReviewService(pub(super) Components);

#[tonic::async_trait]
impl auth::review_server::Review for ReviewService {
    async fn create(
        &self,
        request: Request<auth::ReviewRequest>,
    ) -> Result<Response<auth::ReviewResponse>, Status> {
        let components = self.0.caller(request.metadata());
        let request = request.into_inner();
        let at_least = min_revision(request.at_least.as_ref());
        let user = request.user.ok_or_else(|| status::incomplete_request("the request has no user"))?.into();
        let review = Review {
            resource: &request.resource,
            namespace: &request.namespace,
            user: &user,
            object: &request.object,
            at_least: components.at_least(at_least),
            request_id: &request.request_id,
        };
        let review_once = || async {
            let reviewer = Reviewer {
                names: &components.names,
                active: &components.config.current(),
                clock: &*components.clock,
            };
            match reviewer.review(review).await {
                Err(ReviewError::MirrorNotReady(not_ready)) => Err(not_ready),
                result => Ok(result),
            }
        };
        let result = components.retry_until_synced(at_least, review_once).await;
        let outcome = match result.map_err(status::mirror_unavailable)? {
            Ok(object) => Outcome::Object(object.into_value().to_string().into_bytes()),
            Err(ReviewError::Status(status)) => Outcome::Status(status.to_value().to_string().into_bytes()),
            Err(ReviewError::MirrorNotReady(error)) => return Err(status::mirror_unavailable(error)),
            Err(error @ ReviewError::UnknownResource(_)) => return Err(status::unknown_review(&error)),
        };
        Ok(Response::new(auth::ReviewResponse { outcome: Some(outcome) }))
    }
}
