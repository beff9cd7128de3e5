//! `kubectl scale` of an object of a cluster-scoped custom kind.

use serde_json::Value;
use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

const FLEETS: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fleets.shop.example.com}
spec:
  group: shop.example.com
  scope: Cluster
  names: {plural: fleets, kind: Fleet}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              cars: {type: integer, minimum: 0}
          status:
            type: object
            properties:
              cars: {type: integer}
              selector: {type: string}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.cars, statusReplicasPath: .status.cars, labelSelectorPath: .status.selector}
";

const FLEET: &str = r"
apiVersion: shop.example.com/v1
kind: Fleet
metadata: {name: north}
spec: {cars: 1}
";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scales_cluster_scoped_custom_kind() {
    with_each_release(scale_fleet).await;
}

fn scale_fleet(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok("create -f -", FLEETS);
    kubectl.ok("wait --for=condition=Established customresourcedefinition/fleets.shop.example.com", "");
    kubectl.ok("create -f -", FLEET);
    let cars = || kubectl.ok("get fleet north -o jsonpath={.spec.cars}", "");
    assert_eq!(kubectl.ok("scale fleet north --replicas=4", ""), "fleet.shop.example.com/north scaled\n");
    assert_eq!(cars(), "4");
    // With a condition, kubectl reads the scale and replaces it.
    kubectl.ok("scale fleet north --current-replicas=4 --replicas=7", "");
    assert_eq!(cars(), "7");
    let wrong = kubectl.must_fail("scale fleet north --current-replicas=4 --replicas=9");
    assert!(wrong.contains("Expected replicas to be 4"), "{wrong}");
    kubectl.ok("patch fleet north --type=merge --subresource=scale -p {\"spec\":{\"replicas\":2}}", "");
    let scale: Value =
        serde_json::from_str(&kubectl.ok("get fleet north --subresource=scale -o json", "")).expect("JSON");
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&"Scale".into(), &2.into()));
    assert!(scale["metadata"].get("namespace").is_none(), "{scale}");
    assert_eq!(cars(), "2");
}
