//! `apid certs`: certificates of the server and of clients, their renewal, revocation and kubeconfigs.
//!
//! # Contract
//!
//! A call does one of five things: makes certificates, renews (`--renew`), revokes (`--revoke`), rotates the CA
//! (`--rotate-ca`) or lists (`--list`). All errors of the command line are reported together, before a file changes.
//! Calls on one folder wait for each other.
//!
//! # Invariants
//!
//! INVARIANT (nothing is lost): without `--force` no existing file of a client and no kubeconfig is replaced. The
//! certificates that a call replaces stay in `issued.pem` until they expire, so that they can be revoked.

pub(crate) mod ensured;
mod folder;
mod kubeconfig;
mod listing;
mod renewal;
mod revocation;
mod rotation;

use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::printable::escape;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use processflags::command_line::{self, ParsedLine};
use serving::certs::facts::CertificateFacts;
use serving::certs::{CertError, DEFAULT_VALIDITY, ServingPolicy, ensure_serving_pair_with};

use crate::console::print;
use folder::{ClientFiles, Folder};
use kubeconfig::{Kubeconfig, ServerUrl};

/// Returns the definition of the command.
pub fn command() -> clap::Command {
    CertsFlags::command()
}

/// Runs `apid certs`. `arguments` are those after the word `certs`.
///
/// # Errors
///
/// The invalid arguments, or the file that could not be read or written.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result<(), Vec<String>> {
    let (matches, mut errors) = match command_line::parse(CertsFlags::command(), arguments)? {
        ParsedLine::Flags { matches, errors } => (matches, errors),
        ParsedLine::Text(text) => {
            print(text);
            return Ok(());
        }
    };
    let flags = CertsFlags::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])?;
    errors.extend(flags.conflicts());
    let Some(cert_dir) = &flags.cert_dir else {
        errors.push("`--cert-dir` is missing".to_owned());
        return Err(errors);
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    flags.execute(cert_dir).map_err(|error| vec![error.to_string()])
}

/// Creates the certificates and keys for TLS, and keeps an existing certificate authority. Lists, renews and revokes
/// certificates.
#[derive(Debug, Parser)]
#[command(name = "apid certs", disable_version_flag = true)]
struct CertsFlags {
    /// Folder for ca.crt, ca.key, ca.crl, apiserver.crt, apiserver.key and the files of clients
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// A further name or address of the server; repeatable
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Also make USER.crt and USER.key, signed by the same authority
    #[arg(long, value_name = "USER", value_parser = client_name)]
    client: Option<String>,
    /// A group of that user; repeatable
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
    /// Days for which new certificates are valid, at most until the end of the authority (default: 365; a renewed
    /// certificate keeps its lifetime)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: Option<u32>,
    /// Write a kubeconfig of USER; `-` is standard output. An existing certificate of USER is used, unless --group or --days asks for another one
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// URL of the server in the kubeconfig (default: https://127.0.0.1:6443)
    #[arg(long, value_name = "URL")]
    server: Option<ServerUrl>,
    /// Replace existing files of USER and the kubeconfig; with --renew, also certificates that do not end soon
    #[arg(long)]
    force: bool,
    /// Reissue certificates that end soon or are of an earlier authority: of the server and all clients, or of USER
    #[arg(long)]
    renew: bool,
    /// Revoke the certificates of a user, or one by its serial number or file; repeatable. Needs --client-crl-file
    /// DIR/ca.crl on the server
    #[arg(long, value_name = "USER|SERIAL|FILE")]
    revoke: Vec<String>,
    /// Replace the CA without an outage, in the order of these steps; docs/operations.md has the calls between them
    #[arg(long, value_name = "STEP")]
    rotate_ca: Option<rotation::Step>,
    /// Also keep copies of ca.crt and ca.crl in DIR/public, for processes that must not read the keys; later calls update
    /// the copies
    #[arg(long)]
    public: bool,
    /// List all certificates of the folder
    #[arg(long)]
    list: bool,
}

/// The value of `--kubeconfig` for standard output.
const STANDARD_OUTPUT: &str = "-";

/// Names of files in `--cert-dir` that belong to the server.
const RESERVED_NAMES: [&str; 2] = ["ca", "apiserver"];

/// Returns the reserved name that equals a name. The case does not matter: some file systems ignore it.
fn reserved_name(name: &str) -> Option<&'static str> {
    RESERVED_NAMES.into_iter().find(|reserved| reserved.eq_ignore_ascii_case(name))
}

