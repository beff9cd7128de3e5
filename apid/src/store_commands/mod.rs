//! `apid store check|repair|backup|restore|rewrite`: offline operations on a store that no server uses, and the backup of a
//! running server.
//!
//! # Contract
//!
//! The exit codes are:
//!
//! - 0: success;
//! - 1: the operation failed;
//! - 2: `check` or `backup` found damage, or `rewrite` found objects that cannot be decrypted;
//! - 3: `repair` made a store in which data is or may be lost;
//! - 64: invalid command line.
//!
//! Findings go to standard output, errors to standard error.

mod copy;
mod destination;
mod download;
mod rewrite;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use storage::engine::fjall::offline::{self, BackupSummary, RepairOutcome, Report};
use storage::engine::fjall::{Identity, OpenError};

use crate::config::{STORE, byte_size};
use crate::console::{fail, print, report_errors};
use crate::server_source::ServerSource;
use destination::Destination;

/// Exit code of `check`, `backup` and `rewrite` if the store is damaged.
const DAMAGED: u8 = 2;
/// Maximum size of a received backup in bytes without `--max-size`.
const DEFAULT_MAX_SIZE: u64 = 64 << 30;
/// Exit code of `repair` if data is or may be lost.
const LOSSES: u8 = 3;

const HELP: &str = "\
apid store checks, repairs, backs up, restores and rewrites the store of a data directory. Stop the server that uses the store
first, except for a backup with --kubeconfig or --server.

usage: apid store check   --data-dir DIR
       apid store repair  --data-dir DIR [--names PRESET] [--api-domain DOMAIN]
       apid store backup  --data-dir DIR --to FILE
       apid store backup  --kubeconfig FILE --to FILE [--context NAME] [--max-size SIZE]
       apid store backup  --server URL --to FILE [--certificate-authority FILE] [--token-file FILE]
                          [--client-certificate FILE --client-key FILE] [--max-size SIZE]
       apid store backup  --keep COUNT --to DIR ...
       apid store restore --data-dir DIR --from FILE
       apid store copy    --from DIR --to etcd --etcd-servers URL,... [FLAGS OF ETCD]
       apid store copy    --from etcd --to DIR --etcd-servers URL,... [FLAGS OF ETCD]
       apid store backup  --etcd-servers URL,... --to FILE [FLAGS OF ETCD]
       apid store restore --etcd-servers URL,... --from FILE [FLAGS OF ETCD]
       apid store rewrite --data-dir DIR --encryption-provider-config FILE

check    verifies the checksums of all files and the consistency of all rows, and reports its findings. It changes
         nothing. A server verifies the checksums of the files at its start, and does not start when one is damaged.
         \"harmless\" is what a crash leaves behind; \"damaged\" must be repaired before a server starts; \"lost\" is
         all that is missing or may be missing, by revisions, by keys, or by the neighbouring keys.
repair   makes a new store of all readable data, also of the data behind unreadable parts, and reports the losses.
         Objects written in lost revisions have their earlier content, and objects deleted in them may exist again.
         The damaged store is kept as DIR/store.damaged. A store that does not contain its identity any more needs
         --names, and --api-domain unless it was the default: the values of the server that created the store.
backup   writes all objects to a new file, with checksums. With --kubeconfig or --server, a running server sends its objects of one
         revision; the user needs the verb `post` on the path /store/backup, for example as member of system:masters.
         A backup above --max-size ends with an error (default: 64Gi).
         With --keep, the file is DIR/apid-TIME.backup, and older files of this form are removed, except the newest
         COUNT, after the new file is complete. For timers.
         The alternative is an atomic snapshot of the file system of DIR and this command on the snapshot: a store is
         consistent after a power failure.
restore  makes the store of a data directory without a store from such a file.
copy     copies all objects between the store of a data directory, whose server is stopped, and an etcd cluster. The
         target must have no objects. The flags of etcd are those of the server: --etcd-prefix, --etcd-cafile,
         --etcd-certfile, --etcd-keyfile, --storage-media-type. --names (default: kubernetes) and --api-domain are those
         of the store in etcd. Encrypted objects need --encryption-provider-config; those of an embedded store are
         copied as they are to the prefix /registry without it. The cluster of Events of
         --etcd-servers-overrides has no copies: leave the flag out. A cluster is first raised above the revision of the
         data directory by writes, at most by 1,000,000.
