//! Random graphs of owners and random deletes, also with kill -9 midway, against a slow model: [`history`] reads all that
//! happened, in order, and [`judge`] replays it change by change.
//!
//! `GC_SECONDS=3600` goes on for so long, otherwise some rounds are played; `GC_SEED` repeats the choices of an earlier run
//! (which change comes first is the machine's).

mod graph;
mod history;
mod judge;

use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::harness::{ControlPlane, Options};
use graph::Graph;

/// How long rounds are played unless it is said.
const BUDGET: Duration = Duration::from_secs(12);
/// Objects of a round.
const OBJECTS: usize = 60;
/// Deletes of a round.
const DELETES: usize = 25;

#[tokio::test]
async fn random_graphs_end_as_their_owners_do() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("GC_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let budget = number("GC_SECONDS").map_or(BUDGET, Duration::from_secs);
    println!("GC_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut plane = ControlPlane::start(Options::default()).await;
    for namespace in graph::NAMESPACES {
        plane.admin().post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
    }
    let begun = Instant::now();
    let (mut rounds, mut kills) = (0, 0);
    while rounds < 2 || begun.elapsed() < budget {
        // Every other round runs through without a crash.
        kills += round(&mut plane, &mut rng, rounds, rounds % 2 == 1).await;
        rounds += 1;
    }
    println!("{rounds} rounds, {kills} kills");
}

/// One graph, from its first object until nothing moves any more. Answers how often the process was killed.
async fn round(plane: &mut ControlPlane, rng: &mut SmallRng, number: usize, crashes: bool) -> usize {
    let mut kills = 0;
    let mut graph = Graph::new(number);
    let since = history::begin(plane).await;
    for _ in 0..OBJECTS {
        graph.create(&plane.admin(), rng).await;
        // Some deletes fall between creations.
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
    history::settle(plane, judge::is_settled).await;
    // Held by nobody any more, all that ends has to go.
    graph.release_all(&plane.admin()).await;
    history::settle(plane, |objects| judge::is_settled(objects) && !objects.iter().any(graph::ends)).await;
    let changes = history::read(plane, &since).await;
    judge::replay(&graph, &changes);
    graph.clear(&plane.admin()).await;
    history::settle(plane, |objects| objects.is_empty()).await;
    kills
}
