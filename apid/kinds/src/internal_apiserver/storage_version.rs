//! StorageVersion: the versions in which the servers encode the objects of a resource.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{FieldErrors, shorten, shorten_name};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::format;
use crate::table::cell::{PathReader, UNSET};
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, NameRule, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: "internal.apiserver",
    subresources: &[Subresource::status("StorageVersion")],
    rules: WriteRules {
        name_rule: NameRule::GroupResource,
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        unconditional_update: false,
        status_writes: StatusWrites::StatusOnly,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("CommonEncodingVersion", "Version in which all servers encode the objects.")
            .text_or("status.commonEncodingVersion", UNSET),
        Column::text("StorageVersions", "Versions in which the servers encode the objects."),
        AGE,
    ],
    cells: |object, _| {
        let servers = object.items("status.storageVersions").iter();
        let servers: Vec<String> = servers
            .map(|server| format!("{}={}", server.text("apiServerID"), server.text("encodingVersion")))
            .collect();
        vec![json!(if servers.is_empty() { UNSET.to_owned() } else { servers.join(",") })]
    },
    strategy: &StorageVersion,
    ..BuiltInKind::cluster_scoped("apiserverinternal/v1alpha1.StorageVersion", "storageversions")
};

struct StorageVersion;

impl Strategy for StorageVersion {
    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" { validate_status(new) } else { FieldErrors::new() }
    }
}

fn validate_status(object: &Object) -> FieldErrors {
    let status = Field::new(object.get("status"), "status");
    let mut errors = FieldErrors::new();
    let mut servers = BTreeSet::new();
    for server in status.child("storageVersions").items() {
        let id = server.child("apiServerID");
        if !servers.insert(id.text()) {
            errors.push(id.duplicate_value(id.text()));
        }
        validate_server_versions(&server, &mut errors);
    }
    validate_common_version(&status, &mut errors);
    validate_conditions(&status, &mut errors);
    errors
}

/// Validates the versions of a server.
fn validate_server_versions(server: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_format(&server.child("apiServerID"), format::subdomain, errors);
    let encoding = server.child("encodingVersion");
    validate_api_version(&encoding, errors);
    let decodable = server.child("decodableVersions");
    decodable.items().for_each(|version| validate_api_version(&version, errors));
    let decodable_versions: BTreeSet<&str> = decodable.items().map(|version| version.text()).collect();
    if !decodable_versions.contains(encoding.text()) {
        let detail = format!("decodableVersions must include encodingVersion {}", encoding.text());
        errors.push(decodable.invalid(&detail));
    }
    let decodable_list: Vec<&str> = decodable.list().iter().filter_map(Value::as_str).collect();
    let decodable_list = decodable_list.join(" ");
    let decodable_list = shorten_name(&decodable_list);
    for served in server.child("servedVersions").items() {
        validate_api_version(&served, errors);
        if !decodable_versions.contains(served.text()) {
            let detail = format!(
                "individual served version : {} must be included in decodableVersions : [{decodable_list}]",
                shorten(served.text())
            );
            errors.push(served.invalid_value(served.text(), &detail));
        }
    }
}

/// Validates an `apiVersion`: a version, or a group and a version.
fn validate_api_version(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (group, version) = match field.text().split_once('/') {
        None => (None, field.text()),
        Some((_, rest)) if rest.contains('/') => {
            let detail = "an apiVersion is a DNS-1035 label, which must consist of lower case alphanumeric \
                          characters or '-', start with an alphabetic character, and end with an alphanumeric \
                          character (e.g. 'my-name', or 'abc-123', regex used for validation is \
                          '[a-z]([-a-z0-9]*[a-z0-9])?') with an optional DNS subdomain prefix and '/' (e.g. \
                          'example.com/MyVersion')";
            errors.push(field.invalid_value(field.text(), detail));
            return;
        }
        Some((group, version)) => (Some(group), version),
    };
    let check = |part: &str, text: &str, format: fn(&str) -> Vec<String>| -> Vec<String> {
        let messages = if text.is_empty() { vec!["must be non-empty".to_owned()] } else { format(text) };
        messages.into_iter().map(|message| format!("{part} part: {message}")).collect()
    };
    let mut messages = group.map_or_else(Vec::new, |group| check("group", group, format::subdomain));
    messages.extend(check("version", version, format::label_1035));
    if !messages.is_empty() {
        errors.push(field.invalid_value(field.text(), &messages.join(",")));
    }
}

/// Validates `commonEncodingVersion`. The field must contain the encoding version of all servers if it is
/// equal, and must be absent otherwise.
fn validate_common_version(status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let servers = status.child("storageVersions");
    let versions: BTreeSet<String> =
        servers.items().map(|server| server.child("encodingVersion").text().to_owned()).collect();
    let actual = versions.iter().next().filter(|_| versions.len() == 1);
    let common = status.child("commonEncodingVersion");
    match (actual, common.is_present()) {
        (None, true) => errors.push(common.invalid(
            "should be nil if servers do not agree on the same encoding version, or if there is no server \
             reporting the supported versions yet",
        )),
        (Some(actual), false) => {
            errors.push(common.invalid(&format!("the common encoding version is {actual}")));
        }
        (Some(actual), true) if actual != common.text() => {
            errors.push(common.invalid(&format!("the actual common encoding version is {actual}")));
        }
        _ => {}
    }
}

/// Validates the conditions. kube-apiserver omits `conditions` from their paths.
fn validate_conditions(status: &Field<'_, '_>, errors: &mut FieldErrors) {
    let list = status.child("conditions");
    let reported_list = Field::new(list.value(), "status");
    let mut types = BTreeMap::new();
    for (index, condition) in reported_list.items().enumerate() {
        let kind = condition.child("type");
        if let Some(first) = types.insert(kind.text(), index) {
            let detail =
                format!("the type of the condition is not unique, it also appears in conditions[{first}]");
            errors.push(kind.invalid_value(kind.text(), &detail));
        }
        text::check_format(&kind, format::qualified_name, errors);
        text::check_format(&condition.child("status"), format::qualified_name, errors);
        text::require(&condition.child("reason"), errors);
        text::require(&condition.child("message"), errors);
    }
}
