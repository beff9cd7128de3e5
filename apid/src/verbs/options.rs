//! The options of verbs, typed, and what must hold of them.
//!
//! `http::params` reads them from queries and bodies; the loops of the process and authd's writes make them directly.

use std::time::Duration;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::names::Names;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use serde_json::{Map, Value, json};

/// What to do with fields that the schema does not know and with keys that come twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    /// Refuse the body.
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Do everything but store.
    pub dry_run: bool,
    /// What to do with unknown fields.
    pub field_validation: FieldValidation,
    /// Who manages the fields written.
    pub field_manager: String,
}

impl WriteOptions {
    /// As an object of this kind: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    pub fn to_value(&self, kind: &str, names: &Names) -> Value {
        let mut out = options_object(kind, names, self.dry_run);
        if !self.field_manager.is_empty() {
            out.insert("fieldManager".into(), self.field_manager.as_str().into());
        }
        Value::Object(out)
    }
}

impl DeleteOptions {
    /// As an object.
    pub fn to_value(&self, names: &Names) -> Value {
        let mut out = options_object("DeleteOptions", names, self.dry_run);
        if let Some(seconds) = self.grace_period_seconds {
            out.insert("gracePeriodSeconds".into(), seconds.into());
        }
        if let Some(policy) = &self.propagation_policy {
            out.insert("propagationPolicy".into(), policy.as_str().into());
        }
        Value::Object(out)
    }
}

fn options_object(kind: &str, names: &Names, dry_run: bool) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("kind".into(), kind.into());
    out.insert("apiVersion".into(), format!("{}/v1", names.meta_group()).into());
    if dry_run {
        out.insert("dryRun".into(), json!(["All"]));
    }
    out
}

/// Conditions on the object that a delete finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// It has this uid.
    pub uid: Option<String>,
    /// It is at this version.
    pub resource_version: Option<String>,
}

/// Options of delete and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Do everything but delete.
    pub dry_run: bool,
    /// Seconds that the object has to end. Only kinds with graceful deletion look at it.
    pub grace_period_seconds: Option<i64>,
    /// What becomes of dependents: `Orphan`, `Background`, `Foreground`. Checked and kept for admission; nothing collects
    /// dependents yet, so that each of them leaves dependents alone.
    pub propagation_policy: Option<String>,
    /// The older way to say it.
    pub orphan_dependents: Option<bool>,
    /// What must hold of the object.
    pub preconditions: Preconditions,
}

/// The fields of write options as a client wrote them.
#[derive(Clone, Debug, Default)]
pub struct RawWriteOptions {
    /// All values of `dryRun`.
    pub dry_run: Vec<String>,
    /// `fieldValidation`.
    pub field_validation: String,
    /// `fieldManager`.
    pub field_manager: String,
    /// `force`; only patches have it, and only apply may set it.
    pub force: Option<bool>,
}

impl RawWriteOptions {
    /// Checks them. `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each field (requirements D-QP-30, -34, -37, -41).
    pub fn validate(&self, kind: &str, names: &Names) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if self.force.is_some() {
            errors.push(FieldError::forbidden(
                &FieldPath::new("force"),
                "may not be specified for non-apply patch",
            ));
        }
        let manager = FieldPath::new("fieldManager");
        if self.field_manager.len() > 128 {
            errors.push(FieldError::too_long(&manager, 128));
        }
        if self.field_manager.chars().any(char::is_control) {
            errors.push(FieldError::invalid(
                &manager,
                self.field_manager.as_str(),
                "should only contain printable characters",
            ));
        }
        let dry_run = dry_run(&self.dry_run, &mut errors);
        let field_validation = match self.field_validation.as_str() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let path = FieldPath::new("fieldValidation");
                errors.push(FieldError::not_supported(&path, other, &["", "Ignore", "Strict", "Warn"]));
                FieldValidation::Warn
            }
        };
        refuse(kind, names, &errors)?;
        Ok(WriteOptions { dry_run, field_validation, field_manager: self.field_manager.clone() })
    }
}

/// The fields of delete options as a client wrote them.
#[derive(Clone, Debug, Default)]
pub struct RawDeleteOptions {
    /// All values of `dryRun`.
    pub dry_run: Vec<String>,
    /// The options.
    pub options: DeleteOptions,
}

impl RawDeleteOptions {
    /// Checks them.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each field (requirements D-DELOPT).
    pub fn validate(self, names: &Names) -> Result<DeleteOptions, Status> {
        let mut errors = Vec::new();
        let policy = FieldPath::new("propagationPolicy");
        if let Some(value) = &self.options.propagation_policy {
            if self.options.orphan_dependents.is_some() {
                errors.push(FieldError::invalid(
                    &policy,
                    value.as_str(),
                    "orphanDependents and deletionPropagation cannot be both set",
                ));
            }
            if !matches!(value.as_str(), "Foreground" | "Background" | "Orphan") {
                let supported = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(&policy, value.as_str(), &supported));
            }
        }
        let dry_run = dry_run(&self.dry_run, &mut errors);
        refuse("DeleteOptions", names, &errors)?;
        Ok(DeleteOptions { dry_run, ..self.options })
    }
}

/// `All`, or nothing at all: a parameter without a value means nothing (requirements, appendix (g) 18).
fn dry_run(values: &[String], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| !matches!(value.as_str(), "" | "All")) {
        let all = Value::from(values.to_vec());
        errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), all, &["All"]));
    }
    values.iter().any(|value| value == "All")
}

fn refuse(kind: &str, names: &Names, errors: &[FieldError]) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind { group: names.meta_group(), kind: kind.to_owned() }, "", errors))
}

