//! Reads the configuration from a command line and the file of `--config`.

use std::fmt::Display;
use std::path::Path;

use apimachinery::names::Names;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use forwarding::ServiceMap;
use kinds::{EnabledVersions, RuntimeConfigErrors};
use processflags::{
    AuthorizationFlags, NamesFlags, ProxyFlags, SEPARATE_AUTHD_FLAGS, is_flag_of_authd_alone,
};
use serving::arguments::has_flag;
use serving::compatibility::CompatibilityVersions;
use serving::config_file::{self, FlagValues, ServerConfiguration};
use serving::flags::boolean;
use serving::gates::{self, FeatureGates};

use super::availability::Availability;
use super::flags::{ControllerFlags, Flags, GeneralFlags, StorageFlags};
use super::published_config::published_config;
use super::reference_flags::{self, FlagState};
use super::values::split_list;
use super::{Authd, Command, Config, shared_authds};
use authclient::ProxyHeaders;
use controllers::{
    CERTIFICATE_SIGNER, CertificateSigning, EnabledControllers, GARBAGE_COLLECTOR, ROOT_CA_PUBLISHER,
};
use processflags::command_line::{self, ParsedLine};

/// The command line of apid for clap: help, completions and manual pages.
pub fn command() -> clap::Command {
    Flags::command().args(reference_flags::args()).after_help(gates::help())
}

impl Config {
    /// Parses the arguments, without the program name.
    ///
    /// # Errors
    ///
    /// All errors, one line each.
    pub fn read(arguments: impl IntoIterator<Item = String>) -> Result<Command, Vec<String>> {
        let (arguments, file, file_errors) = with_configuration_file(arguments.into_iter().collect());
        let (matches, errors) = match command_line::parse(command(), arguments)? {
            ParsedLine::Flags { matches, errors } => (matches, errors),
            ParsedLine::Text(text) => return Ok(Command::Print(text)),
        };
        let flags = Flags::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])?;
        if !file_errors.is_empty() {
            // The flags in the file are unknown, so nothing shows whether further flags are missing.
            return Err([file_errors, errors].concat());
        }
        let mut reader = Reader { matches: &matches, file, errors, warnings: Vec::new() };
        match reader.build_config(flags) {
            Some(config) if reader.errors.is_empty() => Ok(Command::Serve(Box::new(config))),
            Some(_) | None => Err(reader.errors),
        }
    }
}

/// Adds the flags of the file of `--config` to a command line. Also returns the file and the errors in it.
fn with_configuration_file(
    arguments: Vec<String>,
) -> (Vec<String>, Option<ServerConfiguration>, Vec<String>) {
    let file = match ServerConfiguration::from_arguments(&arguments) {
        Ok(Some(file)) => file,
        Ok(None) => return (arguments, None, Vec::new()),
        Err(errors) => return (arguments, None, errors),
    };
    let command = command();
    let mut errors = file.check_flags(&file.apid, &command);
    let (separate, common): (Vec<FlagValues>, Vec<FlagValues>) =
        file.authd.iter().cloned().partition(|flag| SEPARATE_AUTHD_FLAGS.contains(&flag.name.as_str()));
    let spawns_authd = spawns_authd(&arguments, &file);
    for flag in separate.iter().filter(|_| spawns_authd) {
        errors.push(file.error(format_args!(
            "`authd.{}` is for a separate authd; with `spawn-authd`, apid sets this flag itself",
            flag.name
        )));
    }
    errors.extend(file.check_flags(&common, &command));
    for flag in &common {
        let is_declared = command.get_arguments().any(|arg| arg.get_long() == Some(flag.name.as_str()));
        if is_declared && !processflags::is_flag_of_authd(&flag.name) {
            errors.push(file.error(format_args!("`authd.{}` is a flag of apid", flag.name)));
        }
    }
    if !errors.is_empty() {
        return (arguments, Some(file), errors);
    }
    let is_repeated = |flag: &FlagValues| file.apid.iter().any(|other| other.name == flag.name);
    let is_read = |flag: &&FlagValues| spawns_authd || !is_flag_of_authd_alone(&flag.name);
    let authd_flags = common.iter().filter(is_read).filter(|flag| !is_repeated(flag));
    let defaults: Vec<FlagValues> = file.apid.iter().chain(authd_flags).cloned().collect();
    (config_file::merge(&defaults, arguments), Some(file), errors)
}