rewrite  encrypts all objects that the first key of the first provider in FILE did not encrypt. Such objects come from
         an earlier key or provider, or from a time without encryption. A rewrite that was interrupted continues.

A repaired or restored store continues at a revision far above the old one, by the clock, and has no history. No
resourceVersion ever has two different contents, also when a file is restored twice. Every client with an earlier watch or
list must list again (410).

The file contains only the objects: keys and certificates in DIR (certs, service-account.key) are not in it. Encrypted
objects are encrypted in it too, and need the keys of --encryption-provider-config.

exit code: 0 success: the store is sound, or was repaired without losses
           1 the operation failed
           2 check, backup: the store is damaged; rewrite: some objects cannot be decrypted and stay as they are
           3 repair: the store is repaired, with the reported losses
           64 invalid command line
";

/// The operations with their descriptions and their flags. A flag takes one value.
const OPERATIONS: [(&str, &str, &[&str]); 6] = [
    ("check", "Verify all checksums and the consistency of all rows", &["data-dir"]),
    ("repair", "Make a new store of all readable data", &["data-dir", "names", "api-domain"]),
    (
        "backup",
        "Write all objects to a new file",
        &[
            "data-dir",
            "to",
            "keep",
            "kubeconfig",
            "context",
            "server",
            "certificate-authority",
            "token-file",
            "client-certificate",
            "client-key",
            "max-size",
        ],
    ),
    ("restore", "Make a store from a backup", &["data-dir", "from"]),
    ("copy", "Copy all objects between a data directory and etcd", &["from", "to", "etcd-servers"]),
    (
        "rewrite",
        "Encrypt all objects with the first key of the first provider",
        &["data-dir", "encryption-provider-config"],
    ),
];

/// The command line after `apid`, for completions and manual pages.
pub(crate) fn command() -> clap::Command {
    let flag = |name: &'static str| {
        let value = match name {
            "data-dir" => "DIR",
            "names" => "PRESET",
            "api-domain" => "DOMAIN",
            "server" => "URL",
            "max-size" => "SIZE",
            "keep" => "COUNT",
            "context" => "NAME",
            _ => "FILE",
        };
        clap::Arg::new(name).long(name).value_name(value)
    };
    let operation = |(name, about, flags): (&'static str, &'static str, &'static [&'static str])| {
        clap::Command::new(name).about(about).args(flags.iter().copied().map(flag))
    };
    clap::Command::new("store").after_help(HELP).subcommands(OPERATIONS.map(operation))
}

/// The operation that the command line selects.
#[derive(Debug, PartialEq, Eq)]
enum Operation {
    Check,
    /// Repairs the store. Contains the identity of the store, if flags name it.
    Repair(Option<Identity>),
    Backup(Destination),
    /// Receives the backup of a running server into a file.
    Download {
        source: ServerSource,
        to: Destination,
        max_bytes: u64,
    },
    Restore(PathBuf),
    /// Encrypts stale objects with the providers of a file.
    Rewrite(PathBuf),
}

#[derive(Debug, PartialEq, Eq)]
struct StoreArguments {
    operation: Operation,
    /// The directory of the store.
    store: PathBuf,
}

/// Runs `apid store`. `arguments` are those after the word `store`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.into_iter().collect();
    if copy::is_command(&arguments) {
        return copy::run(arguments);
    }
    match StoreArguments::parse(arguments) {
        Ok(Some(parsed)) => parsed.run(),
        Ok(None) => print(HELP),
        Err(errors) => report_errors("apid", &errors),
    }
}

