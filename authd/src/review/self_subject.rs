//! SelfSubjectReview: who am I (requirements A-SSR).

use apimachinery::object::Object;
use serde_json::json;

use super::{Review, Reviewed, Reviewer, answered, user_json};
use crate::mirror::NotYet;

pub(super) fn answer(_: &Reviewer<'_>, review: &Review<'_>, object: Object) -> Result<Reviewed, NotYet> {
    Ok(Ok(answered(&object, "", None, json!({"userInfo": user_json(review.user)}))))
}
