//! What apid's log says, at the default level, of an authd that it cannot use.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{eventually, program};

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// apid that dials a socket, with its log in a file.
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

/// The line of the log that says that authd does not decide.
async fn complaint(dir: &Path) -> String {
    eventually("the log says what is missing", || async {
        let log = std::fs::read_to_string(dir.join("log")).ok()?;
        log.split_inclusive('\n')
            .find(|line| line.ends_with('\n') && line.contains("authd does not decide"))
            .map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn a_socket_nobody_listens_on_is_named_with_the_reason() {
    let dir = tempfile::tempdir().expect("a folder");
    let socket = dir.path().join("nobody");
    let _apid = apid(dir.path(), &socket);
    let line = complaint(dir.path()).await;
    assert!(line.contains("WARN"), "{line}");
    assert!(line.contains(&socket.display().to_string()), "{line}");
    assert!(line.contains("cannot be reached") && line.contains("No such file"), "{line}");
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
    let line = complaint(dir.path()).await;
    assert!(line.contains("WARN"), "{line}");
    for said in ["svc svc.internal", "kubernetes", "start both with the same"] {
        assert!(line.contains(said), "{said}: {line}");
    }
}
