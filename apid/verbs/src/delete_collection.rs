//! The deletecollection verb.
//!
//! # Contract
//!
//! Objects are deleted in the order of their keys. Admission runs for at most [`BatchLimits::concurrency`]
//! objects at a time. The commits of admitted objects wait together, so one group commit covers up to
//! [`WAITING_COMMITS`] deletes.
//!
//! Each delete is independent. After the first failure, and after the time limit, no further delete begins;
//! deletes whose commit waits are completed. The number of accepted deletes in a response includes deletes of
//! a dry run, and deletes that only set the deletion timestamp. An object that was removed meanwhile is not a
//! failure and not counted.
//!
//! # Reference
//!
//! The verb also deletes objects that [`Strategy::deletion_refusal`](kinds::Strategy::deletion_refusal) protects from
//! a delete of one object, such as the priority classes of the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use admission::Recorder;
use apimachinery::status::{Details, Reason, Status};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesOrdered;

use super::Call;
use super::delete::{DeleteError, PlannedDeletion, commit_deletion, plan_deletion, warn_default_propagation};
use super::deletion::options::DeleteOptions;
use super::deletion::unreadable;
use super::list::{ListResult, list};
use super::options::ListOptions;
use super::response_object::entry;
use crate::Item;
use crate::VerbFuture;
use crate::unreadable_objects::MAX_KEYS;

/// Maximum number of deletes whose commits wait for one group commit.
const WAITING_COMMITS: usize = 1024;

/// Number of deletes between two yields to other tasks of the thread: about one millisecond of work.
const DELETES_PER_TURN: usize = 32;

/// Maximum total size of the deleted objects in a response, in stored bytes. Above it, the response is a
/// Status.
const MAX_RETURNED_BYTES: usize = 4 << 20;

/// Limits of one deletecollection.
#[derive(Clone, Copy)]
pub struct BatchLimits<'a> {
    /// Number of objects that pass admission concurrently.
    pub concurrency: usize,
    /// Monotonic time after which no further delete begins.
    pub begin_until: Option<Duration>,
    /// Called after the list and before each delete begins. After a failure, no further delete begins.
    pub may_begin: Option<MayBegin<'a>>,
}

/// Whether a delete may begin now; fails with the result of the verb.
pub type MayBegin<'a> = &'a (dyn Fn() -> Result<(), Status> + Send + Sync + 'a);

/// The result of a deletecollection.
#[derive(Debug)]
pub enum DeletedCollection {
    /// The deleted objects, as they were before the deletes.
    Objects(ListResult),
    /// A success with the number of accepted deletes, when the list of objects exceeds [`MAX_RETURNED_BYTES`].
    Status(Box<Status>),
}

/// Deletes the objects that the list options select.
///
/// # Errors
///
/// Those of the list and of the first delete that failed. 504 with the number of accepted deletes after the
/// time limit.
pub fn delete_collection<'a>(
    call: &'a Call<'a>,
    list_options: &'a ListOptions,
    options: &'a DeleteOptions,
    limits: BatchLimits<'a>,
) -> VerbFuture<'a, DeletedCollection> {
    Box::pin(async move {
        unreadable::reject_in_collections(call, options)?;
        let mut list = list(call, list_options).await?;
        reject_unreadable(&list).await?;
        // The request timeout limits the time for which these items stay in memory.
        list.lease = None;
        let total = list.items.len();
        let progress = BatchProgress::default();
        let clock = &call.api_state.clock;
        let is_past_time_limit = || limits.begin_until.is_some_and(|end| clock.monotonic() >= end);
        let mut first_failure = None;
        let mut items = list.items.iter().enumerate();
        let (mut admitting, mut committing) = (FuturesOrdered::new(), FuturesOrdered::new());
        loop {
            while admitting.len() < limits.concurrency.max(1) && !progress.is_stopped() {
                let Some((number, item)) = items.next() else { break };
                if let Some(Err(status)) = limits.may_begin.map(|may_begin| may_begin()) {
                    progress.stop();
                    first_failure.get_or_insert(status);
                } else if is_past_time_limit() {
                    progress.stop();
                } else {
                    admitting.push_back(admit_listed(call, number, Arc::clone(item), options));
                }
            }
            tokio::select! {
                biased;
                Some(admitted) = admitting.next(), if committing.len() < WAITING_COMMITS => {
                    committing.push_back(commit_listed(call, admitted, options, &progress));
                }
                Some(result) = committing.next() => match result {
                    Ok(Some(recorder)) => add_record(call, &recorder),
                    Ok(None) => {}
                    Err(status) => {
                        progress.stop();
                        first_failure.get_or_insert(status);
                    }
                },
                else => break,
            }
        }
        drop((admitting, committing));
        let accepted = progress.accepted.into_inner();
        if let Some(failure) = first_failure {
            tracing::debug!(accepted, total, "deletecollection stopped after a failed delete");
            return Err(failure);
        }
        if progress.stopped.into_inner() {
            return Err(timeout(call, accepted, total));
        }
        warn_default_propagation(call, options);
        let bytes: usize = list.items.iter().map(|item| item.value().len()).sum();
        if bytes <= MAX_RETURNED_BYTES {
            return Ok(DeletedCollection::Objects(list));
        }
        let resource = &call.collection.kind.group_resource;
        let details =
            Details { group: resource.group.clone(), kind: resource.resource.clone(), ..Details::default() };
        let mut status = Status::success(details);
        status.message = format!("the deletes of {accepted} {resource} were accepted");
        Ok(DeletedCollection::Status(Box::new(status)))
    })
}

