//! Flags of kube-apiserver 1.33 that apid accepts without an effect, or rejects, with the reason.
//!
//! # Contract
//!
//! A flag that becomes implemented is removed from its table. The help text of a flag contains the reason; `docs/flags.md` repeats the text.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use serving::flags::boolean;

use super::etcd_flags::WITHOUT_SERVERS;

/// The syntax of the value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagForm {
    /// No value, `=true` or `=false`.
    Switch,
    /// One value; the last one wins.
    Value(&'static str),
    /// Repeatable; each value is a list separated by commas.
    List(&'static str),
}

use FlagForm::{List, Switch, Value};

/// The name, form and help text of a flag.
type FlagRow = (&'static str, FlagForm, &'static str);

/// The effect of a flag that is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagState {
    /// Not implemented yet: accepted, with a log line.
    Planned,
    /// Accepted for compatibility of command lines, and not needed in apid; the help text says why.
    NotNeeded,
    /// Not implemented, and unsafe to ignore: apid does not start.
    UnsafeToIgnore,
}

impl FlagForm {
    /// Declares a flag with a value of this form.
    fn arg(self, name: &'static str) -> Arg {
        let arg = Arg::new(name).long(name);
        match self {
            Switch => arg
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(boolean),
            Value(value_name) => arg.value_name(value_name),
            List(value_name) => arg.value_name(value_name).action(ArgAction::Append),
        }
    }
}

/// Declares the flags without an effect for clap.
pub(super) fn args() -> impl Iterator<Item = Arg> {
    REFERENCE_FLAGS.iter().flat_map(|(state, rows)| {
        let heading = match state {
            FlagState::Planned => "Flags that are not implemented yet: accepted without an effect",
            FlagState::NotNeeded => "Flags that are not needed: accepted without an effect",
            FlagState::UnsafeToIgnore => "Flags that are not implemented yet: rejected",
        };
        rows.iter().map(move |(name, form, help)| form.arg(name).help(*help).help_heading(heading))
    })
}

/// Returns the flags on the command line that apid does not need, each with its reason.
pub(super) fn unneeded_flags(matches: &ArgMatches) -> Vec<(&'static str, &'static str)> {
    let rows = REFERENCE_FLAGS.iter().filter(|(state, _)| *state == FlagState::NotNeeded);
    let rows = rows.flat_map(|(_, rows)| *rows).map(|(name, _, reason)| (*name, *reason));
    let is_embedded = !is_given(matches, "etcd_servers");
    let of_etcd = WITHOUT_SERVERS.iter().filter(|_| is_embedded).map(|name| (*name, EMBEDDED));
    let mut given: Vec<_> =
        rows.chain(of_etcd).filter(|(name, _)| is_given(matches, &argument_id(name))).collect();
    given.sort_unstable();
    given
}

/// The id of the argument of a flag: declared flags have underscores, the flags of this file dashes.
fn argument_id(name: &str) -> String {
    if WITHOUT_SERVERS.contains(&name) { name.replace('-', "_") } else { name.to_owned() }
}

/// The reason why flags of etcd have no effect.
const EMBEDDED: &str = "the store is in --data-dir without --etcd-servers";

/// Returns the flags of the command line that have the state `state`, sorted.
pub(super) fn names_without_effect(matches: &ArgMatches, state: FlagState) -> Vec<String> {
    let rows =
        REFERENCE_FLAGS.iter().filter(|(row_state, _)| *row_state == state).flat_map(|(_, rows)| *rows);
    let mut names: Vec<String> =
        rows.filter(|(name, ..)| is_given(matches, name)).map(|(name, ..)| (*name).to_owned()).collect();
    names.sort_unstable();
    names
}

fn is_given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(ValueSource::CommandLine)
}

/// Flags without an effect, by state.
const REFERENCE_FLAGS: &[(FlagState, &[FlagRow])] = &[
    (FlagState::Planned, PLANNED),
    (FlagState::NotNeeded, NOT_NEEDED),
    (FlagState::UnsafeToIgnore, UNSAFE_TO_IGNORE),
];

/// Flags that kube-apiserver has deprecated, with the ids of their arguments and advice. A log line warns of each one on the
/// command line.
const DEPRECATED: [(&str, &str, &str); 2] = [
    ("apiserver-count", "apiserver_count", "`--endpoint-reconciler-type=lease` needs no number of servers"),
    (
        "enable-logs-handler",
        "enable-logs-handler",
        "remove the flag, which has no effect: apid writes no log files",
    ),
];

/// Returns the deprecated flags on the command line, each with advice.
pub(super) fn deprecated_flags(matches: &ArgMatches) -> impl Iterator<Item = (&'static str, &'static str)> {
    let given = DEPRECATED.into_iter().filter(|(_, id, _)| is_given(matches, id));
    given.map(|(name, _, advice)| (name, advice))
}

