//! Compatibility versions: the emulated release of a server, and the oldest release with which it is compatible.
//!
//! # Contract
//!
//! `--emulated-version` and `--min-compatibility-version` have values `1.MINOR` or `kube=1.MINOR`. The emulated
//! release is at least [`OLDEST_EMULATED`] and at most [`CURRENT`]. The oldest compatible release is at least
//! [`OLDEST_COMPATIBLE`] and at most the emulated release; its default is the release before the emulated one.
//!
//! # Errors
//!
//! [`CompatibilityVersions::parse`] returns all errors of both flags.

use std::fmt;

/// The current minor release (of 1.x), whose API the server implements.
pub const CURRENT: u32 = 33;
/// The oldest minor release that can be emulated.
pub const OLDEST_EMULATED: u32 = 31;
/// The oldest minor release with which the server can be compatible.
pub const OLDEST_COMPATIBLE: u32 = 30;

/// The only component whose version the flags set.
const COMPONENT: &str = "kube";

const EMULATED: &str = "--emulated-version";
const MIN_COMPATIBLE: &str = "--min-compatibility-version";

/// An error in the value of a flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{flag}`: {problem}")]
pub struct VersionError {
    /// The flag, with its dashes.
    pub flag: &'static str,
    /// The problem.
    pub problem: String,
}

/// The minor releases (of 1.x) of both flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompatibilityVersions {
    /// The emulated release.
    pub emulated: u32,
    /// The oldest compatible release.
    pub min_compatible: u32,
}

impl Default for CompatibilityVersions {
    fn default() -> Self {
        Self::from_emulated(CURRENT)
    }
}

impl CompatibilityVersions {
    /// Returns the versions for an emulated release; the oldest compatible release has its default.
    fn from_emulated(emulated: u32) -> Self {
        let min_compatible = emulated.saturating_sub(1).max(OLDEST_COMPATIBLE);
        CompatibilityVersions { emulated, min_compatible }
    }

    /// Parses the values of `--emulated-version` and `--min-compatibility-version`.
    ///
    /// # Errors
    ///
    /// All errors of both flags.
    pub fn parse(emulated: &[String], min_compatible: &[String]) -> Result<Self, Vec<VersionError>> {
        let mut errors = Vec::new();
        let mut parse_flag = |flag: &'static str, values: &[String]| {
            parse_component(values).unwrap_or_else(|problem| {
                errors.push(VersionError { flag, problem });
                None
            })
        };
        let emulated = parse_flag(EMULATED, emulated);
        let min_compatible = parse_flag(MIN_COMPATIBLE, min_compatible);
        let emulated = emulated.unwrap_or(Version { major: 1, minor: CURRENT });
        if !emulated.is_between(OLDEST_EMULATED, CURRENT) {
            let problem =
                format!("emulation version {emulated} is not between [1.{OLDEST_EMULATED}, 1.{CURRENT}.0]");
            errors.push(VersionError { flag: EMULATED, problem });
            return Err(errors);
        }
        let mut versions = Self::from_emulated(emulated.minor);
        if let Some(oldest) = min_compatible {
            if !oldest.is_between(OLDEST_COMPATIBLE, emulated.minor) {
                let problem = format!(
                    "minCompatibilityVersion version {oldest} is not between [1.{OLDEST_COMPATIBLE}, {emulated}]"
                );
                errors.push(VersionError { flag: MIN_COMPATIBLE, problem });
            }
            versions.min_compatible = oldest.minor;
        }
        if errors.is_empty() { Ok(versions) } else { Err(errors) }
    }

    /// Whether the server emulates an older release.
    pub fn is_emulation(&self) -> bool {
        self.emulated < CURRENT
    }
}

