//! `kubectl describe` of resource quotas and limit ranges.

use serde_json::json;
use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_describes_quotas_and_limits() {
    with_each_release(describe_quotas_and_limits).await;
}

/// The lines of a description, with each run of blanks replaced by one blank.
fn lines(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Repeats a command until its output contains the line.
fn wait_for_line(kubectl: &Kubectl, command: &str, line: &str) -> Vec<String> {
    for _ in 0..200 {
        let lines = lines(&kubectl.ok(command, ""));
        if lines.iter().any(|have| have == line) {
            return lines;
        }
    }
    panic!("`{command}` never printed `{line}`");
}

fn describe_quotas_and_limits(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok("create namespace team", "");
    kubectl.ok("create quota q -n team --hard=pods=2,requests.memory=1Gi,count/deployments.apps=3", "");
    let limits = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "team"},
        "spec": {"limits": [
            {"type": "Container", "max": {"memory": "512Mi"}, "min": {"cpu": "10m"}, "maxLimitRequestRatio": {"memory": "4"}},
            {"type": "Pod", "max": {"memory": "1Gi"}},
        ]},
    });
    kubectl.ok("create -f -", &limits.to_string());

    wait_for_line(kubectl, "describe quota q -n team", "pods 0 2");
    kubectl.ok("create deployment web -n team --image=a:1", "");
    kubectl.ok("run one -n team --image=a:1", "");
    let description = wait_for_line(kubectl, "describe quota q -n team", "requests.memory 512Mi 1Gi");
    for line in ["Name: q", "Namespace: team", "Resource Used Hard", "count/deployments.apps 1 3", "pods 1 2"]
    {
        assert!(description.iter().any(|have| have == line), "`{line}` in {description:#?}");
    }
    let rejected = kubectl.must_fail("run two -n team --image=a:1 --overrides={\"spec\":{\"containers\":[{\"name\":\"two\",\"image\":\"a:1\",\"resources\":{\"limits\":{\"memory\":\"1Gi\"}}}]}}");
    assert!(rejected.contains("maximum memory usage per Container is 512Mi, but limit is 1Gi"), "{rejected}");
    kubectl.ok("run two -n team --image=a:1", "");
    let rejected = kubectl.must_fail("run three -n team --image=a:1");
    let full = "pods \"three\" is forbidden: exceeded quota: q, requested: pods=1,requests.memory=512Mi, used: pods=2,requests.memory=1Gi, limited: pods=2,requests.memory=1Gi";
    assert!(rejected.contains(full), "{rejected}");
    kubectl.ok("delete pod two -n team --now", "");
    wait_for_line(kubectl, "describe quota q -n team", "pods 1 2");

    let description = lines(&kubectl.ok("describe limits l -n team", ""));
    for line in [
        "Type Resource Min Max Default Request Default Limit Max Limit/Request Ratio",
        "Container memory - 512Mi 512Mi 512Mi 4",
        "Container cpu 10m - 10m - -",
        "Pod memory - 1Gi - - -",
    ] {
        assert!(description.iter().any(|have| have == line), "`{line}` in {description:#?}");
    }
    let description = lines(&kubectl.ok("describe namespace team", ""));
    assert!(
        description.iter().any(|line| line == "Resource Quotas")
            && description.iter().any(|line| line == "Resource Limits")
    );
}
