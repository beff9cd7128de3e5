//! The reductions of PersistentVolumes, VolumeAttachments and ResourceSlices.
//!
//! # Reference
//!
//! The reduction of a PersistentVolume contains its claim and the Secrets that nodes use to mount the volume,
//! not the Secrets of the CSI controller. As in Kubernetes, a Secret reference without a namespace refers to
//! the namespace of the claim.

use authproto::auth::{MirrorObject, MirrorPlaced, MirrorVolume, Named, mirror_object::Kind};
use serde::Deserialize;

use super::PolicyNames;
use super::meta::{Meta, StringMap};
use super::references::{DriverSource, Reference, driver_secret_references};

#[derive(Deserialize)]
struct Volume<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    spec: Option<VolumeSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSpec {
    claim_ref: Option<Reference>,
    azure_file: Option<AzureFile>,
    csi: Option<PersistentCsi>,
    cephfs: Option<DriverSource>,
    cinder: Option<DriverSource>,
    flex_volume: Option<DriverSource>,
    iscsi: Option<DriverSource>,
    rbd: Option<DriverSource>,
    #[serde(rename = "scaleIO")]
    scale_io: Option<DriverSource>,
    storageos: Option<DriverSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureFile {
    secret_name: Option<String>,
    secret_namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PersistentCsi {
    node_publish_secret_ref: Option<Reference>,
    node_stage_secret_ref: Option<Reference>,
    node_expand_secret_ref: Option<Reference>,
}

impl VolumeSpec {
    /// The Secrets that nodes use, as pairs of namespace (`""` when the reference has none) and name.
    fn secrets(&self) -> Vec<(&str, &str)> {
        fn pair<'s>(namespace: &'s Option<String>, name: &'s Option<String>) -> (&'s str, &'s str) {
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
        }
        let driver_secrets = driver_secret_references([
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.iscsi,
            &self.rbd,
            &self.scale_io,
            &self.storageos,
        ]);
        let csi_secrets = self.csi.iter().flat_map(|csi| {
            [&csi.node_publish_secret_ref, &csi.node_stage_secret_ref, &csi.node_expand_secret_ref]
        });
        let references = driver_secrets.chain(csi_secrets.flatten());
        let azure = self.azure_file.iter().map(|azure| pair(&azure.secret_namespace, &azure.secret_name));
        references.map(|reference| pair(&reference.namespace, &reference.name)).chain(azure).collect()
    }
}

/// Reduces a PersistentVolume to its claim and the Secrets that nodes use to mount it.
pub(super) fn volume(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    let Volume { metadata, spec } = serde_json::from_slice(bytes).ok()?;
    let mut spec = spec.unwrap_or_default();
    let claim = spec.claim_ref.take().map(|claim| Named {
        namespace: claim.namespace.unwrap_or_default(),
        name: claim.name.unwrap_or_default(),
    });
    let mut secrets = Vec::new();
    if let Some(claim) = &claim {
        let secret_name = |&(namespace, name): &(&str, &str)| Named {
            namespace: if namespace.is_empty() { claim.namespace.clone() } else { namespace.to_owned() },
            name: name.to_owned(),
        };
        secrets.extend(spec.secrets().iter().filter(|(_, name)| !name.is_empty()).map(secret_name));
        secrets.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        secrets.dedup();
    }
    Some(metadata.object(StringMap::new(), StringMap::new(), Kind::Volume(MirrorVolume { claim, secrets })))
}

/// A VolumeAttachment or ResourceSlice: an object with `spec.nodeName`.
#[derive(Deserialize)]
struct NodeBoundObject<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    spec: Option<NodeBoundSpec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeBoundSpec {
    node_name: Option<String>,
}

/// Reduces a VolumeAttachment to its node.
pub(super) fn volume_attachment(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    node_bound_object(bytes, Kind::VolumeAttachment)
}

/// Reduces a ResourceSlice to its node.
pub(super) fn resource_slice(bytes: &[u8], _: &PolicyNames) -> Option<MirrorObject> {
    node_bound_object(bytes, Kind::ResourceSlice)
}

fn node_bound_object(bytes: &[u8], kind: fn(MirrorPlaced) -> Kind) -> Option<MirrorObject> {
    let NodeBoundObject { metadata, spec } = serde_json::from_slice(bytes).ok()?;
    let node_name = spec.and_then(|spec| spec.node_name).unwrap_or_default();
    Some(metadata.object(StringMap::new(), StringMap::new(), kind(MirrorPlaced { node_name })))
}
