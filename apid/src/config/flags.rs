//! The typed flags that only apid reads; `processflags` declares the flags of both processes and of authd. A
//! flag of kube-apiserver has the same name here.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use apimachinery::codec::Limits;
use clap::{Args, Parser};
use controllers::start_objects::EndpointReconciler;
use httpapi::{RequestLimits, ServerLimits};
use processflags::{AuthdFlags, SharedFlags};
use serving::flags::{boolean, duration};

use super::audit_flags::AuditFlags;
use super::etcd_flags::EtcdFlags;
use super::forwarding_flags::ForwardingFlags;
use super::values::{ServiceRanges, byte_size, count, ip_address, port, request_count, seconds, tree_bytes};
use crate::command_list;
use verbs::addresses::{NodePortRange, ServiceRange};

/// The typed flags of apid.
#[derive(Debug, Parser)]
#[command(name = "apid", version, disable_help_subcommand = true)]
#[command(about = "Serves the resource API; authd authenticates and authorizes every request.")]
#[command(override_usage = command_list::usage())]
pub(crate) struct Flags {
    #[command(flatten)]
    pub(crate) general: GeneralFlags,
    #[command(flatten)]
    pub(crate) shared: SharedFlags,
    #[command(flatten)]
    pub(crate) serving: ServingFlags,
    #[command(flatten)]
    pub(crate) tls: TlsFlags,
    #[command(flatten)]
    pub(crate) authd: AuthdConnectionFlags,
    #[command(flatten)]
    pub(crate) storage: StorageFlags,
    #[command(flatten)]
    pub(crate) etcd: EtcdFlags,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    #[command(flatten)]
    pub(crate) admission: AdmissionFlags,
    #[command(flatten)]
    pub(crate) forwarding: ForwardingFlags,
    #[command(flatten)]
    pub(crate) controllers: ControllerFlags,
    #[command(flatten)]
    pub(crate) audit: AuditFlags,
    /// Passed to a spawned authd.
    #[command(flatten)]
    pub(crate) authd_flags: AuthdFlags,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "General flags")]
pub(crate) struct GeneralFlags {
    /// ServerConfiguration with flags of apid and authd; flags of the command line replace those of the file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of the store; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// API versions and resources to enable or disable: GROUP/VERSION, GROUP/VERSION/RESOURCE, v1 (the core group),
    /// api/all, api/ga, api/beta, api/alpha. Alpha versions are for short-lived test clusters; beta versions are not
    /// recommended for production
    #[arg(long, value_name = "KEY=BOOL,...")]
    pub(crate) runtime_config: Vec<String>,
    /// Log a warning for each deprecated flag at start
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true", value_parser = boolean)]
    pub(crate) warn_of_deprecated_flags: bool,
    /// Serve beta and stable versions of later releases than the emulated one if an earlier version of their resource is
    /// served
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    pub(crate) emulation_forward_compatible: bool,
    /// Serve API versions that --runtime-config enables also if the emulated release does not have them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    pub(crate) runtime_config_emulation_forward_compatible: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Serving flags")]
pub(crate) struct ServingFlags {
    /// Address to listen on
    #[arg(long, value_name = "IP", default_value = "0.0.0.0", value_parser = ip_address)]
    pub(crate) bind_address: IpAddr,
    /// Port to listen on; 0 lets the system choose
    #[arg(long, value_name = "PORT", default_value = "6443", value_parser = port)]
    pub(crate) secure_port: u16,
    /// Address under which clients reach this process (default: --bind-address, or that of the default route)
    #[arg(long, value_name = "IP", value_parser = ip_address)]
    pub(crate) advertise_address: Option<IpAddr>,
    /// Registration of the addresses of several servers in the endpoints of the API: lease, master-count or none
    #[arg(long, value_name = "TYPE", default_value = "lease")]
    pub(crate) endpoint_reconciler_type: EndpointReconcilerName,
    /// Maximum number of servers in the endpoints with --endpoint-reconciler-type=master-count
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count)]
    pub(crate) apiserver_count: usize,
    /// IP range of Services, or one range per IP family
    #[arg(long, value_name = "RANGE", default_value_t = ServiceRanges(vec![ServiceRange::DEFAULT]))]
    pub(crate) service_cluster_ip_range: ServiceRanges,
    /// Range of the node ports of Services
    #[arg(long, value_name = "RANGE", default_value_t = NodePortRange::DEFAULT)]
    pub(crate) service_node_port_range: NodePortRange,
    /// File for the bound port (default: DATA-DIR/apid.port)
    #[arg(long, value_name = "FILE")]
    pub(crate) port_file: Option<PathBuf>,
    /// Timeout of requests other than watches, including the response body
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) request_timeout: Duration,
    /// Minimum duration of a watch without a timeout
    #[arg(long, value_name = "SECONDS", default_value = "1800", value_parser = seconds)]
    pub(crate) min_request_timeout: Duration,
    /// Time after SIGTERM during which requests are served and /readyz fails
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) shutdown_delay_duration: Duration,
    /// Time after start during which /livez ignores checks that do not pass yet
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) livez_grace_period: Duration,
}

/// The values of `--endpoint-reconciler-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum EndpointReconcilerName {
    Lease,
    MasterCount,
    None,
}