/// How a list's `resourceVersion` binds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// The state of exactly that version.
    Exact,
    /// That version or a later one.
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Which labels.
    pub labels: LabelSelector,
    /// Which fields.
    pub fields: FieldSelector,
    /// Objects in one answer, at most; 0 without a limit.
    pub limit: usize,
    /// The token of the answer before.
    pub continue_token: String,
    /// As sent.
    pub resource_version: String,
    /// As sent.
    pub resource_version_match: String,
    /// How long a list or watch may take.
    pub timeout: Option<Duration>,
    /// Send bookmarks.
    pub allow_watch_bookmarks: bool,
    /// Begin a watch with what exists, and say when it was all.
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Checks a list's options.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each field (requirements D-RV-16 to -29).
    pub fn validate_list(&self, names: &Names) -> Result<Option<VersionMatch>, Status> {
        let path = FieldPath::new("resourceVersionMatch");
        let mut errors = Vec::new();
        let wanted = self.version_match();
        if !self.resource_version_match.is_empty() {
            if self.resource_version.is_empty() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            if !self.continue_token.is_empty() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if wanted.is_none() {
                let value = self.resource_version_match.as_str();
                errors.push(FieldError::not_supported(&path, value, &["Exact", "NotOlderThan", ""]));
            }
            if wanted == Some(VersionMatch::Exact) && self.resource_version == "0" {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&path, why));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(
                &FieldPath::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
        refuse("ListOptions", names, &errors)?;
        Ok(wanted)
    }

    /// Checks a watch's options. `watch_list` says whether the feature gate of that name is on.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each field (requirements D-QP-13, -18, -19).
    pub fn validate_watch(&self, names: &Names, watch_list: bool) -> Result<(), Status> {
        let path = FieldPath::new("resourceVersionMatch");
        let mut errors = Vec::new();
        let not_older = self.resource_version_match == "NotOlderThan";
        if self.send_initial_events.is_some() {
            if !not_older {
                errors.push(FieldError::forbidden(
                    &path,
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                ));
            }
            if !watch_list {
                errors.push(FieldError::forbidden(
                    &FieldPath::new("sendInitialEvents"),
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
                ));
            }
        }
        if !self.resource_version_match.is_empty() {
            if self.send_initial_events.is_none() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                ));
            }
            if !not_older {
                let value = self.resource_version_match.as_str();
                errors.push(FieldError::not_supported(&path, value, &["NotOlderThan"]));
            }
            if !self.continue_token.is_empty() {
                errors.push(FieldError::forbidden(
                    &path,
                    "resourceVersionMatch is forbidden when continue is provided",
                ));
            }
        }
        refuse("ListOptions", names, &errors)
    }

    fn version_match(&self) -> Option<VersionMatch> {
        match self.resource_version_match.as_str() {
            "Exact" => Some(VersionMatch::Exact),
            "NotOlderThan" => Some(VersionMatch::NotOlderThan),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    fn causes(status: &Status) -> Vec<(String, String)> {
        status.details.iter().flat_map(|d| &d.causes).map(|c| (c.reason.clone(), c.field.clone())).collect()
    }

    #[test]
    fn list_versions_and_matches() {
        let token = "token";
        for (version, wanted, continued, want) in [
            ("", "", "", Ok(None)),
            ("5", "", "", Ok(None)),
            ("5", "Exact", "", Ok(Some(VersionMatch::Exact))),
            ("0", "NotOlderThan", "", Ok(Some(VersionMatch::NotOlderThan))),
            ("", "Exact", "", Err(1)),
            ("", "NotOlderThan", "", Err(1)),
            ("0", "Exact", "", Err(1)),
            ("5", "Newest", "", Err(1)),
            ("", "Newest", token, Err(3)),
            ("0", "Exact", token, Err(2)),
        ] {
            let options = ListOptions {
                resource_version: version.to_owned(),
                resource_version_match: wanted.to_owned(),
                continue_token: continued.to_owned(),
                ..ListOptions::default()
            };
            let got = options.validate_list(&names()).map_err(|status| causes(&status).len());
            assert_eq!(got, want, "{version} {wanted} {continued}");
        }
    }

    #[test]
    fn initial_events_need_the_gate_and_a_match() {
        for (send, wanted, gate, causes_wanted) in [
            (None, "", false, 0),
            (Some(true), "NotOlderThan", true, 0),
            (Some(true), "NotOlderThan", false, 1),
            (Some(true), "", false, 2),
            (Some(true), "Exact", false, 3),
            (None, "Exact", true, 2),
        ] {
            let options = ListOptions {
                send_initial_events: send,
                resource_version_match: wanted.to_owned(),
                ..ListOptions::default()
            };
            let got =
                options.validate_watch(&names(), gate).map_or_else(|status| causes(&status).len(), |()| 0);
            assert_eq!(got, causes_wanted, "{send:?} {wanted} {gate}");
        }
    }

    #[test]
    fn write_options() {
        let raw = |dry: &[&str], validation: &str| RawWriteOptions {
            dry_run: dry.iter().map(|d| (*d).to_owned()).collect(),
            field_validation: validation.to_owned(),
            ..RawWriteOptions::default()
        };
        assert!(raw(&["All", "All"], "").validate("CreateOptions", &names()).unwrap().dry_run);
        assert!(!raw(&[""], "Ignore").validate("CreateOptions", &names()).unwrap().dry_run);
        let status = raw(&["All", "Some"], "None").validate("CreateOptions", &names()).unwrap_err();
        assert_eq!(status.code, 422);
        assert_eq!(
            causes(&status),
            [
                ("FieldValueNotSupported".into(), "dryRun".into()),
                ("FieldValueNotSupported".into(), "fieldValidation".into())
            ]
        );
        assert!(
            status.message.contains(r#"dryRun: Unsupported value: ["All","Some"]: supported values: "All""#),
            "{}",
            status.message
        );
    }
}
