//! Errors of expressions: compile errors with positions, and evaluation errors.

use std::fmt;

/// One compile error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Error message.
    pub message: String,
    /// Source line of the error.
    snippet: String,
}

/// Compile errors of an expression.
/// The display form has one block per error: position, message, source line and a caret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct CompileError {
    /// Errors in source order.
    pub issues: Vec<Issue>,
    /// Error of a constant part, found when the checked expression was planned; then there are no issues.
    pub plan: Option<String>,
}

impl CompileError {
    /// An error at a byte offset of the source.
    pub(crate) fn at(source: &str, offset: usize, message: impl Into<String>) -> CompileError {
        CompileError { issues: vec![Issue::at(source, offset, message)], plan: None }
    }

    /// An error of the whole expression, without a snippet.
    pub(crate) fn at_start(message: impl Into<String>) -> CompileError {
        let issue = Issue { line: 1, column: 1, message: message.into(), snippet: String::new() };
        CompileError { issues: vec![issue], plan: None }
    }

    /// The error of a constant part.
    pub(crate) fn of_plan(error: EvalError) -> CompileError {
        CompileError { issues: Vec::new(), plan: Some(error.to_string()) }
    }

    /// The error with the words of kube-apiserver: `compilation failed` or `program instantiation failed`.
    pub fn reason(&self) -> String {
        match &self.plan {
            Some(reason) => format!("program instantiation failed: {reason}"),
            None => format!("compilation failed: {self}"),
        }
    }
}

impl Issue {
    /// An error at a byte offset of the source.
    pub(crate) fn at(source: &str, offset: usize, message: impl Into<String>) -> Issue {
        let before = source.get(..offset).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Issue::new(source, line, column, message)
    }

    /// An error at a line and column.
    pub(crate) fn new(source: &str, line: usize, column: usize, message: impl Into<String>) -> Issue {
        let snippet = source.lines().nth(line.saturating_sub(1)).unwrap_or_default().to_owned();
        Issue { line, column, message: message.into(), snippet }
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: <input>:{}:{}: {}", self.line, self.column, self.message)?;
        if !self.snippet.is_empty() {
            let snippet = self.snippet.replace('\t', " ");
            write!(f, "\n | {snippet}\n | {}", pointer(&snippet, self.column.saturating_sub(1)))?;
        }
        Ok(())
    }
}

/// The line that points to a character of a snippet. As in cel-go, each character beyond ASCII counts as
/// wide.
fn pointer(snippet: &str, column: usize) -> String {
    let mut chars = snippet.chars();
    let dots: String = chars.by_ref().take(column).map(|c| if c.is_ascii() { '.' } else { '．' }).collect();
    dots + if chars.next().is_none_or(|c| c.is_ascii()) { "^" } else { "＾" }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, issue) in self.issues.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            issue.fmt(f)?;
        }
        f.write_str(self.plan.as_deref().unwrap_or_default())
    }
}

/// Evaluation error of an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// The cost limit is exceeded. `&&`, `||` and comprehensions never absorb this error.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// No overload of the operator or function accepts the types of the arguments.
    #[error("no such overload")]
    NoOverload,
    /// Any other error, with its message.
    #[error("{0}")]
    Failed(String),
}

impl EvalError {
    /// An error with a message.
    pub(crate) fn failed(message: impl Into<String>) -> EvalError {
        EvalError::Failed(message.into())
    }
}
