//! Guard before the parser: limits the length, nesting and tree height of an expression.
//!
//! # Invariants
//! INVARIANT (bounded recursion): parser, checker and evaluator recurse on the syntax tree. [`inspect`]
//! limits the tree height to [`MAX_HEIGHT`] and bracket nesting to [`MAX_NESTING`]. So no recursion can
//! exhaust the stack. The guard computes an upper bound of the height from the text. Each link of a chain
//! counts one. A run is the text between commas, brackets, `&&` and `||`; each other operator of a run counts
//! one. The parser balances `&&` and `||`, so they add little height.

use std::iter::Peekable;
use std::str::CharIndices;

use crate::error::CompileError;

/// Maximum length of an expression in characters; a longer expression is an error.
pub(crate) const MAX_LENGTH: usize = 100_000;
/// Maximum number of nested parentheses, brackets and braces; deeper nesting is an error.
pub(crate) const MAX_NESTING: usize = 40;
/// Maximum height of the syntax tree in nodes; a higher tree is an error. Chain links, nested calls and
/// consecutive operators add to the height.
pub(crate) const MAX_HEIGHT: u32 = 200;

/// Heights inside an open bracket, or in the whole expression.
#[derive(Default)]
struct BracketLevel {
    /// Height of the current operand.
    operand: u32,
    /// Maximum height of the finished operands of the current run. A run is a sequence of operands and operators
    /// that ends at a comma, a bracket, `&&` or `||`.
    run: u32,
    /// Number of operators in the current run.
    operators: u32,
    /// Maximum height of a run.
    highest: u32,
}

impl BracketLevel {
    /// Ends the current run at a comma, a bracket, `&&` or `||`.
    fn end_run(&mut self) {
        self.highest = self.highest.max(self.run.max(self.operand) + self.operators);
        *self = BracketLevel { highest: self.highest, ..BracketLevel::default() };
    }

    /// Counts an operator, after which a new operand begins.
    fn count_operator(&mut self) {
        self.run = self.run.max(self.operand);
        self.operand = 0;
        self.operators += 1;
    }
}

/// Rejects an expression that is too long or too deep. Returns the offset of a string literal that does not end
/// before the end of the text. The rest of the text is part of no token.
pub(crate) fn inspect(source: &str) -> Result<Option<usize>, CompileError> {
    if source.chars().count() > MAX_LENGTH {
        return Err(CompileError::at_start(format!("expression is longer than {MAX_LENGTH} characters")));
    }
    let mut outer: Vec<BracketLevel> = Vec::new();
    let mut level = BracketLevel::default();
    let mut chars = source.char_indices().peekable();
    let mut previous = ' ';
    while let Some((at, c)) = chars.next() {
        match c {
            '"' | '\'' => {
                if !skip_string(source, at, c, &mut chars)? {
                    return Ok(Some(at));
                }
                level.operand = level.operand.max(1);
            }
            '/' if chars.peek().is_some_and(|(_, next)| *next == '/') => {
                while chars.next_if(|(_, next)| *next != '\n').is_some() {}
            }
            '.' => level.operand += 1,
            '(' | '[' | '{' => {
                if outer.len() >= MAX_NESTING {
                    return Err(CompileError::at(
                        source,
                        at,
                        format!("brackets are nested deeper than {MAX_NESTING}"),
                    ));
                }
                outer.push(std::mem::take(&mut level));
            }
            ')' | ']' | '}' => {
                level.end_run();
                let inner = level.highest + 2;
                if let Some(parent) = outer.pop() {
                    level = parent;
                }
                level.operand = level.operand.max(inner) + 1;
            }
            ',' => level.end_run(),
            '&' | '|' => {
                if previous == c {
                    level.end_run();
                }
            }
            '+' | '-' | '*' | '/' | '%' | '<' | '>' | '=' | '!' | '?' | ':' => {
                // `==`, `.?`, `[?` and similar sequences are one operator.
                if !matches!(previous, '<' | '>' | '=' | '!' | '.' | '[') {
                    level.count_operator();
                }
            }
            'i' if !is_word(previous)
                && source
                    .get(at..)
                    .and_then(|rest| rest.strip_prefix("in"))
                    .is_some_and(|after| !after.chars().next().is_some_and(is_word)) =>
            {
                level.count_operator();
            }
            c if c.is_whitespace() => {}
            _ => level.operand = level.operand.max(1),
        }
        if !c.is_whitespace() {
            previous = c;
        } else if previous.is_alphanumeric() {
            previous = ' ';
        }
        if level.operand.max(level.run) + level.operators > MAX_HEIGHT {
            let message = format!("expression is nested or chained more than {MAX_HEIGHT} deep");
            return Err(CompileError::at(source, at, message));
        }
    }
    Ok(None)
}

