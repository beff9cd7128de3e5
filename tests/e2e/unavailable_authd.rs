//! Log lines of apid at the default level about an authd that it cannot reach or use.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tests::harness::{eventually, program};

/// Time limit for a log line, longer than the one-minute interval between two warnings.
///
/// On a slow machine the first warning may only report that the connection is not established yet.
const LOG_TIMEOUT: Duration = Duration::from_secs(100);

/// A process that is killed when the test ends.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts apid with the given authd socket and its log in a file.
fn apid(dir: &Path, socket: &Path) -> KillOnDrop {
    let log = std::fs::File::create(dir.join("log")).expect("a log");
    let child = Command::new(program("apid"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0"])
        .arg(format!("--data-dir={}", dir.join("data").display()))
        .arg(format!("--authd-socket={}", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    KillOnDrop(child.expect("apid starts"))
}

/// Waits for a warning "authd is unavailable" in the log that contains every given text.
async fn wait_for_warning(dir: &Path, texts: &[&str]) {
    let warnings = || {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.filter(|line| line.contains("authd is unavailable")).map(str::to_owned).collect::<Vec<_>>()
    };
    let matches = |line: &String| line.contains("WARN") && texts.iter().all(|words| line.contains(words));
    let found = tokio::time::timeout(LOG_TIMEOUT, async {
        while !warnings().iter().any(matches) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(found.await.is_ok(), "no log line contains {texts:?}: {:?}", warnings());
}

#[tokio::test]
async fn unreachable_authd_socket_is_logged_with_path_and_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("missing");
    let _apid = apid(dir.path(), &socket);
    let named = socket.display().to_string();
    wait_for_warning(dir.path(), &[&named, "cannot be reached", "No such file"]).await;
}

#[tokio::test]
async fn authd_with_different_names_is_logged_as_mismatch() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("authd");
    let authd = Command::new(program("authd"))
        .args(["--names=kubernetes", "--authorization-mode=RBAC"])
        .arg(format!("--socket={}", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _authd = KillOnDrop(authd.expect("authd starts"));
    eventually("authd listens", || async { socket.exists().then_some(()) }).await;
    let _apid = apid(dir.path(), &socket);
    wait_for_warning(dir.path(), &["svc svc.internal", "kubernetes", "start both with the same"]).await;
}
