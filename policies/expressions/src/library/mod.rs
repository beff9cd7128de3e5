//! Function libraries.
//! Each library is one file and one line in [`LIBRARIES`]. The file defines declarations, code, cost and the
//! first release of the library.

mod arithmetic;
pub(crate) mod authorization;
pub(crate) mod conversions;
mod formats;
mod forms;
mod ips;
mod json_patches;
mod lists;
pub(crate) mod matcher;
mod operators;
mod optionals;
pub(crate) mod patterns;
mod quantities;
mod re2;
pub(crate) mod regexes;
mod semvers;
mod sets;
mod strings;
mod text_format;
mod times;
pub(crate) mod urls;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::cost::{CallCost, ResultSize};
use crate::dialect::Dialect;
use crate::error::EvalError;
use crate::types::{Declaration, Overload};
use crate::value::Value;

pub(crate) use patterns::is_valid as is_valid_pattern;
pub(crate) use regexes::constant_pattern;
pub(crate) use text_format::constant_error as constant_format_error;

/// Minor release whose libraries new expressions may use.
const SERVED_RELEASE: u32 = 33;

/// All libraries, except that of mutations and those in which dialects differ.
static LIBRARIES: &[&Library] = &[
    &operators::LIBRARY,
    &conversions::LIBRARY,
    &times::LIBRARY,
    &strings::STANDARD,
    &strings::LIBRARY,
    &lists::LIBRARY,
    &regexes::LIBRARY,
    &optionals::LIBRARY,
    &sets::LIBRARY,
    &urls::LIBRARY,
    &urls::ADDITIONS,
    &ips::IP,
    &ips::CIDR,
    &quantities::LIBRARY,
    &semvers::LIBRARY,
    &formats::LIBRARY,
    &authorization::LIBRARY,
    &authorization::SELECTORS,
];

/// An overload of a function, for the table of all functions.
#[derive(Clone, Debug)]
pub struct FunctionRow {
    /// Minor release since which new expressions may use the overload; 0 for all releases.
    pub since: u32,
    /// The overload in the notation of declarations.
    pub declaration: &'static str,
    /// Rule of the cost of a call.
    pub cost: String,
    /// Rule of the size of the result in estimates; `-` without a rule.
    pub size: String,
}

/// Iterates over all overloads, in the order of the libraries, then over macros, operators and literals.
pub fn functions() -> impl Iterator<Item = FunctionRow> {
    let forms = forms::FORMS.iter().map(|(since, declaration, cost, size)| FunctionRow {
        since: *since,
        declaration,
        cost: (*cost).to_owned(),
        size: (*size).to_owned(),
    });
    let others = [&ips::CIDR_TEXT, &quantities::SIGN, &json_patches::LIBRARY];
    let functions = LIBRARIES.iter().copied().chain(others).flat_map(|library| {
        library.functions.iter().flat_map(|function| {
            function.declares.iter().map(|declaration| FunctionRow {
                since: library.since,
                declaration,
                cost: function.cost.to_string(),
                size: function.size.to_string(),
            })
        })
    });
    functions.chain(forms)
}

/// Functions with the same first release.
pub(crate) struct Library {
    /// Minor release since which new expressions may use the library; 0 for all releases.
    pub(crate) since: u32,
    pub(crate) functions: &'static [Function],
}

/// A function: overloads, code and cost.
pub(crate) struct Function {
    /// Overloads in the notation of [`Declaration`].
    pub(crate) declares: &'static [&'static str],
    pub(crate) body: Body,
    pub(crate) cost: CallCost,
    /// Rule for the estimated size of the result.
    pub(crate) size: ResultSize,
}

/// Code of a function. For argument types of no overload it returns [`EvalError::NoOverload`] before any work.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    /// The cost rule covers the work.
    Plain(for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>),
    /// Also adds units of work, which only the call shows, to the counter.
    Counting(for<'a> fn(&[Value<'a>], &mut u64) -> Result<Value<'a>, EvalError>),
}

impl Body {
    /// Runs the code. `work`: counter of units of work that the cost rule does not cover.
    #[inline]
    pub(crate) fn run<'a>(self, arguments: &[Value<'a>], work: &mut u64) -> Result<Value<'a>, EvalError> {
        match self {
            Body::Plain(body) => body(arguments),
            Body::Counting(body) => body(arguments, work),
        }
    }
}

