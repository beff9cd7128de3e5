//! The command line flags of apid, parsed into one typed value.
//!
//! # Contract
//!
//! [`Config::read`] takes the command line. It reports all errors together, before apid opens a file or binds
//! a port; the program then exits with [`EXIT_USAGE`]. Flags that are not implemented yet are accepted and listed
//! in [`Config::unimplemented_flags`].

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use serving::gates::FeatureGates;

use crate::auth::ProxyHeaders;

mod parse;
mod published_config;
mod service_range;
mod table;

use parse::CommandLine;
pub use published_config::{PublishedConfig, PublishedProxyConfig};
pub use service_range::ServiceRange;
use table::FlagState;

/// Exit code for command line errors (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

/// Directory of the store within the data directory.
pub const STORE: &str = "store";

/// Connection to authd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authd {
    /// apid starts authd and passes these flags.
    Spawned {
        /// Path of the program, unless the one beside apid or on PATH is used.
        program: Option<PathBuf>,
        /// Flags for authd.
        flags: Vec<String>,
    },
    /// authd runs already and listens on this socket.
    At(PathBuf),
}

/// Configuration of the process.
#[derive(Debug)]
pub struct Config {
    /// Names of groups, labels and namespaces.
    pub names: Names,
    /// Directory of the store.
    pub data_dir: PathBuf,
    /// Address to listen on.
    pub bind_address: IpAddr,
    /// Port to listen on; 0 lets the system choose.
    pub secure_port: u16,
    /// Address under which clients reach the process, if configured.
    pub advertise_address: Option<IpAddr>,
    /// IP ranges of Services.
    pub service_ranges: Vec<ServiceRange>,
    /// File to which apid writes the bound port.
    pub port_file: PathBuf,
    /// Directory for generated certificates.
    pub cert_dir: PathBuf,
    /// Serving certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// CA bundles of client certificates: those of clients and those of authenticating proxies.
    pub client_cas: Vec<PathBuf>,
    /// `--show-hidden-metrics-for-version`.
    pub hidden_metrics: String,
    /// Configuration that apid publishes as objects.
    pub published_config: PublishedConfig,
    /// Connection to authd.
    pub authd: Authd,
    /// Socket of a spawned authd, if configured.
    pub authd_socket: Option<PathBuf>,
    /// Timeout of requests to authd.
    pub authd_timeout: Duration,
    /// Retention time of old revisions.
    pub history_retention: Duration,
    /// Time after its last write at which an Event is deleted; zero means never.
    pub event_ttl: Duration,
    /// Maximum size of the store in bytes.
    pub storage_quota: Option<u64>,
    /// Timeout of requests other than watches.
    pub request_timeout: Duration,
    /// Minimum duration of a watch without a timeout.
    pub min_request_timeout: Duration,
    /// Number of concurrent deletes of a deletecollection.
    pub delete_workers: usize,
    /// Whether the garbage collector deletes objects whose owners are gone.
    pub garbage_collector: bool,
    /// In-flight limits of reading and of mutating requests; 0 means no limit.
    pub max_in_flight: (usize, usize),
    /// Decode limits of request bodies.
    pub body_limits: Limits,
    /// Time for which apid serves requests after a termination signal.
    pub shutdown_delay: Duration,
    /// Time after start during which `/livez` ignores checks that do not pass yet.
    pub livez_grace: Duration,
    /// Admission plugins to enable.
    pub enable_admission: Vec<String>,
    /// Admission plugins to disable.
    pub disable_admission: Vec<String>,
    /// Configuration of the admission plugins.
    pub admission_configuration: admission::Configuration,
    /// Feature gates.
    pub gates: FeatureGates,
    /// File of the audit log; `-` is standard output.
    pub audit_log: Option<String>,
    /// Whether controllers write as service accounts of their own.
    pub controllers_have_accounts: bool,
    /// Headers that an authenticating proxy may set.
    pub proxy_headers: ProxyHeaders,
    /// Log verbosity.
    pub verbosity: u8,
    /// Whether logs are JSON.
    pub log_json: bool,
    /// Whether every request is allowed, because no authorization mode is configured or AlwaysAllow is.
    pub allows_everything: bool,
    /// Given flags that are not implemented yet.
    pub unimplemented_flags: Vec<String>,
    /// Warnings to log.
    pub warnings: Vec<String>,
}

