//! ExtendedResourceToleration: adds tolerations for requested extended resources.
//! Nodes with devices have a taint whose key is the name of the extended resource.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::resource_name::is_extended;
use serde_json::json;

use crate::{Attributes, Interest, Plugin, pod_containers, tolerations};

pub(crate) struct ExtendedResourceToleration;

/// The extended resources that init containers and regular containers request.
fn requested_resources(pod: &Object, names: &Names) -> BTreeSet<String> {
    let requests = pod_containers::all_containers(pod)
        .filter(|(list, ..)| *list != pod_containers::EPHEMERAL_CONTAINERS)
        .filter_map(|(.., container)| container.get("resources")?.get("requests")?.as_object());
    let resources = requests.flatten().map(|(name, _)| name);
    resources.filter(|name| is_extended(name, names)).cloned().collect()
}

impl Plugin for ExtendedResourceToleration {
    const INTEREST: Interest = Interest::PODS;

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        for resource in requested_resources(pod, &attributes.environment.names) {
            let new_toleration = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
            let current = tolerations::pod_tolerations(pod);
            if !current.iter().any(|toleration| tolerations::equal(toleration, &new_toleration)) {
                let all_tolerations = current.iter().cloned().chain([new_toleration]).collect();
                tolerations::set(pod, all_tolerations);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::Value;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn extended_resource_requests_add_tolerations() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = ExtendedResourceToleration;
        let asks = |names: &[&str]| {
            let requests: Value = names.iter().map(|name| ((*name).to_owned(), json!("1"))).collect();
            json!({"name": "c", "resources": {"requests": requests}})
        };
        let tolerates = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"});
        let other = json!({"key": "x", "operator": "Exists"});
        for (spec, expected) in [
            (json!({"containers": [asks(&["cpu", "hugepages-2Mi"])]}), Value::Null),
            (json!({"containers": [asks(&["kubernetes.io/x", "requests.example.com/x"])]}), Value::Null),
            (
                json!({"containers": [asks(&["z.com/gpu", "a.com/tpu"])], "initContainers": [asks(&["m.com/x"])]}),
                json!([tolerates("a.com/tpu"), tolerates("m.com/x"), tolerates("z.com/gpu")]),
            ),
            (
                json!({"containers": [asks(&["z.com/gpu"])], "tolerations": [tolerates("z.com/gpu"), other]}),
                json!([tolerates("z.com/gpu"), other]),
            ),
            (
                json!({"containers": [asks(&["z.com/gpu"])], "tolerations": [other]}),
                json!([other, tolerates("z.com/gpu")]),
            ),
            (json!({"ephemeralContainers": [asks(&["z.com/gpu"])]}), Value::Null),
        ] {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let answer = fake.run_plugin(&plugin, TestedWrite::default(), pod).await;
            let present = answer.object["spec"].get("tolerations").cloned().unwrap_or_default();
            assert_eq!(present, expected, "{spec}");
        }
    }
}
