//! SelfSubjectReview: the attributes of the requesting user (requirements A-SSR).

use apimachinery::object::Object;
use serde_json::json;

use super::{Review, response_object, user_json};

pub(super) fn answer(review: &Review<'_>, object: &Object) -> Object {
    response_object(object, "", None, json!({"userInfo": user_json(review.user)}))
}