/// Command of the command line.
#[derive(Debug)]
pub enum Command {
    /// Serve the API.
    Serve(Box<Config>),
    /// Print this text and exit with success.
    Print(String),
}

impl Config {
    /// Parses the arguments, without the program name.
    ///
    /// # Errors
    ///
    /// All errors, one line each.
    pub fn read(arguments: impl IntoIterator<Item = String>) -> Result<Command, Vec<String>> {
        let mut line = CommandLine::parse(arguments);
        if line.help {
            return Ok(Command::Print(table::help()));
        }
        if line.version {
            return Ok(Command::Print(format!("apid {}\n", env!("CARGO_PKG_VERSION"))));
        }
        let config = Config::from_line(&mut line);
        match config {
            Some(config) if line.errors.is_empty() => Ok(Command::Serve(Box::new(config))),
            _ => Err(line.errors),
        }
    }

    /// Builds the configuration. Returns None when a required flag is missing; the errors are in the line.
    fn from_line(line: &mut CommandLine) -> Option<Self> {
        let mut warnings = Vec::new();
        let preset = line
            .read("names", |text| text.parse::<Preset>().map_err(|error| error.to_string()))
            .unwrap_or(Preset::Svc);
        let names = match Names::new(preset, line.value("api-domain").unwrap_or(DEFAULT_API_DOMAIN)) {
            Ok(names) => Some(names),
            Err(why) => {
                line.errors.push(format!("`--api-domain`: {why}"));
                None
            }
        };
        let data_dir = line.value("data-dir").map(PathBuf::from);
        if data_dir.is_none() {
            line.errors.push("`--data-dir` is required: set it to the directory of the store".to_owned());
        }
        let authd = read_authd(line, &mut warnings);
        let tls = match (line.value("tls-cert-file"), line.value("tls-private-key-file")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (Some(_), None) => {
                line.errors.push("`--tls-cert-file` requires `--tls-private-key-file`".to_owned());
                None
            }
            (None, _) => None,
        };
        let gates = match FeatureGates::parse(&line.list("feature-gates").join(",")) {
            Ok((gates, notes)) => {
                warnings.extend(notes);
                Some(gates)
            }
            Err(why) => {
                line.errors.push(format!("`--feature-gates`: {why}"));
                None
            }
        };
        let time = |line: &mut CommandLine, name: &str, default: u64| {
            line.read(name, serving::flags::duration).unwrap_or(Duration::from_secs(default))
        };
        let history_retention = time(line, "history-retention", 300);
        let event_ttl = time(line, "event-ttl", 3600);
        let request_timeout = time(line, "request-timeout", 60);
        let authd_timeout = time(line, "authd-timeout", 10);
        let shutdown_delay = time(line, "shutdown-delay-duration", 0);
        let livez_grace = time(line, "livez-grace-period", 0);
        let bind_address =
            line.read("bind-address", |v| v.parse().map_err(|_| "not an IP address".to_owned()));
        let secure_port =
            line.read("secure-port", |v| v.parse().map_err(|_| "not a port (0 to 65535)".to_owned()));
        let advertise_address =
            line.read("advertise-address", |v| v.parse().map_err(|_| "not an IP address".to_owned()));
        let service_ranges = line.read("service-cluster-ip-range", ServiceRange::parse_list);
        let min_request_timeout =
            line.read("min-request-timeout", |v| v.parse().map_err(|_| "not a number of seconds".to_owned()));
        let mut count =
            |name| line.read(name, |v| v.parse().map_err(|_| "not a number of requests".to_owned()));
        let (reading, writing) = (count("max-requests-inflight"), count("max-mutating-requests-inflight"));
        let max_in_flight = (reading.unwrap_or(400), writing.unwrap_or(200));
        let storage_quota = line.read("storage-quota", bytes);
        let body_limits = body_limits(line);
        let delete_workers = line.read("delete-collection-workers", |v| match v.parse() {
            Ok(workers) if workers > 0 => Ok(workers),
            _ => Err("not a number above 0".to_owned()),
        });
        let verbosity = line.read("v", |v| v.parse().map_err(|_| "not a level (0 to 9)".to_owned()));
        let log_json = line.read("logging-format", |v| match v {
            "text" => Ok(false),
            "json" => Ok(true),
            _ => Err("use text or json".to_owned()),
        });
        let proxy = |names: &[&str]| -> Vec<String> {
            names.iter().flat_map(|name| line.list(name)).map(|v| v.to_ascii_lowercase()).collect()
        };
        let headers = ProxyHeaders {
            names: proxy(&[
                "requestheader-username-headers",
                "requestheader-uid-headers",
                "requestheader-group-headers",
            ]),
            prefixes: proxy(&["requestheader-extra-headers-prefix"]),
        };
        // Without this CA bundle no client is an authenticating proxy, and apid does not interpret these
        // headers.
        let proxy_headers = line.value("requestheader-client-ca-file").map(|_| headers).unwrap_or_default();
        let flags_in_state = |line: &CommandLine, state| -> Vec<String> {
            line.given()
                .filter(|(flag, _)| flag.state == state)
                .map(|(flag, _)| flag.name.to_owned())
                .collect()
        };
        for name in flags_in_state(line, FlagState::UnsafeToIgnore) {
            line.errors.push(format!(
                "`--{name}` is not implemented yet; apid does not start, because ignoring the flag would be unsafe"
            ));
        }
        let unimplemented_flags = flags_in_state(line, FlagState::Planned);
        let hidden =
            line.value("show-hidden-metrics-for-version").map(serving::metrics::Metrics::showing_hidden);
        if let Some(Err(why)) = hidden {
            line.errors.push(format!("`--show-hidden-metrics-for-version`: {why}"));
        }
        let modes = line.list("authorization-mode");
        let allows_everything = (modes.is_empty() && line.value("authorization-config").is_none())
            || modes.iter().any(|mode| mode == "AlwaysAllow");
        let names = names?;
        let admission_configuration = read_admission(line, &names);
        let path = |name: &str| line.value(name).map(PathBuf::from);
        let data_dir = data_dir?;
        Some(Config {
            port_file: path("port-file").unwrap_or_else(|| data_dir.join("apid.port")),
            cert_dir: path("cert-dir").unwrap_or_else(|| data_dir.join("certs")),
            names,
            bind_address: bind_address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            secure_port: secure_port.unwrap_or(6443),
            advertise_address,
            service_ranges: service_ranges.unwrap_or_else(|| vec![ServiceRange::DEFAULT]),
            tls,
            client_cas: ["client-ca-file", "requestheader-client-ca-file"]
                .into_iter()
                .filter_map(path)
                .collect(),
            published_config: PublishedConfig::of(line),
            hidden_metrics: line.value("show-hidden-metrics-for-version").unwrap_or_default().to_owned(),
            authd: authd?,
            authd_socket: path("authd-socket"),
            authd_timeout,
            history_retention,
            event_ttl,
            storage_quota,
            body_limits,
            request_timeout,
            max_in_flight,
            min_request_timeout: Duration::from_secs(min_request_timeout.unwrap_or(1800)),
            delete_workers: delete_workers.unwrap_or(1),
            garbage_collector: line.value("enable-garbage-collector").is_none_or(|value| value == "true"),
            shutdown_delay,
            livez_grace,
            enable_admission: line.list("enable-admission-plugins"),
            disable_admission: line.list("disable-admission-plugins"),
            admission_configuration,
            gates: gates?,
            audit_log: line.value("audit-log-path").map(str::to_owned),
            controllers_have_accounts: line.switch("use-service-account-credentials"),
            proxy_headers,
            verbosity: verbosity.unwrap_or(0),
            log_json: log_json.unwrap_or(false),
            allows_everything,
            unimplemented_flags,
            warnings,
            data_dir,
        })
    }
}

