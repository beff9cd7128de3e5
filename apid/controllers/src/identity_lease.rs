//! The identity Lease of each apid, and the removal of outdated identity Leases.
//!
//! # Contract
//!
//! Each apid of a common store has a Lease `apiserver-HASH` in the system namespace, which it renews every
//! [`RENEWAL_INTERVAL`]. The leader deletes identity Leases that have expired. An apid with an embedded store has no such
//! Lease.
//!
//! # Reference
//!
//! The feature gate `APIServerIdentity` of kube-apiserver: name, label, duration and intervals. The hash is the one of
//! kube-apiserver for the same machine, so an apid continues the Lease of a kube-apiserver that it replaces. Apids of one
//! machine with other ports than [`DEFAULT_PORT`] have Leases of their own.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use aws_lc_rs::digest;
use jiff::{SignedDuration, Timestamp};

use super::actor::{Actor, Target, ignore_race};
use super::leadership::{LeaseAccess, Leases as _};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use crate::ControllerState;
use verbs::Collection;
use verbs::deletion::options::DeleteOptions;

/// Interval of the renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// Time after the last renewal at which a Lease expires.
const DURATION_SECONDS: i64 = 3600;
/// Interval of the removals of outdated Leases.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(3600);
/// The port that is not part of the name, because kube-apiserver does not hash the port.
const DEFAULT_PORT: u16 = 6443;

/// The machine and the port of this apid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Name of the machine.
    pub host_name: String,
    /// The bound port.
    pub port: u16,
}

impl ServerIdentity {
    /// Returns the name of the identity Lease.
    fn lease_name(&self) -> String {
        let port = self.port.to_string();
        let mut parts = vec![self.host_name.as_str(), "kube-apiserver"];
        if self.port != DEFAULT_PORT {
            parts.push(&port);
        }
        let mut hashed = Vec::new();
        for part in parts {
            // A name of a machine has at most 64 bytes.
            hashed.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
            hashed.extend(part.as_bytes());
        }
        let hash = digest::digest(&digest::SHA256, &hashed);
        format!("apiserver-{}", base32(hash.as_ref().get(..16).unwrap_or_default()))
    }
}

/// Encodes bytes in base32 (RFC 4648) in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::new();
    let (mut bits, mut count) = (0_u32, 0);
    let mut push = |index: u32| {
        let letter = usize::try_from(index & 31).ok().and_then(|index| ALPHABET.get(index));
        text.push(char::from(letter.copied().unwrap_or(b'a')));
    };
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            push(bits >> count);
        }
    }
    if count > 0 {
        push(bits << (5 - count));
    }
    text
}

/// The renewal of the Lease of this apid.
struct IdentityLease {
    leases: LeaseAccess,
    holder: String,
    host_name: String,
    state: Arc<ControllerState>,
}

/// Renews the identity Lease of this apid until the process ends.
pub(super) async fn renew(state: Arc<ControllerState>, server: ServerIdentity) {
    let name = server.lease_name();
    let Some(leases) = LeaseAccess::new(&state, &name) else { return };
    let runner = Runner::new(&state, "apiserver_identity").start_with(());
    let holder = format!("{name}_{}", state.api_state.rng.uuid());
    let lease = IdentityLease { leases, holder, host_name: server.host_name, state };
    runner.run(Arc::new(lease)).await;
}

impl Reconcile for IdentityLease {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let now = time::micro_time(self.state.api_state.clock.now());
        let names = &self.state.api_state.names;
        let mut lease = self.leases.read().await?.unwrap_or_default();
        let labels =
            [(identity_label(names), names.api_server), (names.label_key("hostname"), &self.host_name)];
        let mut all =
            lease.at(&["metadata", "labels"]).and_then(Value::as_object).cloned().unwrap_or_default();
        all.extend(labels.map(|(key, value)| (key, value.into())));
        lease.set_meta("labels", all);
        let spec = lease.part_mut("spec");
        spec.insert("holderIdentity".to_owned(), self.holder.as_str().into());
        spec.insert("leaseDurationSeconds".to_owned(), DURATION_SECONDS.into());
        spec.insert("renewTime".to_owned(), now.into());
        self.leases.write(lease).await?;
        Ok(Requeue::After(RENEWAL_INTERVAL))
    }
}

