//! Random operations: the engine and the slow, obvious model answer alike.

use std::sync::Arc;

use apimachinery::clock::{Chance, SeededChance};
use bytes::Bytes;

use super::{Seen, Subject};
use crate::engine::memory::MemoryStore;
use crate::{Op, Revision, Store};

const STEPS: u64 = 1500;
const KEYS: [&str; 12] = ["a", "a-b/x", "a/x", "a/y", "a/y/z", "a0", "b/1", "b/2", "b/3", "b/\0", "b/é", "c"];

struct Dice(SeededChance);

impl Dice {
    fn below(&self, sides: u64) -> u64 {
        (self.0.bits() % u128::from(sides)) as u64
    }

    fn key(&self) -> &'static str {
        KEYS[self.below(KEYS.len() as u64) as usize]
    }

    fn prefix(&self) -> &'static str {
        ["", "a", "a/", "b/", "b/2", "c", "d"][self.below(7) as usize]
    }

    /// Now, or somewhere between before the beginning and after the end.
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

/// The seed is printed by a failure; `SEED=` replays it.
pub async fn random_operations_agree_with_the_model(subject: Subject) {
    let seed = match std::env::var("SEED") {
        Ok(seed) => seed.parse().expect("SEED is a number"),
        Err(_) => 20_250_501,
    };
    println!("SEED={seed}");
    let dice = Dice(SeededChance::new(seed));
    let observed = Arc::new(Seen::default());
    let model = MemoryStore::new(observed.clone());
    for step in 0..STEPS {
        let (found, wanted) = match dice.below(10) {
            0..=4 => {
                let key = dice.key();
                let op = dice.op(&model, key).await;
                let wanted = format!("{:?}", model.commit(key, op.clone()).await);
                (format!("{:?}", subject.store.commit(key, op).await), wanted)
            }
            5 => {
                let (key, at) = (dice.key(), dice.revision(model.revision()));
                let wanted = format!("{:?}", model.get(key, at).await);
                (format!("{:?}", subject.store.get(key, at).await), wanted)
            }
            6 | 7 => {
                let (prefix, start, at) = (dice.prefix(), dice.key(), dice.revision(model.revision()));
                let start = if dice.below(2) == 0 { "" } else { start };
                let limit = dice.below(6) as usize;
                let wanted = format!("{:?}", model.range(prefix, start, limit, at).await);
                (format!("{:?}", subject.store.range(prefix, start, limit, at).await), wanted)
            }
            8 => {
                let (prefix, after) = (dice.prefix(), Revision(dice.below(model.revision().0 + 2)));
                (past(&*subject.store, prefix, after).await, past(&model, prefix, after).await)
            }
            _ if dice.below(8) == 0 => {
                let upto = Revision(dice.below(model.revision().0 + 2));
                let wanted = format!("{:?}", model.compact(upto).await);
                (format!("{:?}", subject.store.compact(upto).await), wanted)
            }
            _ => {
                let state = |store: &dyn Store| format!("{} {}", store.revision(), store.compacted());
                (state(&*subject.store), state(&model))
            }
        };
        assert_eq!(found, wanted, "SEED={seed}, step {step}");
    }
    assert_eq!(subject.seen.changes(), observed.changes(), "SEED={seed}");
}

/// What a watch delivers of the past, up to the revision of now.
async fn past(store: &dyn Store, prefix: &str, after: Revision) -> String {
    let upto = store.revision();
    let wanted = match store.range(prefix, "", 0, Some(after)).await {
        Ok(_) => store.range(prefix, "", 0, Some(upto)).await.unwrap().rows,
        Err(error) => return format!("{error:?} {:?}", store.watch(prefix, after).await.err()),
    };
    // The last change of the prefix is the newest revision of its rows, or a delete that no row shows: what is compared
    // is therefore the changes up to the newest row.
    let Some(last) = wanted.iter().map(|row| row.revision).max().filter(|last| *last > after) else {
        return "nothing".to_owned();
    };
    let mut watch = store.watch(prefix, after).await.unwrap();
    let mut changes = Vec::new();
    while changes.last().is_none_or(|change: &crate::Change| change.revision < last) {
        changes.extend(watch.next().await.unwrap());
    }
    changes.retain(|change| change.revision <= last);
    format!("{changes:?}")
}
