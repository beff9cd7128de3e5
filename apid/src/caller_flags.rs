//! The flags that the caller of a subcommand sets, and the defaults of the subcommand below them.

use serving::arguments::{flag_value, has_flag};
use serving::config_file::{FlagValues, ServerConfiguration, merge};

/// The flags that the caller sets, on the command line or in the file of `--config`.
pub(crate) struct CallerFlags {
    pub(crate) arguments: Vec<String>,
    file: Option<ServerConfiguration>,
}

impl CallerFlags {
    /// Reads the file of `--config`, if the command line names one.
    ///
    /// # Errors
    ///
    /// All errors of the file.
    pub(crate) fn read(arguments: Vec<String>) -> Result<Self, Vec<String>> {
        let file = ServerConfiguration::from_arguments(&arguments)?;
        Ok(CallerFlags { arguments, file })
    }

    /// Returns the last value of a flag. The command line takes precedence over the file.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        let from_file = || self.file.as_ref()?.flag_value(name).map(str::to_owned);
        flag_value(&self.arguments, name).or_else(from_file)
    }

    /// Whether the caller sets a flag.
    pub(crate) fn has(&self, name: &str) -> bool {
        has_flag(&self.arguments, name) || self.file.as_ref().is_some_and(|file| file.has_flag(name))
    }

    /// Returns a command line with the defaults that the caller does not replace.
    pub(crate) fn with_defaults(self, mut defaults: Vec<FlagValues>) -> Vec<String> {
        defaults.retain(|flag| !self.has(&flag.name));
        merge(&defaults, self.arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn command_line_and_configuration_file_override_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let text = "apiVersion: config.svc.internal/v1alpha1\nkind: ServerConfiguration\n\
                    apid: {names: svc, data-dir: /d}\nauthd: {authorization-mode: [RBAC]}\n";
        std::fs::write(&file, text).unwrap();
        let config = format!("--config={}", file.display());
        let flags = CallerFlags::read(words(&[&config, "--secure-port", "1", "--data-dir=/e"])).unwrap();
        assert_eq!(flags.value("data-dir").as_deref(), Some("/e"));
        assert_eq!(flags.value("names").as_deref(), Some("svc"));
        assert!(flags.has("authorization-mode") && !flags.has("spawn-authd"));
        let names = ["names", "data-dir", "secure-port", "authorization-mode", "spawn-authd"];
        let defaults = names.map(|name| FlagValues::single(name, "x")).to_vec();
        let line = flags.with_defaults(defaults);
        assert_eq!(line, ["--spawn-authd=x", &config, "--secure-port", "1", "--data-dir=/e"]);
        assert!(CallerFlags::read(words(&["--config=/no/file"])).is_err());
    }
}