/// Reads the file of `--admission-control-config-file` with all files that it refers to.
fn read_admission(line: &mut CommandLine, names: &Names) -> admission::Configuration {
    let Some(file) = line.value("admission-control-config-file").map(PathBuf::from) else {
        return admission::Configuration::default();
    };
    let folder = file.parent().map(PathBuf::from).unwrap_or_default();
    let read = |path: &str| std::fs::read(folder.join(path)).map_err(|error| error.to_string());
    let parsed = std::fs::read(&file)
        .map_err(|error| vec![format!("file `{}`: {error}", file.display())])
        .and_then(|text| admission::Configuration::parse(&file.display().to_string(), &text, names, &read));
    parsed.unwrap_or_else(|errors| {
        let lines = errors.iter().map(|error| format!("`--admission-control-config-file`: {error}"));
        line.errors.extend(lines);
        admission::Configuration::default()
    })
}

fn read_authd(line: &mut CommandLine, warnings: &mut Vec<String>) -> Option<Authd> {
    if line.switch("spawn-authd") {
        let program = line.value("authd-program").map(PathBuf::from);
        return Some(Authd::Spawned { program, flags: authd_flags(line) });
    }
    for (flag, _) in line.given().filter(|(flag, _)| flag.owner == table::FlagOwner::Authd) {
        warnings.push(format!("`--{}` is a flag of authd; ignored without `--spawn-authd`", flag.name));
    }
    let socket = line.value("authd-socket").map(PathBuf::from);
    if socket.is_none() {
        let text = "authd is not configured: use `--spawn-authd` to start it, or `--authd-socket` for the socket of a running one";
        line.errors.push(text.to_owned());
    }
    socket.map(Authd::At)
}

