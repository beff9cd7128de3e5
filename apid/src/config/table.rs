//! All flags that apid accepts: its own, and those that it passes to a spawned authd.
//!
//! # Contract
//!
//! Each flag is one entry; parsing, `--help` and the flags of authd are derived from the table. Names are
//! those of kube-apiserver where it has the flag (requirements, appendix (b)).

use serving::gates::GATES;

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagValue {
    /// No value, `=true` or `=false`.
    Switch,
    /// One value; the last one wins.
    Value(&'static str),
    /// Repeatable; each value is a list separated by commas.
    List(&'static str),
    /// Like `List`, but passed to authd as one value.
    JoinedList(&'static str),
}

/// The process that uses a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagOwner {
    /// Only apid.
    Apid,
    /// Only authd.
    Authd,
    /// Both processes.
    Both,
}

impl FlagOwner {
    /// Whether apid passes the flag to authd.
    pub(super) fn is_for_authd(self) -> bool {
        matches!(self, FlagOwner::Authd | FlagOwner::Both)
    }
}

/// Implementation state of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagState {
    /// Implemented.
    Implemented,
    /// Not implemented yet: accepted, with a log line.
    Planned,
    /// Accepted for compatibility of command lines, and not needed here; the help text says why.
    NotNeeded,
    /// Not implemented, and unsafe to ignore: apid does not start.
    UnsafeToIgnore,
}

/// A command line flag.
#[derive(Debug)]
pub(super) struct Flag {
    /// Name without the dashes.
    pub(super) name: &'static str,
    /// Form of the value.
    pub(super) takes: FlagValue,
    /// Process that uses the flag.
    pub(super) owner: FlagOwner,
    /// Implementation state.
    pub(super) state: FlagState,
    /// Help text.
    pub(super) help: &'static str,
}

use FlagOwner::{Apid, Authd, Both};
use FlagValue::{JoinedList, List, Switch, Value};

const fn flag(name: &'static str, takes: FlagValue, owner: FlagOwner, help: &'static str) -> Flag {
    Flag { name, takes, owner, state: FlagState::Implemented, help }
}

const fn planned(name: &'static str, takes: FlagValue, owner: FlagOwner, help: &'static str) -> Flag {
    Flag { name, takes, owner, state: FlagState::Planned, help }
}

const fn not_needed(name: &'static str, takes: FlagValue, help: &'static str) -> Flag {
    Flag { name, takes, owner: Apid, state: FlagState::NotNeeded, help }
}

const fn unsafe_to_ignore(
    name: &'static str,
    takes: FlagValue,
    owner: FlagOwner,
    help: &'static str,
) -> Flag {
    Flag { name, takes, owner, state: FlagState::UnsafeToIgnore, help }
}

/// All flags, in the order of `--help`.
pub(super) const FLAGS: &[Flag] = &[
    flag(
        "names",
        Value("PRESET"),
        Both,
        "names of groups, labels and namespaces: svc (default) or kubernetes",
    ),
    flag("api-domain", Value("DOMAIN"), Both, "domain of the svc preset (default svc.internal)"),
    flag("data-dir", Value("DIR"), Apid, "directory of the store; created if missing"),
    flag("bind-address", Value("IP"), Apid, "address to listen on (default 0.0.0.0)"),
    flag("secure-port", Value("PORT"), Apid, "port to listen on (default 6443); 0 lets the system choose"),
    flag(
        "advertise-address",
        Value("IP"),
        Apid,
        "address under which clients reach this process (default: --bind-address, or that of the default route)",
    ),
    flag("port-file", Value("FILE"), Apid, "file for the bound port (default DATA-DIR/apid.port)"),
    flag(
        "cert-dir",
        Value("DIR"),
        Apid,
        "directory for a generated serving certificate (default DATA-DIR/certs)",
    ),
    flag("tls-cert-file", Value("FILE"), Apid, "serving certificate, with its chain"),
    flag("tls-private-key-file", Value("FILE"), Both, "private key of --tls-cert-file"),
    flag("client-ca-file", Value("FILE"), Both, "CA bundle of client certificates"),
    flag("client-crl-file", Value("FILE"), Authd, "revocation lists (CRL) of client certificates"),
    flag(
        "root-ca-file",
        Value("FILE"),
        Apid,
        "CA bundle with which pods verify this server; published in every namespace and in token Secrets",
    ),
    flag("authd-socket", Value("FILE"), Apid, "unix socket of authd; created with --spawn-authd"),
    flag("spawn-authd", Switch, Apid, "start authd, and stop it with this process"),
    flag(
        "authd-program",
        Value("FILE"),
        Apid,
        "path of authd for --spawn-authd (default: beside apid, then on PATH)",
    ),
    flag("authd-timeout", Value("TIME"), Apid, "timeout of requests to authd (default 10s)"),
    flag(
        "history-retention",
        Value("TIME"),
        Apid,
        "retention time of old revisions and watch events (default 5m)",
    ),
    flag(
        "storage-quota",
        Value("BYTES"),
        Apid,
        "maximum size of the store; units K, M, G, T, Ki, Mi, Gi, Ti (default: no limit)",
    ),
    flag(
        "request-timeout",
        Value("TIME"),
        Apid,
        "timeout of requests other than watches, including the response body (default 1m)",
    ),
    flag(
        "min-request-timeout",
        Value("SECONDS"),
        Apid,
        "minimum duration of a watch without a timeout (default 1800)",
    ),
    flag(
        "max-requests-inflight",
        Value("COUNT"),
        Apid,
        "limit of reading requests in flight; more get 429; 0 means no limit (default 400)",
    ),
    flag(
        "max-mutating-requests-inflight",
        Value("COUNT"),
        Apid,
        "limit of mutating requests in flight; more get 429; 0 means no limit (default 200)",
    ),
    flag(
        "max-request-elements",
        Value("COUNT"),
        Apid,
        "limit of values (scalars, lists and objects) in a request body; more get 413 (default 400000)",
    ),
    flag(
        "max-request-tree-bytes",
        Value("BYTES"),
        Apid,
        "limit of the estimated memory of a decoded request body; more get 413 (default 48Mi)",
    ),
    flag(
        "shutdown-delay-duration",
        Value("TIME"),
        Apid,
        "time after SIGTERM during which requests are served and /readyz fails (default 0s)",
    ),
    flag(
        "livez-grace-period",
        Value("TIME"),
        Apid,
        "time after start during which /livez ignores checks that do not pass yet (default 0s)",
    ),
    flag(
        "enable-admission-plugins",
        List("NAMES"),
        Apid,
        "admission plugins to enable in addition to the default ones",
    ),
    flag("disable-admission-plugins", List("NAMES"), Apid, "admission plugins to disable"),
    flag(
        "admission-control-config-file",
        Value("FILE"),
        Apid,
        "configuration of admission plugins: an AdmissionConfiguration in YAML or JSON",
    ),
    flag("feature-gates", JoinedList("GATE=BOOL"), Both, "feature gates"),
    flag(
        "audit-log-path",
        Value("FILE"),
        Apid,
        "audit log, one line of JSON per request; - is standard output",
    ),
    flag(
        "use-service-account-credentials",
        Switch,
        Apid,
        "controllers write as service accounts of their own",
    ),
    flag("v", Value("LEVEL"), Both, "log verbosity: 0 (default) to 9"),
    flag("logging-format", Value("FORMAT"), Both, "text (default) or json"),
    flag("token-auth-file", Value("FILE"), Authd, "static tokens: token,user,uid,\"group,group\" lines"),
    flag(
        "anonymous-auth",
        Switch,
        Authd,
        "accept requests without credentials as system:anonymous (default true; false if every request is allowed)",
    ),
    flag(
        "authorization-mode",
        JoinedList("MODES"),
        Authd,
        "ordered modes: Node, RBAC, ABAC, Webhook; AlwaysAllow (default) and AlwaysDeny are for testing only",
    ),
    flag(
        "service-account-issuer",
        List("ISSUERS"),
        Authd,
        "issuers of service account tokens; the first one issues new tokens",
    ),
    flag("enable-bootstrap-token-auth", Switch, Authd, "accept bootstrap tokens"),
    flag("service-account-key-file", List("FILE"), Authd, "keys that verify service account tokens"),
    flag("service-account-signing-key-file", Value("FILE"), Authd, "key that signs service account tokens"),
    flag("service-account-lookup", Switch, Authd, "reject tokens of deleted service accounts (default true)"),
    flag("service-account-jwks-uri", Value("URL"), Authd, "JWKS URI in the OpenID discovery document"),
    flag("service-account-max-token-expiration", Value("TIME"), Authd, "maximum lifetime of an issued token"),
    flag(
        "service-account-extend-token-expiration",
        Switch,
        Authd,
        "extend the lifetime of projected tokens beyond the request (default true)",
    ),
    flag(
        "api-audiences",
        List("AUDIENCES"),
        Authd,
        "accepted token audiences of this API (default: the issuers)",
    ),
    flag(
        "authentication-config",
        Value("FILE"),
        Authd,
        "AuthenticationConfiguration: JWT authenticators and paths of anonymous requests; hot reload",
    ),
    flag("authentication-token-webhook-config-file", Value("FILE"), Authd, "kubeconfig of the token webhook"),
    flag(
        "authentication-token-webhook-cache-ttl",
        Value("TIME"),
        Authd,
        "TTL of accepted tokens in the webhook cache (default 2m)",
    ),
    flag(
        "authentication-token-webhook-version",
        Value("VERSION"),
        Authd,
        "version of TokenReview for the webhook: v1 or v1beta1 (default)",
    ),
    flag("authorization-config", Value("FILE"), Authd, "AuthorizationConfiguration; hot reload"),
    flag(
        "authorization-policy-file",
        Value("FILE"),
        Authd,
        "policies of mode ABAC, one JSON object per line",
    ),
    flag(
        "authorization-webhook-config-file",
        Value("FILE"),
        Authd,
        "kubeconfig of the authorization webhook",
    ),
    flag(
        "authorization-webhook-cache-authorized-ttl",
        Value("TIME"),
        Authd,
        "TTL of authorized responses in the webhook cache (default 5m)",
    ),
    flag(
        "authorization-webhook-cache-unauthorized-ttl",
        Value("TIME"),
        Authd,
        "TTL of unauthorized responses in the webhook cache (default 30s)",
    ),
    flag(
        "authorization-webhook-version",
        Value("VERSION"),
        Authd,
        "version of SubjectAccessReview for the webhook: v1 or v1beta1 (default)",
    ),
    flag("oidc-issuer-url", Value("URL"), Authd, "OpenID Connect issuer"),
    flag("oidc-client-id", Value("ID"), Authd, "audience of OpenID Connect tokens"),
    flag("oidc-username-claim", Value("CLAIM"), Authd, "claim with the user name (default sub)"),
    flag("oidc-username-prefix", Value("PREFIX"), Authd, "prefix of user names; - for none"),
    flag("oidc-groups-claim", Value("CLAIM"), Authd, "claim with the groups"),
    flag("oidc-groups-prefix", Value("PREFIX"), Authd, "prefix of groups"),
    flag("oidc-required-claim", List("CLAIM=VALUE"), Authd, "required claims of a token"),
    flag("oidc-ca-file", Value("FILE"), Authd, "CA bundle for the issuer's certificate"),
    flag("oidc-signing-algs", List("ALGORITHMS"), Authd, "accepted signature algorithms (default RS256)"),
    flag("requestheader-client-ca-file", Value("FILE"), Both, "CA bundle of authenticating proxies"),
    flag(
        "requestheader-allowed-names",
        List("NAMES"),
        Both,
        "accepted common names of proxy certificates (default: any)",
    ),
    flag(
        "requestheader-username-headers",
        List("HEADERS"),
        Both,
        "proxy headers with the user name; the first one with a value is used",
    ),
    flag("requestheader-uid-headers", List("HEADERS"), Both, "proxy headers with the uid"),
    flag(
        "requestheader-group-headers",
        List("HEADERS"),
        Both,
        "proxy headers with groups; all values of all headers are used",
    ),
    flag(
        "requestheader-extra-headers-prefix",
        List("PREFIXES"),
        Both,
        "prefixes of proxy headers with extra attributes",
    ),
    flag("controllers", List("NAMES"), Authd, "controllers to run (default *)"),
    planned("runtime-config", List("VERSION=BOOL"), Apid, "API versions to enable or disable"),
    flag(
        "show-hidden-metrics-for-version",
        Value("VERSION"),
        Both,
        "show the metrics that are hidden since this version; only the previous version is allowed",
    ),
    flag(
        "metrics-address",
        Value("ADDRESS:PORT"),
        Authd,
        "loopback address on which authd serves its own metrics and health (default: none)",
    ),
    unsafe_to_ignore("tls-min-version", Value("VERSION"), Apid, "minimum TLS version"),
    unsafe_to_ignore("tls-cipher-suites", List("SUITES"), Apid, "TLS cipher suites"),
    planned("tls-sni-cert-key", List("FILES"), Apid, "additional certificates, selected by SNI"),
    unsafe_to_ignore("audit-policy-file", Value("FILE"), Apid, "audit policy"),
    planned("audit-log-format", Value("FORMAT"), Apid, "format of the audit log"),
    planned("audit-log-maxage", Value("DAYS"), Apid, "maximum age of rotated audit logs"),
    planned("audit-log-maxbackup", Value("COUNT"), Apid, "maximum number of rotated audit logs"),
    planned("audit-log-maxsize", Value("MEGABYTES"), Apid, "maximum size of the audit log before rotation"),
    planned("audit-webhook-config-file", Value("FILE"), Apid, "kubeconfig of the audit webhook"),
    planned("audit-webhook-mode", Value("MODE"), Apid, "mode in which audit events are sent"),
    planned("enable-priority-and-fairness", Switch, Apid, "fair queuing of requests"),
    planned(
        "goaway-chance",
        Value("CHANCE"),
        Apid,
        "probability that a client is told to reconnect with GOAWAY",
    ),
    flag(
        "delete-collection-workers",
        Value("COUNT"),
        Apid,
        "number of concurrent deletes of a deletecollection (default 1)",
    ),
    flag("enable-garbage-collector", Switch, Apid, "delete objects whose owners are gone (default true)"),
    flag(
        "event-ttl",
        Value("TIME"),
        Apid,
        "time after its last write at which an Event is deleted (default 1h; 0 means never)",
    ),
    flag(
        "service-cluster-ip-range",
        Value("RANGE"),
        Apid,
        "IP range of Services, or one range per IP family (default 10.0.0.0/24)",
    ),
    planned("service-node-port-range", Value("RANGE"), Apid, "range of Service node ports"),
    unsafe_to_ignore("encryption-provider-config", Value("FILE"), Apid, "encryption at rest"),
    unsafe_to_ignore("etcd-servers", List("URLS"), Apid, "store in an etcd cluster"),
    not_needed(
        "etcd-prefix",
        Value("PREFIX"),
        "key prefix in etcd; the store is not shared with other servers",
    ),
    not_needed(
        "etcd-compaction-interval",
        Value("TIME"),
        "compaction interval of etcd; --history-retention sets the retention time of history",
    ),
    not_needed(
        "storage-media-type",
        Value("TYPE"),
        "encoding of stored objects; objects are stored as served, so that lists copy their bytes",
    ),
    not_needed(
        "watch-cache",
        Switch,
        "serve reads from the watch cache; reads always are, and are consistent",
    ),
    not_needed(
        "default-watch-cache-size",
        Value("COUNT"),
        "number of watch events in memory per resource; the limit is in bytes, and older events are read from the store",
    ),
    not_needed(
        "watch-cache-sizes",
        List("SIZES"),
        "watch cache sizes by resource; see --default-watch-cache-size",
    ),
    planned("profiling", Switch, Apid, "profiling over HTTP"),
];

/// Returns the flag of a name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Returns the text of `--help`.
pub(super) fn help() -> String {
    let mut text = String::from(
        "apid serves the resource API; authd authenticates and authorizes every request.\n\n\
         usage: apid --data-dir DIR --spawn-authd [flags]\n       apid --data-dir DIR --authd-socket FILE [flags]\n       \
         apid certs --help\n       apid store --help\n\nflags:\n",
    );
    for flag in FLAGS {
        let (dashes, value) = match (flag.name.len(), flag.takes) {
            (1, Value(what)) => ("-", format!(" {what}")),
            (_, Switch) => ("--", String::new()),
            (_, Value(what) | List(what) | JoinedList(what)) => ("--", format!(" {what}")),
        };
        let note = match flag.state {
            FlagState::Implemented => "",
            FlagState::NotNeeded => " (accepted; not needed here)",
            FlagState::Planned => " (accepted; not implemented yet)",
            FlagState::UnsafeToIgnore => " (not implemented yet: rejected)",
        };
        text.push_str(&format!("  {dashes}{}{value}\n        {}{note}\n", flag.name, flag.help));
    }
    text.push_str("\nfeature gates:\n");
    for gate in GATES {
        let (stage, default) = (gate.stage.as_str(), gate.default);
        text.push_str(&format!("  {}=true|false ({stage} - default={default})\n", gate.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_names_are_unique_and_have_help() {
        let mut names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        let help = help();
        assert!(FLAGS.iter().all(|flag| !flag.help.is_empty() && help.contains(flag.name)));
    }

    #[test]
    fn help_lists_feature_gates_with_stage_and_default() {
        let help = help();
        for gate in ["AuthorizeNodeWithSelectors", "AuthorizeWithSelectors"] {
            assert!(help.contains(&format!("  {gate}=true|false (BETA - default=true)\n")), "{help}");
        }
        assert!(help.contains("  WatchList=true|false (BETA - default=false)\n"), "{help}");
    }
}
