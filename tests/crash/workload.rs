//! Writers: creates, updates and deletes on their own keys, and sometimes commits that must be rejected.

use std::convert::Infallible;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use storage::{Error, Op, Revision, Store};

use super::record::{Record, Value};

/// Number of concurrent writers.
pub const WRITERS: u64 = 32;

/// Number of keys of each writer.
const KEYS: usize = 10;

/// Receiver of records. A record is delivered when the call returns.
pub type Sink = Arc<dyn Fn(Record) + Send + Sync>;

/// Writes until the process ends or a check fails. `generation` is the number of the process: it makes values
/// and random choices differ from those of other processes.
pub async fn write(store: Arc<dyn Store>, generation: u64, sink: Sink) {
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let random = SmallRng::seed_from_u64(writer << 32 ^ generation);
        let (store, sink) = (Arc::clone(&store), Arc::clone(&sink));
        let writer = Writer { store, writer, number: generation << 32, random, sink };
        writers.push(tokio::spawn(writer.run()));
    }
    for writer in writers {
        writer.await.expect("writers do not panic");
    }
}

struct Writer {
    store: Arc<dyn Store>,
    writer: u64,
    number: u64,
    random: SmallRng,
    sink: Sink,
}

impl Writer {
    async fn run(mut self) {
        let Err(what) = self.write().await;
        (self.sink)(Record::Broken(format!("writer {}: {what}", self.writer)));
    }

    async fn write(&mut self) -> Result<Infallible, String> {
        let mut keys = Vec::new();
        for key in 0..KEYS {
            let key = format!("/crash/{:02}/{key}", self.writer);
            let row = self.store.get(&key, None).await.map_err(|error| error.to_string())?;
            keys.push((key, row.map(|row| row.revision)));
        }
        loop {
            let index = self.random.random_range(0..KEYS);
            let (key, revision) = &mut keys[index];
            if self.random.random_bool(0.1) {
                self.commit_forbidden(key, *revision).await?;
                continue;
            }
            let value = self.next_value();
            let (op, value) = match *revision {
                None => (Op::Create(value.bytes()), Some(value)),
                Some(revision) if self.random.random_bool(0.8) => {
                    (Op::Update(value.bytes(), revision), Some(value))
                }
                Some(revision) => (Op::Delete(revision), None),
            };
            (self.sink)(Record::Attempted { key: key.clone(), value });
            let committed = self.store.commit(key, op).await.map_err(|error| format!("`{key}`: {error}"))?;
            (self.sink)(Record::Acknowledged { key: key.clone(), revision: committed.revision.0 });
            *revision = value.map(|_| committed.revision);
        }
    }

    fn next_value(&mut self) -> Value {
        self.number += 1;
        let size = match self.random.random_range(0..100) {
            0 => self.random.random_range(50_000..200_000),
            1..10 => self.random.random_range(2_000..20_000),
            _ => self.random.random_range(30..2_000),
        };
        Value { writer: self.writer, number: self.number, size }
    }

    /// Commits an operation that the state of the key does not allow.
    async fn commit_forbidden(&mut self, key: &str, revision: Option<Revision>) -> Result<(), String> {
        let value = self.next_value();
        let op = match (revision, self.random.random_range(0..3)) {
            (Some(_), 0) => Op::Create(value.bytes()),
            (_, 1) => Op::Delete(Revision(revision.map_or(1, |revision| revision.0 - 1))),
            _ => Op::Update(value.bytes(), Revision(revision.map_or(1, |revision| revision.0 - 1))),
        };
        (self.sink)(Record::Forbidden { value });
        match self.store.commit(key, op.clone()).await {
            Err(Error::Exists(row) | Error::Conflict(row)) if Some(row.revision) == revision => Ok(()),
            Err(Error::NotFound(_)) if revision.is_none() => Ok(()),
            answer => {
                let op = match op {
                    Op::Create(_) => "create".to_owned(),
                    Op::Update(_, at) => format!("update at {at}"),
                    Op::Delete(at) => format!("delete at {at}"),
                };
                Err(format!("`{key}` is at {revision:?}, and {op} returns {answer:?}"))
            }
        }
    }
}
