//! SIGKILL at a random moment, while the store opens or while it is written to.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use storage::{Revision, Store};

use super::model::{Model, Record};
use super::store::{Held, held, open, trim};
use super::workload::write;
use super::{DEADLINE, Plan, Running};

const DIR: &str = "CRASH_KILL_DIR";
const GENERATION: &str = "CRASH_KILL_GENERATION";
const READY: &str = "ready";

#[test]
fn every_acknowledged_write_survives_kill() {
    let plan = Plan::from_environment();
    println!("CRASH_SEED={}", plan.seed);
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut model = Model::default();
    let mut generation = 0;
    let (mut acknowledged, mut histories) = (0, 0);
    while plan.goes_on(generation) {
        generation += 1;
        run_and_kill(&store, generation, &mut random, &mut model);
        let least = model.acknowledged();
        acknowledged += model.count();
        let found =
            reopen(&store, model.revision()).unwrap_or_else(|what| panic!("cycle {generation}: {what}"));
        histories += u64::from(found.history.is_some());
        if let Err(what) = model.check(&least, &found.rows, found.revision, found.history.as_deref()) {
            panic!("cycle {generation}, revision {}: {what}", found.revision);
        }
    }
    println!("{generation} kills, {acknowledged} acknowledged writes, {histories} histories compared");
    assert!(acknowledged > 0, "no cycle got as far as a write");
}

/// Starts a child on the store, takes its records, and kills it.
fn run_and_kill(store: &Path, generation: u64, random: &mut SmallRng, model: &mut Model) {
    let number = PathBuf::from(generation.to_string());
    let mut child = Running::again(&[], "kill::child", &[(DIR, store), (GENERATION, &number)]);
    let lines = lines(child.0.stdout.take().unwrap());
    let while_opening = random.random_bool(0.2);
    let mut unread = Vec::new();
    if while_opening {
        thread::sleep(Duration::from_millis(random.random_range(0..60)));
    } else {
        loop {
            match lines.recv_timeout(DEADLINE) {
                Ok(line) if line == READY => break,
                Ok(line) => unread.push(line),
                Err(_) => panic!("cycle {generation}: the store does not open"),
            }
        }
        thread::sleep(Duration::from_millis(random.random_range(1..300)));
    }
    child.kill();
    for record in unread.into_iter().chain(lines).filter_map(|line| Record::parse(&line)) {
        model.record(record);
    }
}

/// The whole lines that a child says, until it ends.
pub fn lines(out: std::process::ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = String::new();
        while out.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some(whole) = line.strip_suffix('\n') {
                let _ = sender.send(whole.to_owned());
            }
            line.clear();
        }
    });
    receiver
}

/// Opens the store in this process and reads it, in time.
fn reopen(dir: &Path, after: Revision) -> Result<Held, String> {
    let (sender, receiver) = mpsc::channel();
    let dir = dir.to_owned();
    thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let store = open(&dir, false).map_err(|error| format!("the store refuses to start: {error}"))?;
            let answer =
                held(&store, after).await.map_err(|error| format!("the store cannot be read: {error}"));
            store.close().await;
            answer
        });
        let _ = sender.send(answer);
    });
    receiver.recv_timeout(DEADLINE).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err("the store does not open, or cannot be read, in time".to_owned()),
        RecvTimeoutError::Disconnected => Err("the thread that reads the store panicked".to_owned()),
    })
}

/// The process that is killed: a test of its own only so that this program can be started again as it.
#[test]
fn child() {
    let (Ok(dir), Ok(generation)) = (std::env::var(DIR), std::env::var(GENERATION)) else {
        return;
    };
    let generation: u64 = generation.parse().unwrap();
    let out = Mutex::new(std::io::stdout());
    let say = Arc::new(move |line: String| {
        // One call of write: a line is in the pipe as a whole or not at all.
        if out.lock().write_all(line.as_bytes()).is_err() {
            std::process::exit(1);
        }
    });
    // The test harness has begun a line.
    say("\n".to_owned());
    let sink = Arc::new({
        let say = Arc::clone(&say);
        move |record: Record| say(format!("{}\n", record.line()))
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let trimmed = generation.is_multiple_of(2);
        match open(Path::new(&dir), trimmed) {
            Ok(store) => {
                let (store, stop) = (Arc::new(store), Arc::new(AtomicBool::new(false)));
                if trimmed {
                    tokio::spawn(trim(Arc::clone(&store), Arc::clone(&stop)));
                }
                say(format!("{READY}\n"));
                write(store, generation, generation, sink, stop).await;
            }
            Err(error) => sink(Record::Broken(format!("the store refuses to start: {error}"))),
        }
    });
}
