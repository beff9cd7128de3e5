//! Property test of the garbage collector: random owner graphs, random deletes and kill -9.
//!
//! [`history`] reads all changes in order, and [`reference_model`] replays them against a reference model.
//!
//! `GC_SECONDS` sets the duration in seconds (default 12); at least two rounds run. `GC_SEED` repeats the
//! random choices of an earlier run, but not the order of concurrent changes.

mod graph;
mod history;
mod reference_model;

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use graph::Graph;
use tests::harness::{ControlPlane, Options};

/// Default duration of the test.
const DEFAULT_DURATION: Duration = Duration::from_secs(12);
/// Number of objects in a round.
const OBJECTS: usize = 60;
/// Number of delete requests in a round.
const DELETES: usize = 25;

#[tokio::test]
async fn random_owner_graphs_match_reference_model() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("GC_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let budget = number("GC_SECONDS").map_or(DEFAULT_DURATION, Duration::from_secs);
    println!("GC_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut plane = ControlPlane::start(Options::default()).await;
    for namespace in graph::NAMESPACES {
        plane.admin().post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
    }
    let begun = Instant::now();
    let (mut rounds, mut kills) = (0, 0);
    while rounds < 2 || begun.elapsed() < budget {
        // Every second round runs without kills.
        kills += round(&mut plane, &mut rng, rounds, rounds % 2 == 1).await;
        rounds += 1;
    }
    println!("{rounds} rounds, {kills} kills");
}

/// Runs one graph until the garbage collector has finished. Returns the number of kills.
async fn round(plane: &mut ControlPlane, rng: &mut SmallRng, number: usize, crashes: bool) -> usize {
    let mut kills = 0;
    let mut graph = Graph::new(number);
    let since = history::start_versions(plane).await;
    for _ in 0..OBJECTS {
        graph.create(&plane.admin(), rng).await;
        // Some deletes happen between creations.
        if rng.random_ratio(1, 10) {
            graph.delete(&plane.admin(), rng).await;
        }
    }
    for _ in 0..DELETES {
        graph.delete(&plane.admin(), rng).await;
        if rng.random_ratio(1, 4) {
            graph.release(&plane.admin(), rng).await;
        }
        if rng.random_ratio(1, 6) {
            graph.adopt(&plane.admin(), rng).await;
        }
        if crashes && rng.random_ratio(1, 10) {
            plane.kill();
            plane.launch().await;
            kills += 1;
        }
    }
    history::wait_for_objects(plane, reference_model::is_settled).await;
    // Without the test finalizer, all terminating objects must be deleted.
    graph.release_all(&plane.admin()).await;
    history::wait_for_objects(plane, |objects| {
        reference_model::is_settled(objects) && !objects.iter().any(graph::is_terminating)
    })
    .await;
    let changes = history::changes_since(plane, &since).await;
    reference_model::replay(&graph, &changes);
    graph.clear(&plane.admin()).await;
    history::wait_for_objects(plane, |objects| objects.is_empty()).await;
    kills
}
