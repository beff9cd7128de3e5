//! Parses the flags that select the API version of the reviews of a webhook.

use crate::config_error::ConfigError;
use crate::webhook::Version;

/// Parses the value of `flag`. An absent value means `v1beta1`, and so does an invalid value, with an error.
pub(super) fn parse(value: Option<&str>, flag: &str, errors: &mut Vec<ConfigError>) -> Version {
    let Some(value) = value else { return Version::V1Beta1 };
    Version::parse(value).unwrap_or_else(|| {
        let problem = format!("unknown version `{value}`: use `v1` or `v1beta1`");
        errors.push(ConfigError::flag(flag, problem));
        Version::V1Beta1
    })
}
