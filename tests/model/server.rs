//! The server under test: a real apid, with the authd that it starts, on a store of the test's choice.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::harness::program;

use crate::connection::{Address, Connection, Protocol};

/// The token of the clients.
const TOKEN: &str = "model-token";

/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a server keeps what it has, and how it is started.
pub struct Home {
    dir: PathBuf,
    /// `--history-retention`
    pub retention: Duration,
    /// `--feature-gates`
    gates: &'static str,
    starts: usize,
}

/// A running server. Dropping it kills it.
pub struct Server {
    process: Child,
    /// Where it listens.
    pub address: Address,
    log: PathBuf,
}

/// Why a server does not run.
#[derive(Debug)]
pub struct Refusal {
    /// Its exit code; None when it had to be killed.
    pub status: Option<ExitStatus>,
    /// What it wrote.
    pub log: String,
}

impl Home {
    /// In an empty directory.
    pub fn new(dir: &Path, retention: Duration, gates: &'static str) -> Home {
        fs::create_dir_all(dir.join("data/store")).expect("a data directory");
        let users = format!("{TOKEN},model,model-uid,system:masters\n");
        fs::write(dir.join("tokens.csv"), users).expect("a token file");
        Home { dir: dir.to_owned(), retention, gates, starts: 0 }
    }

    /// The directory of the store: a file system may be mounted there.
    pub fn store(&self) -> PathBuf {
        self.dir.join("data/store")
    }

    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    ///
    /// It ends, or is not ready in time.
    pub async fn start(&mut self) -> Result<Server, Refusal> {
        self.starts += 1;
        let data = self.dir.join("data");
        let port_file = data.join("apid.port");
        drop(fs::remove_file(&port_file));
        let log = self.dir.join(format!("log-{}", self.starts));
        let out = File::create(&log).expect("a log file");
        let (apid, authd) = programs();
        let mut command = Command::new(apid);
        command
            .arg("--spawn-authd")
            .arg("--authd-program")
            .arg(authd)
            .arg("--data-dir")
            .arg(&data)
            .args(["--bind-address", "127.0.0.1", "--secure-port", "0"])
            .arg("--token-auth-file")
            .arg(self.dir.join("tokens.csv"))
            .args(["--history-retention", &format!("{}s", self.retention.as_secs())])
            .args(["--feature-gates", self.gates])
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out);
        let process = command.spawn().expect("apid starts");
        let mut server = Server { process, address: Address { port: 0, token: TOKEN }, log };
        let begun = Instant::now();
        loop {
            if let Some(status) = server.process.try_wait().expect("the process is ours") {
                return Err(Refusal { status: Some(status), log: server.log() });
            }
            if begun.elapsed() > PATIENCE {
                server.kill();
                return Err(Refusal { status: None, log: server.log() });
            }
            if let Some(port) = fs::read_to_string(&port_file).ok().and_then(|text| text.trim().parse().ok())
            {
                server.address.port = port;
                if server.is_ready().await {
                    return Ok(server);
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Server {
    async fn is_ready(&self) -> bool {
        let ask = async {
            let mut connection = Connection::open(self.address, Protocol::Http1).await?;
            connection.ask("GET", "/readyz", "application/json", &Value::Null).await
        };
        matches!(ask.await, Ok(answer) if answer.code == 200)
    }

    /// SIGKILL; when this answers, nothing more happens.
    pub fn kill(&mut self) {
        // It may have ended by itself; either way it is gone afterwards.
        drop(self.process.kill());
        drop(self.process.wait());
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The programs under test: those built beside this test, or others (`MODEL_PROGRAMS`, a folder).
fn programs() -> (PathBuf, PathBuf) {
    match std::env::var_os("MODEL_PROGRAMS") {
        Some(folder) => {
            let folder = PathBuf::from(folder);
            (folder.join("apid"), folder.join("authd"))
        }
        None => (program("apid"), program("authd")),
    }
}
