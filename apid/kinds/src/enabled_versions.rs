//! The enabled API versions: the defaults and the keys of `--runtime-config`.
//!
//! # Contract
//!
//! Stable versions are on by default, alpha and beta versions are off. The keys are
//!
//! | Key | Selection |
//! |---|---|
//! | `GROUP/VERSION/RESOURCE` | a resource in one version |
//! | `GROUP/VERSION`; `v1` or `/v1` for the core group | a group version |
//! | `api/ga`, `api/beta`, `api/alpha` | all versions of a stage |
//! | `api/all` | all versions |
//! | `api/legacy`, `api/v1` | nothing; the keys of old releases cause a warning |
//!
//! A key without a value has the value true. The more specific key wins, independent of the order of keys.
//! The last value of a repeated key wins.
//!
//! [`EnabledVersions::exclude`] disables a resource despite its keys, because the emulated release lacks the
//! resource, or because the resource's feature gate is off.
//!
//! # Errors
//!
//! [`RuntimeConfigErrors`] has all errors: keys of another form, unknown groups and versions, values that are not
//! boolean, and `api/all=false` as the only key. A key with a version that only earlier releases served, or
//! with an unknown resource, selects nothing and causes a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use apimachinery::names::Names;

use crate::built_in_kinds::{UNLISTED_KINDS, built_in_kinds};
use crate::lifecycle::{self, Stage, Version};
use crate::{BuiltInKind, UnenforcedKind};

const ALL: &str = "api/all";
/// Keys that select nothing in this release: `api/v1` was the core group in old releases.
const IGNORED: [&str; 2] = ["api/legacy", "api/v1"];

/// The key of a stage.
fn stage_key(stage: Stage) -> &'static str {
    match stage {
        Stage::Alpha => "api/alpha",
        Stage::Beta => "api/beta",
        Stage::Stable => "api/ga",
    }
}

/// The kinds that a key can name.
fn known_kinds() -> impl Iterator<Item = &'static BuiltInKind> {
    built_in_kinds().chain(UNLISTED_KINDS)
}

/// Kinds in versions that only earlier releases served. `--runtime-config` accepts their group versions.
fn removed_versions() -> impl Iterator<Item = &'static Version> {
    lifecycle::versions().iter().filter(|row| row.is_removed(lifecycle::CURRENT))
}

/// All errors in the values of `--runtime-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeConfigErrors(pub Vec<String>);

impl fmt::Display for RuntimeConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for RuntimeConfigErrors {}

/// The enabled versions of the built-in kinds, and the feature gates that enforce kinds. The default value enables the
/// stable versions and no gate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnabledVersions {
    all: Option<bool>,
    stages: BTreeMap<Stage, bool>,
    /// Values of the keys `GROUP/VERSION`, by group stem and version.
    group_versions: BTreeMap<(String, String), bool>,
    /// Values of the keys `GROUP/VERSION/RESOURCE`, by group stem, version and plural name.
    resources: BTreeMap<(String, String, String), bool>,
    /// Group stem, version and plural name of the resources that are disabled despite their keys.
    excluded: BTreeSet<(String, String, String)>,
    /// Feature gates that are on.
    gates: BTreeSet<&'static str>,
}

