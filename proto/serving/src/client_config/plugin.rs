//! Validation of the configuration of credential plugins.

use apimachinery::names::Names;

use super::Exec;

/// Whether a plugin gets standard input: `interactiveMode` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

impl InteractiveMode {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "Never" => Some(InteractiveMode::Never),
            "IfAvailable" => Some(InteractiveMode::IfAvailable),
            "Always" => Some(InteractiveMode::Always),
            _ => None,
        }
    }
}

impl Exec {
    /// Returns the interactive mode; `IfAvailable` if it is absent, which only `v1beta1` allows.
    pub(crate) fn mode(&self) -> InteractiveMode {
        InteractiveMode::parse(&self.interactive_mode).unwrap_or(InteractiveMode::IfAvailable)
    }

    /// Returns all errors in the configuration.
    pub(crate) fn errors(&self, names: &Names) -> Vec<String> {
        let mut errors = Vec::new();
        if self.command.is_empty() {
            errors.push("command is missing".to_owned());
        }
        let group = names.group("client.authentication");
        let [v1, v1beta1] = [format!("{group}/v1"), format!("{group}/v1beta1")];
        match self.api_version.as_str() {
            "" => errors.push(format!("apiVersion is missing: `{v1}` or `{v1beta1}`")),
            known if known == v1 || known == v1beta1 => {}
            other => errors.push(format!("apiVersion `{other}` is not known: `{v1}` or `{v1beta1}`")),
        }
        match self.interactive_mode.as_str() {
            "" if self.api_version == v1 => {
                errors.push("interactiveMode is missing: `Never`, `IfAvailable` or `Always`".to_owned());
            }
            "" => {}
            word if InteractiveMode::parse(word).is_some() => {}
            other => errors
                .push(format!("interactiveMode `{other}` is not known: `Never`, `IfAvailable` or `Always`")),
        }
        errors
    }
}
