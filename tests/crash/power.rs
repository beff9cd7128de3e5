//! Power cuts: the store runs on a file system that loses unsynced data, and opens again on the data that
//! remains.
//!
//! This process serves the file system, and a child process runs the store on it. The test first processes
//! the acknowledged writes, then takes the disk image of the cut at one instant, and then kills the child.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tests::disk::Disk;
use tests::mount::Mount;
use tests::namespace::run_inside;

use super::Plan;
use super::model::Model;
use super::session::Session;

const TEST: &str = "crash::power::every_acknowledged_write_survives_power_cuts";

#[test]
fn every_acknowledged_write_survives_power_cuts() {
    run_inside(TEST, run_power_cuts);
}

fn run_power_cuts() {
    let plan = Plan::from_environment();
    println!("\nCRASH_SEED={}", plan.seed);
    let dir = tempfile::tempdir().unwrap();
    let mut run =
        Run { random: SmallRng::seed_from_u64(plan.seed), model: Model::default(), names: Vec::new() };
    let (mut disk, mut cuts) = (Disk::new(), 0);
    while plan.should_continue(cuts) {
        let mount_point = dir.path().join(cuts.to_string());
        disk = match run.round(disk, cuts + 1, &mount_point) {
            Ok(left) => left,
            Err(what) => panic!("after {cuts} cuts, the last of which did {:?}: {what}", run.names),
        };
        cuts += 1;
    }
    let (writes, histories) = run.model.verified_counts();
    println!("{cuts} power cuts; {writes} acknowledged writes and {histories} histories verified");
    assert!(writes > 0, "no acknowledged write was verified");
}

/// State of the test over all power cuts.
struct Run {
    random: SmallRng,
    model: Model,
    /// File names that the last cut removed or restored.
    names: Vec<String>,
}

impl Run {
    /// Runs the store on the disk after the last cut, and checks the content.
    ///
    /// Then cuts the power again, while the store opens or during writes, and returns the new disk.
    fn round(&mut self, disk: Disk, generation: u64, dir: &Path) -> Result<Disk, String> {
        std::fs::create_dir(dir).map_err(|error| error.to_string())?;
        let mount = Mount::new(disk, dir).map_err(|error| format!("mount: {error}"))?;
        let session = Session::start(&mount.dir().join("store"), generation, &mut self.model);
        if self.random.random_bool(0.25) {
            thread::sleep(Duration::from_millis(self.random.random_range(0..80)));
        } else {
            session.wait_until_open(&mut self.model)?;
            thread::sleep(Plan::write_duration(&mut self.random));
        }
        session.process_pending_records(&mut self.model)?;
        self.model.require_survival();
        let (left, names) = mount.cut(&mut self.random);
        session.kill(&mut self.model)?;
        self.names = names;
        mount.unmount().map_err(|error| format!("unmount: {error}"))?;
        Ok(left)
    }
}
