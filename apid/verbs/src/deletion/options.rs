//! The options of delete and deletecollection, and their validation.

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::Names;
use apimachinery::status::Status;
use serde_json::Value;

use crate::options::{dry_run, options_object, reject_if_any};

/// Propagation policy: what happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector removes the owner reference from the dependents, which stay.
    Orphan,
    /// The garbage collector deletes the dependents after the owner.
    Background,
    /// The garbage collector deletes the dependents before the owner.
    Foreground,
}

impl Propagation {
    const ALL: [Propagation; 3] = [Propagation::Foreground, Propagation::Background, Propagation::Orphan];

    /// The value of `propagationPolicy`.
    pub fn as_str(self) -> &'static str {
        match self {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        }
    }
}

/// Preconditions of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Required uid.
    pub uid: Option<String>,
    /// Required resourceVersion.
    pub resource_version: Option<String>,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Whether the delete is a dry run, which stores nothing.
    pub dry_run: bool,
    /// Grace period in seconds. Only kinds with graceful deletion use it.
    pub grace_period_seconds: Option<i64>,
    /// Propagation policy. None selects that of the object's finalizers or of its kind.
    pub propagation: Option<Propagation>,
    /// Deprecated form of the propagation policy; excludes `propagation`.
    ///
    /// True orphans the dependents, false deletes them in the background.
    pub orphan_dependents: Option<bool>,
    /// Preconditions on the object.
    pub preconditions: Preconditions,
    /// Whether to delete the object even if it cannot be decoded.
    pub ignore_store_read_error: bool,
}

impl DeleteOptions {
    /// Returns options that delete an object only while the object has this resourceVersion.
    pub fn if_unchanged(resource_version: impl Into<String>) -> Self {
        let preconditions = Preconditions { uid: None, resource_version: Some(resource_version.into()) };
        DeleteOptions { preconditions, ..DeleteOptions::default() }
    }

    /// The options as an object.
    pub fn to_value(&self, names: &Names) -> Value {
        let mut out = options_object("DeleteOptions", names, self.dry_run);
        let Preconditions { uid, resource_version } = &self.preconditions;
        let conditions = [("uid", uid), ("resourceVersion", resource_version)];
        let conditions: serde_json::Map<String, Value> = conditions
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value.as_deref()?.into())))
            .collect();
        let optional_fields = [
            ("gracePeriodSeconds", self.grace_period_seconds.map(Value::from)),
            ("preconditions", (!conditions.is_empty()).then_some(Value::Object(conditions))),
            (IGNORE_STORE_READ_ERROR, self.ignore_store_read_error.then_some(Value::Bool(true))),
            ("orphanDependents", self.orphan_dependents.map(Value::from)),
            ("propagationPolicy", self.propagation.map(|propagation| propagation.as_str().into())),
        ];
        out.extend(optional_fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        Value::Object(out)
    }

    /// Whether the options specify a propagation policy.
    pub fn has_propagation(&self) -> bool {
        self.propagation.is_some() || self.orphan_dependents.is_some()
    }
}

