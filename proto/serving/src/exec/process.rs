//! Finds and runs a program with limits on output and time, and kills it if it exceeds them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

/// Maximum output of a plugin in bytes.
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;
/// Number of attempts to start a program whose file is still open for writing (`ETXTBSY`).
const BUSY_ATTEMPTS: u32 = 20;
/// Pause between two attempts to start a program whose file is open for writing.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Searches a bare name in the absolute directories of `PATH`.
///
/// Relative directories are ignored: the working directory of the process is arbitrary.
pub(super) fn find_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    find(name, &path)
}

fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Failure of a run. Each text continues "the credential plugin …".
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error("cannot be run: {0}")]
    Start(#[source] std::io::Error),
    #[error("was ended because it took longer than {0:?}")]
    Timeout(Duration),
    #[error("printed output that cannot be read: {0}")]
    Output(#[source] std::io::Error),
    #[error("printed more than {MAX_OUTPUT_BYTES} bytes")]
    TooMuchOutput,
    #[error("failed: {0}")]
    Status(std::process::ExitStatus),
}

/// Runs a program and returns its standard output.
pub(super) async fn run(
    mut command: Command,
    input: Option<&File>,
    timeout: Duration,
) -> Result<Vec<u8>, RunError> {
    match input {
        Some(file) => {
            command.stdin(Stdio::from(file.try_clone().map_err(RunError::Start)?));
        }
        // The program gets its own process group, so that the whole group can be killed. With standard input
        // it stays in this process's group, because only the foreground group of a terminal can read from it.
        None => {
            command.stdin(Stdio::null()).process_group(0);
        }
    }
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = spawn(&mut command).await.map_err(RunError::Start)?;
    let mut group = ProcessGroup(if input.is_none() { child.id() } else { None });
    let mut output = Vec::new();
    let run_future = async {
        if let Some(stdout) = child.stdout.take() {
            stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await?;
        }
        if output.len() as u64 > MAX_OUTPUT_BYTES {
            return Ok(None);
        }
        child.wait().await.map(Some)
    };
    match tokio::time::timeout(timeout, run_future).await {
        Err(_) => Err(RunError::Timeout(timeout)),
        Ok(Err(e)) => Err(RunError::Output(e)),
        Ok(Ok(None)) => Err(RunError::TooMuchOutput),
        Ok(Ok(Some(status))) => {
            group.0 = None;
            if status.success() { Ok(output) } else { Err(RunError::Status(status)) }
        }
    }
}

async fn spawn(command: &mut Command) -> std::io::Result<Child> {
    let mut attempts = 1;
    loop {
        match command.spawn() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy && attempts < BUSY_ATTEMPTS => {
                attempts += 1;
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Process group of a running program; killed on drop. None if the program has ended or has no own group.
struct ProcessGroup(Option<u32>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let Some(pid) = self.0.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) else { return };
        // The group may have ended already; there is no remedy for a group that cannot be killed.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_names_are_searched_in_absolute_path_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("first"), dir.path().join("second"));
        for folder in [&first, &second] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("plugin"), "").unwrap();
        }
        let path = std::env::join_paths([Path::new("."), &first, &second]).unwrap();
        assert_eq!(find("plugin", &path), None, "the file is not executable");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(second.join("plugin"), executable).unwrap();
        assert_eq!(find("plugin", &path), Some(second.join("plugin")));
        assert_eq!(find("first", &std::env::join_paths([dir.path()]).unwrap()), None, "a folder");
        assert_eq!(find("absent", &path), None);
    }
}
