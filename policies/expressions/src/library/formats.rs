//! Named formats for the validation of text.
//!
//! `format.<name>()` is a format. Its method `validate` returns the list of violations, or an empty optional.

use std::sync::Arc;

use apimachinery::format;

use crate::cost::CallCost::{Custom, Fixed};
use crate::cost::{READ, regex_cost};
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

/// All formats; the function of each is `format.<name>`.
static FORMATS: &[Format] = &[
    Format { name: "dns1123Label", rule: format::label, pattern_length: 30 },
    Format { name: "dns1123Subdomain", rule: format::subdomain, pattern_length: 60 },
    Format { name: "dns1035Label", rule: format::label_1035, pattern_length: 30 },
    Format { name: "qualifiedName", rule: qualified_name, pattern_length: 60 },
    Format { name: "dns1123LabelPrefix", rule: |s| format::label(&without_dash(s)), pattern_length: 30 },
    Format {
        name: "dns1123SubdomainPrefix",
        rule: |s| format::subdomain(&without_dash(s)),
        pattern_length: 60,
    },
    Format { name: "dns1035LabelPrefix", rule: |s| format::label_1035(&without_dash(s)), pattern_length: 30 },
    Format { name: "labelValue", rule: format::label_value, pattern_length: 40 },
    Format {
        name: "uri",
        rule: |s| super::urls::request_uri_error(s).into_iter().collect(),
        pattern_length: 1_104,
    },
    Format { name: "uuid", rule: uuid, pattern_length: 70 },
    Format { name: "byte", rule: byte, pattern_length: 84 },
    Format { name: "date", rule: date, pattern_length: 70 },
    Format {
        name: "datetime",
        rule: |s| violation_unless(is_date_time(s), "invalid datetime"),
        pattern_length: 70,
    },
];

/// Pattern length for the estimated cost of every format.
const LONGEST_PATTERN: f64 = 128.0;

/// Declares a function that returns the format with this name.
macro_rules! format_function {
    ($name:literal) => {
        Function::new(&[concat!("format.", $name, "() -> kubernetes.NamedFormat")], Fixed(1), |_| {
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
        Function::new(&["format.named(string) -> optional(kubernetes.NamedFormat)"], Fixed(1), |a| {
            Ok(Value::Optional(find(single_text(a)?).map(|format| Arc::new(Value::opaque(format)))))
        }),
        Function::new(
            &[".kubernetes.NamedFormat.validate(string) -> optional(list(string))"],
            Custom(
                "(1 + size)/10 x pattern/4; estimate: size/10 x 32",
                |a, _| match a {
                    [format, text] => match format.downcast::<Format>() {
                        Some(format) => regex_cost(text.size(), format.pattern_length),
                        None => 1,
                    },
                    _ => 1,
                },
                |a, _| match a {
                    [_, text] => text.size().scaled(READ).scaled(LONGEST_PATTERN / 4.0),
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
        "kubernetes.NamedFormat"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Format>().is_some_and(|other| other.name == self.name)
    }
}

fn find(name: &str) -> Option<Format> {
    FORMATS.iter().find(|format| format.name == name).copied()
}

fn violation_unless(is_valid: bool, message: &str) -> Vec<String> {
    if is_valid { Vec::new() } else { vec![message.to_owned()] }
}

/// Replaces a dash at the end of a text with a letter.
///
/// A `generateName` prefix may end with a dash; validation checks it like a name.
fn without_dash(s: &str) -> String {
    match s.strip_suffix('-') {
        Some(head) if !head.is_empty() => {
            let mut chars = head.chars();
            chars.next_back();
            format!("{}a", chars.as_str())
        }
        _ => s.to_owned(),
    }
}

fn qualified_name(s: &str) -> Vec<String> {
    let violations = format::qualified_name(s);
    violations.iter().map(|text| text.replacen("a valid label key", "a qualified name", 1)).collect()
}

/// Five groups of hexadecimal digits, with or without dashes between them.
fn uuid(s: &str) -> Vec<String> {
    let mut rest = s;
    let is_valid = [8, 4, 4, 4, 12].iter().enumerate().all(|(at, length)| {
        rest = if at > 0 { rest.strip_prefix('-').unwrap_or(rest) } else { rest };
        let Some((group, after)) = rest.split_at_checked(*length) else { return false };
        rest = after;
        group.bytes().all(|b| b.is_ascii_hexdigit())
    });
    violation_unless(is_valid && rest.is_empty(), "does not match the UUID format")
}

/// Padded standard base64 of at least one group.
fn byte(s: &str) -> Vec<String> {
    let digits = s.strip_suffix("==").or_else(|| s.strip_suffix('=')).unwrap_or(s);
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    let is_valid = !s.is_empty() && s.len().is_multiple_of(4) && digits.bytes().all(is_digit);
    violation_unless(is_valid, "invalid base64")
}

fn date(s: &str) -> Vec<String> {
    violation_unless(s.len() == 10 && time::parse_field(s).is_ok(), "invalid date")
}

/// A date and a time of day with an offset, in the forms that go-openapi accepts.
fn is_date_time(s: &str) -> bool {
    let upper = s.to_ascii_uppercase();
    time::parse_timestamp(&upper).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_function() {
        let declared: Vec<&str> = LIBRARY.functions.iter().flat_map(|f| f.declares.iter().copied()).collect();
        for format in FORMATS {
            let text = format!("format.{}() -> kubernetes.NamedFormat", format.name);
            assert!(declared.contains(&text.as_str()), "{text}");
        }
    }
}
