//! The conformance suite: the contract of [`Store`] as named test functions that every engine passes.
//!
//! An engine runs the whole suite with one line, `storage::conformance!(open)`, where `open` is an [`Open`].
//! Each test case gets an empty store and its observer.
//!
//! # Reference
//!
//! etcd's KV and watch guarantees (ordered, unique, atomic, reliable, resumable) and design section 5.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test suite that engines in other crates run too"
)]

pub mod commits;
pub mod random;
pub mod reads;
pub mod watches;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{Change, Observer, Op, Revision, Row, Store};

/// Creates an empty store with an observer. The second value is dropped after the test case: a directory, for
/// example.
pub type Open = fn(Arc<dyn Observer>) -> (Arc<dyn Store>, Box<dyn Any + Send>);

/// The store under test.
pub struct Subject {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The observer of the store.
    pub seen: Arc<Seen>,
}

/// An observer that records all changes.
#[derive(Default)]
pub struct Seen(Mutex<Vec<Change>>);

impl Observer for Seen {
    fn observe(&self, changes: &[Change]) {
        self.0.lock().extend_from_slice(changes);
    }
}

impl Seen {
    /// All changes so far.
    pub fn changes(&self) -> Vec<Change> {
        self.0.lock().clone()
    }
}

/// Runs a test case on a new store, and closes the store afterwards.
pub fn run<F: Future<Output = ()>>(open: Open, case: impl FnOnce(Subject) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let seen = Arc::new(Seen::default());
        let (store, kept) = open(seen.clone());
        case(Subject { store: store.clone(), seen }).await;
        store.close().await;
        drop(store);
        drop(kept);
    });
}

impl Subject {
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

/// Runs the whole suite on an engine; the argument is an [`Open`].
#[macro_export]
macro_rules! conformance {
    ($open:expr) => {
        $crate::conformance! { $open;
            commits {
                create_makes_a_row
                create_of_what_exists_carries_the_row
                update_needs_the_revision
                delete_needs_the_revision
                a_deleted_key_can_be_created_again
                revisions_increase_by_one_and_refusals_take_none
                values_and_keys_have_a_limit
                any_key_and_value_is_kept
                concurrent_updates_of_one_key_have_exactly_the_winners
                concurrent_creates_of_one_key_have_one_winner
                the_observer_sees_history_before_the_answer
                a_closed_store_answers_unavailable
            }
            reads {
                ranges_are_ordered_by_bytes
                a_prefix_is_a_prefix_of_the_key
                pages_follow_each_other
                pages_of_one_revision_are_one_snapshot
                old_revisions_are_read_as_they_were
                many_versions_of_a_key_are_passed_over
                a_revision_to_come_is_refused
                compacted_history_is_refused_and_newest_rows_stay
                compaction_never_moves_back
                keys_that_cannot_exist_are_absent
                ranges_are_snapshots_under_writers
            }
            watches {
                past_then_live_without_a_gap
                only_the_prefix_is_delivered
                changes_carry_old_and_new
                stretches_of_the_past_are_whole
                a_compacted_start_is_refused
                a_start_to_come_is_refused
                a_reader_that_falls_behind_loses_nothing
                a_reader_behind_compaction_is_told
                giving_up_on_next_loses_nothing
                closing_ends_watches
                concurrent_writers_and_watchers_agree
                nothing_is_delivered_before_it_is_observed
            }
            random {
                random_operations_agree_with_the_model
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
