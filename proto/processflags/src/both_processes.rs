//! The flags that both processes read. Names are those of kube-apiserver where it has the flag.

use std::path::PathBuf;

use apimachinery::names::{DEFAULT_API_DOMAIN, Preset};
use clap::Args;
use serving::compatibility::{CompatibilityVersions, VersionError};
use serving::log::Format;
use serving::metrics::{HiddenMetricsError, Metrics};

/// The highest log verbosity.
const MAX_VERBOSITY: i64 = 9;

/// All flags that both processes read.
#[derive(Clone, Debug, Args)]
pub struct SharedFlags {
    /// Names and feature gates.
    #[command(flatten)]
    pub names: NamesFlags,
    /// Certificates.
    #[command(flatten)]
    pub certificates: CertificateFlags,
    /// Authenticating proxies.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// Logs and metrics.
    #[command(flatten)]
    pub log: LogFlags,
}

/// Flags of the names preset, of the feature gates and of the emulated release.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "General flags")]
pub struct NamesFlags {
    /// Names of groups, labels and namespaces: svc or kubernetes
    #[arg(long, value_name = "PRESET", default_value_t = Preset::Svc)]
    pub names: Preset,
    /// Domain of the svc preset
    #[arg(long, value_name = "DOMAIN", default_value = DEFAULT_API_DOMAIN)]
    pub api_domain: String,
    /// Feature gates
    #[arg(long, value_name = "GATE=BOOL,...")]
    pub feature_gates: Vec<String>,
    /// Release whose API versions and feature gates the server emulates: 1.31 to 1.33 (default: 1.33)
    #[arg(long, value_name = "RELEASE")]
    pub emulated_version: Vec<String>,
    /// Oldest release with which the server is compatible: 1.30 to the emulated release (default: the release before
    /// the emulated one)
    #[arg(long, value_name = "RELEASE")]
    pub min_compatibility_version: Vec<String>,
}

impl NamesFlags {
    /// The emulated release and the oldest compatible release.
    ///
    /// # Errors
    ///
    /// All errors of both flags.
    pub fn compatibility_versions(&self) -> Result<CompatibilityVersions, Vec<VersionError>> {
        CompatibilityVersions::parse(&self.emulated_version, &self.min_compatibility_version)
    }
}

/// Flags of certificates and keys.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Certificate flags")]
pub struct CertificateFlags {
    /// Private key of the serving certificate; authd signs service-account tokens with it without a key of their own
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// CA bundle of client certificates; hot reload
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
}

/// Flags of authenticating proxies.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Flags of authenticating proxies")]
pub struct ProxyFlags {
    /// CA bundle of authenticating proxies; hot reload
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Accepted common names of proxy certificates (default: any)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Proxy headers with the user name, such as X-Remote-User; the first one with a value is used
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Proxy headers with the uid, such as X-Remote-Uid
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Proxy headers with groups, such as X-Remote-Group; all values of all headers are used
    #[arg(long, value_name = "HEADER,...", value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of proxy headers with extra attributes, such as X-Remote-Extra-
    #[arg(long, value_name = "PREFIX,...", value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

/// Flags of logs and metrics.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log, audit and metrics flags")]
pub struct LogFlags {
    /// Log verbosity: 0 to 9
    #[arg(short = 'v', long = "v", value_name = "LEVEL", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=MAX_VERBOSITY))]
    pub verbosity: u8,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub logging_format: Format,
    /// Show the metrics that are hidden since this version; only the previous version is allowed
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true, value_parser = previous_version)]
    pub show_hidden_metrics_for_version: String,
}

fn previous_version(text: &str) -> Result<String, HiddenMetricsError> {
    Metrics::showing_hidden(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use serving::compatibility::{CURRENT, OLDEST_COMPATIBLE, OLDEST_EMULATED};

    use super::*;

    #[test]
    fn help_of_compatibility_flags_names_the_releases() {
        let command = NamesFlags::augment_args(clap::Command::new("test"));
        let help = |id: &str| {
            let argument = command.get_arguments().find(|argument| argument.get_id() == id).unwrap();
            argument.get_help().unwrap().to_string()
        };
        let emulated = format!("1.{OLDEST_EMULATED} to 1.{CURRENT} (default: 1.{CURRENT})");
        assert!(help("emulated_version").contains(&emulated), "{emulated}");
        let compatible = format!("1.{OLDEST_COMPATIBLE} to the emulated release");
        assert!(help("min_compatibility_version").contains(&compatible), "{compatible}");
    }
}
