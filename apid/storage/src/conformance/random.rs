//! Random operations on an engine, compared with the reference model.

use std::sync::Arc;

use apimachinery::clock::{Rng, SeededRng};
use bytes::Bytes;

use super::{RecordingObserver, TestStore};
use crate::engine::memory::MemoryStore;
use crate::{Change, Op, Result, Revision, Store};

const STEPS: u64 = 1500;
const KEYS: [&str; 12] = ["a", "a-b/x", "a/x", "a/y", "a/y/z", "a0", "b/1", "b/2", "b/3", "b/\0", "b/é", "c"];

struct RandomOperations(SeededRng);

impl RandomOperations {
    fn below(&self, limit: u64) -> u64 {
        (self.0.bits() % u128::from(limit)) as u64
    }

    fn key(&self) -> &'static str {
        KEYS[self.below(KEYS.len() as u64) as usize]
    }

    fn prefix(&self) -> &'static str {
        ["", "a", "a/", "b/", "b/2", "c", "d"][self.below(7) as usize]
    }

    /// None, or a revision from 0 to two above the current one.
    fn revision(&self, current: Revision) -> Option<Revision> {
        (self.below(3) > 0).then(|| Revision(self.below(current.0 + 3)))
    }

    fn value(&self) -> Bytes {
        let length = [0, 3, 40, 900, 20_000][self.below(5) as usize];
        Bytes::from(vec![self.below(256) as u8; length])
    }

    async fn op(&self, model: &MemoryStore, key: &str) -> Op {
        let current = model.get(key, None).await.unwrap().map_or(Revision(0), |row| row.revision);
        let expected = if self.below(5) == 0 { Revision(self.below(current.0 + 2)) } else { current };
        match self.below(if current == Revision(0) { 4 } else { 8 }) {
            0 | 1 => Op::Create(self.value()),
            2 | 3 => Op::Delete(expected),
            _ => Op::Update(self.value(), expected),
        }
    }
}

/// A failure prints the seed; `SEED=` replays it.
pub async fn random_operations_agree_with_reference_model(subject: TestStore) {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => 20_250_501,
    };
    println!("SEED={seed}");
    let random = RandomOperations(SeededRng::new(seed));
    let observed = Arc::new(RecordingObserver::default());
    let model = MemoryStore::new(observed.clone());
    let store = &*subject.store;
    for step in 0..STEPS {
        let context = format!("SEED={seed}, step {step}");
        match random.below(10) {
            0..=4 => {
                let key = random.key();
                let op = random.op(&model, key).await;
                let expected = model.commit(key, op.clone()).await;
                assert_eq!(store.commit(key, op).await, expected, "{context}");
            }
            5 => {
                let (key, at) = (random.key(), random.revision(model.revision()));
                assert_eq!(store.get(key, at).await, model.get(key, at).await, "{context}");
            }
            6 | 7 => {
                let (prefix, start, at) = (random.prefix(), random.key(), random.revision(model.revision()));
                let start = if random.below(2) == 0 { "" } else { start };
                let limit = random.below(6) as usize;
                let expected = model.range(prefix, start, limit, at).await;
                assert_eq!(store.range(prefix, start, limit, at).await, expected, "{context}");
            }
            8 => {
                let (prefix, after) = (random.prefix(), Revision(random.below(model.revision().0 + 2)));
                let expected = past_changes(&model, prefix, after).await;
                assert_eq!(past_changes(store, prefix, after).await, expected, "{context}");
            }
            _ if random.below(8) == 0 => {
                let upto = Revision(random.below(model.revision().0 + 2));
                assert_eq!(store.compact(upto).await, model.compact(upto).await, "{context}");
            }
            _ => {
                assert_eq!(store.revision(), model.revision(), "{context}");
                assert_eq!(store.compacted(), model.compacted(), "{context}");
            }
        }
    }
    assert_eq!(subject.observer.changes(), observed.changes(), "SEED={seed}");
}

/// The past changes that a watch delivers, up to the newest row of the prefix.
///
/// Later changes can only be deletes, and the watch may deliver them or not.
async fn past_changes(store: &dyn Store, prefix: &str, after: Revision) -> Result<Vec<Change>> {
    let mut watch = store.watch(prefix, after).await?;
    let rows = store.range(prefix, "", 0, None).await?.rows;
    let newest = rows.iter().map(|row| row.revision).max().unwrap_or_default();
    let mut changes: Vec<Change> = Vec::new();
    while changes.last().map_or(after, |change| change.revision) < newest {
        changes.extend(watch.next().await?);
    }
    changes.retain(|change| change.revision <= newest);
    Ok(changes)
}