impl ServingFlags {
    /// The registration of several servers in the endpoints of the API.
    pub(crate) fn endpoint_reconciler(&self) -> EndpointReconciler {
        match self.endpoint_reconciler_type {
            EndpointReconcilerName::Lease => EndpointReconciler::Lease,
            EndpointReconcilerName::MasterCount => EndpointReconciler::MasterCount(self.apiserver_count),
            EndpointReconcilerName::None => EndpointReconciler::None,
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Certificate flags")]
pub(crate) struct TlsFlags {
    /// Directory for a generated serving certificate (default: DATA-DIR/certs)
    #[arg(long, value_name = "DIR")]
    pub(crate) cert_dir: Option<PathBuf>,
    /// Serving certificate, with its chain; needs --tls-private-key-file
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// CA bundle with which pods verify this server; published in every namespace and in token Secrets (default: the CA of the serving certificate, if known)
    #[arg(long, value_name = "FILE")]
    pub(crate) root_ca_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Flags of the connection to authd")]
pub(crate) struct AuthdConnectionFlags {
    /// Unix socket of authd; created with --spawn-authd
    #[arg(long, value_name = "FILE")]
    pub(crate) authd_socket: Option<PathBuf>,
    /// authds that several apids share, in the order of use; when one ends or cannot decide, apid goes on with the next one
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    pub(crate) authd_servers: Vec<String>,
    /// CA bundle that verifies --authd-servers; hot reload
    #[arg(long, value_name = "FILE")]
    pub(crate) authd_cafile: Option<PathBuf>,
    /// Client certificate for --authd-servers; hot reload
    #[arg(long, value_name = "FILE")]
    pub(crate) authd_certfile: Option<PathBuf>,
    /// Private key of --authd-certfile; hot reload
    #[arg(long, value_name = "FILE")]
    pub(crate) authd_keyfile: Option<PathBuf>,
    /// Start authd, and stop it with this process
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    pub(crate) spawn_authd: bool,
    /// Path of authd for --spawn-authd (default: beside apid, then on PATH)
    #[arg(long, value_name = "FILE")]
    pub(crate) authd_program: Option<PathBuf>,
    /// Timeout of requests to authd
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) authd_timeout: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Storage flags")]
pub(crate) struct StorageFlags {
    /// Retention time of old revisions and watch events
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) history_retention: Duration,
    /// Time after its last write at which an Event is deleted; 0 means never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub(crate) event_ttl: Duration,
    /// Maximum size of the store; units K, M, G, T, Ki, Mi, Gi, Ti (default: no limit)
    #[arg(long, value_name = "BYTES", value_parser = byte_size)]
    pub(crate) storage_quota: Option<u64>,
    /// EncryptionConfiguration: the resources whose objects are encrypted in the store, with providers and keys
    #[arg(long, value_name = "FILE")]
    pub(crate) encryption_provider_config: Option<PathBuf>,
    /// Reload --encryption-provider-config after a change
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    pub(crate) encryption_provider_config_automatic_reload: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limit flags")]
pub(crate) struct LimitFlags {
    /// Divide the limits of requests in flight among priority levels, with fair queues
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true", value_parser = boolean)]
    pub(crate) enable_priority_and_fairness: bool,
    /// Limit of reading requests in flight; more wait or get 429. Without --enable-priority-and-fairness, 0 means no limit
    #[arg(long, value_name = "COUNT", default_value = "400", value_parser = request_count)]
    pub(crate) max_requests_inflight: usize,
    /// Limit of mutating requests in flight; more wait or get 429. Priority levels share the sum of both limits
    #[arg(long, value_name = "COUNT", default_value = "200", value_parser = request_count)]
    pub(crate) max_mutating_requests_inflight: usize,
    /// Limit of values (scalars, lists and objects) in a request body; more get 413
    #[arg(long, value_name = "COUNT", default_value = Limits::BODY.elements.to_string(), value_parser = count)]
    pub(crate) max_request_elements: usize,
    /// Limit of the estimated memory of a decoded request body; more get 413
    #[arg(long, value_name = "BYTES", default_value = format!("{}Mi", Limits::BODY.tree_bytes >> 20), value_parser = tree_bytes)]
    pub(crate) max_request_tree_bytes: usize,
    /// Number of concurrent deletes of a deletecollection
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = count)]
    pub(crate) delete_collection_workers: usize,
}

impl LimitFlags {
    /// The limits of requests at once. Without any limit there is nothing to divide.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        let server =
            ServerLimits { reads: self.max_requests_inflight, writes: self.max_mutating_requests_inflight };
        RequestLimits {
            server,
            is_fair: self.enable_priority_and_fairness && server.reads + server.writes > 0,
        }
    }

    /// The decode limits of request bodies.
    pub(crate) fn body_limits(&self) -> Limits {
        Limits {
            elements: self.max_request_elements,
            tree_bytes: self.max_request_tree_bytes,
            ..Limits::BODY
        }
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Admission flags")]
pub(crate) struct AdmissionFlags {
    /// Admission plugins to enable in addition to the default ones
    #[arg(long, value_name = "NAME,...")]
    pub(crate) enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable
    #[arg(long, value_name = "NAME,...")]
    pub(crate) disable_admission_plugins: Vec<String>,
    /// Configuration of admission plugins: an AdmissionConfiguration in YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) admission_control_config_file: Option<PathBuf>,
    /// Addresses of Services for webhooks, aggregated APIs and proxies: a map from NAMESPACE/NAME:PORT to a URL, in YAML or JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) service_resolver_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Controller flags")]
pub(crate) struct ControllerFlags {
    /// Controllers write as service accounts of their own
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    pub(crate) use_service_account_credentials: bool,
    /// Delete objects whose owners are gone
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true", value_parser = boolean)]
    pub(crate) enable_garbage_collector: bool,
    /// Certificate of the CA that signs approved CertificateSigningRequests; needs --cluster-signing-key-file; hot reload
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_signing_cert_file: Option<PathBuf>,
    /// Private key of --cluster-signing-cert-file; hot reload
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster_signing_key_file: Option<PathBuf>,
    /// Maximum duration of signed certificates, and the duration without spec.expirationSeconds
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
    pub(crate) cluster_signing_duration: Duration,
}
