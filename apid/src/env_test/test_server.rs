//! `apid test-server`: a private control plane without configuration.
//!
//! # Contract
//!
//! The process creates a private temporary directory with a store, certificates and a kubeconfig of the user
//! `admin` in group `system:masters`. It listens on a free port of the loopback address. When it is ready, it
//! prints one line of JSON: `kubeconfig`, `server`, `token`, `certificateAuthority` and `directory`. It ends at
//! the end of its standard input or after a signal, and removes the directory. The command line and the file of
//! `--config` replace the defaults. [`FIXED_FLAGS`] are rejected, because the printed line depends on them. A
//! kubeconfig that cannot be written ends the process with an error.

use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::clock::{Clock as _, Rng as _, SystemClock, SystemRng};
use serde_json::json;
use serving::certs::{self, CertError, ServingPair};
use serving::config_file::FlagValues;

use crate::caller_flags::CallerFlags;
use crate::config::{Command, Config};
use crate::console::{print, report_errors};
use crate::process::{self, RunOptions, StopCondition};

const HELP: &str = "\
Starts a private control plane for tests, with the names preset kubernetes, in a temporary directory.

Usage: apid test-server [FLAGS OF APID]

When the server is ready, it prints one line of JSON with the fields kubeconfig (a file), server (the URL), token,
certificateAuthority (a file) and directory. The server ends at the end of its standard input, or after SIGTERM or
SIGINT, and removes its directory. `apid --help` lists the flags; test-server itself sets --bind-address,
--tls-cert-file, --tls-private-key-file and --token-auth-file.
";

/// Flags that the command sets itself: the address, the certificate and the token of the printed line.
const FIXED_FLAGS: [&str; 4] = ["bind-address", "tls-cert-file", "tls-private-key-file", "token-auth-file"];

/// The user of the kubeconfig.
const USER: &str = "admin";

/// Runs `apid test-server`. `arguments` are those after the word `test-server`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let arguments: Vec<String> = arguments.into_iter().collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return print(HELP);
    }
    let directory = match TemporaryDirectory::create() {
        Ok(directory) => directory,
        Err(error) => {
            return report_errors("apid", &[format!("cannot create a temporary directory: {error}")]);
        }
    };
    start(&directory, arguments).unwrap_or_else(|errors| report_errors("apid", &errors))
}

/// A private temporary directory, removed on drop.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn create() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("apid-test-{:016x}", SystemRng.bits() >> 64));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(TemporaryDirectory(path))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(directory: &TemporaryDirectory, arguments: Vec<String>) -> Result<ExitCode, Vec<String>> {
    let flags = CallerFlags::read(arguments)?;
    reject_fixed_flags(&flags)?;
    let cert_dir = flags.value("cert-dir").map_or_else(|| directory.0.join("certs"), PathBuf::from);
    let pair = certs::ensure_serving_pair(&cert_dir, &[], SystemClock::new().now())
        .map_err(|error| vec![error.to_string()])?;
    let token = format!("{:032x}{:032x}", SystemRng.bits(), SystemRng.bits());
    let tokens = directory.file("tokens.csv");
    certs::write(Path::new(&tokens), format!("{token},{USER},{USER},system:masters\n").as_bytes(), 0o600)
        .map_err(|error| vec![error.to_string()])?;
    let mut defaults = vec![
        FlagValues::single("names", "kubernetes"),
        FlagValues::single("spawn-authd", "true"),
        FlagValues::single("data-dir", directory.file("data")),
        FlagValues::single("bind-address", "127.0.0.1"),
        FlagValues::single("secure-port", "0"),
        FlagValues::single("cert-dir", cert_dir.display().to_string()),
        FlagValues::single("client-ca-file", pair.ca.display().to_string()),
        FlagValues::single("token-auth-file", tokens),
    ];
    if !flags.has("authorization-config") {
        defaults.push(FlagValues::single("authorization-mode", "Node,RBAC"));
    }
    let config = match Config::read(flags.with_defaults(defaults))? {
        Command::Serve(config) => config,
        Command::Print(text) => return Ok(print(text)),
    };
    let notice = ReadyNotice { directory: directory.0.clone(), pair, token };
    let options = RunOptions {
        stop: StopCondition::EndOfInput,
        on_ready: Some(Box::new(move |port| Ok(notice.publish(port)?))),
    };
    Ok(process::run_with(*config, options))
}

/// Returns an error line for each flag in [`FIXED_FLAGS`] that the caller sets.
fn reject_fixed_flags(flags: &CallerFlags) -> Result<(), Vec<String>> {
    let fixed = FIXED_FLAGS.iter().filter(|name| flags.has(name));
    let errors: Vec<String> =
        fixed.map(|name| format!("`--{name}`: test-server sets this flag itself; remove the flag")).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The kubeconfig cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the kubeconfig cannot be written: {0}")]
struct KubeconfigError(CertError);

/// The contents of the kubeconfig and of the printed line.
struct ReadyNotice {
    directory: PathBuf,
    pair: ServingPair,
    token: String,
}

impl ReadyNotice {
    /// Writes the kubeconfig and prints the line of JSON that says where it is.
    ///
    /// # Errors
    ///
    /// The kubeconfig cannot be written.
    fn publish(&self, port: u16) -> Result<(), KubeconfigError> {
        let server = format!("https://127.0.0.1:{port}");
        let kubeconfig = self.directory.join("kubeconfig");
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": server, "certificate-authority": self.pair.ca,
            }}],
            "users": [{"name": USER, "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": USER}}],
        });
        certs::write(&kubeconfig, content.to_string().as_bytes(), 0o600).map_err(KubeconfigError)?;
        let line = json!({
            "kubeconfig": kubeconfig,
            "server": server,
            "token": self.token,
            "certificateAuthority": self.pair.ca,
            "directory": self.directory,
        });
        let mut output = io::stdout().lock();
        // A closed standard output is not an error, because the kubeconfig exists.
        let _ = writeln!(output, "{line}").and_then(|()| output.flush());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(directory: &Path) -> ReadyNotice {
        let path = |name: &str| directory.join(name);
        let pair = ServingPair { cert: path("c"), key: path("k"), ca: path("ca"), ca_key: path("cak") };
        ReadyNotice { directory: directory.to_owned(), pair, token: "t".to_owned() }
    }

    #[test]
    fn kubeconfig_that_cannot_be_written_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        notice(dir.path()).publish(1).unwrap();
        assert!(dir.path().join("kubeconfig").is_file());
        let error = notice(&dir.path().join("absent")).publish(1).unwrap_err().to_string();
        assert!(error.starts_with("the kubeconfig cannot be written: "), "{error}");
    }

    #[test]
    fn flags_that_the_printed_line_depends_on_are_rejected() {
        let flags = |words: &[&str]| {
            CallerFlags::read(words.iter().map(|word| (*word).to_owned()).collect()).unwrap()
        };
        assert_eq!(reject_fixed_flags(&flags(&["--secure-port=1"])), Ok(()));
        let errors =
            reject_fixed_flags(&flags(&["--bind-address", "::", "--token-auth-file=x"])).unwrap_err();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].starts_with("`--bind-address`: "), "{errors:?}");
    }
}
