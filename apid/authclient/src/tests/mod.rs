//! Tests of the caches of authd's responses, of their invalidation, and of the streams to authd.

mod decisions;
mod half_connected;
mod identities;
mod servers;
mod watches;
mod wire;

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::clock::ManualClock;
use apimachinery::user::UserInfo;
use jiff::Timestamp;
use storage::{Change, Observer, Revision};

use super::*;
use crate::decisions::cache::CachedDecision;
use crate::validity::Validity;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH))
}

fn vector() -> Arc<PolicyRevisions> {
    Arc::new(PolicyRevisions::new(Reductions::for_tests()))
}

/// Writes a policy object: each revision has another uid, so the reduction always differs.
fn write(vector: &PolicyRevisions, key: &str, revision: u64) {
    let name = key.rsplit('/').next().unwrap();
    let value = serde_json::json!({"metadata": {"name": name, "uid": revision.to_string()}});
    let new = Some(value.to_string().into());
    vector.observe(&[Change { key: key.into(), old: None, new, revision: Revision(revision) }]);
}

fn user(name: &str) -> Identity {
    Identity::internal(Arc::new(UserInfo { name: name.into(), ..UserInfo::default() }))
}

fn pods(namespace: &str) -> Attributes {
    Attributes {
        verb: "list".into(),
        resource_request: true,
        version: "v1".into(),
        resource: "pods".into(),
        namespace: namespace.into(),
        ..Attributes::default()
    }
}

fn bearer(token: &str) -> HeaderCredentials {
    let header = (http::header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    let names = apimachinery::names::Names::new(apimachinery::names::Preset::Kubernetes, "").unwrap();
    HeaderCredentials::take(&mut [header].into_iter().collect(), &ProxyHeaders::default(), &names)
}

fn credentials<'a>(header_credentials: &'a HeaderCredentials, path: &'a str) -> Credentials<'a> {
    Credentials {
        header_credentials,
        certificate_chain: &[],
        chain_fingerprint: None,
        impersonation_headers: None,
        path,
        request_id: "test",
    }
}
