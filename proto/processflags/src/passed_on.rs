//! The flags that apid passes on to a spawned authd.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};

use super::{AuthdFlags, SharedFlags};

/// The flags of a separate authd, which apid does not declare: with `--spawn-authd`, apid sets them itself.
pub const SEPARATE_AUTHD_FLAGS: [&str; 9] = [
    "exit-on-stdin-eof",
    "generated-key-file",
    "listen-address",
    "listen-allowed-names",
    "listen-cafile",
    "listen-certfile",
    "listen-keyfile",
    "socket",
    "socket-mode",
];

/// Returns the given flags that authd reads, as arguments `--name=value`. Defaults are left out.
///
/// The command line must declare [`AuthdFlags`] and [`SharedFlags`].
pub fn given_arguments(matches: &ArgMatches) -> Vec<String> {
    let mut arguments = Vec::new();
    for arg in &flags_of_authd() {
        let Some(name) = arg.get_long().filter(|_| is_given(matches, arg)) else { continue };
        let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        arguments.extend(values.map(|value| format!("--{name}={}", value.to_string_lossy())));
    }
    arguments
}

/// Returns the names of the given flags that only authd reads, sorted.
pub fn given_names(matches: &ArgMatches) -> Vec<String> {
    let given = declared_flags::<AuthdFlags>().into_iter().filter(|arg| is_given(matches, arg));
    let mut names: Vec<String> = given.filter_map(|arg| arg.get_long().map(str::to_owned)).collect();
    names.sort_unstable();
    names
}

/// Whether authd reads a flag, whether or not apid reads it too.
pub fn is_flag_of_authd(name: &str) -> bool {
    flags_of_authd().iter().any(|arg| arg.get_long() == Some(name))
}

/// Whether only authd reads a flag: apid declares it to pass it on.
pub fn is_flag_of_authd_alone(name: &str) -> bool {
    declared_flags::<AuthdFlags>().iter().any(|arg| arg.get_long() == Some(name))
}

/// The flags that authd reads.
fn flags_of_authd() -> Vec<Arg> {
    [declared_flags::<AuthdFlags>(), declared_flags::<SharedFlags>()].concat()
}

fn declared_flags<F: Args>() -> Vec<Arg> {
    F::augment_args(Command::new("flags")).get_arguments().cloned().collect()
}

fn is_given(matches: &ArgMatches, arg: &Arg) -> bool {
    matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(args_override_self = true)]
    struct BothFlags {
        #[command(flatten)]
        authd: AuthdFlags,
        #[command(flatten)]
        shared: SharedFlags,
    }

    /// Returns a valid value of a flag.
    fn example_value(arg: &Arg) -> &'static str {
        match arg.get_value_names().unwrap_or_default().first().map_or("", |name| name.as_str()) {
            "BOOL" => "false",
            "TIME" => "90m",
            "LEVEL" => "3",
            "PRESET" => "kubernetes",
            "FORMAT" => "json",
            "RELEASE" => "1.32",
            "VERSION" if arg.get_id() == "show_hidden_metrics_for_version" => "1.32",
            name if name.ends_with(",...") => "first,second",
            _ => "-value",
        }
    }

    #[test]
    fn each_declared_flag_is_passed_on_with_its_values() {
        let all = [declared_flags::<AuthdFlags>(), declared_flags::<SharedFlags>()].concat();
        assert!(all.len() > 45, "{}", all.len());
        for arg in &all {
            let name = arg.get_long().unwrap();
            let line = ["authd".to_owned(), format!("--{name}={}", example_value(arg))];
            let matches = BothFlags::augment_args(Command::new("authd")).get_matches_from(line);
            let arguments = given_arguments(&matches);
            assert!(!arguments.is_empty(), "{name}");
            let again = std::iter::once("authd".to_owned()).chain(arguments);
            let again = BothFlags::augment_args(Command::new("authd")).get_matches_from(again);
            let values = |matches: &ArgMatches| -> Vec<_> {
                matches.get_raw(arg.get_id().as_str()).unwrap().map(ToOwned::to_owned).collect()
            };
            assert_eq!(values(&again), values(&matches), "{name}");
        }
    }

    #[test]
    fn default_values_are_not_passed_on() {
        let matches = BothFlags::augment_args(Command::new("authd")).get_matches_from(["authd"]);
        assert_eq!(given_arguments(&matches), Vec::<String>::new());
        let matches = BothFlags::augment_args(Command::new("authd")).get_matches_from([
            "authd",
            "-v",
            "4",
            "--anonymous-auth",
        ]);
        assert_eq!(given_arguments(&matches), ["--anonymous-auth=true", "--v=4"]);
        assert_eq!(given_names(&matches), ["anonymous-auth"]);
    }

    #[test]
    fn flags_of_apid_alone_are_no_flags_of_authd() {
        let flags = ["anonymous-auth", "names", "data-dir"];
        assert_eq!(flags.map(is_flag_of_authd), [true, true, false]);
    }
}
