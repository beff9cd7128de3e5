//! Semantic versions (Semantic Versioning 2.0.0).

use std::cmp::Ordering;

use crate::cost::CallCost::{Fixed, Text};
use crate::error::EvalError;
use crate::value::{Opaque, Value};

use super::{Function, Library, library_value};

/// Functions since 1.34: available to stored expressions only.
pub(super) static LIBRARY: Library = Library {
    since: 34,
    functions: &[
        Function::new(&["isSemver(string) -> bool", "isSemver(string, bool) -> bool"], Text(1), |a| {
            let (text, normalize) = text_and_flag(a)?;
            Ok(Value::Bool(Version::parse(text, normalize).is_some()))
        }),
        Function::new(
            &["semver(string) -> semver.Version", "semver(string, bool) -> semver.Version"],
            Text(1),
            |a| {
                let (text, normalize) = text_and_flag(a)?;
                let message = || format!("{text:?} is not a semantic version");
                Version::parse(text, normalize).map(Value::opaque).ok_or_else(|| EvalError::failed(message()))
            },
        ),
        Function::new(&[".semver.Version.major() -> int"], Fixed(1), |a| version_part(a, |v| v.major)),
        Function::new(&[".semver.Version.minor() -> int"], Fixed(1), |a| version_part(a, |v| v.minor)),
        Function::new(&[".semver.Version.patch() -> int"], Fixed(1), |a| version_part(a, |v| v.patch)),
        Function::new(&[".semver.Version.isLessThan(semver.Version) -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(compare_versions(a)? == Ordering::Less))
        }),
        Function::new(&[".semver.Version.isGreaterThan(semver.Version) -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(compare_versions(a)? == Ordering::Greater))
        }),
        Function::new(&[".semver.Version.compareTo(semver.Version) -> int"], Fixed(1), |a| {
            Ok(Value::Int(compare_versions(a)? as i64))
        }),
    ],
};

struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    /// Pre-release identifiers; empty for a release.
    pre_release: Vec<String>,
}

impl Opaque for Version {
    fn type_name(&self) -> &'static str {
        "semver.Version"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Version>().is_some_and(|other| self.precedence(other) == Ordering::Equal)
    }
}

impl Version {
    /// Parses a version. Normalization strips a leading `v` and leading zeros and fills missing parts.
    fn parse(text: &str, normalize: bool) -> Option<Version> {
        let text = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
        let (text, build) = text.split_once('+').map_or((text, None), |(t, b)| (t, Some(b)));
        let (core, pre_release) = text.split_once('-').map_or((text, None), |(t, b)| (t, Some(b)));
        let is_identifier =
            |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if build.is_some_and(|build| !build.split('.').all(is_identifier)) {
            return None;
        }
        let number = |part: &str| {
            let is_decimal = part.bytes().all(|b| b.is_ascii_digit());
            let has_valid_zeros = part == "0" || !part.starts_with('0') || normalize;
            part.parse::<u64>().ok().filter(|n| is_decimal && has_valid_zeros && i64::try_from(*n).is_ok())
        };
        let mut parts = core.split('.').map(number).collect::<Option<Vec<u64>>>()?;
        if normalize {
            while parts.len() < 3 {
                parts.push(0);
            }
        }
        let [major, minor, patch] = parts.try_into().ok()?;
        let pre_release: Vec<String> =
            pre_release.map(|b| b.split('.').map(str::to_owned).collect()).unwrap_or_default();
        let is_decimal = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if !pre_release
            .iter()
            .all(|part| is_identifier(part) && !(is_decimal(part) && part.len() > 1 && part.starts_with('0')))
        {
            return None;
        }
        Some(Version { major, minor, patch, pre_release })
    }

    fn precedence(&self, other: &Version) -> Ordering {
        let core = (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch));
        core.then_with(|| match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                let pairs = self.pre_release.iter().zip(&other.pre_release);
                let difference = pairs.map(|(a, b)| compare_identifiers(a, b)).find(|order| order.is_ne());
                difference.unwrap_or_else(|| self.pre_release.len().cmp(&other.pre_release.len()))
            }
        })
    }
}

/// Order of pre-release identifiers: numbers by value, before words; words by characters.
fn compare_identifiers(a: &str, b: &str) -> Ordering {
    let number = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    match (number(a), number(b)) {
        (true, true) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => a.cmp(b),
    }
}

fn text_and_flag<'v>(arguments: &'v [Value<'_>]) -> Result<(&'v str, bool), EvalError> {
    match arguments {
        [Value::String(s)] => Ok((s.as_str(), false)),
        [Value::String(s), Value::Bool(normalize)] => Ok((s.as_str(), *normalize)),
        _ => Err(EvalError::NoOverload),
    }
}

fn version_part<'a>(arguments: &[Value<'a>], f: fn(&Version) -> u64) -> Result<Value<'a>, EvalError> {
    Ok(Value::Int(i64::try_from(f(library_value(arguments)?)).unwrap_or(i64::MAX)))
}

fn compare_versions(arguments: &[Value<'_>]) -> Result<Ordering, EvalError> {
    match arguments {
        [left, right] => match (left.downcast::<Version>(), right.downcast::<Version>()) {
            (Some(left), Some(right)) => Ok(left.precedence(right)),
            _ => Err(EvalError::NoOverload),
        },
        _ => Err(EvalError::NoOverload),
    }
}
