//! The options of verbs and their validation; those of deletes are in [`super::deletion::options`].
//!
//! `httpapi::params` reads them from queries and bodies; background tasks and authd's writes create them
//! directly.

use std::collections::HashSet;
use std::time::Duration;

use apimachinery::codec::key_order;
use apimachinery::field::{FieldError, FieldPath, quote};
use apimachinery::gvk::GroupKind;
use apimachinery::names::{Names, SchemaExtension};
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use serde_json::{Map, Value, json};

/// Handling of unknown fields and duplicate keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop the fields without a warning.
    Ignore,
    /// Drop the fields and warn.
    #[default]
    Warn,
    /// Reject the body.
    Strict,
}

impl FieldValidation {
    /// Returns warnings about duplicate keys and unknown fields.
    ///
    /// If the warnings follow the order of the document, `json` is the document. If `json` is None, the
    /// duplicate keys come first. The warning about a schema extension under its stored name shows the name
    /// of the extension in the names preset.
    ///
    /// # Errors
    ///
    /// The Status that `reject` builds, if validation is strict and there are such fields.
    pub(super) fn report(
        self,
        duplicates: &[String],
        unknown: &[String],
        json: Option<&[u8]>,
        names: &Names,
        reject: impl FnOnce(String) -> Status,
    ) -> Result<Vec<String>, Status> {
        if self == FieldValidation::Ignore || (duplicates.is_empty() && unknown.is_empty()) {
            return Ok(Vec::new());
        }
        let texts = match json {
            Some(json) => in_document_order(json, duplicates, unknown, names),
            None => duplicates
                .iter()
                .map(|path| duplicate_text(path))
                .chain(unknown.iter().map(|path| unknown_text(path, names)))
                .collect(),
        };
        self.report_texts(texts, reject)
    }

    /// Like [`FieldValidation::report`] for a YAML document. `duplicate_keys` are the messages of
    /// [`duplicate_keys`](apimachinery::codec::yaml::duplicate_keys).
    ///
    /// # Errors
    ///
    /// See [`FieldValidation::report`].
    pub(super) fn report_yaml(
        self,
        duplicate_keys: &[String],
        unknown: &[String],
        names: &Names,
        reject: impl FnOnce(String) -> Status,
    ) -> Result<Vec<String>, Status> {
        let unknown = unknown.iter().map(|path| unknown_text(path, names));
        let duplicates = match self {
            _ if duplicate_keys.is_empty() => Vec::new(),
            FieldValidation::Strict => vec![yaml_errors(duplicate_keys)],
            _ => duplicate_keys.to_vec(),
        };
        self.report_texts(duplicates.into_iter().chain(unknown).collect(), reject)
    }

    /// Returns the texts as warnings.
    ///
    /// # Errors
    ///
    /// The Status that `reject` builds, if validation is strict and there are texts.
    pub(super) fn report_texts(
        self,
        texts: Vec<String>,
        reject: impl FnOnce(String) -> Status,
    ) -> Result<Vec<String>, Status> {
        match self {
            FieldValidation::Ignore => Ok(Vec::new()),
            FieldValidation::Strict if !texts.is_empty() => {
                Err(reject(format!("strict decoding error: {}", texts.join(", "))))
            }
            _ => Ok(texts),
        }
    }
}

/// The error of duplicate YAML keys, in the form of go-yaml.
pub(super) fn yaml_errors(duplicate_keys: &[String]) -> String {
    format!("yaml: unmarshal errors:\n  {}", duplicate_keys.join("\n  "))
}

/// The text about a duplicate key.
pub(super) fn duplicate_text(path: &str) -> String {
    format!("duplicate field {}", quote(path))
}

/// The text about an unknown field.
pub(super) fn unknown_text(path: &str, names: &Names) -> String {
    match extension_in(path, names) {
        Some(extension) => format!("unknown field {} (use {})", quote(path), quote(extension)),
        None => format!("unknown field {}", quote(path)),
    }
}

/// Returns the name in the names preset of the schema extension whose stored name ends `path`; None if both
/// names are equal.
fn extension_in(path: &str, names: &Names) -> Option<&'static str> {
    let (parent, field) = path.rsplit_once('.')?;
    let is_in_schema = parent.contains("openAPIV3Schema");
    let extension = SchemaExtension::ALL
        .into_iter()
        .find(|extension| is_in_schema && extension.stored_name() == field)?;
    Some(names.schema_extension(extension)).filter(|name| *name != field)
}

