//! Several apids on one etcd cluster, with users, certificates and keys in common.
//!
//! # Contract
//!
//! Each apid starts its own authd and has its own data directory. One configuration of a client works with all apids: they
//! accept the same tokens and client certificates, present certificates of one authority, and verify the service-account
//! tokens of each other.

use std::fs;
use std::path::PathBuf;

use prerequisites::etcd::EtcdCluster;
use serde_json::json;
use serving::certs::ensure_key;
use tempfile::TempDir;

use super::control_plane::{ControlPlane, Options, prepare_users};

/// Running apids on a running etcd cluster.
pub struct Cluster {
    servers: Vec<ControlPlane>,
    etcd: EtcdCluster,
    shared: TempDir,
}

impl Cluster {
    /// Starts apids with the preset `kubernetes` on an empty etcd cluster; None when the test is skipped.
    pub async fn start(apids: usize, members: usize) -> Option<Cluster> {
        Cluster::start_with(Options::kubernetes(), apids, members).await
    }

    /// Starts apids with options on an empty etcd cluster; None when the test is skipped. The apids start at the same time.
    pub async fn start_with(options: Options, apids: usize, members: usize) -> Option<Cluster> {
        let etcd = EtcdCluster::start(members)?;
        let shared = tempfile::Builder::new().prefix("cluster-").tempdir().expect("a temporary directory");
        let options = shared_options(options, &shared).flag(&format!("--etcd-servers={}", etcd.urls()));
        let starts: Vec<_> = (0..apids).map(|_| tokio::spawn(ControlPlane::start(options.clone()))).collect();
        let mut servers = Vec::new();
        for start in starts {
            servers.push(start.await.expect("apid starts"));
        }
        Some(Cluster { servers, etcd, shared })
    }

    /// Returns the number of apids.
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// Returns an apid.
    pub fn server(&self, number: usize) -> &ControlPlane {
        &self.servers[number]
    }

    /// Returns an apid, to kill, stop or launch it.
    pub fn server_mut(&mut self, number: usize) -> &mut ControlPlane {
        &mut self.servers[number]
    }

    /// Returns the etcd cluster.
    pub fn etcd(&mut self) -> &mut EtcdCluster {
        &mut self.etcd
    }

    /// Returns the authority of the certificates of all apids.
    pub fn ca_file(&self) -> PathBuf {
        self.shared.path().join("certs/ca.crt")
    }

    /// Writes a kubeconfig of the user `admin` for a server on a port, such as a balancer, and returns its path.
    pub fn kubeconfig(&self, port: u16) -> PathBuf {
        let file = self.shared.path().join(format!("{port}.kubeconfig"));
        let content = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {
                "server": format!("https://127.0.0.1:{port}"), "certificate-authority": self.ca_file(),
            }}],
            "users": [{"name": "admin", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "admin", "namespace": "default"}}],
        });
        fs::write(&file, content.to_string()).expect("the configuration file");
        file
    }
}

/// Returns options with the users, certificates and keys of a folder, and creates these files before apids use them.
fn shared_options(options: Options, shared: &TempDir) -> Options {
    let key = shared.path().join("service-accounts.key");
    ensure_key(&key).expect("a key for service-account tokens");
    drop(prepare_users(shared.path()));
    Options { shared_dir: Some(shared.path().to_owned()), ..options }
        .flag(&format!("--cert-dir={}", shared.path().join("certs").display()))
        .flag(&format!("--service-account-signing-key-file={}", key.display()))
        .flag(&format!("--service-account-key-file={}", key.display()))
}
