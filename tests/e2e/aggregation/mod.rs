//! Aggregated APIs: an extension API server behind apid, with both programs and a proxy client certificate.

mod loops;
mod namespaces;
mod outages;
mod recorded_exchanges;
mod requests;
mod sessions;

use std::net::SocketAddr;
use std::sync::Arc;

use backends::apiserver::{ApiServer, ApiServerOptions, Storage};
use backends::server::ServingCertificate;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};
use serving::certs::Authority;
use std::time::Duration;
use tempfile::TempDir;
use tests::harness::{ControlPlane, Options, TestResponse, eventually};

/// Any free port of this machine.
const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const FLAVORS: &str = "/apis/flavors.example.com/v1/namespaces/default/flavors";

/// apid with a proxy client certificate.
pub(super) struct Aggregator {
    pub(super) plane: ControlPlane,
    /// The files of the flags.
    _files: TempDir,
}

impl Aggregator {
    /// Starts apid. Further flags of `options` stay.
    pub(super) async fn start(mut options: Options) -> Self {
        let files = tempfile::tempdir().expect("a folder");
        let file = |name: &str| files.path().join(name);
        let ca = Authority::ensure(&file("ca.crt"), &file("ca.key"), "front-proxy-ca", Timestamp::now());
        let pair = ca.expect("an authority").client(
            "front-proxy-client",
            &[],
            Duration::from_secs(3600),
            Timestamp::now(),
        );
        let pair = pair.expect("a client certificate");
        std::fs::write(file("proxy.crt"), pair.cert).expect("a file");
        std::fs::write(file("proxy.key"), pair.key).expect("a file");
        for (flag, value) in [
            ("proxy-client-cert-file", file("proxy.crt").display().to_string()),
            ("proxy-client-key-file", file("proxy.key").display().to_string()),
            ("requestheader-client-ca-file", file("ca.crt").display().to_string()),
            ("requestheader-allowed-names", "front-proxy-client".to_owned()),
            ("requestheader-username-headers", "X-Remote-User".to_owned()),
            ("requestheader-group-headers", "X-Remote-Group".to_owned()),
            ("requestheader-extra-headers-prefix", "X-Remote-Extra-".to_owned()),
        ] {
            options = options.flag(&format!("--{flag}={value}"));
        }
        Aggregator { plane: ControlPlane::start(options).await, _files: files }
    }

    /// Starts a server that trusts the proxy certificates of the published ConfigMap.
    pub(super) async fn server(
        &self,
        certificate: &ServingCertificate,
        options: ApiServerOptions,
    ) -> ApiServer {
        self.server_at(ANY_PORT, certificate, options).await
    }

    /// Like [`Aggregator::server`], at an address.
    pub(super) async fn server_at(
        &self,
        address: SocketAddr,
        certificate: &ServingCertificate,
        options: ApiServerOptions,
    ) -> ApiServer {
        let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
        let admin = self.plane.admin();
        let published = eventually("the published proxy CA", || async {
            let map = admin.get(path).await.json();
            map["data"]["requestheader-client-ca-file"].as_str().map(|_| map.clone())
        })
        .await;
        let text = |key: &str| published["data"][key].as_str().unwrap_or_default().to_owned();
        let allowed_names = serde_json::from_str(&text("requestheader-allowed-names")).expect("a list");
        let options = ApiServerOptions {
            proxy_ca: Some(text("requestheader-client-ca-file")),
            allowed_names,
            ..options
        };
        let start = || async { ApiServer::start(address, certificate, options.clone()).await.ok() };
        eventually("the server starts", start).await
    }

    /// Creates the Service `back` for a server on this machine, and an APIService of its group version.
    pub(super) async fn register(&self, group: &str, version: &str, server: &ApiServer, ca: &str) {
        let service = json!({"metadata": {"name": "back"}, "spec": {"type": "ExternalName", "externalName": "localhost"}});
        let services = "/api/v1/namespaces/default/services";
        let created = self.plane.admin().post(services, &service).await;
        assert!(matches!(created.status, 201 | 409), "{}", created.text());
        let object = api_service(group, version, server.address().port(), ca);
        self.plane.admin().post(SERVICES, &object).await.expect(201);
    }

    /// Waits for a reason of the condition `Available`, and returns the message.
    pub(super) async fn wait_for_reason(&self, name: &str, reason: &str) -> String {
        let admin = self.plane.admin();
        eventually(&format!("{name} has the reason {reason}"), || async {
            let object = admin.get(&format!("{SERVICES}/{name}")).await.json();
            let condition = &object["status"]["conditions"][0];
            (condition["reason"] == reason)
                .then(|| condition["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }
}

/// The certificate of the server behind the Service `back`.
pub(super) fn certificate() -> ServingCertificate {
    ServingCertificate::generate(&["back.default.svc".to_owned(), "localhost".to_owned()])
        .expect("a certificate")
}

/// apid with a server for the group `flavors.example.com`, available.
pub(super) struct Flavors {
    pub(super) aggregator: Aggregator,
    pub(super) server: Option<ApiServer>,
    pub(super) certificate: ServingCertificate,
    pub(super) storage: Arc<Storage>,
    pub(super) address: SocketAddr,
}

impl Flavors {
    pub(super) async fn start(options: Options) -> Self {
        Flavors::start_with(options, ApiServerOptions::default()).await
    }

    /// Starts apid and a server with these options.
    pub(super) async fn start_with(options: Options, server: ApiServerOptions) -> Self {
        let aggregator = Aggregator::start(options).await;
        let (certificate, storage) = (certificate(), Arc::<Storage>::default());
        let options = ApiServerOptions { storage: Arc::clone(&storage), ..server };
        let server = aggregator.server(&certificate, options).await;
        aggregator.register("flavors.example.com", "v1", &server, &certificate.ca).await;
        aggregator.wait_for_reason("v1.flavors.example.com", "Passed").await;
        let address = server.address();
        Flavors { aggregator, server: Some(server), certificate, storage, address }
    }

    pub(super) fn plane(&self) -> &ControlPlane {
        &self.aggregator.plane
    }

    /// Starts the server again, with the stored objects.
    pub(super) async fn restart(&mut self, certificate: &ServingCertificate, delay: Duration) {
        self.server = None;
        let options =
            ApiServerOptions { storage: Arc::clone(&self.storage), delay, ..ApiServerOptions::default() };
        self.server = Some(self.aggregator.server_at(self.address, certificate, options).await);
    }

    pub(super) async fn get(&self, path: &str) -> TestResponse {
        self.plane().admin().get(path).await
    }
}

/// Returns an APIService behind the Service `back`.
pub(super) fn api_service(group: &str, version: &str, port: u16, ca: &str) -> Value {
    json!({
        "metadata": {"name": format!("{version}.{group}")},
        "spec": {
            "group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15,
            "caBundle": STANDARD.encode(ca), "service": {"namespace": "default", "name": "back", "port": port},
        },
    })
}

/// Returns a Flavor.
pub(super) fn flavor(name: &str, taste: &str) -> Value {
    json!({"apiVersion": "flavors.example.com/v1", "kind": "Flavor", "metadata": {"name": name}, "spec": {"taste": taste}})
}
