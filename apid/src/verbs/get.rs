//! The get verb.

use apimachinery::status::Status;

use super::version::{Wanted, parse_or_500};
use super::{Call, Shown, scale};

/// Returns the object, at least as new as the requested resourceVersion (requirements D-RV-4 to -6).
///
/// # Errors
///
/// 404, or 504 when the watch cache does not reach the version in time.
pub async fn get(call: &Call<'_>, resource_version: &str) -> Result<Shown, Status> {
    // The watch cache contains every acknowledged commit, so its state is the most recent one.
    if let Wanted::At(version) = parse_or_500(resource_version)? {
        call.reach(version).await?;
    }
    let shown = Shown::item(call.found().await?);
    if call.view().is_some() { scale::view(&shown) } else { Ok(shown) }
}
