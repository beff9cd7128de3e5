//! The steps that bring an object from a request body to its stored form, and from there to a response.
//!
//! # Contract
//!
//! The code of the verbs calls the methods in this order:
//!
//! 1. [`Kind::conform`] checks types (400), drops unknown fields and creates the stored form, and
//!    [`Kind::to_stored`] converts an object of another version to the storage version;
//! 2. [`Kind::default`];
//! 3. [`Kind::prepare_create`] or [`Kind::prepare_update`];
//! 4. admission, then [`Kind::canonicalize`];
//! 5. [`Kind::validate_create`] or [`Kind::validate_update`] (422).
//!
//! Each step applies the [`WriteRules`](crate::WriteRules) and the [`Strategy`](crate::Strategy) of the kind.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use schema::{ConformReport, TypeError};
use serde_json::Value;

use crate::{Context, Generation, Kind, NameRule, metadata, status};

impl Kind {
    /// Converts an object of this version, in stored form, to the storage version.
    ///
    /// # Errors
    ///
    /// A converted field does not conform to the schema of the storage version.
    pub fn to_stored(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        let Some(stored) = self.converted_from() else { return Ok(()) };
        if let Some(conversion) = self.conversion() {
            conversion.to_stored(object, names);
        }
        object.set_type(&stored.api_version(), stored.name());
        stored.conform(object).map(drop)
    }

    /// Converts a stored object to this version.
    ///
    /// # Errors
    ///
    /// This version cannot represent the object: the store is corrupt.
    pub fn convert_from_storage(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        if !self.is_converted() {
            return Ok(());
        }
        if let Some(conversion) = self.conversion() {
            conversion.convert_from_storage(object, names);
        }
        object.set_type(&self.api_version(), self.name());
        self.conform(object).map(drop)
    }

    /// Whether responses contain stored objects without conversion and translation.
    pub fn is_sent_as_stored(&self, names: &Names) -> bool {
        !self.is_converted() && self.translation(names).is_none()
    }

    /// Converts a stored object to this version, and translates field names to those of the names preset.
    ///
    /// # Errors
    ///
    /// See [`Kind::convert_from_storage`].
    pub fn represent(&self, object: &mut Object, names: &Names) -> Result<(), TypeError> {
        self.convert_from_storage(object, names)?;
        if let Some(translation) = self.translation(names) {
            translation.translate_response(object, names);
        }
        Ok(())
    }

    /// Translates a decoded body to the stored field names, and then does the same as [`Kind::conform`].
    /// The report and the error contain the field names of the body.
    ///
    /// # Errors
    ///
    /// See [`Kind::conform`].
    pub fn conform_body(&self, object: &mut Object, names: &Names) -> Result<ConformReport, TypeError> {
        let Some(translation) = self.translation(names) else { return self.conform(object) };
        translation.translate_request(object, names);
        let translate = |text: &String| translation.translate_message(text, names);
        match self.conform(object) {
            Ok(report) => Ok(ConformReport { unknown: report.unknown.iter().map(translate).collect() }),
            Err(error) => {
                Err(TypeError { path: translate(&error.path), message: translate(&error.message), ..error })
            }
        }
    }

    /// Brings an object from the store into the form of the current schema of a custom kind, which may be newer
    /// than the object. An object in another version stays unchanged if the kind has a conversion webhook, and
    /// otherwise gets no defaults, as in kube-apiserver.
    pub fn refresh(&self, object: &mut Object) {
        let Some(schema) = self.schema.definition() else { return };
        if object.api_version() == self.api_version() {
            schema.refresh(object);
        } else if self.conversion_webhook().is_none() {
            self.repair(object);
        }
    }

    /// Brings an object of another version of a custom kind into the form of this version, without defaults.
    pub fn repair(&self, object: &mut Object) {
        if let Some(schema) = self.schema.definition() {
            object.set_type(&self.api_version(), self.name());
            schema.repair(object);
        }
    }

    /// Returns the Status with code 422 for a custom object of another kind. As in kube-apiserver, the Status
    /// is about an object of the kind `found`.
    pub fn invalid_kind(&self, name: &str, found: &str) -> Status {
        let expected = format!("must be {}", self.name());
        let error = FieldError::invalid(&FieldPath::new("kind"), found, &expected);
        let kind = GroupKind { kind: found.to_owned(), ..self.group_kind.clone() };
        Status::invalid(&kind, name, &[error])
    }

