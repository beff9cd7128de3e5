//! Facts about the process as metrics: build, feature gates, and the numbers of its metrics.

use std::sync::Arc;

use serving::build::BuildInfo;
use serving::gates::{FeatureGates, Stage};
use serving::metrics::{Definition, Metrics, Stability, raise};

use super::{Labels, alpha};
use discovery::RELEASE;

const BUILD: Definition = alpha(
    "kubernetes_build_info",
    "Build of the server (value 1), by version, commit, date, compiler and platform",
);
const FEATURES: Definition = Definition::new(
    "kubernetes_feature_enabled",
    Stability::Beta,
    "State of a feature gate (1 on, 0 off), by name and stage",
);
const REGISTERED: Definition = Definition::new(
    "registered_metrics_total",
    Stability::Beta,
    "Number of declared metrics, by stability and deprecated version",
);
const HIDDEN: Definition = Definition::new(
    "hidden_metrics_total",
    Stability::Beta,
    "Number of metrics that are exported only on request",
);
const DISABLED: Definition =
    Definition::new("disabled_metrics_total", Stability::Beta, "Number of metrics disabled by a flag");

/// Registers the metrics of this file. The label `go_version` is empty, because the server is not built with Go.
pub(super) fn register(metrics: &Arc<Metrics>, gates: &FeatureGates, build: &BuildInfo) {
    let (minor, platform) = (serving::compatibility::CURRENT.to_string(), build.platform());
    let labels: Labels = [
        ("major", "1"),
        ("minor", minor.as_str()),
        ("git_version", RELEASE),
        ("git_commit", build.commit_id()),
        ("git_tree_state", build.tree_state()),
        ("build_date", build.date().as_str()),
        ("go_version", ""),
        ("compiler", build.compiler),
        ("platform", platform.as_str()),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    metrics.gauge(&BUILD).get_or_create(&labels).set(1);
    let features = metrics.gauge::<Labels>(&FEATURES);
    for (gate, milestone, is_on) in gates.iter() {
        // The reference shows the stage of stable features as empty text.
        let stage = if milestone.stage == Stage::Stable { "" } else { milestone.stage.as_str() };
        let labels = vec![("name", gate.name.to_owned()), ("stage", stage.to_owned())];
        features.get_or_create(&labels).set(i64::from(is_on));
    }
    register_metric_counts(metrics);
}

/// Registers the numbers of declared and hidden metrics.
fn register_metric_counts(metrics: &Arc<Metrics>) {
    let registered = metrics.counter::<Labels>(&REGISTERED);
    let hidden = metrics.single_counter(&HIDDEN);
    metrics.single_counter(&DISABLED);
    let weak_metrics = Arc::downgrade(metrics);
    metrics.collect_with(move || {
        let Some(metrics) = weak_metrics.upgrade() else { return };
        let declared = metrics.declared();
        raise(&hidden, declared.iter().filter(|family| family.is_hidden()).count() as u64);
        for stability in [Stability::Alpha, Stability::Beta, Stability::Stable] {
            let families = declared.iter().filter(|family| family.stability == stability);
            let mut versions: Vec<Option<u32>> = families.map(|family| family.deprecated).collect();
            versions.sort_unstable();
            for group in versions.chunk_by(|a, b| a == b) {
                let deprecated = group.first().copied().flatten();
                let labels = vec![
                    ("stability_level", stability.as_str().to_owned()),
                    ("deprecated_version", deprecated.map_or_else(String::new, |minor| format!("1.{minor}"))),
                ];
                raise(&registered.get_or_create(&labels).clone(), group.len() as u64);
            }
        }
    });
}
