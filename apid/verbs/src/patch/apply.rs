//! Server-side apply: merges the intent of a field manager into the current object.
//!
//! # Contract
//!
//! [`ApplyIntent::read`] reads the body. [`apply`] applies it inside the compare-and-swap loop, or creates a
//! missing object if the user may also create.
//!
//! # Reference
//!
//! Requirements D-SSA and appendix (g) 24, 25: kube-apiserver returns 500 for a body that does not fit its
//! type, whatever `fieldValidation` says. With the names preset `svc`, undeclared fields follow
//! `fieldValidation`, and other mismatches return 400.

use apimachinery::codec::{self, Decoded, Limits};
use apimachinery::field::{ERRORS_MAX, shorten};
use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use apply::server_side::{Apply, ApplyError, LastApplied, conflict_status};
use apply::typed::{TypingError, drop_undeclared};
use kinds::{Kind, KindSchema};

use super::super::create::{insert, resolve_namespace};
use super::super::decode::{decode_error_status, type_error_status};
use super::super::options::{FieldValidation, WriteOptions, yaml_errors};
use super::super::ownership::{Ownership, ProposedObject};
use super::super::update::uid_conflict;
use super::super::{Call, WriteResult};

/// kubectl: its default field manager for apply, and the domain of its annotations.
const KUBECTL: &str = "kubectl";

/// The body of an apply request.
#[derive(Clone, Debug)]
pub(super) struct ApplyIntent {
    object: Object,
    /// Messages about duplicate keys.
    duplicate_keys: Vec<String>,
    /// The decode limits of the body and of the result.
    pub(super) limits: Limits,
}

impl ApplyIntent {
    /// Reads the body as YAML, which includes JSON.
    ///
    /// # Errors
    ///
    /// 400: malformed, or not an object. 413: over the decode limits.
    pub(super) fn read(bytes: &[u8], limits: Limits) -> Result<Self, Status> {
        let decoding_error = |reason: &str| Status::bad_request(format!("error decoding YAML: {reason}"));
        let json = bytes.trim_ascii_start().starts_with(b"{").then(|| codec::json::decode(bytes, limits));
        let Decoded { mut value, duplicates } = match json {
            Some(Ok(decoded)) => decoded,
            Some(Err(error)) if error.exceeds_budget() => {
                return Err(decode_error_status(&error, decoding_error));
            }
            _ => codec::yaml::decode(bytes, limits)
                .map_err(|error| decode_error_status(&error, decoding_error))?,
        };
        codec::json::normalize_numbers(&mut value);
        let object = match value {
            Value::Null => Object::default(),
            value => Object::from_value(value).map_err(|_| decoding_error("the body is not an object"))?,
        };
        let duplicate_keys =
            if duplicates.is_empty() { Vec::new() } else { codec::yaml::duplicate_keys(bytes, limits) };
        Ok(ApplyIntent { object, duplicate_keys, limits })
    }

    /// Returns 400 for a type other than that of the URL.
    pub(super) fn check_type(&self, kind: &str, api_version: &str) -> Result<(), Status> {
        let (sent_kind, sent_version) = (self.object.kind(), self.object.api_version());
        if (sent_kind, sent_version) == (kind, api_version) {
            return Ok(());
        }
        Err(Status::bad_request(format!("invalid object type: {}", type_name(sent_version, sent_kind))))
    }

    /// Returns the object with stored names, and warnings about duplicate keys and undeclared fields.
    ///
    /// If undeclared fields make the apply fail, as the names preset decides, they cause no warning.
    pub(super) fn validate(
        self,
        call: &Call<'_>,
        resource: &Kind,
        schema: &KindSchema,
        validation: FieldValidation,
    ) -> Result<(Object, Vec<String>), Status> {
        let mut object = self.object;
        let names = &call.api_state.names;
        let translation = resource.translation(names);
        if let Some(translation) = translation {
            translation.translate_request(&mut object, names);
        }
        let undeclared = if call.api_state.names.behaviour.undeclared_field_fails_apply {
            Vec::new()
        } else {
            let mut undeclared = drop_undeclared(&schema.merge(), &mut object.0);
            if let Some(translation) = translation {
                undeclared.iter_mut().for_each(|path| *path = translation.translate_message(path, names));
            }
            undeclared
        };
        if validation == FieldValidation::Strict && !self.duplicate_keys.is_empty() {
            let errors = yaml_errors(&self.duplicate_keys);
            let text = format!("error strict decoding YAML: error converting YAML to JSON: {errors}");
            return Err(Status::bad_request(text));
        }
        let warnings =
            validation.report_yaml(&self.duplicate_keys, &undeclared, names, Status::bad_request)?;
        Ok((object, warnings))
    }
}