    /// Checks types, drops unknown fields and normalizes a decoded body to the stored form.
    ///
    /// # Errors
    ///
    /// A value has a wrong type, or an annotation is malformed that kube-apiserver converts to a field (400).
    pub fn conform(&self, object: &mut Object) -> Result<ConformReport, TypeError> {
        let report = self.schema.conform(object)?;
        match self.strategy().malformed_annotation(object) {
            Some(message) => Err(TypeError::new("metadata.annotations", message)),
            None => Ok(report),
        }
    }

    /// Sets the default values of the kind.
    pub fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        self.strategy().default(object, ctx);
    }

    /// Sets server-owned fields of a new object and removes fields that clients may not set.
    /// Generates a missing name first, because labels of some kinds contain the name.
    pub fn prepare_create(&self, object: &mut Object, namespace: &str, ctx: &Context<'_>) {
        self.prepare_create_with_uid(object, namespace, &ctx.rng.uuid(), ctx);
    }

    /// As [`Kind::prepare_create`], for an object that has this uid already: labels of some kinds contain
    /// the uid.
    pub fn prepare_create_with_uid(
        &self,
        object: &mut Object,
        namespace: &str,
        uid: &str,
        ctx: &Context<'_>,
    ) {
        let namespace = if self.namespaced { namespace } else { "" };
        metadata::prepare_create(object, namespace, uid, ctx);
        if object.name().is_empty() {
            metadata::generate_name(object, ctx.rng);
        }
        match self.rules.generation {
            Generation::None => {}
            Generation::Fixed | Generation::Counted(_) | Generation::CountedOutsideMetadata => {
                object.set_meta("generation", 1);
            }
        }
        status::prepare_create(self, object);
        self.strategy().prepare_create(object, ctx);
    }

    /// Restores immutable fields from the stored object and maintains the generation.
    pub fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        metadata::prepare_update(new, old);
        status::prepare_update(self, new, old, ctx.subresource);
        self.strategy().prepare_update(new, old, ctx);
        if self.rules.generation == Generation::CountedOutsideMetadata
            && (!has_same_spec(new, old) || (!self.has_status() && new.get("status") != old.get("status")))
        {
            new.set_meta("generation", old.generation() + 1);
        }
        // A status update does not change the generation.
        if let Generation::Counted(metadata) = self.rules.generation
            && ctx.subresource != "status"
        {
            let differs = |field: &&str| metadata_field(new, field) != metadata_field(old, field);
            if !has_same_spec(new, old) || metadata.iter().any(differs) {
                new.set_meta("generation", old.generation() + 1);
            }
        }
    }

    /// Completes a new object after mutating admission; see [`crate::Strategy::complete_new`]. Returns warnings.
    pub fn complete_new(&self, object: &mut Object, ctx: &Context<'_>) -> Vec<String> {
        self.strategy().complete_new(object, ctx)
    }

    /// Sets fields that follow from other fields, after admission; see [`crate::Strategy::canonicalize`].
    pub fn canonicalize(&self, object: &mut Object, ctx: &Context<'_>) {
        self.strategy().canonicalize(object, ctx);
    }

    /// Validates a new object in the storage version. A non-storage version of a built-in kind may add rules;
    /// an object of a custom kind follows the schema of the written version.
    pub fn validate_create(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let errors = self.validate_new(object, ctx);
        let rules = self.stored().rules;
        // The general rules require that the name is a path segment. A name that satisfies the name rule of
        // its kind is always a path segment.
        let includes_general_rules =
            rules.metadata_checks.on_creation && rules.name_rule != NameRule::ByStrategy;
        if errors.is_empty() && !includes_general_rules {
            return metadata::validate(object, self.general_rules());
        }
        errors
    }

    /// Validates a new object with the rules of its kind, without the general rules of metadata.
    fn validate_new(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let strategy = self.strategy();
        if let Some(stored) = self.converted_from() {
            let mut errors = strategy.errors_of_version(stored.validate_new(object, ctx));
            errors.extend(strategy.validate(object, ctx));
            return errors;
        }
        let mut errors = match self.rules.metadata_checks.on_creation {
            true => metadata::validate(object, self.kind_rules(ctx)),
            false => FieldErrors::new(),
        };
        errors.extend(strategy.validate(object, ctx));
        errors
    }

    /// Validates an update; both objects are in the storage version.
    pub fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let strategy = self.strategy();
        if let Some(stored) = self.converted_from() {
            let mut errors = strategy.errors_of_version(stored.validate_update(new, old, ctx));
            errors.extend(strategy.validate_update(new, old, ctx));
            return errors;
        }
        let mut errors = metadata::validate(new, self.general_rules());
        errors.extend(metadata::validate_update(new, old));
        let checks = self.rules.metadata_checks;
        if checks.changes.includes(ctx.subresource) {
            errors.extend(metadata::validate_update(new, old));
            if let Some(standard) = self.kind_rules(ctx).standard_finalizers {
                errors.extend(metadata::validate_standard_finalizers(new, standard));
            }
        }
        if checks.all.includes(ctx.subresource) {
            errors.extend(metadata::validate(new, self.kind_rules(ctx)));
        }
        errors.extend(strategy.validate_update(new, old, ctx));
        if self.rules.revalidation.includes(ctx.subresource) {
            errors.extend(strategy.validate(new, ctx));
        }
        errors
    }

    /// Validates an object in the storage version against the validation tags of its type. None if only
    /// hand-written rules validate the kind, or writes to this subresource.
    pub fn validate_tags(&self, object: &Object, ctx: &Context<'_>) -> Option<FieldErrors> {
        let stored = self.stored();
        let is_tagged = stored.rules.has_validation_tags && ctx.subresource.is_empty();
        Some(stored.schema.table_type().filter(|_| is_tagged)?.validate_tags(object))
    }

    /// Warnings for the client that wrote the object.
    pub fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let unenforced = self.unenforced.map(|kind| kind.warning.to_owned());
        let mut warnings: Vec<String> = unenforced.into_iter().collect();
        warnings.extend(self.strategy().warnings(new, old, ctx));
        warnings
    }

    fn general_rules(&self) -> metadata::Rules<'static> {
        metadata::Rules {
            name: NameRule::PathSegment,
            namespaced: self.namespaced,
            standard_finalizers: None,
        }
    }

    fn kind_rules(&self, ctx: &Context<'_>) -> metadata::Rules<'static> {
        let rules = self.rules;
        let standard = metadata::standard_finalizers(ctx.names);
        metadata::Rules {
            name: rules.name_rule,
            namespaced: self.namespaced,
            standard_finalizers: rules.restricts_finalizers.then_some(standard),
        }
    }
}

