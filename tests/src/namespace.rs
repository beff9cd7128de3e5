//! Runs a test in its own mount namespace, so that the file systems that it mounts end with its process.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;

/// Environment variable that is set in the process inside the namespace.
const INSIDE: &str = "MOUNT_NAMESPACE_INSIDE";

/// Runs a test that needs mounts in a new mount namespace.
///
/// The function starts this test program again in the namespace, with the test `test` alone; there, the
/// function calls `body`. Without FUSE or namespaces the function prints the reason and skips the test.
pub fn run_inside(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        end_with_parent();
        return body();
    }
    if let Err(why) = check_mount_support() {
        return prerequisites::skip("fuse", &format!("{test}: {why}"));
    }
    let mut command = namespace_command();
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let mut inside = command.env(INSIDE, "1").stdin(Stdio::piped()).spawn().unwrap();
    // Keep the standard input of the process open until it has ended, because its end would end the process.
    let input = inside.stdin.take();
    let status = inside.wait().unwrap();
    drop(input);
    assert!(status.success(), "the test failed; its output is above");
}

/// Builds a command that runs in a new mount namespace.
fn namespace_command() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command
}

/// Checks that FUSE and mount namespaces are available.
fn check_mount_support() -> Result<(), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse: {error}"))?;
    match namespace_command().arg("true").stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("unshare ends with {status}")),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// Ends this process when its standard input closes, which means that the parent process has ended.
fn end_with_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}
