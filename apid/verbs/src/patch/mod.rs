//! The patch verb.
//!
//! # Contract
//!
//! [`Patch::kind`] returns the patch type of a media type. [`Patch::parse`] reads a patch. [`patch`] applies
//! it to the current object inside the compare-and-swap loop. The result is handled like the body of an
//! update.
//!
//! # Reference
//!
//! JSON Patch is RFC 6902, merge patch RFC 7386, strategic merge patch that of the reference. The crate
//! `apply` implements the algorithms.

mod apply;
mod scale;

use ::apply::{json_patch, merge_patch, strategic};
use apimachinery::codec::{self, Limits};
use apimachinery::field::{FieldError, FieldPath, quote};
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Details, Reason, Status};
use kinds::{KindRef, Resource};
use schema::TypeError;

use super::create::resolve_namespace;
use super::decode::decode_error_status;
use super::options::{FieldValidation, WriteOptions};
use super::ownership::ProposedObject;
use super::{Call, WriteResult};
use crate::VerbFuture;

/// The patch types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JSON Patch, RFC 6902.
    Json,
    /// Merge patch, RFC 7386.
    Merge,
    /// Strategic merge patch, which merges lists by keys; built-in kinds only.
    Strategic,
    /// Server-side apply.
    Apply,
}

/// A parsed patch.
#[derive(Clone, Debug)]
pub struct Patch {
    document: Document,
    /// The patch as sent, cut to [`MESSAGE_PATCH_MAX`] bytes, for messages.
    text: String,
    duplicates: Vec<String>,
    /// The decode limits of the patch and of its result.
    limits: Limits,
}

#[derive(Clone, Debug)]
enum Document {
    Json(Vec<json_patch::Operation>),
    Merge(Value),
    Strategic(Map<String, Value>),
    Apply(apply::ApplyIntent),
}

/// The media types of patches of custom kinds, which have no strategic merge patch.
const CUSTOM_MEDIA_TYPES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// Maximum length of a patch in messages, in bytes.
const MESSAGE_PATCH_MAX: usize = 1024;

/// Replaces the patch of a Secret in messages.
const REDACTED: &str = "<secret contents redacted>";

impl Patch {
    /// Returns the patch type of a media type.
    ///
    /// # Errors
    ///
    /// 415: missing or unknown media type. As in the reference, only custom kinds list the accepted types.
    pub fn kind(media_type: Option<&str>, is_custom: bool) -> Result<Kind, Status> {
        match media_type {
            Some("application/json-patch+json") => Ok(Kind::Json),
            Some("application/merge-patch+json") => Ok(Kind::Merge),
            Some("application/strategic-merge-patch+json") => Ok(Kind::Strategic),
            Some("application/apply-patch+yaml") => Ok(Kind::Apply),
            _ if is_custom => Err(Status::unsupported_media_type(&CUSTOM_MEDIA_TYPES)),
            _ => Err(Status::unroutable_media_type()),
        }
    }

    /// Parses a patch.
    ///
    /// # Errors
    ///
    /// 400: not JSON, or not a patch of this type. 413: too many operations, or over the decode limits. 422:
    /// an unknown operation.
    pub fn parse(kind: Kind, bytes: &[u8], limits: Limits) -> Result<Self, Status> {
        let text = String::from_utf8_lossy(bytes.get(..MESSAGE_PATCH_MAX).unwrap_or(bytes)).into_owned();
        if kind == Kind::Apply {
            let document = Document::Apply(apply::ApplyIntent::read(bytes, limits)?);
            return Ok(Patch { document, text, duplicates: Vec::new(), limits });
        }
        let malformed_status = |reason: &str| Status::bad_request(format!("error decoding patch: {reason}"));
        let decoded = codec::json::decode(bytes, limits)
            .map_err(|error| decode_error_status(&error, malformed_status))?;
        let document = match (kind, decoded.value) {
            (Kind::Json, document) => Document::Json(json_patch::parse(document).map_err(json_failure)?),
            (Kind::Merge, patch @ Value::Object(_)) => Document::Merge(patch),
            (Kind::Strategic, Value::Object(patch)) => Document::Strategic(patch),
            (Kind::Merge | Kind::Strategic | Kind::Apply, _) => {
                return Err(Status::bad_request("error decoding patch: a merge patch is an object"));
            }
        };
        Ok(Patch { document, text, duplicates: decoded.duplicates, limits })
    }

