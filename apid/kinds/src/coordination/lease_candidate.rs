//! LeaseCandidate: a process that can become the holder of a lease.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::format;
use crate::same_fields::same_fields;
use crate::table::{AGE, NAME};
use crate::validation::{Field, immutable_fields, text};
use crate::{BuiltInKind, Column, Context, NameRule, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        name_rule: NameRule::ConfigKey,
        restricts_finalizers: false,
        create_on_update: true,
        unconditional_update: false,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.leaseName"],
    columns: &[
        NAME,
        Column::text("LeaseName", "Lease of which the process is a candidate.").text_at("spec.leaseName"),
        Column::text("BinaryVersion", "Version of the program.").text_at("spec.binaryVersion"),
        Column::text("EmulationVersion", "Version that the program emulates.")
            .text_at("spec.emulationVersion"),
        AGE,
    ],
    strategy: &LeaseCandidate,
    ..BuiltInKind::namespaced("coordination/v1beta1.LeaseCandidate", "leasecandidates")
};

/// The kind in its alpha version.
pub(super) const V1ALPHA2: BuiltInKind = same_fields(KIND, "coordination/v1alpha2.LeaseCandidate");

/// The strategy that requires `emulationVersion`.
const OLDEST_EMULATION_VERSION: &str = "OldestEmulationVersion";

struct LeaseCandidate;

impl Strategy for LeaseCandidate {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let spec = Field::new(object.get("spec"), "spec");
        text::require(&spec.child("leaseName"), &mut errors);
        let binary = spec.child("binaryVersion");
        text::require(&binary, &mut errors);
        let binary_version = parse_version(&binary, &mut errors);
        let emulation = spec.child("emulationVersion");
        let emulation_version = parse_version(&emulation, &mut errors);
        if !binary.text().is_empty() && !emulation.text().is_empty() && binary_version < emulation_version {
            errors.push(binary.invalid("must be greater than or equal to `emulationVersion`"));
        }
        let strategy = spec.child("strategy");
        text::require(&strategy, &mut errors);
        validate_strategy(&strategy, &mut errors);
        if strategy.text() == OLDEST_EMULATION_VERSION && emulation_version == SemanticVersion::default() {
            let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
            errors.push(emulation.required(detail));
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["spec.leaseName"])
    }
}

/// Validates that a strategy is a known strategy or a qualified name with a domain. As in kube-apiserver, the
/// path of the error of an unknown strategy ends with `strategy.strategy`.
fn validate_strategy(strategy: &Field<'_, '_>, errors: &mut FieldErrors) {
    let error_field = strategy.child("strategy").with_value(strategy.value());
    if strategy.text().contains('/') {
        text::check_format(strategy, format::qualified_name, errors);
    } else if !matches!(strategy.text(), "" | OLDEST_EMULATION_VERSION) {
        errors.push(error_field.not_supported(&[OLDEST_EMULATION_VERSION]));
    }
}

/// A semantic version. The order is its precedence: first by the numbers; a pre-release precedes its release.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd)]
struct SemanticVersion {
    numbers: [u64; 3],
    is_release_or_zero: bool,
    pre_release: Vec<Identifier>,
}

/// An identifier of a pre-release. Each number is smaller than each text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd)]
enum Identifier {
    Number(u64),
    Text(String),
}

/// Parses a version. Returns the version 0.0.0 for a missing version, and for an invalid version, which it
/// reports.
fn parse_version(field: &Field<'_, '_>, errors: &mut FieldErrors) -> SemanticVersion {
    if field.text().is_empty() {
        return SemanticVersion::default();
    }
    parse(field.text()).unwrap_or_else(|| {
        errors.push(field.invalid("must be a valid semantic version"));
        SemanticVersion::default()
    })
}

fn parse(text: &str) -> Option<SemanticVersion> {
    let is_identifier = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    if build.is_some_and(|build| !build.split('.').all(is_identifier)) {
        return None;
    }
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let mut parts = core.split('.');
    let numbers = [number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?];
    if parts.next().is_some() {
        return None;
    }
    let identifier = |part: &str| match part.bytes().all(|byte| byte.is_ascii_digit()) {
        _ if !is_identifier(part) => None,
        true => number(part).map(Identifier::Number),
        false => Some(Identifier::Text(part.to_owned())),
    };
    let pre_release = pre.map_or(Some(Vec::new()), |pre| pre.split('.').map(identifier).collect())?;
    Some(SemanticVersion { numbers, is_release_or_zero: pre.is_none() && numbers != [0; 3], pre_release })
}

/// Parses a number without leading zeros.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let has_leading_zero = text.len() > 1 && text.starts_with('0');
    if is_number && !has_leading_zero { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semantic_versions_are_parsed_and_ordered_by_precedence() {
        let ordered =
            ["0.0.0", "1.0.0-1", "1.0.0-2", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0", "1.2.0+build", "1.10.0"];
        let versions: Vec<_> = ordered.iter().map(|text| parse(text).unwrap()).collect();
        assert!(versions.is_sorted() && versions[0] == SemanticVersion::default());
        assert_eq!(parse("1.0.0+a"), parse("1.0.0+b"));
        for text in
            ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-", "1.2.3-a..b", "1.2.3-01", "v1.2.3", "1.2.3+"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
