//! The list verb: a whole collection or chunks of it, at the requested version.
//!
//! # Invariants
//!
//! INVARIANT (bounded history): a list at an old revision reads pages of at most [`STORE_PAGE_BYTES`]. The
//! memory limit of the user counts the old versions that the list keeps; above the limit, the list returns 429.
//! The limit also counts converted objects, which each list creates again. It counts up to
//! [`MAX_CONVERTED_BYTES`] for a list, so that a client can read all objects of a converted kind.
//!
//! # Reference
//!
//! Requirements D-RV-7 to -49 and D-PAGE: `resourceVersion`, `resourceVersionMatch`, `limit` and `continue`
//! together select the version of a list.

use std::sync::Arc;

use apimachinery::status::Status;
use serving::gates::Gate;
use storage::cache::ItemLease;
use storage::{Error, Revision};

use super::continue_token::{Token, fingerprint};
use super::failure::expired_status;
use super::options::{ListOptions, VersionMatch};
use super::selection::Selection;
use super::version::{RequestedVersion, parse};
use super::{Call, UnreadableObjects, component_statuses};
use crate::VerbFuture;
use crate::conversion::{BATCH, ObjectConverter};
use crate::{Item, Snapshot};

/// A list, or a chunk of a list.
#[derive(Debug)]
pub struct ListResult {
    /// The objects in key order.
    pub items: Vec<Arc<Item>>,
    /// The resourceVersion of the whole list.
    pub revision: Revision,
    /// Continue token of the next chunk; `""` when there is none.
    pub continue_token: String,
    /// Number of objects after this chunk; None when there are none or the number is unknown.
    pub remaining: Option<usize>,
    /// Counted size in bytes of the encoded objects that the watch cache does not own.
    ///
    /// These objects are old versions from the store, and converted objects.
    pub uncached_bytes: usize,
    /// The lease on the objects of the watch cache, for a response whose client may read slowly.
    pub lease: Option<ItemLease>,
    /// The failure for items that cannot be decoded; they are in `items` even if no selector matches them.
    pub unreadable: UnreadableObjects,
}

/// Maximum number of objects in one page from the store.
const STORE_PAGE: usize = 500;

/// Maximum size of one page from the store, in bytes of keys and values; a larger object is a page of its own.
const STORE_PAGE_BYTES: usize = 1 << 20;

/// Maximum memory of reading one page from the store, in bytes: the page and the object that exceeds its limit.
pub const STORE_PAGE_COST: usize = STORE_PAGE_BYTES + storage::MAX_VALUE;

/// Lists the objects that the options select.
///
/// # Errors
///
/// 400, 410, 422 or 504 for versions and tokens that cannot be served.
pub fn list<'a>(call: &'a Call<'a>, options: &'a ListOptions) -> VerbFuture<'a, ListResult> {
    Box::pin(async move {
        options.validate_list(&call.api_state.names)?;
        let selection = Selection::new(call, options)?;
        if call.collection.kind.is_computed() {
            return component_statuses::list(call, &selection).await;
        }
        match &call.collection.converter {
            Some(converter) => list_converted(call, options, &selection, converter).await,
            None => list_selected(call, options, &selection).await,
        }
    })
}

