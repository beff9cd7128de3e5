//! The store in etcd: its options from flags, TLS and metrics.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::{Names, Preset};
use async_trait::async_trait;
use controllers::start_objects::endpoints;
use rustls_pki_types::ServerName;
use serving::client::{Identity as ClientIdentity, Trust};
use serving::metrics::Stability::Alpha;
use serving::metrics::{Counters, Definition, Gauges, Histograms, Metrics};
use storage::cache::{Cache, Decode};
use storage::engine::etcd::{
    Connection, EtcdStore, KeyMap as _, LeaseOptions, Lifetime, OpenError, Options, Telemetry, Tls,
};
use storage::engine::fjall::Identity;
use storage::{CLAIM_LIFETIME, CLAIMS, Observer};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::EtcdFlags;
use crate::stored_keys::ReferenceKeys;

/// Exit code of a process that lost changes of etcd: it must start again.
const GAP: i32 = 1;
/// The beginning of the keys of Events in etcd, below the prefix of the cluster.
const EVENTS: &str = "/events/";

/// The reason why the store in etcd is not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdStoreError {
    /// A file of the TLS connections cannot be used.
    #[error("`--etcd-cafile`, `--etcd-certfile`, `--etcd-keyfile`: {0}")]
    Files(io::Error),
    /// The cluster cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Called with the reason when the changes of a cluster are lost: etcd was restored, wiped, or compacted too early.
pub(crate) type OnGap = Arc<dyn Fn(&str) + Send + Sync>;

/// Ends the process when changes of the main cluster are lost: the caches decide about requests.
pub(crate) fn end_process() -> OnGap {
    Arc::new(|reason| {
        tracing::error!(
            reason,
            flag = "--etcd-servers",
            "changes of etcd are lost; the process ends, and its next start reads all objects again"
        );
        std::process::exit(GAP);
    })
}

/// Lets the process go on without the cluster of Events when its changes are lost: open watches of Events, whose key prefix
/// in the cache is given, end.
pub(crate) fn go_on_without_events<D: Decode>(cache: &Arc<Cache<D>>, key_prefix: &str) -> OnGap {
    let (cache, key_prefix) = (Arc::clone(cache), key_prefix.to_owned());
    Arc::new(move |reason| {
        tracing::error!(
            reason,
            flag = "--etcd-servers-overrides",
            "changes of the etcd cluster of Events are lost; requests for Events get 503 until this server starts again: \
             restart it"
        );
        cache.unregister(&key_prefix);
    })
}

/// Opens the store in the cluster of some servers, with the other options of the flags. A TTL of zero means that Events are
/// not removed.
///
/// # Errors
///
/// The cluster cannot be used.
pub(crate) async fn open(
    flags: &EtcdFlags,
    servers: Vec<String>,
    names: &Names,
    event_ttl: Duration,
    telemetry: Arc<dyn Telemetry>,
    observer: Arc<dyn Observer>,
    on_gap: OnGap,
) -> Result<EtcdStore, EtcdStoreError> {
    let files = TlsFiles {
        authority: flags.etcd_cafile.clone(),
        client: flags.etcd_certfile.clone().zip(flags.etcd_keyfile.clone()),
    };
    let uses_tls = servers.iter().any(|server| server.starts_with("https://"));
    if uses_tls {
        files.connector().await.map_err(EtcdStoreError::Files)?;
    }
    let keys = ReferenceKeys::new(names);
    let events =
        keys.parse_etcd(EVENTS).map(|prefix| Lifetime { prefix: prefix.into_owned(), time: event_ttl });
    let server_leases =
        Lifetime { prefix: endpoints::LEASE_KEYS.to_owned(), time: endpoints::LEASE_LIFETIME };
    let claims = Lifetime { prefix: CLAIMS.to_owned(), time: CLAIM_LIFETIME };
    let identity = Identity { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() };
    let options = Options {
        tls: if uses_tls { Some(Arc::new(files)) } else { None },
        prefix: flags.etcd_prefix.clone(),
        adopts_foreign: names.preset() == Preset::Kubernetes,
        open_timeout: flags.storage_initialization_timeout,
        compaction_interval: Some(flags.etcd_compaction_interval).filter(|interval| !interval.is_zero()),
        health_timeout: flags.etcd_healthcheck_timeout,
        readiness_timeout: flags.etcd_readycheck_timeout,
        size_interval: flags.etcd_db_metric_poll_interval.max(Duration::from_secs(1)),
        leases: LeaseOptions {
            lifetimes: events
                .into_iter()
                .filter(|lifetime| !lifetime.time.is_zero())
                .chain([claims, server_leases])
                .collect(),
            reuse: flags.lease_reuse_duration_seconds,
            ..LeaseOptions::default()
        },
        telemetry,
        on_gap,
        ..Options::new(servers, identity, Arc::new(keys))
    };
    Ok(EtcdStore::open(options, observer).await?)
}

