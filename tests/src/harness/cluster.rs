//! Several apids on one etcd cluster, with users, certificates and keys in common.
//!
//! # Contract
//!
//! Each apid starts its own authd and has its own data directory. One configuration of a client works with all apids: they
//! accept the same tokens and client certificates, present certificates of one authority, and verify the service-account
//! tokens of each other.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use prerequisites::etcd::{EtcdCluster, EtcdServer, peer_url};
use serde_json::json;
use serving::certs::ensure_key;
use tempfile::TempDir;

use super::control_plane::{ControlPlane, Options, prepare_users};
use super::relay::Relay;

/// Running apids on a running etcd cluster.
pub struct Cluster {
    servers: Vec<ControlPlane>,
    etcd: EtcdCluster,
    network: Option<Network>,
    /// Ports of the apids; an apid that does not run keeps the last port.
    live_ports: Arc<[AtomicU16]>,
    shared: TempDir,
}

/// Relays between the parties of a cluster.
struct Network {
    /// Before each member, for the other members.
    peers: Vec<Relay>,
    /// For each apid, before each member.
    clients: Vec<Vec<Relay>>,
}

impl Cluster {
    /// Starts apids with the preset `kubernetes` on an empty etcd cluster; None when the test is skipped.
    pub async fn start(apids: usize, members: usize) -> Option<Cluster> {
        Cluster::start_with(Options::kubernetes(), apids, members).await
    }

    /// Starts apids with options on an empty etcd cluster; None when the test is skipped. The apids start at the same time.
    pub async fn start_with(options: Options, apids: usize, members: usize) -> Option<Cluster> {
        Cluster::start_each(vec![options; apids], members).await
    }

    /// Starts an apid with each of the options on an empty etcd cluster; None when the test is skipped.
    pub async fn start_each(options: Vec<Options>, members: usize) -> Option<Cluster> {
        let etcd = EtcdCluster::start(members)?;
        Some(Cluster::start_on(options, etcd, None).await)
    }

    /// Starts apids and members with relays between all of them, so that the network between them can be cut; None when
    /// the test is skipped.
    pub async fn start_with_network(options: Options, apids: usize, members: usize) -> Option<Cluster> {
        let mut peers = Vec::new();
        let etcd = EtcdCluster::start_behind(members, |ports| {
            let parties: Vec<String> =
                ports.iter().map(|port| format!("--listen-peer-urls={}", peer_url(*port))).collect();
            peers = ports.iter().map(|port| Relay::open_for(vec![*port], parties.clone())).collect();
            peers.iter().map(Relay::port).collect()
        })?;
        let relay = |member: &EtcdServer| Relay::open(vec![member.port()]);
        let clients = (0..apids).map(|_| etcd.members().iter().map(relay).collect()).collect();
        Some(Cluster::start_on(vec![options; apids], etcd, Some(Network { peers, clients })).await)
    }

    async fn start_on(options: Vec<Options>, etcd: EtcdCluster, network: Option<Network>) -> Cluster {
        let shared = tempfile::Builder::new().prefix("cluster-").tempdir().expect("a temporary directory");
        let start = |(apid, options): (usize, Options)| {
            let urls = match &network {
                Some(network) => {
                    let relays = network.clients[apid].iter();
                    relays.map(|relay| peer_url(relay.port())).collect::<Vec<String>>().join(",")
                }
                None => etcd.urls(),
            };
            let options = shared_options(options, &shared).flag(&format!("--etcd-servers={urls}"));
            tokio::spawn(ControlPlane::start(options))
        };
        let starts: Vec<_> = options.into_iter().enumerate().map(start).collect();
        let mut servers = Vec::new();
        for start in starts {
            servers.push(start.await.expect("apid starts"));
        }
        let live_ports = servers.iter().map(|server| AtomicU16::new(server.admin().port())).collect();
        Cluster { servers, etcd, network, live_ports, shared }
    }

    /// Cuts a member off from the other members; the apids still reach all members.
    ///
    /// # Panics
    ///
    /// The cluster was started without a network.
    pub fn isolate_member(&self, member: usize) {
        let network = self.network.as_ref().expect("a cluster with a network");
        for (number, relay) in network.peers.iter().enumerate() {
            let is_cut = |party: &usize| (*party == member) != (number == member);
            (0..network.peers.len()).filter(is_cut).for_each(|party| relay.stop(party));
        }
    }

    /// Cuts an apid off from a member.
    ///
    /// # Panics
    ///
    /// The cluster was started without a network.
    pub fn cut(&self, apid: usize, member: usize) {
        let network = self.network.as_ref().expect("a cluster with a network");
        network.clients[apid][member].stop(0);
    }

    /// Connects all parties again.
    pub fn heal(&self) {
        let relays = self
            .network
            .iter()
            .flat_map(|network| network.peers.iter().chain(network.clients.iter().flatten()));
        relays.for_each(Relay::resume);
    }

    /// Returns the ports of the running apids, as targets of a balancer.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().filter(|server| server.is_running()).map(|server| server.admin().port()).collect()
    }

    /// Launches an apid that was killed or stopped.
    pub async fn launch(&mut self, number: usize) {
        self.servers[number].launch().await;
        self.live_ports[number].store(self.servers[number].admin().port(), Ordering::SeqCst);
    }

    /// Returns the ports of the apids for clients that outlive an apid. An apid that does not run keeps the last port, and
    /// gets a new one from [`Cluster::launch`].
    pub fn live_ports(&self) -> Arc<[AtomicU16]> {
        Arc::clone(&self.live_ports)
    }

    /// Returns the number of members.
    pub fn members(&self) -> usize {
        self.etcd.members().len()
    }

    /// Returns the number of apids.
    pub fn size(&self) -> usize {
        self.servers.len()
    }

    /// Returns an apid.
    pub fn server(&self, number: usize) -> &ControlPlane {
        &self.servers[number]
    }

    /// Returns an apid, to kill or stop it.
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