    fn apply(&self, call: &Call<'_>, kind: &KindRef, object: Map<String, Value>) -> Result<Value, Status> {
        match &self.document {
            Document::Json(operations) => {
                let lenient = call.api_state.names.behaviour.replace_of_missing_key_succeeds;
                json_patch::apply(operations, Value::Object(object), lenient, self.limits)
                    .map_err(json_failure)
            }
            Document::Merge(patch) => Ok(merge_patch::apply(Value::Object(object), patch)),
            Document::Strategic(patch) => {
                let Some(schema) = kind.schema().and_then(|schema| schema.built_in()) else {
                    return Err(Status::unsupported_media_type(&CUSTOM_MEDIA_TYPES));
                };
                strategic::apply(&schema.merge(), object, patch).map(Value::Object).map_err(strategic_failure)
            }
            // The function `patch` handles an apply before this call, because an apply needs a field manager.
            Document::Apply(_) => Err(Status::internal("an apply has no patch to merge")),
        }
    }

    /// Applies the patch to an object and returns the result in stored form, with warnings.
    ///
    /// The patch may set `apiVersion` to another version of the kind; the result is then read in that
    /// version.
    ///
    /// # Errors
    ///
    /// 400, 422: the patch cannot be applied, or the result is not of the kind.
    pub(super) fn change(
        &self,
        call: &Call<'_>,
        kind: &Resource,
        old: Object,
        validation: FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let old_version = old.api_version().to_owned();
        let is_secret = (kind.kind.kind(), old_version.as_str()) == ("Secret", "v1");
        let value = self.apply(call, &kind.kind, old.0)?;
        self.limits
            .check(&value)
            .map_err(|error| decode_error_status(&error, |reason| Status::bad_request(reason)))?;
        let mut new = Object::from_value(value)
            .map_err(|_| self.invalid_result("the result is not an object", is_secret))?;
        // A patch that removes `kind` or `apiVersion` does not change them.
        if new.kind().is_empty() {
            new.set("kind", kind.kind.kind());
        }
        if new.api_version().is_empty() {
            new.set("apiVersion", old_version.as_str());
        }
        let is_same_version = new.api_version() == old_version;
        let is_other_version = !is_same_version && kind.kind.conversion_webhook().is_none();
        let version =
            is_other_version.then(|| call.kinds.registry.version_of(kind, new.api_version())).flatten();
        self.check_type(call, kind, &new, is_same_version || version.is_some(), is_secret)?;
        let version = version.map_or(kind, |version| &**version);
        let invalid_type = |error: TypeError| self.invalid_result(&error.to_string(), is_secret);
        let conformance = version.conform_body(&mut new, &call.api_state.names).map_err(invalid_type)?;
        let strict_is_invalid = call.api_state.names.behaviour.strict_patch_is_invalid;
        // Unknown and duplicate fields return 422 or 400, by the preset: see requirements, appendix (g) 23.
        let reject = |reason: String| {
            if strict_is_invalid {
                self.invalid_result(&reason, is_secret)
            } else {
                Status::bad_request(reason)
            }
        };
        let names = &call.api_state.names;
        let warnings = validation.report(&self.duplicates, &conformance.unknown, None, names, reject)?;
        version.to_stored(&mut new, &call.api_state.names).map_err(invalid_type)?;
        if kind.is_custom() && !is_same_version {
            kind.repair(&mut new);
        }
        Ok((new, warnings))
    }

    /// Rejects a patch that gives an object another kind or an unknown version.
    ///
    /// The errors are those of kube-apiserver.
    fn check_type(
        &self,
        call: &Call<'_>,
        kind: &Resource,
        new: &Object,
        has_known_version: bool,
        is_secret: bool,
    ) -> Result<(), Status> {
        let (expected_kind, new_kind, new_version) = (kind.kind.kind(), new.kind(), new.api_version());
        if has_known_version && new_kind == expected_kind {
            return Ok(());
        }
        let reason = if !kind.is_custom() {
            let (new_kind, new_version) = (quote(new_kind), quote(new_version));
            format!("no kind {new_kind} of version {new_version} can replace a {expected_kind}")
        } else if has_known_version {
            return Err(kind.invalid_kind(call.name, new_kind));
        } else {
            format!("request to convert CR from an invalid group/version: {new_version}")
        };
        Err(self.invalid_result(&reason, is_secret))
    }

