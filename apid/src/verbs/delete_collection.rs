//! The deletecollection verb.

use std::sync::Arc;

use admission::Notes;
use apimachinery::status::Status;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Call;
use super::delete::{Failed, delete_item, warn_of_default};
use super::deletion::options::DeleteOptions;
use super::deletion::unreadable;
use super::list::{Listed, list};
use super::options::ListOptions;
use crate::plane::Item;

/// Deletes at most `limit` objects that the list options select, `at_a_time` of them concurrently.
///
/// Each delete is independent. After the first failure no further delete begins, and the remaining objects
/// stay. An object that was removed meanwhile is not a failure.
///
/// # Errors
///
/// Those of the list and of the first delete that failed.
pub async fn delete_collection(
    call: &Call<'_>,
    which: &ListOptions,
    options: &DeleteOptions,
    at_a_time: usize,
) -> Result<Listed, Status> {
    unreadable::refuse_in_collections(call, options)?;
    let listed = list(call, which).await?;
    stream::iter(&listed.items)
        .map(Ok::<_, Status>)
        .try_for_each_concurrent(at_a_time.max(1), |item| async move {
            let notes = delete_listed(call, item, options).await?;
            notes.take_warnings().into_iter().for_each(|text| call.notes.warn(text));
            notes.take_annotations().into_iter().for_each(|(key, text)| call.notes.annotate(key, text));
            Ok(())
        })
        .await?;
    warn_of_default(call, options);
    Ok(Listed { continue_token: String::new(), remaining: None, ..listed })
}

/// Deletes a listed object, even if it was changed meanwhile. Returns its warnings and annotations.
async fn delete_listed(
    call: &Call<'_>,
    listed: &Arc<Item>,
    options: &DeleteOptions,
) -> Result<Notes, Status> {
    let Some((namespace, name)) = call.collection.resource.parse_key(listed.key()) else {
        return Ok(Notes::default());
    };
    // Concurrent deletes must not share notes.
    let notes = Notes::default();
    let call = Call { notes: &notes, ..call.on(namespace, name) };
    let mut item = Arc::clone(listed);
    loop {
        match delete_item(&call, &item, options).await {
            Ok(_) => return Ok(notes),
            Err(Failed::Unreadable(status) | Failed::For(status)) => return Err(*status),
            Err(Failed::Moved) => {}
        }
        // Delete the object also if it was changed meanwhile, but not if another object has its name now.
        let (now, _) = call.collection.items.get(listed.key()).await.map_err(|error| call.failure(error))?;
        match now {
            Some(now) if super::shown::entry(&now)?.uid() == super::shown::entry(&item)?.uid() => item = now,
            _ => return Ok(notes),
        }
    }
}