fn client_name(name: &str) -> Result<String, CertsError> {
    if name.is_empty() || name.contains(|c: char| c == '/' || c.is_control()) {
        return Err(CertsError::ClientName);
    }
    match reserved_name(name) {
        Some(reserved) => Err(CertsError::ReservedName(reserved)),
        None => Ok(name.to_owned()),
    }
}

/// An error of `apid certs`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertsError {
    /// The name of a client is no file name.
    #[error(
        "the name is also a file name: it must not be empty and must not contain `/` or control characters"
    )]
    ClientName,
    /// The files of a client would be files of the server.
    #[error("{0}.crt and {0}.key are files of the server; choose another name")]
    ReservedName(&'static str),
    /// A file of the client, or a kubeconfig, exists.
    #[error("{}: the file exists; remove it, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The folder has no authority that could sign.
    #[error("{}: no certificate authority with its key is in the folder; `apid certs --cert-dir {}` makes one", .0.display(), .0.display())]
    NoAuthority(PathBuf),
    /// A word of `--revoke` names no certificate.
    #[error(
        "`{word}` is no user and no serial number of a certificate in {}; --list shows the certificates. A certificate \
         from elsewhere is revoked by its file or its whole serial number", dir.display()
    )]
    UnknownCertificate {
        /// The word.
        word: String,
        /// The folder.
        dir: PathBuf,
    },
    /// A certificate cannot be revoked in this folder.
    #[error("{subject}: {problem}")]
    NotRevocable {
        /// Subject of the certificate.
        subject: String,
        /// The reason, and the remedy.
        problem: String,
    },
    /// A server rejects the certificate of a kubeconfig.
    #[error(
        "{}: {problem}, so a server rejects the kubeconfig; `--client USER --force` without --kubeconfig, or with --group \
         or --days, issues another certificate", cert.display()
    )]
    Rejected {
        /// File of the certificate.
        cert: PathBuf,
        /// The state of the certificate.
        problem: &'static str,
    },
    /// Certificates of users cannot be revoked in this folder; the others are revoked.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    NotAllRevoked(Vec<CertsError>),
    /// Certificates of the folder are of the authority that would be removed.
    #[error(
        "{}: issued by the CA that would be removed; `apid certs --cert-dir {} --renew` reissues them, else revoke them or \
         remove the files", .files.join(", "), .dir.display()
    )]
    NotReissued {
        /// Files of the certificates.
        files: Vec<String>,
        /// The folder.
        dir: PathBuf,
    },
    /// The client of `--renew` has no certificate.
    #[error("{}: the file does not exist, so there is nothing to renew; make it without --renew", .0.display())]
    NothingToRenew(PathBuf),
    /// The file of a kubeconfig cannot be made.
    #[error("{}: the folder of the kubeconfig does not exist", .0.display())]
    NoFolder(PathBuf),
    /// A certificate cannot be created, or a file cannot be read or written.
    #[error("{0}")]
    Certificate(#[from] CertError),
}

impl CertsFlags {
    /// Returns an error line for each flag without its companion and for each pair of flags that exclude each other.
    fn conflicts(&self) -> Vec<String> {
        let (client, group, host) = (self.client.is_some(), !self.group.is_empty(), !self.host.is_empty());
        let (kubeconfig, server) = (self.kubeconfig.is_some(), self.server.is_some());
        let (days, revoke) = (self.days.is_some(), !self.revoke.is_empty());
        let operations = [
            ("--list", self.list),
            ("--rotate-ca", self.rotate_ca.is_some()),
            ("--revoke", revoke),
            ("--renew", self.renew),
        ];
        let details = [
            ("--client", client),
            ("--group", group),
            ("--host", host),
            ("--days", days),
            ("--kubeconfig", kubeconfig),
            ("--force", self.force),
            ("--public", self.public),
        ];
        let mut errors = Vec::new();
        let set_operations = operations.iter().enumerate().filter(|(_, (_, is_set))| *is_set);
        for (index, (operation, _)) in set_operations {
            let excludes = |detail: &str| match *operation {
                "--list" => true,
                "--renew" => matches!(detail, "--group" | "--kubeconfig"),
                _ => detail != "--public",
            };
            let later = operations.iter().skip(index + 1);
            let others = later.chain(details.iter().filter(|(detail, _)| excludes(detail)));
            let excluded = others.filter(|(_, is_set)| *is_set);
            errors
                .extend(excluded.map(|(other, _)| format!("`{operation}` and `{other}` exclude each other")));
        }
        for (flag, is_set, needed, has_needed) in [
            ("--group", group, "--client", client),
            ("--kubeconfig", kubeconfig, "--client", client),
            ("--server", server, "--kubeconfig", kubeconfig),
        ] {
            if is_set && !has_needed {
                errors.push(format!("`{flag}` needs `{needed}`"));
            }
        }
        errors
    }