/// Whether apid starts authd itself, by the command line or by the file.
fn spawns_authd(arguments: &[String], file: &ServerConfiguration) -> bool {
    const FLAG: &str = "spawn-authd";
    if has_flag(arguments, FLAG) {
        return arguments.iter().rfind(|argument| argument.starts_with("--spawn-authd")).is_some_and(
            |last| last.split_once('=').is_none_or(|(_, value)| boolean(value).unwrap_or(true)),
        );
    }
    file.flag_value(FLAG).is_some_and(|value| boolean(value).unwrap_or(true))
}

/// The state while a command line is read: its flags, and the errors and warnings so far.
struct Reader<'a> {
    matches: &'a ArgMatches,
    file: Option<ServerConfiguration>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl Reader<'_> {
    /// Builds the configuration. Returns None when a required flag is missing or invalid; `errors` then
    /// names the flag.
    fn build_config(&mut self, flags: Flags) -> Option<Config> {
        let preset = flags.shared.names.names;
        let names = self.valid("api-domain", Names::new(preset, &flags.shared.names.api_domain));
        if flags.general.data_dir.is_none() {
            self.errors.push("`--data-dir` is required: set it to the directory of the store".to_owned());
        }
        let authd = self.authd(&flags);
        let shared_authds = shared_authds::check(&flags.authd).unwrap_or_else(|errors| {
            self.errors.extend(errors);
            Vec::new()
        });
        let tls_key = flags.shared.certificates.tls_private_key_file.clone();
        if flags.tls.tls_cert_file.is_some() && tls_key.is_none() {
            self.errors.push("`--tls-cert-file` requires `--tls-private-key-file`".to_owned());
        }
        let tls = flags.tls.tls_cert_file.clone().zip(tls_key);
        let certificate_signing = self.certificate_signing(&flags.controllers);
        let versions = self.compatibility_versions(&flags.shared.names);
        let gates = self.gates(&flags.shared.names.feature_gates, versions.emulated);
        for name in reference_flags::names_without_effect(self.matches, FlagState::UnsafeToIgnore) {
            self.errors.push(format!(
                "`--{name}` is not implemented yet; apid does not start, because ignoring the flag would be unsafe"
            ));
        }
        let controllers = &flags.authd_flags.controllers.controllers;
        let unknown = serving::controller_names::find_unknown(controllers);
        self.errors.extend(unknown.iter().map(|error| format!("`--controllers`: {error}")));
        let unimplemented_flags = reference_flags::names_without_effect(self.matches, FlagState::Planned);
        let unneeded_flags = reference_flags::unneeded_flags(self.matches);
        if flags.general.warn_of_deprecated_flags {
            let deprecated = reference_flags::deprecated_flags(self.matches);
            self.warnings.extend(
                deprecated.map(|(name, advice)| format!("flag `--{name}` has been deprecated: {advice}")),
            );
        }
        let names = names?;
        if let Some(Err(error)) = self.file.as_ref().map(|file| file.check_version(&names)) {
            self.errors.push(error);
        }
        let enabled_versions = self.enabled_versions(&flags.general, versions, gates.as_ref(), &names);
        let admission_configuration =
            self.admission(flags.admission.admission_control_config_file.as_deref(), &names);
        let service_map = self.service_map(flags.admission.service_resolver_file.as_deref());
        let forwarding = flags.forwarding.options(service_map, &mut self.errors);
        let (data_dir, authd, gates) = (flags.general.data_dir.clone()?, authd?, gates?);
        let allows_everything =
            matches!(authd, Authd::Spawned { .. }) && allows_everything(&flags.authd_flags.authorization);
        let mut enabled_controllers = EnabledControllers::new(controllers);
        if !flags.controllers.enable_garbage_collector {
            enabled_controllers.set(GARBAGE_COLLECTOR, false);
        }
        if flags.tls.root_ca_file.is_some() {
            enabled_controllers.set(ROOT_CA_PUBLISHER, true);
        }
        self.check_encryption(&flags.storage, &names);
        self.errors.extend(flags.etcd.errors(&names));
        self.errors.extend(flags.audit.errors(&names));
        self.warnings.extend(flags.audit.warnings());
        let signs_certificates = enabled_controllers.is_enabled(CERTIFICATE_SIGNER);
        let client_cas =
            [&flags.shared.certificates.client_ca_file, &flags.shared.proxy.requestheader_client_ca_file];
        Some(Config {
            port_file: flags.serving.port_file.clone().unwrap_or_else(|| data_dir.join("apid.port")),
            cert_dir: flags.tls.cert_dir.clone().unwrap_or_else(|| data_dir.join("certs")),
            names,
            tls,
            client_cas: client_cas.into_iter().flatten().cloned().collect(),
            published_config: published_config(flags.tls.root_ca_file.clone(), &flags.shared),
            authd,
            shared_authds,
            controllers: enabled_controllers,
            certificate_signing: certificate_signing.filter(|_| signs_certificates),
            admission_configuration,
            forwarding,
            gates,
            compatibility_versions: versions,
            enabled_versions,
            proxy_headers: proxy_headers(&flags.shared.proxy),
            allows_everything,
            unneeded_flags,
            unimplemented_flags,
            warnings: std::mem::take(&mut self.warnings),
            data_dir,
            flags,
        })
    }

    /// Returns the value of a flag. If the value is invalid, records the error.
    fn valid<T>(&mut self, flag: &str, value: Result<T, impl Display>) -> Option<T> {
        value.map_err(|error| self.errors.push(format!("`--{flag}`: {error}"))).ok()
    }

    /// Checks the file of `--encryption-provider-config`. The start reads the file again.
    fn check_encryption(&mut self, flags: &StorageFlags, names: &Names) {
        match &flags.encryption_provider_config {
            Some(file) => {
                self.valid("encryption-provider-config", encryption::Configuration::read(file, names));
            }
            None if flags.encryption_provider_config_automatic_reload => self.errors.push(
                "`--encryption-provider-config-automatic-reload` requires `--encryption-provider-config`"
                    .to_owned(),
            ),
            None => {}
        }
    }

    fn certificate_signing(&mut self, flags: &ControllerFlags) -> Option<CertificateSigning> {
        if flags.cluster_signing_duration.as_secs() == 0 {
            self.errors.push("`--cluster-signing-duration`: must be at least 1s".to_owned());
        }
        let (cert, key) = (&flags.cluster_signing_cert_file, &flags.cluster_signing_key_file);
        let (given, missing) = match (cert, key) {
            (Some(cert), Some(key)) => {
                let duration = flags.cluster_signing_duration;
                return Some(CertificateSigning { cert: cert.clone(), key: key.clone(), duration });
            }
            (None, None) => return None,
            (Some(_), None) => ("cert", "key"),
            (None, Some(_)) => ("key", "cert"),
        };
        let error = format!("`--cluster-signing-{given}-file` requires `--cluster-signing-{missing}-file`");
        self.errors.push(error);
        None
    }

    fn compatibility_versions(&mut self, flags: &NamesFlags) -> CompatibilityVersions {
        flags.compatibility_versions().unwrap_or_else(|errors| {
            self.errors.extend(errors.iter().map(ToString::to_string));
            CompatibilityVersions::default()
        })
    }

    fn gates(&mut self, values: &[String], release: u32) -> Option<FeatureGates> {
        let parsed = FeatureGates::parse(&split_list(values).join(","), release);
        let (gates, warnings) = self.valid("feature-gates", parsed)?;
        self.warnings.extend(warnings);
        Some(gates)
    }

    /// Reads `--runtime-config` and disables the resources that the emulated release and the gates exclude.
    fn enabled_versions(
        &mut self,
        flags: &GeneralFlags,
        versions: CompatibilityVersions,
        gates: Option<&FeatureGates>,
        names: &Names,
    ) -> EnabledVersions {
        let pairs = split_list(&flags.runtime_config);
        let mut enabled = match EnabledVersions::parse(pairs.iter().map(String::as_str), names) {
            Ok((enabled, warnings)) => {
                self.warnings.extend(warnings.iter().map(|warning| format!("`--runtime-config`: {warning}")));
                enabled
            }
            Err(RuntimeConfigErrors(errors)) => {
                self.errors.extend(errors.iter().map(|error| format!("`--runtime-config`: {error}")));
                return EnabledVersions::default();
            }
        };
        let Some(gates) = gates else { return enabled };
        let availability = Availability {
            versions,
            gates,
            is_forward_compatible: flags.emulation_forward_compatible,
            are_keys_forward_compatible: flags.runtime_config_emulation_forward_compatible,
        };
        let (warnings, errors) = availability.restrict(&mut enabled);
        self.warnings.extend(warnings);
        self.errors.extend(errors);
        enabled.with_gates(gates.iter().filter(|(.., is_on)| *is_on).map(|(gate, ..)| gate.name))
    }

    fn authd(&mut self, flags: &Flags) -> Option<Authd> {
        if flags.authd.spawn_authd {
            let program = flags.authd.authd_program.clone();
            return Some(Authd::Spawned { program, flags: processflags::given_arguments(self.matches) });
        }
        for name in processflags::given_names(self.matches) {
            self.warnings.push(format!("`--{name}` is a flag of authd; ignored without `--spawn-authd`"));
        }
        if let Some(socket) = &flags.authd.authd_socket {
            return Some(Authd::At(socket.clone()));
        }
        if !flags.authd.authd_servers.is_empty() {
            return Some(Authd::Shared);
        }
        self.errors.push(
            "authd is not configured: use `--spawn-authd` to start it, `--authd-socket` for the socket of a running one, or \
             `--authd-servers` for shared ones"
                .to_owned(),
        );
        None
    }

    /// Reads the file of `--service-resolver-file`.
    fn service_map(&mut self, file: Option<&Path>) -> ServiceMap {
        let Some(file) = file else { return ServiceMap::default() };
        let name = file.display().to_string();
        let text = std::fs::read(file).map_err(|error| format!("file `{name}`: {error}"));
        let service_map =
            text.and_then(|text| ServiceMap::parse(&name, &text).map_err(|error| error.to_string()));
        self.valid("service-resolver-file", service_map).unwrap_or_default()
    }

    /// Reads the file of `--admission-control-config-file` with all files that it refers to.
    fn admission(&mut self, file: Option<&Path>, names: &Names) -> admission::Configuration {
        let Some(file) = file else { return admission::Configuration::default() };
        let directory = file.parent().unwrap_or(Path::new(""));
        let read = |path: &str| std::fs::read(directory.join(path));
        let configuration = std::fs::read(file)
            .map_err(|error| vec![format!("file `{}`: {error}", file.display())])
            .and_then(|text| {
                admission::Configuration::parse(&file.display().to_string(), &text, names, &read)
            });
        configuration.unwrap_or_else(|errors| {
            let lines = errors.iter().map(|error| format!("`--admission-control-config-file`: {error}"));
            self.errors.extend(lines);
            admission::Configuration::default()
        })
    }
}

/// Whether a spawned authd allows every request: without an authorization mode, or with AlwaysAllow.
fn allows_everything(flags: &AuthorizationFlags) -> bool {
    let modes = split_list(&flags.authorization_mode);
    (modes.is_empty() && flags.authorization_config.is_none())
        || modes.iter().any(|mode| mode == "AlwaysAllow")
}

/// Returns the headers of authenticating proxies. Empty without `--requestheader-client-ca-file`, because
/// then no client is a proxy.
fn proxy_headers(flags: &ProxyFlags) -> ProxyHeaders {
    if flags.requestheader_client_ca_file.is_none() {
        return ProxyHeaders::default();
    }
    let lower_case = |values: &[String]| -> Vec<String> {
        split_list(values).iter().map(|header| header.to_ascii_lowercase()).collect()
    };
    let names = [
        &flags.requestheader_username_headers,
        &flags.requestheader_uid_headers,
        &flags.requestheader_group_headers,
    ];
    ProxyHeaders {
        names: names.into_iter().flat_map(|values| lower_case(values)).collect(),
        prefixes: lower_case(&flags.requestheader_extra_headers_prefix),
    }
}
