//! Validation of object names by the rule of their kind, and of labels and keys.
//!
//! # Contract
//!
//! [`name`] applies a [`NameRule`]. The other functions check one format each; some are re-exported from
//! [`apimachinery::format`]. Each function except [`is_sysctl`] returns the error messages of Kubernetes, or
//! an empty list if the text is valid.

pub use apimachinery::format::{
    config_key, label, label_1035, label_value, path_segment, qualified_name, subdomain, wildcard_subdomain,
};

use crate::NameRule;

/// Maximum length, in bytes, of a port name.
const PORT_NAME_MAX: usize = 15;
/// Maximum length, in bytes, of a subdomain.
const SUBDOMAIN_MAX: usize = 253;
/// Maximum length, in bytes, of a sysctl name.
const SYSCTL_MAX: usize = 253;

const SUBDOMAIN_WITH_UNDERSCORES: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')";
const VARIABLE_NAME: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";
const PERCENT: &str = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
const HTTP_HEADER_NAME: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
/// Message for an invalid sysctl name.
pub const SYSCTL: &str = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

/// Validates an RFC 1123 subdomain. Labels may contain and begin with underscores.
pub fn subdomain_with_underscores(text: &str) -> Vec<String> {
    let is_alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &str| {
        let rest = label.strip_prefix('_').unwrap_or(label);
        rest.bytes().all(|b| is_alphanumeric(b) || matches!(b, b'-' | b'_'))
            && rest.bytes().next().is_some_and(is_alphanumeric)
            && rest.bytes().next_back().is_some_and(is_alphanumeric)
    };
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_MAX {
        errors.push(format!("must be no more than {SUBDOMAIN_MAX} characters"));
    }
    if !text.split('.').all(is_label) {
        errors.push(SUBDOMAIN_WITH_UNDERSCORES.to_owned());
    }
    errors
}

/// Validates an object name under a rule.
/// If `is_prefix`, the text is a `generateName`, which may end with a dash.
pub fn name(rule: NameRule, text: &str, is_prefix: bool) -> Vec<String> {
    // The generated suffix follows the trailing dash, so the dash is inside the name.
    let checked_text = match text.strip_suffix('-') {
        Some(head) if is_prefix && !head.is_empty() => format!("{head}a"),
        _ => text.to_owned(),
    };
    match rule {
        NameRule::Subdomain => subdomain(&checked_text),
        NameRule::Label => label(&checked_text),
        NameRule::Label1035 => label_1035(&checked_text),
        NameRule::PathSegment => path_segment(text, is_prefix),
        NameRule::ConfigKey => config_key(text),
        NameRule::GroupResource => group_resource(text),
        NameRule::ByStrategy => Vec::new(),
    }
}

/// Validates a name that consists of a group name, a dot and a plural name.
fn group_resource(text: &str) -> Vec<String> {
    let Some((group, resource)) = text.rsplit_once('.') else {
        return vec!["name must be in the form of <group>.<resource>".to_owned()];
    };
    let group_errors = subdomain(group).into_iter().map(|message| format!("the group segment {message}"));
    let resource_errors =
        label_1035(resource).into_iter().map(|message| format!("the resource segment {message}"));
    group_errors.chain(resource_errors).collect()
}

/// Validates a port name: an IANA service name.
pub fn port_name(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > PORT_NAME_MAX {
        errors.push(format!("must be no more than {PORT_NAME_MAX} characters"));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// Validates a percentage such as `25%`.
pub fn percent(text: &str) -> Vec<String> {
    let digits = text.strip_suffix('%').unwrap_or("");
    let is_valid = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if is_valid { Vec::new() } else { vec![PERCENT.to_owned()] }
}

/// Validates the name of an environment variable: printable ASCII characters other than `=`.
pub fn variable_name(text: &str) -> Vec<String> {
    let is_valid = !text.is_empty() && text.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=');
    if is_valid { Vec::new() } else { vec![VARIABLE_NAME.to_owned()] }
}

/// Validates the name of an HTTP header.
pub fn http_header_name(text: &str) -> Vec<String> {
    let is_valid = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if is_valid { Vec::new() } else { vec![HTTP_HEADER_NAME.to_owned()] }
}

/// Whether a text is the name of a sysctl, with dots or slashes.
pub fn is_sysctl(text: &str) -> bool {
    let is_word = |word: &str| {
        let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        edge(word.bytes().next())
            && edge(word.bytes().next_back())
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
    };
    text.len() <= SYSCTL_MAX && text.split(['.', '/']).all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_port_name_lacks_characters_and_a_letter() {
        assert_eq!(port_name("").len(), 2);
        assert_eq!(port_name("http"), [""; 0]);
    }

    #[test]
    fn object_names_are_validated_by_rule() {
        /// Rule, whether the text is a prefix, text, number of errors.
        type Row = (NameRule, bool, &'static str, usize);
        let table: &[Row] = &[
            (NameRule::Subdomain, false, "a-b.c", 0),
            (NameRule::Subdomain, false, "a_b", 1),
            (NameRule::Subdomain, false, "a-", 1),
            (NameRule::Subdomain, true, "a-", 0),
            (NameRule::Subdomain, true, "a.-", 0),
            (NameRule::Subdomain, true, "-", 1),
            (NameRule::Subdomain, true, "Oops_", 1),
            (NameRule::Label, false, "1-a", 0),
            (NameRule::Label, false, "a.b", 1),
            (NameRule::Label1035, false, "a-1", 0),
            (NameRule::Label1035, false, "1a", 1),
            (NameRule::PathSegment, false, "team X_1", 0),
            (NameRule::PathSegment, false, "...", 0),
            (NameRule::PathSegment, false, "..", 1),
            (NameRule::PathSegment, false, "a/b", 1),
            (NameRule::PathSegment, false, "/%", 2),
            (NameRule::PathSegment, true, "..", 0),
            (NameRule::PathSegment, true, "gen:", 0),
            (NameRule::PathSegment, true, "a/", 1),
        ];
        for (rule, is_prefix, text, errors) in table {
            let found = name(*rule, text, *is_prefix);
            assert_eq!(found.len(), *errors, "{rule:?} `{text}`: {found:?}");
        }
    }
}
