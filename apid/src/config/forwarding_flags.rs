//! The flags of connections to Services, pods, nodes and aggregated APIs, and the options that they describe.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use forwarding::{AddressPolicy, DEFAULT_ADDRESS_TYPES, ForwardingOptions, ServiceMap};
use serving::flags::{boolean, duration};

use super::values::split_list;

#[derive(Debug, Args)]
#[command(next_help_heading = "Forwarding flags")]
pub(crate) struct ForwardingFlags {
    /// Addresses and networks that pods, nodes and endpoints may have although they are local: 127.0.0.0/8,...
    #[arg(long, value_name = "CIDR,...")]
    forwarding_address_exceptions: Vec<String>,
    /// Send requests for aggregated APIs to ready endpoints only, never to a cluster IP
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    enable_aggregator_routing: bool,
    /// Client certificate for aggregated APIs; needs --proxy-client-key-file; hot reload
    #[arg(long, value_name = "FILE")]
    proxy_client_cert_file: Option<PathBuf>,
    /// Private key of --proxy-client-cert-file; hot reload
    #[arg(long, value_name = "FILE")]
    proxy_client_key_file: Option<PathBuf>,
    /// CA bundle that verifies kubelets; default: no verification
    #[arg(long, value_name = "FILE")]
    kubelet_certificate_authority: Option<PathBuf>,
    /// Client certificate for kubelets; needs --kubelet-client-key; hot reload
    #[arg(long, value_name = "FILE")]
    kubelet_client_certificate: Option<PathBuf>,
    /// Private key of --kubelet-client-certificate; hot reload
    #[arg(long, value_name = "FILE")]
    kubelet_client_key: Option<PathBuf>,
    /// Types of node addresses in the order of preference
    #[arg(
        long,
        value_name = "TYPE,...",
        default_value = "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP"
    )]
    kubelet_preferred_address_types: Vec<String>,
    /// Maximum time for a connection to a kubelet
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    kubelet_timeout: Duration,
}

impl ForwardingFlags {
    /// Returns the options of the flags, with the addresses of `--service-resolver-file`. Adds the errors of flags.
    pub(super) fn options(&self, service_map: ServiceMap, errors: &mut Vec<String>) -> ForwardingOptions {
        let addresses = AddressPolicy::new(&split_list(&self.forwarding_address_exceptions));
        let addresses = addresses.unwrap_or_else(|error| {
            errors.push(format!("`--forwarding-address-exceptions`: {error}"));
            AddressPolicy::default()
        });
        let mut pair = |certificate: &Option<PathBuf>, key: &Option<PathBuf>, names: (&str, &str)| {
            match (certificate, key) {
                (Some(_), None) => errors.push(format!("`--{}` requires `--{}`", names.0, names.1)),
                (None, Some(_)) => errors.push(format!("`--{}` requires `--{}`", names.1, names.0)),
                _ => {}
            }
            certificate.clone().zip(key.clone())
        };
        let aggregator_credentials = pair(
            &self.proxy_client_cert_file,
            &self.proxy_client_key_file,
            ("proxy-client-cert-file", "proxy-client-key-file"),
        );
        let kubelet_credentials = pair(
            &self.kubelet_client_certificate,
            &self.kubelet_client_key,
            ("kubelet-client-certificate", "kubelet-client-key"),
        );
        let kubelet_address_types = split_list(&self.kubelet_preferred_address_types);
        for kind in
            kubelet_address_types.iter().filter(|kind| !DEFAULT_ADDRESS_TYPES.contains(&kind.as_str()))
        {
            errors.push(format!(
                "`--kubelet-preferred-address-types`: `{kind}` is no address type; types: {}",
                DEFAULT_ADDRESS_TYPES.join(", ")
            ));
        }
        ForwardingOptions {
            addresses: Arc::new(addresses),
            service_map,
            aggregator_routing: self.enable_aggregator_routing,
            kubelet_address_types,
            kubelet_authority: self.kubelet_certificate_authority.clone(),
            kubelet_credentials,
            kubelet_timeout: self.kubelet_timeout,
            aggregator_credentials,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: ForwardingFlags,
    }

    fn parse(arguments: &[&str]) -> (ForwardingOptions, Vec<String>) {
        let command = Command::parse_from(["apid"].iter().chain(arguments));
        let mut errors = Vec::new();
        (command.flags.options(ServiceMap::default(), &mut errors), errors)
    }

    #[test]
    fn forwarding_flags_have_the_defaults_of_the_reference() {
        let (options, errors) = parse(&[]);
        assert_eq!(options.kubelet_address_types, DEFAULT_ADDRESS_TYPES);
        assert_eq!((options.kubelet_timeout, options.aggregator_routing), (Duration::from_secs(5), false));
        assert_eq!(*options.addresses, AddressPolicy::default());
        assert!(options.kubelet_credentials.is_none() && errors.is_empty(), "{errors:?}");
        let (options, errors) = parse(&[
            "--kubelet-preferred-address-types=InternalIP,Hostname",
            "--forwarding-address-exceptions=127.0.0.1,::1/128",
            "--enable-aggregator-routing",
            "--kubelet-client-certificate=c",
            "--kubelet-client-key=k",
        ]);
        assert_eq!(options.kubelet_address_types, ["InternalIP", "Hostname"]);
        assert_eq!(options.kubelet_credentials, Some(("c".into(), "k".into())));
        assert!(options.addresses.check("127.0.0.1".parse().unwrap()).is_ok() && errors.is_empty());
    }

    #[test]
    fn forwarding_flag_errors_are_reported_together() {
        let (_, errors) = parse(&[
            "--kubelet-preferred-address-types=Other",
            "--forwarding-address-exceptions=localhost",
            "--kubelet-client-key=k",
            "--proxy-client-cert-file=c",
        ]);
        for (error, text) in errors.iter().zip([
            "`localhost` is neither",
            "`--proxy-client-cert-file` requires `--proxy-client-key-file`",
            "`--kubelet-client-key` requires `--kubelet-client-certificate`",
            "`Other` is no address type",
        ]) {
            assert!(error.contains(text), "{error}");
        }
        assert_eq!(errors.len(), 4);
    }
}
