//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2`.
//!
//! # Contract
//!
//! The grammar and the error texts are those of Kubernetes. Requirements are kept in the order of their keys,
//! so two selectors that differ only in the order of different keys are equal.

use crate::attributes::{Operator, ParsedSelector, Requirement};
use crate::field::{FieldError, FieldPath, aggregate};

use super::{SelectorError, syntax};

/// Parsed label selector. The default selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    terms: Box<[Term]>,
}

/// One requirement, prepared for matching.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    key: Box<str>,
    test: Test,
}

/// Test of the label value. Value sets are sorted and have no repetitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Test {
    Exists,
    Absent,
    In(Box<[Box<str>]>),
    NotIn(Box<[Box<str>]>),
    Above(i64),
    Below(i64),
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(set) => value.is_some_and(|v| is_in(set, v)),
            Test::NotIn(set) => value.is_none_or(|v| !is_in(set, v)),
            Test::Above(bound) => integer(value).is_some_and(|v| v > *bound),
            Test::Below(bound) => integer(value).is_some_and(|v| v < *bound),
        }
    }
}

/// Whether a sorted set contains a value.
fn is_in(set: &[Box<str>], value: &str) -> bool {
    set.binary_search_by(|known| (**known).cmp(value)).is_ok()
}

/// Parses a label value as an integer.
fn integer(value: Option<&str>) -> Option<i64> {
    value?.parse().ok()
}

impl LabelSelector {
    /// Parses the query parameter `labelSelector`.
    ///
    /// # Errors
    ///
    /// See [`SelectorError`].
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Parser::new(text).parse_selector()?;
        terms.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { terms: terms.into() })
    }

    /// Whether the selector selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the number of requirements.
    pub fn len(&self) -> usize {
        self.terms.len()
    }

    /// Whether a label set matches; `label` returns the value of a key.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|term| term.test.holds(label(&term.key)))
    }

    /// Converts to the form that authorization examines.
    ///
    /// Access reviews cannot express `>` and `<`, so they are omitted. The authorizer then sees a selector
    /// that is wider than that of the client, never a narrower one.
    pub fn requirements(&self) -> ParsedSelector {
        let requirement = |term: &Term| {
            let (operator, values) = match &term.test {
                Test::Exists => (Operator::Exists, &[][..]),
                Test::Absent => (Operator::DoesNotExist, &[][..]),
                Test::In(set) => (Operator::In, &set[..]),
                Test::NotIn(set) => (Operator::NotIn, &set[..]),
                Test::Above(_) | Test::Below(_) => return None,
            };
            let values = values.iter().map(|v| v.clone().into_string()).collect();
            Some(Requirement { key: term.key.clone().into_string(), operator, values })
        };
        ParsedSelector::Requirements(self.terms.iter().filter_map(requirement).collect())
    }
}

/// Token of the grammar. `in` and `notin` are words where a key or value is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Word,
    In,
    NotIn,
    Equal,
    DoubleEqual,
    NotEqual,
    Above,
    Below,
    Not,
    Open,
    Close,
    Comma,
    End,
}

impl Token {
    /// Returns the meaning of the token where a key or value is expected.
    fn as_operand(self) -> Self {
        match self {
            Token::In | Token::NotIn => Token::Word,
            other => other,
        }
    }
}

