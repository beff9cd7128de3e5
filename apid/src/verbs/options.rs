//! The options of verbs, typed, and what must hold of them; those of deletes are in [`super::deletion::options`].
//!
//! `http::params` reads them from queries and bodies; the loops of the process and authd's writes make them directly.

use std::time::Duration;

use apimachinery::field::{FieldError, FieldPath, quote};
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

impl FieldValidation {
    /// Warnings about keys that came twice and about unknown fields.
    ///
    /// # Errors
    ///
    /// What `refuse` makes of them when there are some and none may be.
    pub(super) fn report(
        self,
        duplicates: &[String],
        unknown: &[String],
        refuse: impl FnOnce(String) -> Status,
    ) -> Result<Vec<String>, Status> {
        if self == FieldValidation::Ignore {
            return Ok(Vec::new());
        }
        let duplicates = duplicates.iter().map(|path| format!("duplicate field {}", quote(path)));
        let unknown = unknown.iter().map(|path| format!("unknown field {}", quote(path)));
        let texts: Vec<String> = duplicates.chain(unknown).collect();
        if self == FieldValidation::Strict && !texts.is_empty() {
            return Err(refuse(format!("strict decoding error: {}", texts.join(", "))));
        }
        Ok(texts)
    }
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Do everything but store.
    pub dry_run: bool,
    /// What to do with unknown fields.
    pub field_validation: FieldValidation,
    /// Who manages the fields written, where the request says it.
    pub field_manager: String,
    /// The program that asks, as its User-Agent begins: it manages them where the request does not say.
    pub program: String,
    /// Whether an apply takes fields from other managers.
    pub force: bool,
}

impl WriteOptions {
    /// Who manages the fields written.
    pub fn manager(&self) -> &str {
        [self.field_manager.as_str(), &self.program]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("unknown")
    }

    /// As an object of this kind: `CreateOptions`, `UpdateOptions`, `PatchOptions`.
    pub fn to_value(&self, kind: &str, names: &Names) -> Value {
        let mut out = options_object(kind, names, self.dry_run);
        if !self.field_manager.is_empty() {
            out.insert("fieldManager".into(), self.field_manager.as_str().into());
        }
        if self.force {
            out.insert("force".into(), true.into());
        }
        Value::Object(out)
    }
}

/// The head of an object of options.
pub(super) fn options_object(kind: &str, names: &Names, dry_run: bool) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("kind".into(), kind.into());
    out.insert("apiVersion".into(), format!("{}/v1", names.meta_group()).into());
    if dry_run {
        out.insert("dryRun".into(), json!(["All"]));
    }
    out
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
    /// The header `User-Agent`.
    pub user_agent: String,
}

/// Bytes of a manager's name.
const MANAGER_MAX: usize = 128;

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
        self.check(kind, names, errors)
    }

    /// Checks those of an apply, which must say who applies.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each field (requirements D-SSA-22).
    pub fn validate_apply(&self, names: &Names) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if self.field_manager.is_empty() {
            errors.push(FieldError::required(&FieldPath::new("fieldManager"), "is required for apply patch"));
        }
        self.check("PatchOptions", names, errors)
    }

    fn check(&self, kind: &str, names: &Names, mut errors: Vec<FieldError>) -> Result<WriteOptions, Status> {
        let manager = FieldPath::new("fieldManager");
        if self.field_manager.len() > MANAGER_MAX {
            errors.push(FieldError::too_long(&manager, MANAGER_MAX));
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
        Ok(WriteOptions {
            dry_run,
            field_validation,
            field_manager: self.field_manager.clone(),
            program: program(&self.user_agent),
            force: self.force.unwrap_or(false),
        })
    }
}

/// The program of a User-Agent, as far as it may name a manager.
fn program(user_agent: &str) -> String {
    let product = user_agent.split('/').next().unwrap_or("");
    let mut name = String::with_capacity(product.len().min(MANAGER_MAX));
    for c in product.chars().filter(|c| !c.is_control()) {
        if name.len() + c.len_utf8() > MANAGER_MAX {
            break;
        }
        name.push(c);
    }
    name
}

/// `All`, or nothing at all: a parameter without a value means nothing (requirements, appendix (g) 18).
pub(super) fn dry_run(values: &[String], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| !matches!(value.as_str(), "" | "All")) {
        let all = Value::from(values.to_vec());
        errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), all, &["All"]));
    }
    values.iter().any(|value| value == "All")
}

/// 422 when there are errors.
pub(super) fn refuse(kind: &str, names: &Names, errors: &[FieldError]) -> Result<(), Status> {
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
    fn managers() {
        let run = |manager: &str, agent: &str| {
            let raw = RawWriteOptions {
                field_manager: manager.to_owned(),
                user_agent: agent.to_owned(),
                ..RawWriteOptions::default()
            };
            raw.validate("UpdateOptions", &names()).map(|options| options.manager().to_owned())
        };
        let (long, longer) = ("m".repeat(128), "m".repeat(129));
        for (manager, agent, want) in [
            ("m1", "kubectl/v1.33.0 (linux/amd64)", "m1"),
            ("", "kubectl/v1.33.0 (linux/amd64)", "kubectl"),
            ("", "curl", "curl"),
            ("", "a\u{7}b/1", "ab"),
            ("", "", "unknown"),
            ("", "/1.0", "unknown"),
            (&long, "", &long),
            ("", &longer, &long),
        ] {
            assert_eq!(run(manager, agent).unwrap(), want, "{manager} {agent}");
        }
        for refused in [longer.as_str(), "a\nb"] {
            assert_eq!(causes(&run(refused, "").unwrap_err())[0].1, "fieldManager", "{refused}");
        }
        let apply = RawWriteOptions { force: Some(true), ..RawWriteOptions::default() };
        let status = apply.validate_apply(&names()).unwrap_err();
        assert_eq!(causes(&status), [("FieldValueRequired".to_owned(), "fieldManager".to_owned())]);
        let apply = RawWriteOptions { field_manager: "m1".to_owned(), ..apply };
        assert!(apply.validate_apply(&names()).unwrap().force);
        assert!(apply.validate("PatchOptions", &names()).is_err(), "force is for apply alone");
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
