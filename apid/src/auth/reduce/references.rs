//! References in specs: to an object by name, and to the Secret of a storage driver.

use std::borrow::Cow;

use serde::Deserialize;

/// A string that may be absent.
pub(super) type OptionalText<'a> = Option<Cow<'a, str>>;

/// A reference by name, to an object of the same namespace unless it names another.
#[derive(Deserialize)]
pub(super) struct Reference<'a> {
    #[serde(borrow)]
    pub(super) namespace: OptionalText<'a>,
    #[serde(borrow)]
    pub(super) name: OptionalText<'a>,
}

/// The fields of a storage driver in a volume; only the reference to its Secret matters.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DriverSource<'a> {
    #[serde(borrow)]
    secret_ref: Option<Reference<'a>>,
}

/// The Secrets of a volume's storage drivers.
pub(super) fn secrets<'s, 'a>(
    drivers: impl IntoIterator<Item = &'s Option<DriverSource<'a>>>,
) -> impl Iterator<Item = &'s Reference<'a>>
where
    'a: 's,
{
    drivers.into_iter().flatten().filter_map(|driver| driver.secret_ref.as_ref())
}
