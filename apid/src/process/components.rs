//! The components that the start opens: data directory, store, TLS, port file, admission chain.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use admission::{Chain, Environment, Reader, ReaderServices};
use aggregation::Aggregation;
use apimachinery::clock::Clock;
use apimachinery::names::Names;
use forwarding::ServiceResolver;
use kinds::Registry;
use serving::certs::Authority;
use serving::metrics::Metrics;
use serving::tls::{ServingTls, TlsFiles};
use storage::engine::etcd::Telemetry;
use storage::engine::fjall::{self, FjallStore};
use storage::form::{Form, FormedStore};
use storage::{Observers, Store};

use super::encryption_at_rest::ProcessEncryption;
use super::error::ProcessError;
use super::start_retries::StartRetries;
use crate::config::{Config, STORE, split_list};
use crate::etcd_store::{self, EtcdMetrics, OnGap};
use crate::stored_values::ReferenceValues;
use authclient::PolicyRevisions;
use controllers::Leadership;
use verbs::addresses::ServiceAddresses;
use verbs::{ApiState, Cache, Caches};

/// Creates a folder with mode 0700, or sets this mode on an existing folder: stored objects contain secrets.
pub(super) fn create_private_folder(path: &Path) -> Result<(), ProcessError> {
    let failure = |error| ProcessError::DataDir { path: path.to_owned(), error };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failure)?;
    let owner = std::fs::metadata(path).map_err(failure)?.uid();
    let user = rustix::process::geteuid().as_raw();
    check_owner(path, owner, user)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failure)
}

/// Rejects a data directory of another user. The administrator may use each directory; the files that apid then
/// creates belong to the administrator.
fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), ProcessError> {
    if owner == user {
        return Ok(());
    }
    if user == 0 {
        tracing::warn!(
            data_dir = %path.display(),
            owner,
            "the data directory belongs to another user; new files belong to root, and that user cannot read them"
        );
        return Ok(());
    }
    Err(ProcessError::DataDirOwner { path: path.to_owned(), owner, user })
}

/// Builds the admission chain. An error means that a flag is invalid.
pub(super) fn build_admission(config: &Config, environment: Environment) -> Result<Chain, ProcessError> {
    let flags = &config.flags.admission;
    let (enable, disable) =
        (split_list(&flags.enable_admission_plugins), split_list(&flags.disable_admission_plugins));
    Chain::new(&enable, &disable, &config.admission_configuration, &environment)
        .map_err(|errors| ProcessError::Usage(errors.iter().map(ToString::to_string).collect()))
}

/// Builds the state of aggregated APIs. `reader` finds the Services of their servers.
pub(super) fn build_aggregation(api_state: &ApiState, reader: Arc<dyn Reader>) -> Aggregation {
    let (forwarding, names) = (&api_state.forwarding, &api_state.names);
    let services = ServiceResolver::new(
        Arc::new(ReaderServices(reader)),
        forwarding.service_map.clone(),
        Arc::clone(names),
        Arc::clone(&api_state.rng),
        Arc::clone(&forwarding.addresses),
    );
    Aggregation::new(services, Arc::clone(forwarding), Arc::clone(names), Arc::clone(&api_state.clock))
}

/// Whether this apid runs the loops that must run once: always with an embedded store, else after its election.
pub(super) fn leadership(config: &Config, clock: &Arc<dyn Clock>) -> Leadership {
    match config.flags.etcd.servers().is_empty() {
        true => Leadership::of_single_server(),
        false => Leadership::of_one_of_several_servers(Arc::clone(clock)),
    }
}

/// Rejects a store that another process has open. This check runs before authd starts, because both processes
/// would use one authd socket in the data directory.
pub(super) fn check_unlocked_store(config: &Config) -> Result<(), ProcessError> {
    if !config.flags.etcd.servers().is_empty() {
        return Ok(());
    }
    fjall::check_unlocked(&config.data_dir.join(STORE)).map_err(|error| ProcessError::Store(Box::new(error)))
}

/// The open stores of the process.
pub(super) struct Stores {
    /// The main store.
    pub(super) main: Arc<dyn Store>,
    /// The store of `--etcd-servers-overrides`.
    pub(super) separate: Option<Arc<dyn Store>>,
}

impl Stores {
    /// Closes the stores at the same time, so that running commits of one cluster do not delay the end of the other store.
    pub(super) async fn close(&self) {
        let close_separate = async {
            if let Some(separate) = &self.separate {
                separate.close().await;
            }
        };
        tokio::join!(self.main.close(), close_separate);
    }
}

/// The caches of the stores, with that of Events if they have a store of their own.
pub(super) fn caches(config: &Config, registry: &Registry) -> Caches {
    let cache = || Arc::new(Cache::new(storage::cache::Limits::default()));
    let events = registry.find_stored("", "v1", "events");
    let separate = events.filter(|_| !config.flags.etcd.event_servers(&config.names).is_empty());
    Caches::new(&cache(), separate.map(|events| (events.key_prefix.clone(), cache())))
}

