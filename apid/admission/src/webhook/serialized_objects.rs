//! The objects of a write in the form of one matched version, shared by the calls of all webhooks that match
//! it.
//!
//! # Invariants
//!
//! INVARIANT (converted once): the validating phase converts and serializes the objects once for each
//! version.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use apimachinery::codec::json;
use apimachinery::object::Object;

use crate::Attributes;
use crate::matching::MatchedResource;
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

/// Objects of one write by matched version.
#[derive(Default)]
pub(super) struct SerializedObjectsCache<'a>(Vec<(String, String, Arc<SerializedObjects<'a>>)>);

impl<'a> SerializedObjectsCache<'a> {
    /// The cached objects of a matched version, or the result of `build`.
    pub(super) fn get_or_build<E>(
        &mut self,
        matched: &MatchedResource,
        attributes: &Attributes<'_>,
        build: impl FnOnce() -> Result<SerializedObjects<'a>, E>,
    ) -> Result<Arc<SerializedObjects<'a>>, E> {
        let (resource, version) = matched.resource_and_version(attributes);
        let group = &resource.group_resource.group;
        let cached = self.0.iter().find(|(g, v, _)| g == group && v == version);
        if let Some((.., objects)) = cached {
            return Ok(Arc::clone(objects));
        }
        let objects = Arc::new(build()?);
        self.0.push((group.clone(), version.to_owned(), Arc::clone(&objects)));
        Ok(objects)
    }
}
