//! Server under test: a real apid, with the authd that it starts, on a given store.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::SmallRng;
use serde_json::Value;
use tests::harness::program;

use crate::model::connection::{Address, Connection, Protocol};

/// Bearer token of the clients.
const TOKEN: &str = "model-token";

/// Time limit for the start of a server.
const START_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Data directory and start options of a server.
pub struct ServerHome {
    dir: PathBuf,
    /// Value of `--history-retention`.
    retention: Duration,
    /// Value of `--feature-gates`.
    gates: &'static str,
    starts: usize,
}

/// Running server. Drop kills it.
pub struct Server {
    process: Child,
    address: Address,
    log: PathBuf,
}

/// The servers of one store, between which clients choose.
pub struct Servers {
    /// Ports on the loopback address. A server that does not run keeps its last port.
    ports: Arc<[AtomicU16]>,
    token: &'static str,
    /// Responses 5xx of failing parts; None if no part fails, so that such a response is a violation.
    undecided: Option<AtomicU64>,
}

impl Servers {
    /// Returns the servers of a cluster whose members fail during a session.
    pub fn failing(ports: Arc<[AtomicU16]>, token: &'static str) -> Servers {
        Servers { ports, token, undecided: Some(AtomicU64::new(0)) }
    }

    /// Returns the address of a random server.
    pub fn random(&self, random: &mut SmallRng) -> Address {
        let port = match &*self.ports {
            [port] => port,
            ports => &ports[random.random_range(0..ports.len())],
        };
        Address { port: port.load(Ordering::SeqCst), token: self.token }
    }

    /// Whether a client with a connection takes another server for its next request.
    pub fn leaves(&self, random: &mut SmallRng) -> bool {
        self.ports.len() > 1 && random.random_bool(0.15)
    }

    /// Whether a response says nothing, because a part of the servers fails, and counts the response.
    pub fn is_undecided(&self, code: u16) -> bool {
        let Some(counter) = self.undecided.as_ref().filter(|_| code >= 500) else { return false };
        counter.fetch_add(1, Ordering::SeqCst);
        true
    }

    /// Returns the number of responses that said nothing.
    pub fn undecided(&self) -> u64 {
        self.undecided.as_ref().map_or(0, |counter| counter.load(Ordering::SeqCst))
    }
}

/// Failed start of a server.
#[derive(Debug)]
pub struct StartFailure {
    /// Exit status; None if the server had to be killed.
    pub status: Option<ExitStatus>,
    /// Log of the server.
    pub log: String,
}

impl ServerHome {
    /// Creates the data directory and the token file in an empty directory.
    pub fn new(dir: &Path, retention: Duration, gates: &'static str) -> ServerHome {
        fs::create_dir_all(dir.join("data/store")).expect("a data directory");
        let users = format!("{TOKEN},model,model-uid,system:masters\n");
        fs::write(dir.join("tokens.csv"), users).expect("a token file");
        ServerHome { dir: dir.to_owned(), retention, gates, starts: 0 }
    }

    /// Returns the directory of the store, where a file system may be mounted.
    pub fn store(&self) -> PathBuf {
        self.dir.join("data/store")
    }

    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    ///
    /// The server ends, or is not ready in time.
    pub async fn start(&mut self) -> Result<Server, StartFailure> {
        self.starts += 1;
        let data = self.dir.join("data");
        let port_file = data.join("apid.port");
        drop(fs::remove_file(&port_file));
        let log = self.dir.join(format!("log-{}", self.starts));
        let out = File::create(&log).expect("a log file");
        let mut command = Command::new(program("apid"));
        command
            .arg("--spawn-authd")
            .arg("--authd-program")
            .arg(program("authd"))
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
                return Err(StartFailure { status: Some(status), log: server.log() });
            }
            if begun.elapsed() > START_TIME_LIMIT {
                server.kill();
                return Err(StartFailure { status: None, log: server.log() });
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

    /// Returns the server as the only one of its store.
    pub fn servers(&self) -> Arc<Servers> {
        let ports = Arc::new([AtomicU16::new(self.address.port)]);
        Arc::new(Servers { ports, token: self.address.token, undecided: None })
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        // The errors are ignored, because the process may have ended already.
        drop(self.process.kill());
        drop(self.process.wait());
    }

    /// Returns the log of the server.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