/// Lists converted objects. The selectors apply to the converted objects.
///
/// A list with a limit and a selector converts chunks of stored objects until more objects are selected than
/// the limit allows. Then the response needs a continue token.
async fn list_converted(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    converter: &ObjectConverter,
) -> Result<ListResult, Status> {
    if selection.is_everything() {
        let list = list_selected(call, options, selection).await?;
        let mut items = Vec::with_capacity(list.items.len());
        let mut counter = ConvertedCounter::default();
        for stored in list.items.chunks(BATCH) {
            let converted = converter.items(stored.to_vec()).await?;
            counter.add(call, stored.iter().zip(&converted))?;
            items.extend(converted);
        }
        let lease = list.lease.filter(|_| counter.has_stored_objects);
        return Ok(ListResult { items, uncached_bytes: list.uncached_bytes + counter.bytes, lease, ..list });
    }
    let everything = selection.everything();
    let ignores_limit = options.continue_token.is_empty()
        && matches!(parse(&options.resource_version), Ok(RequestedVersion::Any));
    let limit = Some(options.limit).filter(|limit| *limit > 0 && !ignores_limit);
    let mut chunk_options = ListOptions { limit: limit.map_or(0, |_| BATCH), ..options.clone() };
    let mut chunk = list_selected(call, &chunk_options, &everything).await?;
    let (revision, mut uncached_bytes, lease) = (chunk.revision, chunk.uncached_bytes, chunk.lease.take());
    let (mut selected, mut counter) = (Vec::new(), ConvertedCounter::default());
    loop {
        for stored in chunk.items.chunks(BATCH) {
            let converted = converter.items(stored.to_vec()).await?;
            let mut pairs = Vec::new();
            for (stored, item) in stored.iter().zip(converted) {
                if selection.selects(&item)? {
                    pairs.push((stored, item));
                }
            }
            counter.add(call, pairs.iter().map(|(stored, item)| (*stored, item)))?;
            selected.extend(pairs.into_iter().map(|(_, item)| item));
        }
        if limit.is_some_and(|limit| selected.len() > limit) || chunk.continue_token.is_empty() {
            break;
        }
        chunk_options = ListOptions {
            continue_token: chunk.continue_token,
            resource_version: String::new(),
            resource_version_match: String::new(),
            ..chunk_options
        };
        chunk = list_selected(call, &chunk_options, &everything).await?;
        uncached_bytes += chunk.uncached_bytes;
    }
    let has_more = limit.is_some_and(|limit| selected.len() > limit);
    selected.truncate(limit.unwrap_or(usize::MAX));
    let list = list_result(call, options, selected, revision, has_more, None);
    let lease = lease.filter(|_| counter.has_stored_objects);
    Ok(ListResult { uncached_bytes: uncached_bytes + counter.bytes, lease, ..list })
}

/// Maximum size of the converted objects of one list that the memory limit counts, in bytes.
const MAX_CONVERTED_BYTES: usize = 6 << 20;

/// Counts the converted objects of a list.
#[derive(Default)]
struct ConvertedCounter {
    /// Size of the encoded objects, at most [`MAX_CONVERTED_BYTES`].
    bytes: usize,
    /// Whether the list contains objects that needed no conversion.
    has_stored_objects: bool,
}

impl ConvertedCounter {
    /// Adds objects to the memory of the user. Each pair is a stored object and its converted form.
    fn add<'a>(
        &mut self,
        call: &Call<'_>,
        pairs: impl Iterator<Item = (&'a Arc<Item>, &'a Arc<Item>)>,
    ) -> Result<(), Status> {
        let before = self.bytes;
        for (stored, item) in pairs {
            if Arc::ptr_eq(stored, item) {
                self.has_stored_objects = true;
            } else {
                self.bytes = MAX_CONVERTED_BYTES.min(self.bytes + item.value().len());
            }
        }
        call.memory.map_or(Ok(()), |memory| memory.reserve(self.bytes - before))
    }
}

/// Lists the stored objects that a selection includes.
async fn list_selected(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
) -> Result<ListResult, Status> {
    let version_match = options.validate_list(&call.api_state.names)?;
    let requested =
        parse(&options.resource_version).map_err(|error| Status::bad_request(error.to_string()))?;
    if !options.continue_token.is_empty() {
        if matches!(requested, RequestedVersion::At(_)) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = Token::decode(
            &options.continue_token,
            &call.api_state.token_key,
            list_fingerprint(call, options),
        )?;
        let chunk_start = ChunkStart { last_key: token.last_key, remaining: token.remaining };
        // A token without a revision continues in the newest state.
        return match token.revision {
            Revision(0) => list_newest(call, options, selection, options.limit, &chunk_start).await,
            version => list_at(call, options, selection, version, &chunk_start).await,
        };
    }
    let beginning = ChunkStart::default();
    match (requested, version_match) {
        (RequestedVersion::MostRecent, _) => {
            let listed = list_newest(call, options, selection, options.limit, &beginning).await?;
            call.api_state.read_metrics.count_consistent_list(call.collection.kind.internal());
            Ok(listed)
        }
        // The watch cache holds the whole list, so the limit is ignored (requirements, appendix (g) 16).
        (RequestedVersion::Any, _) => list_newest(call, options, selection, 0, &beginning).await,
        (RequestedVersion::At(version), Some(VersionMatch::Exact)) => {
            list_at(call, options, selection, version, &beginning).await
        }
        (RequestedVersion::At(version), None) if options.limit > 0 => {
            list_at(call, options, selection, version, &beginning).await
        }
        (RequestedVersion::At(version), _) => {
            call.wait_for_version(version).await?;
            // A page of a compacted version would begin a list that its client cannot compare (D-ERR-13).
            if options.limit > 0 && version < call.store()?.compacted() {
                return Err(expired_status());
            }
            list_newest(call, options, selection, options.limit, &beginning).await
        }
    }
}