/// Returns the warnings in the order of the document: an unknown field at its first occurrence, a duplicate key
/// at its second occurrence. As in kube-apiserver, the keys within an unknown field are not examined.
fn in_document_order(json: &[u8], duplicates: &[String], unknown: &[String], names: &Names) -> Vec<String> {
    let is_within = |path: &str, field: &String| {
        path.strip_prefix(field.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let duplicates: Vec<&String> =
        duplicates.iter().filter(|path| !unknown.iter().any(|field| is_within(path, field))).collect();
    let paths = duplicates.iter().copied().chain(unknown).map(String::as_str).collect();
    let mut seen = HashSet::new();
    let mut texts = Vec::new();
    for path in key_order::occurrences(json, &paths) {
        let is_first = seen.insert(path.clone());
        let text = if unknown.contains(&path) { unknown_text(&path, names) } else { duplicate_text(&path) };
        if is_first == unknown.contains(&path) && !texts.contains(&text) {
            texts.push(text);
        }
    }
    // A path that was translated from another preset is not in the document, so its warning is added here.
    let all_texts = duplicates
        .into_iter()
        .map(|path| duplicate_text(path))
        .chain(unknown.iter().map(|path| unknown_text(path, names)));
    for text in all_texts {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// Options of create, update and patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Whether the write is a dry run, which stores nothing.
    pub dry_run: bool,
    /// Handling of unknown fields and duplicate keys.
    pub field_validation: FieldValidation,
    /// The parameter `fieldValidation`; empty if absent.
    pub sent_field_validation: String,
    /// The parameter `fieldManager`; empty if absent.
    pub field_manager: String,
    /// Program name from the User-Agent: the field manager if the request specifies none.
    pub program: String,
    /// Whether an apply takes ownership of conflicting fields.
    pub force: bool,
}

impl WriteOptions {
    /// Returns the field manager: the parameter, else the program name, else `unknown`.
    pub fn manager(&self) -> &str {
        [self.field_manager.as_str(), &self.program]
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("unknown")
    }

    /// Returns the options as an object of this kind, for admission: `CreateOptions` or `UpdateOptions`.
    ///
    /// As in kube-apiserver, admission gets the options of the operation, also for a patch.
    pub fn to_value(&self, kind: &str, names: &Names) -> Value {
        let mut out = options_object(kind, names, self.dry_run);
        for (field, text) in
            [("fieldManager", &self.field_manager), ("fieldValidation", &self.sent_field_validation)]
        {
            if !text.is_empty() {
                out.insert(field.into(), text.as_str().into());
            }
        }
        Value::Object(out)
    }
}

/// Returns kind, apiVersion and `dryRun` of an options object.
pub(super) fn options_object(kind: &str, names: &Names, dry_run: bool) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("kind".into(), kind.into());
    out.insert("apiVersion".into(), format!("{}/v1", names.meta_group()).into());
    if dry_run {
        out.insert("dryRun".into(), json!(["All"]));
    }
    out
}

/// Write options as sent by the client.
#[derive(Clone, Debug, Default)]
pub struct RawWriteOptions {
    /// All values of `dryRun`.
    pub dry_run: Vec<String>,
    /// `fieldValidation`.
    pub field_validation: String,
    /// `fieldManager`.
    pub field_manager: String,
    /// `force`; only patches have the option, and only apply may set it.
    pub force: Option<bool>,
    /// The header `User-Agent`.
    pub user_agent: String,
}

/// Maximum length of a field manager name in bytes.
const MANAGER_MAX: usize = 128;

impl RawWriteOptions {
    /// Validates the options. `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each invalid option (requirements D-QP-30, -34, -37, -41).
    pub fn validate(&self, kind: &str, names: &Names) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if self.force.is_some() {
            errors.push(FieldError::forbidden(
                &FieldPath::new("force"),
                "may not be specified for non-apply patch",
            ));
        }
        self.validate_common(kind, names, errors)
    }

    /// Validates the options of an apply, which requires a field manager.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each invalid option (requirements D-SSA-22).
    pub fn validate_apply(&self, names: &Names) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if self.field_manager.is_empty() {
            errors.push(FieldError::required(&FieldPath::new("fieldManager"), "is required for apply patch"));
        }
        self.validate_common("PatchOptions", names, errors)
    }

    fn validate_common(
        &self,
        kind: &str,
        names: &Names,
        mut errors: Vec<FieldError>,
    ) -> Result<WriteOptions, Status> {
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
        reject_if_any(kind, names, &errors)?;
        Ok(WriteOptions {
            dry_run,
            field_validation,
            sent_field_validation: self.field_validation.clone(),
            field_manager: self.field_manager.clone(),
            program: program(&self.user_agent),
            force: self.force.unwrap_or(false),
        })
    }
}

/// Returns the program name of a User-Agent, cut to a valid field manager name.
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

/// Whether `dryRun` is `All`; an empty value means false (requirements, appendix (g) 18). Any other value is
/// an error.
pub(super) fn dry_run(values: &[String], errors: &mut Vec<FieldError>) -> bool {
    if values.iter().any(|value| !matches!(value.as_str(), "" | "All")) {
        let sent = Value::from(values.to_vec());
        errors.push(FieldError::not_supported(&FieldPath::new("dryRun"), sent, &["All"]));
    }
    values.iter().any(|value| value == "All")
}

