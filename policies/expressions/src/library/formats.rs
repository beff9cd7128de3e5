//! Named formats for the validation of text.
//!
//! `format.<name>()` is a format. Its method `validate` returns the list of violations, or an empty optional.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use regex::Regex;

use crate::cost::CallCost::{Custom, Fixed};
use crate::cost::regex_cost;
use crate::error::EvalError;
use crate::time;
use crate::value::{Opaque, Value};
use crate::value_facts::Estimate;

use super::{Function, Library, single_text};

/// Function that returns the violations of a text, as messages.
type Rule = fn(&str) -> Vec<String>;

/// A format for texts.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    rule: Rule,
    /// Length of the longest regular expression of the rule, which determines the cost of `validate`.
    pattern_length: u64,
}

/// Pattern length for the cost of formats without a regular expression.
const DEFAULT_PATTERN_LENGTH: u64 = 1_000;

/// All formats; the function of each is `format.<name>`.
static FORMATS: &[Format] = &[
    Format { name: "dns1123Label", rule: |s| dns_label(s, &LABEL_1123, 63), pattern_length: 30 },
    Format { name: "dns1123Subdomain", rule: |s| dns_label(s, &SUBDOMAIN, 253), pattern_length: 60 },
    Format { name: "dns1035Label", rule: |s| dns_label(s, &LABEL_1035, 63), pattern_length: 30 },
    Format { name: "qualifiedName", rule: qualified_name, pattern_length: 60 },
    Format {
        name: "dns1123LabelPrefix",
        rule: |s| dns_label(&without_dash(s), &LABEL_1123, 63),
        pattern_length: 30,
    },
    Format {
        name: "dns1123SubdomainPrefix",
        rule: |s| dns_label(&without_dash(s), &SUBDOMAIN, 253),
        pattern_length: 60,
    },
    Format {
        name: "dns1035LabelPrefix",
        rule: |s| dns_label(&without_dash(s), &LABEL_1035, 63),
        pattern_length: 30,
    },
    Format { name: "labelValue", rule: label_value, pattern_length: 40 },
    Format {
        name: "uri",
        rule: |s| violation_unless(super::urls::is_url(s), "must be an absolute URL or path"),
        pattern_length: DEFAULT_PATTERN_LENGTH,
    },
    Format { name: "uuid", rule: |s| check_pattern(s, &UUID), pattern_length: 70 },
    Format { name: "byte", rule: byte, pattern_length: DEFAULT_PATTERN_LENGTH },
    Format { name: "date", rule: date, pattern_length: DEFAULT_PATTERN_LENGTH },
    Format {
        name: "datetime",
        rule: |s| violation_unless(time::parse_timestamp(s).is_ok(), "must be a date-time of RFC 3339"),
        pattern_length: DEFAULT_PATTERN_LENGTH,
    },
];

/// Declares a function that returns the format with this name.
macro_rules! format_function {
    ($name:literal) => {
        Function::new(&[concat!("format.", $name, "() -> format.Format")], Fixed(1), |_| {
            find($name).map(Value::opaque).ok_or(EvalError::NoOverload)
        })
    };
}

