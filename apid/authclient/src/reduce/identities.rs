//! Reductions of objects that identities depend on: service accounts, nodes, Secrets, `cluster-info`.
//!
//! The reductions of service accounts and nodes contain only name, uid and deletion time.

use authproto::auth::{
    MirrorConfigMap, MirrorNode, MirrorObject, MirrorSecret, MirrorServiceAccount, mirror_object::Kind,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use super::PolicyNames;
use super::meta::{Meta, MetadataOnly, StringMap, select_entries};

/// Reduces a service account to its metadata.
pub(super) fn service_account(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    metadata(bytes, Kind::ServiceAccount(MirrorServiceAccount {}))
}

/// Reduces a node to its metadata.
pub(super) fn node(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    metadata(bytes, Kind::Node(MirrorNode {}))
}

fn metadata(bytes: &[u8], kind: Kind) -> Option<MirrorObject> {
    let MetadataOnly { metadata } = serde_json::from_slice(bytes).ok()?;
    Some(metadata.object(StringMap::new(), StringMap::new(), kind))
}

/// The fields of a Secret or ConfigMap that its reduction uses.
#[derive(Deserialize)]
struct DataObject<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    /// The type of a Secret; a ConfigMap has none.
    #[serde(rename = "type")]
    secret_type: Option<String>,
    data: Option<BTreeMap<String, Value>>,
}

/// Reduces a Secret. The reduction has the data of the Secret only if the type is that of a token Secret.
///
/// A Secret of any other type is mirrored too, because a token can be bound to it, but without its data.
pub(super) fn secret(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let DataObject { metadata, secret_type, data } = serde_json::from_slice(bytes).ok()?;
    let secret_type = secret_type.unwrap_or_default();
    let holds_a_token = policy_names.token_types.contains(&secret_type);
    let decode_entry = |(key, value): (String, Value)| {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        Some((key, bytes))
    };
    let data =
        data.filter(|_| holds_a_token).unwrap_or_default().into_iter().filter_map(decode_entry).collect();
    let labels = select_entries(metadata.labels()?, &policy_names.legacy_labels);
    let annotations = select_entries(metadata.annotations()?, &policy_names.account_annotations);
    Some(metadata.object(labels, annotations, Kind::Secret(MirrorSecret { r#type: secret_type, data })))
}

/// Reduces a ConfigMap to its metadata and the string values of its data.
pub(super) fn config_map(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    let DataObject { metadata, data, .. } = serde_json::from_slice(bytes).ok()?;
    let to_string_entry = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
    let data = data.unwrap_or_default().into_iter().filter_map(to_string_entry).collect();
    Some(metadata.object(StringMap::new(), StringMap::new(), Kind::ConfigMap(MirrorConfigMap { data })))
}
