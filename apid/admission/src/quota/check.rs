//! Computes quota charges of a write and checks the quota limits. This module has no side effects.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::Resource;

use super::limited::LimitedResource;
use super::measure::{MeasuredObject, Rule, Scopes, counts_resource, missing_resources, rule};
use crate::quantity::{Amounts, Quantity, amounts, text};

/// A write with its resource usage.
pub(super) struct Request<'a> {
    pub(super) resource: &'a Resource,
    pub(super) names: &'a Names,
    pub(super) object: &'a Object,
    /// Measured object after the write.
    pub(super) measured: MeasuredObject,
    /// Usage of the object after the write.
    pub(super) uses: Amounts,
    /// Increase of the usage by the write.
    pub(super) more: Amounts,
}

impl<'a> Request<'a> {
    pub(super) fn new(
        resource: &'a Resource,
        names: &'a Names,
        object: &'a Object,
        old: Option<&Object>,
        now: jiff::Timestamp,
    ) -> Self {
        let measured = MeasuredObject::of(resource, object, names);
        let uses = measured.amounts(now).clone();
        let before =
            old.map(|old| MeasuredObject::of(resource, old, names).amounts(now).clone()).unwrap_or_default();
        let more = uses.iter().map(|(name, amount)| {
            let had = before.get(name).copied().unwrap_or_default();
            (name.clone(), amount.minus(had))
        });
        let more = more.filter(|(_, amount)| !amount.is_zero() && !amount.is_negative()).collect();
        Request { resource, names, object, measured, uses, more }
    }
}

/// A charged quota and its new usage.
pub(super) struct Charge {
    pub(super) quota: Arc<Object>,
    pub(super) used: Amounts,
}

/// Computes the charges of a write. The error is the reason of the rejection.
pub(super) fn check(
    quotas: &[Arc<Object>],
    request: &Request<'_>,
    limited: &[LimitedResource],
) -> Result<Vec<Charge>, String> {
    let mut concerned = Vec::new();
    let (mut restricted, mut matched_scopes) = (BTreeSet::new(), Vec::new());
    for quota in quotas {
        let of_quota = Scopes::of(quota);
        matched_scopes.extend(of_quota.0.iter().filter(|scope| request.measured.is_in(scope)).cloned());
        let hard = amounts(quota.at(&["status", "hard"]));
        let about: Vec<&String> =
            hard.keys().filter(|name| counts_resource(request.resource, name, request.names)).collect();
        if about.is_empty() || !of_quota.contain(&request.measured) {
            continue;
        }
        if rule(request.resource) == Rule::Pods
            && let Some(reason) =
                missing_resources(request.object, about.iter().map(|name| name.as_str()), request.names)
        {
            return Err(format!("failed quota: {}: {reason}", quota.name()));
        }
        let used = amounts(quota.at(&["status", "used"]));
        if about.iter().any(|name| !used.contains_key(*name)) {
            let about: Vec<&str> = about.iter().map(|name| name.as_str()).collect();
            return Err(format!(
                "status unknown for quota: {}, resources: {}",
                quota.name(),
                about.join(",")
            ));
        }
        restricted.extend(about.into_iter().cloned());
        concerned.push((quota, hard, used));
    }
    let negative: Vec<&str> = request
        .uses
        .iter()
        .filter(|(_, amount)| amount.is_negative())
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    if request.more.is_empty() {
        return Ok(Vec::new());
    }
    limited_without_quota(request, limited, &restricted, &matched_scopes)?;
    concerned
        .into_iter()
        .filter_map(|(quota, hard, used)| charge(quota, &hard, used, &request.more).transpose())
        .collect()
}

/// Checks that quotas cover all limited resources of the configuration.
fn limited_without_quota(
    request: &Request<'_>,
    limited: &[LimitedResource],
    restricted: &BTreeSet<String>,
    matched: &[super::measure::Scope],
) -> Result<(), String> {
    let uncovered: BTreeSet<&str> = limited
        .iter()
        .filter(|limited| limited.resource == request.resource.group_resource)
        .flat_map(|limited| limited.names(&request.uses))
        .filter(|name| !restricted.contains(*name))
        .collect();
    if !uncovered.is_empty() {
        let names: Vec<&str> = uncovered.into_iter().collect();
        return Err(format!("insufficient quota to consume: {}", names.join(",")));
    }
    let in_scope = limited.iter().flat_map(|l| &l.scopes).filter(|scope| request.measured.is_in(scope));
    let uncovered = in_scope.filter(|scope| !matched.iter().any(|have| have.name == scope.name));
    let selectors: Vec<String> = uncovered
        .map(|scope| format!("{{{} {} [{}]}}", scope.name, scope.operator, scope.values.join(" ")))
        .collect();
    match selectors.is_empty() {
        true => Ok(()),
        false => Err(format!("insufficient quota to match these scopes: [{}]", selectors.join(" "))),
    }
}

/// Charge to one quota; None if the quota counts none of the increased resources.
fn charge(
    quota: &Arc<Object>,
    hard: &Amounts,
    mut used: Amounts,
    more: &Amounts,
) -> Result<Option<Charge>, String> {
    let requested: Amounts =
        more.iter().filter(|(name, _)| hard.contains_key(*name)).map(|(n, a)| (n.clone(), *a)).collect();
    if requested.is_empty() {
        return Ok(None);
    }
    let had = |name: &String| used.get(name).copied().unwrap_or_default();
    let over = |(name, amount): &(&String, &Quantity)| {
        hard.get(*name).is_some_and(|most| had(name).plus(**amount) > *most)
    };
    let exceeded: Vec<&String> = requested.iter().filter(over).map(|(name, _)| name).collect();
    if !exceeded.is_empty() {
        let of = |all: &Amounts| -> String {
            let pick = |name: &&String| Some(((*name).clone(), *all.get(*name)?));
            text(&exceeded.iter().filter_map(pick).collect())
        };
        return Err(format!(
            "exceeded quota: {}, requested: {}, used: {}, limited: {}",
            quota.name(),
            of(&requested),
            of(&used),
            of(hard)
        ));
    }
    crate::quantity::add(&mut used, &requested);
    Ok(Some(Charge { quota: Arc::clone(quota), used }))
}