/// Rejects a list with objects that cannot be read, before the first delete.
///
/// # Errors
///
/// 500 with the keys of the objects.
async fn reject_unreadable(list: &ListResult) -> Result<(), Status> {
    let mut unreadable = Vec::new();
    for (number, item) in list.items.iter().enumerate() {
        if number % DELETES_PER_TURN == DELETES_PER_TURN - 1 {
            tokio::task::yield_now().await;
        }
        if item.entry().is_err() && unreadable.len() <= MAX_KEYS {
            unreadable.push(&**item);
        }
    }
    if unreadable.is_empty() { Ok(()) } else { Err(list.unreadable.status(&unreadable)) }
}

/// Progress of a deletecollection: the number of accepted deletes, and whether no further delete begins.
#[derive(Default)]
struct BatchProgress {
    accepted: AtomicUsize,
    stopped: AtomicBool,
}

impl BatchProgress {
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// A listed object after admission.
struct AdmittedDeletion {
    listed: Arc<Item>,
    recorder: Recorder,
    planned: Result<PlannedDeletion, DeleteError>,
}

/// Admits the deletion of a listed object. Returns None if the storage key has no namespace and name.
async fn admit_listed(
    call: &Call<'_>,
    number: usize,
    listed: Arc<Item>,
    options: &DeleteOptions,
) -> Option<AdmittedDeletion> {
    if number % DELETES_PER_TURN == DELETES_PER_TURN - 1 {
        tokio::task::yield_now().await;
    }
    let (namespace, name) = call.collection.kind.parse_key(listed.key())?;
    // Each delete collects its own warnings and annotations, because deletes run concurrently.
    let recorder = Recorder::default();
    let planned =
        plan_deletion(&Call { recorder: &recorder, ..call.for_object(namespace, name) }, &listed, options)
            .await;
    Some(AdmittedDeletion { listed, recorder, planned })
}

/// Commits an admitted deletion, even if the object was changed meanwhile. Returns warnings and annotations.
async fn commit_listed(
    call: &Call<'_>,
    admitted: Option<AdmittedDeletion>,
    options: &DeleteOptions,
    progress: &BatchProgress,
) -> Result<Option<Recorder>, Status> {
    let Some(AdmittedDeletion { listed, recorder, mut planned }) = admitted else { return Ok(None) };
    let Some((namespace, name)) = call.collection.kind.parse_key(listed.key()) else { return Ok(None) };
    if progress.is_stopped() {
        return Ok(None);
    }
    let call = Call { recorder: &recorder, ..call.for_object(namespace, name) };
    let mut item = Arc::clone(&listed);
    loop {
        let result = match planned {
            Ok(planned) => commit_deletion(&call, &item, planned, options).await.map(drop),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {
                progress.accepted.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(recorder));
            }
            Err(DeleteError::Unreadable(status) | DeleteError::Status(status)) => return Err(*status),
            Err(DeleteError::Changed) => {}
        }
        // Delete the object also if it was changed meanwhile, but not if another object has its name now.
        match call.item().await? {
            Some(newest) if entry(&newest)?.uid() == entry(&item)?.uid() => item = newest,
            _ => return Ok(Some(recorder)),
        }
        planned = plan_deletion(&call, &item, options).await;
    }
}

fn add_record(call: &Call<'_>, recorder: &Recorder) {
    recorder.take_warnings().into_iter().for_each(|text| call.recorder.warn(text));
    recorder.take_annotations().into_iter().for_each(|(key, text)| call.recorder.annotate(key, text));
}

/// 504 with the number of accepted deletes.
fn timeout(call: &Call<'_>, accepted: usize, total: usize) -> Status {
    let resource = &call.collection.kind.group_resource;
    let text = format!(
        "Timeout: the deletes of {accepted} of {total} {resource} were accepted within the allotted timeout; \
         repeat the request to delete the rest"
    );
    Status::failure(Reason::Timeout, text)
}