/// Start position of a chunk.
#[derive(Default)]
struct ChunkStart {
    /// The storage key of the last delivered object, without the key prefix of the list; `""` at the
    /// beginning.
    last_key: String,
    /// Number of objects after `last_key`, if known.
    remaining: Option<u64>,
}

impl ChunkStart {
    /// Returns the first key that may be in the chunk.
    fn start(&self, call: &Call<'_>) -> String {
        if self.last_key.is_empty() { String::new() } else { format!("{}{}\0", call.scope(), self.last_key) }
    }
}

/// Returns the fingerprint of a list: its continue tokens are valid only for the same scope and selectors.
fn list_fingerprint(call: &Call<'_>, options: &ListOptions) -> u64 {
    fingerprint(&call.scope(), &options.labels.requirements(), &options.fields.requirements())
}

/// Lists the newest state, from the watch cache.
async fn list_newest(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    limit: usize,
    chunk_start: &ChunkStart,
) -> Result<ListResult, Status> {
    let snapshot = call.collection.items.snapshot().await.map_err(|error| call.failure(error))?;
    list_from_snapshot(call, options, selection, &snapshot, &chunk_start.start(call), limit)
}

/// Lists the state at a version. With the gate ListFromCacheSnapshot, it reads a snapshot of this version in
/// the watch cache if there is one, and otherwise the store.
async fn list_at(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    version: Revision,
    chunk_start: &ChunkStart,
) -> Result<ListResult, Status> {
    if call.api_state.gates.enabled(Gate::ListFromCacheSnapshot) {
        let snapshot = call.collection.items.snapshot_at(version).await;
        if let Some(snapshot) = snapshot.map_err(|error| call.failure(error))? {
            let start = chunk_start.start(call);
            return list_from_snapshot(call, options, selection, &snapshot, &start, options.limit);
        }
    }
    list_from_store(call, options, selection, version, chunk_start).await
}

fn list_from_snapshot(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    snapshot: &Snapshot,
    start: &str,
    limit: usize,
) -> Result<ListResult, Status> {
    let lease = Some(call.collection.items.lease(&selection.keys, snapshot.revision()));
    let mut rest = snapshot.scope(&selection.keys, start);
    let mut items = Vec::new();
    let mut has_more = false;
    let mut fetched = 0;
    for item in rest.by_ref() {
        fetched += 1;
        if is_unselected(selection, item) {
            continue;
        }
        if limit > 0 && items.len() == limit {
            has_more = true;
            break;
        }
        items.push(Arc::clone(item));
    }
    call.api_state.read_metrics.count_cache_read(call.collection.kind.internal(), fetched, items.len());
    let remaining = (has_more && selection.is_everything()).then(|| rest.count() + 1);
    Ok(ListResult { lease, ..list_result(call, options, items, snapshot.revision(), has_more, remaining) })
}