/// Returns the flags for authd, as given on the command line.
fn authd_flags(line: &CommandLine) -> Vec<String> {
    line.given()
        .filter(|(flag, _)| flag.owner.is_for_authd())
        .flat_map(|(flag, values)| {
            let dashes = if flag.name.len() == 1 { "-" } else { "--" };
            let values = match flag.takes {
                table::FlagValue::List(_) => values.to_vec(),
                table::FlagValue::JoinedList(_) => vec![values.join(",")],
                // The last value wins.
                table::FlagValue::Switch | table::FlagValue::Value(_) => {
                    values.last().cloned().into_iter().collect()
                }
            };
            values.into_iter().map(move |value| format!("{dashes}{}={value}", flag.name))
        })
        .collect()
}

/// Returns the limits of request bodies, with the decode limits of the command line.
fn body_limits(line: &mut CommandLine) -> Limits {
    let elements = line.read("max-request-elements", |v| match v.parse() {
        Ok(elements) if elements > 0 => Ok(elements),
        _ => Err("not a number of values above 0".to_owned()),
    });
    let tree_bytes = line.read("max-request-tree-bytes", |v| match bytes(v).map(usize::try_from) {
        Ok(Ok(size)) if size > 0 => Ok(size),
        _ => Err("not a size above 0".to_owned()),
    });
    Limits {
        elements: elements.unwrap_or(Limits::BODY.elements),
        tree_bytes: tree_bytes.unwrap_or(Limits::BODY.tree_bytes),
        ..Limits::BODY
    }
}

