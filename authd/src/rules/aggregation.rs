//! Aggregated ClusterRoles (requirements A-RBAC-53 to A-RBAC-55, A-DEF-30 to A-DEF-33).
//! The effective rules of an aggregated role are the union of the rules of the ClusterRoles that its
//! selectors match. Each change of a ClusterRole updates the effective rules.
//!
//! # Invariants
//!
//! INVARIANT (projection): the stored `rules` of an aggregated role grant nothing. A controller keeps them
//! equal to the effective rules, see [`Policy::stale_aggregated_roles`].
//!
//! # Reference
//!
//! Kubernetes aggregates the written rules. So a change takes one write for each level of aggregation, and a
//! cycle of aggregated roles keeps obsolete rules alive. authd takes the union over the roles that are not
//! aggregated, through any number of levels. The union has the rules of each role once, in the order of
//! selectors and then of role names, as in Kubernetes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::policy::{EffectiveRule, Policy, RoleId};
use super::rule::PolicyRule;
use super::selector::Selector;

impl Policy {
    /// Returns the aggregated roles whose written rules differ from the effective rules: the name and the
    /// rules to write.
    pub fn stale_aggregated_roles(&self) -> Vec<(Arc<str>, Vec<PolicyRule>)> {
        let stale_role = |id: &RoleId| {
            let slot = self.slot(*id)?;
            let body = slot.body.as_deref()?;
            let rules = || body.effective_rules.iter().map(|entry| &entry.rule);
            let is_current = body.written_rules.iter().eq(rules());
            (!is_current).then(|| (Arc::clone(&slot.name), rules().map(|rule| (**rule).clone()).collect()))
        };
        self.aggregated.iter().filter_map(stale_role).collect()
    }

    /// Recomputes the effective rules of an aggregated role; does nothing for other roles.
    pub(super) fn recompute_aggregate(&mut self, id: RoleId) {
        if !self.aggregated.contains(&id) {
            return;
        }
        let mut effective_rules: Vec<EffectiveRule> = Vec::new();
        let mut collected_rules: HashSet<Arc<PolicyRule>> = HashSet::new();
        let mut visited: HashSet<RoleId> = HashSet::new();
        let mut pending = vec![id];
        while let Some(next) = pending.pop() {
            let Some(body) = self.slot(next).and_then(|slot| slot.body.as_deref()) else { continue };
            if !visited.insert(next) {
                continue;
            }
            match &body.aggregation {
                None => {
                    let new_rules = body
                        .effective_rules
                        .iter()
                        .filter(|entry| collected_rules.insert(Arc::clone(&entry.rule)));
                    effective_rules.extend(new_rules.cloned());
                }
                Some(selectors) => {
                    let selected = selectors.iter().flat_map(|selector| self.selected_roles(selector));
                    let start = pending.len();
                    pending.extend(selected.filter(|role| !visited.contains(role)));
                    // Reversed, because `pop` takes the last role first.
                    if let Some(new_roles) = pending.get_mut(start..) {
                        new_roles.reverse();
                    }
                }
            }
        }
        self.set_effective_rules(id, effective_rules.into_boxed_slice());
    }

    /// Recomputes every aggregated role whose selectors match one of these sets of labels.
    /// Roles that aggregate such a role, also through several levels, are recomputed too.
    pub(super) fn recompute_dependents<'a>(
        &mut self,
        labels: impl Iterator<Item = &'a BTreeMap<String, String>>,
    ) {
        let mut pending: Vec<BTreeMap<String, String>> = labels.cloned().collect();
        let mut stale: BTreeSet<RoleId> = BTreeSet::new();
        while let Some(labels) = pending.pop() {
            for id in &self.aggregated {
                let Some(body) = self.slot(*id).and_then(|slot| slot.body.as_deref()) else { continue };
                let is_dependent =
                    body.aggregation.iter().flatten().any(|selector| selector.matches(&labels));
                if is_dependent && stale.insert(*id) {
                    pending.push(body.meta.labels.clone());
                }
            }
        }
        for id in stale {
            self.recompute_aggregate(id);
        }
    }

    fn selected_roles<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = RoleId> + 'a {
        self.cluster_roles.values().copied().filter(move |id| {
            let body = self.slot(*id).and_then(|slot| slot.body.as_deref());
            body.is_some_and(|body| selector.matches(&body.meta.labels))
        })
    }
}
