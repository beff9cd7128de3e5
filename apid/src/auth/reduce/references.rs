//! References in the specs of pods and volumes: to an object by name, and to the Secret of a storage driver.

use std::borrow::Cow;

use serde::Deserialize;

/// A string that may be absent.
pub(super) type OptionalText<'a> = Option<Cow<'a, str>>;

/// A reference by name, to an object in the same namespace unless `namespace` names another one.
#[derive(Deserialize)]
pub(super) struct Reference<'a> {
    #[serde(borrow)]
    pub(super) namespace: OptionalText<'a>,
    #[serde(borrow)]
    pub(super) name: OptionalText<'a>,
}

/// The fields of a storage driver in a volume. The reduction uses only the reference to its Secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverSource<'a> {
    #[serde(borrow)]
    secret_ref: Option<Reference<'a>>,
}

/// The references of a volume's storage drivers to their Secrets.
pub(super) fn driver_secret_references<'s, 'a>(
    drivers: impl IntoIterator<Item = &'s Option<DriverSource<'a>>>,
) -> impl Iterator<Item = &'s Reference<'a>>
where
    'a: 's,
{
    drivers.into_iter().flatten().filter_map(|driver| driver.secret_ref.as_ref())
}
