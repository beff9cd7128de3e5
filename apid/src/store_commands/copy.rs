//! `apid store copy`, and backup and restore of a store in etcd.
//!
//! # Contract
//!
//! A copy is a backup of its source into a file and a restore of this file in its target. The file has the form of
//! `FORMAT.md` for each engine: keys of this server, objects as JSON. In etcd, keys and values have the form of
//! kube-apiserver.
//!
//! No revision of the source is used again. An embedded store continues at a higher revision, which follows from the
//! clock, as after each restore. A cluster first gets a revision above that of the source; after the copy, its earlier
//! history is compacted.
//!
//! Encrypted objects are bound to their keys, and their plain form depends on the engine. So a copy from etcd, or to a
//! prefix other than that of kube-apiserver, needs the providers.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock, SystemRng};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use bytes::Bytes;
use clap::{Args, FromArgMatches as _};
use encryption::kms::{KmsEnvironment, PollIntervals};
use encryption::{Configuration, Encryption, EncryptionMetrics};
use serving::flags::duration;
use serving::metrics::Metrics;
use storage::engine::etcd::EtcdStore;
use storage::engine::fjall::offline::{
    self, ArchiveCounts, ArchiveEncoder, ArchiveError, ArchiveFile, ArchiveReader, BackupSummary,
};
use storage::engine::fjall::{Identity, OpenError};
use storage::engine::memory::MemoryStore;
use storage::form::Form as _;
use storage::{ENCRYPTED_PREFIX, Observers, Op, Revision, Store};
use tokio::task::JoinSet;

use super::{now, print_summary};
use crate::config::{EtcdFlags, STORE};
use crate::console::{fail, print, report_errors};
use crate::etcd_store;
use crate::stored_keys::StoredKeys;
use crate::stored_values::ReferenceValues;

/// The word that names the cluster of `--etcd-servers` as source or target.
const CLUSTER: &str = "etcd";
/// Number of writes in flight.
const WRITES: usize = 64;
/// Number of bytes in one read.
const PAGE_BYTES: usize = 4 << 20;
/// The prefix in etcd to which encrypted values of an embedded store are bound.
const ROOT: &str = kinds::REFERENCE_ROOT;

