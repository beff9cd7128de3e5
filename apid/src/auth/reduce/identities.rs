//! Reductions of objects that identities depend on: service accounts, nodes, Secrets, `cluster-info`.
//!
//! Service accounts and nodes reduce to their uid.

use authproto::auth::{
    MirrorConfigMap, MirrorNode, MirrorObject, MirrorSecret, MirrorServiceAccount, mirror_object::Kind,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use super::PolicyNames;
use super::meta::{Meta, Named, Texts, select_entries};

/// Reduces a ServiceAccount.
pub(super) fn service_account(bytes: &[u8]) -> Option<MirrorObject> {
    let Named { metadata } = serde_json::from_slice(bytes).ok()?;
    Some(metadata.object(Texts::new(), Texts::new(), Kind::ServiceAccount(MirrorServiceAccount {})))
}

/// Reduces a Node.
pub(super) fn node(bytes: &[u8]) -> Option<MirrorObject> {
    let Named { metadata } = serde_json::from_slice(bytes).ok()?;
    Some(metadata.object(Texts::new(), Texts::new(), Kind::Node(MirrorNode {})))
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(rename = "type")]
    kind: Option<String>,
    data: Option<BTreeMap<String, Value>>,
}

/// Reduces a Secret. A token may be bound to any Secret; of those without a token only the uid matters.
pub(super) fn secret(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let Data { metadata, kind, data } = serde_json::from_slice(bytes).ok()?;
    let kind = kind.unwrap_or_default();
    let holds_a_token = policy_names.token_types.contains(&kind);
    let decoded = |(key, value): (String, Value)| {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        Some((key, bytes))
    };
    let data = data.filter(|_| holds_a_token).unwrap_or_default().into_iter().filter_map(decoded).collect();
    let labels = select_entries(metadata.labels()?, &policy_names.legacy_labels);
    let annotations = select_entries(metadata.annotations()?, &policy_names.account_annotations);
    Some(metadata.object(labels, annotations, Kind::Secret(MirrorSecret { r#type: kind, data })))
}

/// Reduces a ConfigMap.
pub(super) fn config_map(bytes: &[u8]) -> Option<MirrorObject> {
    let Data { metadata, data, .. } = serde_json::from_slice(bytes).ok()?;
    let text = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
    let data = data.unwrap_or_default().into_iter().filter_map(text).collect();
    Some(metadata.object(Texts::new(), Texts::new(), Kind::ConfigMap(MirrorConfigMap { data })))
}
