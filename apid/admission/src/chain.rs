//! The plugins of a process, in their order.

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::plugins::{PLUGINS, State};
use crate::{Attributes, Environment, Plugin};

/// The plugins that run.
pub struct Chain {
    plugins: Vec<(&'static str, Box<dyn Plugin>)>,
    without_effect: Vec<&'static str>,
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
    /// The plugin is named in both flags.
    #[error("admission plugin `{0}` is both enabled and disabled")]
    Both(String),
}

impl Chain {
    /// The plugins that are on by default and those of `enabled`, without those of `disabled`.
    ///
    /// # Errors
    ///
    /// All mistakes: names that are unknown, enabled without being built, or in both lists.
    pub fn new(
        enabled: &[String],
        disabled: &[String],
        environment: &Environment,
    ) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        for name in enabled.iter().chain(disabled) {
            if !PLUGINS.iter().any(|entry| entry.name == name) {
                errors.push(ConfigError::Unknown(name.clone()));
            }
        }
        errors.extend(enabled.iter().filter(|name| disabled.contains(name)).cloned().map(ConfigError::Both));
        let mut chain = Chain { plugins: Vec::new(), without_effect: Vec::new() };
        for entry in PLUGINS {
            let named = |list: &[String]| list.iter().any(|name| name == entry.name);
            if named(disabled) || !(entry.on_by_default || named(enabled)) {
                continue;
            }
            match entry.state {
                State::Built(build) => chain.plugins.push((entry.name, build(environment))),
                State::WithoutEffect => chain.without_effect.push(entry.name),
                State::Missing if named(enabled) => errors.push(ConfigError::Missing(entry.name)),
                State::Missing => {}
            }
        }
        if errors.is_empty() { Ok(chain) } else { Err(errors) }
    }

    /// Of plugins that are in no table.
    #[cfg(test)]
    pub(crate) fn of(plugins: Vec<(&'static str, Box<dyn Plugin>)>) -> Self {
        Chain { plugins, without_effect: Vec::new() }
    }

    /// The names of the plugins that run, in their order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|(name, _)| *name)
    }

    /// Plugins that were enabled and have no effect: the caller logs them.
    pub fn without_effect(&self) -> &[&'static str] {
        &self.without_effect
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
        for (_, plugin) in &self.plugins {
            if plugin.handles(attributes.operation) {
                plugin.mutate(attributes, object.as_deref_mut()).get().await?;
            }
        }
        Ok(())
    }

    /// Asks each plugin about the validated object.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        for (_, plugin) in &self.plugins {
            if plugin.handles(attributes.operation) {
                plugin.validate(attributes, object).get().await?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
