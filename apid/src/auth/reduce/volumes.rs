//! The reductions of PersistentVolumes, VolumeAttachments and ResourceSlices: their claim or node.
//!
//! # Reference
//!
//! The reduction contains the Secrets that nodes use to mount a volume, not those of its controller. As in
//! Kubernetes, a Secret reference without a namespace refers to the namespace of the claim.

use authproto::auth::{MirrorObject, MirrorPlaced, MirrorVolume, Named, mirror_object::Kind};
use serde::Deserialize;

use super::MirroredKind;
use super::meta::{Meta, Texts};
use super::references::{Reference, Text, WithSecret, secrets};

#[derive(Deserialize)]
struct Volume<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: Option<VolumeSpec<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSpec<'a> {
    #[serde(borrow)]
    claim_ref: Option<Reference<'a>>,
    #[serde(borrow)]
    azure_file: Option<AzureFile<'a>>,
    #[serde(borrow)]
    csi: Option<Csi<'a>>,
    #[serde(borrow)]
    cephfs: Option<WithSecret<'a>>,
    #[serde(borrow)]
    cinder: Option<WithSecret<'a>>,
    #[serde(borrow)]
    flex_volume: Option<WithSecret<'a>>,
    #[serde(borrow)]
    iscsi: Option<WithSecret<'a>>,
    #[serde(borrow)]
    rbd: Option<WithSecret<'a>>,
    #[serde(borrow, rename = "scaleIO")]
    scale_io: Option<WithSecret<'a>>,
    #[serde(borrow)]
    storageos: Option<WithSecret<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureFile<'a> {
    #[serde(borrow)]
    secret_name: Text<'a>,
    #[serde(borrow)]
    secret_namespace: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi<'a> {
    #[serde(borrow)]
    node_publish_secret_ref: Option<Reference<'a>>,
    #[serde(borrow)]
    node_stage_secret_ref: Option<Reference<'a>>,
    #[serde(borrow)]
    node_expand_secret_ref: Option<Reference<'a>>,
}

impl VolumeSpec<'_> {
    /// The Secrets as (namespace or `""`, name).
    fn secrets(&self) -> Vec<(&str, &str)> {
        fn pair<'s>(namespace: &'s Text<'_>, name: &'s Text<'_>) -> (&'s str, &'s str) {
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
        }
        let of_drivers = secrets([
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.iscsi,
            &self.rbd,
            &self.scale_io,
            &self.storageos,
        ]);
        let of_csi = self.csi.iter().flat_map(|csi| {
            [&csi.node_publish_secret_ref, &csi.node_stage_secret_ref, &csi.node_expand_secret_ref]
        });
        let references = of_drivers.chain(of_csi.flatten());
        let azure = self.azure_file.iter().map(|azure| pair(&azure.secret_namespace, &azure.secret_name));
        references.map(|reference| pair(&reference.namespace, &reference.name)).chain(azure).collect()
    }
}

/// Reduces a PersistentVolume.
pub(super) fn volume(bytes: &[u8]) -> Option<MirrorObject> {
    let Volume { metadata, spec } = serde_json::from_slice(bytes).ok()?;
    let spec = spec.unwrap_or_default();
    let claim = spec.claim_ref.as_ref().map(|claim| Named {
        namespace: claim.namespace.as_deref().unwrap_or_default().to_owned(),
        name: claim.name.as_deref().unwrap_or_default().to_owned(),
    });
    let mut secrets = Vec::new();
    if let Some(claim) = &claim {
        let named = |&(namespace, name): &(&str, &str)| Named {
            namespace: if namespace.is_empty() { claim.namespace.clone() } else { namespace.to_owned() },
            name: name.to_owned(),
        };
        secrets.extend(spec.secrets().iter().filter(|(_, name)| !name.is_empty()).map(named));
        secrets.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        secrets.dedup();
    }
    Some(metadata.object(Texts::new(), Texts::new(), Kind::Volume(MirrorVolume { claim, secrets })))
}

#[derive(Deserialize)]
struct Placed<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: Option<PlacedSpec<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlacedSpec<'a> {
    #[serde(borrow)]
    node_name: Text<'a>,
}

/// Reduces a VolumeAttachment or ResourceSlice.
pub(super) fn placed(bytes: &[u8], kind: MirroredKind) -> Option<MirrorObject> {
    let Placed { metadata, spec } = serde_json::from_slice(bytes).ok()?;
    let node_name = spec.and_then(|spec| spec.node_name).unwrap_or_default().into_owned();
    let placed = MirrorPlaced { node_name };
    let kind = match kind {
        MirroredKind::ResourceSlice => Kind::ResourceSlice(placed),
        _ => Kind::VolumeAttachment(placed),
    };
    Some(metadata.object(Texts::new(), Texts::new(), kind))
}
