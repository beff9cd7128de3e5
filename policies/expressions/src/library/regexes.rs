//! Regular expressions: `matches`, and `find` and `findAll` of the extension.
//!
//! The syntax is RE2, see [`re2`](super::re2). A constant pattern is compiled once, with the expression; any
//! other pattern is compiled at each evaluation.

use regex::Regex;

use crate::cost::{CallCost, ResultSize, regex_cost};
use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Opaque, Value, char_count};
use crate::value_facts::{Estimate, ValueFacts};

use super::re2::translate;
use super::{ConstantParser, Function, Library};

/// Cost of compiling a minimal pattern, in cost units; each state of the compiled pattern adds one unit.
const COMPILE_COST: u64 = 32;

const MATCH_COST: CallCost = CallCost::Custom(cost, estimate);

/// Size of the result: at most the whole text, or a list with one item per character.
const MATCH_SIZE: ResultSize = ResultSize::Custom(|arguments, ty| {
    let part_size = Estimate { min: 0, max: arguments.first().map_or(u64::MAX, |text| text.size.max) };
    ValueFacts::with_elements(ty, part_size, ValueFacts::with_size(Type::String, part_size))
});

/// Size limit of a compiled pattern in bytes; the compilation of a larger pattern fails.
const COMPILED_LIMIT: usize = 2 << 20;

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function {
            declares: &[".string.matches(string) -> bool", "matches(string, string) -> bool"],
            cost: MATCH_COST,
            size: ResultSize::Unknown,
            constant: Some(CONSTANT_PATTERN),
            body: |a| match a {
                [Value::String(s), pattern] => {
                    with_regex(pattern, |regex| Value::Bool(regex.is_match(s.as_str())))
                }
                _ => Err(EvalError::NoOverload),
            },
        },
        Function {
            declares: &[".string.find(string) -> string"],
            cost: MATCH_COST,
            size: MATCH_SIZE,
            constant: Some(CONSTANT_PATTERN),
            body: |a| match a {
                [Value::String(s), pattern] => with_regex(pattern, |regex| {
                    Value::text(regex.find(s.as_str()).map_or("", |found| found.as_str()))
                }),
                _ => Err(EvalError::NoOverload),
            },
        },
        Function {
            declares: &[
                ".string.findAll(string) -> list(string)",
                ".string.findAll(string, int) -> list(string)",
            ],
            cost: MATCH_COST,
            size: MATCH_SIZE,
            constant: Some(CONSTANT_PATTERN),
            body: |a| {
                let (text, pattern, limit) = match a {
                    [Value::String(s), pattern] => (s, pattern, -1),
                    [Value::String(s), pattern, Value::Int(limit)] => (s, pattern, *limit),
                    _ => return Err(EvalError::NoOverload),
                };
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                with_regex(pattern, |regex| {
                    let found = regex.find_iter(text.as_str()).take(limit);
                    Value::list(found.map(|found| Value::text(found.as_str())).collect())
                })
            },
        },
    ],
};

/// The error of a malformed or too large pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {reason}: `{pattern}`")]
pub struct PatternError {
    pattern: String,
    reason: String,
}

impl From<PatternError> for EvalError {
    fn from(error: PatternError) -> Self {
        EvalError::failed(error.to_string())
    }
}

/// A compiled constant pattern.
struct CompiledPattern {
    regex: Regex,
    length: u64,
}

impl Opaque for CompiledPattern {
    fn type_name(&self) -> &'static str {
        "string"
    }

    fn equals(&self, _other: &dyn Opaque) -> bool {
        false
    }

    fn size(&self) -> u64 {
        self.length
    }
}

/// A constant pattern is compiled once.
const CONSTANT_PATTERN: ConstantParser = ConstantParser {
    argument: 1,
    parse: |pattern| {
        let compiled = CompiledPattern { regex: compile(pattern)?, length: char_count(pattern) };
        Ok(Value::opaque(compiled))
    },
};

fn with_regex<'a>(
    pattern: &Value<'a>,
    run: impl FnOnce(&Regex) -> Value<'a>,
) -> Result<Value<'a>, EvalError> {
    match (pattern.downcast::<CompiledPattern>(), pattern.as_str()) {
        (Some(pattern), _) => Ok(run(&pattern.regex)),
        (None, Some(text)) => Ok(run(&compile(text)?)),
        (None, None) => Err(EvalError::NoOverload),
    }
}