/// Parses a number of bytes: `1000`, `4K`, `16Mi`.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: &[(&str, u64)] = &[
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    let number: u64 = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Config, Vec<String>> {
        match Config::read(arguments.iter().map(|a| (*a).to_owned()))? {
            Command::Serve(config) => Ok(*config),
            Command::Print(text) => panic!("printed {text}"),
        }
    }

    #[test]
    fn flag_defaults_match_kube_apiserver() {
        let config = read(&["--data-dir=/d", "--spawn-authd"]).unwrap();
        assert_eq!((config.bind_address.to_string().as_str(), config.secure_port), ("0.0.0.0", 6443));
        assert_eq!(config.cert_dir, PathBuf::from("/d/certs"));
        assert_eq!(config.request_timeout, Duration::from_secs(60));
        assert_eq!(config.history_retention, Duration::from_secs(300));
        assert_eq!(config.event_ttl, Duration::from_secs(3600));
        assert_eq!(config.names.preset(), Preset::Svc);
        assert!(config.allows_everything, "without a mode, AlwaysAllow applies");
        assert!(
            !read(&["--data-dir=/d", "--spawn-authd", "--authorization-mode=RBAC"])
                .unwrap()
                .allows_everything
        );
    }

    #[test]
    fn invalid_flags_are_reported_together() {
        let errors = read(&[
            "--names=other",
            "--secure-port=70000",
            "--bind-address=here",
            "--storage-quota=much",
            "--history-retention=soon",
            "--tls-cert-file=c",
            "--nope",
        ])
        .unwrap_err();
        for word in [
            "nope",
            "names",
            "secure-port",
            "bind-address",
            "storage-quota",
            "history-retention",
            "data-dir",
            "spawn-authd",
            "tls-private-key",
        ] {
            assert!(errors.iter().any(|m| m.contains(word)), "{word} in {errors:#?}");
        }
    }

    #[test]
    fn spawned_authd_receives_own_and_shared_flags() {
        let config = read(&[
            "--data-dir=/d",
            "--spawn-authd",
            "--names",
            "kubernetes",
            "--token-auth-file",
            "/t",
            "--anonymous-auth=false",
            "--authorization-mode=Node",
            "--authorization-mode=RBAC",
            "-v=4",
            "--audit-log-path=-",
        ])
        .unwrap();
        let Authd::Spawned { flags, .. } = config.authd else { panic!("not spawned") };
        let mut flags = flags;
        flags.sort();
        assert_eq!(
            flags,
            [
                "--anonymous-auth=false",
                "--authorization-mode=Node,RBAC",
                "--names=kubernetes",
                "--token-auth-file=/t",
                "-v=4",
            ]
        );
    }

    #[test]
    fn unimplemented_flags_are_accepted_and_listed() {
        let config =
            read(&["--data-dir=/d", "--authd-socket=/s", "--profiling", "--token-auth-file=/t"]).unwrap();
        assert_eq!(config.unimplemented_flags, ["profiling"]);
        assert!(config.warnings.iter().any(|w| w.contains("token-auth-file")));
        assert_eq!(config.authd, Authd::At("/s".into()));
    }

    /// These flags need no implementation, so no log line mentions them.
    #[test]
    fn etcd_and_watch_cache_flags_are_accepted_without_warning() {
        let config = read(&[
            "--data-dir=/d",
            "--spawn-authd",
            "--etcd-prefix=/registry",
            "--etcd-compaction-interval=5m",
            "--storage-media-type=application/json",
            "--watch-cache=true",
            "--default-watch-cache-size=100",
            "--watch-cache-sizes=pods#1000,nodes#100",
            "--event-ttl=90m",
        ])
        .unwrap();
        assert_eq!(config.unimplemented_flags, Vec::<String>::new());
        assert_eq!(config.event_ttl, Duration::from_secs(5400));
    }

    #[test]
    fn decode_limits_follow_flags_and_reject_zero() {
        let limits = |words: &[&str]| {
            read(&[&["--spawn-authd", "--data-dir=/d"], words].concat()).map(|c| c.body_limits)
        };
        assert_eq!(limits(&[]).unwrap(), Limits::BODY);
        let given = limits(&["--max-request-elements=1000", "--max-request-tree-bytes=8Mi"]).unwrap();
        assert_eq!(given, Limits { elements: 1000, tree_bytes: 8 << 20, ..Limits::BODY });
        let errors = limits(&["--max-request-elements=0", "--max-request-tree-bytes=some"]).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn help_shows_default_decode_limits() {
        for (flag, default) in [
            ("max-request-elements", format!("(default {})", Limits::BODY.elements)),
            ("max-request-tree-bytes", format!("(default {}Mi)", Limits::BODY.tree_bytes >> 20)),
        ] {
            let help = table::FLAGS.iter().find(|f| f.name == flag).unwrap().help;
            assert!(help.contains(&default), "{help}");
        }
    }

    #[test]
    fn byte_sizes_parse_with_units() {
        for (text, expected) in [
            ("7", Some(7)),
            ("2Ki", Some(2048)),
            ("3G", Some(3_000_000_000)),
            ("x", None),
            ("", None),
            ("99999999T", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
    }
}
