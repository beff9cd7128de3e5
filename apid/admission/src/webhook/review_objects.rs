//! The objects of a write in the form of one matched version, shared by the calls of all webhooks that match it.
//!
//! # Invariants
//!
//! INVARIANT (converted once): the validating phase converts and serializes the objects once for each version.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use apimachinery::object::Object;

use crate::Attributes;
use crate::matching::MatchedResource;

/// The objects of a write in a matched version.
pub(super) struct ReviewObjects<'a> {
    /// The new object.
    pub(super) object: Option<Cow<'a, Object>>,
    /// The old object.
    pub(super) old: Option<Cow<'a, Object>>,
    texts: OnceLock<(String, String)>,
}

impl<'a> ReviewObjects<'a> {
    pub(super) fn new(object: Option<Cow<'a, Object>>, old: Option<Cow<'a, Object>>) -> Self {
        ReviewObjects { object, old, texts: OnceLock::new() }
    }

    /// The new and the old object as JSON, `null` without an object.
    pub(super) fn texts(&self) -> (&str, &str) {
        let text = |object: &Option<Cow<'_, Object>>| match object {
            Some(object) => serde_json::to_string(&object.0).unwrap_or_default(),
            None => "null".to_owned(),
        };
        let (object, old) = self.texts.get_or_init(|| (text(&self.object), text(&self.old)));
        (object, old)
    }
}

impl ReviewObjects<'_> {
    /// Length in bytes of both objects as JSON.
    pub(super) fn text_bytes(&self) -> usize {
        let (object, old) = self.texts();
        object.len() + old.len()
    }
}

/// Objects of one write by matched version.
#[derive(Default)]
pub(super) struct ReviewObjectsCache<'a>(Vec<(String, String, Arc<ReviewObjects<'a>>)>);

impl<'a> ReviewObjectsCache<'a> {
    /// The cached objects of a matched version, or the result of `build`.
    pub(super) fn get_or_build<E>(
        &mut self,
        matched: &MatchedResource,
        attributes: &Attributes<'_>,
        build: impl FnOnce() -> Result<ReviewObjects<'a>, E>,
    ) -> Result<Arc<ReviewObjects<'a>>, E> {
        let (resource, version) = matched.of(attributes);
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
