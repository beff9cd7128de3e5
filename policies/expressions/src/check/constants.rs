//! Checks of constant arguments: durations, timestamps, patterns and format strings.
//!
//! cel-go makes these checks after the type check of an expression, and kube-apiserver only for new
//! expressions.

use crate::ast::{Expr, Kind, Literal};
use crate::library::{constant_format_error, is_valid_pattern};
use crate::time;

use super::Checker;

impl Checker<'_> {
    /// Reports the errors of the constant arguments of a call.
    pub(super) fn check_constant_arguments(&mut self, name: &str, target: Option<&Expr>, arguments: &[Expr]) {
        let text = |argument: &Expr| match &argument.kind {
            Kind::Literal(Literal::String(text)) => Some(text.clone()),
            _ => None,
        };
        match (name, target, arguments) {
            ("duration", None, [argument]) => {
                let is_other = matches!(argument.kind, Kind::Literal(Literal::Null | Literal::Int(_)));
                if is_other || text(argument).is_some_and(|text| time::parse_duration(&text).is_err()) {
                    self.report_constant(argument.at, "invalid duration argument".to_owned());
                }
            }
            ("timestamp", None, [argument]) => {
                let is_outside = matches!(
                    &argument.kind,
                    Kind::Literal(Literal::Int(seconds)) if time::Timestamp::new(*seconds, 0).is_none()
                ) || matches!(argument.kind, Kind::Literal(Literal::Null));
                if is_outside || text(argument).is_some_and(|text| time::parse_timestamp(&text).is_err()) {
                    self.report_constant(argument.at, "invalid timestamp argument".to_owned());
                }
            }
            ("matches", Some(_), [argument])
                if text(argument).is_some_and(|text| !is_valid_pattern(&text)) =>
            {
                self.report_constant(argument.at, "invalid matches argument".to_owned());
            }
            ("format", Some(format), [Expr { kind: Kind::List(elements), .. }]) => {
                // The list is the last checked literal, because it is the last argument.
                let types = std::mem::take(&mut self.element_types);
                if let Some((argument, message)) =
                    text(format).and_then(|pattern| constant_format_error(&pattern, &types))
                {
                    let element = argument.and_then(|index| elements.get(index));
                    self.report_constant(element.map_or(format.at, |(element, _)| element.at), message);
                }
            }
            _ => {}
        }
    }
}