/// Whether an identifier may contain the character.
fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Skips the string literal that begins with `quote` at `at`; false if the literal has no end on the last line.
///
/// Rejects literals that the parser would not accept, so that guard and parser find the same end.
fn skip_string(
    source: &str,
    at: usize,
    quote: char,
    chars: &mut Peekable<CharIndices<'_>>,
) -> Result<bool, CompileError> {
    let before = source.get(..at).unwrap_or_default();
    let prefix = before.rsplit(|c: char| !is_word(c)).next().unwrap_or_default();
    let is_raw = matches!(prefix, "r" | "R" | "br" | "bR" | "Br" | "BR");
    let triple = if quote == '"' { "\"\"\"" } else { "'''" };
    let is_triple_quoted = source.get(at..at + 3) == Some(triple);
    if is_triple_quoted {
        chars.next();
        chars.next();
    }
    while let Some((at, c)) = chars.next() {
        if c == '\\' && !is_raw {
            if !skip_escape(chars) {
                return Err(CompileError::at(source, at, "Syntax error: invalid escape in a string"));
            }
        } else if matches!(c, '\n' | '\r') && !is_triple_quoted {
            return Err(CompileError::at(
                source,
                at,
                "Syntax error: line break in a string; write `\\n` or use triple quotes",
            ));
        } else if c == quote && (!is_triple_quoted || source.get(at..at + 3) == Some(triple)) {
            if is_triple_quoted {
                chars.next();
                chars.next();
            }
            return Ok(true);
        }
    }
    if is_triple_quoted {
        return Err(CompileError::at(source, at, "Syntax error: unterminated string"));
    }
    Ok(false)
}

/// Skips the characters after a backslash; false if the escape is invalid.
fn skip_escape(chars: &mut Peekable<CharIndices<'_>>) -> bool {
    let (digits, radix) = match chars.next() {
        Some((_, 'a' | 'b' | 'f' | 'n' | 'r' | 't' | 'v' | '"' | '\'' | '\\' | '?' | '`')) => (0, 16),
        Some((_, 'x' | 'X')) => (2, 16),
        Some((_, 'u')) => (4, 16),
        Some((_, 'U')) => (8, 16),
        Some((_, '0'..='3')) => (2, 8),
        _ => return false,
    };
    (0..digits).all(|_| chars.next_if(|(_, c)| c.is_digit(radix)).is_some())
}

#[cfg(test)]
mod tests {
    use super::inspect;
    use crate::parse::parse;

    #[test]
    fn too_deep_or_too_long_expressions_are_rejected() {
        let n = 5_000;
        let shapes = [
            ("selects", format!("a{}", ".b".repeat(n))),
            ("optional selects", format!("a{}", ".?b".repeat(n))),
            ("parentheses", format!("{}a{}", "(".repeat(n), ")".repeat(n))),
            ("open parentheses", "(".repeat(n)),
            ("indexes", format!("a{}", "[0]".repeat(n))),
            ("nested indexes", format!("{}a{}", "a[".repeat(n), "]".repeat(n))),
            ("lists", format!("{}{}", "[".repeat(n), "]".repeat(n))),
            ("maps", format!("{}1{}", "{1:".repeat(n), "}".repeat(n))),
            ("calls", format!("{}a{}", "f(".repeat(n), ")".repeat(n))),
            ("member calls", format!("a{}", ".f()".repeat(n))),
            ("sums", format!("1{}", "+1".repeat(n))),
            ("comparisons", format!("1{}", "==1".repeat(n))),
            ("conditionals", format!("{}1", "a?b:".repeat(n))),
            (
                "chains in parentheses",
                format!("{}a{}", "(".repeat(30), format!("{})", ".b".repeat(100)).repeat(30)),
            ),
            ("memberships", format!("a{}", " in a".repeat(n))),
            ("memberships on lines", format!("a{}", "\nin\ta".repeat(n))),
            ("memberships in parentheses", format!("a{}", " in(a)".repeat(n))),
            ("after a bad escape", format!("'\\q{}'", "(".repeat(n))),
            ("after a short escape", format!("'\\x1{}'", "(".repeat(n))),
            ("after a line break", format!("'\n{}'", "(".repeat(n))),
            ("after a name that ends like a prefix", format!("bar'\\'' + {}", "(".repeat(n))),
            ("after an unterminated string of lines", format!("f('''{}", "(".repeat(n))),
            ("before an unterminated string", format!("{}'", "(".repeat(n))),
            ("long", "a".repeat(super::MAX_LENGTH + 1)),
        ];
        for (name, source) in shapes {
            assert!(inspect(&source).is_err(), "{name} passed the guard");
            assert!(parse(&source).is_err(), "{name} parsed");
        }
    }

    #[test]
    fn highest_allowed_expression_is_parsed() {
        for source in [
            format!("a{}", ".b".repeat(190)),
            format!("1{}", "+1".repeat(190)),
            format!("{}a{}", "(".repeat(40), ")".repeat(40)),
            format!("{}a{}", "[".repeat(40), "]".repeat(40)),
            format!("a{}", " && a".repeat(2_000)),
        ] {
            parse(&source).unwrap();
        }
    }

    #[test]
    fn brackets_in_strings_and_comments_do_not_count_as_nesting() {
        let many = "(".repeat(5_000);
        for source in [
            format!("'{many}'"),
            format!("\"\\\"{many}\""),
            format!("r'\\{many}'"),
            format!("'''{many}'{many}'''"),
            format!("1 // {many}\n"),
            format!("br'\\' + '{many}'"),
            format!("'\\x41\\u0041\\U00000041\\101\\`{many}'"),
        ] {
            inspect(&source).unwrap();
        }
    }
}
