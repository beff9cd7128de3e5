//! The right to see details of the configuration in reviews.

use apimachinery::attributes::Attributes;

use super::{Review, Reviewer};
use crate::authz::AuthzRequest;
use crate::mirror::MirrorNotReady;

/// Whether the requesting user may read the configuration of the server: the verb `get` on `/configz`.
pub(super) async fn can_read_configuration(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
) -> Result<bool, MirrorNotReady> {
    let attributes =
        Attributes { verb: "get".to_owned(), path: "/configz".to_owned(), ..Attributes::default() };
    let request = AuthzRequest { user: review.user, attributes: &attributes, at_least: review.at_least };
    Ok(reviewer.active.authz.authorize(request).await?.decision.allowed())
}
