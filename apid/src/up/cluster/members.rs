//! The three etcd members: the program, its certificates, ports and flags.
//!
//! # Contract
//!
//! Members and servers use TLS with client certificates of an authority of their own, because other users of the machine
//! can reach the loopback address. A member keeps its addresses: they are part of its stored cluster.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use serving::certs::{self, Authority, CertError, PemPair};
use serving::config_file::FlagValues;

use super::ClusterError;
use super::child::Program;

/// Number of members: one can fail.
const MEMBERS: usize = 3;
/// Validity of the certificates, as of their authority.
const VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Time for which a member may end in order. The last member would wait for a new leader; SIGKILL loses nothing.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest request in bytes: above the largest object.
const MAX_REQUEST: u32 = 8 << 20;

/// The flags of TLS for clients and for the other members, with their files.
const TLS_FLAGS: [(&str, &str); 10] = [
    ("trusted-ca-file", "ca.crt"),
    ("cert-file", "member.crt"),
    ("key-file", "member.key"),
    ("client-cert-file", "client.crt"),
    ("client-key-file", "client.key"),
    ("peer-trusted-ca-file", "ca.crt"),
    ("peer-cert-file", "member.crt"),
    ("peer-key-file", "member.key"),
    ("peer-client-cert-file", "client.crt"),
    ("peer-client-key-file", "client.key"),
];

/// The members of the cluster.
pub(super) struct Members {
    program: PathBuf,
    dir: PathBuf,
    /// The client port and the peer port of each member.
    ports: Vec<(u16, u16)>,
}

impl Members {
    /// Finds the program, and makes the certificates and ports that do not exist yet.
    pub(super) fn prepare(program: Option<&Path>, dir: &Path, now: Timestamp) -> Result<Self, ClusterError> {
        let program = find_program(program)?;
        certs::make_dir(dir)?;
        ensure_certificates(dir, now)?;
        let ports = ensure_ports(&dir.join("ports"))?;
        Ok(Members { program, dir: dir.to_owned(), ports })
    }

    fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// The flags with which a server uses the cluster.
    pub(super) fn server_flags(&self) -> Vec<FlagValues> {
        let urls: Vec<String> =
            self.ports.iter().map(|(client, _)| format!("https://127.0.0.1:{client}")).collect();
        vec![
            FlagValues::single("etcd-servers", urls.join(",")),
            FlagValues::single("etcd-cafile", self.file("ca.crt")),
            FlagValues::single("etcd-certfile", self.file("client.crt")),
            FlagValues::single("etcd-keyfile", self.file("client.key")),
        ]
    }

    /// The programs to start.
    pub(super) fn programs(&self, logs: Option<&Path>) -> Vec<Program> {
        let peers: Vec<String> = (1..)
            .zip(&self.ports)
            .map(|(number, (_, peer))| format!("etcd-{number}=https://127.0.0.1:{peer}"))
            .collect();
        let cluster = peers.join(",");
        let program = |(number, (client, peer)): (usize, &(u16, u16))| {
            let (client, peer) = (format!("https://127.0.0.1:{client}"), format!("https://127.0.0.1:{peer}"));
            let mut flags = vec![
                ("name", format!("etcd-{number}")),
                ("data-dir", self.file(&format!("etcd-{number}"))),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", cluster.clone()),
                ("client-cert-auth", "true".to_owned()),
                ("peer-client-cert-auth", "true".to_owned()),
                ("max-request-bytes", MAX_REQUEST.to_string()),
                ("log-level", "warn".to_owned()),
            ];
            for (flag, file) in TLS_FLAGS {
                flags.push((flag, self.file(file)));
            }
            Program {
                name: format!("etcd {number}"),
                path: self.program.clone(),
                arguments: flags.into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect(),
                log: logs.map(|dir| dir.join(format!("etcd-{number}.log"))),
                exit_timeout: EXIT_TIMEOUT,
            }
        };
        (1..).zip(&self.ports).map(program).collect()
    }
}

