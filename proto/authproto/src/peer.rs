//! The identity of an authd process, which the headers of every gRPC response carry.
//!
//! # Contract
//!
//! authd adds the identity to the headers of every response. apid uses a response only if the identity matches
//! its own names and [`PROTOCOL`], and if all responses come from one process.

use apimachinery::names::{Names, Preset};
use tonic::metadata::MetadataMap;

/// The version of the protocol. A change that makes a message unusable for the other side increases it.
pub const PROTOCOL: u32 = 2;

const PROTOCOL_KEY: &str = "authd-protocol";
const PRESET_KEY: &str = "authd-preset";
const API_DOMAIN_KEY: &str = "authd-api-domain";
const INSTANCE_KEY: &str = "authd-instance";

/// The key of the metadata in which apid names itself to an authd that serves several apids.
pub const APID_KEY: &str = "apid-instance";

/// Returns the name of the apid that sent a request with this metadata; empty without a name.
pub fn apid_of(metadata: &MetadataMap) -> &str {
    metadata.get(APID_KEY).and_then(|name| name.to_str().ok()).unwrap_or_default()
}

/// The names preset and the API domain of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerNames {
    /// `svc` or `kubernetes`.
    pub preset: String,
    /// The API domain. The preset `kubernetes` does not use it.
    pub api_domain: String,
}

impl PeerNames {
    /// The names of this process.
    pub fn new(names: &Names) -> Self {
        PeerNames { preset: names.preset().to_string(), api_domain: names.api_domain().to_owned() }
    }

    /// Whether both processes have the same names.
    pub fn matches(&self, other: &PeerNames) -> bool {
        self.preset == other.preset
            && (self.preset == Preset::Kubernetes.to_string() || self.api_domain == other.api_domain)
    }
}

impl std::fmt::Display for PeerNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.preset, self.api_domain)
    }
}

/// The identity of an authd process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The version of the protocol that the process has.
    pub protocol: u32,
    /// The names of the process.
    pub names: PeerNames,
    /// Random text that identifies the process, as in its epochs.
    pub instance: String,
}

impl Peer {
    /// Encodes the identity for the headers of a response.
    pub fn to_metadata(&self) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        let protocol = self.protocol.to_string();
        for (key, value) in [
            (PROTOCOL_KEY, protocol.as_str()),
            (PRESET_KEY, &self.names.preset),
            (API_DOMAIN_KEY, &self.names.api_domain),
            (INSTANCE_KEY, &self.instance),
        ] {
            if let Ok(value) = value.parse() {
                metadata.insert(key, value);
            }
        }
        metadata
    }

    /// Decodes the identity from the headers of a response. Returns None if authd has a release without identity.
    pub fn from_metadata(metadata: &MetadataMap) -> Option<Self> {
        let text = |key| metadata.get(key)?.to_str().ok().map(str::to_owned);
        Some(Peer {
            protocol: text(PROTOCOL_KEY)?.parse().ok()?,
            names: PeerNames { preset: text(PRESET_KEY)?, api_domain: text(API_DOMAIN_KEY)? },
            instance: text(INSTANCE_KEY)?,
        })
    }
}
