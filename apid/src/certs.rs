//! `apid certs`: creates a CA, a serving certificate and client certificates for manual set-ups.

use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use serving::certs::{self, Authority, CertError, ensure_serving_pair};

use crate::console::print;
use processflags::command_line::{self, ParsedLine};

/// Duration for which client certificates are valid.
const CLIENT_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// Runs `apid certs`. `arguments` are those after the word `certs`.
///
/// # Errors
///
/// The invalid arguments, or the file that could not be written.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result<(), Vec<String>> {
    let (matches, mut errors) = match command_line::parse(CertsFlags::command(), arguments)? {
        ParsedLine::Flags { matches, errors } => (matches, errors),
        ParsedLine::Text(text) => {
            print(text);
            return Ok(());
        }
    };
    let flags = CertsFlags::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])?;
    let Some(cert_dir) = &flags.cert_dir else {
        errors.push("`--cert-dir` is missing".to_owned());
        return Err(errors);
    };
    if !errors.is_empty() {
        return Err(errors);
    }
    flags.create(cert_dir).map_err(|error| vec![error.to_string()])
}

/// Creates the certificates and keys for TLS, and keeps an existing certificate authority.
#[derive(Debug, Parser)]
#[command(name = "apid certs", disable_version_flag = true)]
struct CertsFlags {
    /// Folder for ca.crt, ca.key, apiserver.crt and apiserver.key
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
    /// Replace existing files of USER
    #[arg(long)]
    force: bool,
}

/// Names of files in `--cert-dir` that belong to the server.
const RESERVED_NAMES: [&str; 2] = ["ca", "apiserver"];

fn client_name(name: &str) -> Result<String, CertsError> {
    if name.is_empty() || name.contains(|c: char| c == '/' || c.is_control()) {
        return Err(CertsError::ClientName);
    }
    // The case does not matter: some file systems ignore the case of a name.
    match RESERVED_NAMES.into_iter().find(|reserved| reserved.eq_ignore_ascii_case(name)) {
        Some(reserved) => Err(CertsError::ReservedName(reserved)),
        None => Ok(name.to_owned()),
    }
}

/// An error of `apid certs`.
#[derive(Debug, thiserror::Error)]
enum CertsError {
    /// The name of a client is no file name.
    #[error(
        "the name is also a file name: it must not be empty and must not contain `/` or control characters"
    )]
    ClientName,
    /// The files of a client would be files of the server.
    #[error("{0}.crt and {0}.key are files of the server; choose another name")]
    ReservedName(&'static str),
    /// A file of the client exists.
    #[error("{}: the file exists; remove it, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// A certificate cannot be created, or a file cannot be written.
    #[error("{0}")]
    Certificate(#[from] CertError),
}

impl CertsFlags {
    fn create(&self, cert_dir: &Path) -> Result<(), CertsError> {
        let now = SystemClock::new().now();
        let client_files = self.client.as_deref().map(|user| ClientFiles::in_dir(cert_dir, user));
        if let Some(files) = client_files.as_ref().filter(|_| !self.force) {
            files.check_absent()?;
        }
        let pair = ensure_serving_pair(cert_dir, &self.host, now)?;
        print(format!("{}\n{}\n", pair.ca.display(), pair.cert.display()));
        let (Some(user), Some(files)) = (&self.client, client_files) else { return Ok(()) };
        let client =
            Authority::load(&pair.ca, &pair.ca_key)?.client(user, &self.group, CLIENT_VALIDITY, now)?;
        certs::write(&files.key, client.key.as_bytes(), 0o600)?;
        certs::write(&files.cert, client.cert.as_bytes(), 0o644)?;
        print(format!("{}\n", files.cert.display()));
        Ok(())
    }
}

/// Files of a client certificate and its key.
struct ClientFiles {
    cert: PathBuf,
    key: PathBuf,
}

impl ClientFiles {
    fn in_dir(dir: &Path, user: &str) -> Self {
        ClientFiles { cert: dir.join(format!("{user}.crt")), key: dir.join(format!("{user}.key")) }
    }

    /// Rejects existing files, and symbolic links without a target.
    fn check_absent(&self) -> Result<(), CertsError> {
        match [&self.cert, &self.key].into_iter().find(|path| path.symlink_metadata().is_ok()) {
            Some(path) => Err(CertsError::Exists(path.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certs_rerun_keeps_ca_and_replaces_client_certificate_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let dir = format!("--cert-dir={}", folder.path().display());
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        let run_with = |more: &[&str]| {
            let arguments = [dir.as_str(), "--client", "admin", "--group", "system:masters"];
            run(arguments.iter().chain(more).map(|word| (*word).to_owned()))
        };
        run_with(&[]).unwrap();
        let files =
            || ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "admin.crt", "admin.key"].map(read);
        let first = files();
        let refused = run_with(&[]).unwrap_err();
        assert!(refused[0].contains("admin.crt: the file exists"), "{refused:?}");
        std::fs::remove_file(folder.path().join("admin.crt")).unwrap();
        let refused = run_with(&[]).unwrap_err();
        assert!(refused[0].contains("admin.key: the file exists"), "{refused:?}");
        assert_eq!(read("admin.key"), first[5], "the refused call leaves the key");
        run_with(&["--force"]).unwrap();
        let second = files();
        assert_eq!(second[..4], first[..4]);
        assert_ne!(second[4], first[4]);
        assert_ne!(second[5], first[5]);
    }

    #[test]
    fn client_with_file_name_of_the_server_is_rejected_also_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let dir = format!("--cert-dir={}", folder.path().display());
        run([dir.clone()]).unwrap();
        let read = || {
            ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key"]
                .map(|name| std::fs::read(folder.path().join(name)).unwrap())
        };
        let before = read();
        for name in ["ca", "apiserver", "CA", "", "a/b", "a\nb"] {
            let refused = run([dir.clone(), format!("--client={name}"), "--force".to_owned()]);
            assert!(refused.is_err(), "{name:?}");
        }
        assert_eq!(read(), before);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn certs_reports_all_argument_errors_together() {
        let errors = run(["--nope", "--client=a/b", "--group"].map(str::to_owned)).unwrap_err();
        assert_eq!(errors.len(), 4, "{errors:?}");
    }
}
