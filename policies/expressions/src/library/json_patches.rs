//! Functions for JSON patches. Only expressions of mutations can call them.

use crate::cost::CallCost::Text;
use crate::cost::ResultSize;
use crate::value::Value;

use super::{Function, Library, single_text};

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        // Escapes a key for a path of a JSON patch: `~` becomes `~0`, and `/` becomes `~1`.
        Function::new(&["jsonpatch.escapeKey(string) -> string"], Text(1), |a| {
            Ok(Value::text(single_text(a)?.replace('~', "~0").replace('/', "~1")))
        })
        .with_result_size(ResultSize::First),
    ],
};
