//! The reduction of pods: the node of a pod, and the objects that the node must read to run it.
//!
//! # Reference
//!
//! The references are those that the Node authorizer of Kubernetes 1.33 follows. The reduction of a mirror
//! pod, which a node creates itself, has no references, so a node cannot grant itself rights with such a pod.

use std::borrow::Cow;
use std::collections::BTreeSet;

use authproto::auth::{MirrorObject, MirrorPod, mirror_object::Kind};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::PolicyNames;
use super::meta::{Meta, StringMap};
use super::references::{DriverSource, Reference, driver_secret_references};

/// A pod whose spec has not been parsed.
#[derive(Deserialize)]
struct UnparsedPod<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<PodStatus<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus<'a> {
    #[serde(borrow)]
    resource_claim_statuses: Option<&'a RawValue>,
}

impl UnparsedPod<'_> {
    /// Whether all policy-relevant fields have the same bytes.
    fn is_certainly_equal(&self, other: &UnparsedPod<'_>, policy_names: &PolicyNames) -> bool {
        fn claim_statuses<'p>(pod: &'p UnparsedPod<'_>) -> Option<&'p str> {
            pod.status.as_ref()?.resource_claim_statuses.map(RawValue::get)
        }
        self.metadata.uid == other.metadata.uid
            && self.metadata.deletion_timestamp == other.metadata.deletion_timestamp
            && self.spec.map(RawValue::get) == other.spec.map(RawValue::get)
            && claim_statuses(self) == claim_statuses(other)
            && self.metadata.is_annotated(&policy_names.mirror)
                == other.metadata.is_annotated(&policy_names.mirror)
    }
}

/// Returns true only if the reductions of two versions of a pod are equal. Otherwise the caller compares the
/// reductions.
///
/// Most writes of pods do not change the reduction, and this comparison costs much less than two reductions.
pub(super) fn is_certainly_equal(old: &[u8], new: &[u8], policy_names: &PolicyNames) -> bool {
    let parse = |bytes| serde_json::from_slice::<UnparsedPod<'_>>(bytes).ok();
    let (old, new): (Option<UnparsedPod<'_>>, Option<UnparsedPod<'_>>) = (parse(old), parse(new));
    old.zip(new).is_some_and(|(old, new)| old.is_certainly_equal(&new, policy_names))
}

/// Reduces a pod to its node, its service account and the objects that it references.
pub(super) fn pod(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let UnparsedPod { metadata, spec, status } = serde_json::from_slice(bytes).ok()?;
    let spec: PodSpec<'_> = match spec {
        Some(text) => serde_json::from_str(text.get()).ok()?,
        None => PodSpec::default(),
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
    Some(metadata.object(StringMap::new(), StringMap::new(), Kind::Pod(pod)))
}

/// Sets the references of a pod: the names of the objects that its node must read.
fn collect_references(pod: &mut MirrorPod, name: &str, spec: &PodSpec<'_>, statuses: &[ClaimStatus<'_>]) {
    let mut references = PodReferences::default();
    for reference in spec.image_pull_secrets.iter().flatten() {
        references.add_secret(reference);
    }
    for container in
        [&spec.init_containers, &spec.containers, &spec.ephemeral_containers].into_iter().flatten().flatten()
    {
        container.collect_references(&mut references);
    }
    for volume in spec.volumes.iter().flatten() {
        volume.collect_references(name, &mut references);
    }
    for claim in spec.resource_claims.iter().flatten() {
        // The status contains the name of a claim generated from a ResourceClaimTemplate.
        let generated_name = || {
            let status = statuses.iter().find(|status| status.name == claim.name)?;
            status.resource_claim_name.as_deref()
        };
        references
            .resource_claims
            .extend(claim.resource_claim_name.as_deref().or_else(generated_name).map(str::to_owned));
    }
    let non_empty = |names: BTreeSet<String>| names.into_iter().filter(|name| !name.is_empty()).collect();
    pod.service_account = spec.service_account_name.as_deref().unwrap_or_default().to_owned();
    pod.secrets = non_empty(references.secrets);
    pod.config_maps = non_empty(references.config_maps);
    pod.volume_claims = non_empty(references.volume_claims);
    pod.resource_claims = non_empty(references.resource_claims);
}