/// The key of the label of identity Leases; its value is [`Names::api_server`].
fn identity_label(names: &Names) -> String {
    names.label_sub_key("apiserver", "identity")
}

/// The removal of outdated Leases, with one key for all.
struct Removal {
    actor: Actor,
    leases: Arc<Collection>,
}

/// Deletes expired identity Leases until the process ends.
pub(super) async fn remove_outdated(state: Arc<ControllerState>) {
    let Ok(leases) = stored::of_kind(&state.api_state, ("coordination", "Lease")) else { return };
    let runner = Runner::new(&state, "apiserver_lease_gc").start_with(());
    runner.run(Arc::new(Removal { actor: state.apiserver().of_leader(), leases })).await;
}

impl Reconcile for Removal {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let api_state = self.actor.api_state();
        let namespace = api_state.names.system_namespace;
        for lease in stored::objects(&self.leases, &self.leases.kind.key(namespace, "")).await? {
            if !is_outdated(&lease, &api_state.names, api_state.clock.now()) {
                continue;
            }
            let options = DeleteOptions::if_unchanged(lease.resource_version());
            let target = Target { collection: &self.leases, namespace, name: lease.name(), subresource: "" };
            ignore_race(self.actor.delete(target, &options).await)?;
        }
        Ok(Requeue::After(REMOVAL_INTERVAL))
    }
}

/// Whether an object is an identity Lease that has expired. A Lease without a time or a duration has expired.
fn is_outdated(lease: &Object, names: &Names, now: Timestamp) -> bool {
    let renewed = lease.str_at(&["spec", "renewTime"]).and_then(time::parse_micro);
    let duration = lease.at(&["spec", "leaseDurationSeconds"]).and_then(Value::as_i64);
    let end = renewed
        .zip(duration)
        .and_then(|(renewed, seconds)| renewed.checked_add(SignedDuration::from_secs(seconds)).ok());
    lease.label(&identity_label(names)) == Some(names.api_server) && end.is_none_or(|end| end < now)
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    /// The expected values are computed with Python's `hashlib` and `base64`.
    #[test]
    fn name_of_identity_lease_is_the_hash_of_kube_apiserver_for_the_machine() {
        let name = |host: &str, port| ServerIdentity { host_name: host.to_owned(), port }.lease_name();
        assert_eq!(name("hh", 6443), "apiserver-byoo3cslt5s3qwbuvcu7azy7ru");
        assert_eq!(name("hh", 7443), "apiserver-my526fzqywj5vh6wssw2bykqyu");
        for (bytes, expected) in [("", ""), ("f", "my"), ("fo", "mzxq"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(base32(bytes.as_bytes()), expected);
        }
    }

    #[test]
    fn identity_lease_is_outdated_after_its_duration() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        for (identity, renewed, duration, expected) in [
            ("kube-apiserver", json!("2026-01-01T11:00:01.000000Z"), json!(3600), false),
            ("kube-apiserver", json!("2026-01-01T10:59:59.000000Z"), json!(3600), true),
            ("kube-apiserver", json!("2026-01-01T11:59:00.000000Z"), json!(10), true),
            ("kube-apiserver", json!(null), json!(3600), true),
            ("kube-apiserver", json!("2026-01-01T11:59:00.000000Z"), json!(null), true),
            ("other", json!("2020-01-01T00:00:00.000000Z"), json!(1), false),
        ] {
            let lease = json!({
                "metadata": {"labels": {"apiserver.kubernetes.io/identity": identity}},
                "spec": {"renewTime": renewed, "leaseDurationSeconds": duration},
            });
            let lease = Object::from_value(lease).unwrap();
            assert_eq!(is_outdated(&lease, &names, now), expected, "{lease:?}");
        }
    }
}
