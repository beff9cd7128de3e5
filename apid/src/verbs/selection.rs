//! Which objects of a collection a list, watch or deletecollection is about.

use std::sync::Arc;

use apimachinery::field::quote;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use kinds::Resource;
use kinds::entry::Entry;

use super::Call;
use super::options::ListOptions;
use super::shown::entry;
use crate::plane::Item;

/// Labels, fields, and the keys they can be among.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// The kind whose fields are meant.
    served: Arc<Resource>,
    /// The narrowest scope of the cache that holds all matches.
    pub(super) keys: String,
}

/// Fields that every kind is selected by.
const META_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl Selection {
    /// The selection of a call on a collection, or on one object of it.
    ///
    /// # Errors
    ///
    /// 400: the kind is not selected by such a field (requirements D-QP-46).
    pub(super) fn new(call: &Call<'_>, options: &ListOptions) -> Result<Self, Status> {
        let resource = &call.collection.resource;
        let served = &call.collection.served;
        let own = resource.kind.strategy.selectable_fields();
        let unknown = options.fields.fields().find(|field| served.stored_field(field).is_none());
        if let Some(field) = unknown {
            return Err(Status::bad_request(if own.is_empty() {
                let known = META_FIELDS.map(quote).join(", ");
                format!("{} is not a known field selector: only {known}", quote(field))
            } else {
                format!("field label not supported: {field}")
            }));
        }
        let within = !resource.kind.namespaced || !call.namespace.is_empty();
        let exact = Some(call.name).filter(|name| !name.is_empty()).or(options.fields.exact("metadata.name"));
        let keys = match exact {
            Some(name) if within && !name.is_empty() && !name.contains('/') => {
                resource.key(call.namespace, name)
            }
            _ => call.scope(),
        };
        let (labels, fields) = (options.labels.clone(), options.fields.clone());
        Ok(Selection { labels, fields, served: Arc::clone(served), keys })
    }

    /// Whether it is the whole scope.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether an item is meant.
    pub(super) fn selects(&self, item: &Item) -> Result<bool, Status> {
        Ok(self.is_everything() || self.matches(entry(item)?))
    }

    fn matches(&self, entry: &Entry) -> bool {
        let field = |field: &str| self.served.stored_field(field).map_or("", |field| entry.field(field));
        self.labels.matches(|key| entry.label(key)) && self.fields.matches(field)
    }
}
