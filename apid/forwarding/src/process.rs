//! The resolvers and transports of a process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use serving::client::{SettingsError, Trust};

use crate::{
    AddressPolicy, ClientCredentials, DEFAULT_ADDRESS_TYPES, Hops, NodeResolver, Routing, ServiceMap,
    Transport, TransportSettings,
};

/// Maximum time for a connection to a backend that no flag limits.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `--kubelet-timeout`.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(5);

/// The resolvers and transports that the requests of a process share.
#[derive(Debug)]
pub struct Forwarding {
    /// The name of this process in forwarded requests.
    pub hops: Hops,
    /// The addresses that no object may direct a connection to.
    pub addresses: Arc<AddressPolicy>,
    /// The addresses of `--service-resolver-file`.
    pub service_map: ServiceMap,
    /// The addresses of a Service that aggregated APIs use (`--enable-aggregator-routing`).
    pub routing: Routing,
    /// Finds the addresses of nodes.
    pub nodes: NodeResolver,
    /// Connections to kubelets, verified and with a client certificate as the flags say.
    pub kubelets: Transport,
    /// Connections to kubelets without verification of their certificates, for requests that ask for this.
    pub insecure_kubelets: Transport,
    /// Connections to pods, to endpoints of Services, and to other ports of nodes: without client certificate, and
    /// without verification, because their certificates name no address.
    pub workloads: Transport,
    /// The client certificate of this server for aggregated APIs (`--proxy-client-cert-file`).
    pub aggregator_credentials: Option<Arc<ClientCredentials>>,
}

/// The flags of forwarding.
#[derive(Clone, Debug)]
pub struct ForwardingOptions {
    /// `--forwarding-address-exceptions`.
    pub addresses: Arc<AddressPolicy>,
    /// `--service-resolver-file`.
    pub service_map: ServiceMap,
    /// `--enable-aggregator-routing`.
    pub aggregator_routing: bool,
    /// `--kubelet-preferred-address-types`.
    pub kubelet_address_types: Vec<String>,
    /// `--kubelet-certificate-authority`; with None, as in kube-apiserver, certificates of kubelets are not verified.
    pub kubelet_authority: Option<PathBuf>,
    /// `--kubelet-client-certificate` and `--kubelet-client-key`.
    pub kubelet_credentials: Option<(PathBuf, PathBuf)>,
    /// `--kubelet-timeout`: maximum time for a connection to a kubelet.
    pub kubelet_timeout: Duration,
    /// `--proxy-client-cert-file` and `--proxy-client-key-file`.
    pub aggregator_credentials: Option<(PathBuf, PathBuf)>,
}

impl Default for ForwardingOptions {
    fn default() -> Self {
        ForwardingOptions {
            addresses: Arc::default(),
            service_map: ServiceMap::default(),
            aggregator_routing: false,
            kubelet_address_types: DEFAULT_ADDRESS_TYPES.map(str::to_owned).into(),
            kubelet_authority: None,
            kubelet_credentials: None,
            kubelet_timeout: KUBELET_TIMEOUT,
            aggregator_credentials: None,
        }
    }
}

impl Forwarding {
    /// Reads the files of the options; does not connect.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is invalid.
    pub fn new(
        options: ForwardingOptions,
        clock: &Arc<dyn Clock>,
        rng: &dyn Rng,
    ) -> Result<Self, SettingsError> {
        let read = |files: Option<(PathBuf, PathBuf)>| {
            let credentials = files.map(|(certificate, key)| {
                ClientCredentials::read(certificate, key, Arc::clone(clock)).map(Arc::new)
            });
            credentials.transpose()
        };
        let kubelet_credentials = read(options.kubelet_credentials)?;
        let kubelets = |trust: Trust| {
            Transport::new(TransportSettings {
                trust,
                server_name: None,
                credentials: kubelet_credentials.clone(),
                connect_timeout: options.kubelet_timeout,
                http2: true,
            })
        };
        let kubelet_trust = match options.kubelet_authority.as_deref() {
            Some(file) => read_authority(file)?,
            None => Trust::Insecure,
        };
        let workloads = TransportSettings {
            trust: Trust::Insecure,
            server_name: None,
            credentials: None,
            connect_timeout: CONNECT_TIMEOUT,
            http2: true,
        };
        Ok(Forwarding {
            hops: Hops::new(rng),
            nodes: NodeResolver::new(
                options.kubelet_address_types,
                Arc::clone(&options.addresses),
                options.kubelet_timeout,
            ),
            addresses: options.addresses,
            service_map: options.service_map,
            routing: if options.aggregator_routing {
                Routing::Endpoints
            } else {
                Routing::EndpointsOrClusterIp
            },
            kubelets: kubelets(kubelet_trust)?,
            insecure_kubelets: kubelets(Trust::Insecure)?,
            workloads: Transport::new(workloads)?,
            aggregator_credentials: read(options.aggregator_credentials)?,
        })
    }
}

fn read_authority(file: &Path) -> Result<Trust, SettingsError> {
    let failure =
        |problem: &dyn std::fmt::Display| SettingsError(format!("file `{}`: {problem}", file.display()));
    let pem = std::fs::read(file).map_err(|error| failure(&error))?;
    Trust::from_pem(&pem).map_err(|error| failure(&error))
}
