//! `apid up --etcd N`: several servers on an etcd cluster of three members, behind a balancer, on one machine.
//!
//! # Contract
//!
//! Each server is a process of its own with its own authd and its own data directory. All servers have one CA, one serving
//! certificate, one key of service-account tokens and one encryption configuration, so that each one accepts the tokens and
//! certificates of the others and reads their objects. The kubeconfig names the balancer. A process that ends starts again.
//! The stop ends the servers first, and then the members.

mod balancer;
mod child;
mod members;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use apimachinery::clock::{Clock as _, SystemClock};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use serving::certs::{self, CertError};
use serving::config_file::FlagValues;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::UpFlags;
use super::api::Health;
use super::ready::Ready;
use crate::caller_flags::CallerFlags;
use crate::config::{Command, Config, STORE};
use crate::console::{fail, print};
use balancer::Backend;
use child::{Program, supervise};
use members::{Members, free_ports};

/// The folder of the members in the data directory.
const ETCD: &str = "etcd";
/// The file in the data directory with the key of encrypted objects.
const ENCRYPTION: &str = "encryption.yaml";
/// Time for which a server may end in order.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of bytes of the key that encrypts Secrets.
const KEY_BYTES: usize = 32;

/// Flags that the command sets itself with `--etcd`.
pub(super) const FIXED_FLAGS: [&str; 7] = [
    "authd-servers",
    "bind-address",
    "encryption-provider-config",
    "etcd-servers",
    "port-file",
    "service-account-key-file",
    "service-account-signing-key-file",
];