/// Applies an intent to the current object, or creates the object.
///
/// # Errors
///
/// 400 for a malformed body, 403, 404 for a subresource of a missing object, 422 for an invalid result. 409
/// for a conflict with other field managers, or for a stale resourceVersion or another uid.
pub(super) async fn apply(
    call: &Call<'_>,
    intent: ApplyIntent,
    options: &WriteOptions,
) -> Result<WriteResult, Status> {
    let (served, names) = (&call.collection.kind, &call.api_state.names);
    let (ownership, schema) = (Ownership::for_call(call, options), &served.schema);
    let write = ownership.write();
    intent.check_type(served.name(), write.api_version)?;
    let translation = served.translation(names);
    let to_stored = |object: &mut Object| {
        translation.into_iter().for_each(|translation| translation.translate_request(object, names));
    };
    let to_served = |object: &mut Object| {
        translation.into_iter().for_each(|translation| translation.translate_response(object, names));
    };
    let limits = intent.limits;
    let (patch, warnings) = intent.validate(call, served, schema, options.field_validation)?;
    let annotation = names.label_sub_key(KUBECTL, "last-applied-configuration");
    let last_applied = Some(LastApplied {
        annotation: &annotation,
        manager: KUBECTL,
        to_stored: &to_stored,
        to_served: &to_served,
    });
    let apply = Apply { write, force: options.force, last_applied };
    let apply_to = |live: &Object| {
        let applied = apply.run(live, &patch).map_err(|mut error| {
            if let (Some(translation), ApplyError::Typing(errors)) = (translation, &mut error) {
                errors.iter_mut().for_each(|error| {
                    error.path = translation.translate_message(&error.path, names);
                });
            }
            apply_error_status(call, &patch, error)
        });
        let mut object = applied?.object;
        check_result(&object, limits)?;
        let stored = schema.conform_applied(&mut object).and_then(|_| served.to_stored(&mut object, names));
        stored.map_err(|error| {
            type_error_status(&error, |reason| type_mismatch_status(call, &patch, reason))
        })?;
        resolve_namespace(call, &mut object)?;
        call.check_name(&object)?;
        Ok(ProposedObject { object, warnings: warnings.clone(), has_managed_fields: true })
    };
    let apply_converted = |old: &Object| {
        if !served.is_converted() {
            return apply_to(old);
        }
        let mut live = old.clone();
        served.convert_from_storage(&mut live, names).map_err(Status::internal)?;
        apply_to(&live)
    };
    // Retry once if another request creates the object between `modify`, which misses it, and `insert`.
    let mut is_retry = false;
    loop {
        let result = call.modify(options, &apply_converted).await;
        if ownership.convert_missing().await {
            continue;
        }
        if let Some(written) = result? {
            return Ok(written);
        }
        if !call.subresource.is_empty() {
            break;
        }
        let proposed = apply_to(ownership.empty());
        if ownership.convert_missing().await {
            continue;
        }
        let proposed = proposed?;
        if !proposed.object.uid().is_empty() {
            return Err(uid_conflict(call, proposed.object.uid(), ""));
        }
        call.authorize_verb("create").await?;
        match insert(call, proposed, options).await {
            Err(status) if status.reason == Reason::AlreadyExists && !is_retry => is_retry = true,
            Err(status) if status.reason == Reason::AlreadyExists => break,
            result => return result,
        }
    }
    Err(Status::not_found(&served.group_resource, call.name))
}

/// Returns the Status of a failed apply.
pub(super) fn apply_error_status(call: &Call<'_>, patch: &Object, error: ApplyError) -> Status {
    let behaviour = &call.api_state.names.behaviour;
    match error {
        ApplyError::Conflicts(conflicts) => conflict_status(&conflicts),
        ApplyError::ManagedFields => Status::bad_request(error.to_string()),
        ApplyError::Ownership(_) => Status::internal(error),
        ApplyError::Typing(errors) => {
            let is_duplicate_item = errors.iter().all(TypingError::is_duplicate);
            let is_internal = if is_duplicate_item {
                behaviour.duplicate_item_under_apply_is_internal
            } else {
                behaviour.undeclared_field_fails_apply
            };
            let mut text: Vec<String> = errors.iter().take(ERRORS_MAX).map(ToString::to_string).collect();
            if errors.len() > ERRORS_MAX {
                text.push("and more".to_owned());
            }
            mistyped_patch_status(patch, &text.join("\n"), is_internal)
        }
    }
}

/// Returns 413 when the result of an apply exceeds the decode limits.
pub(super) fn check_result(object: &Object, limits: Limits) -> Result<(), Status> {
    let result = limits.check_map(&object.0);
    result.map_err(|error| decode_error_status(&error, |reason| Status::bad_request(reason)))
}

/// Returns the Status for an apply whose result has a value that does not fit the type of its field.
pub(super) fn type_mismatch_status(call: &Call<'_>, patch: &Object, reason: &str) -> Status {
    mistyped_patch_status(patch, reason, call.api_state.names.behaviour.undeclared_field_fails_apply)
}

fn mistyped_patch_status(patch: &Object, reason: &str, is_internal: bool) -> Status {
    let text = format!(
        "failed to create typed patch object ({}/{}; {}): {reason}",
        shorten(patch.namespace()),
        shorten(patch.name()),
        type_name(patch.api_version(), patch.kind())
    );
    if is_internal { Status::failure(Reason::Unknown, text) } else { Status::bad_request(text) }
}

/// Formats a type as `/v1, Kind=ConfigMap`; an empty group keeps its slash.
fn type_name(api_version: &str, kind: &str) -> String {
    let slash = if api_version.contains('/') || api_version.is_empty() { "" } else { "/" };
    format!("{slash}{}, Kind={}", shorten(api_version), shorten(kind))
}