impl Function {
    /// A function without result size estimate.
    pub(crate) const fn new(
        declares: &'static [&'static str],
        cost: CallCost,
        body: for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>,
    ) -> Function {
        Function { declares, body: Body::Plain(body), cost, size: ResultSize::Unknown }
    }

    /// A function that counts its work, without result size estimate.
    pub(crate) const fn counting(
        declares: &'static [&'static str],
        cost: CallCost,
        body: for<'a> fn(&[Value<'a>], &mut u64) -> Result<Value<'a>, EvalError>,
    ) -> Function {
        Function { declares, body: Body::Counting(body), cost, size: ResultSize::Unknown }
    }

    /// Sets the estimate of the result size.
    pub(crate) const fn with_result_size(mut self, size: ResultSize) -> Function {
        self.size = size;
        self
    }
}

/// Returns the library value that is the only argument.
fn library_value<'v, T: 'static>(arguments: &'v [Value<'_>]) -> Result<&'v T, EvalError> {
    match arguments {
        [value] => value.downcast().ok_or(EvalError::NoOverload),
        _ => Err(EvalError::NoOverload),
    }
}

/// Returns the text that is the only argument.
fn single_text<'v>(arguments: &'v [Value<'_>]) -> Result<&'v str, EvalError> {
    match arguments {
        [value] => value.as_str().ok_or(EvalError::NoOverload),
        _ => Err(EvalError::NoOverload),
    }
}

/// Overloads by function name: the first map has the global functions, the second the member functions.
pub(crate) struct Table([HashMap<&'static str, Vec<(Overload, &'static Function)>>; 2]);

/// The overloads of a function that exists only in the other form.
static NONE: &[(Overload, &Function)] = &[];

impl Table {
    fn of_release(release: u32, dialect: Dialect) -> Table {
        let common = LIBRARIES.iter().copied().filter(|library| library.since <= release);
        let blocks =
            if dialect.has_cidr_host_bits { &ips::CIDR_TEXT } else { &ips::CIDR_TEXT_WITHOUT_HOST_BITS };
        let has_sign = dialect.has_quantity_sign || release > SERVED_RELEASE;
        let sign = has_sign.then_some(&quantities::SIGN);
        Table::from_libraries(common.chain([blocks]).chain(sign))
    }

    /// The tables of both dialects: that of Kubernetes first.
    fn of_dialects(release: u32) -> [Table; 2] {
        [Dialect::KUBERNETES, Dialect::SPECIFICATION].map(|dialect| Table::of_release(release, dialect))
    }

    fn from_libraries(libraries: impl Iterator<Item = &'static Library>) -> Table {
        let [mut global, mut member] = [HashMap::<_, Vec<_>>::new(), HashMap::new()];
        for library in libraries {
            for function in library.functions {
                for text in function.declares {
                    let d = Declaration::parse(text);
                    let table = if d.is_member { &mut member } else { &mut global };
                    table.entry(d.name).or_default().push((d.overload, function));
                }
            }
        }
        Table([global, member])
    }

    /// Functions for new expressions: those up to the served release.
    pub(crate) fn served(dialect: Dialect) -> &'static Table {
        static TABLES: LazyLock<[Table; 2]> = LazyLock::new(|| Table::of_dialects(SERVED_RELEASE));
        let [kubernetes, specification] = &*TABLES;
        if dialect.has_cidr_host_bits { kubernetes } else { specification }
    }

    /// Functions for stored expressions: those of all releases.
    pub(crate) fn all(dialect: Dialect) -> &'static Table {
        static TABLES: LazyLock<[Table; 2]> = LazyLock::new(|| Table::of_dialects(u32::MAX));
        let [kubernetes, specification] = &*TABLES;
        if dialect.has_cidr_host_bits { kubernetes } else { specification }
    }

    /// Functions of mutations, in addition to those of the other tables.
    pub(crate) fn for_mutations() -> &'static Table {
        static TABLE: LazyLock<Table> =
            LazyLock::new(|| Table::from_libraries([&json_patches::LIBRARY].into_iter()));
        &TABLE
    }

    /// Overloads of a function with this name; `member` selects member functions instead of global ones. A
    /// function that exists only in the other form has no overloads.
    pub(crate) fn find(
        &'static self,
        name: &str,
        member: bool,
    ) -> Option<(&'static str, &'static [(Overload, &'static Function)])> {
        let [global, members] = &self.0;
        let (table, other) = if member { (members, global) } else { (global, members) };
        match table.get_key_value(name) {
            Some((name, overloads)) => Some((name, overloads)),
            None => other.get_key_value(name).map(|(name, _)| (*name, NONE)),
        }
    }
}
