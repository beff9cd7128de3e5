//! Power cuts during work, on a file system that loses unsynced data.
//!
//! A cut keeps the synced data and a random part of the unsynced changes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::Rng as _;
use tests::disk::Disk;
use tests::mount::Mount;
use tests::namespace::run_inside;

use crate::model::chapter::Chapter;
use crate::model::plan;

const TEST: &str = "model::power::history_is_consistent_after_power_cuts";

/// Duration of each sync of the simulated disk.
const SYNC_DURATION: Duration = Duration::from_millis(2);

#[test]
fn history_is_consistent_after_power_cuts() {
    run_inside(TEST, || plan::run(TEST, run_chapter));
}

async fn run_chapter(dir: PathBuf, seed: u64, time: Duration) -> Result<String, String> {
    let begun = Instant::now();
    let (mut chapter, mut home) = Chapter::of_one_server(&dir, seed);
    let mut disk = Disk::new();
    let mut cuts = 0;
    loop {
        let mount = Mount::new(disk, &home.store()).map_err(|error| format!("mount: {error}"))?;
        mount.set_sync_duration(SYNC_DURATION);
        let mut server = chapter.start(&mut home).await;
        let mut session = chapter.start_session(&server.servers()).await;
        if chapter.random.random_bool(0.2) {
            session.flood();
        }
        let load = Duration::from_millis(chapter.random.random_range(200..1500));
        tokio::time::sleep(load).await;
        let last = begun.elapsed() >= time;
        if last {
            session.quiesce().await;
        }
        // Responses after this time are ignored, because the server continues on the disk that the cut
        // discards.
        let cut = chapter.recorder.now();
        let (disk_after_cut, names) = mount.cut(&mut chapter.random);
        server.kill();
        chapter.end_session(session, Some(cut)).await;
        mount.unmount().map_err(|error| format!("unmount: {error}"))?;
        if last {
            break;
        }
        disk = disk_after_cut;
        cuts += 1;
        chapter.interruptions = format!("after {cuts} power cuts, the last of which did {names:?}");
    }
    chapter.check_history()?;
    Ok(format!("{cuts} power cuts; {}", chapter.size()))
}
