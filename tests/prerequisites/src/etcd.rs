//! Real etcd servers for tests, below `target/etcd`. `.ci/run` installs them.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{repository, skip};

/// The releases of etcd that tests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// 3.5.1 of a Python package, whose requested progress notices are not in order with events.
    Old,
    /// 3.5.13 or later of Debian.
    Current,
}

impl Release {
    fn folder(self) -> &'static str {
        match self {
            Release::Old => "3.5.1",
            Release::Current => "debian",
        }
    }

    fn prerequisite(self) -> &'static str {
        match self {
            Release::Old => "etcd",
            Release::Current => "etcd-debian",
        }
    }
}

/// The folder with the programs of a release; None when the test is skipped.
///
/// # Panics
///
/// The skip is not allowed.
#[must_use]
pub fn programs(release: Release) -> Option<PathBuf> {
    let folder = repository().join("target/etcd").join(release.folder());
    if folder.join("etcd").is_file() {
        return Some(folder);
    }
    skip(release.prerequisite(), &format!("no etcd in {}", folder.display()));
    None
}

/// A running server with an empty store. Dropping it ends the server and removes its files.
#[derive(Debug)]
pub struct EtcdServer {
    child: Child,
    folder: PathBuf,
    flags: Vec<String>,
    program: PathBuf,
    url: String,
}

/// Number of servers of this process, for the names of their folders.
static SERVERS: AtomicU32 = AtomicU32::new(0);

impl EtcdServer {
    /// Starts a server of a release, with further flags; None when the test is skipped.
    ///
    /// # Panics
    ///
    /// The server does not start.
    #[must_use]
    pub fn start(release: Release, flags: &[&str]) -> Option<EtcdServer> {
        let program = programs(release)?.join("etcd");
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        let folder = base.join(format!("apid-etcd-{}-{number}", std::process::id()));
        let scheme = if flags.iter().any(|flag| flag.starts_with("--cert-file")) { "https" } else { "http" };
        let (client, peer) = (free_port(), free_port());
        let url = format!("{scheme}://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let mut all = vec![
            format!("--data-dir={}", folder.display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--max-request-bytes=8388608".to_owned(),
            "--log-level=error".to_owned(),
        ];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let child = spawn(&program, &all);
        let server = EtcdServer { child, folder, flags: all, program, url };
        server.wait();
        Some(server)
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The process id of the server.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts a killed server again with its data.
    ///
    /// # Panics
    ///
    /// The server does not start.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.flags);
        self.wait();
    }

    /// Waits until the server accepts connections.
    fn wait(&self) {
        let address = self.url.split("//").nth(1).unwrap_or_default();
        let listens = (0..1500).any(|_| {
            let is_connected = TcpStream::connect(address).is_ok();
            if !is_connected {
                std::thread::sleep(Duration::from_millis(20));
            }
            is_connected
        });
        assert!(listens, "etcd does not listen at {}", self.url);
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(program: &Path, flags: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(flags).env_clear().stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// A port that no server uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.unwrap_or_else(|error| panic!("no free port: {error}")).port()
}