#[derive(Default)]
struct PodReferences {
    secrets: BTreeSet<String>,
    config_maps: BTreeSet<String>,
    volume_claims: BTreeSet<String>,
    resource_claims: BTreeSet<String>,
}

impl PodReferences {
    fn add_secret(&mut self, reference: &Reference) {
        self.secrets.extend(reference.name.clone());
    }

    fn add_config_map(&mut self, reference: &Reference) {
        self.config_maps.extend(reference.name.clone());
    }

    fn add_source(&mut self, source: &Source) {
        source.secret_ref.iter().for_each(|reference| self.add_secret(reference));
        source.config_map_ref.iter().for_each(|reference| self.add_config_map(reference));
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec<'a> {
    node_name: Option<String>,
    service_account_name: Option<String>,
    image_pull_secrets: Option<Vec<Reference>>,
    init_containers: Option<Vec<Container>>,
    containers: Option<Vec<Container>>,
    ephemeral_containers: Option<Vec<Container>>,
    #[serde(borrow)]
    volumes: Option<Vec<PodVolume<'a>>>,
    #[serde(borrow)]
    resource_claims: Option<Vec<PodClaim<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    env: Option<Vec<Variable>>,
    env_from: Option<Vec<Source>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable {
    value_from: Option<Source>,
}

/// The source of environment variables, or of files in a projected volume.
///
/// `valueFrom` uses one key of an object, `envFrom` and a projected volume use several keys.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Source {
    #[serde(alias = "secretKeyRef", alias = "secret")]
    secret_ref: Option<Reference>,
    #[serde(alias = "configMapKeyRef", alias = "configMap")]
    config_map_ref: Option<Reference>,
}

impl Container {
    fn collect_references(&self, references: &mut PodReferences) {
        let variable_sources = self.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
        for source in variable_sources.chain(self.env_from.iter().flatten()) {
            references.add_source(source);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodVolume<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    secret: Option<SecretVolume>,
    azure_file: Option<SecretVolume>,
    config_map: Option<Reference>,
    persistent_volume_claim: Option<VolumeClaimSource>,
    ephemeral: Option<serde::de::IgnoredAny>,
    projected: Option<Projected>,
    csi: Option<EphemeralCsi>,
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
struct SecretVolume {
    secret_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeClaimSource {
    claim_name: Option<String>,
}

#[derive(Deserialize)]
struct Projected {
    sources: Option<Vec<Source>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EphemeralCsi {
    node_publish_secret_ref: Option<Reference>,
}

impl PodVolume<'_> {
    fn collect_references(&self, pod: &str, references: &mut PodReferences) {
        let secret_volumes = [&self.secret, &self.azure_file].into_iter().flatten();
        references.secrets.extend(secret_volumes.filter_map(|volume| volume.secret_name.clone()));
        let driver_secrets = driver_secret_references([
            &self.cephfs,
            &self.cinder,
            &self.flex_volume,
            &self.iscsi,
            &self.rbd,
            &self.scale_io,
            &self.storageos,
        ]);
        let csi_secret = self.csi.iter().filter_map(|csi| csi.node_publish_secret_ref.as_ref());
        for reference in driver_secrets.chain(csi_secret) {
            references.add_secret(reference);
        }
        if let Some(reference) = &self.config_map {
            references.add_config_map(reference);
        }
        for source in self.projected.iter().filter_map(|projected| projected.sources.as_ref()).flatten() {
            references.add_source(source);
        }
        if let Some(claim) = &self.persistent_volume_claim {
            references.volume_claims.extend(claim.claim_name.clone());
        } else if self.ephemeral.is_some() {
            // The name of the claim that the ephemeral-volume controller creates.
            references.volume_claims.insert(format!("{pod}-{}", self.name));
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodClaim<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    resource_claim_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimStatus<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    resource_claim_name: Option<String>,
}