/// Opens the stores with their observers, and loads the addresses of stored Services.
pub(super) async fn open_stores(
    config: &Config,
    names: &Names,
    clock: &Arc<dyn Clock>,
    (revisions, caches, addresses): (&Arc<PolicyRevisions>, &Caches, &Arc<ServiceAddresses>),
    (encryption, retries): (Option<&ProcessEncryption>, &StartRetries),
    metrics: &Metrics,
) -> Result<Stores, ProcessError> {
    let cache = caches.main();
    // `revisions` precedes the watch cache: clients see a change only after `revisions` has recorded the
    // policy writes up to it.
    let observers: Arc<dyn storage::Observer> = Arc::new(Observers(vec![
        Arc::clone(revisions) as Arc<dyn storage::Observer>,
        Arc::clone(addresses) as Arc<dyn storage::Observer>,
        Arc::clone(cache) as Arc<dyn storage::Observer>,
    ]));
    let etcd = &config.flags.etcd;
    let cluster = match etcd.servers().is_empty() {
        true => None,
        false => Some(EtcdCluster::new(config, names, encryption, metrics)?),
    };
    let main: Arc<dyn Store> = match &cluster {
        Some(cluster) => cluster.open(etcd.servers(), observers, etcd_store::end_process()).await?,
        None => {
            let observers = match encryption {
                Some(process) => process.encryption.observer(observers),
                None => observers,
            };
            let store = open_embedded_store(config, names, clock, observers).await?;
            match encryption {
                Some(process) => process.encryption.store(store),
                None => store,
            }
        }
    };
    let separate = match (&cluster, caches.separate()) {
        (Some(cluster), Some((key_prefix, cache))) => {
            let observer = Arc::clone(cache) as Arc<dyn storage::Observer>;
            let on_gap = etcd_store::go_on_without_events(cache, key_prefix);
            let opened = cluster.open(etcd.event_servers(names), observer, on_gap).await;
            let store = opened.map_err(|error| ProcessError::SeparateStore(Box::new(error)))?;
            cache.attach(&store);
            Some(store)
        }
        _ => None,
    };
    revisions.start_at(main.revision());
    retries.run(async || addresses.load(&*main).await.map_err(ProcessError::Addresses)).await?;
    if encryption.is_some() {
        let (addresses, store) = (Arc::clone(addresses), Arc::clone(&main));
        tokio::spawn(async move { addresses.follow_recoveries(&*store).await });
    }
    cache.attach(&main);
    Ok(Stores { main, separate })
}

/// The common part of stores in etcd clusters: the form of their values, their encryption and their metrics.
struct EtcdCluster<'a> {
    config: &'a Config,
    names: &'a Names,
    form: Arc<dyn Form>,
    encryption: Option<&'a ProcessEncryption>,
    telemetry: Arc<EtcdMetrics>,
}

impl<'a> EtcdCluster<'a> {
    fn new(
        config: &'a Config,
        names: &'a Names,
        encryption: Option<&'a ProcessEncryption>,
        metrics: &Metrics,
    ) -> Result<Self, ProcessError> {
        let media_type =
            config.flags.etcd.media_type(names).map_err(|error| ProcessError::Usage(vec![error]))?;
        // In etcd, objects have the form of kube-apiserver, inside of their encryption.
        let form: Arc<dyn Form> = Arc::new(ReferenceValues::new(names, media_type));
        let telemetry = Arc::new(EtcdMetrics::new(metrics, names));
        Ok(EtcdCluster { config, names, form, encryption, telemetry })
    }

    /// Opens the store of a cluster.
    async fn open(
        &self,
        servers: Vec<String>,
        observer: Arc<dyn storage::Observer>,
        on_gap: OnGap,
    ) -> Result<Arc<dyn Store>, ProcessError> {
        let mut observer = FormedStore::observer(Arc::clone(&self.form), observer);
        if let Some(process) = self.encryption {
            observer = process.encryption.observer(observer);
        }
        let flags = &self.config.flags;
        let telemetry = Arc::clone(&self.telemetry) as Arc<dyn Telemetry>;
        let event_ttl = flags.storage.event_ttl;
        let engine =
            etcd_store::open(&flags.etcd, servers, self.names, event_ttl, telemetry, observer, on_gap)
                .await?;
        let mut store: Arc<dyn Store> = Arc::new(engine);
        if let Some(process) = self.encryption {
            store = process.encryption.store(store);
        }
        Ok(Arc::new(FormedStore::new(Arc::clone(&self.form), store)))
    }
}

