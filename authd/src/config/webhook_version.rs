//! The value of the flags that select the version of a review.

use crate::webhook::Version;

/// Parses the value of a flag; the default is `v1beta1`. An invalid value adds an error.
pub(super) fn parse(value: Option<&str>, flag: &str, errors: &mut Vec<String>) -> Version {
    let Some(value) = value else { return Version::V1Beta1 };
    Version::parse(value).unwrap_or_else(|| {
        errors.push(format!("{flag}: unknown version `{value}`: use `v1` or `v1beta1`"));
        Version::V1Beta1
    })
}
