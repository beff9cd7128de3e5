//! The deletecollection verb.

use std::sync::Arc;

use admission::PluginOutput;
use apimachinery::status::Status;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Call;
use super::delete::{DeleteError, delete_item, warn_default_propagation};
use super::deletion::options::DeleteOptions;
use super::deletion::unreadable;
use super::list::{ListResult, list};
use super::options::ListOptions;
use crate::server_state::Item;

/// Deletes at most `limit` objects that the list options select, `concurrency` of them concurrently.
///
/// Each delete is independent. After the first failure no further delete begins, and the remaining objects
/// stay. An object that was removed meanwhile is not a failure.
///
/// # Errors
///
/// Those of the list and of the first delete that failed.
pub async fn delete_collection(
    call: &Call<'_>,
    list_options: &ListOptions,
    options: &DeleteOptions,
    concurrency: usize,
) -> Result<ListResult, Status> {
    unreadable::reject_in_collections(call, options)?;
    let listed = list(call, list_options).await?;
    stream::iter(&listed.items)
        .map(Ok::<_, Status>)
        .try_for_each_concurrent(concurrency.max(1), |item| async move {
            let notes = delete_listed(call, item, options).await?;
            notes.take_warnings().into_iter().for_each(|text| call.notes.warn(text));
            notes.take_annotations().into_iter().for_each(|(key, text)| call.notes.annotate(key, text));
            Ok(())
        })
        .await?;
    warn_default_propagation(call, options);
    Ok(ListResult { continue_token: String::new(), remaining: None, ..listed })
}

/// Deletes a listed object, even if it was changed meanwhile. Returns its warnings and annotations.
async fn delete_listed(
    call: &Call<'_>,
    listed: &Arc<Item>,
    options: &DeleteOptions,
) -> Result<PluginOutput, Status> {
    let Some((namespace, name)) = call.collection.resource.parse_key(listed.key()) else {
        return Ok(PluginOutput::default());
    };
    // Concurrent deletes must not share notes.
    let notes = PluginOutput::default();
    let call = Call { notes: &notes, ..call.on(namespace, name) };
    let mut item = Arc::clone(listed);
    loop {
        match delete_item(&call, &item, options).await {
            Ok(_) => return Ok(notes),
            Err(DeleteError::Unreadable(status) | DeleteError::Status(status)) => return Err(*status),
            Err(DeleteError::Changed) => {}
        }
        // Delete the object also if it was changed meanwhile, but not if another object has its name now.
        match call.item().await? {
            Some(now)
                if super::response_object::entry(&now)?.uid()
                    == super::response_object::entry(&item)?.uid() =>
            {
                item = now
            }
            _ => return Ok(notes),
        }
    }
}