/// An error of the preparation of a cluster.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClusterError {
    /// The program of the members is missing.
    #[error(
        "etcd is not on PATH; install etcd 3.5 or later (Debian and Ubuntu: `apt-get install etcd-server`; other systems: \
         https://github.com/etcd-io/etcd/releases), or name the program with --etcd-program"
    )]
    NoEtcd,
    /// The program of the members is no etcd, or too old.
    #[error("`{}` is not used as etcd: {problem}; name etcd 3.5 or later with --etcd-program", program.display())]
    UnusableEtcd {
        /// The program.
        program: PathBuf,
        /// The reason.
        problem: String,
    },
    /// The file with the ports of the members is invalid.
    #[error("{}: {problem}", path.display())]
    Ports {
        /// The file.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
    /// The data directory has a store of the other kind.
    #[error("{}: {problem}; choose another directory with --data-dir", path.display())]
    OtherStore {
        /// The data directory.
        path: PathBuf,
        /// The kind of its store.
        problem: &'static str,
    },
    /// A certificate, a key or a file cannot be made.
    #[error("{0}")]
    File(#[from] CertError),
    /// The system supplied no random bytes.
    #[error("the system supplied no random bytes for the key of the encryption")]
    Random,
    /// No free port.
    #[error("no free port of the loopback address: {0}")]
    FreePorts(std::io::Error),
}

/// Rejects a data directory whose objects a start with or without `--etcd` would not find.
pub(super) fn check_data_dir(data_dir: &Path, uses_etcd: bool) -> Result<(), ClusterError> {
    let (other, problem) = match uses_etcd {
        true => (STORE, "it has a store that was made without --etcd"),
        false => (ETCD, "its objects are in etcd, so it needs --etcd"),
    };
    match data_dir.join(other).exists() {
        true => Err(ClusterError::OtherStore { path: data_dir.to_owned(), problem }),
        false => Ok(()),
    }
}

/// The command lines of all processes of the cluster.
pub(super) struct Plan {
    members: Vec<Program>,
    servers: Vec<(Program, u16)>,
}

impl Plan {
    /// Makes the files that the processes share, and checks the command line of the servers. `defaults` are the flags of one
    /// server, without its directory and port.
    ///
    /// # Errors
    ///
    /// The errors of the flags, or a file that cannot be made.
    pub(super) fn prepare(
        flags: &UpFlags,
        count: u8,
        data_dir: &Path,
        defaults: &[FlagValues],
    ) -> Result<(Self, Names), Vec<String>> {
        let line = |error: ClusterError| vec![error.to_string()];
        let logs = (!flags.verbose).then_some(data_dir);
        let members =
            Members::prepare(flags.etcd_program.as_deref(), &data_dir.join(ETCD), SystemClock::new().now())
                .map_err(line)?;
        let domain = CallerFlags::read(flags.server_flags.clone())?.value("api-domain");
        let names = Names::new(flags.names, domain.as_deref().unwrap_or(DEFAULT_API_DOMAIN))
            .map_err(|error| vec![format!("`--api-domain`: {error}")])?;
        let shared = shared_flags(&names, data_dir).map_err(line)?;
        let ports = free_ports(usize::from(count)).map_err(|error| line(ClusterError::FreePorts(error)))?;
        let program = std::env::current_exe()
            .map_err(|error| vec![format!("the program of this process is unknown: {error}")])?;
        let mut servers = Vec::new();
        for (number, port) in (1..).zip(ports) {
            let own_dir = data_dir.join(format!("apid-{number}"));
            let own = [
                FlagValues::single("data-dir", own_dir.display().to_string()),
                FlagValues::single("secure-port", port.to_string()),
            ];
            let all = defaults.iter().filter(|flag| own.iter().all(|replaced| replaced.name != flag.name));
            let all = all.cloned().chain(own.clone()).chain(members.server_flags()).chain(shared.clone());
            let arguments = CallerFlags::read(flags.server_flags.clone())?.with_defaults(all.collect());
            if let Command::Print(text) = Config::read(arguments.clone())? {
                return Err(vec![text]);
            }
            let server = Program {
                name: format!("apid {number}"),
                path: program.clone(),
                arguments,
                log: logs.map(|dir| dir.join(format!("apid-{number}.log"))),
                exit_timeout: EXIT_TIMEOUT,
            };
            servers.push((server, port));
        }
        Ok((Plan { members: members.programs(logs), servers }, names))
    }

    /// Starts all processes and the balancer, and serves until SIGINT or SIGTERM. Processes end with this one.
    pub(super) fn run(self, port: u16, ready: Ready) -> ExitCode {
        // One thread: processes end with the thread that starts them.
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(format_args!("the runtime cannot start: {error}")),
        };
        runtime.block_on(self.serve(port, ready))
    }

    async fn serve(self, port: u16, ready: Ready) -> ExitCode {
        let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => listener,
            Err(error) => {
                return fail(format_args!("the balancer cannot listen on 127.0.0.1:{port}: {error}"));
            }
        };
        let port = listener.local_addr().map_or(port, |address| address.port());
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return fail(format_args!("the signals SIGINT and SIGTERM cannot be handled"));
        };
        let (stop_members, stop_servers) = (watch::Sender::new(false), watch::Sender::new(false));
        let (rejected, mut rejection) = mpsc::channel(1);
        let (mut members, mut servers) = (JoinSet::new(), JoinSet::new());
        for program in self.members {
            let id = watch::Sender::new(None);
            members.spawn(supervise(program, stop_members.subscribe(), id, rejected.clone()));
        }
        let (mut backends, mut shown) = (Vec::new(), Vec::new());
        for (program, port) in self.servers {
            let (id, backend) = (watch::Sender::new(None), Backend::new(port));
            shown.push((program.name.clone(), port, id.subscribe()));
            servers.spawn(supervise(program, stop_servers.subscribe(), id, rejected.clone()));
            match ready.api(port) {
                Ok(api) => {
                    let checked = backend.clone();
                    tokio::spawn(async move { checked.check(&api).await });
                }
                Err(error) => return fail(format_args!("{error}")),
            }
            backends.push(backend);
        }
        let health: Vec<_> = backends.iter().map(Backend::health).collect();
        tokio::spawn(balancer::run(listener, backends));
        let serve = async {
            for mut health in health {
                let _ = health.wait_for(|health| *health == Health::Ready).await;
            }
            let text = describe(&shown);
            if let Err(error) = ready.publish(port, &text).await {
                return error.to_string();
            }
            std::future::pending().await
        };
        let failure = tokio::select! {
            failure = serve => Some(failure),
            failure = rejection.recv() => failure,
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
        };
        stop_servers.send_replace(true);
        while servers.join_next().await.is_some() {}
        stop_members.send_replace(true);
        while members.join_next().await.is_some() {}
        match failure {
            None => print("stopped\n"),
            Some(failure) => fail(format_args!("{failure}")),
        }
    }
}

