//! The check that the process at the other end of a stream is the authd that apid needs.

use std::sync::Arc;

use apimachinery::names::Names;
use authproto::peer::{PROTOCOL, Peer, PeerNames};
use tonic::metadata::MetadataMap;

use crate::transport::connection::AuthdProblem;

/// The names and the protocol that authd must have.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedAuthd {
    names: PeerNames,
}

impl ExpectedAuthd {
    /// Expects the names of apid.
    pub(crate) fn new(names: &Names) -> Self {
        ExpectedAuthd { names: PeerNames::new(names) }
    }

    /// Returns the instance of the process that sent these headers.
    ///
    /// # Errors
    ///
    /// The process has other names, or a release with another protocol.
    pub(crate) fn instance(&self, headers: &MetadataMap) -> Result<Arc<str>, AuthdProblem> {
        let mismatch = |text: String| Err(AuthdProblem::Mismatched(text));
        let Some(peer) = Peer::from_metadata(headers) else {
            return mismatch("authd does not identify itself; start programs of the same release".to_owned());
        };
        if peer.protocol != PROTOCOL {
            return mismatch(format!(
                "authd has version {} of the protocol, apid has version {PROTOCOL}; start programs of the same release",
                peer.protocol
            ));
        }
        if !peer.names.matches(&self.names) {
            return mismatch(format!(
                "authd has the names `{}`, apid has `{}`; start both with the same names preset and API domain",
                peer.names, self.names
            ));
        }
        Ok(peer.instance.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    #[test]
    fn process_with_other_names_or_version_is_mismatched() {
        let names = |preset: &str, api_domain: &str| PeerNames {
            preset: preset.to_owned(),
            api_domain: api_domain.to_owned(),
        };
        let svc = Names::new(Preset::Svc, "svc.internal").unwrap();
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        for (own_names, peer_names, protocol, expected) in [
            (&svc, names("svc", "svc.internal"), PROTOCOL, None),
            (&svc, names("svc", "other.internal"), PROTOCOL, Some("names `svc other.internal`")),
            (&svc, names("kubernetes", "svc.internal"), PROTOCOL, Some("names `kubernetes svc.internal`")),
            (&svc, names("svc", "svc.internal"), PROTOCOL + 1, Some("authd has version")),
            (&kubernetes, names("kubernetes", "any"), PROTOCOL, None),
            (&kubernetes, names("svc", "svc.internal"), PROTOCOL, Some("names `svc svc.internal`")),
        ] {
            let peer = Peer { protocol, names: peer_names, instance: "one".to_owned() };
            let result = ExpectedAuthd::new(own_names).instance(&peer.to_metadata());
            match expected {
                None => assert_eq!(result, Ok("one".into()), "{peer:?}"),
                Some(text) => assert!(result.unwrap_err().to_string().contains(text), "{peer:?}"),
            }
        }
        let error = ExpectedAuthd::new(&svc).instance(&MetadataMap::new()).unwrap_err();
        assert!(error.to_string().contains("same release"), "{error}");
    }
}
