//! One control plane: apid with the authd that it starts.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use jiff::Timestamp;
use serde_json::{Value, json};
use serving::certs::{Authority, PemPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::Client;
use super::eventually;

/// Token file of every control plane; a line contains token, user, uid and groups.
pub const TOKENS: &str = "admin-token,admin,admin-uid,system:masters\n\
                          alice-token,alice,alice-uid,team-a\n\
                          bob-token,bob,bob-uid,\"team-a,team-b\"\n\
                          carol-token,carol,carol-uid\n";

/// Start options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names preset.
    pub preset: Preset,
    /// `--authorization-mode`; empty: the flag is omitted.
    pub mode: String,
    /// Whether authd creates the ConfigMap `kube-root-ca.crt` in each namespace, as it does by default.
    pub publishes_root_ca: bool,
    /// Further flags of apid.
    pub flags: Vec<String>,
    /// `--data-dir`, if not below [`ControlPlane::dir`].
    pub data_dir: Option<PathBuf>,
    /// Folder of users and certificates that several control planes share; [`ControlPlane::dir`] if None.
    pub shared_dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            preset: Preset::Svc,
            mode: "Node,RBAC".to_owned(),
            publishes_root_ca: false,
            flags: Vec::new(),
            data_dir: None,
            shared_dir: None,
        }
    }
}

impl Options {
    /// Returns options with the names preset `kubernetes`.
    pub fn kubernetes() -> Self {
        Options { preset: Preset::Kubernetes, ..Options::default() }
    }

    /// Adds a flag.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }
}

/// Running control plane.
pub struct ControlPlane {
    options: Options,
    dir: TempDir,
    authority: Authority,
    process: Option<Child>,
    port: u16,
    starts: usize,
}

impl ControlPlane {
    /// Starts on an empty store and waits until ready.
    pub async fn start(options: Options) -> ControlPlane {
        let mut plane = ControlPlane::new_stopped(options);
        plane.launch().await;
        plane
    }

    /// Creates the directory of a control plane without starting a process.
    pub fn new_stopped(options: Options) -> ControlPlane {
        let dir = tempfile::Builder::new().prefix("plane-").tempdir().expect("a temporary directory");
        let authority = match &options.shared_dir {
            Some(shared) => prepare_users(shared),
            None => prepare_users(dir.path()),
        };
        ControlPlane { options, dir, authority, process: None, port: 0, starts: 0 }
    }

    /// Starts apid on the existing data and waits until it is ready. The port may change.
    pub async fn launch(&mut self) {
        drop(fs::remove_file(self.port_file()));
        self.starts += 1;
        let log = File::create(self.log_path()).expect("the log file");
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        self.process = Some(command.spawn().expect("apid starts"));
        self.port = eventually("apid writes its port", || async { self.written_port() }).await;
        let client = self.anonymous();
        eventually("apid is ready", || async {
            self.assert_running();
            matches!(client.try_request("GET", "/readyz", &[], b"").await, Ok(a) if a.status == 200)
                .then_some(())
        })
        .await;
    }

    /// Stops apid and starts it again on the same data. `flags` replace the further flags.
    pub async fn relaunch_with(&mut self, flags: &[&str]) {
        self.stop().await;
        self.options.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        self.launch().await;
    }