/// The servers behind the balancer, with their process ids, for the text at readiness.
fn describe(servers: &[(String, u16, watch::Receiver<Option<u32>>)]) -> String {
    let mut text = "The address is that of a balancer in front of:\n".to_owned();
    for (name, port, id) in servers {
        let process = id.borrow().map_or_else(String::new, |id| format!(", process {id}"));
        text.push_str(&format!("  {name}: https://127.0.0.1:{port}{process}\n"));
    }
    text.push_str("A killed server or member starts again; until then the others serve.\n");
    text
}

/// Makes the files that all servers share, and returns their flags.
fn shared_flags(names: &Names, data_dir: &Path) -> Result<Vec<FlagValues>, ClusterError> {
    let key = data_dir.join("service-accounts.key");
    certs::ensure_key(&key)?;
    let encryption = data_dir.join(ENCRYPTION);
    if !encryption.exists() {
        let mut secret = [0; KEY_BYTES];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| ClusterError::Random)?;
        let group = names.group("apiserver.config");
        let keys = json!([{"name": "key1", "secret": STANDARD.encode(secret)}]);
        let configuration = json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "EncryptionConfiguration",
            "resources": [{"resources": ["secrets"], "providers": [{"secretbox": {"keys": keys}}, {"identity": {}}]}],
        });
        certs::write(&encryption, configuration.to_string().as_bytes(), 0o600)?;
    }
    let text = |path: &Path| path.display().to_string();
    Ok(vec![
        FlagValues::single("service-account-key-file", text(&key)),
        FlagValues::single("service-account-signing-key-file", text(&key)),
        FlagValues::single("encryption-provider-config", text(&encryption)),
    ])
}

/// The message at the start, with the places of the logs and of the key of the Secrets.
pub(super) fn starting(count: u8, data_dir: &Path, verbose: bool) -> String {
    let logs = match verbose {
        true => String::new(),
        false => format!("; logs: {}/*.log", super::next_steps::quote(data_dir)),
    };
    let encryption = super::next_steps::quote(&data_dir.join(ENCRYPTION));
    format!(
        "starting 3 members of etcd and {count} servers with their authds{logs}\n\
         Secrets are encrypted in etcd and in backups; their key is in {encryption}\n"
    )
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn encryption_configuration_has_the_api_domain_of_the_servers() {
        for domain in [DEFAULT_API_DOMAIN, "example.test"] {
            let (dir, names) = (tempfile::tempdir().unwrap(), Names::new(Preset::Svc, domain).unwrap());
            shared_flags(&names, dir.path()).unwrap();
            let read = encryption::Configuration::read(&dir.path().join("encryption.yaml"), &names);
            assert!(read.is_ok(), "{domain}: {}", read.unwrap_err());
        }
    }

    #[test]
    fn start_names_the_key_of_the_secrets() {
        let text = starting(2, Path::new("/data"), false);
        assert!(text.ends_with("; their key is in /data/encryption.yaml\n"), "{text}");
    }

    #[test]
    fn data_dir_with_the_other_kind_of_store_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        for uses_etcd in [true, false] {
            assert!(check_data_dir(dir.path(), uses_etcd).is_ok());
        }
        std::fs::create_dir(dir.path().join(ETCD)).unwrap();
        assert!(check_data_dir(dir.path(), true).is_ok());
        let error = check_data_dir(dir.path(), false).unwrap_err().to_string();
        assert!(error.contains("needs --etcd") && error.contains("--data-dir"), "{error}");
        std::fs::create_dir(dir.path().join(STORE)).unwrap();
        assert!(check_data_dir(dir.path(), true).unwrap_err().to_string().contains("without --etcd"));
    }
}
