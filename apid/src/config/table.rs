//! Every flag that apid accepts: its own, and those of authd, which it passes on when it starts authd itself.
//!
//! # Contract
//!
//! One line a flag; parsing, `--help` and what is passed on follow from it. Names are kube-apiserver's where it has one
//! (requirements, appendix (b)).

use serving::gates::GATES;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing, or `=true`, `=false`.
    Switch,
    /// One value; the last one given counts.
    Value(&'static str),
    /// A value each time it is given, each a list separated by commas.
    List(&'static str),
    /// The same, passed on as one value.
    Words(&'static str),
}

/// Which process a flag is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// This one.
    Apid,
    /// The other one.
    Authd,
    /// Both need it.
    Both,
}

impl Owner {
    /// Whether authd is given the flag.
    pub(super) fn passed_on(self) -> bool {
        matches!(self, Owner::Authd | Owner::Both)
    }
}

/// How far a flag is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It does what it says.
    Built,
    /// It does nothing yet: accepted, with a line in the log.
    Later,
    /// Accepted for those who bring their command line along: there is nothing here for it to act on, and its help says
    /// why.
    Moot,
    /// Whoever gives it relies on a protection that is not there yet: the start is refused.
    Missed,
}

/// A flag.
#[derive(Debug)]
pub(super) struct Flag {
    /// Without the dashes.
    pub(super) name: &'static str,
    /// What it takes.
    pub(super) takes: Takes,
    /// Whose it is.
    pub(super) owner: Owner,
    /// Whether it does anything yet.
    pub(super) state: State,
    /// What it does, for `--help`.
    pub(super) help: &'static str,
}

use Owner::{Apid, Authd, Both};
use Takes::{List, Switch, Value, Words};

const fn flag(name: &'static str, takes: Takes, owner: Owner, help: &'static str) -> Flag {
    Flag { name, takes, owner, state: State::Built, help }
}

const fn later(name: &'static str, takes: Takes, owner: Owner, help: &'static str) -> Flag {
    Flag { name, takes, owner, state: State::Later, help }
}

const fn moot(name: &'static str, takes: Takes, help: &'static str) -> Flag {
    Flag { name, takes, owner: Apid, state: State::Moot, help }
}

