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
//! JSON Patch is RFC 6902, merge patch RFC 7386, strategic merge patch that of Kubernetes. The crate `apply`
//! implements the algorithms.

mod apply;
mod scale;

use ::apply::{json_patch, merge_patch, strategic};
use apimachinery::codec::{self, Limits};
use apimachinery::field::{FieldError, FieldPath, format_go_fields, quote, shorten};
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Details, Reason, Status};
use kinds::Kind;
use schema::TypeError;

use super::create::resolve_namespace;
use super::decode::{decode_error_status, type_error_status};
use super::options::{FieldValidation, WriteOptions, duplicate_text, unknown_text};
use super::ownership::ProposedObject;
use super::{Call, WriteResult};
use crate::VerbFuture;

/// The patch types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
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
    /// Texts about duplicate keys, and about unknown members of the operations of a JSON patch.
    strict_errors: Vec<String>,
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

/// Replaces the patch of a Secret in messages.
const REDACTED: &str = "<secret contents redacted>";

impl Patch {
    /// Returns the patch type of a media type.
    ///
    /// # Errors
    ///
    /// 415: missing or unknown media type. As in kube-apiserver, only custom kinds list the accepted types.
    pub fn kind(media_type: Option<&str>, is_custom: bool) -> Result<PatchType, Status> {
        match media_type {
            Some("application/json-patch+json") => Ok(PatchType::Json),
            Some("application/merge-patch+json") => Ok(PatchType::Merge),
            Some("application/strategic-merge-patch+json") if !is_custom => Ok(PatchType::Strategic),
            Some("application/apply-patch+yaml") => Ok(PatchType::Apply),
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
    pub fn parse(kind: PatchType, bytes: &[u8], limits: Limits) -> Result<Self, Status> {
        if kind == PatchType::Apply {
            let document = Document::Apply(apply::ApplyIntent::read(bytes, limits)?);
            return Ok(Patch { document, strict_errors: Vec::new(), limits });
        }
        let malformed_status = |reason: &str| match kind {
            PatchType::Strategic => Status::bad_request(reason),
            _ => Status::bad_request(format!("error decoding patch: {reason}")),
        };
        let decoded = codec::json::decode(bytes, limits)
            .map_err(|error| decode_error_status(&error, malformed_status))?;
        let mut strict_errors: Vec<String> =
            decoded.duplicates.iter().map(|path| duplicate_text(path)).collect();
        let document = match (kind, decoded.value) {
            (PatchType::Json, document) => {
                let unknown = json_patch::unknown_members(&document);
                strict_errors.extend(unknown.iter().map(|path| format!("unknown field {}", quote(path))));
                strict_errors.iter_mut().for_each(|text| text.insert_str(0, "json patch "));
                Document::Json(json_patch::parse(document).map_err(json_failure)?)
            }
            (PatchType::Merge, patch @ Value::Object(_)) => Document::Merge(patch),
            (PatchType::Merge, Value::Null) => return Err(Status::bad_request("Invalid JSON Patch")),
            (PatchType::Strategic, Value::Object(mut patch)) => {
                patch.values_mut().for_each(codec::json::normalize_numbers);
                Document::Strategic(patch)
            }
            (PatchType::Strategic, Value::Null) => Document::Strategic(Map::new()),
            (PatchType::Merge | PatchType::Strategic | PatchType::Apply, other) => {
                let reason = json_patch::go_type_error(&other, "map[string]interface {}");
                return Err(malformed_status(&reason));
            }
        };
        Ok(Patch { document, strict_errors, limits })
    }

    fn apply(&self, call: &Call<'_>, kind: &Kind, object: Map<String, Value>) -> Result<Value, Status> {
        match &self.document {
            Document::Json(operations) => {
                let lenient = call.api_state.names.behaviour.replace_of_missing_key_succeeds;
                json_patch::apply(operations, Value::Object(object), lenient, self.limits)
                    .map_err(json_failure)
            }
            Document::Merge(patch) => Ok(merge_patch::apply(Value::Object(object), patch)),
            Document::Strategic(patch) => {
                let Some(schema) = kind.schema.table_type() else {
                    return Err(Status::unsupported_media_type(&CUSTOM_MEDIA_TYPES));
                };
                strategic::apply(&schema.merge(), object, patch).map(Value::Object).map_err(strategic_failure)
            }
            // The function `patch` handles an apply before this call, because an apply needs a field manager.
            Document::Apply(_) => Err(Status::internal("an apply has no patch to merge")),
        }
    }

    /// Applies the patch to the object that `current` returns, and returns the result in stored form, with warnings.
    ///
    /// The patch may set `apiVersion` to another version of the kind; the result is then read in that
    /// version. A strategic merge patch cannot set it.
    ///
    /// # Errors
    ///
    /// 400, 422: the patch cannot be applied, or the result is not of the kind.
    pub(super) fn change(
        &self,
        call: &Call<'_>,
        kind: &Kind,
        current: &dyn Fn() -> Result<Object, Status>,
        validation: FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let old = current()?;
        let old_version = old.api_version().to_owned();
        let is_secret = (kind.name(), old_version.as_str()) == ("Secret", "v1");
        let value = self.apply(call, kind, old.0)?;
        self.limits
            .check(&value)
            .map_err(|error| decode_error_status(&error, |reason| Status::bad_request(reason)))?;
        // Only a message shows the result. The patch is then applied again, so that a valid patch costs no copy.
        let shown = || {
            let result = || current().and_then(|old| self.apply(call, kind, old.0));
            self.shown_in_messages(&result, is_secret)
        };
        let invalid = |reason: &str| invalid_result(&shown(), reason);
        let mut new = Object::from_value(value).map_err(|_| invalid("the result is not an object"))?;
        match &self.document {
            // A strategic merge patch is for the type of the URL, whatever type it names.
            Document::Strategic(_) => new.set_type(&old_version, kind.name()),
            _ if kind.is_custom() && new.kind().is_empty() => {
                return Err(invalid(&format!("Object 'Kind' is missing in '{}'", shorten(&shown()))));
            }
            _ if kind.is_custom() => {}
            // kube-apiserver decodes an object without a version as its internal type, which has other field names.
            _ if new.api_version().is_empty() => return Err(call.name_required()),
            _ if new.kind().is_empty() => new.set("kind", kind.name()),
            _ => {}
        }
        if !kind.is_custom() && is_former_version(kind.name(), new.api_version()) {
            new.set("apiVersion", old_version.as_str());
        }
        let is_same_version = new.api_version() == old_version;
        let is_other_version = !is_same_version && kind.conversion_webhook().is_none();
        let version =
            is_other_version.then(|| call.kinds.registry.version_of(kind, new.api_version())).flatten();
        check_type(call, kind, &new, is_same_version || version.is_some(), &invalid)?;
        let version = version.map_or(kind, |version| &**version);
        let invalid_type = |error: TypeError| type_error_status(&error, invalid);
        let conformance = version.conform_body(&mut new, &call.api_state.names).map_err(invalid_type)?;
        let strict_is_invalid = call.api_state.names.behaviour.strict_patch_is_invalid;
        // Unknown and duplicate fields return 422 or 400, by the preset: see requirements, appendix (g) 23.
        let reject = |reason: String| {
            if strict_is_invalid { invalid(&reason) } else { Status::bad_request(reason) }
        };
        let names = &call.api_state.names;
        let unknown = conformance.unknown.iter().map(|path| unknown_text(path, names));
        let strict_errors = self.strict_errors.iter().cloned().chain(unknown).collect();
        let warnings = validation.report_texts(strict_errors, reject)?;
        version.to_stored(&mut new, &call.api_state.names).map_err(invalid_type)?;
        if kind.is_custom() && !is_same_version {
            kind.repair(&mut new);
        }
        Ok((new, warnings))
    }

    /// The value that messages about an invalid result show: a strategic merge patch, or the result of another patch.
    ///
    /// Those of a Secret are redacted, because Statuses are written to the audit log.
    fn shown_in_messages(&self, result: &dyn Fn() -> Result<Value, Status>, is_secret: bool) -> String {
        match &self.document {
            _ if is_secret => REDACTED.to_owned(),
            Document::Strategic(patch) => format_go_fields(patch),
            _ => result().map(|result| codec::json::to_text(&result)).unwrap_or_default(),
        }
    }
}

/// Rejects a patch that changes the kind of an object, or sets an unknown version.
///
/// The errors are those of kube-apiserver.
fn check_type(
    call: &Call<'_>,
    kind: &Kind,
    new: &Object,
    has_known_version: bool,
    invalid: &dyn Fn(&str) -> Status,
) -> Result<(), Status> {
    let (expected_kind, new_kind, new_version) = (kind.name(), new.kind(), new.api_version());
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
    Err(invalid(&reason))
}

/// Whether a version is a former version of a built-in workload kind with the fields of the present version.
///
/// kube-apiserver does not serve these versions, but decodes the result of a patch in them.
fn is_former_version(kind: &str, api_version: &str) -> bool {
    match api_version {
        "extensions/v1beta1" => matches!(kind, "DaemonSet" | "Deployment" | "ReplicaSet"),
        "apps/v1beta1" => matches!(kind, "ControllerRevision" | "Deployment" | "StatefulSet"),
        "apps/v1beta2" => {
            matches!(kind, "ControllerRevision" | "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet")
        }
        _ => false,
    }
}

/// Returns 422 for a result that is not of the kind, with the field `patch`, as in kube-apiserver.
fn invalid_result(shown: &str, reason: &str) -> Status {
    let no_kind = GroupKind { group: String::new(), kind: String::new() };
    Status::invalid(&no_kind, "", &[FieldError::invalid(&FieldPath::new("patch"), shown, reason)])
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
        // An error without a type, as in kube-apiserver.
        strategic::Error::Unmergeable(_) => Status::failure(Reason::Unknown, text),
        strategic::Error::Rejected(_) => {
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
        let (served, names) = (&call.collection.kind, &call.api_state.names);
        let propose = |old: &Object| {
            let current = || {
                let mut current = old.clone();
                served.represent(&mut current, names).map_err(Status::internal)?;
                Ok(current)
            };
            let (mut new, warnings) = patch.change(call, served, &current, options.field_validation)?;
            resolve_namespace(call, &mut new)?;
            call.check_name(&new)?;
            Ok(ProposedObject { object: new, warnings, has_managed_fields: false })
        };
        let not_found = || Status::not_found(&served.group_resource, call.name);
        call.modify(options, propose).await?.ok_or_else(not_found)
    })
}
