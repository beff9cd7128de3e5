//! Ordered chain of the enabled admission plugins.
//!
//! # Invariants
//!
//! INVARIANT (fast path): kind, subresource and operation determine the interested plugins without a plugin
//! call. The lookup is in a table that the constructor builds.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serving::arguments::most_similar;

use crate::plugins::{Availability, PLUGINS};
use crate::quota::Reservations;
use crate::timing::{Phase, Timing, TimingObserver};
use crate::{
    Attributes, Configuration, Environment, Interest, ObjectKind, Operation, Plugin,
    PluginConfigurationError, WriteTarget,
};

/// Chain of the enabled plugins.
pub struct Chain {
    plugins: Vec<(&'static str, Box<dyn Plugin>)>,
    plans: Plans,
    reservations: Arc<Reservations>,
    timing: Timing,
}

/// Configuration error of the admission chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The table of plugins has no plugin with this name.
    #[error("admission plugin `{name}` is unknown{}", suggestion(.0), name = .0)]
    Unknown(String),
    /// The plugin is known but not implemented.
    #[error("admission plugin `{0}` is not implemented")]
    NotImplemented(&'static str),
    /// The configuration file has a configuration for a plugin that is not implemented or accepts none.
    #[error("admission plugin `{0}` does not accept a configuration")]
    NotConfigurable(&'static str),
    /// The plugin configuration is invalid.
    #[error("admission plugin `{0}`: {1}")]
    Configuration(&'static str, PluginConfigurationError),
    /// The flags for enabled and for disabled plugins both name the plugin.
    #[error("admission plugin `{0}` is both enabled and disabled")]
    EnabledAndDisabled(String),
}

/// Returns a hint at the plugin with a similar name; empty without one.
fn suggestion(name: &str) -> String {
    let similar = most_similar(name, PLUGINS.iter().map(|entry| entry.name));
    similar.map(|name| format!("; a similar plugin is `{name}`")).unwrap_or_default()
}

impl Chain {
    /// Builds the chain of default plugins and `enabled` plugins without the `disabled` plugins.
    ///
    /// # Errors
    ///
    /// All errors: unknown names, enabled plugins without implementation, names in both lists, invalid
    /// configurations.
    pub fn new(
        enabled: &[String],
        disabled: &[String],
        configuration: &Configuration,
        environment: &Environment,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        for name in enabled.iter().chain(disabled) {
            if !PLUGINS.iter().any(|entry| entry.name == name) {
                errors.push(ConfigError::Unknown(name.clone()));
            }
        }
        errors.extend(
            enabled
                .iter()
                .filter(|name| disabled.contains(name))
                .cloned()
                .map(ConfigError::EnabledAndDisabled),
        );
        let mut plugins = Vec::new();
        for entry in PLUGINS {
            let is_in = |list: &[String]| list.iter().any(|name| name == entry.name);
            if is_in(disabled) || !(entry.on_by_default || is_in(enabled)) {
                continue;
            }
            let plugin_configuration = configuration.for_plugin(entry.name);
            match entry.availability {
                Availability::Implemented(_) | Availability::Gated(..) | Availability::NotImplemented
                    if plugin_configuration.is_some() =>
                {
                    errors.push(ConfigError::NotConfigurable(entry.name));
                }
                Availability::Implemented(build) => plugins.push((entry.name, build(environment))),
                Availability::Gated(gate, build) if environment.gates.enabled(gate) => {
                    plugins.extend(build(environment).map(|plugin| (entry.name, plugin)));
                }
                Availability::Gated(..) => {}
                Availability::Configured(build) => match build(environment, plugin_configuration) {
                    Ok(plugin) => plugins.push((entry.name, plugin)),
                    Err(error) => errors.push(ConfigError::Configuration(entry.name, error)),
                },
                Availability::NotImplemented if is_in(enabled) => {
                    errors.push(ConfigError::NotImplemented(entry.name))
                }
                Availability::NotImplemented => {}
            }
        }
        if errors.is_empty() { Ok(Chain::assemble(plugins, &environment.reservations)) } else { Err(errors) }
    }

    fn assemble(plugins: Vec<(&'static str, Box<dyn Plugin>)>, reservations: &Arc<Reservations>) -> Self {
        let plans = Plans::new(&plugins);
        Chain { plugins, plans, reservations: Arc::clone(reservations), timing: Timing::default() }
    }

    /// Builds a chain of plugins that need not be in the table of plugins.
    #[cfg(test)]
    pub(crate) fn from_plugins(plugins: Vec<(&'static str, Box<dyn Plugin>)>) -> Self {
        Chain::assemble(plugins, &Arc::default())
    }

    /// Names of the enabled plugins, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|(name, _)| *name)
    }

    /// Quota reservations of in-flight writes, for the quota controller.
    pub fn reservations(&self) -> &Arc<Reservations> {
        &self.reservations
    }

    /// Sends the durations of all phases to an observer. Only the first call has an effect.
    pub fn observe_with(&self, clock: Arc<dyn Clock>, observer: Arc<dyn TimingObserver>) {
        self.timing.observe_with(clock, observer);
    }

    /// Runs the mutating phase of each interested plugin, before validation of the object. The phase runs
    /// once more if a webhook or a policy requests the second round.
    ///
    /// # Errors
    ///
    /// The first rejection.
    pub async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<(), Status> {
        let mut timer = self.timing.begin(Phase::Mutating, attributes.operation);
        for (position, plugin) in self.interested_plugins(attributes) {
            let result = plugin.mutate(attributes, object.as_deref_mut()).get().await;
            timer.end_plugin(position, result.is_err());
            result?;
        }
        if attributes.notes.requests_second_round() {
            let reinvoked = Attributes { reinvoked: true, ..*attributes };
            for (position, plugin) in self.interested_plugins(&reinvoked) {
                let result = plugin.mutate(&reinvoked, object.as_deref_mut()).get().await;
                timer.end_plugin(position, result.is_err());
                result?;
            }
        }
        timer.end(false);
        Ok(())
    }

    /// Runs the validating phase of each interested plugin on the validated object.
    ///
    /// # Errors
    ///
    /// The first rejection.
    pub async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let mut timer = self.timing.begin(Phase::Validating, attributes.operation);
        for (position, plugin) in self.interested_plugins(attributes) {
            let result = plugin.validate(attributes, object).get().await;
            timer.end_plugin(position, result.is_err());
            result?;
        }
        timer.end(false);
        Ok(())
    }
}

impl Chain {
    /// The plugins that are interested in a write, with their positions in the chain.
    fn interested_plugins<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
    ) -> impl Iterator<Item = (usize, &'a dyn Plugin)> {
        let kind = &attributes.resource.kind;
        let plan =
            self.plans.plugins_for((kind.group(), kind.kind(), attributes.subresource), attributes.operation);
        plan.iter()
            .filter_map(|position| self.plugins.get(*position).map(|(_, plugin)| (*position, &**plugin)))
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// Group stem, kind and subresource.
type Target<'a> = (&'a str, &'a str, &'a str);

/// Positions of the interested plugins in the chain, for each operation.
///
/// The order is that of [`Operation::ALL`].
type Plan = [Vec<usize>; 4];

/// Interested plugins by target and operation.
struct Plans {
    /// Plans of the targets in the interest of at least one plugin.
    named: HashMap<Target<'static>, Plan>,
    /// Plan of all other targets.
    others: Plan,
}

impl Plans {
    fn new(plugins: &[(&'static str, Box<dyn Plugin>)]) -> Self {
        let interests: Vec<Interest> = plugins.iter().map(|(_, plugin)| plugin.interest()).collect();
        let plan = |target: Option<Target<'_>>| -> Plan {
            let has_target = |targets: &[WriteTarget]| {
                targets.iter().any(|(kind, sub)| Some(target_of(*kind, sub)) == target)
            };
            let targeted = |interest: &Interest| interest.targets.is_none_or(has_target);
            Operation::ALL.map(|operation| {
                let each = interests.iter().enumerate();
                each.filter(|(_, interest)| targeted(interest) && interest.operations.contains(&operation))
                    .map(|(position, _)| position)
                    .collect()
            })
        };
        let targets = interests.iter().flat_map(|interest| interest.targets.unwrap_or_default());
        let named =
            targets.map(|(kind, sub)| target_of(*kind, sub)).map(|target| (target, plan(Some(target))));
        Plans { named: named.collect(), others: plan(None) }
    }

    fn plugins_for<'a>(&'a self, target: Target<'a>, operation: Operation) -> &'a [usize] {
        // The map has static keys; the shorter lifetime here allows a lookup with borrowed keys.
        let named: &'a HashMap<Target<'a>, Plan> = &self.named;
        operation.value_in::<Vec<usize>>(named.get(&target).unwrap_or(&self.others))
    }
}

fn target_of(kind: ObjectKind, subresource: &'static str) -> Target<'static> {
    (kind.group, kind.kind, subresource)
}
