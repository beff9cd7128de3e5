//! SIGKILL at a random moment, while the store opens or while clients write to it.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Plan;
use super::model::Model;
use super::session::Session;

#[test]
fn every_acknowledged_write_survives_sigkill() {
    let plan = Plan::from_environment();
    println!("CRASH_SEED={}", plan.seed);
    let mut random = SmallRng::seed_from_u64(plan.seed);
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut model = Model::default();
    let mut kills = 0;
    while plan.should_continue(kills) {
        if let Err(what) = run_and_kill(&store, kills + 1, &mut model, &mut random) {
            panic!("after {kills} kills: {what}");
        }
        kills += 1;
    }
    let last = Session::start(&store, kills + 1, &mut model);
    last.wait_until_open(&mut model).unwrap_or_else(|what| panic!("after {kills} kills: {what}"));
    let (writes, histories) = model.verified_counts();
    println!("{kills} kills; {writes} acknowledged writes and {histories} histories verified");
    assert!(writes > 0, "no acknowledged write was verified");
}

fn run_and_kill(
    store: &Path,
    generation: u64,
    model: &mut Model,
    random: &mut SmallRng,
) -> Result<(), String> {
    let session = Session::start(store, generation, model);
    if random.random_bool(0.2) {
        thread::sleep(Duration::from_millis(random.random_range(0..60)));
    } else {
        session.wait_until_open(model)?;
        thread::sleep(Plan::write_duration(random));
    }
    session.kill(model)?;
    model.require_survival();
    Ok(())
}