/// The files of the TLS connections to etcd, which are read for each connection.
struct TlsFiles {
    authority: Option<PathBuf>,
    client: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Reads the files.
    async fn connector(&self) -> io::Result<TlsConnector> {
        let read = async |file: &PathBuf| {
            let bytes = tokio::fs::read(file).await;
            bytes.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
        };
        let trust = match &self.authority {
            Some(file) => {
                let invalid = |error| io::Error::other(format!("{}: {error}", file.display()));
                Trust::from_pem(&read(file).await?).map_err(invalid)?
            }
            None => Trust::System,
        };
        let mut tls = trust.tls().map_err(io::Error::other)?;
        if let Some((certificate, key)) = &self.client {
            let invalid = |error| io::Error::other(format!("{}: {error}", certificate.display()));
            let identity = ClientIdentity::from_pem(&read(certificate).await?, &read(key).await?);
            identity.map_err(invalid)?.configure(&mut tls);
        }
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(TlsConnector::from(Arc::new(tls)))
    }
}

#[async_trait]
impl Tls for TlsFiles {
    async fn connect(&self, host: &str, tcp: TcpStream) -> io::Result<Box<dyn Connection>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        Ok(Box::new(self.connector().await?.connect(name, tcp).await?))
    }
}

/// Labels as name and value.
type Labels = Vec<(&'static str, String)>;

/// Bounds of the time of a request in seconds, as in kube-apiserver.
const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Bounds of the number of keys of a lease, as in kube-apiserver.
const LEASE_OBJECTS: &[f64] = &[10.0, 50.0, 100.0, 500.0, 1000.0, 2500.0, 5000.0];

/// The metrics of kube-apiserver about etcd.
pub(crate) struct EtcdMetrics {
    names: Names,
    durations: Histograms<Labels>,
    requests: Counters<Labels>,
    errors: Counters<Labels>,
    bookmarks: Gauges<Labels>,
    lease_objects: Histograms<Labels>,
}

impl EtcdMetrics {
    pub(crate) fn new(metrics: &Metrics, names: &Names) -> Self {
        let alpha = |name, help| Definition::new(name, Alpha, help);
        EtcdMetrics {
            names: names.clone(),
            durations: metrics.histogram(
                &alpha(
                    "etcd_request_duration_seconds",
                    "Duration of a request to etcd in seconds, by operation and resource",
                ),
                REQUEST_SECONDS,
            ),
            requests: metrics
                .counter(&alpha("etcd_requests_total", "Requests to etcd, by operation and resource")),
            errors: metrics.counter(&alpha(
                "etcd_request_errors_total",
                "Failed requests to etcd, by operation and resource",
            )),
            bookmarks: metrics.gauge(&alpha(
                "etcd_bookmark_counts",
                "Progress notices of the watch of etcd, which follows all resources",
            )),
            lease_objects: metrics.histogram(
                &alpha("etcd_lease_object_counts", "Number of keys of a lease when it gets no more keys"),
                LEASE_OBJECTS,
            ),
        }
    }
}

impl Telemetry for EtcdMetrics {
    fn request(&self, operation: &'static str, key: &str, took: Duration, is_ok: bool) {
        let resource = kinds::resource_prefix(key)
            .and_then(|prefix| kinds::resource_of_prefix(prefix, &self.names))
            .map(|(resource, _)| match resource.group.is_empty() {
                true => resource.resource,
                false => format!("{}.{}", resource.resource, resource.group),
            });
        let labels = vec![("operation", operation.to_owned()), ("type", resource.unwrap_or_default())];
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&labels).inc();
        if !is_ok {
            self.errors.get_or_create(&labels).inc();
        }
    }

    fn progress_notice(&self) {
        self.bookmarks.get_or_create(&vec![("resource", "*".to_owned())]).inc();
    }

    fn lease_objects(&self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.lease_objects.get_or_create(&Vec::new()).observe(f64::from(count));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use storage::Store;
    use storage::cache::{DecodeError, Limits};
    use storage::engine::memory::MemoryStore;

    use super::*;

    struct Undecoded;

    impl Decode for Undecoded {
        type Entry = ();

        fn decode(&self, _key: &str, _value: &Bytes) -> Result<(), DecodeError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn watches_of_events_end_when_their_cluster_is_lost() {
        let cache = Arc::new(Cache::new(Limits::default()));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cache.clone()));
        cache.attach(&store);
        let events = cache.resource("/events/", Undecoded);
        let (_, mut watcher) = events.snapshot_and_watch("/events/").await.unwrap();
        go_on_without_events(&cache, "/events/")("the cluster was wiped");
        let end = tokio::time::timeout(Duration::from_secs(60), watcher.next()).await.unwrap();
        assert!(end.is_err());
    }
}
