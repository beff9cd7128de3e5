//! Facts about values that are known before evaluation: types and ranges of sizes.

use crate::bounds::{Bounds, KEY, PartBounds};
use crate::types::Type;

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
    pub(crate) const ONE: Estimate = Estimate::exactly(1);
    pub(crate) const UNKNOWN: Estimate = Estimate { min: 0, max: u64::MAX };

    pub(crate) const fn exactly(n: u64) -> Estimate {
        Estimate { min: n, max: n }
    }

    /// Applies a monotonic function to both limits.
    pub(crate) fn map(self, f: impl Fn(u64) -> u64) -> Estimate {
        Estimate { min: f(self.min), max: f(self.max) }
    }

    /// Multiplies both limits by a factor and rounds up. As in kube-apiserver, the product of a large limit has
    /// the precision of a floating-point number.
    pub(crate) fn scaled(self, factor: f64) -> Estimate {
        self.map(|limit| scale(limit, factor))
    }

    pub(crate) fn times(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }

    /// Smallest range that contains both ranges.
    pub(crate) fn union(self, other: Estimate) -> Estimate {
        Estimate { min: self.min.min(other.min), max: self.max.max(other.max) }
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion to an integer saturates"
)]
fn scale(limit: u64, factor: f64) -> u64 {
    (limit as f64 * factor).ceil() as u64
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
    /// Range of [`crate::Value::size`]; None if only [`ValueFacts::place`] could tell, and does not.
    known_size: Option<Estimate>,
    pub(crate) place: Place<'b>,
    pub(crate) entries: Option<EntrySizes>,
    /// The value of an integer literal.
    pub(crate) literal: Option<i64>,
}

/// Sizes of the keys and values of a list or map that an expression creates.
#[derive(Clone, Copy)]
pub(crate) struct EntrySizes {
    pub(crate) is_list: bool,
    pub(crate) key: Estimate,
    pub(crate) value: Estimate,
}

impl EntrySizes {
    /// Sizes that hold for the entries of both containers.
    pub(crate) fn union(self, other: EntrySizes) -> EntrySizes {
        EntrySizes {
            is_list: self.is_list,
            key: self.key.union(other.key),
            value: self.value.union(other.value),
        }
    }
}

/// Place of a value in the data.
///
/// As in kube-apiserver, a part of a value that is not in the data is taken for the root of the data.
#[derive(Clone, Copy)]
pub(crate) enum Place<'b> {
    /// The value is not in the data.
    Computed { root: Option<&'b Bounds> },
    /// The value is in the data; None if no limits are known.
    Data { root: Option<&'b Bounds>, bounds: Option<&'b Bounds> },
}

/// A part of a value.
pub(crate) enum Part<'p> {
    Field(&'p str),
    /// An element of a list, or a value of a map.
    Value,
    /// A key of a map.
    Key,
}

impl<'b> Place<'b> {
    /// Place of a part of the value.
    pub(crate) fn part(self, part: &Part<'_>) -> Place<'b> {
        match self {
            Place::Computed { root } => Place::Data { root, bounds: root },
            Place::Data { root, bounds } => {
                let bounds = bounds.and_then(|bounds| match (&bounds.parts, part) {
                    (PartBounds::Elements(each) | PartBounds::Values(each), Part::Value) => {
                        Some(each.as_ref())
                    }
                    (PartBounds::Values(_), Part::Key) => Some(&KEY),
                    (PartBounds::Fields(fields), Part::Field(name)) => fields.get(*name),
                    _ => None,
                });
                Place::Data { root, bounds }
            }
        }
    }

    /// Size that the limits of the data imply.
    pub(crate) fn size(self) -> Option<Estimate> {
        match self {
            Place::Data { bounds: Some(bounds), .. } => Some(Estimate { min: 0, max: bounds.size }),
            _ => None,
        }
    }
}

impl<'b> ValueFacts<'b> {
    /// Creates the facts of a value with a known type and place, and with nothing else known.
    pub(crate) fn at(ty: Type, place: Place<'b>) -> ValueFacts<'b> {
        let known_size = place.size().or_else(|| is_scalar(&ty).then_some(Estimate::ONE));
        ValueFacts { ty, known_size, place, entries: None, literal: None }
    }

    /// A computed value with a known range of sizes.
    pub(crate) fn with_size(ty: Type, size: Estimate, place: Place<'b>) -> ValueFacts<'b> {
        ValueFacts { ty, known_size: Some(size), place, entries: None, literal: None }
    }

    /// Sets the size unless it is known.
    pub(crate) fn or_size(mut self, size: Option<Estimate>) -> ValueFacts<'b> {
        self.known_size = self.known_size.or(size);
        self
    }

    pub(crate) fn known_size(&self) -> Option<Estimate> {
        self.known_size
    }

    /// Range of sizes.
    pub(crate) fn size(&self) -> Estimate {
        self.known_size.unwrap_or(Estimate::UNKNOWN)
    }

    /// Range of the sizes of the elements of a list; unlimited for a list that is not in the data.
    pub(crate) fn element_size(&self) -> Estimate {
        match self.place {
            Place::Computed { .. } => Estimate::UNKNOWN,
            place @ Place::Data { .. } => place.part(&Part::Value).size().unwrap_or(Estimate::UNKNOWN),
        }
    }

    /// Type of the elements of a list or of the keys of a map; None for other types.
    pub(crate) fn first_parameter(&self) -> Option<&Type> {
        match &self.ty {
            Type::List(list) => Some(&list.element),
            Type::Map(types) => Some(&types.0),
            Type::Optional(inner) | Type::Type(inner) => Some(inner),
            _ => None,
        }
    }
}

/// Whether the estimator counts every value of the type as size 1.
fn is_scalar(ty: &Type) -> bool {
    match ty {
        Type::Bool | Type::Int | Type::Uint | Type::Double | Type::Timestamp | Type::Duration => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}
