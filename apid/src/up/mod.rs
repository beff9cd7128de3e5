//! `apid up`: a whole control plane with one command.
//!
//! # Contract
//!
//! The command locks the data directory before it writes. It creates the certificates and the kubeconfig of the user
//! `admin`, starts apid in this process and authd as a child, publishes `cluster-info` for clients that join, and prints
//! the next steps. `--demo` adds users, objects and a local OpenID issuer. SIGINT and SIGTERM end everything, also where a
//! shell has ignored SIGINT for a background job: both processes have handlers.
//!
//! Progress goes to standard output. Both processes log to [`LOG_FILE`] in the data directory, unless `--verbose`
//! leaves the logs on standard error. When the server fails, the command prints the last lines of the log.
//!
//! `--etcd N` starts N servers on an etcd cluster instead ([`cluster`]).
//!
//! Flags after `--` are flags of apid and authd. They replace the defaults of the command, except [`FIXED_FLAGS`].

mod api;
mod cluster;
mod cluster_info;
mod credentials;
mod data_dir;
mod demo;
mod issuer;
mod kubeconfig;
mod log_file;
mod next_steps;
mod ready;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::clock::{Clock as _, SystemClock};
use apimachinery::names::{Names, Preset};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use processflags::command_line::{self, ParsedLine};
use serving::certs::{self, ServingPair};
use serving::config_file::FlagValues;
use tokio::time::Instant;

use crate::caller_flags::CallerFlags;
use crate::certs::CertsError;
use crate::certs::ensured::ClientCertificates;
use crate::config::{Command, Config};
use crate::console::{fail, print, report_errors};
use crate::process::{self, RunOptions};
use credentials::Credentials;
use data_dir::{DataDir, DataDirError};
use demo::Demo;
use log_file::LogFile;
use ready::Ready;

/// The log of both processes in the data directory.
const LOG_FILE: &str = "apid.log";
/// The kubeconfig of the administrator in the data directory.
const KUBECONFIG_FILE: &str = "admin.kubeconfig";
/// The user of the kubeconfig, and its group.
const ADMIN: (&str, &str) = ("admin", "system:masters");
/// Flags that the command sets itself: the printed addresses and the kubeconfig depend on them.
const FIXED_FLAGS: [&str; 10] = [
    "authd-socket",
    "cert-dir",
    "client-ca-file",
    "config",
    "data-dir",
    "names",
    "secure-port",
    "spawn-authd",
    "tls-cert-file",
    "tls-private-key-file",
];

/// Starts a control plane: apid and authd, certificates and a kubeconfig. Ctrl-C stops it.
///
/// The data directory gets the store, the certificates in `certs`, `admin.kubeconfig` and the log `apid.log`. A second
/// start with the same directory continues with the same objects. Flags of apid and authd come after `--`, for example
/// `apid up -- --enable-bootstrap-token-auth`.
#[derive(Debug, Parser)]
#[command(name = "apid up", disable_version_flag = true)]
struct UpFlags {
    /// Names of groups, labels and namespaces: svc or kubernetes; a store keeps its names
    #[arg(long, value_name = "PRESET", default_value_t = Preset::Kubernetes)]
    names: Preset,
    /// Directory of the store, the certificates, the kubeconfig and the log; created if missing
    #[arg(long, value_name = "DIR", default_value = "control-plane")]
    data_dir: PathBuf,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    secure_port: u16,
    /// Add users with different rights, a custom kind, a policy that denies and a local OpenID issuer
    #[arg(long)]
    demo: bool,
    /// For a trial of several servers: start N of them, 1 to 9, on an etcd cluster of three members, behind a balancer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    etcd: Option<u8>,
    /// Program of the members with --etcd, 3.5 or later (default: etcd on PATH)
    #[arg(long, value_name = "FILE", requires = "etcd")]
    etcd_program: Option<PathBuf>,
    /// Print the logs of both processes on standard error
    #[arg(long)]
    verbose: bool,
    /// Flags of apid and authd
    #[arg(last = true, value_name = "FLAGS")]
    server_flags: Vec<String>,
}

/// The command line after `apid`.
pub(crate) fn command() -> clap::Command {
    UpFlags::command()
}

/// Runs `apid up`. `arguments` are those after the word `up`.
pub(crate) fn run(arguments: Vec<String>) -> ExitCode {
    let begin = Instant::now();
    let result = match UpFlags::parse_arguments(arguments) {
        Ok(Some(flags)) => flags.start(begin),
        Ok(None) => return ExitCode::SUCCESS,
        Err(errors) => Err(errors),
    };
    result.unwrap_or_else(|errors| report_errors("apid up", &errors))
}

