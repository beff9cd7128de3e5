//! Regular expressions: `matches`, and `find` and `findAll` of the extension.
//!
//! The syntax is RE2, see [`re2`](super::re2). Compiled patterns are shared, see [`patterns`](super::patterns).

use std::sync::Arc;

use crate::cost::{CallCost, READ, ResultSize, regex_cost};
use crate::error::EvalError;
use crate::types::Overload;
use crate::value::{Opaque, Value, char_count};
use crate::value_facts::{Estimate, ValueFacts};

use super::matcher::{Pattern, Steps, TooManySteps};
use super::patterns::{self, PatternError};
use super::re2::translate;
use super::{Function, Library};

/// Instructions of a pattern whose compilation costs one unit, if the pattern is not constant.
const INSTRUCTIONS_PER_UNIT: u64 = 64;
/// Steps of an evaluation that are one unit of work. kube-apiserver takes the length of a pattern for its size.
const STEPS_PER_UNIT: u64 = 256;

const FIND_COST: CallCost = CallCost::Custom("(1 + size)/10 x size of the pattern/4", cost, estimate);

/// Size of the result: at most the whole text, or a list with one item per character.
const FIND_SIZE: ResultSize = ResultSize::UpToFirst;

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::counting(&[".string.matches(string) -> bool"], FIND_COST, matches),
        // kube-apiserver counts one unit for this form; a long text costs more here.
        Function::counting(
            &["matches(string, string) -> bool"],
            CallCost::Custom("1", |a, overload| (cost(a, overload) / 256).max(1), |_, _| Estimate::ONE),
            matches,
        ),
        Function::counting(&[".string.find(string) -> string"], FIND_COST, |a, work| match a {
            [Value::String(s), pattern] => with_pattern(pattern, work, |pattern, steps| {
                let found = pattern.find(s.as_str(), 1, steps)?;
                Ok(Value::text(texts(s.as_str(), &found).next().unwrap_or_default()))
            }),
            _ => Err(EvalError::NoOverload),
        })
        .with_result_size(FIND_SIZE),
        Function::counting(
            &[".string.findAll(string) -> list(string)", ".string.findAll(string, int) -> list(string)"],
            FIND_COST,
            |a, work| {
                let (text, pattern, limit) = match a {
                    [Value::String(s), pattern] => (s, pattern, -1),
                    [Value::String(s), pattern, Value::Int(limit)] => (s, pattern, *limit),
                    _ => return Err(EvalError::NoOverload),
                };
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                with_pattern(pattern, work, |pattern, steps| {
                    let found = pattern.find(text.as_str(), limit, steps)?;
                    Ok(Value::list(texts(text.as_str(), &found).map(Value::text).collect()))
                })
            },
        )
        .with_result_size(FIND_SIZE),
    ],
};

fn matches<'a>(arguments: &[Value<'a>], work: &mut u64) -> Result<Value<'a>, EvalError> {
    match arguments {
        [Value::String(s), pattern] => {
            with_pattern(pattern, work, |pattern, steps| pattern.is_match(s.as_str(), steps).map(Value::Bool))
        }
        _ => Err(EvalError::NoOverload),
    }
}

/// The texts of the byte ranges of matches.
fn texts<'t>(text: &'t str, found: &[(usize, usize)]) -> impl Iterator<Item = &'t str> {
    found.iter().filter_map(|(start, end)| text.get(*start..*end))
}

impl From<PatternError> for EvalError {
    fn from(error: PatternError) -> Self {
        EvalError::failed(error.to_string())
    }
}

impl From<TooManySteps> for EvalError {
    fn from(error: TooManySteps) -> Self {
        EvalError::failed(error.to_string())
    }
}

/// A constant pattern of an expression. Its compiled form is in the cache of patterns.
struct ConstantPattern {
    text: Arc<str>,
    length: u64,
}

impl Opaque for ConstantPattern {
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

/// The value of a constant pattern.
///
/// # Errors
/// The pattern is malformed or too large.
pub(crate) fn constant_pattern(text: &str) -> Result<Value<'static>, EvalError> {
    patterns::check(text)?;
    Ok(Value::opaque(ConstantPattern { text: text.into(), length: char_count(text) }))
}

/// Evaluates a pattern, and adds its steps to `work`.
fn with_pattern<'a>(
    pattern: &Value<'a>,
    work: &mut u64,
    run: impl FnOnce(&Pattern, &mut Steps) -> Result<Value<'a>, TooManySteps>,
) -> Result<Value<'a>, EvalError> {
    let text = match (pattern.downcast::<ConstantPattern>(), pattern.as_str()) {
        (Some(pattern), _) => pattern.text.as_ref(),
        (None, Some(text)) => text,
        (None, None) => return Err(EvalError::NoOverload),
    };
    let mut steps = Steps::CALL;
    let result = run(&*patterns::compiled(text)?, &mut steps);
    *work += steps.taken_of_call() / STEPS_PER_UNIT;
    Ok(result?)
}

/// Cost of a match: [`regex_cost`], and the compilation of a pattern that is not constant.
fn cost(arguments: &[Value<'_>], _: Option<&Overload>) -> u64 {
    let size = |i: usize| arguments.get(i).map_or(0, Value::size);
    // A constant pattern is no text but the value of `constant_pattern`.
    let compile_cost = match arguments.get(1).and_then(Value::as_str) {
        Some(text) => translate(text).map_or(0, |translated| translated.size) / INSTRUCTIONS_PER_UNIT,
        None => 0,
    };
    regex_cost(size(0), size(1)).saturating_add(compile_cost)
}

fn estimate(arguments: &[ValueFacts<'_>], _: &Overload) -> Estimate {
    match arguments {
        [text, pattern, ..] => {
            let text = (text.size() + Estimate::ONE).scaled(READ);
            text.times(pattern.size().scaled(0.25))
        }
        _ => Estimate::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use crate::library::matcher::Steps;
    use crate::library::patterns::{check, compile};

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
            (r"(?ii)^ABC$", "abc", true),
            (r"(?i-ii)^ABC$", "abc", false),
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
            (r"^a{01}$", "a{01}", true),
            (r"^a{01}$", "a", false),
            (r"^a{0,2}$", "aa", true),
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
            let found = compile(pattern).unwrap().is_match(text, &mut { Steps::CALL });
            assert_eq!(found, Ok(matches), "{pattern} {text}");
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
            assert!(check(bad).is_err() && compile(bad).is_err(), "{bad}");
        }
    }
}
