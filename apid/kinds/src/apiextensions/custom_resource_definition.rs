//! CustomResourceDefinition: a user-defined kind.

use apimachinery::object::Object;
use serde_json::Value;

use crate::table::cell::PathReader;
use crate::{
    Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
    UnenforcedKind, unenforced,
};

pub(super) const KIND: Kind = Kind {
    group: "apiextensions",
    versions: &["v1"],
    kind: "CustomResourceDefinition",
    resource: "customresourcedefinitions",
    singular: "customresourcedefinition",
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("CustomResourceDefinition")],
    schema: "apiextensions/v1.CustomResourceDefinition",
    strategy: &CustomResourceDefinition,
};

struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn unenforced(&self) -> Option<&'static UnenforcedKind> {
        Some(&unenforced::CUSTOM_RESOURCES)
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::StatusOnly
    }

    /// Initializes `status.storedVersions` with the storage version.
    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        let versions = object.items("spec.versions").iter();
        let stored = versions.filter(|version| version.flag("storage")).map(|version| version.text("name"));
        let stored: Vec<Value> = stored.map(Value::from).collect();
        if let Some(Value::Object(status)) = object.get_mut("status")
            && !stored.is_empty()
        {
            status.insert("storedVersions".to_owned(), stored.into());
        }
    }
}