const fn missed(name: &'static str, takes: Takes, owner: Owner, help: &'static str) -> Flag {
    Flag { name, takes, owner, state: State::Missed, help }
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
    flag("data-dir", Value("DIR"), Apid, "folder of the store; made when it is missing"),
    flag("bind-address", Value("IP"), Apid, "address to listen on (default 0.0.0.0)"),
    flag("secure-port", Value("PORT"), Apid, "port to listen on (default 6443); 0: the system chooses"),
    flag(
        "advertise-address",
        Value("IP"),
        Apid,
        "address under which others reach this process (default: that of --bind-address, or of the host's way out)",
    ),
    flag("port-file", Value("FILE"), Apid, "where the bound port is written (default DATA-DIR/apid.port)"),
    flag(
        "cert-dir",
        Value("DIR"),
        Apid,
        "where a serving certificate is made when none is given (default DATA-DIR/certs)",
    ),
    flag("tls-cert-file", Value("FILE"), Apid, "serving certificate, with its chain"),
    flag("tls-private-key-file", Value("FILE"), Both, "its key"),
    flag("client-ca-file", Value("FILE"), Both, "authorities whose client certificates are accepted"),
    flag("client-crl-file", Value("FILE"), Authd, "lists of revoked client certificates"),
    flag(
        "root-ca-file",
        Value("FILE"),
        Apid,
        "authority with which pods verify this server: published in every namespace and in token Secrets",
    ),
    flag("authd-socket", Value("FILE"), Apid, "unix socket of authd; made for it with --spawn-authd"),
    flag("spawn-authd", Switch, Apid, "start authd and end it with this process"),
    flag(
        "authd-program",
        Value("FILE"),
        Apid,
        "authd's program for --spawn-authd (default: beside apid, then on PATH)",
    ),
    flag("authd-timeout", Value("TIME"), Apid, "how long authd may take to decide (default 10s)"),
    flag("history-retention", Value("TIME"), Apid, "how long old versions and events are kept (default 5m)"),
    flag(
        "storage-quota",
        Value("BYTES"),
        Apid,
        "largest size of the store; K, M, G, Ki, Mi, Gi are understood (default: none)",
    ),
    flag(
        "request-timeout",
        Value("TIME"),
        Apid,
        "how long a request other than a watch may take, with the sending of its answer (default 1m)",
    ),
    flag(
        "min-request-timeout",
        Value("SECONDS"),
        Apid,
        "least time after which a watch ends by itself (default 1800)",
    ),
    flag(
        "max-requests-inflight",
        Value("COUNT"),
        Apid,
        "reading requests at the same time, beyond which they are answered 429; 0: no limit (default 400)",
    ),
    flag(
        "max-mutating-requests-inflight",
        Value("COUNT"),
        Apid,
        "writing requests at the same time, beyond which they are answered 429; 0: no limit (default 200)",
    ),
    flag(
        "max-request-elements",
        Value("COUNT"),
        Apid,
        "values in a request's body, beyond which it is answered 413: scalars, lists and objects (default 400000)",
    ),
    flag(
        "max-request-tree-bytes",
        Value("BYTES"),
        Apid,
        "estimated memory of a request's decoded body, beyond which it is answered 413 (default 48Mi)",
    ),
    flag(
        "shutdown-delay-duration",
        Value("TIME"),
        Apid,
        "after SIGTERM serve so long while /readyz fails (default 0s)",
    ),
    flag(
        "livez-grace-period",
        Value("TIME"),
        Apid,
        "time after start in which /livez ignores what is not up yet (default 0s)",
    ),
    flag("enable-admission-plugins", List("NAMES"), Apid, "admission plugins to add to the default ones"),
    flag("disable-admission-plugins", List("NAMES"), Apid, "admission plugins to leave out"),
    flag(
        "admission-control-config-file",
        Value("FILE"),
        Apid,
        "what admission plugins are told: an AdmissionConfiguration in YAML or JSON",
    ),
    flag("feature-gates", Words("GATE=BOOL"), Both, "feature gates"),
    flag("audit-log-path", Value("FILE"), Apid, "audit log, one JSON line a request; - is standard output"),
    flag(
        "use-service-account-credentials",
        Switch,
        Apid,
        "controllers write as service accounts of their own",
    ),
    flag("v", Value("LEVEL"), Both, "how much is logged: 0 (default) to 9"),
    flag("logging-format", Value("FORMAT"), Both, "text (default) or json"),
    flag("token-auth-file", Value("FILE"), Authd, "static tokens: token,user,uid,\"group,group\" lines"),
    flag(
        "anonymous-auth",
        Switch,
        Authd,
        "requests without credentials are system:anonymous (default true; false when every request is allowed)",
    ),
    flag(
        "authorization-mode",
        Words("MODES"),
        Authd,
        "ordered modes: Node, RBAC, ABAC, Webhook; AlwaysAllow (default) and AlwaysDeny are for testing only",
    ),
    flag(
        "service-account-issuer",
        List("ISSUERS"),
        Authd,
        "issuer of service account tokens; the first one issues",
    ),
    flag("enable-bootstrap-token-auth", Switch, Authd, "accept bootstrap tokens"),
    flag("service-account-key-file", List("FILE"), Authd, "keys that verify service account tokens"),
    flag("service-account-signing-key-file", Value("FILE"), Authd, "key that signs service account tokens"),
    flag("service-account-lookup", Switch, Authd, "tokens of deleted accounts are void (default true)"),
    flag("service-account-jwks-uri", Value("URL"), Authd, "where the discovery document says the keys are"),
    flag("service-account-max-token-expiration", Value("TIME"), Authd, "longest life of an issued token"),
    flag(
        "service-account-extend-token-expiration",
        Switch,
        Authd,
        "projected tokens live longer than asked (default true)",
    ),
    flag(
        "api-audiences",
        List("AUDIENCES"),
        Authd,
        "audiences of tokens for this API (default: the issuers)",
    ),
    flag(
        "authentication-config",
        Value("FILE"),
        Authd,
        "JWT authenticators and paths of anonymous requests; read again when it changes",
    ),
    flag(
        "authentication-token-webhook-config-file",
        Value("FILE"),
        Authd,
        "client configuration of a token webhook",
    ),
    flag(
        "authentication-token-webhook-cache-ttl",
        Value("TIME"),
        Authd,
        "how long tokens that it accepts are kept (default 2m)",
    ),
    flag(
        "authentication-token-webhook-version",
        Value("VERSION"),
        Authd,
        "version of TokenReview it is sent: v1 or v1beta1 (default)",
    ),
    flag(
        "authorization-config",
        Value("FILE"),
        Authd,
        "AuthorizationConfiguration, read again when it changes",
    ),
    flag("authorization-policy-file", Value("FILE"), Authd, "policies of mode ABAC, one JSON object a line"),
    flag(
        "authorization-webhook-config-file",
        Value("FILE"),
        Authd,
        "client configuration of an authorization webhook",
    ),
    flag(
        "authorization-webhook-cache-authorized-ttl",
        Value("TIME"),
        Authd,
        "how long what it allows is kept (default 5m)",
    ),
    flag(
        "authorization-webhook-cache-unauthorized-ttl",
        Value("TIME"),
        Authd,
        "how long its other answers are kept (default 30s)",
    ),
    flag(
        "authorization-webhook-version",
        Value("VERSION"),
        Authd,
        "version of SubjectAccessReview it is sent: v1 or v1beta1 (default)",
    ),
    flag("oidc-issuer-url", Value("URL"), Authd, "OpenID Connect issuer"),
    flag("oidc-client-id", Value("ID"), Authd, "audience of its tokens"),
    flag("oidc-username-claim", Value("CLAIM"), Authd, "claim that is the user name (default sub)"),
    flag("oidc-username-prefix", Value("PREFIX"), Authd, "prefix of user names; - for none"),
    flag("oidc-groups-claim", Value("CLAIM"), Authd, "claim that holds the groups"),
    flag("oidc-groups-prefix", Value("PREFIX"), Authd, "prefix of groups"),
    flag("oidc-required-claim", List("CLAIM=VALUE"), Authd, "claims that a token must have"),
    flag("oidc-ca-file", Value("FILE"), Authd, "authorities that the issuer's certificate may come from"),
    flag("oidc-signing-algs", List("ALGORITHMS"), Authd, "signatures that are accepted (default RS256)"),
    flag(
        "requestheader-client-ca-file",
        Value("FILE"),
        Both,
        "authorities of the certificates of authenticating proxies",
    ),
    flag(
        "requestheader-allowed-names",
        List("NAMES"),
        Both,
        "common names that a proxy's certificate may bear (default: any)",
    ),
    flag(
        "requestheader-username-headers",
        List("HEADERS"),
        Both,
        "headers in which a proxy names the user; the first with a value counts",
    ),
    flag("requestheader-uid-headers", List("HEADERS"), Both, "the same: uid"),
    flag("requestheader-group-headers", List("HEADERS"), Both, "the same: groups, all values of all headers"),
    flag(
        "requestheader-extra-headers-prefix",
        List("PREFIXES"),
        Both,
        "the same: prefix of further attributes",
    ),
    flag("controllers", List("NAMES"), Authd, "controllers to run (default *)"),
    later("runtime-config", List("VERSION=BOOL"), Apid, "API versions to switch on or off"),
    flag(
        "show-hidden-metrics-for-version",
        Value("VERSION"),
        Both,
        "also show the metrics that were hidden since this version: the one before the present",
    ),
    flag(
        "metrics-address",
        Value("ADDRESS:PORT"),
        Authd,
        "loopback address on which authd serves its own metrics and health (default: none)",
    ),
    missed("tls-min-version", Value("VERSION"), Apid, "least TLS version"),
    missed("tls-cipher-suites", List("SUITES"), Apid, "TLS cipher suites"),
    later("tls-sni-cert-key", List("FILES"), Apid, "further certificates, by name"),
    missed("audit-policy-file", Value("FILE"), Apid, "what the audit log holds"),
    later("audit-log-format", Value("FORMAT"), Apid, "format of the audit log"),
    later("audit-log-maxage", Value("DAYS"), Apid, "age of rotated audit logs"),
    later("audit-log-maxbackup", Value("COUNT"), Apid, "number of rotated audit logs"),
    later("audit-log-maxsize", Value("MEGABYTES"), Apid, "size at which the audit log is rotated"),
    later("audit-webhook-config-file", Value("FILE"), Apid, "client configuration of an audit webhook"),
    later("audit-webhook-mode", Value("MODE"), Apid, "how audit events are sent"),
    later("enable-priority-and-fairness", Switch, Apid, "fair queuing of requests"),
    later("goaway-chance", Value("CHANCE"), Apid, "chance that a connection is asked to move"),
    flag("delete-collection-workers", Value("COUNT"), Apid, "deletes of a collection at a time (default 1)"),
    flag("enable-garbage-collector", Switch, Apid, "objects end with their owners (default true)"),
    flag(
        "event-ttl",
        Value("TIME"),
        Apid,
        "how long after its last write an Event is deleted (default 1h; 0: never)",
    ),
    flag(
        "service-cluster-ip-range",
        Value("RANGE"),
        Apid,
        "addresses of Services, also one range of each family (default 10.0.0.0/24)",
    ),
    later("service-node-port-range", Value("RANGE"), Apid, "ports of Services"),
    missed("encryption-provider-config", Value("FILE"), Apid, "encryption at rest"),
    missed("etcd-servers", List("URLS"), Apid, "store in an etcd cluster"),
    moot("etcd-prefix", Value("PREFIX"), "prefix of keys in etcd: the store is this server's alone"),
    moot(
        "etcd-compaction-interval",
        Value("TIME"),
        "how often etcd is compacted: --history-retention says how long history is kept",
    ),
    moot(
        "storage-media-type",
        Value("TYPE"),
        "form of stored objects: they are stored as they are served, and lists copy their bytes",
    ),
    moot("watch-cache", Switch, "whether reads are served from memory: they always are, and consistent"),
    moot(
        "default-watch-cache-size",
        Value("COUNT"),
        "past events kept in memory for a resource: they are bounded in bytes, and older ones are read from the store",
    ),
    moot("watch-cache-sizes", List("SIZES"), "the same by resource: see --default-watch-cache-size"),
    later("profiling", Switch, Apid, "profiles over HTTP"),
];

