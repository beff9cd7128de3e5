//! The flags of the store in etcd, with the names and defaults of kube-apiserver.

use std::path::PathBuf;
use std::time::Duration;

use apimachinery::field::quote;
use apimachinery::names::Names;
use clap::Args;
use serving::flags::duration;

use super::values::{seconds, split_list};

/// The format of written values of built-in kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageMediaType {
    Protobuf,
    Json,
}

/// The policy on which requests are decided while other servers write policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PolicyConsistencyName {
    Fresh,
    Bounded,
}

/// The flag of the cluster of Events.
const OVERRIDES: &str = "etcd-servers-overrides";

/// The media type of JSON.
const JSON: &str = "application/json";

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Flags of etcd")]
pub(crate) struct EtcdFlags {
    /// Store the objects in this etcd cluster, which several servers may share, and not in --data-dir
    #[arg(long, value_name = "URL,...")]
    pub(crate) etcd_servers: Vec<String>,
    /// Store Events in an etcd cluster of their own: /events#URL;URL,... (format GROUP/RESOURCE#URL;URL; no other resource can
    /// have its own cluster). The other flags of etcd are those of both clusters
    #[arg(long, value_name = "RESOURCE#URLS,...")]
    pub(crate) etcd_servers_overrides: Vec<String>,
    /// Prefix of all keys in etcd
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    pub(crate) etcd_prefix: String,
    /// CA bundle that verifies etcd (default: that of the system)
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd; read again for each connection
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_certfile: Option<PathBuf>,
    /// Private key of --etcd-certfile
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_keyfile: Option<PathBuf>,
    /// Interval of the compactions of etcd, in which all servers take turns; 0 means that this server never compacts
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) etcd_compaction_interval: Duration,
    /// Time within which etcd must answer the health check
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) etcd_healthcheck_timeout: Duration,
    /// Time within which etcd must answer the readiness check
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) etcd_readycheck_timeout: Duration,
    /// Interval of the query of the database size
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) etcd_db_metric_poll_interval: Duration,
    /// Longest time for which new Events share a lease
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) lease_reuse_duration_seconds: Duration,
    /// Time for which the start waits for etcd
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) storage_initialization_timeout: Duration,
    /// Format of the objects of built-in kinds in etcd: the media type of Protobuf (default) or application/json
    #[arg(long, value_name = "TYPE")]
    pub(crate) storage_media_type: Option<String>,
    /// Policy on which requests are decided: fresh (the newest of all servers) or bounded (at most 10 s old; only reads and
    /// writes of newest objects wait for etcd)
    #[arg(long, value_name = "MODE", default_value = "fresh")]
    pub(crate) policy_consistency: PolicyConsistencyName,
}

/// The flags that have no effect without `--etcd-servers`.
pub(super) const WITHOUT_SERVERS: [&str; 12] = [
    "etcd-cafile",
    "etcd-certfile",
    "etcd-compaction-interval",
    "etcd-db-metric-poll-interval",
    "etcd-healthcheck-timeout",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-readycheck-timeout",
    "lease-reuse-duration-seconds",
    "policy-consistency",
    "storage-initialization-timeout",
    "storage-media-type",
];

impl EtcdFlags {
    /// The URLs of the servers; empty if the store is embedded.
    pub(crate) fn servers(&self) -> Vec<String> {
        split_list(&self.etcd_servers)
    }

    /// The format of written values of built-in kinds.
    ///
    /// # Errors
    ///
    /// The media type is another one.
    pub(crate) fn media_type(&self, names: &Names) -> Result<StorageMediaType, String> {
        match self.storage_media_type.as_deref() {
            Some(JSON) => Ok(StorageMediaType::Json),
            Some(other) if other != names.protobuf_media_type => {
                Err(format!("`--storage-media-type={other}`: use {} or {JSON}", names.protobuf_media_type))
            }
            _ => Ok(StorageMediaType::Protobuf),
        }
    }

    /// The errors in the values, one text each.
    pub(super) fn errors(&self, names: &Names) -> Vec<String> {
        let mut errors: Vec<String> = self.media_type(names).err().into_iter().collect();
        if self.etcd_certfile.is_some() != self.etcd_keyfile.is_some() {
            errors.push("`--etcd-certfile` and `--etcd-keyfile` require each other".to_owned());
        }
        errors.extend(self.servers().iter().filter_map(|server| server_error("etcd-servers", server)));
        let overrides = self.overrides(names);
        errors.extend(overrides.iter().filter_map(|servers| servers.as_ref().err().cloned()));
        let mut servers: Vec<Vec<String>> = overrides.into_iter().flatten().collect();
        errors.extend(servers.iter().flatten().filter_map(|server| server_error(OVERRIDES, server)));
        servers.dedup();
        if servers.len() > 1 {
            errors.push(format!("`--{OVERRIDES}`: Events have several clusters; name one"));
        }
        if !self.etcd_servers_overrides.is_empty() && self.servers().is_empty() {
            errors.push(format!(
                "`--{OVERRIDES}` requires `--etcd-servers`: all other objects are in that cluster"
            ));
        }
        errors
    }

    /// The URLs of the servers of the cluster of Events; empty if Events are in the store of all other objects.
    pub(crate) fn event_servers(&self, names: &Names) -> Vec<String> {
        self.overrides(names).into_iter().flatten().next().unwrap_or_default()
    }

    /// The servers of each override of Events, or the reason why it is invalid.
    fn overrides(&self, names: &Names) -> Vec<Result<Vec<String>, String>> {
        split_list(&self.etcd_servers_overrides).iter().map(|text| parse_override(text, names)).collect()
    }
}

/// Parses an override of Events.
fn parse_override(text: &str, names: &Names) -> Result<Vec<String>, String> {
    // The text of kube-apiserver.
    let invalid = || {
        format!(
            "--{OVERRIDES} invalid, must be of format: group/resource#servers, where servers are URLs, semicolon separated"
        )
    };
    let (resource, servers) = text.split_once('#').ok_or_else(invalid)?;
    let (group, plural) = resource.split_once('/').ok_or_else(invalid)?;
    if servers.contains('#') || plural.contains('/') || servers.is_empty() {
        return Err(invalid());
    }
    // Both groups have the same stored objects.
    if plural != "events" || !(group.is_empty() || group == names.group("events")) {
        return Err(format!(
            "`--{OVERRIDES}`: {}: only Events (`/events`) can have an etcd cluster of their own: other objects are written \
             together with their namespace, quotas or addresses, or decide about requests, in one history; copy the keys \
             below the prefix of this resource into the cluster of `--etcd-servers`, and leave this override out",
            quote(resource)
        ));
    }
    Ok(servers.split(';').map(|server| server.trim().to_owned()).collect())
}

/// The error in the URL of a server.
fn server_error(flag: &str, server: &str) -> Option<String> {
    if server.contains('@') {
        return Some(format!(
            "`--{flag}`: a URL has a user; use a URL such as `https://etcd-0:2379`, and `--etcd-certfile`"
        ));
    }
    (!server.starts_with("http://") && !server.starts_with("https://"))
        .then(|| format!("`--{flag}`: `{server}` has no scheme; use a URL such as `https://etcd-0:2379`"))
}
