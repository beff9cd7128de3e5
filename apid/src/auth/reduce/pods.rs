//! The reduction of pods: the node of a pod, and the objects that the node must read to run it.
//!
//! # Reference
//!
//! The references are those that the Node authorizer of Kubernetes 1.33 follows. A mirror pod, which a node
//! creates itself, has none, so that a node cannot grant itself rights with it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use authproto::auth::{MirrorObject, MirrorPod, mirror_object::Kind};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::PolicyNames;
use super::meta::{Meta, Texts};
use super::references::{Reference, Text, WithSecret, secrets};

/// A pod whose spec has not been parsed.
#[derive(Deserialize)]
struct UnparsedPod<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<Status<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    #[serde(borrow)]
    resource_claim_statuses: Option<&'a RawValue>,
}

impl UnparsedPod<'_> {
    /// Whether all policy-relevant fields have the same bytes.
    fn is_certainly_equal(&self, other: &UnparsedPod<'_>, policy_names: &PolicyNames) -> bool {
        fn claims<'p>(pod: &'p UnparsedPod<'_>) -> Option<&'p str> {
            pod.status.as_ref()?.resource_claim_statuses.map(RawValue::get)
        }
        self.metadata.uid == other.metadata.uid
            && self.metadata.deletion_timestamp == other.metadata.deletion_timestamp
            && self.spec.map(RawValue::get) == other.spec.map(RawValue::get)
            && claims(self) == claims(other)
            && self.metadata.is_annotated(&policy_names.mirror)
                == other.metadata.is_annotated(&policy_names.mirror)
    }
}

/// Whether the reductions of two versions of a pod are certainly equal; false: reduce them to know.
///
/// Most writes of pods do not change their references, and this comparison costs much less than two
/// reductions.
pub(super) fn is_certainly_equal(old: &[u8], new: &[u8], policy_names: &PolicyNames) -> bool {
    let read = |bytes| serde_json::from_slice::<UnparsedPod<'_>>(bytes).ok();
    let (old, new): (Option<UnparsedPod<'_>>, Option<UnparsedPod<'_>>) = (read(old), read(new));
    old.zip(new).is_some_and(|(old, new)| old.is_certainly_equal(&new, policy_names))
}

/// Reduces a pod.
pub(super) fn pod(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let UnparsedPod { metadata, spec, status } = serde_json::from_slice(bytes).ok()?;
    let spec: Spec<'_> = match spec {
        Some(text) => serde_json::from_str(text.get()).ok()?,
        None => Spec::default(),
    };
    let mut pod = MirrorPod {
        node_name: spec.node_name.as_deref().unwrap_or_default().to_owned(),
        ..Default::default()
    };
    if !pod.node_name.is_empty() && !metadata.is_annotated(&policy_names.mirror) {
        let statuses = status.unwrap_or_default().resource_claim_statuses;
        let statuses: Option<Vec<ClaimStatus<'_>>> = match statuses {
            Some(text) => serde_json::from_str(text.get()).ok()?,
            None => None,
        };
        collect_references(&mut pod, &metadata.name, &spec, &statuses.unwrap_or_default());
    }
    Some(metadata.object(Texts::new(), Texts::new(), Kind::Pod(pod)))
}

/// Collects the references of a pod.
fn collect_references(pod: &mut MirrorPod, name: &str, spec: &Spec<'_>, statuses: &[ClaimStatus<'_>]) {
    let mut found = PodReferences::default();
    for reference in spec.image_pull_secrets.iter().flatten() {
        found.secret(reference);
    }
    for container in
        [&spec.init_containers, &spec.containers, &spec.ephemeral_containers].into_iter().flatten().flatten()
    {
        container.visit(&mut found);
    }
    for volume in spec.volumes.iter().flatten() {
        volume.visit(name, &mut found);
    }
    for claim in spec.resource_claims.iter().flatten() {
        // The status contains the name of a claim made from a template.
        let made = || {
            let status = statuses.iter().find(|status| status.name == claim.name)?;
            status.resource_claim_name.as_deref()
        };
        found.resource_claims.extend(claim.resource_claim_name.as_deref().or_else(made).map(str::to_owned));
    }
    let in_order = |names: BTreeSet<String>| names.into_iter().filter(|name| !name.is_empty()).collect();
    pod.service_account = spec.service_account_name.as_deref().unwrap_or_default().to_owned();
    pod.secrets = in_order(found.secrets);
    pod.config_maps = in_order(found.config_maps);
    pod.volume_claims = in_order(found.volume_claims);
    pod.resource_claims = in_order(found.resource_claims);
}

