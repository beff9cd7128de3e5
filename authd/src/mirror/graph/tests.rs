//! Property test of the graph against a simple reference model, on random changes.

use super::*;
use auth::{MirrorPlaced, MirrorPod, MirrorVolume, Named};
use mirror_object::Kind;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The reference model: all stored objects as they were put.
#[derive(Default)]
struct ReferenceModel {
    pods: Vec<(String, String, MirrorPod)>,
    volumes: Vec<(String, MirrorVolume)>,
    attachments: Vec<(String, String)>,
    slices: Vec<(String, String)>,
}

impl ReferenceModel {
    /// Whether a path leads from the object to the node, by a scan of all stored objects.
    fn related(&self, node: &str, target: Target<'_>) -> bool {
        let on_node = self.pods.iter().filter(|(_, _, pod)| pod.node_name == node);
        let named = |kind: ReferencedKind, namespace: &str, name: &str| {
            on_node.clone().any(|(pod_namespace, _, pod)| {
                let names = match kind {
                    ReferencedKind::Secret => &pod.secrets,
                    ReferencedKind::ConfigMap => &pod.config_maps,
                    ReferencedKind::VolumeClaim => &pod.volume_claims,
                    ReferencedKind::ResourceClaim => &pod.resource_claims,
                    ReferencedKind::ServiceAccount => &vec![pod.service_account.clone()],
                };
                pod_namespace == namespace && names.iter().any(|other| other == name)
            })
        };
        let is_mounted_on_node = |volume: &MirrorVolume| {
            volume
                .claim
                .as_ref()
                .is_some_and(|claim| named(ReferencedKind::VolumeClaim, &claim.namespace, &claim.name))
        };
        let is_on_node =
            |list: &[(String, String)], name: &str| list.iter().any(|(n, on)| n == name && on == node);
        match target {
            Target::Pod(namespace, name) => {
                on_node.clone().any(|(pod_namespace, n, _)| pod_namespace == namespace && n == name)
            }
            Target::Volume(name) => {
                self.volumes.iter().any(|(n, volume)| n == name && is_mounted_on_node(volume))
            }
            Target::VolumeAttachment(name) => is_on_node(&self.attachments, name),
            Target::ResourceSlice(name) => is_on_node(&self.slices, name),
            Target::ReferencedObject(kind, namespace, name) => {
                let is_secret_of_mounted_volume = |volume: &MirrorVolume| {
                    volume.secrets.iter().any(|s| s.namespace == namespace && s.name == name)
                        && is_mounted_on_node(volume)
                };
                named(kind, namespace, name)
                    || kind == ReferencedKind::Secret
                        && self.volumes.iter().any(|(_, volume)| is_secret_of_mounted_volume(volume))
            }
        }
    }
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const NODES: [&str; 3] = ["n1", "n2", ""];

fn random_choice<'a>(random: &mut StdRng, items: &[&'a str]) -> &'a str {
    items[random.random_range(0..items.len())]
}

fn random_names(random: &mut StdRng) -> Vec<String> {
    NAMES.iter().filter(|_| random.random_bool(0.3)).map(|name| (*name).to_owned()).collect()
}

fn object(namespace: &str, name: &str, kind: Kind) -> MirrorObject {
    MirrorObject {
        namespace: namespace.into(),
        name: name.into(),
        kind: Some(kind),
        ..MirrorObject::default()
    }
}

/// Applies one random change to the graph and to the model.
fn change(random: &mut StdRng, graph: &mut Graph, model: &mut ReferenceModel) {
    let named = |namespace: &str, name: &str| Named { namespace: namespace.into(), name: name.into() };
    let (namespace, name) = (random_choice(random, &NAMES[..2]), random_choice(random, &NAMES));
    let put = random.random_bool(0.6);
    let node = random_choice(random, &NODES).to_owned();
    let mut deleted = match random.random_range(0..4) {
        0 => {
            model
                .pods
                .retain(|(pod_namespace, n, _)| (pod_namespace.as_str(), n.as_str()) != (namespace, name));
            if put {
                let service_account = random_choice(random, &["", "a", "b"]).to_owned();
                let mut pod = MirrorPod { node_name: node, ..MirrorPod::default() };
                if !pod.node_name.is_empty() {
                    pod.service_account = service_account;
                    let lists = [
                        &mut pod.secrets,
                        &mut pod.config_maps,
                        &mut pod.volume_claims,
                        &mut pod.resource_claims,
                    ];
                    lists.into_iter().for_each(|list| *list = random_names(random));
                    model.pods.push((namespace.into(), name.into(), pod.clone()));
                }
                return graph
                    .apply(super::change(&mut object(namespace, name, Kind::Pod(pod)), false).unwrap());
            }
            object(namespace, name, Kind::Pod(MirrorPod::default()))
        }
        1 => {
            model.volumes.retain(|(n, _)| n != name);
            if put {
                let claim = random.random_bool(0.8).then(|| named(namespace, random_choice(random, &NAMES)));
                let secrets = match claim {
                    Some(_) => random_names(random)
                        .iter()
                        .map(|secret| named(random_choice(random, &NAMES[..2]), secret))
                        .collect(),
                    None => Vec::new(),
                };
                let volume = MirrorVolume { claim, secrets };
                model.volumes.push((name.into(), volume.clone()));
                return graph
                    .apply(super::change(&mut object("", name, Kind::Volume(volume)), false).unwrap());
            }
            object("", name, Kind::Volume(MirrorVolume::default()))
        }
        kind => {
            let list = if kind == 2 { &mut model.attachments } else { &mut model.slices };
            list.retain(|(n, _)| n != name);
            if put {
                if !node.is_empty() {
                    list.push((name.into(), node.clone()));
                }
                let placed = MirrorPlaced { node_name: node };
                let kind =
                    if kind == 2 { Kind::VolumeAttachment(placed) } else { Kind::ResourceSlice(placed) };
                return graph.apply(super::change(&mut object("", name, kind), false).unwrap());
            }
            if kind == 2 {
                object("", name, Kind::VolumeAttachment(MirrorPlaced::default()))
            } else {
                object("", name, Kind::ResourceSlice(MirrorPlaced::default()))
            }
        }
    };
    graph.apply(super::change(&mut deleted, true).unwrap());
}