/// Returns the names that a generated serving certificate needs.
pub(super) fn serving_hosts(config: &Config) -> Vec<String> {
    vec![config.flags.serving.bind_address.to_string()]
}

/// Opens the store in the data directory.
async fn open_embedded_store(
    config: &Config,
    names: &Names,
    clock: &Arc<dyn Clock>,
    observers: Arc<dyn storage::Observer>,
) -> Result<Arc<dyn Store>, ProcessError> {
    let identity =
        fjall::Identity { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() };
    let options = fjall::Options {
        history_retention: config.flags.storage.history_retention,
        quota_bytes: config.flags.storage.storage_quota,
        ..fjall::Options::new(config.data_dir.join(STORE), identity, Arc::clone(clock))
    };
    let store = tokio::task::spawn_blocking(move || FjallStore::open(options, observers))
        .await
        .map_err(|error| ProcessError::Task { task: "opening the store", error })?;
    Ok(Arc::new(store.map_err(|error| ProcessError::Store(Box::new(error)))?))
}

/// Loads the serving certificate of the flags. Without such flags, loads or creates a generated certificate.
///
/// Also returns the file of the CA of the generated certificate, if it exists.
pub(super) async fn load_tls(
    config: &Config,
    clock: &Arc<dyn Clock>,
) -> Result<(Arc<ServingTls>, Option<PathBuf>), ProcessError> {
    let (configured_files, dir, clock) = (config.tls.clone(), config.cert_dir.clone(), Arc::clone(clock));
    let (hosts, client_cas) = (serving_hosts(config), config.client_cas.clone());
    let load = move || -> Result<_, ProcessError> {
        let (cert, key, ca) = match configured_files {
            Some((cert, key)) => (cert, key, None),
            None => {
                let pair = serving::certs::ensure_serving_pair(&dir, &hosts, clock.now())?;
                let ca = pair.ca.exists().then_some(pair.ca);
                (pair.cert, pair.key, ca)
            }
        };
        Ok((ServingTls::load(TlsFiles { cert, key, client_cas })?, ca))
    };
    tokio::task::spawn_blocking(load)
        .await
        .map_err(|error| ProcessError::Task { task: "loading certificates", error })?
}

/// Checks that the CA of the built-in signer can be loaded. The signer loads the CA again for each
/// certificate.
pub(super) async fn check_signing_authority(config: &Config) -> Result<(), ProcessError> {
    let Some(signing) = config.certificate_signing.clone() else { return Ok(()) };
    let load = move || Authority::load(&signing.cert, &signing.key).map(drop).map_err(ProcessError::Signing);
    tokio::task::spawn_blocking(load)
        .await
        .map_err(|error| ProcessError::Task { task: "loading the authority of the signer", error })?
}

/// Writes the bound port to a file; a reader never sees a partial file.
pub(super) fn write_port(file: &Path, port: u16) -> Result<(), ProcessError> {
    let temporary = file.with_extension("new");
    std::fs::write(&temporary, format!("{port}\n"))
        .and_then(|()| std::fs::rename(&temporary, file))
        .map_err(|error| ProcessError::file(file, error))
}

/// Returns an address to which a client on this machine can connect.
///
/// This is the bound address, but with 127.0.0.1 if the server is bound to all addresses.
pub(super) fn connectable_address(bound: SocketAddr) -> SocketAddr {
    if bound.ip().is_unspecified() {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), bound.port())
    } else {
        bound
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use storage::conformance::StoreDouble;
    use storage::engine::memory::MemoryStore;

    use super::*;

    /// A store whose commits never end, so that its close waits.
    struct Busy(MemoryStore);

    #[async_trait::async_trait]
    impl StoreDouble for Busy {
        fn inner(&self) -> &dyn Store {
            &self.0
        }
        async fn close(&self) {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn main_store_closes_while_the_separate_store_waits_for_commits() {
        let memory = || MemoryStore::new(Arc::new(Observers(Vec::new())));
        let main: Arc<dyn Store> = Arc::new(memory());
        let stores = Stores { main: Arc::clone(&main), separate: Some(Arc::new(Busy(memory()))) };
        assert!(main.get("a", None).await.is_ok());
        let close = tokio::time::timeout(Duration::from_millis(200), stores.close()).await;
        assert!(close.is_err(), "the separate store is busy");
        assert!(main.get("a", None).await.is_err(), "the main store is closed");
    }

    #[test]
    fn data_directory_of_another_user_is_rejected_except_for_root() {
        let error = check_owner(Path::new("/d"), 1001, 1002).unwrap_err().to_string();
        assert!(
            error.contains("`/d` belongs to the user with the id 1001, but apid runs as 1002"),
            "{error}"
        );
        assert!(check_owner(Path::new("/d"), 7, 7).is_ok());
        assert!(check_owner(Path::new("/d"), 7, 0).is_ok());
    }
}
