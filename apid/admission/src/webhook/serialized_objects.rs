//! The objects of a write in the form of one matched version, shared by the calls of all webhooks that match
//! it.

use std::borrow::Cow;
use std::sync::OnceLock;

use apimachinery::codec::json;
use apimachinery::object::Object;

use crate::reviewed_objects::ReviewedObjects;

/// The objects of a write in a matched version, and their JSON.
pub(super) struct SerializedObjects<'a> {
    pub(super) reviewed: ReviewedObjects<'a>,
    texts: OnceLock<(String, String)>,
}

impl<'a> SerializedObjects<'a> {
    pub(super) fn new(reviewed: ReviewedObjects<'a>) -> Self {
        SerializedObjects { reviewed, texts: OnceLock::new() }
    }

    /// The new and the old object as JSON, `null` without an object.
    pub(super) fn texts(&self) -> (&str, &str) {
        let text = |object: &Option<Cow<'_, Object>>| match object {
            Some(object) => json::to_text(&object.0),
            None => "null".to_owned(),
        };
        let (new, old) = self.texts.get_or_init(|| (text(&self.reviewed.new), text(&self.reviewed.old)));
        (new, old)
    }

    /// Length of both objects as JSON.
    pub(super) fn text_bytes(&self) -> usize {
        let (new, old) = self.texts();
        new.len() + old.len()
    }
}
