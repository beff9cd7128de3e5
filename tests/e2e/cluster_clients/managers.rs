//! Managers of client-go with leader election, whose leader the test replaces.
//!
//! # Contract
//!
//! A manager prints `leading TIME` and `stopped TIME`, with the time in nanoseconds since 1970. A leader that is killed
//! prints no end; the test takes the time at which the process has ended. [`GoManagers::assert_single_leaders`] fails if two
//! terms overlap.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tests::harness::eventually;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::task::JoinHandle;

use crate::e2e::clients::client_go;
use crate::e2e::fresh_policy::env_number;

/// Duration of a test from which leaders are killed too. The takeover after a kill takes the 15 s of the Lease.
const LONG_TEST: u64 = 60;

/// Leadership of one manager, with times in nanoseconds. The end is missing while the manager leads.
#[derive(Clone, Debug)]
struct Term {
    identity: String,
    start: u128,
    end: Option<u128>,
    is_killed: bool,
}

struct GoManager {
    identity: String,
    child: Child,
    /// Reads the output of the manager until the end of the process.
    output: JoinHandle<()>,
}

/// Two running managers. The drop ends them.
pub(super) struct GoManagers {
    config: PathBuf,
    managers: Vec<GoManager>,
    started: usize,
    terms: Arc<Mutex<Vec<Term>>>,
}

impl GoManagers {
    pub(super) fn start(config: &Path) -> GoManagers {
        let terms = Arc::default();
        let mut managers = GoManagers { config: config.to_owned(), managers: Vec::new(), started: 0, terms };
        managers.add();
        managers.add();
        managers
    }

    fn add(&mut self) {
        let identity = format!("manager-{}", self.started);
        self.started += 1;
        let mut command = client_go("manager").expect("client-go is installed");
        let command = command.arg(&identity).env("KUBECONFIG", &self.config);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the manager starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (terms, name) = (Arc::clone(&self.terms), identity.clone());
        let output = tokio::spawn(async move {
            while let Some(line) = lines.next_line().await.expect("text") {
                let (event, time) = line.split_once(' ').expect("an event and a time");
                let time = time.parse().expect("a number");
                match event {
                    "leading" => {
                        let identity = name.clone();
                        terms.lock().push(Term { identity, start: time, end: None, is_killed: false });
                    }
                    "stopped" => end_term(&mut terms.lock(), &name, time),
                    other => panic!("{name}: unknown event {other}"),
                }
            }
        });
        self.managers.push(GoManager { identity, child, output });
    }

    /// Replaces the leader by a new manager until the end of the test, in order or by SIGKILL in turns.
    pub(super) async fn replace_leaders(&mut self, over: &AtomicBool) {
        let time = env_number("CLIENT_SECONDS", 12);
        let pause = Duration::from_secs((time / 10).clamp(4, 30));
        let mut number = 0;
        self.leader().await;
        loop {
            tokio::time::sleep(pause).await;
            if over.load(Ordering::SeqCst) {
                return;
            }
            self.replace_leader(number % 2 == 1 && time >= LONG_TEST).await;
            number += 1;
        }
    }

    /// Returns the identity of the leader, and waits for one.
    async fn leader(&self) -> String {
        eventually("a manager leads", || async {
            self.terms.lock().iter().find(|term| term.end.is_none()).map(|term| term.identity.clone())
        })
        .await
    }

    async fn replace_leader(&mut self, is_killed: bool) {
        let leader = self.leader().await;
        let position = self.managers.iter().position(|manager| manager.identity == leader);
        let mut manager = self.managers.swap_remove(position.expect("the leader runs"));
        if is_killed {
            manager.child.kill().await.expect("the process is ours");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_nanos();
            let mut terms = self.terms.lock();
            end_term(&mut terms, &leader, now);
            terms.iter_mut().filter(|term| term.identity == leader).for_each(|term| term.is_killed = true);
        } else {
            let id = manager.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            kill_process(id.expect("the manager runs"), Signal::TERM).expect("the process is ours");
            let status = manager.child.wait().await.expect("the process is ours");
            assert!(status.success(), "{leader} ends in order: {status}; see its error above");
        }
        manager.output.await.expect("known events");
        self.add();
        self.leader().await;
    }

    /// Describes the takeovers with the longest times.
    pub(super) fn takeovers(&self) -> String {
        let terms = self.sorted_terms();
        let longest = |is_killed: bool| {
            let ended = terms.windows(2).filter(|pair| pair[0].is_killed == is_killed);
            let times = ended.filter_map(|pair| Some(pair[1].start.saturating_sub(pair[0].end?)));
            let times: Vec<u128> = times.collect();
            let milliseconds = times.iter().max().copied().unwrap_or_default() / 1_000_000;
            format!("{} (at most {milliseconds} ms)", times.len())
        };
        format!("takeovers from leaders that stop: {}, that are killed: {}", longest(false), longest(true))
    }

    fn sorted_terms(&self) -> Vec<Term> {
        let mut terms = self.terms.lock().clone();
        terms.sort_by_key(|term| term.start);
        terms
    }

    /// Returns the number of terms.
    ///
    /// # Panics
    ///
    /// Two managers led at one time, or a manager ended by itself.
    pub(super) fn assert_single_leaders(&mut self) -> usize {
        for manager in &mut self.managers {
            let ended = manager.child.try_wait().expect("the process is ours");
            assert!(ended.is_none(), "{} ended with {ended:?}; see its error above", manager.identity);
        }
        let terms = self.sorted_terms();
        for pair in terms.windows(2) {
            let ends_before = pair[0].end.is_some_and(|end| end <= pair[1].start);
            assert!(ends_before, "two managers lead at one time: {pair:?}");
        }
        terms.len()
    }
}

/// Records the end of the term of a manager.
fn end_term(terms: &mut [Term], identity: &str, end: u128) {
    let current = terms.iter_mut().find(|term| term.identity == identity && term.end.is_none());
    current.unwrap_or_else(|| panic!("{identity} does not lead")).end = Some(end);
}
