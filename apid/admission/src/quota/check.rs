//! Computes quota charges of a write and checks the quota limits. This module has no side effects.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::Kind;

use super::limited::LimitedResource;
use super::measure::{MeasuredObject, MeasurementRule, Scopes, counts_resource, missing_resources, rule};
use crate::Attributes;
use crate::quantity::{Amounts, Quantity, amounts, text};

/// A write with its resource usage.
pub(super) struct QuotaRequest<'a> {
    pub(super) resource: &'a Kind,
    pub(super) names: &'a Names,
    pub(super) object: &'a Object,
    /// Measured object after the write.
    pub(super) measured: MeasuredObject,
    /// Measured object before the write; None for a creation.
    pub(super) before: Option<MeasuredObject>,
    /// Usage of the object after the write.
    pub(super) usage: Amounts,
    /// Increase of the usage by the write.
    pub(super) increase: Amounts,
}

impl<'a> QuotaRequest<'a> {
    pub(super) fn new(attributes: &Attributes<'a>, object: &'a Object) -> Self {
        let (resource, environment) = (attributes.resource, attributes.environment);
        let (names, now) = (&*environment.names, environment.clock.now());
        let measured = MeasuredObject::of(resource, object, names);
        let usage = measured.amounts(now).clone();
        let before = attributes.old.map(|old| MeasuredObject::of(resource, old, names));
        let increase = increase(&usage, before.as_ref().map(|before| before.amounts(now)));
        QuotaRequest { resource, names, object, measured, before, usage, increase }
    }

    /// Whether the write moves the object into the scopes of a quota.
    fn enters(&self, scopes: &Scopes) -> bool {
        self.before.as_ref().is_some_and(|before| !scopes.contain(before)) && scopes.contain(&self.measured)
    }

    /// The amounts that the write adds to a quota: all usage of an object that enters its scopes.
    fn increase_in(&self, scopes: &Scopes) -> Amounts {
        if self.enters(scopes) { increase(&self.usage, None) } else { self.increase.clone() }
    }
}

/// The positive differences between the usage after and before a write.
fn increase(usage: &Amounts, before: Option<&Amounts>) -> Amounts {
    let added = usage.iter().map(|(name, amount)| {
        let old_amount = before.and_then(|before| before.get(name)).copied().unwrap_or_default();
        (name.clone(), amount.minus(old_amount))
    });
    added.filter(|(_, amount)| !amount.is_zero() && !amount.is_negative()).collect()
}

/// The reason why quotas reject a write, with the text of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuotaError {
    #[error("failed quota: {quota}: {reason}")]
    MissingValues { quota: String, reason: String },
    #[error("status unknown for quota: {quota}, resources: {resources}")]
    UnknownUsage { quota: String, resources: String },
    #[error("quota usage is negative for resource(s): {resources}")]
    Negative { resources: String },
    /// No quota limits a used resource of `limitedResources` in the configuration.
    #[error("insufficient quota to consume: {resources}")]
    UncoveredResources { resources: String },
    /// No quota has a scope of `limitedResources` in the configuration that the object matches.
    #[error("insufficient quota to match these scopes: [{scopes}]")]
    UncoveredScopes { scopes: String },
    #[error("exceeded quota: {quota}, requested: {requested}, used: {used}, limited: {limited}")]
    Exceeded { quota: String, requested: String, used: String, limited: String },
}

/// A quota, and its `status.used` with the increase by the write.
pub(super) struct Charge {
    pub(super) quota: Arc<Object>,
    pub(super) used: Amounts,
}

