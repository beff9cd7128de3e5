//! Selection of objects by label selector, field selector and key for list, watch and deletecollection.

use std::sync::Arc;

use apimachinery::field::quote;
use apimachinery::selector::field::FieldSelector;
use apimachinery::selector::label::LabelSelector;
use apimachinery::status::Status;
use kinds::Kind;
use kinds::entry::Entry;

use super::Call;
use super::options::ListOptions;
use super::response_object::entry;
use crate::Item;

/// Label selector, field selector and key prefix.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    /// The kind whose fields the field selector uses.
    served_resource: Arc<Kind>,
    /// Keys to read: the key of one object, or a prefix that ends with `/`.
    pub(super) keys: String,
}

/// Fields in field selectors of every kind.
const META_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

impl Selection {
    /// Returns the selection of a call on a collection or on a single object.
    ///
    /// # Errors
    ///
    /// 400: the kind does not support this field selector (requirement D-QP-46).
    pub(super) fn new(call: &Call<'_>, options: &ListOptions) -> Result<Self, Status> {
        let resource = call.collection.kind.internal();
        let served_resource = &call.collection.kind;
        let kind_fields = &served_resource.fields.names;
        let unknown = options.fields.fields().find(|field| served_resource.stored_field(field).is_none());
        if let Some(field) = unknown {
            let kind = served_resource;
            return Err(Status::bad_request(match (kind.stem(), kind.name()) {
                _ if kind_fields.is_empty() => {
                    let known = META_FIELDS.map(quote).join(", ");
                    format!("{} is not a known field selector: only {known}", quote(field))
                }
                // kube-apiserver words this failure differently for two kinds.
                (Some("batch"), "Job") => format!("field label {} not supported for Job", quote(field)),
                (Some("resource"), "ResourceSlice") => {
                    let version = served_resource.api_version();
                    format!("field label not supported for {version}, Kind=ResourceSlice: {field}")
                }
                _ => format!("field label not supported: {field}"),
            }));
        }
        let has_one_namespace = !resource.namespaced || !call.namespace.is_empty();
        let exact_name =
            Some(call.name).filter(|name| !name.is_empty()).or(options.fields.exact("metadata.name"));
        let keys = match exact_name {
            Some(name) if has_one_namespace && !name.is_empty() && !name.contains('/') => {
                resource.key(call.namespace, name)
            }
            _ => call.scope(),
        };
        let (labels, fields) = (options.labels.clone(), options.fields.clone());
        Ok(Selection { labels, fields, served_resource: Arc::clone(served_resource), keys })
    }

    /// Returns the selection of all objects of the scope.
    pub(super) fn everything(&self) -> Self {
        Selection { labels: LabelSelector::default(), fields: FieldSelector::default(), ..self.clone() }
    }

    /// Whether the selection includes all objects of its scope.
    pub(super) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the selection includes an item.
    pub(super) fn selects(&self, item: &Item) -> Result<bool, Status> {
        Ok(self.is_everything() || self.matches(entry(item)?))
    }

    fn matches(&self, entry: &Entry) -> bool {
        let field =
            |field: &str| self.served_resource.stored_field(field).map_or("", |field| entry.field(field));
        self.labels.matches(|key| entry.label(key)) && self.fields.matches(field)
    }
}
