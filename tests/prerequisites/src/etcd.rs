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
    let programs = installed_programs(release);
    if programs.is_none() {
        skip(release.prerequisite(), &format!("no etcd in {}", folder(release).display()));
    }
    programs
}

/// The folder with the programs of a release; None if the release is not installed.
#[must_use]
pub fn installed_programs(release: Release) -> Option<PathBuf> {
    let folder = folder(release);
    folder.join("etcd").is_file().then_some(folder)
}

fn folder(release: Release) -> PathBuf {
    repository().join("target/etcd").join(release.folder())
}

/// The newest installed release; [`Release::Old`] if none is installed.
#[must_use]
pub fn newest_release() -> Release {
    if installed_programs(Release::Current).is_some() { Release::Current } else { Release::Old }
}

/// The programs of the newest installed release; None when the test is skipped.
///
/// # Panics
///
/// The skip is not allowed.
#[must_use]
pub fn newest_programs() -> Option<PathBuf> {
    programs(newest_release())
}

/// A running server: an etcd cluster of one member, or a member of an [`EtcdCluster`]. Dropping the server ends the process
/// and removes the files.
#[derive(Debug)]
pub struct EtcdServer {
    child: Child,
    folder: PathBuf,
    flags: Vec<String>,
    program: PathBuf,
    url: String,
}

/// Begin of the names of data folders. The id of the test process and the number of the server follow.
const FOLDER_PREFIX: &str = "apid-etcd-";

/// Number of servers of this process, for the names of their folders.
static SERVERS: AtomicU32 = AtomicU32::new(0);

/// Time within which a started server listens.
const START: Duration = Duration::from_secs(30);

impl EtcdServer {
    /// Starts a server of a release with an empty store and further flags; None when the test is skipped.
    ///
    /// # Panics
    ///
    /// The server does not start.
    #[must_use]
    pub fn start(release: Release, flags: &[&str]) -> Option<EtcdServer> {
        let program = programs(release)?.join("etcd");
        let peer = peer_url(free_port());
        let cluster = format!("--initial-cluster=default={peer}");
        let mut all = vec![cluster, format!("--initial-advertise-peer-urls={peer}")];
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let mut server = EtcdServer::spawn(program, &peer, all);
        server.wait();
        Some(server)
    }

    /// Starts the process of a server that listens to its peers at a URL.
    fn spawn(program: PathBuf, peer: &str, further: Vec<String>) -> EtcdServer {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let number = SERVERS.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            remove_abandoned_folders(&base);
        }
        let folder = base.join(format!("{FOLDER_PREFIX}{}-{number}", std::process::id()));
        let has_certificate = further.iter().any(|flag| flag.starts_with("--cert-file"));
        let scheme = if has_certificate { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", free_port());
        let mut flags = vec![
            format!("--data-dir={}", folder.display()),
            format!("--listen-client-urls={url}"),
            format!("--advertise-client-urls={url}"),
            format!("--listen-peer-urls={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--max-request-bytes=8388608".to_owned(),
            "--log-level=error".to_owned(),
        ];
        flags.extend(further);
        let child = spawn(&program, &flags);
        EtcdServer { child, folder, flags, program, url }
    }

    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The port of the server for clients.
    ///
    /// # Panics
    ///
    /// The URL has no port.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("no port in {}", self.url))
    }

    /// The process id of the server.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL to the server and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops the process with SIGSTOP: connections stay open and nothing answers.
    ///
    /// # Panics
    ///
    /// `kill` does not run.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Continues a paused process.
    ///
    /// # Panics
    ///
    /// `kill` does not run.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill {signal} of {} fails", self.url);
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

    /// Removes the data of a killed server, which starts again with an empty store.
    ///
    /// # Panics
    ///
    /// The data cannot be removed, or the server does not start.
    pub fn restart_empty(&mut self) {
        let removed = fs::remove_dir_all(&self.folder);
        removed.unwrap_or_else(|error| panic!("{}: {error}", self.folder.display()));
        self.restart();
    }