    /// Returns 422 for a result that is not of the kind, with the field `patch`, as in kube-apiserver.
    ///
    /// The patch of a Secret is redacted, because Statuses are written to the audit log.
    fn invalid_result(&self, reason: &str, is_secret: bool) -> Status {
        let no_kind = GroupKind { group: String::new(), kind: String::new() };
        let mut text = String::new();
        match &self.document {
            _ if is_secret => text.push_str(REDACTED),
            Document::Strategic(patch) => write_go_map(patch, &mut text),
            _ => text.push_str(&self.text),
        }
        Status::invalid(&no_kind, "", &[FieldError::invalid(&FieldPath::new("patch"), text, reason)])
    }
}

/// Formats a strategic merge patch as the reference does in messages: `map[spec:map[replicas:2]]`.
fn write_go_map(map: &Map<String, Value>, text: &mut String) {
    text.push_str("map[");
    for (i, (name, value)) in map.iter().enumerate() {
        text.push_str(if i == 0 { "" } else { " " });
        text.push_str(name);
        text.push(':');
        write_go_value(value, text);
    }
    text.push(']');
}

fn write_go_value(value: &Value, text: &mut String) {
    match value {
        // Stop at [`MESSAGE_PATCH_MAX`] bytes.
        _ if text.len() > MESSAGE_PATCH_MAX => {}
        Value::Object(map) => write_go_map(map, text),
        Value::Array(items) => {
            text.push('[');
            for (i, item) in items.iter().enumerate() {
                text.push_str(if i == 0 { "" } else { " " });
                write_go_value(item, text);
            }
            text.push(']');
        }
        Value::String(string) => text.push_str(string),
        Value::Null => text.push_str("<nil>"),
        other => text.push_str(&other.to_string()),
    }
}

fn json_failure(error: json_patch::Error) -> Status {
    let text = error.to_string();
    match error {
        json_patch::Error::Malformed(_) => Status::bad_request(text),
        json_patch::Error::Rejected | json_patch::Error::TestFailed => {
            Status::failure(Reason::Invalid, text).with_details(Details::default())
        }
        json_patch::Error::TooLarge(_) => Status::too_large(text),
        json_patch::Error::Budget(error) => decode_error_status(&error, |reason| Status::bad_request(reason)),
    }
}

fn strategic_failure(error: strategic::Error) -> Status {
    let text = error.to_string();
    match error {
        strategic::Error::Malformed(_) => Status::bad_request(text),
        strategic::Error::TooLarge(_) => Status::too_large(text),
        strategic::Error::Rejected(_) | strategic::Error::Unmergeable(_) => {
            Status::failure(Reason::Invalid, text).with_details(Details::default())
        }
    }
}

/// Patches an object, or the part of it that belongs to a subresource.
///
/// # Errors
///
/// 404; 422 when the patch cannot be applied or its result is invalid; else those of an update.
pub fn patch<'a>(call: &'a Call<'a>, patch: Patch, options: &'a WriteOptions) -> VerbFuture<'a, WriteResult> {
    Box::pin(async move {
        let view = call.virtual_kind();
        if let Document::Apply(intent) = patch.document {
            return match view {
                Some(view) => scale::apply(call, view, intent, options).await,
                None => apply::apply(call, intent, options).await,
            };
        }
        if let Some(view) = view {
            return super::scale::patch(call, view, &patch, options).await;
        }
        let resource = &call.collection.resource;
        let (served, names) = (&call.collection.served, &call.api_state.names);
        let propose = |old: &Object| {
            let mut current = old.clone();
            served.represent(&mut current, names).map_err(Status::internal)?;
            let (mut new, warnings) = patch.change(call, served, current, options.field_validation)?;
            resolve_namespace(call, &mut new)?;
            call.check_name(&new)?;
            Ok(ProposedObject { object: new, warnings, has_managed_fields: false })
        };
        let not_found = || Status::not_found(&resource.group_resource, call.name);
        call.modify(options, propose).await?.ok_or_else(not_found)
    })
}
