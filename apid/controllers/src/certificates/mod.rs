//! Built-in signer and cleaner of CertificateSigningRequests.
//!
//! # Contract
//!
//! [`sign`] follows the requests and issues certificates for approved requests to the built-in signers. A
//! request that is malformed, has an invalid signature or breaks a rule of its signer gets the condition
//! `Failed` with the reason `SignerValidationFailure`. The certificate and key files of the CA are read for
//! each issued certificate, so changed files are used without a restart. Requests to other signers are left
//! unchanged. [`cleaner`] deletes old requests.
//!
//! # Errors
//!
//! An unreadable or expired CA and a failed write are logged and retried, as any error of a controller.
//!
//! # Invariants
//!
//! INVARIANT (own account): the signer always writes as the service account `certificate-controller`. The
//! admission plugin `CertificateSigning` requires the permission `sign`, which the shared identity of the
//! controllers lacks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serving::certs::Authority;
use serving::certs::requests::{CertificateParameters, CertificateRequest};

use super::actor::{Actor, Target, ignore_race};
use super::condition::{Condition, with_conditions};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use rules::Signer;
use verbs::{ApiState, Collection};

use crate::ControllerState;

mod cleaner;
mod rules;
#[cfg(test)]
mod tests;

/// Files of the CA of the built-in signer, and the validity period of the certificates that it issues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSigning {
    /// File with the certificate of the CA, PEM.
    pub cert: PathBuf,
    /// File with the private key of the CA, PEM.
    pub key: PathBuf,
    /// Maximum validity period of certificates, and the period for requests without `spec.expirationSeconds`.
    pub duration: Duration,
}

/// The reason why no certificate was issued.
enum IssueError {
    /// The request is invalid or breaks a rule of its signer; it gets the condition `Failed`.
    Refused(String),
    /// The CA cannot be used, or signing failed. A later attempt can succeed.
    Unavailable(String),
}

/// The service account of the signer and of the cleaner.
const ACCOUNT: &str = "certificate-controller";

/// The signer; its keys are names of requests.
struct CertificateSigner {
    actor: Actor,
    requests: Arc<Collection>,
    signing: CertificateSigning,
}

/// Issues certificates for approved requests until the process ends.
pub(super) async fn sign(state: Arc<ControllerState>, signing: CertificateSigning) {
    let Ok(requests) = collection(&state.api_state) else { return };
    let runner = Runner::new(&state, "certificate").watch(&requests.items, |event| event.existing_name());
    let actor = state.service_account(ACCOUNT);
    runner.run(Arc::new(CertificateSigner { actor, requests, signing })).await;
}

impl Reconcile for CertificateSigner {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        process(&self.actor, &self.requests, &self.signing, name).await?;
        Ok(Requeue::No)
    }
}

/// Deletes old requests until the process ends.
pub(super) async fn clean(state: Arc<ControllerState>) {
    let Ok(requests) = collection(&state.api_state) else { return };
    let actor = state.controller(ACCOUNT);
    let runner = Runner::new(&state, "certificate_cleaner").start_with(());
    runner.run(Arc::new(cleaner::CertificateCleaner { actor, requests })).await;
}

fn collection(api_state: &ApiState) -> Result<Arc<Collection>, Status> {
    stored::of_kind(api_state, ("certificates", "CertificateSigningRequest"))
}

/// Writes the certificate or the condition `Failed` into a request that waits for a built-in signer.
async fn process(
    actor: &Actor,
    requests: &Collection,
    signing: &CertificateSigning,
    name: &str,
) -> Result<(), Status> {
    let Some(request) = stored::get(requests, "", name).await? else { return Ok(()) };
    let api_state = actor.api_state();
    let signer_name = request.str_at(&["spec", "signerName"]).unwrap_or("");
    let signer = Signer::find(signer_name, &api_state.names).filter(|_| rules::is_ready(&request));
    let Some(signer) = signer else { return Ok(()) };
    let now = api_state.clock.now();
    let result = {
        let (request, signing) = (request.clone(), signing.clone());
        let issue = move || issue(signer, &request, &signing, now);
        tokio::task::spawn_blocking(issue).await.map_err(|error| Status::internal(error.to_string()))?
    };
    let updated = match result {
        Ok(certificate) => with_certificate(request.clone(), &certificate),
        Err(IssueError::Refused(message)) => {
            let reason = "SignerValidationFailure";
            let failed = Condition { kind: "Failed", status_is_true: true, reason, message };
            let Some(updated) = with_conditions(&request, &[failed], &time::time(now)) else {
                return Ok(());
            };
            updated
        }
        Err(IssueError::Unavailable(message)) => return Err(Status::internal(message)),
    };
    let target = Target { collection: requests, namespace: "", name, subresource: "status" };
    ignore_race(actor.update(target, updated).await)
}

/// Issues the certificate of a request. Returns the certificate as PEM.
fn issue(
    signer: Signer,
    request: &Object,
    signing: &CertificateSigning,
    now: jiff::Timestamp,
) -> Result<String, IssueError> {
    let encoded = request.str_at(&["spec", "request"]).unwrap_or("");
    let pem = STANDARD.decode(encoded).map_err(|error| IssueError::Refused(error.to_string()))?;
    let parsed_request =
        CertificateRequest::from_pem(&pem).map_err(|error| IssueError::Refused(error.to_string()))?;
    let usages: Vec<&str> = request
        .at(&["spec", "usages"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    signer
        .validate(parsed_request.identity(), &usages)
        .map_err(|rule| IssueError::Refused(rule.to_string()))?;
    let unavailable = |error: serving::certs::CertError| IssueError::Unavailable(error.to_string());
    let authority = Authority::load(&signing.cert, &signing.key).map_err(unavailable)?;
    let requested_seconds = request.at(&["spec", "expirationSeconds"]).and_then(Value::as_i64);
    let authority_end = authority.not_after();
    let (not_before, not_after) = rules::validity(requested_seconds, signing.duration, now, authority_end)
        .map_err(|error| IssueError::Unavailable(error.to_string()))?;
    authority
        .issue(&parsed_request, &CertificateParameters { usages: &usages, not_before, not_after })
        .map_err(unavailable)
}

fn with_certificate(mut request: Object, certificate: &str) -> Object {
    request.part_mut("status").insert("certificate".to_owned(), STANDARD.encode(certificate).into());
    request
}
