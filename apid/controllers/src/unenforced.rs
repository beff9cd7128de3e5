//! A log line at the start with the number of stored objects that this release of apid does not enforce.

use std::sync::Arc;

use apimachinery::status::Status;

use super::stored;
use verbs::ApiState;

/// Logs one line if the store contains objects that this release does not enforce.
pub(super) async fn report(api_state: Arc<ApiState>) {
    match count(&api_state).await {
        Ok(kinds) if kinds.is_empty() => {}
        Ok(kinds) => {
            let count: usize = kinds.iter().map(|(_, count)| count).sum();
            let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
            let kinds = kinds.join(", ");
            tracing::warn!(count, kinds, "objects are stored that this release does not serve or enforce");
        }
        Err(error) => tracing::warn!(%error, "counting the stored objects that are not enforced failed"),
    }
}

/// Returns the kinds with stored objects that apid does not enforce, each with the number of such objects.
///
/// # Errors
///
/// The store cannot be read.
pub async fn count(api_state: &ApiState) -> Result<Vec<(String, usize)>, Status> {
    let mut counts = Vec::new();
    for resource in api_state.kinds.registry().stored() {
        if resource.unenforced.is_none() {
            continue;
        }
        let Some(collection) = api_state.kinds.collection(resource) else { continue };
        let snapshot = collection.items.snapshot().await.map_err(stored::unavailable)?;
        let count = snapshot.scope(&resource.key_prefix, "").count();
        if count > 0 {
            counts.push((resource.name().to_owned(), count));
        }
    }
    Ok(counts)
}
