//! Three servers on an etcd cluster of three members, while servers, their authd and members are killed or paused, and the
//! network between them is cut.
//!
//! Clients and watchers choose a server for each connection. At most one member is disturbed at a time, so that the others
//! are a majority.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prerequisites::etcd::newest_programs;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tests::harness::{Cluster, Disturbance, Options, eventually};

use crate::model::chapter::{Chapter, GATES};
use crate::model::plan;
use crate::model::server::Servers;

const TEST: &str = "model::cluster::history_of_three_servers_is_consistent_under_failures";

/// Bearer token of the clients.
const TOKEN: &str = "admin-token";

/// Number of servers, and number of members.
const SIZE: usize = 3;

/// Duration of the test in seconds without `MODEL_SECONDS`.
const DEFAULT_SECONDS: u64 = 10;

/// Maximum duration of a chapter.
const MAX_CHAPTER_DURATION: Duration = Duration::from_secs(40);

/// Default of `--etcd-compaction-interval`, for which etcd keeps the history at least.
const COMPACTION: Duration = Duration::from_secs(300);

/// Durations of disturbances in milliseconds; etcd elects a leader within 1 to 2 s, and reads of the servers wait 5 s.
const DURATIONS: [u64; 6] = [50, 200, 500, 1_500, 3_000, 7_000];

#[test]
fn history_of_three_servers_is_consistent_under_failures() {
    if newest_programs().is_some() {
        plan::run_for(TEST, DEFAULT_SECONDS, MAX_CHAPTER_DURATION, run_chapter);
    }
}

async fn run_chapter(_dir: PathBuf, seed: u64, time: Duration) -> Result<String, String> {
    let mut random = SmallRng::seed_from_u64(seed);
    let gates = GATES[random.random_range(0..GATES.len())];
    let options = Options::default().flag(&format!("--feature-gates={gates}"));
    let cluster = Cluster::start_with_network(options, SIZE, SIZE).await;
    let mut cluster = cluster.ok_or("etcd is not installed")?;
    let servers = Arc::new(Servers::failing(cluster.live_ports(), TOKEN));
    let mut chapter = Chapter::new(random, COMPACTION);
    let mut session = chapter.start_session(&servers).await;
    let begun = Instant::now();
    let mut disturbances = Vec::new();
    while begun.elapsed() < time {
        let calm = chapter.random.random_range(50..1_000);
        tokio::time::sleep(Duration::from_millis(calm)).await;
        let chosen = Disturbance::choose(&cluster, &mut chapter.random);
        chosen.iter().for_each(|disturbance| disturbance.begin(&mut cluster));
        let duration = DURATIONS[chapter.random.random_range(0..DURATIONS.len())];
        let left = time.saturating_sub(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(duration).min(left)).await;
        for disturbance in &chosen {
            disturbance.end(&mut cluster).await;
        }
        disturbances.push(format!("{chosen:?} for {duration} ms"));
    }
    for number in 0..SIZE {
        eventually("each server is ready after the disturbances", || async {
            (cluster.server(number).admin().get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }
    session.quiesce().await;
    (0..SIZE).for_each(|number| cluster.server_mut(number).kill());
    chapter.end_session(session, None).await;
    chapter.check_history().map_err(|violations| format!("after {disturbances:#?}: {violations}"))?;
    let undecided = servers.undecided();
    Ok(format!("{} disturbances; {undecided} undecided responses; {}", disturbances.len(), chapter.size()))
}
