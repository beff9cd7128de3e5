//! The env test environment: `etcd` and `kube-apiserver` as the package `envtest` of controller-runtime runs them.
//!
//! # Contract
//!
//! [`Environment::start`] chooses free ports, makes the certificates, searches the help of the programs for flags,
//! passes the flags of that package, and polls the health endpoints. Each program leads a process group.
//! [`Environment::stop`] sends SIGTERM to the groups. The times and intervals are those of the package.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use apimachinery::codec::{Limits, yaml};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use serving::certs::PemPair;
use tempfile::TempDir;
use tests::harness::{Client, eventually, program};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::assets;
use super::authority::RsaAuthority;

/// Time limit of the start, and of the stop, of one program.
const PROGRAM_TIME_LIMIT: Duration = Duration::from_secs(20);
/// Time limit until discovery lists the kinds of new definitions.
const DISCOVERY_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Interval of the requests to health endpoints and discovery.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of starts until the environment gives up: another process can take a port that was free.
const START_ATTEMPTS: usize = 5;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A running control plane of an env test.
pub(super) struct Environment {
    api_server: Program,
    etcd: Program,
    etcd_url: String,
    port: u16,
    /// Issuer of the serving certificate.
    serving_authority: RsaAuthority,
    /// Issuer of the certificates of users.
    client_authority: RsaAuthority,
    /// Flags of the API server beyond those of the package `envtest`.
    flags: ExtraFlags,
}

/// Flags that a test suite adds, each with its value.
type ExtraFlags = &'static [(&'static str, &'static str)];

impl Environment {
    /// Starts a control plane, with its files in new folders below `temporary`.
    pub(super) async fn start(temporary: &Path) -> Environment {
        Environment::start_with(temporary, &[]).await
    }

    /// Starts a control plane with further flags of the API server.
    pub(super) async fn start_with(temporary: &Path, flags: ExtraFlags) -> Environment {
        let mut errors = Vec::new();
        while errors.len() < START_ATTEMPTS {
            match Environment::try_start(temporary, flags).await {
                Ok(environment) => return environment,
                Err(error) => errors.push(error),
            }
        }
        panic!("the control plane does not start: {errors:?}")
    }

    async fn try_start(temporary: &Path, flags: ExtraFlags) -> Result<Environment, String> {
        let (etcd_url, peer_url, port) = {
            // The ports differ, because all three listeners exist at once.
            let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
            let [etcd, peer, api_server] =
                listeners.map(|listener| listener.local_addr().expect("an address"));
            (format!("http://{etcd}"), format!("http://{peer}"), api_server.port())
        };
        let (serving_authority, client_authority) = (RsaAuthority::new(), RsaAuthority::new());
        let etcd = start_etcd(temporary, &etcd_url, &peer_url).await?;
        let authorities = (&serving_authority, &client_authority);
        let api_server = start_api_server(temporary, &etcd_url, port, authorities, flags).await?;
        let environment =
            Environment { api_server, etcd, etcd_url, port, serving_authority, client_authority, flags };
        let admin = environment.admin().client();
        eventually("the namespace `default` exists", || async {
            (admin.get("/api/v1/namespaces/default").await.status == 200).then_some(())
        })
        .await;
        Ok(environment)
    }

