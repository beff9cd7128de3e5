//! Function libraries.
//! Each library is one file and one line in [`LIBRARIES`]. The file defines declarations, code, cost and the
//! first release of the library.

mod arithmetic;
pub(crate) mod authorization;
pub(crate) mod conversions;
mod formats;
mod ips;
mod json_patches;
mod lists;
mod operators;
mod optionals;
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
use std::sync::{Arc, LazyLock};

use crate::cost::{CallCost, ResultSize};
use crate::error::EvalError;
use crate::types::{Declaration, Overload};
use crate::value::Value;

/// Minor release whose libraries new expressions may use.
const SERVED_RELEASE: u32 = 33;

/// All libraries, except that of mutations.
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
    &ips::IP,
    &ips::CIDR,
    &quantities::LIBRARY,
    &semvers::LIBRARY,
    &formats::LIBRARY,
    &authorization::LIBRARY,
    &authorization::SELECTORS,
];

/// Iterates over all overloads in the notation of declarations, in the order of the libraries.
///
/// The number is the minor release since which new expressions may use the overload (0: all releases).
pub fn functions() -> impl Iterator<Item = (u32, &'static str)> {
    LIBRARIES.iter().copied().chain([&json_patches::LIBRARY]).flat_map(|library| {
        let declarations = library.functions.iter().flat_map(|function| function.declares.iter());
        declarations.map(|text| (library.since, *text))
    })
}

/// Functions with the same first release.
pub(crate) struct Library {
    /// Minor release since which new expressions may use the library; 0 for all releases.
    pub(crate) since: u32,
    pub(crate) functions: &'static [Function],
}

/// Replacement of a constant text argument by a parsed value when an expression is compiled.
pub(crate) struct ConstantParser {
    /// Position of the argument.
    pub(crate) argument: usize,
    pub(crate) parse: fn(&str) -> Result<Value<'static>, EvalError>,
}

/// A function: overloads, code and cost.
pub(crate) struct Function {
    /// Overloads in the notation of [`Declaration`].
    pub(crate) declares: &'static [&'static str],
    /// Code of the function. For argument types of no overload it returns [`EvalError::NoOverload`] before
    /// any work.
    pub(crate) body: for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>,
    pub(crate) cost: CallCost,
    /// Rule for the estimated size of the result.
    pub(crate) size: ResultSize,
    /// Parser of a constant argument.
    pub(crate) constant: Option<ConstantParser>,
}

impl Function {
    /// A function without compile-time check and without result size estimate.
    pub(crate) const fn new(
        declares: &'static [&'static str],
        cost: CallCost,
        body: for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>,
    ) -> Function {
        Function { declares, body, cost, size: ResultSize::Unknown, constant: None }
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

impl Table {
    fn up_to_release(release: u32) -> Table {
        Table::from_libraries(LIBRARIES.iter().copied().filter(|library| library.since <= release))
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
    pub(crate) fn served() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::up_to_release(SERVED_RELEASE)));
        TABLE.clone()
    }

    /// Functions for stored expressions: those of all releases.
    pub(crate) fn all() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::up_to_release(u32::MAX)));
        TABLE.clone()
    }

    /// Functions of mutations, in addition to those of the other tables.
    pub(crate) fn for_mutations() -> &'static Table {
        static TABLE: LazyLock<Table> =
            LazyLock::new(|| Table::from_libraries([&json_patches::LIBRARY].into_iter()));
        &TABLE
    }

    /// Overloads of a function with this name; `member` selects member functions instead of global ones.
    pub(crate) fn find(&self, name: &str, member: bool) -> Option<&[(Overload, &'static Function)]> {
        let [global, members] = &self.0;
        let table = if member { members } else { global };
        table.get(name).map(Vec::as_slice)
    }
}
