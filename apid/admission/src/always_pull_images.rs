//! AlwaysPullImages: sets the image pull policy of every container and image volume to `Always`.
//! A user without credentials for an image then cannot run it from the image cache of a node.
//!
//! # Reference
//!
//! The plugin ignores updates without a new container image, so pods that were created before the plugin was
//! enabled keep their pull policy.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use crate::tree::{items_at, text};
use crate::{Attributes, Interest, Operation, Plugin, pod_containers};

const ALWAYS: &str = "Always";

pub(crate) struct AlwaysPullImages;

impl Plugin for AlwaysPullImages {
    const INTEREST: Interest = Interest::PODS;

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        if let Some(pod) = object
            && has_new_images(attributes, pod)
        {
            for list in pod_containers::LISTS {
                for container in pod_containers::items_mut(pod, list).filter_map(Value::as_object_mut) {
                    container.insert("imagePullPolicy".to_owned(), ALWAYS.into());
                }
            }
            for volume in pod_containers::items_mut(pod, "volumes") {
                if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
                    image.insert("pullPolicy".to_owned(), ALWAYS.into());
                }
            }
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let error = object.filter(|pod| has_new_images(attributes, pod)).and_then(wrong_pull_policy);
        error.map_or(Ok(()), |error| Err(attributes.forbidden(&error.to_string())))
    }
}

/// Whether the write creates the pod, or adds a container image that the stored pod does not have.
fn has_new_images(attributes: &Attributes<'_>, pod: &Object) -> bool {
    let Some(old) = attributes.old.filter(|_| attributes.operation == Operation::Update) else { return true };
    let old: HashSet<&str> = images(old).collect();
    images(pod).any(|image| !old.contains(image))
}

fn images(pod: &Object) -> impl Iterator<Item = &str> {
    pod_containers::all_containers(pod).map(|(_, _, container)| text(container, "image"))
}

/// Returns an error for the first pull policy other than `Always`; a later plugin or a webhook has set it.
fn wrong_pull_policy(pod: &Object) -> Option<FieldError> {
    let spec = FieldPath::new("spec");
    let unsupported_policy =
        |path: &FieldPath, policy: &str| FieldError::not_supported(path, policy, &[ALWAYS]);
    let container = pod_containers::all_containers(pod).find_map(|(list, i, container)| {
        let policy = text(container, "imagePullPolicy");
        let path = || spec.child(list).index(i).child("imagePullPolicy");
        (policy != ALWAYS).then(|| unsupported_policy(&path(), policy))
    });
    container.or_else(|| {
        items_at(pod, &["spec", "volumes"]).iter().enumerate().find_map(|(i, volume)| {
            let policy = text(volume.get("image").filter(|image| !image.is_null())?, "pullPolicy");
            let path = || spec.child("volumes").index(i).child("image").child("pullPolicy");
            (policy != ALWAYS).then(|| unsupported_policy(&path(), policy))
        })
    })
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn new_images_get_pull_policy_always() {
        let fake = Fake::new(Preset::Kubernetes);
        let pod = |image: &str, policy: &str| {
            json!({"metadata": {"name": "p"}, "spec": {
                "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}],
                "initContainers": [{"name": "i", "image": "a"}],
                "volumes": [{"name": "v", "image": {"reference": "r", "pullPolicy": policy}}, {"name": "e", "emptyDir": {}}],
            }})
        };
        let update =
            |old| TestedWrite { operation: Operation::Update, old: Some(old), ..TestedWrite::default() };
        for (write, image, policy) in [
            (TestedWrite::default(), "a", ALWAYS),
            (update(pod("a", "Never")), "a", "Never"),
            (update(pod("a", "Never")), "b", ALWAYS),
        ] {
            let answer = fake.run_plugin(&AlwaysPullImages, write, pod(image, "Never")).await;
            assert!(answer.result.is_ok());
            let spec = &answer.object["spec"];
            assert_eq!(spec["containers"][0]["imagePullPolicy"], policy);
            assert_eq!(spec["volumes"][0]["image"]["pullPolicy"], policy);
            assert_eq!(spec["volumes"][1], json!({"name": "e", "emptyDir": {}}));
            let all = spec["initContainers"][0].get("imagePullPolicy").is_some();
            assert_eq!(all, policy == ALWAYS);
        }
    }

    #[test]
    fn changed_pull_policy_is_rejected_in_validation() {
        let find = |spec: Value| {
            let pod = Object::from_value(json!({ "spec": spec })).unwrap();
            wrong_pull_policy(&pod).map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(find(json!({"containers": [{"imagePullPolicy": "Always"}]})), "");
        assert_eq!(
            find(json!({"containers": [{"imagePullPolicy": "Always"}, {"imagePullPolicy": "Never"}]})),
            "spec.containers[1].imagePullPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        );
        assert!(find(json!({"volumes": [{"image": {}}]})).starts_with("spec.volumes[0].image.pullPolicy"));
    }
}
