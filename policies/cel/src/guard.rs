//! The guard before the parser: bounds on an expression's length, nesting and height.
//!
//! # Invariants
//! INVARIANT (bounded recursion): parser, checker and evaluator recurse on the tree of the expression. What
//! passes [`inspect`] has a tree no higher than [`MAX_HEIGHT`] and brackets no deeper than [`MAX_NESTING`],
//! so none of them can exhaust the stack. The height is computed from the text alone and never too low:
//! links of a chain count one each, arithmetic and conditional operators one each within their run;
//! `&&` and `||` are balanced by the parser and cost little.

use crate::error::CompileError;

/// Longest expression, in characters.
pub(crate) const MAX_LENGTH: usize = 100_000;
/// Deepest nesting of parentheses, brackets and braces.
pub(crate) const MAX_NESTING: usize = 40;
/// Highest tree: links of chains, nested calls and operators in a row.
pub(crate) const MAX_HEIGHT: u32 = 200;

/// One open bracket (or the whole expression).
#[derive(Default)]
struct Level {
    /// Height of the operand being read.
    operand: u32,
    /// The highest operand of this run of operators.
    run: u32,
    /// Operators in this run.
    operators: u32,
    /// The highest run.
    highest: u32,
}

impl Level {
    fn end_run(&mut self) {
        self.highest = self.highest.max(self.run.max(self.operand) + self.operators);
        *self = Level { highest: self.highest, ..Level::default() };
    }

    fn operator(&mut self) {
        self.run = self.run.max(self.operand);
        self.operand = 0;
        self.operators += 1;
    }
}

/// Refuses an expression that is too long, too deep or too high.
pub(crate) fn inspect(source: &str) -> Result<(), CompileError> {
    if source.chars().count() > MAX_LENGTH {
        return Err(CompileError::at_start(format!("expression is longer than {MAX_LENGTH} characters")));
    }
    let mut outer: Vec<Level> = Vec::new();
    let mut level = Level::default();
    let mut chars = source.char_indices().peekable();
    let mut previous = ' ';
    while let Some((at, c)) = chars.next() {
        match c {
            '"' | '\'' => {
                let raw = matches!(previous, 'r' | 'R');
                skip_string(source, at, c, raw, &mut chars);
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
                // `==`, `.?`, `[?` and the like are one operator.
                if !matches!(previous, '<' | '>' | '=' | '!' | '.' | '[') {
                    level.operator();
                }
            }
            'i' if !previous.is_alphanumeric()
                && previous != '_'
                && source.get(at..at + 3) == Some("in ") =>
            {
                level.operator();
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
    Ok(())
}

/// Moves past a string literal that opened with `quote` at `at`.
fn skip_string(
    source: &str,
    at: usize,
    quote: char,
    raw: bool,
    chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
) {
    let triple = if quote == '"' { "\"\"\"" } else { "'''" };
    let long = source.get(at..at + 3) == Some(triple);
    if long {
        chars.next();
        chars.next();
    }
    while let Some((at, c)) = chars.next() {
        if c == '\\' && !raw {
            chars.next();
        } else if c == quote && (!long || source.get(at..at + 3) == Some(triple)) {
            if long {
                chars.next();
                chars.next();
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::inspect;
    use crate::parse::parse;

    #[test]
    fn hostile_shapes_come_back_as_errors() {
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
            ("long", "a".repeat(super::MAX_LENGTH + 1)),
        ];
        for (name, source) in shapes {
            assert!(inspect(&source).is_err(), "{name} passed the guard");
            assert!(parse(&source).is_err(), "{name} parsed");
        }
    }

    #[test]
    fn the_highest_that_passes_is_parsed() {
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
    fn text_in_strings_and_comments_is_not_counted() {
        let many = "(".repeat(5_000);
        for source in [
            format!("'{many}'"),
            format!("\"\\\"{many}\""),
            format!("r'\\{many}'"),
            format!("'''{many}'{many}'''"),
            format!("1 // {many}\n"),
        ] {
            inspect(&source).unwrap();
        }
    }
}
