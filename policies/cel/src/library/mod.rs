//! The functions of expressions: each library is one file with declarations, code, cost and the release
//! since which it exists, and one line in [`LIBRARIES`].

pub(crate) mod authorization;
mod conversions;
mod formats;
mod ips;
mod lists;
mod operators;
mod optionals;
mod quantities;
mod re2;
mod regexes;
mod semvers;
mod sets;
mod strings;
mod text_format;
mod times;
mod urls;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crate::cost::{CallCost, ResultSize};
use crate::error::EvalError;
use crate::program::Node;
use crate::types::{Declaration, Overload};
use crate::value::Value;

/// The minor release whose libraries new expressions may use.
const SERVED: u32 = 33;

/// Every library.
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

/// Every overload in the notation of declarations, with the minor release since which new expressions may
/// use it (0 for all), in the order of the table.
pub fn functions() -> impl Iterator<Item = (u32, &'static str)> {
    LIBRARIES.iter().flat_map(|library| {
        let declared = library.functions.iter().flat_map(|function| function.declares.iter());
        declared.map(|text| (library.since, *text))
    })
}

/// Functions that came together.
pub(crate) struct Library {
    /// The minor release since which new expressions may use it; 0 for all.
    pub(crate) since: u32,
    pub(crate) functions: &'static [Function],
}

/// Looks at the arguments of a call that are constant.
pub(crate) type Prepare = fn(&mut [Node]) -> Result<(), EvalError>;

/// One function: its overloads, its code and its cost.
pub(crate) struct Function {
    /// Overloads in the notation of [`Declaration`].
    pub(crate) declares: &'static [&'static str],
    /// The code. It answers [`EvalError::NoOverload`] for values that it is not for, before doing anything.
    pub(crate) body: for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>,
    pub(crate) cost: CallCost,
    /// What estimates know of the result.
    pub(crate) size: ResultSize,
    /// Looks at constant arguments when the expression is compiled.
    pub(crate) prepare: Option<Prepare>,
}

impl Function {
    /// A function without preparation, of whose result estimates know nothing.
    pub(crate) const fn new(
        declares: &'static [&'static str],
        cost: CallCost,
        body: for<'a> fn(&[Value<'a>]) -> Result<Value<'a>, EvalError>,
    ) -> Function {
        Function { declares, body, cost, size: ResultSize::Unknown, prepare: None }
    }

    /// The function, with what estimates know of its result.
    pub(crate) const fn of_size(mut self, size: ResultSize) -> Function {
        self.size = size;
        self
    }
}

/// The functions on offer, by name and by whether they are called on a receiver.
pub(crate) struct Table([HashMap<&'static str, Vec<(Overload, &'static Function)>>; 2]);

impl Table {
    fn upto(release: u32) -> Table {
        let [mut global, mut member] = [HashMap::<_, Vec<_>>::new(), HashMap::new()];
        for library in LIBRARIES.iter().filter(|library| library.since <= release) {
            for function in library.functions {
                for text in function.declares {
                    let d = Declaration::parse(text);
                    let table = if d.member { &mut member } else { &mut global };
                    table.entry(d.name).or_default().push((d.overload, function));
                }
            }
        }
        Table([global, member])
    }

    /// For new expressions.
    pub(crate) fn served() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::upto(SERVED)));
        TABLE.clone()
    }

    /// For stored expressions.
    pub(crate) fn all() -> Arc<Table> {
        static TABLE: LazyLock<Arc<Table>> = LazyLock::new(|| Arc::new(Table::upto(u32::MAX)));
        TABLE.clone()
    }

    /// The overloads of a name.
    pub(crate) fn find(&self, name: &str, member: bool) -> Option<&[(Overload, &'static Function)]> {
        let [global, members] = &self.0;
        let table = if member { members } else { global };
        table.get(name).map(Vec::as_slice)
    }
}