/// Returns 422 if there are errors.
pub(super) fn reject_if_any(kind: &str, names: &Names, errors: &[FieldError]) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind { group: names.meta_group(), kind: kind.to_owned() }, "", errors))
}

/// Meaning of a list's `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// The state at exactly that version.
    Exact,
    /// The state at that version or a later one.
    NotOlderThan,
}

/// Options of list, watch and deletecollection.
///
/// A field that selects objects also belongs in the fingerprint of continue tokens (`list_fingerprint`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Label selector.
    pub labels: LabelSelector,
    /// Field selector.
    pub fields: FieldSelector,
    /// Maximum number of objects in a response; 0 means no limit.
    pub limit: usize,
    /// Continue token of the previous response.
    pub continue_token: String,
    /// `resourceVersion` as sent.
    pub resource_version: String,
    /// `resourceVersionMatch` as sent.
    pub resource_version_match: String,
    /// Request timeout of a list or watch.
    pub timeout: Option<Duration>,
    /// Whether the watch sends bookmarks.
    pub allow_watch_bookmarks: bool,
    /// Whether a watch begins with the existing objects, followed by a bookmark.
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Validates the options of a list.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each invalid option (requirements D-RV-16 to -29).
    pub fn validate_list(&self, names: &Names) -> Result<Option<VersionMatch>, Status> {
        let path = FieldPath::new("resourceVersionMatch");
        let mut errors = Vec::new();
        let version_match = self.version_match();
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
            if version_match.is_none() {
                let value = self.resource_version_match.as_str();
                errors.push(FieldError::not_supported(&path, value, &["Exact", "NotOlderThan", ""]));
            }
            if version_match == Some(VersionMatch::Exact) && self.resource_version == "0" {
                let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
        if self.send_initial_events.is_some() {
            errors.push(FieldError::forbidden(
                &FieldPath::new("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            ));
        }
        reject_if_any("ListOptions", names, &errors)?;
        Ok(version_match)
    }

    /// Validates the options of a watch. `watch_list`: whether the feature gate WatchList is enabled.
    ///
    /// # Errors
    ///
    /// 422 with a cause for each invalid option (requirements D-QP-13, -18, -19).
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
        reject_if_any("ListOptions", names, &errors)
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
    fn list_options_validate_resource_version_match() {
        let token = "token";
        for (version, version_match, continued, want) in [
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
                resource_version_match: version_match.to_owned(),
                continue_token: continued.to_owned(),
                ..ListOptions::default()
            };
            let got = options.validate_list(&names()).map_err(|status| causes(&status).len());
            assert_eq!(got, want, "{version} {version_match} {continued}");
        }
    }

    #[test]
    fn send_initial_events_requires_watch_list_gate_and_version_match() {
        for (send, version_match, gate, expected_causes) in [
            (None, "", false, 0),
            (Some(true), "NotOlderThan", true, 0),
            (Some(true), "NotOlderThan", false, 1),
            (Some(true), "", false, 2),
            (Some(true), "Exact", false, 3),
            (None, "Exact", true, 2),
        ] {
            let options = ListOptions {
                send_initial_events: send,
                resource_version_match: version_match.to_owned(),
                ..ListOptions::default()
            };
            let got =
                options.validate_watch(&names(), gate).map_or_else(|status| causes(&status).len(), |()| 0);
            assert_eq!(got, expected_causes, "{send:?} {version_match} {gate}");
        }
    }

    #[test]
    fn field_manager_defaults_to_user_agent_program_and_is_validated() {
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
        for invalid_manager in [longer.as_str(), "a\nb"] {
            assert_eq!(
                causes(&run(invalid_manager, "").unwrap_err())[0].1,
                "fieldManager",
                "{invalid_manager}"
            );
        }
        let apply = RawWriteOptions { force: Some(true), ..RawWriteOptions::default() };
        let status = apply.validate_apply(&names()).unwrap_err();
        assert_eq!(causes(&status), [("FieldValueRequired".to_owned(), "fieldManager".to_owned())]);
        let apply = RawWriteOptions { field_manager: "m1".to_owned(), ..apply };
        assert!(apply.validate_apply(&names()).unwrap().force);
        assert!(apply.validate("PatchOptions", &names()).is_err(), "force is allowed for apply only");
    }

    #[test]
    fn write_options_validate_dry_run_and_field_validation() {
        let raw_options = |dry: &[&str], validation: &str| RawWriteOptions {
            dry_run: dry.iter().map(|d| (*d).to_owned()).collect(),
            field_validation: validation.to_owned(),
            ..RawWriteOptions::default()
        };
        assert!(raw_options(&["All", "All"], "").validate("CreateOptions", &names()).unwrap().dry_run);
        assert!(!raw_options(&[""], "Ignore").validate("CreateOptions", &names()).unwrap().dry_run);
        let status = raw_options(&["All", "Some"], "None").validate("CreateOptions", &names()).unwrap_err();
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
