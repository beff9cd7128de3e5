//! `apid certs`: creates a CA, a serving certificate and client certificates for manual set-ups.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use serving::certs::{Authority, ensure_serving_pair};

/// The validity of client certificates.
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

const HELP: &str = "\
apid certs creates the certificates and keys for TLS, and keeps an existing certificate authority.

usage: apid certs --cert-dir DIR [--host NAME]... [--client USER [--group GROUP]...]

  --cert-dir DIR   folder for ca.crt, ca.key, apiserver.crt and apiserver.key
  --host NAME      a further name or address of the server
  --client USER    also make USER.crt and USER.key, signed by the same authority
  --group GROUP    a group of that user
";

/// Runs the command with its arguments, without the word `certs`.
///
/// # Errors
///
/// The invalid arguments, or the file that could not be written.
pub fn run(arguments: impl IntoIterator<Item = String>) -> Result<(), Vec<String>> {
    let parsed = match CertsArguments::parse(arguments)? {
        Some(parsed) => parsed,
        None => {
            print(HELP);
            return Ok(());
        }
    };
    parsed.make().map_err(|error| vec![error])
}

#[derive(Default)]
struct CertsArguments {
    cert_dir: PathBuf,
    hosts: Vec<String>,
    client: Option<String>,
    groups: Vec<String>,
}

impl CertsArguments {
    /// Parses the arguments. None: `--help`.
    fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Option<Self>, Vec<String>> {
        let mut parsed = CertsArguments::default();
        let mut mistakes = Vec::new();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            if argument == "--help" || argument == "-h" {
                return Ok(None);
            }
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument.clone(), None),
            };
            if !matches!(name.as_str(), "--cert-dir" | "--host" | "--client" | "--group") {
                mistakes.push(format!("unknown flag `{name}`"));
                continue;
            }
            match (name.as_str(), value.or_else(|| rest.next())) {
                (_, None) => mistakes.push(format!("`{name}` needs a value")),
                ("--cert-dir", Some(value)) => parsed.cert_dir = value.into(),
                ("--host", Some(value)) => parsed.hosts.push(value),
                ("--client", Some(value)) if value.contains('/') => {
                    mistakes.push(format!(
                        "`--client {value}`: the name is also a file name and must not contain `/`"
                    ));
                }
                ("--client", Some(value)) => parsed.client = Some(value),
                (_, Some(value)) => parsed.groups.push(value),
            }
        }
        if parsed.cert_dir.as_os_str().is_empty() {
            mistakes.push("`--cert-dir` is missing".to_owned());
        }
        if mistakes.is_empty() { Ok(Some(parsed)) } else { Err(mistakes) }
    }

    fn make(&self) -> Result<(), String> {
        let now = SystemClock::new().now();
        let pair =
            ensure_serving_pair(&self.cert_dir, &self.hosts, now).map_err(|error| error.to_string())?;
        print(&format!("{}\n{}\n", pair.ca.display(), pair.cert.display()));
        let Some(user) = &self.client else { return Ok(()) };
        let authority = Authority::load(&pair.ca, &pair.ca_key).map_err(|error| error.to_string())?;
        let made = authority.client(user, &self.groups, VALIDITY, now).map_err(|error| error.to_string())?;
        let cert = self.cert_dir.join(format!("{user}.crt"));
        write(&self.cert_dir.join(format!("{user}.key")), &made.key, 0o600)?;
        write(&cert, &made.cert, 0o644)?;
        print(&format!("{}\n", cert.display()));
        Ok(())
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let new = path.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new);
    made.and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Prints to standard output; a closed reader is not an error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
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