impl StoreArguments {
    /// Parses the arguments. Returns None for `--help`.
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Option<StoreArguments>, Vec<String>> {
        let mut rest = arguments.into_iter();
        let word = rest.next().unwrap_or_default();
        if matches!(word.as_str(), "--help" | "-h" | "help") {
            return Ok(None);
        }
        let Some((_, _, flags)) = OPERATIONS.iter().find(|(name, ..)| *name == word) else {
            let problem = match word.as_str() {
                "" => "no command: use".to_owned(),
                other => format!("`{other}` is not"),
            };
            return Err(vec![format!(
                "{problem} check, repair, backup, restore or rewrite (`apid store --help`)"
            )]);
        };
        let mut errors = Vec::new();
        let mut values: BTreeMap<&str, String> = BTreeMap::new();
        while let Some(argument) = rest.next() {
            if matches!(argument.as_str(), "--help" | "-h") {
                return Ok(None);
            }
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (argument.as_str(), None),
            };
            let flag = name.strip_prefix("--").and_then(|name| flags.iter().find(|flag| **flag == name));
            let Some(flag) = flag else {
                errors.push(format!("`{word}` has no flag `{name}`"));
                continue;
            };
            match value.or_else(|| rest.next()) {
                Some(value) => drop(values.insert(flag, value)),
                None => errors.push(format!("`{name}` needs a value")),
            }
        }
        let mut value = |name: &str| values.remove(name);
        let errors_before_source = errors.len();
        let source = source(&mut value, &mut errors);
        let max_size = value("max-size");
        if max_size.is_some() && source.is_none() {
            errors.push("`--server` is missing: `--max-size` is for the backup of a server".to_owned());
        }
        // With flags of a server, a missing `--server` is the error, and not a missing `--data-dir`.
        let means_server = source.is_some() || errors.len() > errors_before_source;
        let max_bytes = match max_size.as_deref().map(byte_size) {
            None => DEFAULT_MAX_SIZE,
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                errors.push(format!("`--max-size={}`: {error}", max_size.unwrap_or_default()));
                DEFAULT_MAX_SIZE
            }
        };
        let store = value("data-dir").map(|dir| Path::new(&dir).join(STORE));
        match (&store, &source) {
            (None, None) if !means_server => {
                let server = if word == "backup" {
                    ", or `--kubeconfig` or `--server` to a running server"
                } else {
                    ""
                };
                errors.push(format!(
                    "`--data-dir` is missing: set it to the data directory of the store{server}"
                ));
            }
            (Some(_), Some(_)) => {
                errors.push(
                    "`--data-dir` is for a stopped server, `--kubeconfig` and `--server` are for a running one: set one of them"
                        .to_owned(),
                );
            }
            _ => {}
        }
        // The backup of a running server needs no local store directory.
        let store = store.or_else(|| source.as_ref().map(|_| PathBuf::new()));
        let keep = match value("keep").map(|text| (text.parse::<NonZeroUsize>(), text)) {
            None => None,
            Some((Ok(count), _)) => Some(count),
            Some((Err(_), text)) => {
                errors.push(format!("`--keep={text}`: the number of backups must be at least 1"));
                None
            }
        };
        let mut file = |name: &str, purpose: &str| {
            let file = value(name).map(PathBuf::from);
            if file.is_none() {
                errors.push(format!("`--{name}` is missing: set the file {purpose}"));
            }
            file.unwrap_or_default()
        };
        let operation = match word.as_str() {
            "check" => Operation::Check,
            "backup" => match source {
                Some(source) => Operation::Download {
                    source,
                    to: Destination { path: file("to", "to write"), keep },
                    max_bytes,
                },
                None => Operation::Backup(Destination { path: file("to", "to write"), keep }),
            },
            "restore" => Operation::Restore(file("from", "to read")),
            "rewrite" => Operation::Rewrite(file("encryption-provider-config", "with the providers")),
            _ => match identity(value("names"), value("api-domain")) {
                Ok(identity) => Operation::Repair(identity),
                Err(error) => {
                    errors.push(error);
                    Operation::Check
                }
            },
        };
        match store {
            Some(store) if errors.is_empty() => Ok(Some(StoreArguments { operation, store })),
            _ => Err(errors),
        }
    }

    fn run(self) -> ExitCode {
        let store = &self.store;
        let result = match self.operation {
            Operation::Check => offline::check(store).map(|report| {
                print(report.to_string());
                if report.is_sound() {
                    return ExitCode::SUCCESS;
                }
                print(advice(&report));
                ExitCode::from(DAMAGED)
            }),
            Operation::Repair(identity) => offline::repair(store, identity.as_ref(), now()).map(|outcome| {
                match outcome {
                    RepairOutcome::Sound(report) => {
                        print(format!("{report}the store needs no repair\n"))
                    }
                    RepairOutcome::Rebuilt { report, revision, objects, kept } => {
                        print(format!(
                            "{report}repaired: {objects} objects, the store continues after revision {revision}\nthe \
                             damaged store is in {}\n",
                            kept.display()
                        ));
                        if report.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LOSSES) }
                    }
                }
            }),
            Operation::Rewrite(file) => return rewrite::run(store, &file),
            Operation::Download { source, to, max_bytes } => {
                return to.fill(|file| source.download(file, max_bytes)).unwrap_or_else(fail);
            }
            Operation::Backup(to) => to.fill(|file| offline::backup(store, file)),
            Operation::Restore(file) => offline::restore(&file, store, now()).map(|restored| {
                let summary = restored.archived;
                print(format!(
                    "{} objects of revision {}, made with {}\n{}the store continues after revision {}\n",
                    summary.objects,
                    summary.revision,
                    summary.identity,
                    summary.encrypted,
                    restored.revision
                ))
            }),
        };
        result.unwrap_or_else(|error| {
            eprintln!("apid: {error}");
            if matches!(error, OpenError::MissingIdentity) {
                eprintln!(
                    "apid: set `--names`, and `--api-domain` unless it was the default, to the values of the server that \
                     created the store; with other values the server does not open it"
                );
            }
            match error {
                OpenError::Store(storage::Error::Corrupt(_)) => ExitCode::from(DAMAGED),
                _ => ExitCode::FAILURE,
            }
        })
    }
}

