//! Reading one object.

use apimachinery::status::Status;

use super::version::{Wanted, parse_or_500};
use super::{Call, Shown, scale};

/// The object, of a version that is at least the one asked for (requirements D-RV-4 to -6).
///
/// # Errors
///
/// 404, or 504 when the version has not come.
pub async fn get(call: &Call<'_>, resource_version: &str) -> Result<Shown, Status> {
    // The cache shows every commit that was answered, so that what it holds is the most recent.
    if let Wanted::At(version) = parse_or_500(resource_version)? {
        call.reach(version).await?;
    }
    let shown = Shown::item(call.found().await?);
    if call.view().is_some() { scale::view(&shown) } else { Ok(shown) }
}
