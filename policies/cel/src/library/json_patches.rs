//! Functions for JSON patches. Only expressions of mutations can call them.

use crate::cost::CallCost::Text;
use crate::error::EvalError;
use crate::value::Value;

use super::{Function, Library};

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[Function::new(&["jsonpatch.escapeKey(string) -> string"], Text(1), escape_key)],
};

/// Escapes a key for a path of a JSON patch: `~` becomes `~0`, and `/` becomes `~1`.
fn escape_key<'a>(arguments: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match arguments {
        [Value::String(key)] => Ok(Value::text(key.as_str().replace('~', "~0").replace('/', "~1"))),
        _ => Err(EvalError::NoOverload),
    }
}