    fn execute(&self, cert_dir: &Path) -> Result<(), CertsError> {
        let now = SystemClock::new().now();
        if self.list {
            return listing::print_list(&Folder::existing(cert_dir)?, now);
        }
        let changes_existing = self.renew || !self.revoke.is_empty() || self.rotate_ca.is_some();
        let folder = if changes_existing { Folder::existing(cert_dir)? } else { Folder::create(cert_dir)? };
        if self.public {
            folder.make_public()?;
        }
        let result = if !self.revoke.is_empty() {
            revocation::revoke(&folder, &self.revoke, now)
        } else if let Some(step) = self.rotate_ca {
            rotation::rotate(&folder, step, now)
        } else if self.renew {
            renewal::renew(&folder, &self.renewal_request(), now)
        } else {
            self.create(&folder)
        };
        result.and(folder.publish())
    }

    fn validity(&self) -> Option<Duration> {
        self.days.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600))
    }

    fn renewal_request(&self) -> renewal::Request<'_> {
        renewal::Request {
            client: self.client.as_deref(),
            hosts: &self.host,
            validity: self.validity(),
            force: self.force,
        }
    }

    /// Creates the missing files of the server, and the files of a client.
    fn create(&self, folder: &Folder) -> Result<(), CertsError> {
        let now = SystemClock::new().now();
        let client = self.client.as_deref().map(|user| (user, folder.client_files(user)));
        let file = self.kubeconfig.as_deref().filter(|path| *path != Path::new(STANDARD_OUTPUT));
        // With the kubeconfig on standard output, the names of the files go to standard error.
        let list = |text: String| match (&self.kubeconfig, file) {
            (Some(_), None) => eprint!("{text}"),
            _ => drop(print(text)),
        };
        if let Some(path) = file.filter(|_| !self.force) {
            reject_existing(path)?;
        }
        if let Some(path) = file {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
                return Err(CertsError::NoFolder(parent.to_owned()));
            }
        }
        let uses_existing = client.as_ref().is_some_and(|(_, files)| self.uses_existing(files));
        if let Some((_, files)) = client.as_ref().filter(|_| !self.force && !uses_existing) {
            files.check_absent()?;
        }
        if let Some((_, files)) = client.as_ref().filter(|_| uses_existing) {
            let certificate = CertificateFacts::read_all(&files.cert)?.into_iter().next();
            let trust = folder.trust()?;
            if let Some(problem) = certificate.and_then(|certificate| trust.problem(&certificate, now)) {
                return Err(CertsError::Rejected { cert: files.cert.clone(), problem });
            }
        }
        let policy = ServingPolicy { validity: self.validity(), ..ServingPolicy::default() };
        let pair = ensure_serving_pair_with(&folder.dir, &self.host, policy, now)?;
        folder.ensure_revocation_list(now)?;
        list(format!("{}\n{}\n", pair.ca.display(), pair.cert.display()));
        let Some((user, files)) = client else { return Ok(()) };
        if !uses_existing {
            let validity = self.validity().unwrap_or(DEFAULT_VALIDITY);
            let issued = folder.authority()?.client(user, &self.group, validity, now)?;
            folder.store_client(&files, &issued, now)?;
            list(format!("{}\n", files.cert.display()));
        }
        if self.kubeconfig.is_some() {
            let server = self.server.clone().unwrap_or_default();
            let kubeconfig = Kubeconfig { user, server: &server, folder, files: &files };
            match file {
                Some(path) => {
                    kubeconfig.write(path)?;
                    list(format!("{}\n", path.display()));
                }
                None => drop(print(kubeconfig.text()?)),
            }
            if let Some(note) = server.note_on_names(folder) {
                list(format!("note: {}\n", escape(&note)));
            }
        }
        Ok(())
    }

    /// Whether a kubeconfig is written for the existing files of its client.
    fn uses_existing(&self, files: &ClientFiles) -> bool {
        self.kubeconfig.is_some()
            && self.group.is_empty()
            && self.days.is_none()
            && files.cert.exists()
            && files.key.exists()
    }
}

/// Rejects an existing file, and a symbolic link without a target.
fn reject_existing(path: &Path) -> Result<(), CertsError> {
    if path.symlink_metadata().is_ok() { Err(CertsError::Exists(path.to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
