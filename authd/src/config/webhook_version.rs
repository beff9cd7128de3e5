//! The value of the flags that select the version of a review.

use crate::config_error::ConfigError;
use crate::webhook::Version;

/// Parses the value of a flag; the default is `v1beta1`. An invalid value adds an error.
pub(super) fn parse(value: Option<&str>, flag: &str, errors: &mut Vec<ConfigError>) -> Version {
    let Some(value) = value else { return Version::V1Beta1 };
    Version::parse(value).unwrap_or_else(|| {
        let problem = format!("unknown version `{value}`: use `v1` or `v1beta1`");
        errors.push(ConfigError::flag(flag, problem));
        Version::V1Beta1
    })
}
