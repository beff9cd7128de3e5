//! `apid certs`: creates a CA, a serving certificate and client certificates for manual set-ups.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use serving::certs::{Authority, CertError, ensure_serving_pair};

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
    let (matches, mut mistakes) = match command_line::parse(CertsFlags::command(), arguments)? {
        ParsedLine::Flags { matches, mistakes } => (matches, mistakes),
        ParsedLine::Text(text) => {
            print(text);
            return Ok(());
        }
    };
    let flags = CertsFlags::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])?;
    let Some(cert_dir) = &flags.cert_dir else {
        mistakes.push("`--cert-dir` is missing".to_owned());
        return Err(mistakes);
    };
    if !mistakes.is_empty() {
        return Err(mistakes);
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
}

fn client_name(name: &str) -> Result<String, CertsError> {
    if name.contains('/') { Err(CertsError::ClientName) } else { Ok(name.to_owned()) }
}

/// An error of `apid certs`.
#[derive(Debug, thiserror::Error)]
enum CertsError {
    /// The name of a client contains `/`, so it is not a file name.
    #[error("the name is also a file name and must not contain `/`")]
    ClientName,
    /// A certificate cannot be created.
    #[error("{0}")]
    Certificate(#[from] CertError),
    /// A file cannot be written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file that cannot be written.
        path: PathBuf,
        /// The failure of the file system.
        error: io::Error,
    },
}

impl CertsFlags {
    fn create(&self, cert_dir: &Path) -> Result<(), CertsError> {
        let now = SystemClock::new().now();
        let pair = ensure_serving_pair(cert_dir, &self.host, now)?;
        print(format!("{}\n{}\n", pair.ca.display(), pair.cert.display()));
        let Some(user) = &self.client else { return Ok(()) };
        let client =
            Authority::load(&pair.ca, &pair.ca_key)?.client(user, &self.group, CLIENT_VALIDITY, now)?;
        let cert = cert_dir.join(format!("{user}.crt"));
        write(&cert_dir.join(format!("{user}.key")), &client.key, 0o600)?;
        write(&cert, &client.cert, 0o644)?;
        print(format!("{}\n", cert.display()));
        Ok(())
    }
}

/// Replaces a file by a new one with the permission bits `mode`; a reader never sees a partial file.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertsError> {
    let temporary = path.with_extension("new");
    let _ = std::fs::remove_file(&temporary);
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|error| CertsError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certs_rerun_keeps_ca_and_renews_client_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let dir = format!("--cert-dir={}", folder.path().display());
        let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
        let arguments =
            || [dir.as_str(), "--client", "admin", "--group", "system:masters"].map(str::to_owned);
        run(arguments()).unwrap();
        let (ca, client) = (read("ca.crt"), read("admin.crt"));
        run(arguments()).unwrap();
        assert_eq!(read("ca.crt"), ca);
        assert_ne!(read("admin.crt"), client);
    }

    #[test]
    fn certs_reports_all_argument_errors_together() {
        let mistakes = run(["--nope", "--client=a/b", "--group"].map(str::to_owned)).unwrap_err();
        assert_eq!(mistakes.len(), 4, "{mistakes:?}");
    }
}
