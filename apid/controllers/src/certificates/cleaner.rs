//! Cleaner of old CertificateSigningRequests.
//!
//! # Contract
//!
//! The cleaner examines all requests at its start and every hour. It deletes an issued, denied or failed
//! request one hour after the last update of its condition. It deletes a request without conditions one day
//! after its creation, and an issued request when its certificate has expired. An approved request without a
//! certificate stays.
//!
//! # Reference
//!
//! The rules and the interval are those of the cleaner of kube-controller-manager.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serving::certs::not_after;

use super::super::actor::{Actor, Target, is_normal};
use super::super::runner::{Reconcile, Requeue};
use super::super::stored;
use super::rules::{certificate, conditions};
use verbs::Collection;
use verbs::deletion::options::DeleteOptions;

/// Time between two examinations of all requests.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Seconds after the last update of its condition at which an issued, denied or failed request is deleted.
const ENDED_MAX: i64 = 3600;
/// Seconds after its creation at which a request without conditions is deleted.
const PENDING_MAX: i64 = 24 * 3600;

/// The cleaner, with one key for all requests.
pub(super) struct CertificateCleaner {
    pub(super) actor: Actor,
    pub(super) requests: Arc<Collection>,
}

impl Reconcile for CertificateCleaner {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        clean(&self.actor, &self.requests).await?;
        Ok(Requeue::After(INTERVAL))
    }
}

/// Deletes the old requests. A failed deletion is logged; the next run repeats it.
///
/// # Errors
///
/// The requests cannot be read.
async fn clean(actor: &Actor, requests: &Collection) -> Result<(), Status> {
    let now = actor.api_state().clock.now();
    for request in stored::all(requests).await? {
        let Some(cause) = deletion_cause(&request, now) else { continue };
        let name = request.name();
        let options = DeleteOptions::if_unchanged(request.resource_version());
        let target = Target { collection: requests, namespace: "", name, subresource: "" };
        match actor.delete(target, &options).await {
            Ok(_) => tracing::info!(request = name, cause, "old certificate request deleted"),
            Err(status) if is_normal(&status) => {}
            Err(status) => tracing::warn!(
                request = name,
                reason = %status,
                "deletion of an old certificate request failed; retrying in an hour"
            ),
        }
    }
    Ok(())
}

/// Returns the reason to delete a request, as a word for the log; None if the request stays.
fn deletion_cause(request: &Object, now: Timestamp) -> Option<&'static str> {
    let is_older = |text: Option<&str>, seconds: i64| {
        let since = text.and_then(time::parse);
        since.is_some_and(|since| now.as_second().saturating_sub(since.as_second()) > seconds)
    };
    let is_issued = !certificate(request).is_empty();
    if conditions(request).next().is_none() {
        return is_older(Some(request.meta_str("creationTimestamp")), PENDING_MAX).then_some("pending");
    }
    conditions(request).find_map(|condition| {
        let is_old = is_older(condition.get("lastUpdateTime").and_then(Value::as_str), ENDED_MAX);
        match condition["type"].as_str() {
            Some("Approved") if is_issued && is_old => Some("issued"),
            Some("Approved") if is_issued && is_expired(request, now) => Some("expired"),
            Some("Denied") if is_old => Some("denied"),
            Some("Failed") if is_old => Some("failed"),
            _ => None,
        }
    })
}

/// Whether the issued certificate of a request has expired; false for an unreadable certificate.
fn is_expired(request: &Object, now: Timestamp) -> bool {
    let pem = STANDARD.decode(certificate(request)).ok();
    pem.and_then(|pem| not_after(&pem)).is_some_and(|end| now > end)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serving::certs::Authority;

    use super::*;

    const CREATED: &str = "2025-05-01T00:00:00Z";

    fn time_after(text: &str, seconds: i64) -> Timestamp {
        Timestamp::from_second(time::parse(text).unwrap().as_second() + seconds).unwrap()
    }

    fn request(kinds: &[&str], certificate: &str) -> Object {
        let condition = |kind: &&str| json!({"type": kind, "status": "True", "lastUpdateTime": CREATED});
        let conditions: Vec<Value> = kinds.iter().map(condition).collect();
        let status = json!({"conditions": conditions, "certificate": certificate});
        let metadata = json!({"name": "r", "creationTimestamp": CREATED});
        Object::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    #[test]
    fn request_is_deleted_after_time_of_its_state() {
        const HOUR: i64 = 3600;
        const NONE: &[&str] = &[];
        for (kinds, certificate, last_second, expected) in [
            (NONE, "", 24 * HOUR, Some("pending")),
            (&["Approved"], "Yw==", HOUR, Some("issued")),
            (&["Denied"], "", HOUR, Some("denied")),
            (&["Approved", "Failed"], "", HOUR, Some("failed")),
            (&["Approved"], "", 1000 * HOUR, None),
        ] {
            let request = request(kinds, certificate);
            let cause = |seconds| deletion_cause(&request, time_after(CREATED, seconds));
            assert_eq!(cause(last_second), None, "{kinds:?}");
            assert_eq!(cause(last_second + 1), expected, "{kinds:?}");
        }
    }

    #[test]
    fn request_with_expired_certificate_is_deleted_at_once() {
        let start = time_after(CREATED, -7200);
        let authority = Authority::generate("ca", start).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("ca.crt"), folder.path().join("ca.key"));
        std::fs::write(&cert, authority.cert).unwrap();
        std::fs::write(&key, authority.key).unwrap();
        let authority = Authority::load(&cert, &key).unwrap();
        let pair = authority.client("jane", &[], Duration::from_secs(7200 + 600), start).unwrap();
        let request = request(&["Approved"], &STANDARD.encode(pair.cert));
        assert_eq!(deletion_cause(&request, time_after(CREATED, 600)), None);
        assert_eq!(deletion_cause(&request, time_after(CREATED, 601)), Some("expired"));
    }

    #[test]
    fn condition_without_time_deletes_nothing() {
        let status = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        let request = Object::from_value(json!({"metadata": {"name": "r"}, "status": status})).unwrap();
        assert_eq!(deletion_cause(&request, time_after(CREATED, i64::from(u32::MAX))), None);
    }
}
