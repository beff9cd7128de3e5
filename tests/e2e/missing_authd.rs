//! Log lines of apid at the default level about an authd that it cannot reach or use.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{eventually, program};

/// Time limit for a log line, longer than the one-minute interval between two warnings.
///
/// On a slow machine the first warning may only report that the connection is not established yet.
const TWO_COMPLAINTS: Duration = Duration::from_secs(100);

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts apid with the given authd socket and its log in a file.
fn apid(dir: &Path, socket: &Path) -> Running {
    let log = std::fs::File::create(dir.join("log")).expect("a log");
    let child = Command::new(program("apid"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0"])
        .arg(format!("--data-dir={}", dir.join("data").display()))
        .arg(format!("--authd-socket={}", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Running(child.expect("apid starts"))
}

/// Waits for a warning "authd does not decide" in the log that contains every given text.
async fn complains(dir: &Path, said: &[&str]) {
    let complaints = || {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.filter(|line| line.contains("authd does not decide")).map(str::to_owned).collect::<Vec<_>>()
    };
    let meant = |line: &String| line.contains("WARN") && said.iter().all(|words| line.contains(words));
    let heard = tokio::time::timeout(TWO_COMPLAINTS, async {
        while !complaints().iter().any(meant) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(heard.await.is_ok(), "no log line contains {said:?}: {:?}", complaints());
}

#[tokio::test]
async fn a_socket_nobody_listens_on_is_named_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("missing");
    let _apid = apid(dir.path(), &socket);
    let named = socket.display().to_string();
    complains(dir.path(), &[&named, "cannot be reached", "No such file"]).await;
}

#[tokio::test]
async fn an_authd_of_other_names_is_told_from_one_that_is_not_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("authd");
    let authd = Command::new(program("authd"))
        .args(["--names=kubernetes", "--authorization-mode=RBAC"])
        .arg(format!("--socket={}", socket.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _authd = Running(authd.expect("authd starts"));
    eventually("authd listens", || async { socket.exists().then_some(()) }).await;
    let _apid = apid(dir.path(), &socket);
    complains(dir.path(), &["svc svc.internal", "kubernetes", "start both with the same"]).await;
}
