//! Deleting the objects of a collection.

use std::sync::Arc;

use apimachinery::status::Status;

use super::Call;
use super::delete::{Failed, delete_item};
use super::list::{Listed, list};
use super::options::{DeleteOptions, ListOptions};

/// Deletes what the list options select, one after another, at most `limit`. Each delete is one of its own: what it
/// fails at stays, and so does what comes after.
///
/// # Errors
///
/// Those of the list and of the first delete that failed.
pub async fn delete_collection(
    call: &Call<'_>,
    which: &ListOptions,
    options: &DeleteOptions,
) -> Result<Listed, Status> {
    let listed = list(call, which).await?;
    let resource = &call.collection.resource;
    for listed in &listed.items {
        let Some((namespace, name)) = resource.parse_key(listed.key()) else { continue };
        let call = call.on(namespace, name);
        let mut item = Arc::clone(listed);
        loop {
            match delete_item(&call, &item, options).await {
                Ok(_) => break,
                Err(Failed::For(status)) => return Err(*status),
                Err(Failed::Moved) => {}
            }
            // Changed meanwhile: still meant. Gone, or another object of the name: not.
            let (now, _) =
                call.collection.items.get(listed.key()).await.map_err(|error| call.failure(error))?;
            match now {
                Some(now) if super::shown::entry(&now)?.uid() == super::shown::entry(&item)?.uid() => {
                    item = now
                }
                _ => break,
            }
        }
    }
    Ok(Listed { continue_token: String::new(), remaining: None, ..listed })
}
