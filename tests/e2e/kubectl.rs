//! Unmodified kubectl of three releases, without special flags, with the Kubernetes preset.
//!
//! # Contract
//!
//! A session is a function with a new server and the kubectl of an administrator as arguments.
//! [`with_each_release`] runs the session once for each of [`RELEASES`]; it skips a release that is not
//! installed and prints the reason. kubectl writes its configuration, discovery cache and all other files to
//! the directory of the server.

mod access;
mod changes;
mod cluster_scope;
mod containers;
mod definitions;
mod first_ports;
mod generators;
mod manifest_directory;
mod quotas;
mod requests;
mod scale;
mod server_info;
mod svc_preset;
mod table;

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

/// The tested releases: the oldest, the newest, and one in between.
pub const RELEASES: [&str; 3] = ["1.27", "1.30", "1.33"];

/// Path of the kubectl of a release, or `None` if its tests are skipped.
pub fn installed(release: &str) -> Option<PathBuf> {
    let found = find(release);
    if found.is_none() {
        let name = format!("kubectl {release}");
        prerequisites::skip(
            &name,
            "kubectl on PATH has another version, and kubectl.<release> is not in its folder",
        );
    }
    found
}

/// `kubectl.<release>` in the folder of `kubectl`, or `kubectl` on PATH if it has this release.
fn find(release: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let first = std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.exists())?;
    let versioned_kubectl = first.canonicalize().ok()?.with_file_name(format!("kubectl.{release}"));
    if versioned_kubectl.exists() {
        return Some(versioned_kubectl);
    }
    let output = Command::new(&first).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: Value = serde_json::from_slice(&output.stdout).ok()?;
    let found = version["clientVersion"]["gitVersion"].as_str()?.to_owned();
    found.starts_with(&format!("v{release}.")).then_some(first)
}

/// Runs a session with each release, each on a new server.
pub async fn with_each_release(session: fn(&ControlPlane, &Kubectl)) {
    for release in RELEASES {
        let Some(program) = installed(release) else {
            continue;
        };
        let plane = ControlPlane::start(Options::kubernetes()).await;
        let kubectl = Kubectl::new(program, release, &plane, "admin");
        let ended = tokio::task::spawn_blocking(move || session(&plane, &kubectl)).await;
        if let Err(error) = ended {
            panic!("kubectl {release}: {error}");
        }
    }
}

/// kubectl with the kubeconfig of one user.
pub struct Kubectl {
    program: PathBuf,
    release: String,
    config: PathBuf,
}

impl Kubectl {
    /// Writes a kubeconfig with the static token of the user.
    pub fn new(program: PathBuf, release: &str, plane: &ControlPlane, user: &str) -> Self {
        let config = plane.dir().join(format!("{user}.kubeconfig"));
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": {"server": plane.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": user, "user": {"token": format!("{user}-token")}}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": user}}],
        });
        fs::write(&config, content.to_string()).expect("the configuration file");
        Kubectl { program, release: release.to_owned(), config }
    }

    /// The same program with the kubeconfig of a given user.
    pub fn user(&self, plane: &ControlPlane, user: &str) -> Self {
        Kubectl::new(self.program.clone(), &self.release, plane, user)
    }

    /// The release, one of [`RELEASES`].
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The home directory, with all files that kubectl writes.
    pub fn home(&self) -> &Path {
        self.config.parent().expect("a folder")
    }

    /// Runs a command line; `'…'` quotes blanks.
    pub fn run(&self, line: &str, stdin: &str) -> CommandResult {
        CommandResult::new(line, self.output(self.command(line), stdin))
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub fn ok(&self, line: &str, stdin: &str) -> String {
        let ran = self.run(line, stdin);
        assert!(ran.status.success(), "{ran}");
        ran.out
    }

    /// Runs a command that must fail, and returns its output.
    pub fn must_fail(&self, line: &str) -> String {
        self.must_fail_with_stdin(line, "")
    }

    /// Runs a command with standard input that must fail, and returns its output.
    pub fn must_fail_with_stdin(&self, line: &str, stdin: &str) -> String {
        let ran = self.run(line, stdin);
        assert!(!ran.status.success(), "the command succeeded, but must fail: {ran}");
        format!("{}{}", ran.out, ran.err)
    }

    /// Runs `kubectl edit` with this command as editor; the command must succeed.
    pub fn edit(&self, line: &str, editor: &str) -> String {
        let mut command = self.command(line);
        command.env("EDITOR", editor).env_remove("KUBE_EDITOR");
        let ran = CommandResult::new(line, self.output(command, ""));
        assert!(ran.status.success(), "{ran}");
        ran.out
    }

    /// Starts a command in the background; the drop kills the process.
    pub fn start(&self, line: &str) -> BackgroundCommand {
        let mut command = self.command(line);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("kubectl starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        BackgroundCommand { child, lines }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", self.home())
            .env_remove("KUBECONFIG")
            .arg("--kubeconfig")
            .arg(&self.config)
            .args(words(line));
        command
    }

    fn output(&self, mut command: Command, stdin: &str) -> Output {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut pipe = child.stdin.take().expect("a pipe");
        let bytes = stdin.as_bytes().to_vec();
        // A command may exit without reading its input; ignore the closed pipe.
        let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
        let output = child.wait_with_output().expect("kubectl exits");
        writer.join().expect("the writer exits");
        output
    }
}

/// Splits a line at blanks outside `'…'`.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (index, part) in line.split('\'').enumerate() {
        let is_quoted = index % 2 == 1;
        for c in part.chars() {
            match words.last_mut() {
                Some(word) if is_quoted || c != ' ' => word.push(c),
                _ => words.push(String::new()),
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Result of a command.
pub struct CommandResult {
    line: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl CommandResult {
    fn new(line: &str, output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        CommandResult {
            line: line.to_owned(),
            status: output.status,
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl std::fmt::Display for CommandResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kubectl {} ({})\n{}{}", self.line, self.status, self.out, self.err)
    }
}

/// A command that runs in the background.
pub struct BackgroundCommand {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl BackgroundCommand {
    /// Reads the next line of standard output.
    pub fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    /// Waits for the exit and returns whether the command succeeded.
    pub fn succeeded(mut self) -> bool {
        self.child.wait().expect("kubectl exits").success()
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