/// Compiles an RE2 pattern. Groups do not capture.
///
/// # Errors
///
/// The pattern is malformed or too large.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let pattern_error =
        |reason: &str| PatternError { pattern: pattern.to_owned(), reason: reason.to_owned() };
    let translated = translate(pattern).map_err(pattern_error)?;
    let compiled = regex::RegexBuilder::new(&translated.pattern).size_limit(COMPILED_LIMIT).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => pattern_error("expression is too large"),
        other => {
            pattern_error(other.to_string().lines().last().unwrap_or_default().trim_start_matches("error: "))
        }
    })
}

/// Cost of a match: [`regex_cost`], and the compilation of a pattern that is not constant.
fn cost(arguments: &[Value<'_>]) -> u64 {
    let size = |i: usize| arguments.get(i).map_or(0, Value::size);
    let compile_cost = match arguments.get(1).and_then(Value::as_str) {
        Some(pattern) => COMPILE_COST + translate(pattern).map_or(0, |translated| translated.weight),
        None => 0,
    };
    regex_cost(size(0), size(1)).saturating_add(compile_cost)
}

fn estimate(arguments: &[ValueFacts<'_>]) -> Estimate {
    match arguments {
        [text, pattern, ..] => Estimate {
            min: regex_cost(text.size.min, pattern.size.min),
            max: regex_cost(text.size.max, pattern.size.max),
        },
        _ => Estimate::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn regex_patterns_have_re2_semantics() {
        for (pattern, text, matches) in [
            (r"^\d$", "٣", false),
            (r"^\d$", "3", true),
            (r"^\w$", "é", false),
            (r"^[\w.]+$", "a.b", true),
            (r"^[^\s]$", "\u{a0}", true),
            (r"^.$", "é", true),
            (r"\bb", "éb", true),
            (r"a\B.", "ab", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\Qa.b", "a.b", true),
            (r"\\d", "\\d", true),
            (r"(?i)^ABC$", "abc", true),
            (r"(?i:A)B", "aB", true),
            (r"(?i:A)B", "ab", false),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[a]+$", "[a", true),
            (r"^[a~~b]$", "~", true),
            (r"^[]a]+$", "]a", true),
            (r"^[^]a]$", "b", true),
            (r"^[a-c\-]+$", "b-", true),
            (r"^[[:alpha:]_]+$", "a_", true),
            (r"^[[:^alpha:]]$", "1", true),
            (r"^[\D]$", "a", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^{a}$", "{a}", true),
            (r"^a{2}$", "aa", true),
            (r"^a{1,2}?b$", "aab", true),
            (r"^\101\x42\x{43}$", "ABC", true),
            (r"^\0$", "\0", true),
            (r"^\pL\p{Greek}\PN$", "aα-", true),
            (r"^(?P<name>a)(?<other>b)$", "ab", true),
            (r"^a\.b\/\-$", "a.b/-", true),
            (r"^#\ $", "# ", true),
            (r"(?s)^.$", "\n", true),
            (r"(?m)^b$", "a\nb", true),
            (r"b$", "b\n", false),
            ("^\n$", "\n", true),
            ("()|a", "", true),
            (r"^a\b{start}\<$", "a{start}<", true),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_invalid_in_re2_are_rejected() {
        for bad in [
            "[",
            "[a",
            "a)",
            "(a",
            "*",
            "a**",
            "a+*",
            "a{1}{2}",
            "a{1001}",
            "(a{100}){11}",
            "a{2,1}",
            r"\",
            "(?=a)",
            "(?!a)",
            "(?<=a)",
            "(?x)a",
            "(?u)a",
            "(?R)",
            r"(a)\1",
            r"\8",
            r"\y",
            r"\Z",
            r"\C",
            r"\p{letter}",
            r"\pl",
            r"\p{Nope}",
            "[[:nope:]]",
            "[b-a]",
            "(?i-)",
            "(?P=x)",
            "(?<a",
            "(?)",
            r"\x{110000}",
            r"\xg0",
            "[[:alpha:]",
        ] {
            assert!(compile(bad).is_err(), "{bad}");
        }
        // Large patterns fail fast as well.
        for large in [r"\pL{1000}\pL{1000}", &"(a{1000})".repeat(300)] {
            assert!(compile(large).is_err(), "{}", large.len());
        }
    }
}
