//! Lifecycle of API versions: the releases that introduce, deprecate and remove each kind in each version.
//!
//! # Contract
//!
//! The table is `data/lifecycle.csv`. It has one row for each version of each built-in kind, whether the
//! version is served, off by default, or removed. The column `group` contains the stem of the group. An empty
//! cell means that no release deprecates or removes the version, or that it has no replacement. The column
//! `replacement` contains a group stem, a version and a kind. The column `changes` describes how the
//! replacement differs, as free text. Warnings, metrics and audit annotations of the server, `apid
//! deprecations` and the tests read this table. Tests of the migration enforce the deprecation rules on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;

/// The Kubernetes release whose API this program implements.
pub const CURRENT: Release = Release(33);

/// The maximum number of releases from the introduction of a beta version to its deprecation, and the minimum
/// number from its deprecation to its removal. The policy is 9 months, or 3 releases if that is longer.
pub const BETA_RELEASES: u32 = 3;

static TABLE: LazyLock<Vec<Version>> = LazyLock::new(|| {
    include_str!("../data/lifecycle.csv").lines().skip(1).filter_map(Version::parse).collect()
});

/// A group stem, a version name, and a kind or a plural name.
type Key = (&'static str, &'static str, &'static str);

static BY_KIND: LazyLock<HashMap<Key, &'static Version>> =
    LazyLock::new(|| TABLE.iter().map(|row| ((row.group, row.version, row.kind), row)).collect());

static BY_RESOURCE: LazyLock<HashMap<Key, &'static Version>> =
    LazyLock::new(|| TABLE.iter().map(|row| ((row.group, row.version, row.resource), row)).collect());

/// The Kubernetes release 1.x, where x is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32);

impl Release {
    fn parse(text: &str) -> Option<Self> {
        text.strip_prefix("1.")?.parse().ok().map(Release)
    }

    /// The release that is a number of minor releases later.
    #[must_use]
    pub fn plus(self, releases: u32) -> Self {
        Release(self.0.saturating_add(releases))
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// Stability of an API version, from the least to the most stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Off by default; any release can remove it.
    Alpha,
    /// A later release deprecates and removes the version; [`BETA_RELEASES`] limits the times.
    Beta,
    /// Never removed within a major version.
    Stable,
}

impl Stage {
    /// The stage of a version name: `v1alpha1`, `v1beta1`, `v1`.
    #[must_use]
    pub fn of_version(version: &str) -> Self {
        match version {
            _ if version.contains("alpha") => Stage::Alpha,
            _ if version.contains("beta") => Stage::Beta,
            _ => Stage::Stable,
        }
    }
}

/// The group, version and kind to use instead of a deprecated version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Group stem.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
}

impl Replacement {
    fn parse(text: &'static str) -> Option<Self> {
        let (api_version, kind) = text.split_once(' ')?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        Some(Replacement { group, version, kind })
    }

    /// Group and version under a names preset.
    #[must_use]
    pub fn group_version(&self, names: &Names) -> GroupVersion {
        GroupVersion { group: names.group(self.group), version: self.version.to_owned() }
    }
}

/// The lifecycle of one kind in one version.
#[derive(Clone, Debug)]
pub struct Version {
    /// Group stem.
    pub group: &'static str,
    /// Version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Lower-case plural, as in URLs.
    pub resource: &'static str,
    /// Stability.
    pub stage: Stage,
    /// First release with this version.
    pub introduced: Release,
    /// Release that announces the deprecation.
    pub deprecated: Option<Release>,
    /// First release without this version.
    pub removed: Option<Release>,
    /// The version to use instead.
    pub replacement: Option<Replacement>,
    /// Differences of the replacement from this version, or advice if none replaces the version. Empty: no
    /// difference.
    pub changes: &'static str,
}

impl Version {
    /// Parses a row. Returns None if the row is malformed; a test proves that no row is.
    fn parse(line: &'static str) -> Option<Self> {
        let mut cells = line.splitn(10, ',');
        let mut cell = || cells.next();
        let (group, version, kind, resource) = (cell()?, cell()?, cell()?, cell()?);
        let stage = match cell()? {
            "alpha" => Stage::Alpha,
            "beta" => Stage::Beta,
            "stable" => Stage::Stable,
            _ => return None,
        };
        let introduced = Release::parse(cell()?)?;
        let (deprecated, removed) = (Release::parse(cell()?), Release::parse(cell()?));
        let replacement = Replacement::parse(cell()?);
        let changes = cell()?;
        Some(Version {
            group,
            version,
            kind,
            resource,
            stage,
            introduced,
            deprecated,
            removed,
            replacement,
            changes,
        })
    }

    /// Group and version under a names preset.
    #[must_use]
    pub fn group_version(&self, names: &Names) -> GroupVersion {
        GroupVersion { group: names.group(self.group), version: self.version.to_owned() }
    }

    /// Whether a release has deprecated this version.
    #[must_use]
    pub fn is_deprecated(&self, release: Release) -> bool {
        self.deprecated.is_some_and(|deprecated| deprecated <= release)
    }

    /// Whether a release no longer has this version.
    #[must_use]
    pub fn is_removed(&self, release: Release) -> bool {
        self.removed.is_some_and(|removed| removed <= release)
    }

    /// The warning of the current release for requests to this version; None if it is not deprecated.
    #[must_use]
    pub fn warning(&self, names: &Names) -> Option<String> {
        let deprecated = self.deprecated.filter(|deprecated| *deprecated <= CURRENT)?;
        let mut text = format!("{} {} is deprecated in v{deprecated}+", self.group_version(names), self.kind);
        if let Some(removed) = self.removed {
            text.push_str(&format!(", unavailable in v{removed}+"));
        }
        if let Some(replacement) = &self.replacement {
            text.push_str(&format!("; use {} {}", replacement.group_version(names), replacement.kind));
        }
        Some(text)
    }
}

/// All versions, by group, version and kind.
pub fn versions() -> &'static [Version] {
    &TABLE
}

/// The version of a group stem, a version name and a kind.
pub fn of_kind(group: &str, version: &str, kind: &str) -> Option<&'static Version> {
    BY_KIND.get(&(group, version, kind)).copied()
}

/// The version of a group stem, a version name and a plural name.
pub fn of_resource(group: &str, version: &str, resource: &str) -> Option<&'static Version> {
    BY_RESOURCE.get(&(group, version, resource)).copied()
}
