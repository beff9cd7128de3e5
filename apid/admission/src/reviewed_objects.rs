//! The new and the old object of a write as webhooks and policies see them.

use std::borrow::Cow;

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::representation::Representation;
use crate::{Attributes, Phase, mutation};

/// The objects of a write in a matched version.
pub(crate) struct ReviewedObjects<'o> {
    /// The new object.
    pub(crate) new: Option<Cow<'o, Object>>,
    /// The old object.
    pub(crate) old: Option<Cow<'o, Object>>,
}

impl<'o> ReviewedObjects<'o> {
    /// Converts the new object, and the old object of the attributes.
    ///
    /// # Errors
    ///
    /// 500: the version cannot represent an object.
    pub(crate) fn new(
        object: Option<Cow<'o, Object>>,
        representation: &Representation<'_>,
        attributes: &Attributes<'o>,
        phase: Phase,
    ) -> Result<Self, Status> {
        let new = object.map(|object| match phase {
            Phase::Mutating => mutation::visible_object(object, representation, attributes),
            Phase::Validating => representation.convert(object),
        });
        let old = attributes.old.map(|old| representation.convert(Cow::Borrowed(old)));
        Ok(ReviewedObjects { new: new.transpose()?, old: old.transpose()? })
    }
}