impl EnabledVersions {
    /// Parses `KEY=BOOL` pairs of `--runtime-config`. Returns the enabled versions and warnings.
    ///
    /// # Errors
    ///
    /// All errors in the pairs.
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = &'a str>,
        names: &Names,
    ) -> Result<(Self, Vec<String>), RuntimeConfigErrors> {
        let mut parser = Parser { names, enabled: Self::default(), errors: Vec::new(), warnings: Vec::new() };
        let mut count = 0;
        for pair in pairs.into_iter().map(str::trim).filter(|pair| !pair.is_empty()) {
            count += 1;
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            parser.add(key.trim(), value.trim());
        }
        if count == 1 && parser.enabled.all == Some(false) {
            parser.errors.push(format!("invalid key with only {ALL}=false: enable at least one API version"));
        }
        if parser.errors.is_empty() {
            Ok((parser.enabled, parser.warnings))
        } else {
            Err(RuntimeConfigErrors(parser.errors))
        }
    }

    /// Adds feature gates that are on.
    #[must_use]
    pub fn with_gates(mut self, gates: impl IntoIterator<Item = &'static str>) -> Self {
        self.gates.extend(gates);
        self
    }

    /// The [`UnenforcedKind`] of a kind. None if apid always enforces the kind, or if the feature gate that
    /// enforces the kind is on.
    pub(crate) fn unenforced(&self, kind: &BuiltInKind) -> Option<&'static UnenforcedKind> {
        kind.unenforced.filter(|entry| entry.gate.is_none_or(|gate| !self.gates.contains(gate)))
    }

    /// Whether all versions of a kind are enabled.
    pub fn contains(&self, kind: &BuiltInKind) -> bool {
        self.has(kind, kind.version)
    }

    /// Disables a resource in one version despite its keys. `group` is a group stem, `resource` a plural
    /// name.
    pub fn exclude(&mut self, group: &str, version: &str, resource: &str) {
        self.excluded.insert((group.to_owned(), version.to_owned(), resource.to_owned()));
    }

    /// Enables a resource in one version, as the key `GROUP/VERSION/RESOURCE` does.
    pub fn enable(&mut self, group: &str, version: &str, resource: &str) {
        self.resources.insert((group.to_owned(), version.to_owned(), resource.to_owned()), true);
    }

    /// Whether a resource is enabled in one version. `group` is a group stem, `resource` a plural name.
    pub fn is_enabled(&self, group: &str, version: &str, resource: &str) -> bool {
        let mut kinds = built_in_kinds();
        kinds.any(|kind| kind.group == group && kind.resource == resource && self.has(kind, version))
    }

    /// Whether the key `GROUP/VERSION/RESOURCE` of a resource enables the resource.
    pub fn has_resource_key(&self, group: &str, version: &str, resource: &str) -> bool {
        let key = (group.to_owned(), version.to_owned(), resource.to_owned());
        self.resources.get(&key) == Some(&true)
    }

    /// The value of the key for a resource, or else for its group version; None without such a key.
    pub fn key_value(&self, group: &str, version: &str, resource: &str) -> Option<bool> {
        let (group, version, resource) = (group.to_owned(), version.to_owned(), resource.to_owned());
        let key = (group, version, resource);
        let of_resource = self.resources.get(&key).copied();
        of_resource.or_else(|| self.group_versions.get(&(key.0, key.1)).copied())
    }

    fn has(&self, kind: &BuiltInKind, version: &str) -> bool {
        let stage = Stage::of_version(version);
        if self.excluded.contains(&(kind.group.to_owned(), version.to_owned(), kind.resource.to_owned())) {
            return false;
        }
        self.key_value(kind.group, version, kind.resource)
            .or_else(|| self.stages.get(&stage).copied())
            .or(self.all)
            .unwrap_or(stage == Stage::Stable)
    }
}