async fn list_from_store(
    call: &Call<'_>,
    options: &ListOptions,
    selection: &Selection,
    version: Revision,
    chunk_start: &ChunkStart,
) -> Result<ListResult, Status> {
    let resource = &call.collection.items;
    let limit = options.limit;
    let lease = resource.lease(&selection.keys, resource.revision());
    let mut start = chunk_start.start(call);
    let mut items: Vec<Arc<Item>> = Vec::new();
    let mut next: Option<Arc<Item>> = None;
    let (mut fetched, mut uncached_bytes) = (0, 0);
    loop {
        let page_limit = if limit == 0 { STORE_PAGE } else { (limit + 1).min(STORE_PAGE) };
        let page = resource.page_at(&selection.keys, &start, page_limit, STORE_PAGE_BYTES, version).await;
        let page = page.map_err(|error| history_failure(call, options, chunk_start, error))?;
        fetched += page.items.len();
        let has_more = page.more;
        if let Some(last) = page.items.last() {
            start = format!("{}\0", last.key());
        }
        let mut page_bytes = 0;
        for item in page.items {
            if is_unselected(selection, &item) {
                continue;
            }
            if limit > 0 && items.len() == limit {
                next = Some(item);
                break;
            }
            // The watch cache holds its own reference to a current version.
            if Arc::strong_count(&item) == 1 {
                page_bytes += item.value().len();
            }
            items.push(item);
        }
        if page_bytes > 0 {
            uncached_bytes += page_bytes;
            call.memory.map_or(Ok(()), |memory| memory.reserve(page_bytes))?;
        }
        if next.is_some() || !has_more {
            break;
        }
    }
    call.api_state.read_metrics.count_store_read(call.collection.kind.internal(), fetched, items.len());
    let remaining = match &next {
        Some(next) if selection.is_everything() => match chunk_start.remaining {
            Some(before) => usize::try_from(before).ok().map(|before| before.saturating_sub(items.len())),
            // Counts in memory. If this is impossible, `remainingItemCount` is left out, because a count in
            // the store would read all objects.
            None => resource.count_at(&selection.keys, next.key(), version),
        },
        _ => None,
    };
    let list = list_result(call, options, items, version, next.is_some(), remaining);
    Ok(ListResult { uncached_bytes, lease: Some(lease), ..list })
}

/// Builds a chunk with the token that continues after its last item.
fn list_result(
    call: &Call<'_>,
    options: &ListOptions,
    items: Vec<Arc<Item>>,
    revision: Revision,
    has_more: bool,
    remaining: Option<usize>,
) -> ListResult {
    let continue_token = match items.last() {
        Some(last) if has_more => {
            let scope = call.scope();
            let last_key = last.key().strip_prefix(scope.as_str()).unwrap_or_default().to_owned();
            let remaining = remaining.and_then(|count| u64::try_from(count).ok());
            Token { revision, remaining, last_key }
                .encode(&call.api_state.token_key, list_fingerprint(call, options))
        }
        _ => String::new(),
    };
    let unreadable = UnreadableObjects::of_list(call);
    ListResult { items, revision, continue_token, remaining, uncached_bytes: 0, lease: None, unreadable }
}

/// Whether a list leaves an item out. An item that cannot be decoded stays, so that the list fails with its key.
fn is_unselected(selection: &Selection, item: &Item) -> bool {
    selection.selects(item).is_ok_and(|is_selected| !is_selected)
}

fn history_failure(call: &Call<'_>, options: &ListOptions, chunk_start: &ChunkStart, error: Error) -> Status {
    match error {
        Error::Compacted { .. } if !options.continue_token.is_empty() => {
            let mut status = Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter, or use the continue token in this response to retrieve the \
                 remainder of the results. Continuing with the provided token results in an inconsistent list - \
                 objects that were created, modified, or deleted between the time the first chunk was returned and \
                 now may show up in the list.",
            );
            let token =
                Token { revision: Revision(0), remaining: None, last_key: chunk_start.last_key.clone() };
            status.continue_token = token.encode(&call.api_state.token_key, list_fingerprint(call, options));
            status
        }
        Error::Compacted { .. } => expired_status(),
        Error::Future { requested: requested_revision, current } => {
            // Reads at an exact version do not wait, and a retry after a second does not help.
            let mut status = Status::version_too_large(requested_revision.0, current.0);
            if let Some(details) = &mut status.details {
                details.retry_after_seconds = 0;
            }
            status
        }
        error => call.failure(error),
    }
}
