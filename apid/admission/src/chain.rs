//! The plugins of a process, in their order.
//!
//! # Invariants
//!
//! INVARIANT (quick past): which plugins a write may concern is known by its kind, subresource and operation before any is
//! asked: one look into a table that is made with the chain.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::plugins::{PLUGINS, State};
use crate::quota::Reservations;
use crate::{Attributes, Configuration, Environment, Interest, ObjectKind, Operation, Plugin};

/// The plugins that run.
pub struct Chain {
    plugins: Vec<(&'static str, Box<dyn Plugin>)>,
    plans: Plans,
    reservations: Arc<Reservations>,
}

/// Why flags do not make a chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No release has such a plugin.
    #[error("admission plugin `{0}` is unknown")]
    Unknown(String),
    /// The plugin is known and cannot be had here.
    #[error("admission plugin `{0}` is not built yet")]
    Missing(&'static str),
    /// The plugin is on by default, is not built, and its configuration was given.
    #[error("admission plugin `{0}` takes no configuration here")]
    TakesNone(&'static str),
    /// The plugin's configuration is wrong; the text names the file and the field.
    #[error("admission plugin `{0}`: {1}")]
    Configuration(&'static str, String),
    /// The plugin is named in both flags.
    #[error("admission plugin `{0}` is both enabled and disabled")]
    Both(String),
}

impl Chain {
    /// The plugins that are on by default and those of `enabled`, without those of `disabled`.
    ///
    /// # Errors
    ///
    /// All mistakes: names that are unknown, enabled without being built, or in both lists, and wrong configurations.
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
        errors.extend(enabled.iter().filter(|name| disabled.contains(name)).cloned().map(ConfigError::Both));
        let mut plugins = Vec::new();
        for entry in PLUGINS {
            let named = |list: &[String]| list.iter().any(|name| name == entry.name);
            if named(disabled) || !(entry.on_by_default || named(enabled)) {
                continue;
            }
            let given = configuration.of(entry.name);
            match entry.state {
                State::Built(_) | State::Missing if given.is_some() => {
                    errors.push(ConfigError::TakesNone(entry.name));
                }
                State::Built(build) => plugins.push((entry.name, build(environment))),
                State::Configured(build) => match build(environment, given) {
                    Ok(plugin) => plugins.push((entry.name, plugin)),
                    Err(why) => errors.push(ConfigError::Configuration(entry.name, why)),
                },
                State::Missing if named(enabled) => errors.push(ConfigError::Missing(entry.name)),
                State::Missing => {}
            }
        }
        if errors.is_empty() { Ok(Chain::assemble(plugins, &environment.reservations)) } else { Err(errors) }
    }

    fn assemble(plugins: Vec<(&'static str, Box<dyn Plugin>)>, reservations: &Arc<Reservations>) -> Self {
        let plans = Plans::new(&plugins);
        Chain { plugins, plans, reservations: Arc::clone(reservations) }
    }

    /// Of plugins that are in no table.
    #[cfg(test)]
    pub(crate) fn of(plugins: Vec<(&'static str, Box<dyn Plugin>)>) -> Self {
        Chain::assemble(plugins, &Arc::default())
    }

    /// The names of the plugins that run, in their order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|(name, _)| *name)
    }

    /// What writes under way have been promised of quotas: whoever counts usage needs it.
    pub fn reservations(&self) -> &Arc<Reservations> {
        &self.reservations
    }

    /// Lets each plugin change the object, before it is validated.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub async fn mutate(
        &self,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<(), Status> {
        for plugin in self.concerned(attributes) {
            plugin.mutate(attributes, object.as_deref_mut()).get().await?;
        }
        Ok(())
    }

    /// Asks each plugin about the validated object.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        for plugin in self.concerned(attributes) {
            plugin.validate(attributes, object).get().await?;
        }
        Ok(())
    }
}

impl Chain {
    /// The plugins that a write may concern.
    fn concerned<'a>(&'a self, attributes: &'a Attributes<'_>) -> impl Iterator<Item = &'a dyn Plugin> {
        let kind = attributes.resource.kind;
        let plan = self.plans.of((kind.group, kind.kind, attributes.subresource), attributes.operation);
        plan.iter().filter_map(|place| self.plugins.get(*place)).map(|(_, plugin)| &**plugin)
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// Group stem, kind and subresource.
type Target<'a> = (&'a str, &'a str, &'a str);

/// The places of plugins in their chain, for each operation.
type Plan = [Vec<usize>; 4];

/// Which plugins each write may concern.
struct Plans {
    /// Of what some plugin names.
    named: HashMap<Target<'static>, Plan>,
    /// Of everything else.
    others: Plan,
}

impl Plans {
    fn new(plugins: &[(&'static str, Box<dyn Plugin>)]) -> Self {
        let interests: Vec<Interest> = plugins.iter().map(|(_, plugin)| plugin.interest()).collect();
        let plan = |target: Option<Target<'_>>| -> Plan {
            Operation::ALL.map(|operation| {
                let each = plugins.iter().zip(&interests).enumerate();
                each.filter(|(_, ((_, plugin), interest))| {
                    let concerned = match interest {
                        Interest::All => true,
                        Interest::Only(places) => target.is_some_and(|target| {
                            places.iter().any(|(kind, sub)| named(*kind, sub) == target)
                        }),
                    };
                    concerned && plugin.handles(operation)
                })
                .map(|(place, _)| place)
                .collect()
            })
        };
        let targets = interests.iter().flat_map(|interest| match interest {
            Interest::All => &[],
            Interest::Only(places) => *places,
        });
        let named = targets.map(|(kind, sub)| named(*kind, sub)).map(|target| (target, plan(Some(target))));
        Plans { named: named.collect(), others: plan(None) }
    }

    fn of<'a>(&'a self, target: Target<'a>, operation: Operation) -> &'a [usize] {
        // The map's keys live for ever; looked at here, they need not live longer than the question.
        let named: &'a HashMap<Target<'a>, Plan> = &self.named;
        let plan = named.get(&target).unwrap_or(&self.others);
        match operation {
            Operation::Create => &plan[0],
            Operation::Update => &plan[1],
            Operation::Delete => &plan[2],
            Operation::Connect => &plan[3],
        }
    }
}

fn named(kind: ObjectKind, subresource: &'static str) -> Target<'static> {
    (kind.group, kind.kind, subresource)
}
