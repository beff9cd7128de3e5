//! Power cuts: the store runs on a file system that forgets what was not synced, is cut at a random moment, and is opened
//! again on what is left.
//!
//! This process serves the file system, a child runs the store on it. The image of a cut is taken at one instant, after
//! the list of what was acknowledged; the child is killed afterwards.
//!
//! The test runs itself again in a mount namespace of its own: however it ends, its mounts end with it.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Plan;
use super::disk::Disk;
use super::model::Model;
use super::mount::Mount;
use super::session::Session;

const TEST: &str = "power::every_acknowledged_write_survives_power_cuts";
const INSIDE: &str = "CRASH_POWER_INSIDE";

#[test]
fn every_acknowledged_write_survives_power_cuts() {
    if std::env::var_os(INSIDE).is_some() {
        end_with_parent();
        return cut_again_and_again();
    }
    if let Err(why) = can_mount() {
        println!("power cuts are not tested here: {why}");
        return;
    }
    let mut command = in_namespace();
    command.arg(std::env::current_exe().unwrap()).args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    let mut inside = command.env(INSIDE, "1").stdin(Stdio::piped()).spawn().unwrap();
    // Its input stays open until it has ended.
    let input = inside.stdin.take();
    let status = inside.wait().unwrap();
    drop(input);
    assert!(status.success(), "see above");
}

/// A command in a mount namespace of its own.
fn in_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command
}

/// Whether FUSE and mount namespaces are to be had.
fn can_mount() -> Result<(), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse: {error}"))?;
    match in_namespace().arg("true").stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("unshare ends with {status}")),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// The end of the input is the end of the process that started this one.
fn end_with_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}

fn cut_again_and_again() {
    let plan = Plan::from_environment();
    println!("\nCRASH_SEED={}", plan.seed);
    let dir = tempfile::tempdir().unwrap();
    let mut run =
        Run { random: SmallRng::seed_from_u64(plan.seed), model: Model::default(), names: Vec::new() };
    let (mut disk, mut cuts) = (Disk::new(), 0);
    while plan.goes_on(cuts) {
        let mount_point = dir.path().join(cuts.to_string());
        disk = match run.round(disk, cuts + 1, &mount_point) {
            Ok(left) => left,
            Err(what) => panic!("after {cuts} cuts, the last of which did {:?}: {what}", run.names),
        };
        cuts += 1;
    }
    let (found, histories) = run.model.found();
    println!("{cuts} power cuts; {found} acknowledged writes and {histories} histories were there");
    assert!(found > 0, "no process got as far as a write");
}

struct Run {
    random: SmallRng,
    model: Model,
    /// The names that the last cut took or brought back.
    names: Vec<String>,
}

impl Run {
    /// Runs the store on what the last cut left, checks it, and cuts: at a moment while it opens, or while it is written
    /// to.
    fn round(&mut self, disk: Disk, generation: u64, dir: &Path) -> Result<Disk, String> {
        std::fs::create_dir(dir).map_err(|error| error.to_string())?;
        let mount = Mount::new(disk, dir).map_err(|error| format!("mount: {error}"))?;
        let session = Session::start(&mount.dir().join("store"), generation, &mut self.model);
        if self.random.random_bool(0.25) {
            thread::sleep(Duration::from_millis(self.random.random_range(0..80)));
        } else {
            session.wait_until_open(&mut self.model)?;
            thread::sleep(Duration::from_millis(self.random.random_range(1..400)));
        }
        session.take(&mut self.model)?;
        self.model.must_survive();
        let (left, names) = mount.cut(&mut self.random);
        session.kill(&mut self.model)?;
        self.names = names;
        mount.end().map_err(|error| format!("unmount: {error}"))?;
        Ok(left)
    }
}
