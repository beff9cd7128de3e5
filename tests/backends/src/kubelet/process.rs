//! Commands of exec and attach as child processes.

use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::{Query, State};

/// Standard output of a command, as a channel.
pub(super) const STDOUT: u8 = 1;
/// Standard error of a command, as a channel.
pub(super) const STDERR: u8 = 2;
/// The Status at the end of a command, as a channel.
pub(super) const ERROR: u8 = 3;

/// The main process of a container, to which attach connects.
const MAIN_PROCESS: &str = "echo attached; cat";

/// Input of a client for a command.
pub(super) enum Input {
    Data(Bytes),
    /// The end of standard input.
    End,
    /// A size of the terminal in JSON.
    Size(Bytes),
}

/// A command and its streams.
pub(super) struct CommandRequest {
    command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl CommandRequest {
    pub(super) fn new(query: &Query, is_attach: bool) -> Self {
        let command = match is_attach {
            true => vec!["sh".to_owned(), "-c".to_owned(), MAIN_PROCESS.to_owned()],
            false => query.all("command").map(str::to_owned).collect(),
        };
        let tty = query.switch("tty");
        CommandRequest {
            command,
            stdin: query.switch("input"),
            stdout: query.switch("output"),
            stderr: query.switch("error") && !tty,
            tty,
        }
    }

    /// Runs the command. Its output goes to `output` with its channel, the Status at the end to [`ERROR`].
    ///
    /// The command is killed when the future is dropped.
    pub(super) async fn run(
        &self,
        state: &Arc<State>,
        input: mpsc::Receiver<Input>,
        output: mpsc::Sender<(u8, Bytes)>,
    ) {
        let status = match self.run_process(state, input, &output).await {
            Ok(status) => status,
            Err(error) => json!({"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("error executing command in container: {error}")}),
        };
        drop(output.send((ERROR, status.to_string().into())).await);
    }

    async fn run_process(
        &self,
        state: &Arc<State>,
        mut input: mpsc::Receiver<Input>,
        output: &mpsc::Sender<(u8, Bytes)>,
    ) -> std::io::Result<Value> {
        let mut command = self.command();
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.stdin(if self.stdin { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let state = Arc::clone(state);
        let feed = tokio::spawn(async move {
            let mut stdin = stdin;
            while let Some(event) = input.recv().await {
                match event {
                    Input::Data(data) => {
                        if let Some(pipe) = &mut stdin
                            && pipe.write_all(&data).await.is_err()
                        {
                            stdin = None;
                        }
                    }
                    Input::End => stdin = None,
                    Input::Size(size) => {
                        state.sizes.lock().push(String::from_utf8_lossy(&size).trim().to_owned());
                    }
                }
            }
        });
        let copy_stdout = copy(stdout, STDOUT, self.stdout, output);
        let copy_stderr = copy(stderr, STDERR, self.stderr, output);
        let (status, (), ()) = tokio::join!(child.wait(), copy_stdout, copy_stderr);
        feed.abort();
        Ok(match status?.code() {
            Some(0) => json!({"metadata": {}, "status": "Success"}),
            code => {
                let code = code.unwrap_or(137).to_string();
                json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                    "message": format!("command terminated with non-zero exit code: {code}"),
                    "details": {"causes": [{"reason": "ExitCode", "message": code}]}})
            }
        })
    }

    /// Returns the command, in a pseudo terminal if the client requests one.
    fn command(&self) -> Command {
        if self.tty {
            let quoted: Vec<String> =
                self.command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            let mut command = Command::new("script");
            command.args(["-qefc", &quoted.join(" "), "/dev/null"]);
            return command;
        }
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words);
        command
    }
}

/// Copies an output of a process, or discards an output that no client requests.
async fn copy(
    pipe: Option<impl AsyncRead + Unpin>,
    channel: u8,
    is_requested: bool,
    output: &mpsc::Sender<(u8, Bytes)>,
) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        let data = Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default());
        if is_requested && output.send((channel, data)).await.is_err() {
            return;
        }
    }
}