    /// Waits until the server accepts connections. A server that ends before is started again, because another process
    /// can use the port of a killed server for a moment.
    fn wait(&mut self) {
        let address = self.url.split("//").nth(1).unwrap_or_default().to_owned();
        let pause = Duration::from_millis(20);
        let mut left = START;
        while TcpStream::connect(&address).is_err() {
            left = left.saturating_sub(pause);
            assert!(!left.is_zero(), "etcd does not listen at {} within {START:?}", self.url);
            std::thread::sleep(pause);
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                self.child = spawn(&self.program, &self.flags);
            }
        }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A running cluster of several members on this machine. Dropping the cluster ends all members.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
}

impl EtcdCluster {
    /// Starts members with an empty store, of the newest installed release; None when the test is skipped.
    ///
    /// # Panics
    ///
    /// A member does not start.
    #[must_use]
    pub fn start(members: usize) -> Option<EtcdCluster> {
        EtcdCluster::start_behind(members, <[u16]>::to_vec)
    }

    /// Starts members whose peers use other ports, such as those of relays in front of the members. `advertised` gets the
    /// ports at which the members listen to peers, and returns the ports for their peers.
    ///
    /// # Panics
    ///
    /// A member does not start.
    #[must_use]
    pub fn start_behind(members: usize, advertised: impl FnOnce(&[u16]) -> Vec<u16>) -> Option<EtcdCluster> {
        let program = newest_programs()?.join("etcd");
        let ports: Vec<u16> = (0..members).map(|_| free_port()).collect();
        let peers: Vec<(String, String)> = ports
            .iter()
            .zip(advertised(&ports))
            .map(|(own, other)| (peer_url(*own), peer_url(other)))
            .collect();
        let named =
            peers.iter().enumerate().map(|(member, (_, advertised))| format!("m{member}={advertised}"));
        let all = format!("--initial-cluster={}", named.collect::<Vec<String>>().join(","));
        let start = |(member, (listen, advertised)): (usize, &(String, String))| {
            let advertise = format!("--initial-advertise-peer-urls={advertised}");
            let flags = vec![format!("--name=m{member}"), all.clone(), advertise];
            EtcdServer::spawn(program.clone(), listen, flags)
        };
        let mut cluster = EtcdCluster { members: peers.iter().enumerate().map(start).collect() };
        cluster.members.iter_mut().for_each(EtcdServer::wait);
        Some(cluster)
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// A member.
    ///
    /// # Panics
    ///
    /// The cluster has fewer members.
    pub fn member(&mut self, number: usize) -> &mut EtcdServer {
        let count = self.members.len();
        self.members.get_mut(number).unwrap_or_else(|| panic!("the cluster has {count} members"))
    }

    /// The URLs of all members, with a comma between them, as `--etcd-servers` takes them.
    #[must_use]
    pub fn urls(&self) -> String {
        self.members.iter().map(EtcdServer::url).collect::<Vec<&str>>().join(",")
    }
}

fn spawn(program: &Path, flags: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(flags).env_clear().stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Removes the data folders of killed test processes. A folder stays while its test process or its server runs.
fn remove_abandoned_folders(base: &Path) {
    if !Path::new("/proc/self").exists() {
        return;
    }
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((process, _)) = name.strip_prefix(FOLDER_PREFIX).and_then(|rest| rest.split_once('-'))
        else {
            continue;
        };
        if !Path::new("/proc").join(process).exists() && !has_server(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether the command line of a running process contains the path of a data folder.
fn has_server(folder: &Path) -> bool {
    let flag = format!("--data-dir={}\0", folder.display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(&flag))
}

/// The URL of a member for its peers.
#[must_use]
pub fn peer_url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// A port that no server uses now.
///
/// # Panics
///
/// No port is free.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.unwrap_or_else(|error| panic!("no free port: {error}")).port()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_ended_test_processes_are_removed() {
        let own = std::process::id();
        let base = std::env::temp_dir().join(format!("abandoned-folders-{own}"));
        // The id is greater than any that Linux gives.
        let [abandoned, used, foreign] =
            [format!("{FOLDER_PREFIX}99999999-0"), format!("{FOLDER_PREFIX}{own}-0"), "foreign".to_owned()]
                .map(|name| base.join(name));
        for folder in [&abandoned, &used, &foreign] {
            fs::create_dir_all(folder.join("member")).expect("a folder");
        }
        remove_abandoned_folders(&base);
        assert!(!abandoned.exists() && used.is_dir() && foreign.is_dir());
        fs::remove_dir_all(&base).expect("the folder is removed");
    }
}
