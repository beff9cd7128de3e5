//! Objects that an earlier release stored in an API version that is not served.

use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::removed::{self, Notes};

/// Converts a stored object of a removed version to the version that replaces it. Returns false, and changes nothing, for
/// an object of another version.
///
/// The result has no new defaults, and no schema has checked it.
pub fn upgrade_stored(object: &mut Object, names: &Names) -> bool {
    let kind = object.kind().to_owned();
    let removed = GroupVersion::parse(object.api_version()).and_then(|stored| {
        let stem = names.stem(&stored.group)?;
        removed::find(stem, &stored.version, &kind)
    });
    let Some(removed) = removed else { return false };
    (removed.changes.upgrade)(object, names, &mut Notes::default());
    let (stem, version) = removed.served;
    let served = GroupVersion { group: names.group(stem), version: version.to_owned() };
    object.set_type(&served.to_string(), &kind);
    true
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    #[test]
    fn stored_definition_of_v1beta1_becomes_one_of_v1() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition",
            "spec": {
                "preserveUnknownFields": false, "version": "v1", "versions": [{"name": "v1"}],
                "validation": {"openAPIV3Schema": {"type": "object"}},
            },
        });
        let mut object = Object(definition.as_object().unwrap().clone());
        assert!(upgrade_stored(&mut object, &names));
        assert_eq!(object.api_version(), "apiextensions.k8s.io/v1");
        let versions = json!([{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object"}}}]);
        assert_eq!(object.get("spec").unwrap()["versions"], versions);
        assert!(!upgrade_stored(&mut object, &names), "a served version stays");
    }
}