#[derive(Default)]
struct PodReferences {
    secrets: BTreeSet<String>,
    config_maps: BTreeSet<String>,
    volume_claims: BTreeSet<String>,
    resource_claims: BTreeSet<String>,
}

impl PodReferences {
    fn secret(&mut self, reference: &Reference<'_>) {
        self.secrets.extend(reference.name.as_deref().map(str::to_owned));
    }

    fn config_map(&mut self, reference: &Reference<'_>) {
        self.config_maps.extend(reference.name.as_deref().map(str::to_owned));
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow)]
    node_name: Text<'a>,
    #[serde(borrow)]
    service_account_name: Text<'a>,
    #[serde(borrow)]
    image_pull_secrets: Option<Vec<Reference<'a>>>,
    #[serde(borrow)]
    init_containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    ephemeral_containers: Option<Vec<Container<'a>>>,
    #[serde(borrow)]
    volumes: Option<Vec<Volume<'a>>>,
    #[serde(borrow)]
    resource_claims: Option<Vec<PodClaim<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    #[serde(borrow)]
    env: Option<Vec<Variable<'a>>>,
    #[serde(borrow)]
    env_from: Option<Vec<Source<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable<'a> {
    #[serde(borrow)]
    value_from: Option<Source<'a>>,
}

/// The source of one variable, or of all variables of an object.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source<'a> {
    #[serde(borrow, alias = "secretKeyRef")]
    secret_ref: Option<Reference<'a>>,
    #[serde(borrow, alias = "configMapKeyRef")]
    config_map_ref: Option<Reference<'a>>,
}

impl Container<'_> {
    fn visit(&self, found: &mut PodReferences) {
        let one = self.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
        for source in one.chain(self.env_from.iter().flatten()) {
            if let Some(reference) = &source.secret_ref {
                found.secret(reference);
            }
            if let Some(reference) = &source.config_map_ref {
                found.config_map(reference);
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    secret: Option<SecretVolume<'a>>,
    #[serde(borrow)]
    azure_file: Option<SecretVolume<'a>>,
    #[serde(borrow)]
    config_map: Option<Reference<'a>>,
    #[serde(borrow)]
    persistent_volume_claim: Option<VolumeClaimSource<'a>>,
    ephemeral: Option<serde::de::IgnoredAny>,
    #[serde(borrow)]
    projected: Option<Projected<'a>>,
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
struct SecretVolume<'a> {
    #[serde(borrow)]
    secret_name: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeClaimSource<'a> {
    #[serde(borrow)]
    claim_name: Text<'a>,
}

#[derive(Deserialize)]
struct Projected<'a> {
    #[serde(borrow)]
    sources: Option<Vec<Projection<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Projection<'a> {
    #[serde(borrow)]
    secret: Option<Reference<'a>>,
    #[serde(borrow)]
    config_map: Option<Reference<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Csi<'a> {
    #[serde(borrow)]
    node_publish_secret_ref: Option<Reference<'a>>,
}

impl Volume<'_> {
    fn visit(&self, pod: &str, found: &mut PodReferences) {
        let named = [&self.secret, &self.azure_file].into_iter().flatten();
        found.secrets.extend(named.filter_map(|volume| volume.secret_name.as_deref().map(str::to_owned)));
        let of_drivers = secrets([
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.iscsi,
            &self.rbd,
            &self.scale_io,
            &self.storageos,
        ]);
        let of_csi = self.csi.iter().filter_map(|csi| csi.node_publish_secret_ref.as_ref());
        for reference in of_drivers.chain(of_csi) {
            found.secret(reference);
        }
        if let Some(reference) = &self.config_map {
            found.config_map(reference);
        }
        for source in self.projected.iter().filter_map(|projected| projected.sources.as_ref()).flatten() {
            if let Some(reference) = &source.secret {
                found.secret(reference);
            }
            if let Some(reference) = &source.config_map {
                found.config_map(reference);
            }
        }
        if let Some(claim) = &self.persistent_volume_claim {
            found.volume_claims.extend(claim.claim_name.as_deref().map(str::to_owned));
        } else if self.ephemeral.is_some() {
            // The claim that the ephemeral-volume controller creates.
            found.volume_claims.insert(format!("{pod}-{}", self.name));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodClaim<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    resource_claim_name: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimStatus<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    resource_claim_name: Text<'a>,
}