/// The flags of the commands.
#[derive(Debug, Args)]
struct CopyFlags {
    /// Source: a data directory, a backup file, or `etcd`
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// Target: a data directory, a backup file, or `etcd`
    #[arg(long, value_name = "TARGET")]
    to: Option<String>,
    /// Names of the store in etcd
    #[arg(long, value_name = "PRESET", default_value = "kubernetes")]
    names: Preset,
    /// API domain of the store in etcd
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_API_DOMAIN)]
    api_domain: String,
    /// Providers that decrypt the objects of the source and encrypt those of the target
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Time after which etcd removes copied Events; 0 means never
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    event_ttl: Duration,
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// The reason why a copy failed.
#[derive(Debug, thiserror::Error)]
enum CopyError {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Embedded(#[from] OpenError),
    #[error("{0}")]
    Archive(#[from] ArchiveError),
    #[error("{0}")]
    Etcd(#[from] etcd_store::EtcdStoreError),
    #[error("{0}")]
    Store(#[from] storage::Error),
    #[error("key `{key}`: {reason}")]
    Object { key: String, reason: String },
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("{0}")]
    Encryption(String),
}

/// Whether the command line is one of this module.
pub(super) fn is_command(arguments: &[String]) -> bool {
    let names_servers = arguments
        .iter()
        .any(|argument| argument == "--etcd-servers" || argument.starts_with("--etcd-servers="));
    match arguments.first().map(String::as_str) {
        Some("copy") => true,
        Some("backup" | "restore") => names_servers,
        _ => false,
    }
}

/// Runs `copy`, or `backup` or `restore` of a store in etcd.
pub(super) fn run(arguments: Vec<String>) -> ExitCode {
    let command = CopyFlags::augment_args(clap::Command::new("apid store").no_binary_name(true));
    let word = arguments.first().cloned().unwrap_or_default();
    let parsed = command
        .try_get_matches_from(arguments.into_iter().skip(1))
        .and_then(|matches| CopyFlags::from_arg_matches(&matches));
    let flags = match parsed {
        Ok(flags) => flags,
        Err(error) if !error.use_stderr() => return print(error.to_string()),
        Err(error) => return report_errors("apid", &[error.to_string().trim_end().to_owned()]),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(format_args!("the runtime cannot start: {error}")),
    };
    match runtime.block_on(flags.run(&word)) {
        Ok(code) => code,
        Err(CopyError::Usage(error)) => report_errors("apid", &[error]),
        Err(error) => fail(error),
    }
}

impl CopyFlags {
    async fn run(&self, word: &str) -> Result<ExitCode, CopyError> {
        if !self.etcd.etcd_servers_overrides.is_empty() {
            return Err(CopyError::Usage(
                "`--etcd-servers-overrides`: backups and copies cover the cluster of `--etcd-servers` only; leave the flag \
                 out, and use `etcdctl snapshot` for the cluster of Events"
                    .to_owned(),
            ));
        }
        let missing = |flag: &str, what: &str| CopyError::Usage(format!("`--{flag}` is missing: set {what}"));
        let place =
            |value: &Option<String>, flag: &str, what: &str| value.clone().ok_or_else(|| missing(flag, what));
        match word {
            "backup" => {
                let file = place(&self.to, "to", "the file to write")?;
                self.back_up_cluster(Path::new(&file)).await.map(|summary| print_summary(&summary))
            }
            "restore" => {
                let file = place(&self.from, "from", "the file to read")?;
                self.restore_in_cluster(Path::new(&file)).await
            }
            _ => {
                let what = "a data directory, or `etcd` with `--etcd-servers`";
                self.copy(&place(&self.from, "from", what)?, &place(&self.to, "to", what)?).await
            }
        }
    }

    async fn copy(&self, from: &str, to: &str) -> Result<ExitCode, CopyError> {
        if (from == CLUSTER) == (to == CLUSTER) {
            return Err(CopyError::Usage(
                "one of `--from` and `--to` must be `etcd`, the other one a data directory".to_owned(),
            ));
        }
        if self.etcd.servers().is_empty() {
            return Err(CopyError::Usage("`--etcd-servers` is missing: set the URLs of etcd".to_owned()));
        }
        let dir = Path::new(if from == CLUSTER { to } else { from });
        let file = dir.join("copy.backup");
        let result = if from == CLUSTER {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            self.back_up_cluster(&file).await.and_then(|_| {
                let restored = offline::restore(&file, &dir.join(STORE), now())?;
                let BackupSummary { objects, encrypted, .. } = restored.archived;
                Ok(print(format!(
                    "{objects} objects copied\n{encrypted}the store continues after revision {}\n",
                    restored.revision
                )))
            })
        } else {
            offline::backup(&dir.join(STORE), &file)?;
            self.restore_in_cluster(&file).await
        };
        // The objects are in the target, or still in the source.
        let _ = std::fs::remove_file(&file);
        result
    }

    /// Opens the cluster without compaction by this process, which reads at one revision.
    async fn open(&self, identity: Option<&Identity>) -> Result<(EtcdStore, Names), CopyError> {
        let (preset, api_domain) = match identity {
            Some(identity) => (
                identity.preset.parse().map_err(|_| CopyError::Usage("unknown names preset".to_owned()))?,
                identity.api_domain.as_str(),
            ),
            None => (self.names, self.api_domain.as_str()),
        };
        let names = Names::new(preset, api_domain).map_err(|error| CopyError::Usage(error.to_string()))?;
        let observer = Arc::new(Observers(Vec::new()));
        let on_gap = etcd_store::end_process();
        let etcd = EtcdFlags { etcd_compaction_interval: Duration::ZERO, ..self.etcd.clone() };
        let store =
            etcd_store::open(&etcd, etcd.servers(), &names, self.event_ttl, Arc::new(()), observer, on_gap)
                .await?;
        Ok((store, names))
    }

    /// Writes all objects of the cluster at one revision into a file, sorted by key.
    async fn back_up_cluster(&self, file: &Path) -> Result<BackupSummary, CopyError> {
        let (store, names) = self.open(None).await?;
        let converter = Converter::new(self, &names).await?;
        let at = store.newest_revision().await?;
        let identity =
            Identity { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() };
        let (mut archive, mut buffer) = (ArchiveFile::create(file)?, Vec::new());
        let mut encoder = ArchiveEncoder::begin(&identity, at.0, &mut buffer);
        let fill = async {
            // The file is sorted by key. etcd orders resources differently.
            for prefix in kinds::stored_prefixes(&store, at).await? {
                let (mut start, mut more) = (String::new(), true);
                while more {
                    let page = store.rows_within(&prefix, &start, 0, PAGE_BYTES, at).await?;
                    more = page.more;
                    for row in page.rows {
                        start = format!("{}\0", row.key);
                        let value = converter.to_embedded(&row.key, &row.value).await?;
                        encoder.add(&row.key, row.revision.0, &value, &mut buffer);
                        archive.write(&buffer)?;
                        buffer.clear();
                    }
                }
            }
            let counts = encoder.finish(&mut buffer);
            archive.write(&buffer)?;
            Ok::<_, CopyError>(counts)
        };
        let result = fill.await;
        store.close().await;
        match result {
            Ok(counts) => {
                archive.finish()?;
                Ok(counts.summary(identity, at))
            }
            Err(error) => {
                archive.discard();
                Err(error)
            }
        }
    }

    /// Creates all objects of a file in the cluster, which must have none.
    async fn restore_in_cluster(&self, file: &Path) -> Result<ExitCode, CopyError> {
        let mut archive = ArchiveReader::open(file)?;
        let (store, names) = self.open(Some(&archive.identity().clone())).await?;
        if let Some(prefix) = kinds::stored_prefixes(&store, store.newest_revision().await?).await?.first() {
            return Err(CopyError::Usage(format!(
                "`{}` in etcd has objects, such as `{prefix}`: choose another `--etcd-prefix`, or delete them",
                self.etcd.etcd_prefix
            )));
        }
        let converter = Converter::new(self, &names).await?;
        store.raise_revision(Revision(archive.revision())).await?;
        let (store, mut writes) = (Arc::new(store), JoinSet::new());
        while let Some((key, _, value)) = archive.next_object()? {
            if writes.len() >= WRITES {
                finish_one(&mut writes).await?;
            }
            let value = converter.to_cluster(&key, &value).await?;
            let store = Arc::clone(&store);
            writes.spawn(async move { store.commit(&key, Op::Create(value)).await.map(drop) });
        }
        while !writes.is_empty() {
            finish_one(&mut writes).await?;
        }
        // Clients of the source must list again.
        let revision = store.newest_revision().await?;
        store.compact(revision).await?;
        store.close().await;
        let ArchiveCounts { objects, encrypted, .. } = archive.counts();
        Ok(print(format!(
            "{objects} objects copied\n{encrypted}the store continues after revision {revision}\n"
        )))
    }
}

async fn finish_one(writes: &mut JoinSet<storage::Result<()>>) -> Result<(), CopyError> {
    match writes.join_next().await {
        Some(Ok(result)) => Ok(result?),
        Some(Err(error)) => Err(CopyError::File(std::io::Error::other(error))),
        None => Ok(()),
    }
}

/// The conversion of values between the engines.
struct Converter {
    values: ReferenceValues,
    /// Encryption with the keys of an embedded store, and with those in the cluster.
    encryption: Option<(Arc<Encryption>, Arc<Encryption>)>,
    /// Whether encrypted values of an embedded store are bound to the keys in the cluster.
    has_reference_prefix: bool,
}

impl Converter {
    async fn new(flags: &CopyFlags, names: &Names) -> Result<Self, CopyError> {
        let prefix = &flags.etcd.etcd_prefix;
        let encryption = match &flags.encryption_provider_config {
            Some(file) => Some((
                start_encryption(file, names, StoredKeys::new(names)).await?,
                start_encryption(file, names, StoredKeys::below(names, prefix)).await?,
            )),
            None => None,
        };
        Ok(Converter {
            values: ReferenceValues::new(names, flags.etcd.media_type(names).map_err(CopyError::Usage)?),
            encryption,
            has_reference_prefix: prefix.trim_matches('/') == ROOT.trim_matches('/'),
        })
    }

    /// The value in an embedded store for one in the cluster.
    async fn to_embedded(&self, key: &str, value: &Bytes) -> Result<Bytes, CopyError> {
        let encryption = self.encryption.as_ref();
        let plain = match encryption {
            Some((_, cluster)) => decrypt(cluster, key, value).await?,
            None if value.starts_with(ENCRYPTED_PREFIX) => {
                return Err(object_error(key, "the object is encrypted: set `--encryption-provider-config`"));
            }
            None => value.clone(),
        };
        let plain = self.values.read(key, &plain).map_err(|reason| object_error(key, &reason))?;
        match encryption {
            Some((embedded, _)) => encrypt(embedded, key, plain).await,
            None => Ok(plain),
        }
    }

    /// The value in the cluster for one in an embedded store.
    async fn to_cluster(&self, key: &str, value: &Bytes) -> Result<Bytes, CopyError> {
        let encryption = self.encryption.as_ref();
        let plain = match encryption {
            Some((embedded, _)) => decrypt(embedded, key, value).await?,
            None if value.starts_with(ENCRYPTED_PREFIX) && self.has_reference_prefix => {
                return Ok(value.clone());
            }
            None if value.starts_with(ENCRYPTED_PREFIX) => {
                let reason =
                    "the object is encrypted for the prefix `/registry`: set `--encryption-provider-config`";
                return Err(object_error(key, reason));
            }
            None => value.clone(),
        };
        let formed = self.values.write(key, &plain).map_err(|reason| object_error(key, &reason))?;
        match encryption {
            Some((_, cluster)) => encrypt(cluster, key, formed).await,
            None => Ok(formed),
        }
    }
}

fn object_error(key: &str, reason: &str) -> CopyError {
    CopyError::Object { key: key.to_owned(), reason: reason.to_owned() }
}

async fn start_encryption(
    file: &Path,
    names: &Names,
    keys: StoredKeys,
) -> Result<Arc<Encryption>, CopyError> {
    let failure = |error: &dyn std::fmt::Display| CopyError::Encryption(error.to_string());
    let configuration = Configuration::read(file, names).map_err(|error| failure(&error))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let environment = KmsEnvironment {
        clock,
        rng: Arc::new(SystemRng),
        intervals: PollIntervals::default(),
        on_recovery: Arc::new(|| ()),
    };
    let metrics = EncryptionMetrics::new(&Metrics::new(), "");
    let encryption = Encryption::start(&configuration, environment, metrics, Arc::new(keys)).await;
    let encryption = encryption.map_err(|error| failure(&error))?;
    encryption.kms_health().map_err(CopyError::Encryption)?;
    Ok(encryption)
}

/// A store in memory that holds one value, below the encryption.
fn cell() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))))
}

async fn value_of(store: &dyn Store, key: &str) -> Result<Bytes, CopyError> {
    let row = store.get(key, None).await?;
    row.map(|row| row.value).ok_or_else(|| object_error(key, "the object has no value"))
}

async fn decrypt(encryption: &Arc<Encryption>, key: &str, value: &Bytes) -> Result<Bytes, CopyError> {
    let engine = cell();
    engine.commit(key, Op::Create(value.clone())).await?;
    let plain = value_of(&*encryption.store(engine), key).await?;
    match storage::unreadable_reason(&plain) {
        Some(reason) => Err(object_error(key, reason)),
        None => Ok(plain),
    }
}

async fn encrypt(encryption: &Arc<Encryption>, key: &str, plain: Bytes) -> Result<Bytes, CopyError> {
    let engine = cell();
    encryption.store(Arc::clone(&engine)).commit(key, Op::Create(plain)).await?;
    value_of(&*engine, key).await
}

#[cfg(test)]
mod tests;
