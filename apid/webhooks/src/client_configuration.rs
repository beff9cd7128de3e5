//! The field `clientConfig` of a webhook.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forwarding::ServicePort;
use serde_json::Value;

/// Default port of a Service reference.
const DEFAULT_PORT: u16 = 443;

/// Address and CA bundle of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientConfiguration {
    /// Address of the webhook.
    pub address: WebhookAddress,
    /// CA bundle in PEM. If it is empty, the CA certificates of this machine verify the webhook.
    pub ca_bundle: Arc<[u8]>,
}

/// Address of a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WebhookAddress {
    /// The field `url`.
    Url(String),
    /// The field `service`.
    Service(ServiceReference),
}

/// Reference to a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceReference {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Port of the Service; 443 if the configuration has none.
    pub port: u16,
    /// Path of the URL, with the leading slash; `/` if the configuration has none.
    pub path: String,
}

/// The reason why a client configuration is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfiguration {
    /// Neither `url` nor `service` is set.
    #[error("clientConfig has neither url nor service")]
    NoAddress,
    /// The port of the Service is not an integer from 1 to 65535.
    #[error("clientConfig.service.port is not a port number")]
    Port,
    /// The CA bundle is not base64.
    #[error("clientConfig.caBundle is not base64")]
    CaBundle,
}

impl ClientConfiguration {
    /// Reads a client configuration.
    ///
    /// # Errors
    ///
    /// See [`InvalidConfiguration`]. Validation rejects objects with such a defect, so stored objects have
    /// none.
    pub fn read(config: &Value) -> Result<Self, InvalidConfiguration> {
        let text = |source: &Value, field: &str| {
            source.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let address = if let Some(url) = text(config, "url") {
            WebhookAddress::Url(url)
        } else if let Some(service) = config.get("service").filter(|service| service.is_object()) {
            let port = match service.get("port").filter(|port| !port.is_null()) {
                None => DEFAULT_PORT,
                Some(port) => {
                    let port = port.as_u64().and_then(|port| u16::try_from(port).ok());
                    port.filter(|port| *port > 0).ok_or(InvalidConfiguration::Port)?
                }
            };
            WebhookAddress::Service(ServiceReference {
                namespace: text(service, "namespace").unwrap_or_default(),
                name: text(service, "name").unwrap_or_default(),
                port,
                path: text(service, "path").unwrap_or_else(|| "/".to_owned()),
            })
        } else {
            return Err(InvalidConfiguration::NoAddress);
        };
        let ca_bundle = text(config, "caBundle").unwrap_or_default();
        let ca_bundle = STANDARD.decode(ca_bundle).map_err(|_| InvalidConfiguration::CaBundle)?;
        Ok(ClientConfiguration { address, ca_bundle: ca_bundle.into() })
    }

    /// The URL of the webhook, for messages and for the choice of credentials. The host in the URL of a
    /// Service is the TLS server name of the Service.
    pub fn url(&self) -> String {
        match &self.address {
            WebhookAddress::Url(url) => url.clone(),
            WebhookAddress::Service(service) => {
                format!("https://{}:{}{}", service.server_name(), service.port, service.path)
            }
        }
    }
}

impl ServiceReference {
    /// The port of the Service, for its resolution.
    pub(crate) fn port(&self) -> ServicePort<'_> {
        ServicePort { namespace: &self.namespace, name: &self.name, port: self.port }
    }

    /// The TLS server name: `<name>.<namespace>.svc`.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}
