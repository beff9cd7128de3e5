//! LimitPodHardAntiAffinityTopology: rejects required pod anti-affinity with a topology key other than
//! the hostname.

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::tree::{items_at, text};
use crate::{Attributes, Interest, Plugin};

pub(crate) struct LimitPodHardAntiAffinityTopology;

impl Plugin for LimitPodHardAntiAffinityTopology {
    const INTEREST: Interest = Interest::PODS;

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let path = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = object.map_or(&[][..], |pod| items_at(pod, &path));
        let mut keys = terms.iter().map(|term| text(term, "topologyKey"));
        let hostname_key = attributes.environment.names.label_key("hostname");
        match keys.find(|key| *key != hostname_key) {
            Some(key) => Err(attributes.forbidden(&format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {hostname_key} is \
                 allowed"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn required_anti_affinity_allows_hostname_topology_only() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = LimitPodHardAntiAffinityTopology;
        let terms = |keys: &[&str]| {
            Value::from(keys.iter().map(|key| json!({ "topologyKey": key })).collect::<Vec<_>>())
        };
        let (host, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
        for (affinity, refused) in [
            (Value::Null, ""),
            (json!({"podAntiAffinity": {}}), ""),
            (
                json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms(&[host, host])}}),
                "",
            ),
            (
                json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms(&[host, zone])}}),
                "pods \"p\" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey topology.kubernetes.io/zone but only key kubernetes.io/hostname is allowed",
            ),
            (json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms(&[zone])}}), ""),
            (
                json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms(&[zone])}}),
                "",
            ),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"affinity": affinity}});
            assert_eq!(fake.run_plugin(&plugin, TestedWrite::default(), pod).await.message(), refused);
        }
    }
}
