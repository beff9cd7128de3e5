//! Servers that are killed during work and restarted.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::Rng as _;

use crate::model::chapter::Chapter;
use crate::model::plan;

#[test]
fn history_is_consistent_after_sigkill() {
    plan::run("model::kill::history_is_consistent_after_sigkill", run_chapter);
}

async fn run_chapter(dir: PathBuf, seed: u64, time: Duration) -> Result<String, String> {
    let begun = Instant::now();
    let (mut chapter, mut home) = Chapter::of_one_server(&dir, seed);
    let mut kills = 0;
    loop {
        let mut server = chapter.start(&mut home).await;
        let mut session = chapter.start_session(&server.servers()).await;
        let flooded = chapter.random.random_bool(0.4);
        if flooded {
            session.flood();
        }
        // The server must run longer with a flood, because only a complete flood overflows the event buffer.
        let least = if flooded { 1500 } else { 300 };
        let load = Duration::from_millis(chapter.random.random_range(least..least + 2200));
        tokio::time::sleep(load).await;
        let last = begun.elapsed() >= time;
        if last {
            session.quiesce().await;
        }
        server.kill();
        chapter.end_session(session, None).await;
        if last {
            break;
        }
        kills += 1;
    }
    chapter.check_history()?;
    Ok(format!("{kills} kills; {}", chapter.size()))
}