    /// Stops the API server and starts another one with the same etcd, port and authorities.
    pub(super) async fn restart_api_server(&mut self) {
        self.api_server.stop().await;
        let temporary = self.etcd.folder.path().parent().expect("the folder of the test").to_owned();
        let authorities = (&self.serving_authority, &self.client_authority);
        let started = start_api_server(&temporary, &self.etcd_url, self.port, authorities, self.flags).await;
        self.api_server = started.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a user with all permissions.
    pub(super) fn admin(&self) -> User {
        self.add_user("admin", "system:masters")
    }

    /// Makes the client certificate of a user in a group.
    pub(super) fn add_user(&self, name: &str, group: &str) -> User {
        User {
            pair: self.client_authority.client_pair(name, group),
            port: self.port,
            server_authority: self.serving_authority.pair.cert.clone(),
        }
    }

    /// Creates or updates the definitions in the files of a folder, and waits until discovery lists their kinds.
    pub(super) async fn install(&self, folder: &Path) -> Vec<Value> {
        let admin = self.admin().client();
        let definitions = read_definitions(folder);
        for definition in &definitions {
            let path = path_of(definition);
            let existing = admin.get(&path).await;
            if existing.status == 404 {
                admin.post(DEFINITIONS, definition).await.expect(201);
            } else {
                let mut replacement = definition.clone();
                let version = &existing.expect(200)["metadata"]["resourceVersion"];
                replacement["metadata"]["resourceVersion"] = version.clone();
                admin.put(&path, &replacement).await.expect(200);
            }
        }
        let are_discovered = async {
            while !are_discovered(&admin, &definitions).await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let in_time = tokio::time::timeout(DISCOVERY_TIME_LIMIT, are_discovered).await;
        in_time.unwrap_or_else(|_| panic!("not in discovery after {DISCOVERY_TIME_LIMIT:?}"));
        definitions
    }

    /// Deletes definitions. A missing definition is no error.
    pub(super) async fn uninstall(&self, definitions: &[Value]) {
        let admin = self.admin().client();
        for definition in definitions {
            let status = admin.delete(&path_of(definition)).await.status;
            assert!([200, 404].contains(&status), "{status}");
        }
    }

    /// Stops the API server, then etcd, and removes their folders.
    pub(super) async fn stop(mut self) {
        self.api_server.stop().await;
        self.etcd.stop().await;
    }
}

async fn start_etcd(temporary: &Path, url: &str, peer_url: &str) -> Result<Program, String> {
    let folder = new_folder(temporary);
    let mut flags = BTreeMap::from([
        ("advertise-client-urls", url.to_owned()),
        ("data-dir", folder.path().display().to_string()),
        ("listen-client-urls", url.to_owned()),
        ("listen-peer-urls", peer_url.to_owned()),
    ]);
    if lists_flag("etcd", "unsafe-no-fsync") {
        flags.insert("unsafe-no-fsync", "true".to_owned());
    }
    let mut etcd = Program::spawn("etcd", folder, &flags);
    let address = url.trim_start_matches("http://");
    let is_healthy = async || {
        let response = get_without_tls(address, "/health").await;
        response.is_ok_and(|response| response.starts_with("HTTP/1.1 200 "))
    };
    etcd.wait_until_healthy(is_healthy).await?;
    Ok(etcd)
}

async fn start_api_server(
    temporary: &Path,
    etcd_url: &str,
    port: u16,
    (serving_authority, client_authority): (&RsaAuthority, &RsaAuthority),
    extra: ExtraFlags,
) -> Result<Program, String> {
    let folder = new_folder(temporary);
    let (serving_pair, accounts) = (serving_authority.serving_pair(), RsaAuthority::new().pair);
    for (name, content) in [
        ("apiserver.crt", &serving_pair.cert),
        ("apiserver.key", &serving_pair.key),
        ("sa-signer.crt", &accounts.cert),
        ("sa-signer.key", &accounts.key),
        ("client-cert-auth-ca.crt", &client_authority.pair.cert),
    ] {
        fs::write(folder.path().join(name), content).expect("a file");
    }
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut flags = BTreeMap::from([
        ("allow-privileged", "true".to_owned()),
        ("authorization-mode", "RBAC".to_owned()),
        ("bind-address", "127.0.0.1".to_owned()),
        ("cert-dir", folder.path().display().to_string()),
        ("client-ca-file", file("client-cert-auth-ca.crt")),
        ("disable-admission-plugins", "ServiceAccount".to_owned()),
        ("etcd-servers", etcd_url.to_owned()),
        ("secure-port", port.to_string()),
        ("service-account-issuer", format!("https://127.0.0.1:{port}/")),
        ("service-account-key-file", file("sa-signer.crt")),
        ("service-account-signing-key-file", file("sa-signer.key")),
        ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
    ]);
    if lists_flag("kube-apiserver", "insecure-port") {
        flags.insert("insecure-port", "0".to_owned());
    }
    flags.extend(extra.iter().map(|(flag, value)| (*flag, (*value).to_owned())));
    let mut api_server = Program::spawn("kube-apiserver", folder, &flags);
    let anonymous = Client::new(port, None);
    let is_healthy = async || {
        let response = anonymous.try_request("GET", "/healthz", &[], b"").await;
        response.is_ok_and(|response| response.status == 200)
    };
    api_server.wait_until_healthy(is_healthy).await?;
    Ok(api_server)
}

fn new_folder(temporary: &Path) -> TempDir {
    tempfile::Builder::new().prefix("k8s_test_framework_").tempdir_in(temporary).expect("a folder")
}

/// Whether a line of the help of a program begins with a flag.
fn lists_flag(name: &str, flag: &str) -> bool {
    let output = command(name).arg("--help").output().expect("the program starts");
    assert!(output.status.success(), "{name} --help: {output:?}");
    let help = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let names = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    names
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '-').next())
        .any(|name| name == flag)
}

fn command(name: &str) -> Command {
    let mut command = Command::new(assets().join(name));
    command.env("APID", program("apid")).env_remove("KUBECONFIG").stdin(Stdio::null());
    command
}