    /// Returns the command line, also for tests that expect the start to fail.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program("apid"));
        command
            .arg("--spawn-authd")
            .arg("--authd-program")
            .arg(program("authd"))
            .args(["--names", self.options.preset.as_str()])
            .arg("--data-dir")
            .arg(self.data_dir())
            .args(["--bind-address", "127.0.0.1", "--secure-port", "0"])
            .arg("--token-auth-file")
            .arg(self.users().join("tokens.csv"))
            .arg("--client-ca-file")
            .arg(self.users().join("client-ca.crt"))
            .args(&self.options.flags);
        let has_controllers = self.options.flags.iter().any(|flag| flag.starts_with("--controllers"));
        if !self.options.publishes_root_ca && !has_controllers {
            // The publisher of `kube-root-ca.crt` is off, because tests count ConfigMaps.
            command.arg("--controllers=*,-root-ca-certificate-publisher-controller");
        }
        if !self.options.mode.is_empty() {
            command.args(["--authorization-mode", &self.options.mode]);
        }
        command
    }

    /// Returns the folder of the token file and of the authority for client certificates.
    fn users(&self) -> &Path {
        self.options.shared_dir.as_deref().unwrap_or(self.dir.path())
    }

    /// Whether apid was started and was neither stopped nor killed since.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let pid = rustix::process::Pid::from_child(&process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        eventually("apid ends after SIGTERM", || {
            let ended = process.try_wait().expect("the process is ours");
            async move { ended }
        })
        .await;
    }

    /// Sends SIGKILL to apid and waits for its end.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.kill());
            drop(process.wait());
        }
    }

    /// Sends a signal to apid alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.process.as_ref().expect("apid runs"));
        rustix::process::kill_process(pid, signal).expect("apid runs");
    }

    /// Sends SIGKILL to authd alone; apid starts it again.
    ///
    /// Returns the process ids of the killed processes; none if authd does not run.
    pub fn kill_authd(&self) -> Vec<u32> {
        self.signal_authd(rustix::process::Signal::KILL)
    }

    /// Sends a signal to authd alone. Returns the process ids of the processes that got it.
    pub fn signal_authd(&self, signal: rustix::process::Signal) -> Vec<u32> {
        let send = |pid: &u32| {
            let pid =
                i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
            rustix::process::kill_process(pid, signal).is_ok()
        };
        self.authd_pids().into_iter().filter(send).collect()
    }

    /// Stops apid and starts it again on the same data, with a further flag.
    pub async fn relaunch_with_further(&mut self, flag: &str) {
        self.stop().await;
        self.options.flags.push(flag.to_owned());
        self.launch().await;
    }

    /// Returns the process id of apid.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("apid runs").id()
    }

    /// Returns the process ids of the children of apid, which are authd.
    pub fn authd_pids(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        tasks
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .collect()
    }

    /// Returns a client with the token of a user of [`TOKENS`].
    pub fn user(&self, name: &str) -> Client {
        Client::new(self.port, Some(format!("{name}-token")))
    }

    /// Returns a client of the user in group `system:masters`.
    pub fn admin(&self) -> Client {
        self.user("admin")
    }

    /// Returns a client with a certificate of the authority that the server trusts.
    pub fn certificate(&self, user: &str, groups: &[&str]) -> Client {
        let pair = self.certificate_pair(user, groups);
        Client::with_certificate(self.port, &pair.cert, &pair.key)
    }

    /// Returns a client with a certificate that verifies the server by the authorities in a file.
    pub fn verifying(&self, user: &str, groups: &[&str], authorities: &Path) -> Client {
        let pair = self.certificate_pair(user, groups);
        let authorities = fs::read_to_string(authorities).expect("the authorities");
        Client::verifying(self.port, &pair.cert, &pair.key, &authorities)
    }

    fn certificate_pair(&self, user: &str, groups: &[&str]) -> PemPair {
        let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        let pair = self.authority.client(user, &groups, Duration::from_secs(3600), Timestamp::now());
        pair.expect("a client certificate")
    }

    /// Returns a client without credentials.
    pub fn anonymous(&self) -> Client {
        Client::new(self.port, None)
    }

    /// Returns a client with any token.
    pub fn token(&self, token: &str) -> Client {
        Client::new(self.port, Some(token.to_owned()))
    }

    /// Returns `https://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Returns the names of the preset.
    pub fn names(&self) -> Names {
        Names::new(self.options.preset, DEFAULT_API_DOMAIN).expect("valid names")
    }

    /// Returns `/apis/<group of the stem>/<version>`.
    pub fn api(&self, stem: &str, version: &str) -> String {
        format!("/apis/{}/{version}", self.names().group(stem))
    }

    /// Creates a role and a binding of the same name: in a namespace, or cluster-wide for the namespace `""`.
    ///
    /// `subject` is `KIND/NAME`, such as `User/alice`.
    pub async fn grant(&self, namespace: &str, name: &str, subject: &str, rules: &Value) {
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        let role = json!({"metadata": {"name": name}, "rules": rules});
        self.admin().post(&self.rbac_path(namespace, &kind.to_lowercase()), &role).await.expect(201);
        self.bind(namespace, name, &format!("{kind}/{name}"), subject).await;
    }

    /// Binds a subject to a role, both `KIND/NAME`: in a namespace, or cluster-wide for the namespace `""`.
    pub async fn bind(&self, namespace: &str, name: &str, role: &str, subject: &str) {
        let (role_kind, role_name) = role.split_once('/').expect("KIND/NAME");
        let (kind, subject_name) = subject.split_once('/').expect("KIND/NAME");
        let group = self.names().group("rbac.authorization");
        let binding = json!({
            "metadata": {"name": name}, "subjects": [{"kind": kind, "name": subject_name}],
            "roleRef": {"apiGroup": group, "kind": role_kind, "name": role_name},
        });
        let resource = if namespace.is_empty() { "clusterrolebinding" } else { "rolebinding" };
        self.admin().post(&self.rbac_path(namespace, resource), &binding).await.expect(201);
    }

    /// Returns the path of the roles or bindings of a namespace, or of the cluster-wide ones.
    fn rbac_path(&self, namespace: &str, resource: &str) -> String {
        let group = self.api("rbac.authorization", "v1");
        match namespace {
            "" => format!("{group}/{resource}s"),
            _ => format!("{group}/namespaces/{namespace}/{resource}s"),
        }
    }

    /// Returns the directory of this test, which is removed with the plane.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the body of a response of authd over plain HTTP; requires `--metrics-address=127.0.0.1:0`.
    pub async fn authd_get(&self, path: &str) -> String {
        let address = eventually("authd says where it listens", || async {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("serving metrics and health"))?;
            line.split("address=").nth(1)?.split_whitespace().next().map(str::to_owned)
        })
        .await;
        let mut stream = TcpStream::connect(&address).await.expect("authd listens");
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("the response");
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).expect("a body")
    }

    /// Returns `--data-dir`.
    pub fn data_dir(&self) -> PathBuf {
        self.options.data_dir.clone().unwrap_or_else(|| self.dir.path().join("data"))
    }

    /// Returns the log of the processes since the last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join(format!("log-{}", self.starts))
    }

    fn port_file(&self) -> PathBuf {
        self.data_dir().join("apid.port")
    }

    fn written_port(&self) -> Option<u16> {
        let port = fs::read_to_string(self.port_file()).ok().and_then(|text| text.trim().parse().ok());
        if port.is_none() {
            self.assert_running();
        }
        port
    }

    fn assert_running(&self) {
        let pid = self.pid();
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ended = state.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'));
        assert!(!ended, "apid ended:\n{}", self.log());
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.kill();
        // authd need not be stopped: it ends when apid no longer holds the pipe to its standard input.
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(4000);
            eprintln!("--- end of the log of the processes\n{}", log.get(tail..).unwrap_or(&log));
        }
    }
}

/// Writes the token file and the authority for client certificates into a folder, or keeps existing ones. Returns the
/// authority.
pub(super) fn prepare_users(folder: &Path) -> Authority {
    let tokens = folder.join("tokens.csv");
    if !tokens.exists() {
        fs::write(tokens, TOKENS).expect("the token file");
    }
    let (cert, key) = (folder.join("client-ca.crt"), folder.join("client-ca.key"));
    Authority::ensure(&cert, &key, "client-ca", Timestamp::now())
        .expect("an authority for client certificates")
}

/// Returns the path of a program of this workspace, in the [`program_folder`].
pub fn program(name: &str) -> PathBuf {
    let program = program_folder().join(name);
    assert!(
        program.exists(),
        "{} is missing: run `cargo test --workspace`, or `cargo build -p apid -p authd` first",
        program.display()
    );
    program
}

/// Folder of apid and authd: `PROFILE_DIR`, relative to the root of the repository, or the [`build_folder`].
pub fn program_folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the workspace");
    match std::env::var_os("PROFILE_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => root.join(folder),
        None => build_folder(),
    }
}

/// Folder of the programs built by the same command as this test.
pub fn build_folder() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().and_then(Path::parent).expect("target/<profile>/deps").to_owned()
}