/// Major and minor number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    major: u32,
    minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    fn is_between(self, oldest: u32, newest: u32) -> bool {
        self.major == 1 && (oldest..=newest).contains(&self.minor)
    }

    /// Parses `MAJOR.MINOR`, with an optional patch of 0.
    fn parse(text: &str) -> Result<Self, String> {
        let numbers = text.trim().trim_start_matches('v').split('.').map(str::parse::<u32>);
        let numbers: Vec<u32> = numbers
            .collect::<Result<_, _>>()
            .map_err(|_| format!("could not parse \"{text}\" as version; use MAJOR.MINOR"))?;
        match numbers.as_slice() {
            [major, minor] | [major, minor, 0] => Ok(Version { major: *major, minor: *minor }),
            [_, _, _] => Err(format!("patch version not allowed, got: {COMPONENT}={text}")),
            _ => Err(format!("illegal version string \"{text}\"; use MAJOR.MINOR")),
        }
    }
}

/// Parses the values of one flag; None if there is no value.
fn parse_component(values: &[String]) -> Result<Option<Version>, String> {
    let mut found: Option<Version> = None;
    for value in values.iter().flat_map(|value| value.split(',')).filter(|value| !value.trim().is_empty()) {
        let (component, text) = value.split_once('=').unwrap_or((COMPONENT, value));
        if component.trim() != COMPONENT {
            return Err(format!("component not registered: {}; use `{COMPONENT}`", component.trim()));
        }
        let version = Version::parse(text.trim())?;
        if let Some(earlier) = found {
            return Err(format!("duplicate version flag, {COMPONENT}={earlier} and {COMPONENT}={version}"));
        }
        found = Some(version);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(emulated: &[&str], oldest: &[&str]) -> Result<(u32, u32), Vec<VersionError>> {
        let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let versions = CompatibilityVersions::parse(&owned(emulated), &owned(oldest))?;
        Ok((versions.emulated, versions.min_compatible))
    }

    #[test]
    fn emulated_version_sets_the_oldest_compatible_version() {
        for (emulated, oldest, expected) in [
            (&[][..], &[][..], (33, 32)),
            (&["1.33"], &[], (33, 32)),
            (&["1.32"], &[], (32, 31)),
            (&["kube=1.31"], &[], (31, 30)),
            (&["v1.32.0"], &["kube=1.30"], (32, 30)),
            (&[], &["1.33"], (33, 33)),
            (&["1.32"], &["1.32"], (32, 32)),
        ] {
            assert_eq!(parse(emulated, oldest), Ok(expected), "{emulated:?} {oldest:?}");
        }
        assert!(!CompatibilityVersions::default().is_emulation());
    }

    #[test]
    fn invalid_compatibility_versions_return_errors_of_reference() {
        for (emulated, oldest, part) in [
            (&["1.30"][..], &[][..], "emulation version 1.30 is not between [1.31, 1.33.0]"),
            (&["1.34"], &[], "emulation version 1.34 is not between [1.31, 1.33.0]"),
            (&["2.32"], &[], "emulation version 2.32 is not between [1.31, 1.33.0]"),
            (&["1.32.1"], &[], "patch version not allowed, got: kube=1.32.1"),
            (&["x"], &[], "could not parse \"x\" as version"),
            (&["1"], &[], "illegal version string \"1\""),
            (&["wardle=1.2"], &[], "component not registered: wardle"),
            (&["1.32", "kube=1.31"], &[], "duplicate version flag, kube=1.32 and kube=1.31"),
            (&["1.32"], &["1.33"], "minCompatibilityVersion version 1.33 is not between [1.30, 1.32]"),
            (&[], &["1.29"], "minCompatibilityVersion version 1.29 is not between [1.30, 1.33]"),
        ] {
            let errors = parse(emulated, oldest).unwrap_err();
            assert!(
                errors.len() == 1 && errors[0].to_string().contains(part),
                "{emulated:?} {oldest:?}: {errors:?}"
            );
        }
        assert_eq!(parse(&["x"], &["y"]).unwrap_err().len(), 2);
    }
}
