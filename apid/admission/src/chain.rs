//! Ordered chain of the enabled admission plugins.
//!
//! # Invariants
//!
//! INVARIANT (fast path): kind, subresource and operation determine the interested plugins without a plugin
//! call. The lookup is in a table that the constructor builds.

use std::collections::HashMap;

use apimachinery::object::Object;
use apimachinery::status::Status;
use serving::arguments::most_similar;

use crate::plugins::{AnyPlugin, PLUGINS};
use crate::reinvocation::Reinvocation;
use crate::timing::{Durations, Phase, PhaseTimer};
use crate::{
    Attributes, Configuration, Environment, Interest, ObjectKind, Operation, PluginConfigurationError,
    WriteTarget,
};

/// Chain of the enabled plugins.
pub struct Chain {
    plugins: Vec<EnabledPlugin>,
    plans: Plans,
    environment: Environment,
    /// Durations of all plugins together.
    steps: Durations,
}

struct EnabledPlugin {
    name: &'static str,
    plugin: AnyPlugin,
    durations: Durations,
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
            match entry.build {
                _ if plugin_configuration.is_some() && !entry.is_configurable => {
                    errors.push(ConfigError::NotConfigurable(entry.name));
                }
                Some(build) => match build(environment, plugin_configuration) {
                    Ok(plugin) => plugins.extend(plugin.map(|plugin| (entry.name, plugin))),
                    Err(error) => errors.push(ConfigError::Configuration(entry.name, error)),
                },
                None if is_in(enabled) => errors.push(ConfigError::NotImplemented(entry.name)),
                None => {}
            }
        }
        if errors.is_empty() { Ok(Chain::from_plugins(plugins, environment.clone())) } else { Err(errors) }
    }

    /// Builds a chain of these plugins.
    pub(crate) fn from_plugins(plugins: Vec<(&'static str, AnyPlugin)>, environment: Environment) -> Self {
        let durations = &environment.metrics.durations;
        let enabled = |(name, plugin)| EnabledPlugin { name, plugin, durations: durations.of_plugin(name) };
        Chain {
            plans: Plans::new(&plugins),
            plugins: plugins.into_iter().map(enabled).collect(),
            steps: durations.of_steps(),
            environment,
        }
    }

    /// Names of the enabled plugins, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|plugin| plugin.name)
    }

    /// The dependencies of the plugins.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Runs the mutating phase of each interested plugin, before validation of the object. The phase runs
    /// once more if a webhook or a policy requests the second round. Returns whether the second round ran.
    ///
    /// # Errors
    ///
    /// The first rejection.
    pub async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<bool, Status> {
        // A write that is repeated after a conflict discards the records of its earlier attempt.
        attributes.recorder.reset();
        let mut timer = self.timer(Phase::Mutating, attributes);
        let mut reinvocation = Reinvocation::default();
        loop {
            for enabled in self.interested_plugins(attributes) {
                let result =
                    enabled.plugin.mutate(attributes, object.as_deref_mut(), &mut reinvocation).await;
                timer.end_plugin(&enabled.durations, result.is_err());
                result?;
            }
            if reinvocation.is_second_round || !reinvocation.is_requested() {
                break;
            }
            reinvocation.is_second_round = true;
        }
        timer.end(false);
        Ok(reinvocation.is_second_round)
    }

    /// Runs the validating phase of each interested plugin on the validated object.
    ///
    /// # Errors
    ///
    /// The first rejection.
    pub async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let mut timer = self.timer(Phase::Validating, attributes);
        for enabled in self.interested_plugins(attributes) {
            let result = enabled.plugin.validate(attributes, object).await;
            timer.end_plugin(&enabled.durations, result.is_err());
            result?;
        }
        timer.end(false);
        Ok(())
    }

    fn timer(&self, phase: Phase, attributes: &Attributes<'_>) -> PhaseTimer<'_> {
        PhaseTimer::new(&*self.environment.clock, &self.steps, phase, attributes.operation)
    }

    /// The plugins that are interested in a write, in their order.
    fn interested_plugins<'a>(
        &'a self,
        attributes: &'a Attributes<'_>,
    ) -> impl Iterator<Item = &'a EnabledPlugin> {
        let kind = attributes.resource;
        let target = kind.stem().map(|stem| (stem, kind.name(), attributes.subresource));
        let plan = self.plans.plugins_for(target, attributes.operation);
        plan.iter().filter_map(|position| self.plugins.get(*position))
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
    fn new(plugins: &[(&'static str, AnyPlugin)]) -> Self {
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

    fn plugins_for<'a>(&'a self, target: Option<Target<'a>>, operation: Operation) -> &'a [usize] {
        // The map has static keys; the shorter lifetime here allows a lookup with borrowed keys.
        let named: &'a HashMap<Target<'a>, Plan> = &self.named;
        operation.value_in::<Vec<usize>>(target.and_then(|target| named.get(&target)).unwrap_or(&self.others))
    }
}

fn target_of(kind: ObjectKind, subresource: &'static str) -> Target<'static> {
    (kind.group, kind.kind, subresource)
}
