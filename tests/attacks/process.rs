//! Resident memory and CPU time of apid and authd, from `/proc`.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal};

/// Time between two samples of memory.
const INTERVAL: Duration = Duration::from_millis(10);

/// Resident memory of both processes in MiB at which the sampler kills them, to protect the machine.
const KILL_LIMIT_MIB: f64 = 4096.0;

/// apid and authd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerProcesses {
    /// Process id of apid.
    pub apid: u32,
    /// Process id of authd.
    pub authd: u32,
}

/// Peaks of resident memory in MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Peak of apid.
    pub apid: f64,
    /// Peak of authd.
    pub authd: f64,
    /// Peak of the sum of apid and authd.
    pub both: f64,
    /// Whether the sampler killed both processes at [`KILL_LIMIT_MIB`].
    pub killed: bool,
}

impl ServerProcesses {
    /// Returns the resident memory of apid and authd in MiB; 0 for a process that has ended.
    pub fn resident_mib(self) -> (f64, f64) {
        (resident_mib(self.apid), resident_mib(self.authd))
    }

    /// Returns the CPU time of both processes, user and system; None if a process has ended.
    pub fn cpu(self) -> Option<Duration> {
        Some(cpu(self.apid)? + cpu(self.authd)?)
    }

    /// Sends SIGKILL to both processes.
    pub fn kill(self) {
        for pid in [self.apid, self.authd] {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // A process that has ended needs no signal.
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

fn resident_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

/// CPU time from fields 14 and 15 of `stat`, counted after the closing parenthesis of the command.
///
/// The fields are ticks of a hundredth of a second.
fn cpu(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10))
}

/// Thread that samples memory until it is stopped.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    peaks: Arc<Mutex<Peaks>>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Starts a thread that samples the memory of both processes.
    pub fn start(pair: ServerProcesses) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let peaks = Arc::new(Mutex::new(Peaks::default()));
        let (stopped, shared) = (Arc::clone(&stop), Arc::clone(&peaks));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let (apid, authd) = pair.resident_mib();
                let mut peaks = shared.lock();
                peaks.apid = peaks.apid.max(apid);
                peaks.authd = peaks.authd.max(authd);
                peaks.both = peaks.both.max(apid + authd);
                if apid + authd > KILL_LIMIT_MIB && !peaks.killed {
                    peaks.killed = true;
                    pair.kill();
                }
                drop(peaks);
                thread::sleep(INTERVAL);
            }
        });
        Sampler { stop, peaks, thread }
    }

    /// Whether the sampler has killed the processes.
    pub fn has_killed(&self) -> bool {
        self.peaks.lock().killed
    }

    /// Stops the thread and returns the peaks.
    pub fn stop(self) -> Peaks {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sampler ends");
        *self.peaks.lock()
    }
}
