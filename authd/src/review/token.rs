//! TokenReview: identifies the user of a token (the server side of requirements A-TWH).
//!
//! # Contract
//!
//! The authenticators get the token as the only credential. A rejected token is a result, not an error, and
//! the result says only that the token is invalid. If the authenticators cannot decide, the review fails.

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;

use super::token_spec::TokenSpec;
use super::{Review, ReviewResult, Reviewer, response_object, user_json};
use crate::authn::{AuthnContext, AuthnError, join_checks};

pub(super) async fn answer(reviewer: &Reviewer<'_>, review: &Review<'_>, object: Object) -> ReviewResult {
    let spec = TokenSpec::read(&object, "token is required for TokenReview in authentication")?;
    let credentials = spec.credentials(&reviewer.active.authn);
    let mut status = Map::new();
    let context = AuthnContext { now: reviewer.clock.now(), at_least: review.at_least };
    match reviewer.active.authn.authenticate(credentials, context).await? {
        Ok((accepted, method)) => {
            tracing::debug!(
                request_id = review.request_id,
                method,
                user = accepted.user.name,
                "token reviewed"
            );
            status.insert("authenticated".to_owned(), true.into());
            status.insert("user".to_owned(), user_json(&accepted.user));
            if !accepted.audiences.is_empty() {
                status.insert("audiences".to_owned(), accepted.audiences.into());
            }
        }
        Err(AuthnError::Undecided(methods)) => {
            let reasons = join_checks(&methods);
            tracing::info!(request_id = review.request_id, reasons, "token review undecided; responding 503");
            return Err(Status::unavailable("the token cannot be verified now, try again", 1).into());
        }
        Err(AuthnError::Rejection(rejection)) => {
            for (method, check) in &rejection.checks {
                tracing::info!(request_id = review.request_id, method, check, "reviewed token rejected");
            }
            // As in Kubernetes, the field `user` is present without a user too.
            status.insert("user".to_owned(), Value::Object(Map::new()));
            status.insert("error".to_owned(), "invalid bearer token".into());
        }
    }
    let spec = object.get("spec").cloned();
    Ok(response_object(&object, "", spec, Value::Object(status)))
}