/// Returns the server from which to receive a backup, if the flags name one.
fn source(value: &mut impl FnMut(&str) -> Option<String>, errors: &mut Vec<String>) -> Option<ServerSource> {
    let (server, context) = (value("server"), value("context"));
    let mut file = |name: &str| value(name).map(PathBuf::from);
    let (authority, token) = (file("certificate-authority"), file("token-file"));
    let (certificate, key) = (file("client-certificate"), file("client-key"));
    let kubeconfig = file("kubeconfig");
    if let Some(path) = kubeconfig {
        if server.is_some()
            || authority.is_some()
            || token.is_some()
            || certificate.is_some()
            || key.is_some()
        {
            errors.push(
                "`--kubeconfig` has the server and the credentials: remove the other flags of them"
                    .to_owned(),
            );
        }
        return Some(ServerSource { kubeconfig: Some((path, context)), ..ServerSource::default() });
    }
    if context.is_some() {
        errors.push("`--kubeconfig` is missing: `--context` is the name of its context".to_owned());
    }
    if certificate.is_some() != key.is_some() {
        errors.push("`--client-certificate` and `--client-key` require each other".to_owned());
    }
    let has_credentials = authority.is_some() || token.is_some() || certificate.is_some();
    if server.is_none() && has_credentials {
        errors.push("`--server` is missing: the credentials are for a server".to_owned());
    }
    Some(ServerSource {
        server: server?,
        kubeconfig: None,
        authority,
        token,
        certificate: certificate.zip(key),
    })
}

fn print_summary(summary: &BackupSummary) -> ExitCode {
    print(format!(
        "{} objects of revision {}, {} bytes, made with {}\n{}",
        summary.objects, summary.revision, summary.bytes, summary.identity, summary.encrypted
    ))
}

/// Returns a text that tells the user how to repair a damaged store.
fn advice(report: &Report) -> String {
    let names = match report.identity {
        Some(_) => "",
        None => " --names PRESET",
    };
    let backup = match report.lost.is_empty() {
        true => "",
        false => "; the alternative is `apid store restore` of a backup",
    };
    format!("`apid store repair --data-dir DIR{names}` makes a sound store of the readable data{backup}\n")
}