/// A field of the metadata; None if absent or empty.
fn metadata_field<'a>(object: &'a Object, field: &str) -> Option<&'a Value> {
    let value = object.meta().and_then(|metadata| metadata.get(field));
    value.filter(|value| !matches!(value, Value::Object(map) if map.is_empty()))
}

/// Whether two objects are equal outside `kind`, `apiVersion`, `metadata` and `status`.
fn has_same_spec(a: &Object, b: &Object) -> bool {
    let count_fields = |object: &'_ Object| {
        object
            .0
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status" | "kind" | "apiVersion"))
            .count()
    };
    count_fields(a) == count_fields(b)
        && a.0.iter().all(|(key, value)| {
            matches!(key.as_str(), "metadata" | "status" | "kind" | "apiVersion") || b.get(key) == Some(value)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_increments_on_changes_outside_metadata_and_status() {
        let object = |value| Object::from_value(value).unwrap();
        let base =
            object(serde_json::json!({"metadata": {"name": "a"}, "spec": {"x": 1}, "status": {"y": 1}}));
        for (other, same) in [
            (serde_json::json!({"metadata": {}, "spec": {"x": 1}}), true),
            (serde_json::json!({"spec": {"x": 2}, "status": {"y": 1}}), false),
            (serde_json::json!({"spec": {"x": 1}, "data": {}}), false),
            (serde_json::json!({"data": {}}), false),
        ] {
            assert_eq!(has_same_spec(&base, &object(other.clone())), same, "{other}");
        }
    }
}