/// Functions since 1.32.
pub(super) static LIBRARY: Library = Library {
    since: 32,
    functions: &[
        format_function!("dns1123Label"),
        format_function!("dns1123Subdomain"),
        format_function!("dns1035Label"),
        format_function!("qualifiedName"),
        format_function!("dns1123LabelPrefix"),
        format_function!("dns1123SubdomainPrefix"),
        format_function!("dns1035LabelPrefix"),
        format_function!("labelValue"),
        format_function!("uri"),
        format_function!("uuid"),
        format_function!("byte"),
        format_function!("date"),
        format_function!("datetime"),
        Function::new(&["format.named(string) -> optional(format.Format)"], Fixed(1), |a| {
            Ok(Value::Optional(find(single_text(a)?).map(|format| Arc::new(Value::opaque(format)))))
        }),
        Function::new(
            &[".format.Format.validate(string) -> optional(list(string))"],
            Custom(
                |a| match a {
                    [format, text] => {
                        regex_cost(text.size(), format.downcast::<Format>().map_or(1, |f| f.pattern_length))
                    }
                    _ => 1,
                },
                |a| match a {
                    [_, text] => Estimate { min: 1, max: regex_cost(text.size.max, DEFAULT_PATTERN_LENGTH) },
                    _ => Estimate::UNKNOWN,
                },
            ),
            |a| match a {
                [format, Value::String(text)] => {
                    let format = format.downcast::<Format>().ok_or(EvalError::NoOverload)?;
                    let violations = (format.rule)(text.as_str());
                    let list = Value::list(violations.into_iter().map(Value::text).collect());
                    Ok(Value::Optional((!list.is_zero()).then(|| Arc::new(list))))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
    ],
};

impl Opaque for Format {
    fn type_name(&self) -> &'static str {
        "format.Format"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Format>().is_some_and(|other| other.name == self.name)
    }
}

fn find(name: &str) -> Option<Format> {
    FORMATS.iter().find(|format| format.name == name).copied()
}

/// A regular expression and its description in messages.
struct FormatPattern {
    regex: Option<Regex>,
    message: &'static str,
}

macro_rules! pattern {
    ($id:ident, $pattern:literal, $message:literal) => {
        static $id: LazyLock<FormatPattern> = LazyLock::new(|| FormatPattern {
            regex: Regex::new($pattern).ok(),
            message: concat!($message, " (", $pattern, ")"),
        });
    };
}

pattern!(
    LABEL_1123,
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "must be lower case letters, digits or '-', with a letter or digit at both ends"
);
pattern!(
    LABEL_1035,
    "^[a-z]([-a-z0-9]*[a-z0-9])?$",
    "must be lower case letters, digits or '-', with a letter first and a letter or digit last"
);
pattern!(
    SUBDOMAIN,
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "must be labels of lower case letters, digits or '-', separated by dots"
);
pattern!(
    NAME_PART,
    "^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$",
    "must be letters, digits, '-', '_' or '.', with a letter or digit at both ends"
);
pattern!(
    UUID,
    "^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$",
    "does not match the form of a UUID"
);

fn check_pattern(s: &str, pattern: &FormatPattern) -> Vec<String> {
    violation_unless(pattern.regex.as_ref().is_some_and(|regex| regex.is_match(s)), pattern.message)
}

fn violation_unless(is_valid: bool, message: &str) -> Vec<String> {
    if is_valid { Vec::new() } else { vec![message.to_owned()] }
}

fn too_long(s: &str, max_bytes: usize) -> Option<String> {
    (s.len() > max_bytes).then(|| format!("must be no more than {max_bytes} bytes"))
}

fn dns_label(s: &str, pattern: &FormatPattern, max_bytes: usize) -> Vec<String> {
    let mut violations: Vec<String> = too_long(s, max_bytes).into_iter().collect();
    violations.extend(check_pattern(s, pattern));
    violations
}

/// Replaces a dash at the end of a text with a letter.
///
/// A `generateName` prefix may end with a dash; validation checks it like a name.
fn without_dash(s: &str) -> String {
    match s.strip_suffix('-') {
        Some(head) if !head.is_empty() => format!("{head}a"),
        _ => s.to_owned(),
    }
}

fn qualified_name(s: &str) -> Vec<String> {
    let (mut violations, name) = match s.split_once('/') {
        None => (Vec::new(), s),
        Some(("", name)) => (vec!["prefix part must be non-empty".to_owned()], name),
        Some((prefix, name)) => (dns_label(prefix, &SUBDOMAIN, 253), name),
    };
    if name.is_empty() {
        violations.push("name part must be non-empty".to_owned());
    }
    violations.extend(too_long(name, 63));
    violations.extend(check_pattern(name, &NAME_PART));
    violations
}

fn label_value(s: &str) -> Vec<String> {
    let mut violations: Vec<String> = too_long(s, 63).into_iter().collect();
    if !s.is_empty() {
        violations.extend(check_pattern(s, &NAME_PART));
    }
    violations
}

fn byte(s: &str) -> Vec<String> {
    violation_unless(base64::engine::general_purpose::STANDARD.decode(s).is_ok(), "must be base64")
}

fn date(s: &str) -> Vec<String> {
    violation_unless(s.len() == 10 && time::parse_field(s).is_ok(), "must be a date such as 2006-01-02")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_function_and_valid_pattern() {
        let declared: Vec<&str> = LIBRARY.functions.iter().flat_map(|f| f.declares.iter().copied()).collect();
        for format in FORMATS {
            let text = format!("format.{}() -> format.Format", format.name);
            assert!(declared.contains(&text.as_str()), "{text}");
        }
        for pattern in [&LABEL_1123, &LABEL_1035, &SUBDOMAIN, &NAME_PART, &UUID] {
            assert!(pattern.regex.is_some(), "{}", pattern.message);
        }
    }
}