/// Returns the identity of the store from the flags `--names` and `--api-domain`; None without them.
fn identity(names: Option<String>, domain: Option<String>) -> Result<Option<Identity>, String> {
    let Some(preset) = names else {
        return match domain {
            Some(_) => Err("`--names` is missing: `--api-domain` alone is not an identity".to_owned()),
            None => Ok(None),
        };
    };
    let preset = preset.parse::<Preset>().map_err(|error| format!("`--names={preset}`: {error}"))?;
    let names = Names::new(preset, domain.as_deref().unwrap_or(DEFAULT_API_DOMAIN))
        .map_err(|error| format!("`--api-domain`: {error}"))?;
    let (preset, api_domain) = (names.preset().to_string(), names.api_domain().to_owned());
    Ok(Some(Identity { preset, api_domain }))
}

/// Returns the current time in seconds since 1970.
fn now() -> u64 {
    u64::try_from(SystemClock::new().now().as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<StoreArguments>, Vec<String>> {
        StoreArguments::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn store_commands_reject_unknown_flags() {
        let store = Path::new("/d").join(STORE);
        let to = |path: &str, keep| Destination { path: path.into(), keep: NonZeroUsize::new(keep) };
        let arguments = |operation| Ok(Some(StoreArguments { operation, store: store.clone() }));
        assert_eq!(parse("check --data-dir /d"), arguments(Operation::Check));
        assert_eq!(parse("backup --data-dir=/d --to /f"), arguments(Operation::Backup(to("/f", 0))));
        assert_eq!(parse("backup --data-dir=/d --to /f --keep=7"), arguments(Operation::Backup(to("/f", 7))));
        let source = ServerSource {
            server: "https://h".to_owned(),
            token: Some("/t".into()),
            ..ServerSource::default()
        };
        assert_eq!(
            parse("backup --server=https://h --token-file=/t --to /f"),
            Ok(Some(StoreArguments {
                operation: Operation::Download { source, to: to("/f", 0), max_bytes: DEFAULT_MAX_SIZE },
                store: PathBuf::new()
            }))
        );
        let kubeconfig = parse("backup --kubeconfig=/k --context c --to=/f").unwrap().unwrap();
        assert!(matches!(&kubeconfig.operation, Operation::Download { source, .. }
                if source.kubeconfig == Some(("/k".into(), Some("c".to_owned())))));
        assert_eq!(parse("restore --from=/f --data-dir=/d"), arguments(Operation::Restore("/f".into())));
        let identity =
            Identity { preset: "kubernetes".to_owned(), api_domain: DEFAULT_API_DOMAIN.to_owned() };
        assert_eq!(
            parse("repair --names kubernetes --data-dir=/d"),
            arguments(Operation::Repair(Some(identity)))
        );
        assert_eq!(
            parse("repair --data-dir=/d"),
            arguments(Operation::Repair(None)),
            "the identity must not be guessed"
        );
        assert_eq!(parse("repair --help"), Ok(None));
        for (line, errors) in [
            ("", 1),
            ("mend", 1),
            ("check", 1),
            ("check --data-dir=/d --to=/f", 1),
            ("repair --data-dir=/d --api-domain=example.com", 1),
            ("backup --to", 3),
            ("backup --data-dir=/d --to=/f --keep=0", 1),
            ("backup --certificate-authority=/c --to=/f", 1),
            ("backup --max-size=1Gi --to=/f", 1),
            ("backup --context=c --to=/f", 1),
            ("backup --kubeconfig=/k --server=https://h --to=/f", 1),
            ("backup --kubeconfig=/k --data-dir=/d --to=/f", 1),
            ("backup --server=https://h --data-dir=/d --to=/f", 1),
            ("backup --server=https://h --max-size=x --to=/f", 1),
            ("backup --data-dir=/d --max-size=1Gi --to=/f", 1),
            ("backup --server=https://h --client-key=/k --to=/f", 1),
            ("backup --token-file=/t --data-dir=/d --to=/f", 1),
            ("check --server=https://h", 2),
            ("restore", 2),
            ("rewrite", 2),
            ("rewrite --data-dir=/d", 1),
        ] {
            assert_eq!(parse(line).unwrap_err().len(), errors, "{line}: {:?}", parse(line));
        }
    }
}
