//! Power cuts: the store runs on a file system that forgets what was not synced, is cut at a random moment, and is opened
//! again on what is left.
//!
//! The store keeps running on the uncut file system until it is closed, so that a cut interrupts no system call; the
//! image of the cut is taken at one instant, after the list of what was acknowledged.
//!
//! The child runs in a mount namespace of its own: however it ends, its mounts end with it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use storage::Store;

use super::disk::Disk;
use super::kill::lines;
use super::model::{Acknowledged, Model};
use super::mount::Mount;
use super::store::{held, open, trim};
use super::workload::{Sink, write};
use super::{DEADLINE, Plan, Running};

const DIR: &str = "CRASH_POWER_DIR";

/// What runs a program in a mount namespace of its own.
const NAMESPACE: &[&str] = &["unshare", "--mount", "--propagation", "private"];

#[test]
fn every_acknowledged_write_survives_power_cuts() {
    if let Err(why) = can_mount() {
        println!("power cuts are not tested here: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Running::again(NAMESPACE, "power::child", &[(DIR, dir.path())]);
    let lines = lines(child.0.stdout.take().unwrap());
    let mut said = Vec::new();
    while let Ok(line) = lines.recv_timeout(DEADLINE) {
        said.push(line);
    }
    let ended = child.0.try_wait().unwrap();
    child.kill();
    let tail = said[said.len().saturating_sub(12)..].join("\n");
    match ended {
        _ if said.iter().any(|line| line.starts_with("done")) => println!("{tail}"),
        None => panic!("nothing was heard for {DEADLINE:?} after:\n{tail}"),
        Some(status) => panic!("the child ended with {status} after:\n{tail}"),
    }
}

/// Whether FUSE and mount namespaces are to be had.
fn can_mount() -> Result<(), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse: {error}"))?;
    let mut probe = Command::new(NAMESPACE[0]);
    probe.args(&NAMESPACE[1..]).arg("true").stdout(Stdio::null()).stderr(Stdio::null());
    match probe.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("unshare ends with {status}")),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// The process that mounts: a test of its own only so that this program can be started again as it.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let plan = Plan::from_environment();
    println!("\nCRASH_SEED={}", plan.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut run = Run {
        random: SmallRng::seed_from_u64(plan.seed),
        model: Arc::default(),
        least: Model::default().acknowledged(),
        disk: Some(Disk::new()),
        runtime,
    };
    let mut cut = 0;
    while plan.goes_on(cut) {
        cut += 1;
        if let Err(what) = run.round(cut, &Path::new(&dir).join(cut.to_string())) {
            panic!("round {cut}: {what}");
        }
    }
    println!("done: {cut} power cuts");
}

struct Run {
    random: SmallRng,
    model: Arc<Mutex<Model>>,
    /// What was acknowledged before the last cut.
    least: Acknowledged,
    /// What the last cut left.
    disk: Option<Disk>,
    runtime: tokio::runtime::Runtime,
}

impl Run {
    /// Opens the store on what the last cut left, checks it, writes, and cuts: at a moment while it opens, or later.
    fn round(&mut self, round: u64, dir: &Path) -> Result<(), String> {
        std::fs::create_dir(dir).map_err(|error| error.to_string())?;
        let mount = Mount::new(self.disk.take().unwrap_or_else(Disk::new), dir)
            .map_err(|error| format!("mount: {error}"))?;
        say(&format!("round {round}: opening"));
        let outcome = if self.random.random_bool(0.25) {
            self.cut_while_opening(round, &mount)
        } else {
            self.cut_while_writing(round, &mount)
        };
        self.disk = Some(outcome?);
        mount.end().map_err(|error| format!("the closed store keeps files open: {error}"))
    }

    fn cut_while_opening(&mut self, round: u64, mount: &Mount) -> Result<Disk, String> {
        let mut random = SmallRng::from_rng(&mut self.random);
        let _runtime = self.runtime.enter();
        let ((left, names), store) = thread::scope(|scope| {
            let cut = scope.spawn(move || {
                thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
                mount.cut(&mut random)
            });
            let store = open(&mount.dir().join("store"), round.is_multiple_of(2));
            (cut.join().expect("a cut does not panic"), store)
        });
        let store = store.map_err(|error| format!("the store refuses to start: {error}"))?;
        self.runtime.block_on(store.close());
        say(&format!("round {round}: cut while opening {names:?}"));
        Ok(left)
    }

    fn cut_while_writing(&mut self, round: u64, mount: &Mount) -> Result<Disk, String> {
        let trimmed = round.is_multiple_of(2);
        let _runtime = self.runtime.enter();
        let store = open(&mount.dir().join("store"), trimmed)
            .map_err(|error| format!("the store refuses to start: {error}"))?;
        let after = self.model.lock().revision();
        let found = self
            .runtime
            .block_on(held(&store, after))
            .map_err(|error| format!("the store cannot be read: {error}"))?;
        let mut model = self.model.lock();
        let checked = model.count();
        let history = if found.history.is_some() { " and their history" } else { "" };
        model.check(&self.least, &found.rows, found.revision, found.history.as_deref())?;
        drop(model);

        let store = Arc::new(store);
        let stop = Arc::new(AtomicBool::new(false));
        let trimming = trimmed.then(|| self.runtime.spawn(trim(Arc::clone(&store), Arc::clone(&stop))));
        let sink: Sink = {
            let model = Arc::clone(&self.model);
            Arc::new(move |record| model.lock().record(record))
        };
        let writers = self.runtime.spawn(write(store.clone(), round, round, sink, Arc::clone(&stop)));
        thread::sleep(Duration::from_millis(self.random.random_range(1..400)));
        self.least = self.model.lock().acknowledged();
        let (left, names) = mount.cut(&mut self.random);
        stop.store(true, Ordering::Relaxed);
        for task in trimming.into_iter().chain([writers]) {
            self.runtime.block_on(task).map_err(|error| error.to_string())?;
        }
        self.runtime.block_on(store.close());
        let at = store.revision();
        say(&format!("round {round}: {checked} writes{history} found, then cut at {at} {names:?}"));
        Ok(left)
    }
}

fn say(line: &str) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}
