//! The conformance suite: the contract of [`Store`] as named test functions that every engine passes.
//!
//! An engine runs the whole suite with one line, `storage::conformance!(open)`, where `open` is an
//! [`OpenStore`].
//! Each test case gets an empty store and its observer.
//!
//! # Reference
//!
//! etcd's KV and watch guarantees (ordered, unique, atomic, reliable, resumable).
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test suite that engines in other crates run too"
)]

pub mod commits;
mod double;
pub mod random;
pub mod reads;
pub mod watches;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use parking_lot::Mutex;

pub use self::double::StoreDouble;

use crate::{Change, Observer, Op, Revision, Row, Store};

/// Creates an empty store with an observer. The second value, for example a temporary directory, is dropped
/// after the test case.
pub type OpenStore = fn(Arc<dyn Observer>) -> (Arc<dyn Store>, Box<dyn Any + Send>);

/// The store under test.
pub struct TestStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The observer of the store.
    pub observer: Arc<RecordingObserver>,
}

/// An observer that records all changes, and can block the publication of the next batch.
#[derive(Default)]
pub struct RecordingObserver {
    changes: Mutex<Vec<Change>>,
    release: Mutex<Option<Receiver<()>>>,
}

impl Observer for RecordingObserver {
    fn observe(&self, changes: &[Change]) {
        self.changes.lock().extend_from_slice(changes);
        if let Some(release) = self.release.lock().take() {
            // The test ends the wait by dropping the sender.
            let _ = release.recv();
        }
    }
}

impl RecordingObserver {
    /// All changes so far.
    pub fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }

    /// Blocks the observer in its next batch until the returned sender is dropped.
    pub fn block_next_batch(&self) -> Sender<()> {
        let (sender, receiver) = channel();
        *self.release.lock() = Some(receiver);
        sender
    }
}

/// Runs a test case on a new store, and closes the store afterwards.
pub fn run<F: Future<Output = ()>>(open: OpenStore, case: impl FnOnce(TestStore) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let observer = Arc::new(RecordingObserver::default());
        let (store, resources) = open(observer.clone());
        case(TestStore { store: store.clone(), observer }).await;
        store.close().await;
        drop(store);
        drop(resources);
    });
}

impl TestStore {
    async fn create(&self, key: &str, value: impl Into<Bytes>) -> Revision {
        self.store.commit(key, Op::Create(value.into())).await.unwrap().revision
    }

    async fn update(&self, key: &str, value: impl Into<Bytes>, at: Revision) -> Revision {
        self.store.commit(key, Op::Update(value.into(), at)).await.unwrap().revision
    }

    async fn delete(&self, key: &str, at: Revision) -> Revision {
        self.store.commit(key, Op::Delete(at)).await.unwrap().revision
    }

    async fn get(&self, key: &str) -> Option<Row> {
        self.store.get(key, None).await.unwrap()
    }

    async fn keys(&self, prefix: &str, at: Option<Revision>) -> Vec<String> {
        let page = self.store.range(prefix, "", 0, at).await.unwrap();
        page.rows.iter().map(|row| row.key.to_string()).collect()
    }
}

fn row(key: &str, value: &'static str, revision: Revision) -> Row {
    Row { key: key.into(), value: Bytes::from_static(value.as_bytes()), revision }
}

/// Checks that changes form a history: consecutive revisions, and each `old` row is the previous state of its
/// key.
pub fn check_history(changes: &[Change]) {
    let mut rows = std::collections::HashMap::<Arc<str>, Row>::new();
    for (index, change) in changes.iter().enumerate() {
        assert_eq!(change.revision.0, index as u64 + 1, "revisions are consecutive");
        assert_eq!(change.old, rows.get(&change.key).cloned(), "at revision {}", change.revision);
        match &change.new {
            Some(value) => {
                let row = Row { key: change.key.clone(), value: value.clone(), revision: change.revision };
                rows.insert(change.key.clone(), row);
            }
            None => assert!(rows.remove(&change.key).is_some(), "at revision {}", change.revision),
        }
    }
}

/// Runs the whole suite on an engine; the argument is an [`OpenStore`].
#[macro_export]
macro_rules! conformance {
    ($open:expr) => {
        $crate::conformance! { $open;
            commits {
                created_key_is_readable
                create_of_existing_key_returns_exists_with_row
                update_with_wrong_revision_returns_conflict
                delete_with_wrong_revision_returns_conflict
                deleted_key_can_be_recreated
                revisions_are_consecutive_and_rejected_commits_take_none
                values_and_keys_above_limit_are_rejected
                arbitrary_keys_and_values_round_trip
                concurrent_updates_of_one_key_lose_no_increment
                concurrent_creates_of_one_key_have_one_winner
                write_is_applied_only_while_its_keys_are_held
                observer_sees_change_before_commit_returns
                closed_store_returns_unavailable
            }
            reads {
                ranges_are_ordered_by_bytes
                range_prefix_matches_key_text
                pages_cover_range_without_gap_or_overlap
                rows_within_bytes_cover_all_keys
                pages_at_one_revision_form_a_snapshot
                reads_at_old_revisions_return_old_state
                observed_revision_is_readable_before_its_publication
                range_skips_many_versions_of_a_key
                read_at_future_revision_returns_future
                compacted_revision_is_rejected_and_newest_rows_stay
                compaction_never_moves_back
                reads_of_oversized_keys_find_nothing
                range_under_concurrent_writes_is_a_snapshot
            }
            watches {
                watch_delivers_history_then_live_changes_without_gap
                watch_delivers_only_its_prefix
                watch_changes_carry_old_and_new_values
                history_ranges_are_complete
                watch_from_compacted_revision_returns_compacted
                watch_from_future_revision_returns_future
                slow_watch_loses_no_change
                watch_behind_compaction_returns_compacted
                cancelled_watch_next_loses_no_change
                closing_store_ends_watches
                concurrent_writers_and_watchers_agree
                watch_never_delivers_unobserved_change
            }
            random {
                random_operations_agree_with_reference_model
            }
        }
    };
    ($open:expr; $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            #[allow(unused_imports, reason = "`open` resolves in the scope of the macro call")]
            use super::*;
            $(#[test]
            fn $case() {
                $crate::conformance::run($open, $crate::conformance::$module::$case);
            })*
        })*
    };
}
