//! Child process that runs the store: opens it, reports its content, and writes until it is killed.
//!
//! The store runs in its own process, so that the test can kill it. A process that both serves and uses a
//! file system could not end.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::SystemClock;
use parking_lot::Mutex;
use storage::engine::fjall::{FjallStore, Identity, OpenError, Options};
use storage::{Change, Error, Observer, Page, Result, Revision, Store};

use super::record::{Record, Value};
use super::workload::{Sink, write};

/// Environment variable with the directory of the store.
pub const DIR: &str = "CRASH_CHILD_DIR";
/// Environment variable with the number of this process among those that have run on the store, from 1.
pub const GENERATION: &str = "CRASH_CHILD_GENERATION";
/// Environment variable with the revision after which the process reports the history.
pub const AFTER: &str = "CRASH_CHILD_AFTER";

struct NoopObserver;

impl Observer for NoopObserver {
    fn observe(&self, _: &[Change]) {}
}

/// Entry point of the child process: a test, so that this program can start itself again with it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let number = |name| std::env::var(name).expect(name).parse::<u64>().expect(name);
    let (generation, after) = (number(GENERATION), Revision(number(AFTER)));
    let out = Mutex::new(std::io::stdout());
    let report: Sink = Arc::new(move |record: Record| {
        // One write call puts the whole line into the pipe, or nothing. Without a reader of the pipe the
        // process exits.
        if out.lock().write_all(format!("{record}\n").as_bytes()).is_err() {
            std::process::exit(1);
        }
    });
    // The test harness has written the name of the test without a line end, so the records begin on a new
    // line.
    println!();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Every other process compacts history while it runs.
        let compacts_history = generation.is_multiple_of(2);
        match open(Path::new(&dir), compacts_history, report.clone()) {
            Err(error) => report(Record::Broken(format!("the store does not open: {error}"))),
            Ok(store) => match report_content(&store, after, &report).await {
                Err(error) => report(Record::Broken(format!("the store cannot be read: {error}"))),
                Ok(()) => {
                    let store = Arc::new(store);
                    if compacts_history {
                        tokio::spawn(trim(Arc::clone(&store)));
                    }
                    write(store, generation, report).await;
                }
            },
        }
    });
}

/// Opens the store with small memtables, which are flushed and compacted continuously.
fn open(dir: &Path, compacts_history: bool, report: Sink) -> Result<FjallStore, OpenError> {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let mut options = Options::new(dir, identity, Arc::new(SystemClock::new()));
    options.memtable_bytes = 256 << 10;
    options.reserve_bytes = 0;
    options.on_stall = Arc::new(move |reason| {
        report(Record::Broken(format!("the storage writer stalled: {reason}")));
        std::process::exit(70);
    });
    if compacts_history {
        options.history_retention = Duration::from_millis(50);
    }
    FjallStore::open(options, Arc::new(NoopObserver))
}

/// Compacts history every 20 ms. The store itself compacts once a second, and most runs end before that.
async fn trim(store: Arc<FjallStore>) {
    while store.maintain().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reports all rows, read in pages, and the history after a revision.
async fn report_content(store: &FjallStore, after: Revision, report: &Sink) -> Result<()> {
    let mut page = store.range("", "", 100, None).await?;
    let revision = page.revision;
    loop {
        let Page { rows, more, .. } = page;
        for row in &rows {
            let value = parse_value(&row.value, &row.key)?;
            report(Record::Row { key: row.key.to_string(), value, revision: row.revision.0 });
        }
        match rows.last() {
            Some(last) if more => {
                let start = format!("{}\0", last.key);
                page = store.range("", &start, 100, Some(revision)).await?;
            }
            _ => break,
        }
    }
    let whole = match report_history(store, after, revision, report).await {
        Ok(()) => true,
        Err(Error::Compacted { .. }) => false,
        Err(error) => return Err(error),
    };
    report(Record::ContentEnd { revision: revision.0, whole });
    Ok(())
}

async fn report_history(store: &FjallStore, after: Revision, upto: Revision, report: &Sink) -> Result<()> {
    let mut newest = after;
    let mut watch = store.watch("", after).await?;
    while newest < upto {
        for Change { key, old, new, revision } in watch.next().await? {
            newest = revision;
            let old = old
                .map(|row| parse_value(&row.value, &key).map(|value| (value, row.revision.0)))
                .transpose()?;
            let new = new.map(|value| parse_value(&value, &key)).transpose()?;
            report(Record::Change { revision: revision.0, key: key.to_string(), old, new });
        }
    }
    Ok(())
}

fn parse_value(bytes: &[u8], key: &str) -> Result<Value> {
    Value::from_bytes(bytes).ok_or_else(|| Error::Corrupt(format!("`{key}` has bytes that no writer wrote")))
}
