//! Definitions and their objects: one file with both, columns, editing, scaling, explanation and deletion.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

const SHOPS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.shop.example.com}
spec:
  group: shop.example.com
  scope: Namespaced
  names: {plural: shops, kind: Shop, shortNames: [sp], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        description: A place where things are on sale.
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, minimum: 0, description: Number of shelves.}
              color: {type: string, default: red}
          status:
            type: object
            properties:
              size: {type: integer}
              selector: {type: string}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color, priority: 1}
---
apiVersion: shop.example.com/v1
kind: Shop
metadata: {name: corner, namespace: default}
spec: {size: 3}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_a_definition_and_its_objects() {
    with_each_release(definition_and_objects).await;
}

/// Repeats a command until its output is accepted.
fn repeat(
    kubectl: &Kubectl,
    line: &str,
    stdin: &str,
    is_accepted: fn(&super::CommandResult) -> bool,
) -> String {
    let start = Instant::now();
    loop {
        let ran = kubectl.run(line, stdin);
        if is_accepted(&ran) {
            return ran.out;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "timed out waiting for {ran}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn definition_and_objects(_: &ControlPlane, kubectl: &Kubectl) {
    // kubectl resolves all kinds of a file before it creates the first object, so that the first run can fail.
    let applied = repeat(kubectl, "apply -f -", SHOPS, |ran| ran.status.success());
    assert!(applied.contains("shop.shop.example.com/corner created"), "{applied}");
    let words =
        |line: &str| -> Vec<String> { kubectl.ok(line, "").split_whitespace().map(str::to_owned).collect() };
    assert_eq!(words("get sp -n default"), ["NAME", "SIZE", "corner", "3"]);
    assert_eq!(words("get shops -n default -o wide"), ["NAME", "SIZE", "COLOR", "corner", "3", "red"]);
    assert!(kubectl.ok("get all -n default", "").contains("shop.shop.example.com/corner"));
    let invalid = SHOPS.replace("spec: {size: 3}", "spec: {size: -1}");
    assert!(kubectl.must_fail_with_stdin("apply -f -", &invalid).contains("spec.size"));
    let unknown = SHOPS.replace("spec: {size: 3}", "spec: {size: 3, shelves: 4}");
    assert!(kubectl.must_fail_with_stdin("apply -f -", &unknown).contains("unknown field \"spec.shelves\""));

    // An editor that adds a status and an ignored change of the spec.
    let editor =
        "sed -i -e 's/^spec:/status: {size: 2, selector: app=shop}\\nspec:/' -e 's/size: 3/size: 9/'";
    kubectl.edit("edit shop corner -n default --subresource=status", editor);
    let shop = || -> Value {
        serde_json::from_str(&kubectl.ok("get shop corner -n default -o json", "")).expect("JSON")
    };
    assert_eq!(shop()["status"], json!({"size": 2, "selector": "app=shop"}));
    assert_eq!(shop()["spec"], json!({"size": 3, "color": "red"}));
    assert_eq!(
        kubectl.ok("scale shop/corner -n default --replicas=5", ""),
        "shop.shop.example.com/corner scaled\n"
    );
    assert_eq!((&shop()["spec"]["size"], &shop()["metadata"]["generation"]), (&json!(5), &json!(2)));

    let explained = kubectl.ok("explain shop.spec", "");
    assert!(explained.contains("Number of shelves.") && explained.contains("size"), "{explained}");
    assert!(kubectl.ok("explain shop", "").contains("A place where things are on sale."));

    kubectl.ok("delete crd shops.shop.example.com", "");
    // kubectl keeps discovery documents for hours: it may know the resource and get 404.
    let is_not_found = |ran: &super::CommandResult| {
        ran.err.contains("the server doesn't have a resource type \"shops\"")
            || ran.err.contains("(NotFound)")
    };
    repeat(kubectl, "get shops -n default", "", is_not_found);
}