/// Recursive-descent parser with one token of lookahead.
struct Parser<'t> {
    rest: &'t str,
    next: (Token, &'t str),
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        let mut parser = Parser { rest: text, next: (Token::End, "") };
        parser.scan();
        parser
    }

    /// Reads the next token into the lookahead.
    fn scan(&mut self) {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let symbol = [
            ("==", Token::DoubleEqual),
            ("!=", Token::NotEqual),
            ("=", Token::Equal),
            ("!", Token::Not),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
            (">", Token::Above),
            ("<", Token::Below),
        ]
        .into_iter()
        .find(|(symbol, _)| text.starts_with(symbol));
        let (token, length) = match symbol {
            Some((symbol, token)) => (token, symbol.len()),
            None => {
                let end = |c: char| " \t\r\n=!(),><".contains(c);
                let length = text.find(end).unwrap_or(text.len());
                let token = match text.get(..length) {
                    Some("") | None => Token::End,
                    Some("in") => Token::In,
                    Some("notin") => Token::NotIn,
                    Some(_) => Token::Word,
                };
                (token, length)
            }
        };
        let (literal, rest) = text.split_at_checked(length).unwrap_or(("", ""));
        self.next = (token, literal);
        self.rest = rest;
    }

    /// Takes the next token and its text.
    fn take(&mut self) -> (Token, &'t str) {
        let taken = self.next;
        self.scan();
        taken
    }

    /// Takes the next token where a key or value is expected.
    fn take_operand(&mut self) -> (Token, &'t str) {
        let (token, literal) = self.take();
        (token.as_operand(), literal)
    }

    /// Returns the kind of the next token where a key or value is expected.
    fn peek(&self) -> Token {
        self.next.0.as_operand()
    }

    fn parse_selector(&mut self) -> Result<Vec<Term>, SelectorError> {
        let mut terms = Vec::new();
        loop {
            match self.peek() {
                Token::Word | Token::Not => {}
                Token::End => return Ok(terms),
                _ => {
                    return Err(unexpected(self.next.1, "!, identifier, or 'end of string'"));
                }
            }
            terms
                .push(self.parse_requirement().map_err(|error| SelectorError::Requirement(Box::new(error)))?);
            match self.take_operand() {
                (Token::End, _) => return Ok(terms),
                (Token::Comma, _) if matches!(self.peek(), Token::Word | Token::Not) => {}
                (Token::Comma, _) => {
                    return Err(unexpected(self.next.1, "identifier after ','"));
                }
                (_, literal) => return Err(unexpected(literal, "',' or 'end of string'")),
            }
        }
    }

    fn parse_requirement(&mut self) -> Result<Term, SelectorError> {
        let absent = self.peek() == Token::Not;
        if absent {
            self.take();
        }
        let (token, key) = self.take_operand();
        if token != Token::Word {
            return Err(unexpected(key, "identifier"));
        }
        let errors = syntax::qualified_name(key);
        if !errors.is_empty() {
            // The reference has no path for the key and prints `<nil>`.
            let error = FieldError::invalid(&FieldPath::new("<nil>"), key, &errors.join("; "));
            return Err(SelectorError::InvalidLabel(error.to_string()));
        }
        let test = if absent {
            Test::Absent
        } else if matches!(self.peek(), Token::End | Token::Comma) {
            Test::Exists
        } else {
            self.parse_test(key)?
        };
        Ok(Term { key: key.into(), test })
    }

    fn parse_test(&mut self, key: &str) -> Result<Test, SelectorError> {
        match self.take() {
            (Token::In, _) => Ok(Test::In(checked_values(key, self.parse_list()?)?)),
            (Token::NotIn, _) => Ok(Test::NotIn(checked_values(key, self.parse_list()?)?)),
            (Token::Equal | Token::DoubleEqual, _) => {
                Ok(Test::In(checked_values(key, vec![self.parse_value()?])?))
            }
            (Token::NotEqual, _) => Ok(Test::NotIn(checked_values(key, vec![self.parse_value()?])?)),
            (Token::Above, _) => Ok(Test::Above(parse_bound(key, self.parse_value()?)?)),
            (Token::Below, _) => Ok(Test::Below(parse_bound(key, self.parse_value()?)?)),
            (_, literal) => Err(unexpected(literal, "in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// Parses the value after `=`, `==`, `!=`, `<` or `>`; an absent value is the empty string.
    fn parse_value(&mut self) -> Result<&'t str, SelectorError> {
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Ok("");
        }
        match self.take_operand() {
            (Token::Word, literal) => Ok(literal),
            (_, literal) => Err(unexpected(literal, "identifier")),
        }
    }

    /// Parses `(a,b)` after `in` and `notin`; an absent value is the empty string.
    fn parse_list(&mut self) -> Result<Vec<&'t str>, SelectorError> {
        match self.take_operand() {
            (Token::Open, _) => {}
            (_, literal) => return Err(SelectorError::MissingList(literal.to_owned())),
        }
        let mut values = Vec::new();
        match self.peek() {
            Token::Word | Token::Comma => {}
            Token::Close => {
                self.take();
                return Ok(vec![""]);
            }
            _ => return Err(unexpected(self.next.1, "',', ')' or identifier")),
        }
        loop {
            match self.take_operand() {
                (Token::Word, literal) => {
                    values.push(literal);
                    match self.peek() {
                        Token::Comma => {}
                        Token::Close => break,
                        _ => return Err(unexpected(self.next.1, "',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.push("");
                    }
                    match self.peek() {
                        Token::Close => {
                            values.push("");
                            break;
                        }
                        Token::Comma => {
                            self.take();
                            values.push("");
                        }
                        _ => {}
                    }
                }
                (_, literal) => return Err(unexpected(literal, "',', or identifier")),
            }
        }
        self.take();
        Ok(values)
    }
}

fn unexpected(token: &str, expected: &'static str) -> SelectorError {
    SelectorError::UnexpectedToken { found: token.to_owned(), expected }
}

/// Checks values and converts them to a set.
fn checked_values(key: &str, mut values: Vec<&str>) -> Result<Box<[Box<str>]>, SelectorError> {
    values.sort_unstable();
    values.dedup();
    let validate = |(index, value): (usize, &&str)| {
        let errors = syntax::label_value(value);
        (!errors.is_empty()).then(|| {
            let path = FieldPath::new("values").index(index).key(key);
            FieldError::invalid(&path, *value, &errors.join("; ")).to_string()
        })
    };
    let errors: Vec<String> = values.iter().enumerate().filter_map(validate).collect();
    if errors.is_empty() {
        Ok(values.into_iter().map(Box::from).collect())
    } else {
        Err(SelectorError::InvalidLabel(aggregate(&errors)))
    }
}

/// Parses the number after `>` and `<`.
fn parse_bound(key: &str, value: &str) -> Result<i64, SelectorError> {
    let parsed = value.parse();
    let mut errors = Vec::new();
    if parsed.is_err() {
        let path = FieldPath::new("values").index(0);
        let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
        errors.push(FieldError::invalid(&path, value, detail).to_string());
    }
    match (checked_values(key, vec![value]), parsed) {
        (Ok(_), Ok(bound)) => Ok(bound),
        (values, _) => {
            errors.extend(values.err().map(String::from));
            Err(SelectorError::InvalidLabel(aggregate(&errors)))
        }
    }
}

#[cfg(test)]
#[path = "tests/label.rs"]
mod tests;
