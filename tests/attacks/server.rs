//! Server under attack: a real apid with the authd that it starts. The data directory persists over restarts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::process::ServerProcesses;

/// Token of the reference client.
pub const REFERENCE_TOKEN: &str = "polite-token";
/// Token of a user of group `system:masters`.
pub const PRIVILEGED_TOKEN: &str = "privileged-token";
/// Token of a user without permissions of its own.
pub const UNPRIVILEGED_TOKEN: &str = "unprivileged-token";

/// Users: token, user, uid, groups.
const TOKENS: &str = "polite-token,polite,polite-uid\n\
                      privileged-token,privileged,privileged-uid,system:masters\n\
                      unprivileged-token,unprivileged,unprivileged-uid\n";

/// Time limit for the start of apid, and for the end of authd.
const START_OR_END_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Data directory and programs of the servers of a run.
pub struct ServerHome {
    dir: TempDir,
    programs: PathBuf,
    starts: usize,
}

/// Running server. Drop kills it.
pub struct Server {
    /// Port of the server.
    pub port: u16,
    /// Processes of the server.
    pub pair: ServerProcesses,
    process: Child,
    log: PathBuf,
}

impl ServerHome {
    /// Creates an empty data directory.
    pub fn new(programs: &Path) -> ServerHome {
        let dir = tempfile::Builder::new().prefix("attacks-").tempdir().expect("a temporary directory");
        fs::write(dir.path().join("tokens.csv"), TOKENS).expect("the token file");
        ServerHome { dir, programs: programs.to_owned(), starts: 0 }
    }

    /// Starts a server and waits until apid has written its port and started authd.
    pub fn start(&mut self) -> Server {
        self.starts += 1;
        let data = self.dir.path().join("data");
        let port_file = data.join("apid.port");
        drop(fs::remove_file(&port_file));
        let log = self.dir.path().join(format!("log-{}", self.starts));
        let out = File::create(&log).expect("a log file");
        let mut process = Command::new(self.programs.join("apid"))
            .arg("--spawn-authd")
            .arg("--authd-program")
            .arg(self.programs.join("authd"))
            .args(["--names", "kubernetes", "--authorization-mode", "Node,RBAC"])
            .args(["--bind-address", "127.0.0.1", "--secure-port", "0"])
            // Attacks through proxies have a backend on this machine.
            .args(["--forwarding-address-exceptions", "127.0.0.1"])
            .args(["--feature-gates", "CBORServingAndStorage=true,WatchList=true"])
            .arg("--data-dir")
            .arg(&data)
            .arg("--token-auth-file")
            .arg(self.dir.path().join("tokens.csv"))
            .arg("--audit-log-path")
            .arg(self.dir.path().join("audit"))
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out)
            .spawn()
            .expect("apid starts");
        let begun = Instant::now();
        loop {
            let port = fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse().ok());
            if let (Some(port), Some(authd)) = (port, first_child(process.id())) {
                return Server { port, pair: ServerProcesses { apid: process.id(), authd }, process, log };
            }
            let ended = process.try_wait().expect("apid is a child");
            assert!(
                ended.is_none() && begun.elapsed() < START_OR_END_TIME_LIMIT,
                "apid does not start:\n{}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Server {
    /// Returns the number of bytes that both processes have logged.
    pub fn log_bytes(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |file| file.len())
    }

    /// Returns the end of the log.
    pub fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(2000)..]).into_owned()
    }

    /// Whether apid runs with the authd that it had at the start.
    pub fn has_original_authd(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None)) && first_child(self.pair.apid) == Some(self.pair.authd)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.pair.kill();
        drop(self.process.wait());
        // authd is a child of apid, so init reaps it. The next start needs the memory and socket of authd.
        let begun = Instant::now();
        while Path::new(&format!("/proc/{}", self.pair.authd)).exists()
            && begun.elapsed() < START_OR_END_TIME_LIMIT
        {
            let state = fs::read_to_string(format!("/proc/{}/stat", self.pair.authd)).unwrap_or_default();
            if state.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z')) {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns the first child of a process; None if there is no child.
fn first_child(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    tasks.flatten().find_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}