/// Finds etcd, and checks its version.
fn find_program(program: Option<&Path>) -> Result<PathBuf, ClusterError> {
    let program = match program {
        Some(program) => program.to_owned(),
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&path).map(|dir| dir.join("etcd")).find(|file| file.is_file());
            found.ok_or(ClusterError::NoEtcd)?
        }
    };
    let unusable = |problem: String| ClusterError::UnusableEtcd { program: program.clone(), problem };
    let output =
        Command::new(&program).arg("--version").output().map_err(|error| unusable(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    let version = version.ok_or_else(|| unusable("`--version` prints no version of etcd".to_owned()))?;
    if is_supported(version) { Ok(program) } else { Err(unusable(format!("its version is {version}"))) }
}

/// Whether a version is 3.5 or a later one of 3.
fn is_supported(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(Some(3)), Some(Some(minor))) if minor >= 5)
}

/// Makes an authority, a certificate of the members and one of their clients, unless they exist.
fn ensure_certificates(dir: &Path, now: Timestamp) -> Result<(), CertError> {
    let authority = Authority::ensure(&dir.join("ca.crt"), &dir.join("ca.key"), "etcd-ca", now)?;
    let write = |name: &str, pair: &PemPair| {
        certs::write(&dir.join(format!("{name}.key")), pair.key.as_bytes(), 0o600)?;
        certs::write(&dir.join(format!("{name}.crt")), pair.cert.as_bytes(), 0o600)
    };
    // The certificate is written last, so that a pair without it is made again.
    if !dir.join("member.crt").exists() {
        write("member", &authority.serving(&["127.0.0.1".to_owned()], VALIDITY, now)?)?;
    }
    if !dir.join("client.crt").exists() {
        write("client", &authority.client("apid", &[], VALIDITY, now)?)?;
    }
    Ok(())
}

/// Reads the ports of the members, or chooses free ones.
fn ensure_ports(file: &Path) -> Result<Vec<(u16, u16)>, ClusterError> {
    let unusable =
        |error: std::io::Error| ClusterError::Ports { path: file.to_owned(), problem: error.to_string() };
    match std::fs::read_to_string(file) {
        Ok(text) => {
            let parse = |line: &str| {
                let (client, peer) = line.split_once(' ')?;
                Some((client.parse().ok()?, peer.parse().ok()?))
            };
            let ports: Option<Vec<(u16, u16)>> = text.lines().map(parse).collect();
            ports.filter(|ports| ports.len() == MEMBERS).ok_or_else(|| ClusterError::Ports {
                path: file.to_owned(),
                problem: "has not a client port and a peer port for each member".to_owned(),
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let free = free_ports(2 * MEMBERS).map_err(unusable)?;
            let ports: Vec<(u16, u16)> =
                free.chunks_exact(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?))).collect();
            let text: String = ports.iter().map(|(client, peer)| format!("{client} {peer}\n")).collect();
            certs::write(file, text.as_bytes(), 0o600)?;
            Ok(ports)
        }
        Err(error) => Err(unusable(error)),
    }
}

/// Chooses ports of the loopback address that no process uses.
pub(super) fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_from_3_5_are_supported() {
        for (version, expected) in [
            ("3.5.1", true),
            ("3.6.0-rc.1", true),
            ("3.10.2", true),
            ("3.4.34", false),
            ("2.3.8", false),
            ("4.0.0", false),
            ("", false),
        ] {
            assert_eq!(is_supported(version), expected, "{version}");
        }
    }

    #[test]
    fn error_of_missing_etcd_names_the_package() {
        let dir = tempfile::tempdir().unwrap();
        let error = find_program(Some(&dir.path().join("etcd"))).unwrap_err().to_string();
        assert!(error.contains("--etcd-program"), "{error}");
        let error = find_program(Some(Path::new("/bin/true"))).unwrap_err().to_string();
        assert!(error.contains("prints no version of etcd"), "{error}");
        assert!(ClusterError::NoEtcd.to_string().contains("apt-get install etcd-server"));
    }

    #[test]
    fn ports_and_certificates_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let now = Timestamp::UNIX_EPOCH;
        ensure_certificates(dir.path(), now).unwrap();
        let ports = ensure_ports(&dir.path().join("ports")).unwrap();
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let before = ["ca.crt", "member.crt", "client.crt"].map(read);
        ensure_certificates(dir.path(), now).unwrap();
        assert_eq!(["ca.crt", "member.crt", "client.crt"].map(read), before);
        assert_eq!(ensure_ports(&dir.path().join("ports")).unwrap(), ports);
        assert_eq!(ports.len(), MEMBERS);
        std::fs::write(dir.path().join("ports"), "1 2\n").unwrap();
        assert!(ensure_ports(&dir.path().join("ports")).is_err());
    }
}
