//! Errors of expressions: those of compiling, with their place, and those of running.

use std::fmt;

/// One mistake in an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// The line it is in.
    snippet: String,
}

/// Why an expression does not compile. Its display is one block per mistake: place, message, the line and
/// a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CompileError {
    /// The mistakes, in the order of their places.
    pub issues: Vec<Issue>,
}

impl CompileError {
    /// A mistake at a byte offset of the source.
    pub(crate) fn at(source: &str, offset: usize, message: impl Into<String>) -> CompileError {
        CompileError { issues: vec![Issue::at(source, offset, message)] }
    }

    /// A mistake of the expression as a whole, without a snippet.
    pub(crate) fn at_start(message: impl Into<String>) -> CompileError {
        let issue = Issue { line: 1, column: 1, message: message.into(), snippet: String::new() };
        CompileError { issues: vec![issue] }
    }
}

impl Issue {
    /// A mistake at a byte offset of the source.
    pub(crate) fn at(source: &str, offset: usize, message: impl Into<String>) -> Issue {
        let before = source.get(..offset).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Issue::new(source, line, column, message)
    }

    /// A mistake at a line and column.
    pub(crate) fn new(source: &str, line: usize, column: usize, message: impl Into<String>) -> Issue {
        let snippet = source.lines().nth(line.saturating_sub(1)).unwrap_or_default().to_owned();
        Issue { line, column, message: message.into(), snippet }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: <input>:{}:{}: {}", self.line, self.column, self.message)?;
        if !self.snippet.is_empty() {
            let dots = ".".repeat(self.column.saturating_sub(1));
            write!(f, "\n | {}\n | {dots}^", self.snippet.replace('\t', " "))?;
        }
        Ok(())
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.issues.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            issue.fmt(f)?;
        }
        Ok(())
    }
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The budget is used up. `&&`, `||` and comprehensions never hide this one.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// No overload of the operator or function takes values of these types.
    #[error("no such overload")]
    NoOverload,
    /// Any other error, in words.
    #[error("{0}")]
    Failed(String),
}

impl EvalError {
    /// An error in words.
    pub(crate) fn failed(message: impl Into<String>) -> EvalError {
        EvalError::Failed(message.into())
    }
}