struct Parser<'a> {
    names: &'a Names,
    enabled: EnabledVersions,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Parser<'_> {
    fn add(&mut self, key: &str, value: &str) {
        let Some(value) = parse_boolean(value) else {
            self.errors.push(format!("invalid value of {key}: {value} is neither true nor false"));
            return;
        };
        let stage =
            [Stage::Alpha, Stage::Beta, Stage::Stable].into_iter().find(|stage| stage_key(*stage) == key);
        match (stage, key) {
            (Some(stage), _) => drop(self.enabled.stages.insert(stage, value)),
            (None, ALL) => self.enabled.all = Some(value),
            (None, _) if IGNORED.contains(&key) => {
                self.warnings.push(format!("the key {key} is deprecated and has no effect"));
            }
            (None, "v1") => drop(self.enabled.group_versions.insert((String::new(), "v1".to_owned()), value)),
            (None, _) => self.add_path(key, value),
        }
    }

    /// Adds a key of the form `GROUP/VERSION` or `GROUP/VERSION/RESOURCE`.
    fn add_path(&mut self, key: &str, value: bool) {
        let mut parts = key.split('/');
        let (Some(group), Some(version), resource, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            self.errors
                .push(format!("invalid key {key}: not of the form GROUP/VERSION or GROUP/VERSION/RESOURCE"));
            return;
        };
        let Some(stem) = self.stem(group) else {
            self.errors.push(format!("unknown API group {group} in the key {key}"));
            return;
        };
        let mut kinds = known_kinds().filter(|kind| kind.group == stem && kind.version == version);
        let is_removed = removed_versions().any(|row| row.group == stem && row.version == version);
        let group_version = (stem.to_owned(), version.to_owned());
        match (kinds.next(), resource) {
            (None, _) if !is_removed => {
                self.errors.push(format!("group version {group}/{version} has not been registered"));
            }
            (None, _) => {
                self.warnings
                    .push(format!("{key} has no effect: this release does not serve {group}/{version}"));
            }
            (Some(_), None) => drop(self.enabled.group_versions.insert(group_version, value)),
            (Some(first), Some(resource)) => {
                if first.resource != resource && kinds.all(|kind| kind.resource != resource) {
                    self.warnings.push(format!("{key} has no effect: {group}/{version} has no {resource}"));
                }
                let (stem, version) = group_version;
                self.enabled.resources.insert((stem, version, resource.to_owned()), value);
            }
        }
    }

    /// Returns the stem of a group that this release or an earlier one serves.
    fn stem(&self, group: &str) -> Option<&'static str> {
        let served = known_kinds().map(|kind| kind.group);
        let mut stems = served.chain(removed_versions().map(|row| row.group));
        stems.find(|stem| self.names.group(stem) == group)
    }
}

