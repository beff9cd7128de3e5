//! Explanations of denials: a second request to authd, sent only when the audit log or the client gets the
//! explanation.
//!
//! # Contract
//!
//! The audit log contains explanations. A 403 contains an explanation only if the client may create
//! SubjectAccessReviews, because a review contains the same text. The 403 to any other client contains no
//! explanation. Such a client can create an AccessExplanation of its own request, which [`Auth::admit`] allows.
//!
//! # Invariants
//!
//! INVARIANT (same reason): an explanation is never cached, so a cached denial and a new one get the same
//! explanation. An explanation does not change a decision, and a failure to explain is not an error.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use authproto::auth::{ExplainRequest, decide_request, decide_response};

use crate::{Auth, Authorized, Identity};

impl Auth {
    /// Allows a user to create an AccessExplanation if the user may create SelfSubjectAccessReviews.
    ///
    /// Returns None for any other request, and for a user without this permission. The default policy lets
    /// each authenticated user create SelfSubjectAccessReviews. To such a user, authd explains only requests
    /// of the same user.
    pub(crate) async fn authorize_own_explanation(
        &self,
        identity: &Identity,
        attributes: &Arc<Attributes>,
        request_id: &str,
    ) -> Option<Authorized> {
        let is_explanation = attributes.verb == "create"
            && attributes.resource == "accessexplanations"
            && attributes.subresource.is_empty()
            && attributes.group == self.options.names.group("explain");
        if !is_explanation {
            return None;
        }
        let review = create_review(&self.options.names, "selfsubjectaccessreviews");
        let authorized = self.authorize(identity, review, request_id).await.ok()?;
        Some(Authorized { attributes: Arc::clone(attributes), ..authorized })
    }

    /// Whether the user may create SubjectAccessReviews and so may read explanations of denials.
    pub async fn can_read_explanations(&self, user: &Arc<UserInfo>, request_id: &str) -> bool {
        let review = create_review(&self.options.names, "subjectaccessreviews");
        let outcome = self.decide(user, &Arc::new(review), request_id).await;
        outcome.is_ok_and(|cached_decision| cached_decision.decision.allowed())
    }

    /// Returns one text for each of the nearest misses of a denied request; empty when authd does not respond
    /// with an explanation.
    pub async fn nearest_misses(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Attributes,
        request_id: &str,
    ) -> Vec<String> {
        let baseline = self.revisions.baseline(user, &attributes.namespace, self.clock.monotonic());
        let query = decide_request::Query::Explain(ExplainRequest {
            user: Some((&**user).into()),
            attributes: Some(attributes.into()),
            at_least: Some(baseline.at_least),
        });
        match self.authd_api.decide(request_id, query).await.map(|response| response.answer) {
            Ok(Some(decide_response::Answer::Explain(explanation))) => explanation.nearest_misses,
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::debug!(request_id, %error, "authd did not explain the denial");
                Vec::new()
            }
        }
    }
}

/// Returns the attributes of a request that creates an access review.
fn create_review(names: &Names, resource: &str) -> Attributes {
    Attributes {
        verb: "create".to_owned(),
        resource_request: true,
        group: names.group("authorization"),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        ..Attributes::default()
    }
}
