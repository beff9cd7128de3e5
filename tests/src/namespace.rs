//! A test that mounts file systems, in a mount namespace of its own: however it ends, its mounts end with it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;

/// Set in the process that runs in the namespace.
const INSIDE: &str = "MOUNT_NAMESPACE_INSIDE";

/// Runs a test where it may mount: this program starts itself again in a mount namespace of its own, with this test alone,
/// and there calls `body`. Where FUSE or namespaces are not to be had, says so and does nothing.
///
/// `test` is the test's whole name, as the harness prints it.
pub fn run_inside(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        end_with_parent();
        return body();
    }
    if let Err(why) = can_mount() {
        return prerequisites::skip("fuse", &format!("{test}: {why}"));
    }
    let mut command = in_namespace();
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture", "--test-threads=1"]);
    let mut inside = command.env(INSIDE, "1").stdin(Stdio::piped()).spawn().unwrap();
    // Its input stays open until it has ended.
    let input = inside.stdin.take();
    let status = inside.wait().unwrap();
    drop(input);
    assert!(status.success(), "see above");
}

/// A command in a mount namespace of its own.
fn in_namespace() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command
}

/// Whether FUSE and mount namespaces are to be had.
fn can_mount() -> Result<(), String> {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    device.map_err(|error| format!("/dev/fuse: {error}"))?;
    match in_namespace().arg("true").stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("unshare ends with {status}")),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

/// The end of the input is the end of the process that started this one.
fn end_with_parent() {
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
}