/// Parses a boolean of a command line; an omitted value is true.
fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::Registry;

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    fn parse(text: &str) -> Result<(EnabledVersions, Vec<String>), RuntimeConfigErrors> {
        EnabledVersions::parse(text.split(','), &names())
    }

    /// Returns which of these paths a configuration serves.
    fn served_paths<'a>(text: &str, paths: &[&'a str]) -> Vec<&'a str> {
        let registry = Registry::with_versions(&names(), &parse(text).unwrap().0);
        let is_served = |path: &&&str| {
            let parts: Vec<&str> = path.split('/').collect();
            registry.find(parts[0], parts[1], parts[2]).is_some()
        };
        paths.iter().filter(is_served).copied().collect()
    }

    #[test]
    fn each_key_form_enables_or_disables_its_versions() {
        const PATHS: [&str; 6] = [
            "/v1/pods",
            "batch/v1/jobs",
            "networking.k8s.io/v1/ipaddresses",
            "networking.k8s.io/v1beta1/ipaddresses",
            "networking.k8s.io/v1beta1/servicecidrs",
            "internal.apiserver.k8s.io/v1alpha1/storageversions",
        ];
        let [pods, jobs, addresses, beta_addresses, beta_ranges, alpha] = PATHS;
        for (text, expected) in [
            ("", vec![pods, jobs, addresses]),
            ("batch/v1=false", vec![pods, addresses]),
            ("v1=false", vec![jobs, addresses]),
            ("/v1=false", vec![jobs, addresses]),
            ("batch/v1/jobs=false", vec![pods, addresses]),
            ("networking.k8s.io/v1beta1", vec![pods, jobs, addresses, beta_addresses, beta_ranges]),
            ("networking.k8s.io/v1beta1/servicecidrs=true", vec![pods, jobs, addresses, beta_ranges]),
            (
                "networking.k8s.io/v1beta1=1,networking.k8s.io/v1beta1/servicecidrs=0",
                vec![pods, jobs, addresses, beta_addresses],
            ),
            (
                "networking.k8s.io/v1=false,networking.k8s.io/v1beta1",
                vec![pods, jobs, beta_addresses, beta_ranges],
            ),
            ("api/alpha=true", vec![pods, jobs, addresses, alpha]),
            ("api/beta=true", vec![pods, jobs, addresses, beta_addresses, beta_ranges]),
            ("api/ga=false", vec![]),
            ("api/all=true", PATHS.to_vec()),
            ("api/all=true,api/beta=false", vec![pods, jobs, addresses, alpha]),
            ("api/all=false,batch/v1", vec![jobs]),
            ("batch/v1=true,api/all=false", vec![jobs]),
            ("api/legacy=false", vec![pods, jobs, addresses]),
            ("batch/v1=false,batch/v1=true", vec![pods, jobs, addresses]),
        ] {
            assert_eq!(served_paths(text, &PATHS), expected, "{text}");
        }
    }

    #[test]
    fn excluded_resource_is_disabled_despite_its_keys() {
        let (mut enabled, _) = parse("networking.k8s.io/v1beta1/servicecidrs,api/beta=true").unwrap();
        assert_eq!(enabled.key_value("networking", "v1beta1", "servicecidrs"), Some(true));
        assert_eq!(enabled.key_value("networking", "v1beta1", "ipaddresses"), None);
        assert!(enabled.is_enabled("networking", "v1beta1", "ipaddresses"));
        for resource in ["servicecidrs", "ipaddresses"] {
            enabled.exclude("networking", "v1beta1", resource);
            assert!(!enabled.is_enabled("networking", "v1beta1", resource));
        }
        assert!(enabled.is_enabled("networking", "v1", "servicecidrs"));
    }

    #[test]
    fn invalid_keys_and_values_are_reported_together() {
        let errors = parse("batch,nosuch.k8s.io/v1,batch/v2alpha1,apps/v1=maybe,a/b/c/d,api/v2").unwrap_err();
        assert_eq!(
            errors.0,
            [
                "invalid key batch: not of the form GROUP/VERSION or GROUP/VERSION/RESOURCE",
                "unknown API group nosuch.k8s.io in the key nosuch.k8s.io/v1",
                "group version batch/v2alpha1 has not been registered",
                "invalid value of apps/v1: maybe is neither true nor false",
                "invalid key a/b/c/d: not of the form GROUP/VERSION or GROUP/VERSION/RESOURCE",
                "unknown API group api in the key api/v2",
            ]
        );
        assert!(parse("api/all=false").is_err());
    }

    #[test]
    fn keys_without_effect_cause_warnings() {
        for key in [
            "apps/v1beta1",
            "extensions/v1beta1=true",
            "batch/v1/widgets",
            "api/legacy=true",
            "api/v1",
            "api/v1=false",
        ] {
            let (enabled, warnings) = parse(key).unwrap();
            assert_eq!(warnings.len(), 1, "{key}: {warnings:?}");
            assert!(warnings[0].contains("no effect"), "{warnings:?}");
            let registry = Registry::with_versions(&names(), &enabled);
            assert_eq!(registry.resources().len(), Registry::new(&names()).resources().len());
        }
    }

    #[test]
    fn kind_of_feature_gate_is_enforced_with_gate_only() {
        let warns = |enabled: EnabledVersions| {
            let registry = Registry::with_versions(&names(), &enabled);
            let mut stored = registry.stored();
            stored.find(|resource| resource.name() == "MutatingAdmissionPolicy").unwrap().unenforced
        };
        let (enabled, _) = parse("admissionregistration.k8s.io/v1alpha1=true").unwrap();
        assert!(
            warns(enabled.clone()).unwrap().warning.contains("feature gate MutatingAdmissionPolicy is off")
        );
        assert!(warns(enabled.with_gates(["MutatingAdmissionPolicy"])).is_none());
    }

    #[test]
    fn disabled_kinds_keep_their_storage_keys() {
        let (enabled, _) =
            parse("batch/v1=false,networking.k8s.io/v1=false,networking.k8s.io/v1beta1").unwrap();
        let registry = Registry::with_versions(&names(), &enabled);
        assert!(registry.find("batch", "v1", "jobs").is_none());
        assert_eq!(registry.of_key("batch/jobs/a/b").unwrap().name(), "Job");
        assert!(registry.find_stored("batch", "v1", "jobs").is_some());
        let addresses = registry.find("networking.k8s.io", "v1beta1", "ipaddresses").unwrap();
        assert_eq!(addresses.stored().api_version(), "networking.k8s.io/v1");
        assert!(registry.stored().any(|stored| std::ptr::eq(&**stored, addresses.stored())));
        let custom = registry.with_custom(Vec::new());
        assert!(custom.find_stored("batch", "v1", "jobs").is_some());
    }
}