/// Sends GET over plain HTTP. Returns the response.
async fn get_without_tls(address: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

/// A process that leads a process group, with a temporary folder.
struct Program {
    name: &'static str,
    process: Child,
    folder: TempDir,
}

impl Program {
    fn spawn(name: &'static str, folder: TempDir, flags: &BTreeMap<&str, String>) -> Program {
        let log = fs::File::create(folder.path().join("log")).expect("the log file");
        let mut command = command(name);
        command.args(flags.iter().map(|(flag, value)| format!("--{flag}={value}")));
        command.stdout(log.try_clone().expect("a second handle")).stderr(log).process_group(0);
        Program { name, process: command.spawn().expect("the program starts"), folder }
    }

    /// Waits until the program is healthy. Fails if it ends before, or exceeds the time limit.
    async fn wait_until_healthy(&mut self, is_healthy: impl AsyncFn() -> bool) -> Result<(), String> {
        let (name, process) = (self.name, &mut self.process);
        let healthy = async {
            while !is_healthy().await {
                if let Some(status) = process.try_wait().expect("the process is ours") {
                    return Err(format!("{name} ended before it was healthy: {status}"));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Ok(())
        };
        let result = tokio::time::timeout(PROGRAM_TIME_LIMIT, healthy).await;
        let result =
            result.unwrap_or_else(|_| Err(format!("{name} is not healthy after {PROGRAM_TIME_LIMIT:?}")));
        result.map_err(|error| format!("{error}:\n{}", self.log()))
    }

    /// Sends SIGTERM to the process group, and waits for the end of the process.
    async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let process = &mut self.process;
        let ended = async {
            while process.try_wait().expect("the process is ours").is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(PROGRAM_TIME_LIMIT, ended).await;
        in_time.unwrap_or_else(|_| panic!("{} runs {PROGRAM_TIME_LIMIT:?} after SIGTERM", self.name));
    }

    fn signal(&self, signal: Signal) {
        let _ = kill_process_group(Pid::from_child(&self.process), signal);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::KILL);
            drop(self.process.wait());
        }
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.log());
        }
    }
}

/// A user with a client certificate.
pub(super) struct User {
    pair: PemPair,
    port: u16,
    /// Issuer of the serving certificate, PEM.
    server_authority: String,
}

impl User {
    /// Returns a client that verifies the server.
    pub(super) fn client(&self) -> Client {
        Client::verifying(self.port, &self.pair.cert, &self.pair.key, &self.server_authority)
    }

    /// Returns the text of a kubeconfig file.
    pub(super) fn kubeconfig(&self) -> String {
        let data = |pem: &str| STANDARD.encode(pem);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "envtest",
            "clusters": [{"name": "envtest", "cluster": {
                "server": format!("https://127.0.0.1:{}/", self.port),
                "certificate-authority-data": data(&self.server_authority),
            }}],
            "users": [{"name": "envtest", "user": {
                "client-certificate-data": data(&self.pair.cert), "client-key-data": data(&self.pair.key),
            }}],
            "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "envtest"}}],
        })
        .to_string()
    }
}

/// The definitions in the YAML and JSON files of a folder; other objects are left out.
fn read_definitions(folder: &Path) -> Vec<Value> {
    let entries = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let is_read = |extension: &str| ["json", "yaml", "yml"].contains(&extension);
    let files = entries.filter(|path| path.extension().and_then(|e| e.to_str()).is_some_and(is_read));
    let texts = files.map(|path| fs::read_to_string(path).expect("a file"));
    let documents = texts.flat_map(|text| text.split("\n---").map(str::to_owned).collect::<Vec<_>>());
    let objects = documents.map(|text| yaml::decode(text.as_bytes(), Limits::BODY).expect("YAML").value);
    objects.filter(|object| object["kind"] == "CustomResourceDefinition").collect()
}

fn path_of(definition: &Value) -> String {
    format!("{DEFINITIONS}/{}", definition["metadata"]["name"].as_str().expect("a name"))
}

/// Whether discovery lists the kind of each definition in each served version.
async fn are_discovered(client: &Client, definitions: &[Value]) -> bool {
    for definition in definitions {
        let spec = &definition["spec"];
        for version in spec["versions"].as_array().expect("versions").iter().filter(|v| v["served"] == true) {
            let group = spec["group"].as_str().expect("a group");
            let version = version["name"].as_str().expect("a version");
            let document = client.get(&format!("/apis/{group}/{version}")).await;
            let resources = document.json()["resources"].as_array().cloned().unwrap_or_default();
            if !resources.iter().any(|resource| resource["name"] == spec["names"]["plural"]) {
                return false;
            }
        }
    }
    true
}