/// Computes the charges of a write to all matching quotas.
///
/// # Errors
///
/// See [`QuotaError`].
pub(super) fn compute_charges(
    quotas: &[Arc<Object>],
    request: &QuotaRequest<'_>,
    limited: &[LimitedResource],
) -> Result<Vec<Charge>, QuotaError> {
    let mut matching_quotas = Vec::new();
    let (mut restricted, mut matched_scopes) = (BTreeSet::new(), Vec::new());
    for quota in quotas {
        let quota_scopes = Scopes::of(quota);
        matched_scopes
            .extend(quota_scopes.0.iter().filter(|scope| request.measured.matches_scope(scope)).cloned());
        let hard = amounts(quota.at(&["status", "hard"]));
        let counted: Vec<&String> =
            hard.keys().filter(|name| counts_resource(request.resource, name, request.names)).collect();
        if counted.is_empty() || !quota_scopes.contain(&request.measured) {
            continue;
        }
        if rule(request.resource) == MeasurementRule::Pods
            && let Some(reason) =
                missing_resources(request.object, counted.iter().map(|name| name.as_str()), request.names)
        {
            return Err(QuotaError::MissingValues { quota: quota.name().to_owned(), reason });
        }
        let used = amounts(quota.at(&["status", "used"]));
        if counted.iter().any(|name| !used.contains_key(*name)) {
            let counted: Vec<&str> = counted.iter().map(|name| name.as_str()).collect();
            let (quota, resources) = (quota.name().to_owned(), counted.join(","));
            return Err(QuotaError::UnknownUsage { quota, resources });
        }
        restricted.extend(counted.into_iter().cloned());
        matching_quotas.push((quota, hard, used, request.increase_in(&quota_scopes)));
    }
    let negative: Vec<&str> = request
        .usage
        .iter()
        .filter(|(_, amount)| amount.is_negative())
        .map(|(name, _)| name.as_str())
        .collect();
    if !negative.is_empty() {
        return Err(QuotaError::Negative { resources: negative.join(",") });
    }
    if request.increase.is_empty() && matching_quotas.iter().all(|(.., increase)| increase.is_empty()) {
        return Ok(Vec::new());
    }
    check_limited_resources(request, limited, &restricted, &matched_scopes)?;
    matching_quotas
        .into_iter()
        .filter_map(|(quota, hard, used, increase)| charge(quota, &hard, used, &increase).transpose())
        .collect()
}

/// Checks that a quota limits each used resource and each matched scope of `limitedResources`. `restricted`
/// has the resource names that the matching quotas limit.
fn check_limited_resources(
    request: &QuotaRequest<'_>,
    limited: &[LimitedResource],
    restricted: &BTreeSet<String>,
    matched: &[super::measure::QuotaScope],
) -> Result<(), QuotaError> {
    let uncovered: BTreeSet<&str> = limited
        .iter()
        .filter(|limited| limited.resource == request.resource.group_resource)
        .flat_map(|limited| limited.names(&request.usage))
        .filter(|name| !restricted.contains(*name))
        .collect();
    if !uncovered.is_empty() {
        let names: Vec<&str> = uncovered.into_iter().collect();
        return Err(QuotaError::UncoveredResources { resources: names.join(",") });
    }
    let in_scope =
        limited.iter().flat_map(|l| &l.scopes).filter(|scope| request.measured.matches_scope(scope));
    let uncovered =
        in_scope.filter(|scope| !matched.iter().any(|matched_scope| matched_scope.name == scope.name));
    let selectors: Vec<String> = uncovered
        .map(|scope| format!("{{{} {} [{}]}}", scope.name, scope.operator, scope.values.join(" ")))
        .collect();
    match selectors.is_empty() {
        true => Ok(()),
        false => Err(QuotaError::UncoveredScopes { scopes: selectors.join(" ") }),
    }
}

/// Charge to one quota; None if the quota limits none of the increased resources.
fn charge(
    quota: &Arc<Object>,
    hard: &Amounts,
    mut used: Amounts,
    increase: &Amounts,
) -> Result<Option<Charge>, QuotaError> {
    let requested: Amounts =
        increase.iter().filter(|(name, _)| hard.contains_key(*name)).map(|(n, a)| (n.clone(), *a)).collect();
    if requested.is_empty() {
        return Ok(None);
    }
    let used_amount = |name: &String| used.get(name).copied().unwrap_or_default();
    let exceeds = |(name, amount): &(&String, &Quantity)| {
        hard.get(*name).is_some_and(|limit| used_amount(name).plus(**amount) > *limit)
    };
    let exceeded: Vec<&String> = requested.iter().filter(exceeds).map(|(name, _)| name).collect();
    if !exceeded.is_empty() {
        let selected_text = |all: &Amounts| -> String {
            let entry = |name: &&String| Some(((*name).clone(), *all.get(*name)?));
            text(&exceeded.iter().filter_map(entry).collect())
        };
        return Err(QuotaError::Exceeded {
            quota: quota.name().to_owned(),
            requested: selected_text(&requested),
            used: selected_text(&used),
            limited: selected_text(hard),
        });
    }
    crate::quantity::add(&mut used, &requested);
    Ok(Some(Charge { quota: Arc::clone(quota), used }))
}
