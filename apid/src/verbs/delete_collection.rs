//! Deleting the objects of a collection.

use std::sync::Arc;

use apimachinery::status::Status;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::Call;
use super::delete::{Failed, delete_item, warn_of_default};
use super::deletion::options::DeleteOptions;
use super::list::{Listed, list};
use super::options::ListOptions;
use crate::plane::Item;

/// Deletes what the list options select, at most `limit`, so many at a time. Each delete is one of its own: what it fails
/// at stays, and so does what was not begun by then. What went meanwhile is no failure.
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
    let listed = list(call, which).await?;
    stream::iter(&listed.items)
        .map(Ok)
        .try_for_each_concurrent(at_a_time.max(1), |item| delete_listed(call, item, options))
        .await?;
    warn_of_default(call, options);
    Ok(Listed { continue_token: String::new(), remaining: None, ..listed })
}

/// Deletes an object that was listed, also when it was changed meanwhile.
async fn delete_listed(call: &Call<'_>, listed: &Arc<Item>, options: &DeleteOptions) -> Result<(), Status> {
    let Some((namespace, name)) = call.collection.resource.parse_key(listed.key()) else { return Ok(()) };
    let call = call.on(namespace, name);
    let mut item = Arc::clone(listed);
    loop {
        match delete_item(&call, &item, options).await {
            Ok(_) => return Ok(()),
            Err(Failed::For(status)) => return Err(*status),
            Err(Failed::Moved) => {}
        }
        // Changed meanwhile: still meant. Gone, or another object of the name: not.
        let (now, _) = call.collection.items.get(listed.key()).await.map_err(|error| call.failure(error))?;
        match now {
            Some(now) if super::shown::entry(&now)?.uid() == super::shown::entry(&item)?.uid() => item = now,
            _ => return Ok(()),
        }
    }
}
