//! Facts about values that are known before evaluation: types and ranges of sizes.

use std::sync::Arc;

use crate::bounds::{Bounds, PartBounds};
use crate::types::{Type, without_optional};

/// Minimum and maximum of a cost in cost units, or of a size as in [`crate::Value::size`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Minimum of an evaluation that does not end with an error.
    pub min: u64,
    /// Maximum; `u64::MAX` if no limit is known.
    pub max: u64,
}

impl Estimate {
    pub(crate) const ZERO: Estimate = Estimate::exactly(0);
    pub(crate) const UNKNOWN: Estimate = Estimate { min: 0, max: u64::MAX };

    pub(crate) const fn exactly(n: u64) -> Estimate {
        Estimate { min: n, max: n }
    }

    /// Applies a monotonic function to both limits.
    pub(crate) fn map(self, f: impl Fn(u64) -> u64) -> Estimate {
        Estimate { min: f(self.min), max: f(self.max) }
    }

    pub(crate) fn times(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Smallest range that contains both ranges.
    pub(crate) fn union(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

impl std::ops::Add for Estimate {
    type Output = Estimate;

    fn add(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }
}

/// Facts about a value that the estimator knows.
#[derive(Clone)]
pub(crate) struct ValueFacts<'b> {
    pub(crate) ty: Type,
    /// Range of [`crate::Value::size`].
    pub(crate) size: Estimate,
    pub(crate) parts: Parts<'b>,
}

/// Facts about the parts of a value that the estimator knows.
#[derive(Clone)]
pub(crate) enum Parts<'b> {
    Unknown,
    Of(&'b Bounds),
    /// Facts about every element of a list, or every value of a map.
    Each(Arc<ValueFacts<'b>>),
}

impl<'b> ValueFacts<'b> {
    /// Only the type of the value is known.
    pub(crate) fn from_type(ty: Type) -> ValueFacts<'b> {
        let size = if is_scalar(&ty) { Estimate::exactly(1) } else { Estimate::UNKNOWN };
        ValueFacts { ty, size, parts: Parts::Unknown }
    }

    /// A value of the data, whose size `bounds` limits.
    pub(crate) fn from_bounds(ty: Type, bounds: &'b Bounds) -> ValueFacts<'b> {
        let size = if is_scalar(&ty) { Estimate::exactly(1) } else { Estimate { min: 0, max: bounds.size } };
        ValueFacts { ty, size, parts: Parts::Of(bounds) }
    }

    /// A value with a known range of sizes.
    pub(crate) fn with_size(ty: Type, size: Estimate) -> ValueFacts<'b> {
        ValueFacts { ty, size, parts: Parts::Unknown }
    }

    /// A list or map with a known range of sizes; `each` describes every element or value.
    pub(crate) fn with_elements(ty: Type, size: Estimate, each: ValueFacts<'b>) -> ValueFacts<'b> {
        ValueFacts { ty, size, parts: Parts::Each(Arc::new(each)) }
    }

    /// Whether the estimator counts every value of the type as size 1.
    pub(crate) fn is_scalar(&self) -> bool {
        is_scalar(&self.ty)
    }

    /// Facts about every element of a list or value of a map.
    pub(crate) fn element(&self) -> ValueFacts<'b> {
        let ty = match without_optional(&self.ty) {
            Type::List(list) => list.element.clone(),
            Type::Map(types) => types.1.clone(),
            _ => Type::Dyn,
        };
        part_facts(&self.parts, None, ty)
    }

    /// The value inside an optional.
    pub(crate) fn without_optional(self) -> ValueFacts<'b> {
        ValueFacts { ty: without_optional(&self.ty).clone(), ..self }
    }

    /// Facts that hold for both values.
    pub(crate) fn union(self, other: ValueFacts<'b>) -> ValueFacts<'b> {
        let parts = match (&self.parts, &other.parts) {
            (Parts::Unknown, _) | (_, Parts::Unknown) => Parts::Unknown,
            _ => Parts::Each(Arc::new(self.element().union(other.element()))),
        };
        let ty = if self.ty == Type::Null { other.ty } else { self.ty };
        ValueFacts { ty, size: self.size.union(other.size), parts }
    }

    /// Concatenation of two lists or texts.
    pub(crate) fn concatenate(self, other: ValueFacts<'b>, ty: Type) -> ValueFacts<'b> {
        let size = self.size + other.size;
        ValueFacts { ty, size, ..self.union(other) }
    }
}

fn is_scalar(ty: &Type) -> bool {
    matches!(
        without_optional(ty),
        Type::Null
            | Type::Bool
            | Type::Int
            | Type::Uint
            | Type::Double
            | Type::Timestamp
            | Type::Duration
            | Type::Type
            | Type::Opaque(_)
    )
}

/// Facts about a part of type `ty`: a named field, or any element if `field` is None.
pub(crate) fn part_facts<'b>(parts: &Parts<'b>, field: Option<&str>, ty: Type) -> ValueFacts<'b> {
    let bounds = match parts {
        Parts::Unknown => None,
        Parts::Each(each) => return ValueFacts { ty, ..each.as_ref().clone() },
        Parts::Of(bounds) => match &bounds.parts {
            PartBounds::Unknown => None,
            PartBounds::Each(each) => Some(each.as_ref()),
            PartBounds::Fields(fields) => field.and_then(|name| fields.get(name)),
        },
    };
    match bounds {
        Some(bounds) => ValueFacts::from_bounds(ty, bounds),
        None => ValueFacts::from_type(ty),
    }
}
