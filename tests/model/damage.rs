//! Damaged files: flipped bytes anywhere, and truncated write-ahead logs.
//!
//! A server on damaged files either serves exactly the written data or reports the damage: it does not start,
//! or it rejects the affected reads.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::SmallRng;

use crate::model::chapter::{Chapter, tail};
use crate::model::plan;
use crate::model::server::ServerHome;
use crate::model::session::{fork, inspect};

/// Number of random kinds of damage that are tested on each state of the store.
const DAMAGES_PER_STATE: usize = 4;

#[test]
fn damaged_store_is_detected_or_served_unchanged() {
    plan::run("model::damage::damaged_store_is_detected_or_served_unchanged", run_chapter);
}

async fn run_chapter(dir: PathBuf, seed: u64, time: Duration) -> Result<String, String> {
    let begun = Instant::now();
    let (mut chapter, mut home) = Chapter::of_one_server(&dir, seed);
    let (mut refused, mut rejected, mut harmless) = (0, 0, 0);
    loop {
        let mut server = chapter.start(&mut home).await;
        let mut session = chapter.start_session(&server.servers()).await;
        tokio::time::sleep(Duration::from_millis(chapter.random.random_range(200..1200))).await;
        session.quiesce().await;
        server.kill();
        chapter.end_session(session, None).await;
        chapter.check_history()?;
        let (store, undamaged) = (home.store(), dir.join("whole"));
        copy(&store, &undamaged);
        for _ in 0..DAMAGES_PER_STATE {
            let damage = Damage::random(&store, &mut chapter.random).expect("the store has files");
            damage.inflict().expect("a file is changed");
            match verdict(&mut chapter, &mut home, &damage).await? {
                Verdict::StartRefused => refused += 1,
                Verdict::ReadsRejected => rejected += 1,
                Verdict::Unchanged => harmless += 1,
            }
            copy(&undamaged, &store);
            if begun.elapsed() >= time {
                break;
            }
        }
        if begun.elapsed() >= time {
            break;
        }
    }
    Ok(format!(
        "{} kinds of damage: {refused} rejected at start, {rejected} reported to readers, {harmless} harmless; {}",
        refused + rejected + harmless,
        chapter.size()
    ))
}

/// Reaction of a server to a damage: no start, rejected reads, or all data unchanged.
enum Verdict {
    StartRefused,
    ReadsRejected,
    Unchanged,
}

/// Starts a server on the damaged store and reads all its data.
async fn verdict(chapter: &mut Chapter, home: &mut ServerHome, damage: &Damage) -> Result<Verdict, String> {
    let mut server = match home.start().await {
        Ok(server) => server,
        Err(refusal) => {
            let reason = refusal.log.lines().last().unwrap_or_default();
            println!("{damage:?}: {reason}");
            // The last log line must name the lost revisions, or say that no change is lost.
            let explains_loss =
                ["revisions ", "no change is lost"].iter().any(|words| reason.contains(words));
            return if refusal.status.is_some() && explains_loss {
                Ok(Verdict::StartRefused)
            } else {
                let log = tail(&refusal.log);
                Err(format!("Damage: {damage:?} ends a start with {:?}:\n{log}", refusal.status))
            };
        }
    };
    let random = fork(&mut chapter.random);
    let seen = inspect(&server.servers(), &chapter.recorder, &chapter.history, chapter.base(), random).await;
    server.kill();
    // The observations on the damaged store are checked with all earlier ones, but not added to the chapter.
    let mut history = chapter.history.clone();
    let violations = seen.direct_violations.len();
    let mut seen = seen;
    seen.direct_violations.clear();
    history.append(seen, None, chapter.recorder.now());
    match chapter.check_continued_history(&history) {
        Ok(()) if violations > 0 => Ok(Verdict::ReadsRejected),
        Ok(()) => Ok(Verdict::Unchanged),
        Err(description) => Err(format!("Damage: {damage:?} is served without an error: {description}")),
    }
}

/// Damage of a file of the store.
#[derive(Debug)]
enum Damage {
    /// One byte is changed.
    Flip { file: PathBuf, at: u64, bits: u8 },
    /// Bytes are missing at the end of a write-ahead log.
    Torn { file: PathBuf, keeps: u64 },
    /// The bytes of a range are set to zero.
    Zeroed { file: PathBuf, from: u64, to: u64 },
}

impl Damage {
    /// Chooses a random damage in a written part of a file.
    fn random(store: &Path, random: &mut SmallRng) -> io::Result<Damage> {
        let mut files = Vec::new();
        collect(store, &mut files)?;
        files.sort();
        let journals: Vec<_> =
            files.iter().filter(|(file, _)| file.extension().is_some_and(|e| e == "jnl")).collect();
        if let Some((file, written)) = journals.last()
            && random.random_bool(0.4)
        {
            let lost = random.random_range(1..=(*written).min(4000));
            let (file, keeps) = (file.clone(), written - lost);
            return Ok(match random.random_bool(0.5) {
                true => Damage::Torn { file, keeps },
                false => Damage::Zeroed { file, from: keeps, to: *written },
            });
        }
        let (file, written) = files.swap_remove(random.random_range(0..files.len()));
        Ok(Damage::Flip { file, at: random.random_range(0..written), bits: random.random_range(1..=255) })
    }

    fn inflict(&self) -> io::Result<()> {
        match self {
            Damage::Flip { file, at, bits } => {
                let file = fs::File::options().read(true).write(true).open(file)?;
                let mut byte = [0];
                file.read_exact_at(&mut byte, *at)?;
                file.write_all_at(&[byte[0] ^ bits], *at)
            }
            Damage::Torn { file, keeps } => fs::File::options().write(true).open(file)?.set_len(*keeps),
            Damage::Zeroed { file, from, to } => {
                let zeros = vec![0; usize::try_from(to - from).unwrap_or_default()];
                fs::File::options().write(true).open(file)?.write_all_at(&zeros, *from)
            }
        }
    }
}

/// Collects the files with data below a directory, each with the position after its last non-zero byte.
fn collect(dir: &Path, files: &mut Vec<(PathBuf, u64)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
            continue;
        }
        let bytes = fs::read(&path)?;
        // A write-ahead log is preallocated with zeros, so its size does not show how much is written.
        if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
            files.push((path, last as u64 + 1));
        }
    }
    Ok(())
}

/// Replaces the directory `to` with a copy of `from`.
fn copy(from: &Path, to: &Path) {
    drop(fs::remove_dir_all(to));
    let status = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status();
    assert!(status.is_ok_and(|status| status.success()), "cp");
}
