//! The flags that apid accepts without an effect.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use serving::flags::boolean;

use super::reference_flags::REFERENCE_FLAGS;

/// The syntax of the value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagForm {
    /// No value, `=true` or `=false`.
    Switch,
    /// One value; the last one wins.
    Value(&'static str),
    /// Repeatable; each value is a list separated by commas.
    List(&'static str),
}

use FlagForm::{List, Switch, Value};

/// The name, form and help text of a flag.
pub(super) type FlagRow = (&'static str, FlagForm, &'static str);

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

/// The flags without an effect, by state.
const FLAGS_WITHOUT_EFFECT: &[(FlagState, &[FlagRow])] = &[
    (
        FlagState::Planned,
        &[
            ("tls-sni-cert-key", List("FILES"), "Additional certificates, selected by SNI"),
            ("audit-log-format", Value("FORMAT"), "Format of the audit log"),
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
                "Encoding of stored objects; objects are stored as served, so lists copy their bytes",
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
            (
                "audit-webhook-config-file",
                Value("FILE"),
                "Kubeconfig of the audit webhook; events would be lost",
            ),
            ("encryption-provider-config", Value("FILE"), "Encryption at rest"),
            ("etcd-servers", List("URLS"), "Store in an etcd cluster"),
        ],
    ),
];

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
    flags_without_effect().flat_map(|(state, rows)| {
        let heading = match state {
            FlagState::Planned => "Flags that are not implemented yet: accepted without an effect",
            FlagState::NotNeeded => "Flags that are not needed: accepted without an effect",
            FlagState::UnsafeToIgnore => "Flags that are not implemented yet: rejected",
        };
        rows.iter().map(move |(name, form, help)| form.arg(name).help(*help).help_heading(heading))
    })
}

/// All flags without an effect, by state: the flags of this file and of [`REFERENCE_FLAGS`].
fn flags_without_effect() -> impl Iterator<Item = &'static (FlagState, &'static [FlagRow])> {
    FLAGS_WITHOUT_EFFECT.iter().chain(REFERENCE_FLAGS)
}

/// Returns the flags on the command line that apid does not need, each with its reason.
pub(super) fn unneeded_flags(matches: &ArgMatches) -> Vec<(&'static str, &'static str)> {
    let rows = flags_without_effect().filter(|(state, _)| *state == FlagState::NotNeeded);
    let given_rows = rows.flat_map(|(_, rows)| *rows).filter(|(name, ..)| is_given(matches, name));
    given_rows.map(|(name, _, reason)| (*name, *reason)).collect()
}

/// Returns the flags of the command line that have the state `state`, sorted.
pub(super) fn names_without_effect(matches: &ArgMatches, state: FlagState) -> Vec<String> {
    let rows =
        flags_without_effect().filter(|(row_state, _)| *row_state == state).flat_map(|(_, rows)| *rows);
    let mut names: Vec<String> =
        rows.filter(|(name, ..)| is_given(matches, name)).map(|(name, ..)| (*name).to_owned()).collect();
    names.sort_unstable();
    names
}

fn is_given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(ValueSource::CommandLine)
}
