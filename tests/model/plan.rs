//! Duration and seed of a test, and instructions to repeat a failure.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// Duration of a test in seconds without `MODEL_SECONDS`.
const DEFAULT_SECONDS: u64 = 5;

/// Maximum duration of a chapter, whose history is checked as a whole.
const MAX_CHAPTER_DURATION: Duration = Duration::from_secs(15);

/// Settings from the environment.
pub struct Plan {
    seed: u64,
    seconds: u64,
    chapter: Option<u64>,
}

impl Plan {
    fn from_environment(default_seconds: u64) -> Plan {
        let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
        Plan {
            seed: number("MODEL_SEED").unwrap_or_else(|| rand::random::<u32>().into()),
            seconds: number("MODEL_SECONDS").unwrap_or(default_seconds),
            chapter: number("MODEL_CHAPTER"),
        }
    }

    fn seed(&self, chapter: u64) -> u64 {
        self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(chapter)
    }
}

/// Runs chapters with the default durations; see [`run_for`].
pub fn run<F>(test: &str, run_chapter: impl Fn(std::path::PathBuf, u64, Duration) -> F)
where
    F: Future<Output = Result<String, String>>,
{
    run_for(test, DEFAULT_SECONDS, MAX_CHAPTER_DURATION, run_chapter);
}

/// Runs chapters until the planned duration has passed: `MODEL_SECONDS`, or `default_seconds` without it.
///
/// `run_chapter` gets a directory, a seed and a duration, and returns a summary.
///
/// # Panics
///
/// A chapter fails; the message contains the command to repeat it.
pub fn run_for<F>(
    test: &str,
    default_seconds: u64,
    max_chapter_duration: Duration,
    run_chapter: impl Fn(std::path::PathBuf, u64, Duration) -> F,
) where
    F: Future<Output = Result<String, String>>,
{
    let plan = Plan::from_environment(default_seconds);
    let runtime = Runtime::new().expect("a runtime");
    let begun = Instant::now();
    println!("{test}: MODEL_SEED={}", plan.seed);
    let budget = Duration::from_secs(plan.seconds);
    let mut chapter = plan.chapter.unwrap_or(0);
    loop {
        let left = budget.saturating_sub(begun.elapsed());
        let dir = tempfile::Builder::new().prefix("model-").tempdir().expect("a temporary directory");
        let hint = RepeatHint { test, plan: &plan, chapter };
        let path: &Path = dir.path();
        match runtime.block_on(run_chapter(
            path.to_owned(),
            plan.seed(chapter),
            left.min(max_chapter_duration),
        )) {
            Ok(summary) => println!("{test}, chapter {chapter}: {summary}"),
            Err(description) => panic!("{description}"),
        }
        drop(hint);
        chapter += 1;
        if plan.chapter.is_some() || begun.elapsed() >= budget {
            return;
        }
    }
}

/// Prints how to repeat a chapter when it panics.
struct RepeatHint<'a> {
    test: &'a str,
    plan: &'a Plan,
    chapter: u64,
}

impl Drop for RepeatHint<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let RepeatHint { test, plan: Plan { seed, seconds, .. }, chapter } = self;
            eprintln!(
                "repeat with: MODEL_SEED={seed} MODEL_CHAPTER={chapter} MODEL_SECONDS={seconds} cargo test -p tests --test system {test} -- --nocapture"
            );
        }
    }
}
