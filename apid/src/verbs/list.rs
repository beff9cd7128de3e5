//! Reading a collection: all of it or by chunks, at the version asked for.
//!
//! # Reference
//!
//! Requirements D-RV-7 to -49 and D-PAGE: which version a list is of follows from `resourceVersion`,
//! `resourceVersionMatch`, `limit` and `continue` together.

use std::sync::Arc;

use apimachinery::status::Status;
use storage::{Error, Revision};

use super::Call;
use super::failure::expired;
use super::options::{ListOptions, VersionMatch};
use super::selection::Selection;
use super::token::{Token, fingerprint};
use super::version::{Wanted, parse};
use crate::plane::{Item, Snapshot};

/// A list, or a chunk of one.
#[derive(Debug)]
pub struct Listed {
    /// The objects, in the order of their keys.
    pub items: Vec<Arc<Item>>,
    /// The version of the whole list.
    pub revision: Revision,
    /// Leads to the next chunk; `""` when there is none.
    pub continue_token: String,
    /// Objects after this chunk; None when there are none or it is not known.
    pub remaining: Option<usize>,
}

/// Objects read from history at a time.
const CHUNK: usize = 500;

/// Objects counted in history for `remainingItemCount`; beyond, the field is left out.
const COUNTED: usize = 10_000;

/// The objects that the options select.
///
/// # Errors
///
/// 400, 410, 422 or 504 for versions and tokens that cannot be answered.
pub async fn list(call: &Call<'_>, options: &ListOptions) -> Result<Listed, Status> {
    let wanted_match = options.validate_list(&call.plane.names)?;
    let selection = Selection::new(call, options)?;
    let wanted = parse(&options.resource_version)
        .map_err(|why| Status::bad_request(format!("resourceVersion: {why}")))?;
    if !options.continue_token.is_empty() {
        if matches!(wanted, Wanted::At(_)) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Token::decode(&options.continue_token, print(call, options))?;
        return at(call, options, &selection, token.revision, &token.after).await;
    }
    match (wanted, wanted_match) {
        (Wanted::MostRecent, _) => newest(call, options, &selection, options.limit).await,
        // What is at hand is whole, so that it is answered whole (requirements, appendix (g) 16).
        (Wanted::Any, _) => newest(call, options, &selection, 0).await,
        (Wanted::At(version), Some(VersionMatch::Exact)) => at(call, options, &selection, version, "").await,
        (Wanted::At(version), None) if options.limit > 0 => at(call, options, &selection, version, "").await,
        (Wanted::At(version), _) => {
            call.reach(version).await?;
            newest(call, options, &selection, options.limit).await
        }
    }
}

/// The fingerprint of the list that tokens belong to.
fn print(call: &Call<'_>, options: &ListOptions) -> u64 {
    fingerprint(&call.scope(), &options.labels.requirements(), &options.fields.requirements())
}

/// The newest state.
async fn newest(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    limit: usize,
) -> Result<Listed, Status> {
    let snapshot = call.collection.items.snapshot().await.map_err(|error| call.failure(error))?;
    let listed = from_snapshot(call, options, selection, &snapshot, "", limit)?;
    if !listed.continue_token.is_empty() {
        call.collection.shelf.put(&snapshot, call.plane.clock.monotonic());
    }
    Ok(listed)
}

/// The state of a version, after a place in the scope.
async fn at(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    version: Revision,
    after: &str,
) -> Result<Listed, Status> {
    let start = if after.is_empty() { String::new() } else { format!("{}{after}\0", call.scope()) };
    match call.collection.shelf.take(version, call.plane.clock.monotonic()) {
        Some(snapshot) => from_snapshot(call, options, selection, &snapshot, &start, options.limit),
        None => from_history(call, options, selection, version, start).await,
    }
}

fn from_snapshot(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    snapshot: &Snapshot,
    start: &str,
    limit: usize,
) -> Result<Listed, Status> {
    let mut rest = snapshot.scope(&selection.keys, start);
    let mut items = Vec::new();
    let mut more = false;
    for item in rest.by_ref() {
        if !selection.selects(item)? {
            continue;
        }
        if limit > 0 && items.len() == limit {
            more = true;
            break;
        }
        items.push(Arc::clone(item));
    }
    let revision = snapshot.revision();
    let remaining = (more && selection.is_everything()).then(|| rest.count() + 1);
    let continue_token = token(call, options, &items, revision, more);
    Ok(Listed { items, revision, continue_token, remaining })
}

async fn from_history(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    version: Revision,
    mut start: String,
) -> Result<Listed, Status> {
    let resource = &call.collection.items;
    let limit = options.limit;
    let mut items: Vec<Arc<Item>> = Vec::new();
    let mut more = false;
    let mut remaining = None;
    'pages: loop {
        let chunk = if limit == 0 { CHUNK } else { (limit + 1).min(CHUNK) };
        let page = resource.page_at(&selection.keys, &start, chunk, version).await;
        let page = page.map_err(|error| history_failure(call, options, error))?;
        let read = page.items.len();
        for (i, item) in page.items.iter().enumerate() {
            if !selection.selects(item)? {
                continue;
            }
            if limit > 0 && items.len() == limit {
                more = true;
                if selection.is_everything() {
                    remaining = match page.remaining {
                        Some(remaining) => Some(remaining + read - i),
                        None => count(call, selection, item.key(), version).await?,
                    };
                }
                break 'pages;
            }
            items.push(Arc::clone(item));
        }
        match page.items.last() {
            Some(last) if page.more => start = format!("{}\0", last.key()),
            _ => break,
        }
    }
    let continue_token = token(call, options, &items, version, more);
    Ok(Listed { items, revision: version, continue_token, remaining })
}

/// How many objects follow from a key on; None when they are too many to count.
async fn count(
    call: &Call<'_>,
    selection: &Selection,
    start: &str,
    version: Revision,
) -> Result<Option<usize>, Status> {
    let page = call.collection.items.page_at(&selection.keys, start, COUNTED, version).await;
    let page = page.map_err(|error| call.failure(error))?;
    Ok((!page.more).then_some(page.items.len()))
}

/// The token for what follows the last item.
fn token(
    call: &Call<'_>,
    options: &ListOptions,
    items: &[Arc<Item>],
    revision: Revision,
    more: bool,
) -> String {
    match items.last() {
        Some(last) if more => {
            let scope = call.scope();
            let after = last.key().strip_prefix(scope.as_str()).unwrap_or_default().to_owned();
            Token { revision, after }.encode(print(call, options))
        }
        _ => String::new(),
    }
}

fn history_failure(call: &Call<'_>, options: &ListOptions, error: Error) -> Status {
    match error {
        Error::Compacted { .. } if !options.continue_token.is_empty() => Status::expired(
            "The provided continue parameter is too old to display a consistent list result. \
             You can start a new list without the continue parameter.",
        ),
        Error::Compacted { .. } => expired(),
        Error::Future { asked, current } => {
            // Nobody waits for it here, and coming again in a second does not help.
            let mut status = Status::version_too_large(asked.0, current.0);
            if let Some(details) = &mut status.details {
                details.retry_after_seconds = 0;
            }
            status
        }
        other => call.failure(other),
    }
}
