//! References in the specs of pods and volumes: to an object by name, and to the Secret of a storage driver.

use serde::Deserialize;

/// A reference by name, to an object in the same namespace unless `namespace` names another one.
#[derive(Deserialize)]
pub(super) struct Reference {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
}

/// The fields of a storage driver in a volume. The reduction uses only the reference to its Secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverSource {
    secret_ref: Option<Reference>,
}

/// The references of a volume's storage drivers to their Secrets.
pub(super) fn driver_secret_references<'s>(
    drivers: impl IntoIterator<Item = &'s Option<DriverSource>>,
) -> impl Iterator<Item = &'s Reference> {
    drivers.into_iter().flatten().filter_map(|driver| driver.secret_ref.as_ref())
}
