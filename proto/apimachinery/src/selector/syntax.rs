//! Syntax of label keys and values, with error texts.
//!
//! # Reference
//!
//! The texts are those of Kubernetes: clients show them. Lengths are bytes.

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
     must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
     validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
     must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// Maximum length in bytes of the name part of a label key, and of a label value.
const LONGEST_NAME: usize = 63;
/// Maximum length in bytes of the prefix of a label key.
const LONGEST_SUBDOMAIN: usize = 253;

/// Validates a label key (a qualified name: `name` or `prefix/name`); returns the errors.
pub fn qualified_name(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = key.split('/');
    let (name, prefix) = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => (name, None),
        (Some(prefix), Some(name), None) => (name, Some(prefix)),
        _ => {
            errors.push(format!(
                "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return errors;
        }
    };
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => errors.extend(subdomain(prefix).into_iter().map(|e| format!("prefix part {e}"))),
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LONGEST_NAME {
        errors.push(format!("name part must be no more than {LONGEST_NAME} bytes"));
    }
    if !is_name(name) {
        errors.push(format!("name part {NAME_RULE}"));
    }
    errors
}

/// Validates a label value; returns the errors.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LONGEST_NAME {
        errors.push(format!("must be no more than {LONGEST_NAME} bytes"));
    }
    if !value.is_empty() && !is_name(value) {
        errors.push(VALUE_RULE.to_owned());
    }
    errors
}

/// Validates a DNS subdomain (RFC 1123, lower case); returns the errors.
pub fn subdomain(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > LONGEST_SUBDOMAIN {
        errors.push(format!("must be no more than {LONGEST_SUBDOMAIN} characters"));
    }
    if !text.split('.').all(is_dns_label) {
        errors.push(SUBDOMAIN_RULE.to_owned());
    }
    errors
}

/// Whether a text consists of letters, digits and `-_.`, and begins and ends with a letter or digit.
fn is_name(text: &str) -> bool {
    let is_edge_character = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_edge_character(bytes.first())
        && is_edge_character(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether a text of any length consists of lower-case letters, digits and `-`, and has no `-` at its ends.
fn is_dns_label(text: &str) -> bool {
    let is_letter_or_digit = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_letter_or_digit)
        && bytes.last().is_some_and(is_letter_or_digit)
        && bytes.iter().all(|b| is_letter_or_digit(b) || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_are_validated_as_qualified_names() {
        let longest = format!("{}/{}", "d".repeat(253), "n".repeat(63));
        for key in ["a", "A.b_c-9", "example.com/name", "a-b.c/x", longest.as_str()] {
            assert!(qualified_name(key).is_empty(), "{key}: {:?}", qualified_name(key));
        }
        for (key, expected) in [
            ("", vec!["name part must be non-empty", "name part must consist of"]),
            ("a b", vec!["name part must consist of"]),
            ("-a", vec!["name part must consist of"]),
            ("/a", vec!["prefix part must be non-empty"]),
            ("a/", vec!["name part must be non-empty", "name part must consist of"]),
            ("A.com/a", vec!["prefix part a lowercase RFC 1123 subdomain must consist of"]),
            ("a..b/a", vec!["prefix part a lowercase RFC 1123 subdomain must consist of"]),
            ("a/b/c", vec!["a qualified name must consist of"]),
            (&"n".repeat(64), vec!["name part must be no more than 63 bytes"]),
            (&format!("{}/n", "d".repeat(254)), vec!["prefix part must be no more than 253 characters"]),
            ("é", vec!["name part must consist of"]),
        ] {
            let errors = qualified_name(key);
            assert_eq!(errors.len(), expected.len(), "{key}: {errors:?}");
            assert!(errors.iter().zip(&expected).all(|(e, w)| e.starts_with(w)), "{key}: {errors:?}");
        }
    }

    #[test]
    fn label_values_are_validated() {
        for value in ["", "a", "1.0_x-y", &"v".repeat(63)] {
            assert!(label_value(value).is_empty(), "{value}");
        }
        for value in ["-", "a b", "a/b", ".a", "ä", &"v".repeat(64)] {
            assert_eq!(label_value(value).len(), 1, "{value}");
        }
        assert_eq!(label_value(&"-".repeat(64)).len(), 2);
    }
}
