//! Reads and validates an audit policy file.
//!
//! # Errors
//!
//! The rules and texts are those of kube-apiserver, with the line of each error. Unknown and duplicate fields are
//! warnings, as there.

use std::path::{Path, PathBuf};

use apimachinery::document::{Document, DocumentError, Fields, join_errors};
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::format;
use apimachinery::names::Names;

use super::{GroupResources, Policy, Rule};
use crate::stage::{Level, Stage, Stages};

/// An audit policy that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("audit policy `{}`: {error}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The content is not a valid policy.
    #[error("audit policy `{}`: {}", .file.display(), join_errors(.errors))]
    Invalid {
        /// The file.
        file: PathBuf,
        /// All errors.
        errors: Vec<DocumentError>,
    },
}

impl Policy {
    /// Loads a policy file. Returns warnings about unknown and duplicate fields with the policy.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a valid policy of this preset.
    pub fn load(file: &Path, names: &Names) -> Result<(Self, Vec<DocumentError>), PolicyError> {
        let bytes =
            std::fs::read(file).map_err(|error| PolicyError::Unreadable { file: file.to_owned(), error })?;
        Policy::read(&bytes, names).map_err(|errors| PolicyError::Invalid { file: file.to_owned(), errors })
    }

    /// Reads a policy from the text of a file. Returns warnings about unknown and duplicate fields with the policy.
    ///
    /// # Errors
    ///
    /// All errors of the text.
    pub fn read(bytes: &[u8], names: &Names) -> Result<(Self, Vec<DocumentError>), Vec<DocumentError>> {
        let document = Document::read(bytes).map_err(|error| vec![error])?;
        let api_version = format!("{}/v1", names.group("audit"));
        if document.is_empty() {
            let text = format!("the file is empty: it must contain a Policy of {api_version}");
            return Err(vec![DocumentError { line: None, text }]);
        }
        document.decode_lenient(|fields| {
            read_type(fields, &api_version);
            read_policy(fields)
        })
    }
}

/// Checks `apiVersion` and `kind`. As in kube-apiserver, a missing kind is the kind `Policy`.
fn read_type(fields: &mut Fields<'_>, api_version: &str) {
    let (found_version, found_kind) = (fields.text("apiVersion"), fields.text("kind"));
    for (field, found, expected) in
        [("apiVersion", found_version, api_version), ("kind", found_kind, "Policy")]
    {
        let is_optional = field == "kind" && found.is_empty();
        if found != expected && !is_optional {
            let path = fields.path().child(field);
            fields.errors().add(&FieldError::not_supported(&path, found.as_str(), &[expected]));
        }
    }
}

fn read_policy(fields: &mut Fields<'_>) -> Policy {
    let omit_stages = read_stages(fields);
    let rules = fields.objects("rules", |fields| read_rule(fields, omit_stages));
    if rules.is_empty() {
        fields.errors().add_text(&fields.path().child("rules"), "loaded illegal policy with 0 rules");
    }
    Policy { rules, omit_stages, omit_managed_fields: fields.boolean("omitManagedFields").unwrap_or(false) }
}

fn read_rule(fields: &mut Fields<'_>, omit_stages: Stages) -> Rule {
    let level = read_level(fields);
    let rule = Rule {
        level,
        users: fields.texts("users"),
        user_groups: fields.texts("userGroups"),
        verbs: fields.texts("verbs"),
        resources: fields.objects("resources", read_resources),
        namespaces: fields.texts("namespaces"),
        non_resource_urls: fields.texts("nonResourceURLs"),
        omit_stages: read_stages(fields).union(omit_stages),
        omit_managed_fields: fields.boolean("omitManagedFields"),
    };
    check_urls(fields, &rule);
    // The path in these messages has no index, as in kube-apiserver.
    let path = fields.path().child("resources");
    for resources in &rule.resources {
        check_resources(fields, &path, resources);
    }
    rule
}

fn read_level(fields: &mut Fields<'_>) -> Level {
    let (path, text) = (fields.path().child("level"), fields.text("level"));
    let level = text.parse();
    match &level {
        Ok(_) => {}
        Err(_) if text.is_empty() => fields.errors().add(&FieldError::required(&path, "")),
        Err(_) => fields.errors().add(&FieldError::not_supported(&path, text.as_str(), &Level::NAMES)),
    }
    level.unwrap_or_default()
}

fn read_stages(fields: &mut Fields<'_>) -> Stages {
    let names = fields.texts("omitStages");
    let path = fields.path().child("omitStages");
    let parse = |(index, name): (usize, &String)| match name.parse::<Stage>() {
        Ok(stage) => Some(stage),
        Err(_) => {
            let detail = format!("allowed stages are {}", Stage::NAMES);
            fields.errors().add(&FieldError::invalid(&path.index(index), name.as_str(), &detail));
            None
        }
    };
    names.iter().enumerate().filter_map(parse).collect()
}

fn read_resources(fields: &mut Fields<'_>) -> GroupResources {
    GroupResources {
        group: fields.text("group"),
        resources: fields.texts("resources"),
        resource_names: fields.texts("resourceNames"),
    }
}

fn check_resources(fields: &Fields<'_>, path: &FieldPath, resources: &GroupResources) {
    let group = resources.group.as_str();
    if !group.is_empty() && group != "*" {
        let problems = format::subdomain(group);
        if !problems.is_empty() {
            fields.errors().add(&FieldError::invalid(&path.child("group"), group, &problems.join(",")));
        }
    }
    if !resources.resource_names.is_empty() && resources.resources.is_empty() {
        let detail = "using resourceNames requires at least one resource";
        let path = path.child("resourceNames");
        fields.errors().add(&FieldError::invalid_collection(&path, &resources.resource_names, detail));
    }
}

fn check_urls(fields: &Fields<'_>, rule: &Rule) {
    let path = fields.path().child("nonResourceURLs");
    let invalid = |index: usize, url: &str, detail: &str| {
        fields.errors().add(&FieldError::invalid(&path.index(index), url, detail));
    };
    for (index, url) in rule.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        if !url.starts_with('/') {
            invalid(index, url, "non-resource URL rules must begin with a '/' character");
        }
        if url.strip_suffix('*').unwrap_or(url).contains('*') {
            invalid(index, url, "non-resource URL wildcards '*' must be the final character of the rule");
        }
    }
    let names_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if names_resources && !rule.non_resource_urls.is_empty() {
        let detail = "rules cannot apply to both regular resources and non-resource URLs";
        fields.errors().add(&FieldError::invalid_collection(&path, &rule.non_resource_urls, detail));
    }
}
