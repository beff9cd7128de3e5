//! A control plane with one node, whose kubelet runs in the process of the test.

use std::net::SocketAddr;
use std::time::Duration;

use backends::kubelet::Kubelet;
use backends::server::ServingCertificate;
use jiff::Timestamp;
use serde_json::{Value, json};
use serving::certs::Authority;
use tempfile::TempDir;
use tests::harness::{ControlPlane, Options};

/// A control plane, and the kubelet of its node `n1`.
pub(crate) struct ClusterNode {
    pub(crate) plane: ControlPlane,
    pub(crate) kubelet: Kubelet,
    _files: TempDir,
}

impl ClusterNode {
    /// Starts both. The pod `p` in the namespace `default` runs on the node with the containers `c` and `d`, the pod
    /// `q` with the container `c`.
    pub(crate) async fn start(options: Options) -> Self {
        let files = tempfile::tempdir().expect("a folder");
        let now = Timestamp::now();
        let at = |name: &str| files.path().join(name);
        let callers = Authority::ensure(&at("callers.crt"), &at("callers.key"), "callers", now);
        let callers = callers.expect("an authority");
        let server = callers.client("apid", &[], Duration::from_secs(3600), now).expect("a certificate");
        std::fs::write(at("kubelet-client.crt"), server.cert).expect("a file");
        std::fs::write(at("kubelet-client.key"), server.key).expect("a file");
        let client_ca = std::fs::read_to_string(at("callers.crt")).expect("a file");
        let certificate = ServingCertificate::generate(&["127.0.0.1".to_owned()]).expect("a certificate");
        std::fs::write(at("kubelet-ca.crt"), &certificate.ca).expect("a file");
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let kubelet = Kubelet::start(address, &certificate, &client_ca).await.expect("a kubelet");
        let flag = |name: &str, file: &str| format!("--{name}={}", at(file).display());
        let flags = [
            flag("kubelet-certificate-authority", "kubelet-ca.crt"),
            flag("kubelet-client-certificate", "kubelet-client.crt"),
            flag("kubelet-client-key", "kubelet-client.key"),
            "--forwarding-address-exceptions=127.0.0.0/8".to_owned(),
        ];
        let options = flags.iter().fold(options, |options, flag| options.flag(flag));
        let plane = ControlPlane::start(options).await;
        let admin = plane.admin();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.address().port()}},
        }});
        admin.post("/api/v1/nodes", &node).await.expect(201);
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let made = admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.status;
        assert!(matches!(made, 201 | 409), "{made}");
        for (name, containers) in [("p", &["c", "d"][..]), ("q", &["c"])] {
            admin.post("/api/v1/namespaces/default/pods", &pod(name, containers)).await.expect(201);
            for container in containers {
                kubelet.add_container("default", name, container);
            }
            let running = json!({"status": {"phase": "Running"}});
            let path = format!("/api/v1/namespaces/default/pods/{name}/status");
            admin.patch(&path, "application/merge-patch+json", &running).await.expect(200);
        }
        ClusterNode { plane, kubelet, _files: files }
    }
}

fn pod(name: &str, containers: &[&str]) -> Value {
    let containers: Vec<Value> =
        containers.iter().map(|name| json!({"name": name, "image": "registry.example.com/i"})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": "n1", "automountServiceAccountToken": false, "containers": containers,
    }})
}