fn targets() -> Vec<Target<'static>> {
    let mut all = Vec::new();
    for name in NAMES {
        for namespace in &NAMES[..2] {
            all.push(Target::Pod(namespace, name));
            for kind in [
                ReferencedKind::Secret,
                ReferencedKind::ConfigMap,
                ReferencedKind::VolumeClaim,
                ReferencedKind::ResourceClaim,
                ReferencedKind::ServiceAccount,
            ] {
                all.push(Target::ReferencedObject(kind, namespace, name));
            }
        }
        all.extend([Target::Volume(name), Target::VolumeAttachment(name), Target::ResourceSlice(name)]);
    }
    all
}

#[test]
fn graph_agrees_with_reference_model_on_random_changes() {
    let targets = targets();
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut graph, mut model) = (Graph::default(), ReferenceModel::default());
        let mut related = 0;
        for step in 0..150 {
            change(&mut random, &mut graph, &mut model);
            for node in ["n1", "n2", "n3"] {
                for target in &targets {
                    let found = graph.look_up(node, *target);
                    let expected = model.related(node, *target);
                    assert_eq!(found.related, expected, "seed {seed}, step {step}: {node} {target:?}");
                    related += u32::from(expected);
                }
            }
        }
        assert!(related > 500, "seed {seed}: too few related objects");
        for name in NAMES {
            let deleted = [
                object("a", name, Kind::Pod(MirrorPod::default())),
                object("b", name, Kind::Pod(MirrorPod::default())),
                object("", name, Kind::Volume(MirrorVolume::default())),
                object("", name, Kind::VolumeAttachment(MirrorPlaced::default())),
                object("", name, Kind::ResourceSlice(MirrorPlaced::default())),
            ];
            deleted.into_iter().for_each(|mut object| graph.apply(super::change(&mut object, true).unwrap()));
        }
        let left = (
            graph.strings.len(),
            graph.nodes.len(),
            graph.volumes_by_claim.len(),
            graph.volume_secrets.len(),
        );
        assert_eq!((left, graph.is_empty()), ((0, 0, 0, 0), true), "seed {seed}");
    }
}

/// Property test: a change of volumes alters only results that report a dependency on volumes.
#[test]
fn volume_change_alters_only_volume_dependent_results() {
    let targets = targets();
    for seed in 100..120 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut graph, mut model) = (Graph::default(), ReferenceModel::default());
        for _ in 0..200 {
            let before: Vec<LookupResult> =
                targets.iter().map(|target| graph.look_up("n1", *target)).collect();
            let volumes = model.volumes.clone();
            let others = (model.pods.clone(), model.attachments.clone(), model.slices.clone());
            change(&mut random, &mut graph, &mut model);
            let only_volumes =
                others == (model.pods.clone(), model.attachments.clone(), model.slices.clone());
            for (target, before) in targets.iter().zip(before) {
                let changed = graph.look_up("n1", *target).related != before.related;
                let depends_on_volumes = before.depends_on_volumes && volumes != model.volumes;
                assert!(!changed || !only_volumes || depends_on_volumes, "seed {seed}: {target:?}");
            }
        }
    }
}

#[test]
fn graph_counts_pods_that_reference_object() {
    let mut graph = Graph::default();
    let pod = |node: &str| {
        Kind::Pod(MirrorPod {
            node_name: node.into(),
            config_maps: vec!["ca".into()],
            ..MirrorPod::default()
        })
    };
    for i in 0..1_000 {
        graph.apply(
            super::change(&mut object("a", &format!("p{i}"), pod(&format!("n{}", i % 10))), false).unwrap(),
        );
    }
    let ca = Target::ReferencedObject(ReferencedKind::ConfigMap, "a", "ca");
    assert!(graph.look_up("n3", ca).related);
    for i in (3..1_000).step_by(10) {
        assert!(graph.look_up("n3", ca).related, "before pod {i} goes");
        graph.apply(super::change(&mut object("a", &format!("p{i}"), pod("")), true).unwrap());
    }
    assert!(!graph.look_up("n3", ca).related && graph.look_up("n4", ca).related);
    assert_eq!(graph.len(), 900);
}
