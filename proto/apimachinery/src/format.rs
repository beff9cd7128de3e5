//! Validation of names, labels and keys.
//! Each function returns the error messages of Kubernetes, or an empty list if the text is valid.
//!
//! # Reference
//!
//! RFC 1035 section 2.3.1, RFC 1123 section 2.1; the specification's naming rules (requirements D-NAME-18,
//! D-META-29).

/// Maximum length of a DNS subdomain in bytes.
const SUBDOMAIN_MAX: usize = 253;
/// Maximum length of a DNS label in bytes.
const LABEL_MAX: usize = 63;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const WILDCARD_SUBDOMAIN: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// Validates an RFC 1123 subdomain.
pub fn subdomain(text: &str) -> Vec<String> {
    check_length_and_form(text, SUBDOMAIN_MAX, SUBDOMAIN, |t| t.split('.').all(is_dns_label))
}

/// Validates an RFC 1123 subdomain whose first label is a wildcard: `*.example.com`.
pub fn wildcard_subdomain(text: &str) -> Vec<String> {
    check_length_and_form(text, SUBDOMAIN_MAX, WILDCARD_SUBDOMAIN, |t| {
        t.strip_prefix("*.").is_some_and(|rest| rest.split('.').all(is_dns_label))
    })
}

/// Validates an RFC 1123 label.
pub fn label(text: &str) -> Vec<String> {
    let message = if text.split('.').all(is_dns_label) { "must not contain dots" } else { LABEL };
    check_length_and_form(text, LABEL_MAX, message, is_dns_label)
}

/// Validates an RFC 1035 label.
pub fn label_1035(text: &str) -> Vec<String> {
    check_length_and_form(text, LABEL_MAX, LABEL_1035, |t| {
        is_dns_label(t) && t.starts_with(|c: char| c.is_ascii_lowercase())
    })
}

/// Validates a segment of a URL path, or the beginning of a segment if `prefix` is true.
pub fn path_segment(text: &str, prefix: bool) -> Vec<String> {
    let mut errors = Vec::new();
    if !prefix && (text == "." || text == "..") {
        errors.push(format!("may not be '{text}'"));
    }
    errors.extend(['/', '%'].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")));
    errors
}

/// Validates a qualified name `[prefix/]name`: a label key or a finalizer.
pub fn qualified_name(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split_once('/') {
        None => (None, text),
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    let mut errors = Vec::new();
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => errors.extend(subdomain(prefix).iter().map(|e| format!("prefix part {e}"))),
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        errors.push(format!("name part {}", too_many_bytes(LABEL_MAX)));
    }
    if !is_label_text(name) {
        errors.push(format!("name part {QUALIFIED}"));
    }
    errors
}

/// Validates a label value.
pub fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_MAX {
        errors.push(too_many_bytes(LABEL_MAX));
    }
    if !text.is_empty() && !is_label_text(text) {
        errors.push(LABEL_VALUE.to_owned());
    }
    errors
}

/// Validates a data key of a ConfigMap or Secret, which volumes use as a file name.
pub fn config_key(text: &str) -> Vec<String> {
    let mut errors = check_length_and_form(text, SUBDOMAIN_MAX, CONFIG_KEY, |t| {
        !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    });
    match text {
        "." => errors.push("must not be '.'".to_owned()),
        ".." => errors.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// Returns the errors of a text: its length above `max`, and `message` if `valid` is false.
fn check_length_and_form(text: &str, max: usize, message: &str, valid: impl Fn(&str) -> bool) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > max {
        errors.push(too_long(max));
    }
    if !valid(text) {
        errors.push(message.to_owned());
    }
    errors
}

/// Message for labels and qualified names. For other names kube-apiserver says "characters" ([`too_long`]).
fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Whether the text matches `[a-z0-9]([-a-z0-9]*[a-z0-9])?`; any length.
fn is_dns_label(text: &str) -> bool {
    let is_dns_character = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(is_dns_character) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether the text matches `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`.
fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_label_character = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_edge_character = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    is_edge_character(bytes.first())
        && is_edge_character(bytes.last())
        && bytes.iter().copied().all(is_label_character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_all(format: impl Fn(&str) -> Vec<String>, good: &[&str], bad: &[(&str, usize)]) {
        for text in good {
            assert_eq!(format(text), [""; 0], "`{text}`");
        }
        for (text, errors) in bad {
            assert_eq!(format(text).len(), *errors, "`{text}`: {:?}", format(text));
        }
    }

    #[test]
    fn dns_names_are_validated() {
        let long = "a".repeat(254);
        check_all(
            subdomain,
            &["a", "a-b.c", "0", &"a".repeat(253)],
            &[("", 1), ("A", 1), ("a_b", 1), ("-a", 1), ("a.", 1), ("a..b", 1), (&long, 1), ("é", 1)],
        );
        check_all(label, &["a", "1-a"], &[("a.b", 1), (&"a".repeat(64), 1)]);
        check_all(label_1035, &["a", "a-1"], &[("1a", 1), ("a-", 1)]);
    }

    #[test]
    fn labels_and_config_keys_are_validated() {
        check_all(
            qualified_name,
            &["a", "a.b/C_d", "A.b-c", &"a".repeat(63)],
            &[
                ("", 2),
                ("a b", 1),
                ("a/b/c", 1),
                ("/n", 1),
                ("UPPER.x/n", 1),
                ("x/", 2),
                (&"a".repeat(64), 1),
                ("-x", 1),
            ],
        );
        assert_eq!(label_value(&"v".repeat(64)), ["must be no more than 63 bytes"]);
        assert_eq!(label_1035(&"v".repeat(64)), ["must be no more than 63 characters"]);
        check_all(label_value, &["", "a", "A_b.c-1"], &[("-a", 1), ("a!", 1), (&"v".repeat(64), 1)]);
        check_all(
            config_key,
            &["a", ".a", "-", "A_B.c"],
            &[("", 1), ("bad key!", 1), (".", 1), ("..", 1), ("..a", 1)],
        );
    }
}
