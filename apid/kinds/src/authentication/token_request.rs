//! TokenRequest: request and response body of the subresource `serviceaccounts/token`.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use crate::{BuiltInKind, Context, Strategy};

/// Default lifetime of a token in seconds.
const DEFAULT_SECONDS: i64 = 3600;
/// Minimum lifetime of a token in seconds.
const MIN_SECONDS: i64 = 600;
/// Maximum lifetime of a token in seconds.
const MAX_SECONDS: i64 = 1 << 32;

pub(crate) const KIND: BuiltInKind = BuiltInKind {
    namespaced: true,
    strategy: &TokenRequest,
    ..BuiltInKind::review("authentication/v1.TokenRequest", "tokenrequests")
};

struct TokenRequest;

impl Strategy for TokenRequest {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if object.at(&["spec", "expirationSeconds"]).is_none_or(Value::is_null) {
            object.part_mut("spec").insert("expirationSeconds".to_owned(), DEFAULT_SECONDS.into());
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let path = FieldPath::new("spec").child("expirationSeconds");
        let seconds = object.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or_default();
        if seconds < MIN_SECONDS {
            FieldError::invalid(&path, seconds, "may not specify a duration less than 10 minutes").into()
        } else if seconds > MAX_SECONDS {
            FieldError::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds").into()
        } else {
            FieldErrors::new()
        }
    }
}