const PLANNED: &[FlagRow] = &[
    ("allow-metric-labels", List("METRIC,LABEL=VALUES"), "Allowed values of labels of metrics"),
    ("allow-metric-labels-manifest", Value("FILE"), "File of --allow-metric-labels"),
    (
        "cors-allowed-origins",
        List("REGEX"),
        "Origins of web pages that may send requests; without CORS, browsers reject all",
    ),
    (
        "default-not-ready-toleration-seconds",
        Value("SECONDS"),
        "Toleration of not-ready nodes in new pods; it is 300 s",
    ),
    (
        "default-unreachable-toleration-seconds",
        Value("SECONDS"),
        "Toleration of unreachable nodes in new pods; it is 300 s",
    ),
    ("disabled-metrics", List("METRIC,..."), "Metrics to leave out"),
    ("external-hostname", Value("NAME"), "Host name in generated URLs"),
    ("goaway-chance", Value("CHANCE"), "Probability that a client is told to reconnect with GOAWAY"),
    ("http2-max-streams-per-connection", Value("COUNT"), "Limit of HTTP/2 streams of a connection"),
    ("permit-address-sharing", Switch, "Bind with SO_REUSEADDR"),
    ("permit-port-sharing", Switch, "Bind with SO_REUSEPORT"),
    ("profiling", Switch, "Profiling over HTTP"),
    ("shutdown-send-retry-after", Switch, "Answer 429 during the shutdown delay"),
    (
        "shutdown-watch-termination-grace-period",
        Value("TIME"),
        "Time at shutdown in which watches end; they end at once",
    ),
    (
        "strict-transport-security-directives",
        List("DIRECTIVE,..."),
        "Directives of the header Strict-Transport-Security",
    ),
    ("tls-sni-cert-key", List("FILES"), "Additional certificates, selected by SNI"),
    ("tracing-config-file", Value("FILE"), "Export of OpenTelemetry traces"),
    ("vmodule", List("MODULE=LEVEL,..."), "Log verbosity by source file"),
];

const NOT_NEEDED: &[FlagRow] = &[
    (
        "aggregator-reject-forwarding-redirect",
        Switch,
        "Reject redirects of extension API servers; apid never follows one",
    ),
    (
        "allow-privileged",
        Switch,
        "Allow privileged containers; apid runs no containers and always stores them",
    ),
    ("contention-profiling", Switch, "Profile of lock contention in the Go runtime, which apid does not use"),
    (
        "coordinated-leadership-lease-duration",
        Value("TIME"),
        "Coordinated leader election; its alpha API is not served",
    ),
    (
        "coordinated-leadership-renew-deadline",
        Value("TIME"),
        "Coordinated leader election; its alpha API is not served",
    ),
    (
        "coordinated-leadership-retry-period",
        Value("TIME"),
        "Coordinated leader election; its alpha API is not served",
    ),
    ("debug-socket-path", Value("FILE"), "Socket of the profiler of the Go runtime, which apid does not use"),
    (
        "default-watch-cache-size",
        Value("COUNT"),
        "Number of watch events in memory per resource; the limit is in bytes, and older events are read from the store",
    ),
    ("enable-logs-handler", Switch, "Serve log files at /logs; apid writes no log files"),
    (
        "etcd-count-metric-poll-period",
        Value("TIME"),
        "Interval of counting objects; counts are always current",
    ),
    (
        "kubernetes-service-node-port",
        Value("PORT"),
        "Node port of the Service of the API; nodes forward no traffic",
    ),
    ("log-flush-frequency", Value("TIME"), "Interval of log flushes; each line is written at once"),
    ("log-json-info-buffer-size", Value("BYTES"), "Buffer of log lines; each line is written at once"),
    (
        "log-json-split-stream",
        Switch,
        "Errors to standard error, information to standard output; all lines go to standard error",
    ),
    ("log-text-info-buffer-size", Value("BYTES"), "Buffer of log lines; each line is written at once"),
    (
        "log-text-split-stream",
        Switch,
        "Errors to standard error, information to standard output; all lines go to standard error",
    ),
    (
        "max-connection-bytes-per-sec",
        Value("BYTES"),
        "Bandwidth of a connection of users; kube-apiserver ignores it too",
    ),
    ("peer-advertise-ip", Value("IP"), "Address for other API servers; apids do not call each other"),
    ("peer-advertise-port", Value("PORT"), "Port for other API servers; apids do not call each other"),
    ("peer-ca-file", Value("FILE"), "CA bundle of other API servers; apids do not call each other"),
    (
        "storage-backend",
        Value("NAME"),
        "Storage backend; --etcd-servers selects etcd, else the store is embedded",
    ),
    ("watch-cache", Switch, "Serve reads from the watch cache; reads always are, and are consistent"),
    ("watch-cache-sizes", List("SIZES"), "Watch cache sizes by resource; see --default-watch-cache-size"),
];

const UNSAFE_TO_IGNORE: &[FlagRow] = &[
    ("disable-http2-serving", Switch, "Serve HTTP/1.1 only; HTTP/2 cannot be switched off"),
    (
        "egress-selector-config-file",
        Value("FILE"),
        "Proxy for connections to webhooks and nodes; connections would bypass it",
    ),
    (
        "service-account-signing-endpoint",
        Value("SOCKET"),
        "External signer; tokens would have another signature",
    ),
    ("tls-cipher-suites", List("SUITES"), "TLS cipher suites"),
    ("tls-min-version", Value("VERSION"), "Minimum TLS version"),
];