/// Delete options as sent by the client.
#[derive(Clone, Debug, Default)]
pub struct RawDeleteOptions {
    /// All values of `dryRun`.
    pub dry_run: Vec<String>,
    /// `gracePeriodSeconds`.
    pub grace_period_seconds: Option<i64>,
    /// `propagationPolicy`.
    pub propagation_policy: Option<String>,
    /// `orphanDependents`.
    pub orphan_dependents: Option<bool>,
    /// `preconditions`.
    pub preconditions: Option<Preconditions>,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`.
    pub ignore_store_read_error: Option<bool>,
}

/// Name of the option that deletes objects which cannot be decoded.
pub const IGNORE_STORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

impl RawDeleteOptions {
    /// Validates the options.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each invalid option (requirements D-DELOPT).
    pub fn validate(self, names: &Names) -> Result<DeleteOptions, Status> {
        let mut errors = Vec::new();
        let propagation = self.propagation(&mut errors);
        let dry_run = dry_run(&self.dry_run, &mut errors);
        if self.ignore_store_read_error == Some(true) {
            self.reject_options_beside_ignore(&mut errors);
        }
        reject_if_any("DeleteOptions", names, &errors)?;
        Ok(DeleteOptions {
            dry_run,
            grace_period_seconds: self.grace_period_seconds,
            propagation,
            orphan_dependents: self.orphan_dependents,
            preconditions: self.preconditions.unwrap_or_default(),
            ignore_store_read_error: self.ignore_store_read_error.unwrap_or(false),
        })
    }

    fn propagation(&self, errors: &mut Vec<FieldError>) -> Option<Propagation> {
        let text = self.propagation_policy.as_deref()?;
        let path = FieldPath::new("propagationPolicy");
        if self.orphan_dependents.is_some() {
            let detail = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(&path, text, detail));
        }
        let found = Propagation::ALL.into_iter().find(|propagation| propagation.as_str() == text);
        if found.is_none() {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            errors.push(FieldError::not_supported(&path, text, &supported));
        }
        found
    }

    /// Rejects options that need the decoded object, which an unreadable object does not have.
    fn reject_options_beside_ignore(&self, errors: &mut Vec<FieldError>) {
        let path = FieldPath::new(IGNORE_STORE_READ_ERROR);
        for (option, is_set) in [
            ("dryRun", self.dry_run.iter().any(|value| !value.is_empty())),
            ("propagationPolicy", self.propagation_policy.is_some()),
            ("orphanDependents", self.orphan_dependents.is_some()),
            ("gracePeriodSeconds", self.grace_period_seconds.is_some()),
            ("preconditions", self.preconditions.is_some()),
        ] {
            if is_set {
                let detail = format!("cannot be set together with .{option}");
                errors.push(FieldError::invalid(&path, true, &detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    fn check(raw: RawDeleteOptions) -> Result<DeleteOptions, Vec<String>> {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        raw.validate(&names).map_err(|status| {
            assert_eq!(status.code, 422);
            status.details.unwrap().causes.into_iter().map(|cause| cause.message).collect()
        })
    }

    #[test]
    fn propagation_policy_is_validated_and_excludes_orphan_dependents() {
        let raw_options = |policy: Option<&str>, orphan| RawDeleteOptions {
            propagation_policy: policy.map(str::to_owned),
            orphan_dependents: orphan,
            ..RawDeleteOptions::default()
        };
        for (policy, orphan, want) in [
            (None, None, Ok(None)),
            (Some("Orphan"), None, Ok(Some(Propagation::Orphan))),
            (Some("Background"), None, Ok(Some(Propagation::Background))),
            (Some("Foreground"), None, Ok(Some(Propagation::Foreground))),
            (None, Some(true), Ok(None)),
            (None, Some(false), Ok(None)),
            (Some("Orphan"), Some(true), Err(1)),
            (Some("foreground"), None, Err(1)),
            (Some(""), None, Err(1)),
            (Some("Sideways"), Some(false), Err(2)),
        ] {
            let got =
                check(raw_options(policy, orphan)).map(|options| options.propagation).map_err(|e| e.len());
            assert_eq!(got, want, "{policy:?} {orphan:?}");
        }
    }

    #[test]
    fn ignore_store_read_error_excludes_other_delete_options() {
        let ignore =
            || RawDeleteOptions { ignore_store_read_error: Some(true), ..RawDeleteOptions::default() };
        let alone = DeleteOptions { ignore_store_read_error: true, ..DeleteOptions::default() };
        assert_eq!(check(ignore()), Ok(alone));
        for (option, raw) in [
            ("dryRun", RawDeleteOptions { dry_run: vec!["All".into()], ..ignore() }),
            ("propagationPolicy", RawDeleteOptions { propagation_policy: Some("Orphan".into()), ..ignore() }),
            ("orphanDependents", RawDeleteOptions { orphan_dependents: Some(true), ..ignore() }),
            ("gracePeriodSeconds", RawDeleteOptions { grace_period_seconds: Some(0), ..ignore() }),
            ("preconditions", RawDeleteOptions { preconditions: Some(Preconditions::default()), ..ignore() }),
        ] {
            let off = RawDeleteOptions { ignore_store_read_error: Some(false), ..raw.clone() };
            assert!(check(off).is_ok(), "{option}");
            let want = format!("Invalid value: true: cannot be set together with .{option}");
            assert_eq!(check(raw), Err(vec![want]), "{option}");
        }
    }

    #[test]
    fn delete_options_convert_to_object_with_given_fields() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let options = DeleteOptions {
            dry_run: true,
            grace_period_seconds: Some(3),
            propagation: Some(Propagation::Foreground),
            orphan_dependents: None,
            preconditions: Preconditions { uid: Some("u".into()), resource_version: None },
            ignore_store_read_error: false,
        };
        let want = json!({
            "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "gracePeriodSeconds": 3,
            "propagationPolicy": "Foreground", "preconditions": {"uid": "u"},
        });
        assert_eq!(options.to_value(&names), want);
    }
}
