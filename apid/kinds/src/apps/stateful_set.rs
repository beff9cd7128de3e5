//! StatefulSet: replicas with stable names and their own volumes.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::stateful_set_rules as rules;
use crate::defaults::{fill, fill_text, map_or_insert, maps_in_list, part};
use crate::pods;
use crate::table::workload::{CONTAINERS, IMAGES, containers, ready};
use crate::table::{AGE, NAME};
use crate::validation::Field;
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, NameRule, Revalidation, Strategy, Subresource,
    WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["sts"],
    categories: &["all"],
    subresources: &[Subresource::scale(), Subresource::status("StatefulSet")],
    rules: WriteRules {
        name_rule: NameRule::Label,
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("Ready", "Ready pods and desired pods."), AGE, CONTAINERS, IMAGES],
    cells: |object, _| {
        let [containers, images] = containers(object, "spec.template");
        vec![ready(object), containers, images]
    },
    strategy: &StatefulSet,
    ..BuiltInKind::namespaced("apps/v1.StatefulSet", "statefulsets")
};

struct StatefulSet;

impl Strategy for StatefulSet {
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings = pods::warnings::template(new, old, "spec.template", ctx.names);
        if !ctx.subresource.is_empty() {
            return warnings;
        }
        let spec = Field::new(new.get("spec"), "spec");
        for claim in spec.child("volumeClaimTemplates").items() {
            // kube-apiserver omits `spec` from these paths.
            let claim_spec = claim.child("spec");
            pods::warnings::claim_spec(&claim.with_value(claim_spec.value()), &mut warnings);
        }
        let limit = spec.child("revisionHistoryLimit");
        if limit.integer().is_some_and(|limit| limit < 0) {
            let path = limit.path();
            let text = "a negative value retains all historical revisions; a value >= 0 is recommended";
            warnings.push(format!("{path}: {text}"));
        }
        warnings
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "replicas", 1);
        fill(spec, "revisionHistoryLimit", 10);
        fill_text(spec, "podManagementPolicy", "OrderedReady");
        if let Some(strategy) = map_or_insert(spec, "updateStrategy") {
            if strategy.get("type").and_then(Value::as_str).unwrap_or("").is_empty() {
                fill_text(strategy, "type", "RollingUpdate");
                map_or_insert(strategy, "rollingUpdate");
            }
            if let Some(Value::Object(rolling)) = strategy.get_mut("rollingUpdate") {
                fill(rolling, "partition", 0);
            }
        }
        if let Some(retention) = map_or_insert(spec, "persistentVolumeClaimRetentionPolicy") {
            fill_text(retention, "whenDeleted", "Retain");
            fill_text(retention, "whenScaled", "Retain");
        }
        for claim in maps_in_list(spec, "volumeClaimTemplates") {
            claim.insert("apiVersion".to_owned(), json!("v1"));
            claim.insert("kind".to_owned(), json!("PersistentVolumeClaim"));
            if let Some(spec) = map_or_insert(claim, "spec") {
                fill_text(spec, "volumeMode", "Filesystem");
            }
            if let Some(status) = map_or_insert(claim, "status") {
                fill_text(status, "phase", "Pending");
            }
        }
        pods::defaults::template(object, "spec.template", ctx.names);
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        remove_disabled(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, ctx: &Context<'_>) {
        if ctx.subresource.is_empty() {
            remove_disabled(new);
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" {
            rules::validate_status(new)
        } else {
            rules::validate_update(new, old)
        }
    }
}

/// Removes `maxUnavailable`: its feature gate MaxUnavailableStatefulSet is off by default.
fn remove_disabled(object: &mut Object) {
    let rolling = part(object, "spec")
        .and_then(|spec| spec.get_mut("updateStrategy"))
        .and_then(|strategy| strategy.get_mut("rollingUpdate"));
    if let Some(Value::Object(rolling)) = rolling {
        rolling.remove("maxUnavailable");
    }
}