/// An error of the preparation, before the server starts.
#[derive(Debug, thiserror::Error)]
enum UpError {
    /// The data directory is not usable.
    #[error("{0}")]
    DataDir(#[from] DataDirError),
    /// The port of the server is not usable.
    #[error("cannot listen on {address}: {error}; {}", port_advice(error.kind()))]
    Port {
        /// The address of the server.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The log cannot be written.
    #[error("cannot write the log `{}`: {error}; --verbose needs no log file", path.display())]
    Log {
        /// The log file.
        path: PathBuf,
        /// The error of the file system.
        error: io::Error,
    },
    /// The serving certificate cannot be created.
    #[error("{0}")]
    Certificate(#[from] certs::CertError),
    /// A client certificate cannot be created.
    #[error("{0}")]
    Client(#[from] CertsError),
    /// The existing kubeconfig is not readable.
    #[error("{0}")]
    Kubeconfig(#[from] kubeconfig::KubeconfigError),
    /// The issuer of the demo cannot start.
    #[error("{0}")]
    Issuer(#[from] issuer::IssuerError),
}

impl UpFlags {
    /// Parses the command line. Returns None after the help text was printed.
    fn parse_arguments(arguments: Vec<String>) -> Result<Option<Self>, Vec<String>> {
        let (matches, mut errors) = match command_line::parse(Self::command(), arguments)? {
            ParsedLine::Flags { matches, errors } => (matches, errors),
            ParsedLine::Text(text) => {
                print(text);
                return Ok(None);
            }
        };
        if errors.iter().any(|error| error.starts_with("unknown flag")) {
            errors.push("flags of apid and authd come after `--`: `apid up -- FLAGS`".to_owned());
        }
        let flags = Self::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])?;
        if errors.is_empty() { Ok(Some(flags)) } else { Err(errors) }
    }

    fn start(self, begin: Instant) -> Result<ExitCode, Vec<String>> {
        let caller = CallerFlags::read(self.server_flags.clone())?;
        let address = check_caller_flags(&caller, self.demo, self.etcd.is_some())?;
        let bind_address = caller.value("bind-address").and_then(|address| address.parse().ok());
        // Nothing is written before this lock is held.
        let reserved = self.reserve(bind_address.unwrap_or(Ipv4Addr::LOCALHOST.into()));
        let DataDir { path: data_dir, lock: _lock } = match reserved {
            Ok(data_dir) => data_dir,
            Err(error) => return Ok(fail(error)),
        };
        cluster::check_data_dir(&data_dir, self.etcd.is_some()).map_err(|error| vec![error.to_string()])?;
        let prepared = self.prepare(&data_dir, address).map_err(|error| vec![error.to_string()])?;
        let defaults = self.defaults(&data_dir, &prepared);
        if let Some(count) = self.etcd {
            let (plan, names) = cluster::Plan::prepare(&self, count, &data_dir, &defaults)?;
            print(cluster::starting(count, &data_dir, self.verbose));
            let ready = prepared.into_ready(begin, data_dir, address, names);
            return Ok(plan.run(self.secure_port, ready));
        }
        let config = match Config::read(caller.with_defaults(defaults))? {
            Command::Serve(config) => *config,
            Command::Print(text) => return Ok(print(text)),
        };
        let log_path = data_dir.join(LOG_FILE);
        let log = match self.verbose {
            true => None,
            false => Some(
                LogFile::redirect(&log_path)
                    .map_err(|error| vec![UpError::Log { path: log_path.clone(), error }.to_string()])?,
            ),
        };
        print(match self.verbose {
            true => "starting apid and authd\n".to_owned(),
            false => format!("starting apid and authd; log: {}\n", next_steps::quote(&log_path)),
        });
        let ready = prepared.into_ready(begin, data_dir, address, config.names.clone());
        let on_ready = move |port: u16| {
            let (kubeconfig, api) = (ready.write_kubeconfig(port)?, ready.api(port)?);
            tokio::spawn(async move { ready.create_objects(&api, port, &kubeconfig, "").await });
            Ok(())
        };
        let options = RunOptions { on_ready: Some(Box::new(on_ready)), ..RunOptions::default() };
        let code = process::run_with(config, options);
        if code == ExitCode::SUCCESS {
            print("stopped\n");
        } else if let Some(log) = log {
            log.report_failure(&log_path);
        }
        Ok(code)
    }

    /// Locks the data directory, and checks the port. A missing directory is created only if the port is free.
    fn reserve(&self, bind_address: IpAddr) -> Result<DataDir, UpError> {
        let lock = || DataDir::lock(&self.data_dir);
        // The directory comes first: the server that uses the port is often that of the directory.
        let existing = self.data_dir.exists().then(lock).transpose()?;
        let address = SocketAddr::new(bind_address, self.secure_port);
        TcpListener::bind(address).map_err(|error| UpError::Port { address, error })?;
        Ok(existing.map_or_else(lock, Ok)?)
    }

    /// Creates what both processes need before they start: certificates, and for the demo users and issuer.
    fn prepare(&self, data_dir: &Path, address: IpAddr) -> Result<Prepared, UpError> {
        // The kubeconfig is written when the server is ready; an unreadable one is reported before the start.
        kubeconfig::read(&data_dir.join(KUBECONFIG_FILE))?;
        let cert_dir = data_dir.join("certs");
        let word = if cert_dir.join("ca.crt").exists() { "certificates" } else { "creating certificates" };
        print(format!("{word}: {}\n", next_steps::quote(&cert_dir)));
        let now = SystemClock::new().now();
        let pair = certs::ensure_serving_pair(&cert_dir, &[address.to_string()], now)?;
        let clients = ClientCertificates::open(&cert_dir, now)?;
        let admin = Credentials::ensure(&clients, ADMIN.0, &[ADMIN.1], now)?;
        let demo = self.demo.then(|| Demo::prepare(data_dir, &pair, &clients, now)).transpose()?;
        Ok(Prepared { cert_dir, pair, revocation_list: clients.revocation_list(), admin, demo })
    }

    /// Returns the flags of the server that the caller does not replace.
    fn defaults(&self, data_dir: &Path, prepared: &Prepared) -> Vec<FlagValues> {
        let text = |path: &Path| path.display().to_string();
        let ca = text(&prepared.pair.ca);
        let mut defaults = vec![
            FlagValues::single("names", self.names.as_str()),
            FlagValues::single("spawn-authd", "true"),
            FlagValues::single("data-dir", text(data_dir)),
            FlagValues::single("bind-address", Ipv4Addr::LOCALHOST.to_string()),
            FlagValues::single("secure-port", self.secure_port.to_string()),
            FlagValues::single("cert-dir", text(&prepared.cert_dir)),
            FlagValues::single("client-ca-file", ca.clone()),
            FlagValues::single("root-ca-file", ca),
            FlagValues::single("enable-admission-plugins", "NodeRestriction"),
            FlagValues::single("controllers", "*,bootstrapsigner,tokencleaner"),
        ];
        if !has_authorization(&self.server_flags) {
            defaults.push(FlagValues::single("authorization-mode", "Node,RBAC"));
        }
        let list = prepared.revocation_list.as_deref().map(text);
        defaults.extend(list.map(|list| FlagValues::single("client-crl-file", list)));
        defaults.extend(prepared.demo.iter().flat_map(Demo::server_flags));
        defaults
    }
}

impl Prepared {
    /// Returns what the work at readiness needs.
    fn into_ready(self, begin: Instant, data_dir: PathBuf, address: IpAddr, names: Names) -> Ready {
        let Prepared { pair, admin, demo, .. } = self;
        Ready { begin, data_dir, address, names, pair, admin, demo }
    }
}

/// The state before both processes start.
struct Prepared {
    cert_dir: PathBuf,
    pair: ServingPair,
    /// The list of revoked client certificates.
    revocation_list: Option<PathBuf>,
    admin: Credentials,
    demo: Option<Demo>,
}

/// Whether the caller sets the authorizers.
fn has_authorization(arguments: &[String]) -> bool {
    ["authorization-mode", "authorization-config"]
        .iter()
        .any(|name| serving::arguments::has_flag(arguments, name))
}

/// The remedy for a port that is not usable.
fn port_advice(problem: io::ErrorKind) -> &'static str {
    match problem {
        io::ErrorKind::AddrNotAvailable => {
            "choose an address of this machine with `-- --bind-address=ADDRESS`"
        }
        _ => "choose another port with --secure-port; 0 lets the system choose",
    }
}

/// Rejects flags that the command sets itself. Returns the address under which clients on this machine reach the server.
fn check_caller_flags(caller: &CallerFlags, demo: bool, uses_etcd: bool) -> Result<IpAddr, Vec<String>> {
    let cluster_flags: &[&str] = if uses_etcd { &cluster::FIXED_FLAGS } else { &[] };
    let mut errors: Vec<String> = FIXED_FLAGS
        .iter()
        .chain(cluster_flags)
        .filter(|name| caller.has(name))
        .map(|name| match *name {
            "names" | "data-dir" | "secure-port" => format!("`--{name}`: write this flag before `--`"),
            _ => format!("`--{name}`: `apid up` sets this flag itself; without `up`, apid accepts it"),
        })
        .collect();
    let demo_flags = Demo::FIXED_FLAGS.iter().filter(|name| demo && caller.has(name));
    errors
        .extend(demo_flags.map(|name| format!("`--{name}`: `--demo` configures the authentication itself")));
    if !errors.is_empty() {
        return Err(errors);
    }
    let address = caller.value("bind-address").and_then(|address| address.parse::<IpAddr>().ok());
    Ok(address.filter(|address| !address.is_unspecified()).unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn server_flags_come_after_two_dashes() {
        let flags = UpFlags::parse_arguments(words(&["--demo", "--", "--v=4"])).unwrap().unwrap();
        assert!(flags.demo && flags.server_flags == ["--v=4"]);
        let errors = UpFlags::parse_arguments(words(&["--audit-log-path=x", "--names=other"])).unwrap_err();
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[2].contains("`apid up -- FLAGS`"), "{errors:?}");
    }

    #[test]
    fn flags_that_the_command_sets_itself_are_rejected() {
        let check = |arguments: &[&str], demo| {
            check_caller_flags(&CallerFlags::read(words(arguments)).unwrap(), demo, false)
        };
        let errors = check(&["--names=svc", "--client-ca-file", "x"], false).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors.iter().any(|error| error == "`--names`: write this flag before `--`"), "{errors:?}");
        assert!(check(&["--oidc-issuer-url=x"], false).is_ok());
        assert!(check(&["--oidc-issuer-url=x"], true).is_err());
        for (flag, address) in
            [("--v=1", "127.0.0.1"), ("--bind-address=0.0.0.0", "127.0.0.1"), ("--bind-address=::1", "::1")]
        {
            assert_eq!(check(&[flag], false).unwrap().to_string(), address, "{flag}");
        }
    }

    #[test]
    fn authorization_of_the_caller_replaces_the_default() {
        let dir = tempfile::tempdir().unwrap();
        for (more, expected) in [(&["--"][..], true), (&["--", "--authorization-config=x"], false)] {
            let flags = UpFlags::parse_arguments(words(more)).unwrap().unwrap();
            let prepared = flags.prepare(dir.path(), Ipv4Addr::LOCALHOST.into()).unwrap();
            let defaults = flags.defaults(dir.path(), &prepared);
            assert_eq!(defaults.iter().any(|flag| flag.name == "authorization-mode"), expected);
        }
    }

    #[test]
    fn port_in_use_is_reported_with_advice_before_the_data_directory_is_created() {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let data_dir = dir.path().join("data");
        let arguments = [format!("--secure-port={port}"), format!("--data-dir={}", data_dir.display())];
        let flags = UpFlags::parse_arguments(arguments.to_vec()).unwrap().unwrap();
        let reserve = |address| flags.reserve(address).map(|_| ()).unwrap_err().to_string();
        let error = reserve(Ipv4Addr::LOCALHOST.into());
        assert!(error.starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{error}");
        assert!(error.contains("--secure-port"), "{error}");
        assert!(!data_dir.exists());
        let error = reserve(Ipv4Addr::new(192, 0, 2, 1).into());
        assert!(error.contains("--bind-address"), "{error}");
        std::fs::create_dir(&data_dir).unwrap();
        let _running = DataDir::lock(&data_dir).unwrap();
        let error = reserve(Ipv4Addr::LOCALHOST.into());
        assert!(error.contains("is in use by another process of apid"), "{error}");
    }

    #[test]
    fn start_in_locked_data_directory_fails_before_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let _running = DataDir::lock(dir.path()).unwrap();
        for more in [&["--demo"][..], &[], &["--demo", "--etcd=1"]] {
            let data_dir = format!("--data-dir={}", dir.path().display());
            let arguments = [words(&["--secure-port=0", &data_dir]), words(more)].concat();
            let flags = UpFlags::parse_arguments(arguments).unwrap().unwrap();
            assert_eq!(flags.start(Instant::now()), Ok(ExitCode::FAILURE), "{more:?}");
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{more:?}");
        }
    }
}
