//! The two built-in priority classes of critical system pods.

use serde_json::json;

use super::StartObject;

/// Value of `system-cluster-critical`, above the maximum value of user-defined priority classes.
const CRITICAL: i64 = 2_000_000_000;

/// Returns both priority classes.
pub(super) fn all() -> Vec<StartObject> {
    let class = |name: &str, value: i64, description: &str| {
        StartObject::new(
            "scheduling",
            "PriorityClass",
            json!({
                "metadata": {"name": name},
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            }),
        )
    };
    vec![
        class(
            "system-node-critical",
            CRITICAL + 1_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
        class(
            "system-cluster-critical",
            CRITICAL,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
    ]
}