/// The flag of a name.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The text of `--help`.
pub(super) fn help() -> String {
    let mut text = String::from(
        "apid serves the resource API; every request is identified and authorized by authd.\n\n\
         usage: apid --data-dir DIR --spawn-authd [flags]\n       apid --data-dir DIR --authd-socket FILE [flags]\n       \
         apid certs --help\n       apid store --help\n\nflags:\n",
    );
    for flag in FLAGS {
        let (dashes, value) = match (flag.name.len(), flag.takes) {
            (1, Value(what)) => ("-", format!(" {what}")),
            (_, Switch) => ("--", String::new()),
            (_, Value(what) | List(what) | Words(what)) => ("--", format!(" {what}")),
        };
        let note = match flag.state {
            State::Built => "",
            State::Moot => " (accepted; not needed here)",
            State::Later => " (accepted; does nothing yet)",
            State::Missed => " (not built yet: refused)",
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
    fn names_are_unique_and_every_flag_has_help() {
        let mut names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        let help = help();
        assert!(FLAGS.iter().all(|flag| !flag.help.is_empty() && help.contains(flag.name)));
    }

    #[test]
    fn help_says_of_each_gate_how_far_it_is() {
        let help = help();
        for gate in ["AuthorizeNodeWithSelectors", "AuthorizeWithSelectors"] {
            assert!(help.contains(&format!("  {gate}=true|false (BETA - default=true)\n")), "{help}");
        }
        assert!(help.contains("  WatchList=true|false (BETA - default=false)\n"), "{help}");
    }
}
