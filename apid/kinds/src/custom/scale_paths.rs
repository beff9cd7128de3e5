//! Paths of the subresource `scale` in a version of a definition.

use serde_json::Value;

use crate::table::cell::PathReader;

/// Paths to the values of a Scale in objects of a custom kind. A path is a list of field names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Path to the desired number of replicas.
    pub spec_replicas: Vec<String>,
    /// Path to the actual number of replicas.
    pub status_replicas: Vec<String>,
    /// Path to the serialized label selector; None if the definition has no such path.
    pub label_selector: Option<Vec<String>>,
}

impl ScalePaths {
    /// Reads the paths of a version: simple JSONPaths like `.spec.replicas`. None without the subresource.
    pub(super) fn of_version(version: &Value) -> Option<Self> {
        let scale = version.find("subresources.scale").filter(|scale| scale.is_object())?;
        let path = |field: &str| {
            let path = scale.text(field);
            path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let label_selector = Some(path("labelSelectorPath")).filter(|path| !path.is_empty());
        Some(ScalePaths {
            spec_replicas: path("specReplicasPath"),
            status_replicas: path("statusReplicasPath"),
            label_selector,
        })
    }
}
