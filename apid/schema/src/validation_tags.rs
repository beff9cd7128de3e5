//! Validation tags: facts of fields in `data/types.txt` that state rules.
//!
//! # Contract
//!
//! | Tag | Rule |
//! |---|---|
//! | `minimum=N` | an integer is at least N |
//! | `optional` | no rule by itself; a pointer with a default is required: defaulting sets the field |

use self::tags::MINIMUM;

/// A rule of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValidationTag {
    /// The field must be present.
    Required,
    /// The minimum of an integer.
    Minimum(i64),
}

/// Names of validation tags, which errors carry.
pub mod tags {
    /// The tag of missing required values.
    pub const REQUIRED: &str = "required";
    /// The tag of integers below their minimum.
    pub const MINIMUM: &str = "minimum";
}

/// Reads the tags among the facts of a field.
pub(crate) fn read<'a>(facts: impl Iterator<Item = &'a str>, is_pointer: bool) -> Box<[ValidationTag]> {
    let (mut tags, mut is_optional, mut has_default) = (Vec::new(), false, false);
    for fact in facts {
        match fact.split_once('=') {
            None if fact == "optional" => is_optional = true,
            Some(("default", _)) => has_default = true,
            Some((MINIMUM, minimum)) => tags.extend(minimum.parse().ok().map(ValidationTag::Minimum)),
            _ => {}
        }
    }
    if is_optional && has_default && is_pointer {
        tags.push(ValidationTag::Required);
    }
    tags.into_boxed_slice()
}
