//! The flags that apid declares by name and passes on, and the flags that it accepts without an effect.
//!
//! # Contract
//!
//! With `--spawn-authd`, apid passes the flags of authd on as given; authd checks their values. Flags that
//! both processes read are typed in [`super::flags`] and also passed on.

use clap::{Arg, ArgAction, ArgMatches};
use serving::flags::boolean;

use super::values::split_list;

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagForm {
    /// No value, `=true` or `=false`.
    Switch,
    /// One value; the last one wins.
    Value(&'static str),
    /// Repeatable; each value is a list separated by commas.
    List(&'static str),
    /// Like `List`, but passed to authd as one value.
    JoinedList(&'static str),
}

use FlagForm::{JoinedList, List, Switch, Value};

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

/// The flags of authd, by heading.
const AUTHD_FLAGS: &[(&str, &[FlagRow])] = &[
    (
        "Authentication flags, passed to authd",
        &[
            ("client-crl-file", Value("FILE"), "Revocation lists (CRL) of client certificates"),
            ("token-auth-file", Value("FILE"), "Static tokens: token,user,uid,\"group,group\" lines"),
            (
                "anonymous-auth",
                Switch,
                "Accept requests without credentials as system:anonymous (default true; false if every request is allowed)",
            ),
            ("enable-bootstrap-token-auth", Switch, "Accept bootstrap tokens"),
            (
                "authentication-config",
                Value("FILE"),
                "AuthenticationConfiguration: JWT authenticators and paths of anonymous requests; hot reload",
            ),
            ("authentication-token-webhook-config-file", Value("FILE"), "Kubeconfig of the token webhook"),
            (
                "authentication-token-webhook-cache-ttl",
                Value("TIME"),
                "TTL of accepted tokens in the webhook cache (default 2m)",
            ),
            (
                "authentication-token-webhook-version",
                Value("VERSION"),
                "Version of TokenReview for the webhook: v1 or v1beta1 (default)",
            ),
        ],
    ),
    (
        "Flags of service-account tokens, passed to authd",
        &[
            (
                "service-account-issuer",
                List("ISSUER,..."),
                "Issuers of service account tokens; the first one issues new tokens",
            ),
            ("service-account-key-file", List("FILE"), "Keys that verify service account tokens"),
            ("service-account-signing-key-file", Value("FILE"), "Key that signs service account tokens"),
            ("service-account-lookup", Switch, "Reject tokens of deleted service accounts (default true)"),
            ("service-account-jwks-uri", Value("URL"), "JWKS URI in the OpenID discovery document"),
            ("service-account-max-token-expiration", Value("TIME"), "Maximum lifetime of an issued token"),
            (
                "service-account-extend-token-expiration",
                Switch,
                "Extend the lifetime of projected tokens beyond the request (default true)",
            ),
            (
                "api-audiences",
                List("AUDIENCE,..."),
                "Accepted token audiences of this API (default: the issuers)",
            ),
        ],
    ),
    (
        "OpenID Connect flags, passed to authd",
        &[
            ("oidc-issuer-url", Value("URL"), "OpenID Connect issuer"),
            ("oidc-client-id", Value("ID"), "Audience of OpenID Connect tokens"),
            ("oidc-username-claim", Value("CLAIM"), "Claim with the user name (default sub)"),
            ("oidc-username-prefix", Value("PREFIX"), "Prefix of user names; - for none"),
            ("oidc-groups-claim", Value("CLAIM"), "Claim with the groups"),
            ("oidc-groups-prefix", Value("PREFIX"), "Prefix of groups"),
            ("oidc-required-claim", List("CLAIM=VALUE,..."), "Required claims of a token"),
            ("oidc-ca-file", Value("FILE"), "CA bundle for the issuer's certificate"),
            ("oidc-signing-algs", List("ALGORITHM,..."), "Accepted signature algorithms (default RS256)"),
        ],
    ),
    (
        "Authorization flags, passed to authd",
        &[
            (
                "authorization-mode",
                JoinedList("MODE,..."),
                "Ordered modes: Node, RBAC, ABAC, Webhook; AlwaysAllow (default) and AlwaysDeny are for testing only",
            ),
            ("authorization-config", Value("FILE"), "AuthorizationConfiguration; hot reload"),
            ("authorization-policy-file", Value("FILE"), "Policies of mode ABAC, one JSON object per line"),
            ("authorization-webhook-config-file", Value("FILE"), "Kubeconfig of the authorization webhook"),
            (
                "authorization-webhook-cache-authorized-ttl",
                Value("TIME"),
                "TTL of authorized responses in the webhook cache (default 5m)",
            ),
            (
                "authorization-webhook-cache-unauthorized-ttl",
                Value("TIME"),
                "TTL of unauthorized responses in the webhook cache (default 30s)",
            ),
            (
                "authorization-webhook-version",
                Value("VERSION"),
                "Version of SubjectAccessReview for the webhook: v1 or v1beta1 (default)",
            ),
        ],
    ),
    (
        "Controller and metrics flags, passed to authd",
        &[
            ("controllers", List("NAME,..."), "Controllers to run (default *)"),
            (
                "metrics-address",
                Value("ADDRESS:PORT"),
                "Loopback address on which authd serves its own metrics and health (default: none)",
            ),
        ],
    ),
];

/// The flags that both processes read.
const SHARED_FLAGS: &[(&str, FlagForm)] = &[
    ("names", Value("")),
    ("api-domain", Value("")),
    ("tls-private-key-file", Value("")),
    ("client-ca-file", Value("")),
    ("feature-gates", JoinedList("")),
    ("v", Value("")),
    ("logging-format", Value("")),
    ("requestheader-client-ca-file", Value("")),
    ("requestheader-allowed-names", List("")),
    ("requestheader-username-headers", List("")),
    ("requestheader-uid-headers", List("")),
    ("requestheader-group-headers", List("")),
    ("requestheader-extra-headers-prefix", List("")),
    ("show-hidden-metrics-for-version", Value("")),
];

/// The flags without an effect, by state.
const FLAGS_WITHOUT_EFFECT: &[(FlagState, &[FlagRow])] = &[
    (
        FlagState::Planned,
        &[
            ("runtime-config", List("VERSION=BOOL"), "API versions to enable or disable"),
            ("tls-sni-cert-key", List("FILES"), "Additional certificates, selected by SNI"),
            ("audit-log-format", Value("FORMAT"), "Format of the audit log"),
            ("audit-log-maxage", Value("DAYS"), "Maximum age of rotated audit logs"),
            ("audit-log-maxbackup", Value("COUNT"), "Maximum number of rotated audit logs"),
            ("audit-log-maxsize", Value("MEGABYTES"), "Maximum size of the audit log before rotation"),
            ("audit-webhook-config-file", Value("FILE"), "Kubeconfig of the audit webhook"),
            ("audit-webhook-mode", Value("MODE"), "Mode in which audit events are sent"),
            ("enable-priority-and-fairness", Switch, "Fair queuing of requests"),
            ("goaway-chance", Value("CHANCE"), "Probability that a client is told to reconnect with GOAWAY"),
            ("profiling", Switch, "Profiling over HTTP"),
        ],
    ),
    (
        FlagState::NotNeeded,
        &[
            (
                "etcd-prefix",
                Value("PREFIX"),
                "Key prefix in etcd; the store is not shared with other servers",
            ),
            (
                "etcd-compaction-interval",
                Value("TIME"),
                "Compaction interval of etcd; --history-retention sets the retention time of history",
            ),
            (
                "storage-media-type",
                Value("TYPE"),
                "Encoding of stored objects; objects are stored as served, so that lists copy their bytes",
            ),
            ("watch-cache", Switch, "Serve reads from the watch cache; reads always are, and are consistent"),
            (
                "default-watch-cache-size",
                Value("COUNT"),
                "Number of watch events in memory per resource; the limit is in bytes, and older events are read from the store",
            ),
            (
                "watch-cache-sizes",
                List("SIZES"),
                "Watch cache sizes by resource; see --default-watch-cache-size",
            ),
        ],
    ),
    (
        FlagState::UnsafeToIgnore,
        &[
            ("tls-min-version", Value("VERSION"), "Minimum TLS version"),
            ("tls-cipher-suites", List("SUITES"), "TLS cipher suites"),
            ("audit-policy-file", Value("FILE"), "Audit policy"),
            ("encryption-provider-config", Value("FILE"), "Encryption at rest"),
            ("etcd-servers", List("URLS"), "Store in an etcd cluster"),
        ],
    ),
];

impl FlagForm {
    /// Declares a flag of this form.
    fn arg(self, name: &'static str) -> Arg {
        let arg = Arg::new(name).long(name);
        match self {
            Switch => arg
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_parser(boolean),
            Value(value_name) => arg.value_name(value_name).allow_hyphen_values(is_hyphen_allowed(name)),
            List(value_name) | JoinedList(value_name) => arg
                .value_name(value_name)
                .action(ArgAction::Append)
                .allow_hyphen_values(is_hyphen_allowed(name)),
        }
    }
}

/// Whether values may begin with a hyphen: `-` is a value without a prefix, and `-NAME` excludes a
/// controller.
fn is_hyphen_allowed(name: &str) -> bool {
    matches!(name, "oidc-username-prefix" | "controllers")
}

/// Declares the flags of authd and those without an effect.
pub(super) fn args() -> impl Iterator<Item = Arg> {
    let authd = AUTHD_FLAGS.iter().flat_map(|(heading, rows)| {
        rows.iter().map(|(name, form, help)| form.arg(name).help(*help).help_heading(*heading))
    });
    let without_effect = FLAGS_WITHOUT_EFFECT.iter().flat_map(|(state, rows)| {
        let heading = match state {
            FlagState::Planned => "Flags that are not implemented yet: accepted without an effect",
            FlagState::NotNeeded => "Flags that are not needed: accepted without an effect",
            FlagState::UnsafeToIgnore => "Flags that are not implemented yet: rejected",
        };
        rows.iter().map(move |(name, form, help)| form.arg(name).help(*help).help_heading(heading))
    });
    authd.chain(without_effect)
}

/// The given flags without an effect in a state, sorted.
pub(super) fn names_without_effect(matches: &ArgMatches, state: FlagState) -> Vec<String> {
    let rows = FLAGS_WITHOUT_EFFECT.iter().filter(|(of, _)| *of == state).flat_map(|(_, rows)| *rows);
    let mut names: Vec<String> =
        rows.filter(|(name, ..)| is_given(matches, name)).map(|(name, ..)| (*name).to_owned()).collect();
    names.sort_unstable();
    names
}

/// The given flags that only authd reads, sorted.
pub(super) fn authd_flag_names(matches: &ArgMatches) -> Vec<&'static str> {
    let rows = AUTHD_FLAGS.iter().flat_map(|(_, rows)| *rows);
    let mut names: Vec<&str> = rows.map(|(name, ..)| *name).filter(|name| is_given(matches, name)).collect();
    names.sort_unstable();
    names
}

/// The flags for a spawned authd, as given.
pub(super) fn authd_arguments(matches: &ArgMatches) -> Vec<String> {
    let own = AUTHD_FLAGS.iter().flat_map(|(_, rows)| *rows).map(|(name, form, _)| (*name, *form));
    let mut arguments = Vec::new();
    for (name, form) in own.chain(SHARED_FLAGS.iter().copied()) {
        let values = flag_values(matches, name);
        let values = match form {
            JoinedList(_) if !values.is_empty() => vec![values.join(",")],
            Switch | Value(_) | List(_) | JoinedList(_) => values,
        };
        arguments.extend(values.into_iter().map(|value| format!("--{name}={value}")));
    }
    arguments
}

/// Whether a spawned authd allows every request: without an authorization mode, or with AlwaysAllow.
pub(super) fn allows_everything(matches: &ArgMatches) -> bool {
    let modes = split_list(&flag_values(matches, "authorization-mode"));
    (modes.is_empty() && !is_given(matches, "authorization-config"))
        || modes.iter().any(|mode| mode == "AlwaysAllow")
}

fn is_given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(&id(name)) == Some(clap::parser::ValueSource::CommandLine)
}

/// The values of a flag on the command line.
fn flag_values(matches: &ArgMatches, name: &str) -> Vec<String> {
    if !is_given(matches, name) {
        return Vec::new();
    }
    let values = matches.get_raw(&id(name)).into_iter().flatten();
    values.map(|value| value.to_string_lossy().into_owned()).collect()
}

/// The id of a flag: derived flags have the name of their field.
fn id(name: &str) -> String {
    match name {
        "v" => "verbosity".to_owned(),
        _ if SHARED_FLAGS.iter().any(|(shared, _)| *shared == name) => name.replace('-', "_"),
        _ => name.to_owned(),
    }
}
