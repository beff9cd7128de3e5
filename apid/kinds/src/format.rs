//! Validation of object names by the rule of their kind, and of labels and keys.
//!
//! # Contract
//!
//! [`name`] applies a [`NameRule`]. The other functions are those of [`apimachinery::format`]. Each returns
//! the error messages of Kubernetes, or an empty list if the text is valid.

pub use apimachinery::format::{
    config_key, label, label_1035, label_value, path_segment, qualified_name, subdomain,
};

use crate::NameRule;

/// Validates an object name under a rule.
/// With `prefix` the text is a `generateName`, which may end with a dash.
pub fn name(rule: NameRule, text: &str, prefix: bool) -> Vec<String> {
    // The generated suffix follows the trailing dash, so the dash is inside the name.
    let masked = match text.strip_suffix('-') {
        Some(head) if prefix && !head.is_empty() => format!("{head}a"),
        _ => text.to_owned(),
    };
    match rule {
        NameRule::Subdomain => subdomain(&masked),
        NameRule::Label => label(&masked),
        NameRule::Label1035 => label_1035(&masked),
        NameRule::PathSegment => path_segment(text, prefix),
    }
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
    fn object_names_are_validated_by_rule() {
        let long = "a".repeat(254);
        check_all(
            |t| name(NameRule::Subdomain, t, false),
            &["a", "a-b.c", "0", &"a".repeat(253)],
            &[("", 1), ("A", 1), ("a_b", 1), ("-a", 1), ("a.", 1), ("a..b", 1), (&long, 1), ("é", 1)],
        );
        check_all(|t| name(NameRule::Label, t, false), &["a", "1-a"], &[("a.b", 1), (&"a".repeat(64), 1)]);
        check_all(|t| name(NameRule::Label1035, t, false), &["a", "a-1"], &[("1a", 1), ("a-", 1)]);
        check_all(
            |t| name(NameRule::PathSegment, t, false),
            &["a:b", "team X_1", "...", "é"],
            &[(".", 1), ("..", 1), ("a/b", 1), ("100%", 1), ("/%", 2)],
        );
        check_all(|t| name(NameRule::Subdomain, t, true), &["a-", "a", "a.-"], &[("-", 1), ("Oops_", 1)]);
        check_all(|t| name(NameRule::PathSegment, t, true), &[".", "..", "gen:"], &[("a/", 1)]);
    }
}
