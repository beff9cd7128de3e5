//! The listeners for apid: a Unix socket, and TCP with mutual TLS for apids of several machines.
//!
//! # Invariants
//!
//! INVARIANT (known apids): a listener on TCP has a CA bundle and the names of the accepted client certificates. Each client
//! of authd gets any decision and sends the policy, so no certificate is accepted by default.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serving::mutual_tls::{MutualTlsFiles, MutualTlsServer};

use crate::config_error::ConfigError;

/// Flags of the listeners.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags of the listeners for apid")]
pub struct ListenFlags {
    /// Unix socket for an apid of this machine
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Mode of the socket: 0600, or 0660 for an apid that runs as another user of the same group
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = socket_mode)]
    pub socket_mode: u32,
    /// Address for several apids, which share this authd over TLS 1.3 with client certificates (--authd-servers of apid)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen_address: Option<SocketAddr>,
    /// CA bundle that verifies the client certificates of apids; hot reload
    #[arg(long, value_name = "FILE")]
    pub listen_cafile: Option<PathBuf>,
    /// Serving certificate of --listen-address; hot reload
    #[arg(long, value_name = "FILE")]
    pub listen_certfile: Option<PathBuf>,
    /// Private key of --listen-certfile; hot reload
    #[arg(long, value_name = "FILE")]
    pub listen_keyfile: Option<PathBuf>,
    /// Common names of the accepted client certificates of apids
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub listen_allowed_names: Vec<String>,
}

fn socket_mode(text: &str) -> Result<u32, &'static str> {
    match text {
        "0600" | "600" => Ok(0o600),
        "0660" | "660" => Ok(0o660),
        _ => Err("the mode must be 0600 or 0660: each user who may use the socket gets any decision"),
    }
}

/// The checked listeners.
#[derive(Debug)]
pub struct Listeners {
    /// The path and the mode of the Unix socket.
    pub socket: Option<(PathBuf, u32)>,
    /// The address of the listener on TCP, and its TLS.
    pub tcp: Option<(SocketAddr, MutualTlsServer)>,
}

/// Checks the flags, and reads the files that they name.
pub(super) fn check(flags: ListenFlags, errors: &mut Vec<ConfigError>) -> Listeners {
    let ListenFlags { socket, socket_mode, listen_address, .. } = &flags;
    if socket.is_none() && listen_address.is_none() {
        let problem = "authd has no listener: set `--socket` for an apid of this machine, or `--listen-address` for apids \
                       that share this authd";
        errors.push(ConfigError::Combination(problem.to_owned()));
    }
    let socket = socket.clone().map(|path| (path, *socket_mode));
    Listeners { socket, tcp: check_tcp(flags, errors) }
}

fn check_tcp(flags: ListenFlags, errors: &mut Vec<ConfigError>) -> Option<(SocketAddr, MutualTlsServer)> {
    let ListenFlags { listen_address, listen_cafile, listen_certfile, listen_keyfile, .. } = flags;
    let names: Vec<String> = flags.listen_allowed_names.iter().map(|name| name.trim().to_owned()).collect();
    let given = [
        ("--listen-cafile", listen_cafile.is_some()),
        ("--listen-certfile", listen_certfile.is_some()),
        ("--listen-keyfile", listen_keyfile.is_some()),
        ("--listen-allowed-names", !names.is_empty()),
    ];
    let Some(address) = listen_address else {
        let unneeded = given.into_iter().filter(|(_, is_given)| *is_given);
        errors.extend(unneeded.map(|(flag, _)| ConfigError::flag(flag, "requires --listen-address")));
        return None;
    };
    let missing = given.into_iter().filter(|(_, is_given)| !is_given);
    errors.extend(missing.map(|(flag, _)| {
        ConfigError::flag(
            flag,
            "required by --listen-address: authd serves apids on TCP with client certificates only",
        )
    }));
    if names.iter().any(String::is_empty) {
        errors.push(ConfigError::flag("--listen-allowed-names", "a name is empty"));
        return None;
    }
    let files =
        MutualTlsFiles { authority: listen_cafile?, certificate: listen_certfile?, key: listen_keyfile? };
    match MutualTlsServer::load(files, names) {
        Ok(server) => Some((address, server)),
        Err(error) => {
            errors.push(ConfigError::Combination(format!("--listen-address: {error}")));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use apimachinery::clock::{Clock as _, SystemClock};
    use serving::certs::Authority;

    use super::*;
    use crate::config::parse_flags;
    use crate::config_error::error_texts;

    fn check_flags(arguments: &[&str]) -> Result<Listeners, Vec<String>> {
        let mut errors = Vec::new();
        let listeners = check(parse_flags(arguments).unwrap(), &mut errors);
        if errors.is_empty() { Ok(listeners) } else { Err(error_texts(errors)) }
    }

    fn write_certificates(dir: &Path) {
        let now = SystemClock::new().now();
        let authority = Authority::ensure(&dir.join("ca"), &dir.join("ca.key"), "ca", now).unwrap();
        let pair = authority.serving(&["127.0.0.1".to_owned()], Duration::from_secs(3600), now).unwrap();
        std::fs::write(dir.join("crt"), pair.cert).unwrap();
        std::fs::write(dir.join("key"), pair.key).unwrap();
    }

    #[test]
    fn listener_on_tcp_requires_certificates_and_names() {
        let dir = tempfile::tempdir().unwrap();
        write_certificates(dir.path());
        let file = |flag: &str, name: &str| format!("--listen-{flag}={}", dir.path().join(name).display());
        let (ca, certificate, key) = (file("cafile", "ca"), file("certfile", "crt"), file("keyfile", "key"));
        let no_ca = file("cafile", "key");
        let all = ["--listen-address=127.0.0.1:0", &ca, &certificate, &key, "--listen-allowed-names=apid"];
        let listeners = check_flags(&all).unwrap();
        assert!(listeners.socket.is_none() && listeners.tcp.is_some());
        let both = [&all[..], &["--socket=/s"]].concat();
        assert!(check_flags(&both).unwrap().socket.is_some());
        for left_out in 1..all.len() {
            let mut flags = all.to_vec();
            flags.remove(left_out);
            let errors = check_flags(&flags).unwrap_err();
            let flag = all[left_out].split('=').next().unwrap();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(
                errors[0].starts_with(flag) && errors[0].contains("client certificates only"),
                "{errors:?}"
            );
        }
        for (flags, expected) in [
            (vec![], "authd has no listener"),
            (vec!["--socket=/s", &ca], "--listen-cafile: requires --listen-address"),
            (vec![all[0], &ca, &certificate, &key, "--listen-allowed-names=a,"], "a name is empty"),
            (vec![all[0], &no_ca, &certificate, &key, all[4]], "contains no certificate"),
            (vec![all[0], "--listen-cafile=/missing", &certificate, &key, all[4]], "/missing: "),
        ] {
            let errors = check_flags(&flags).unwrap_err();
            assert!(errors.iter().any(|error| error.contains(expected)), "{expected}: {errors:?}");
        }
    }
}
