//! The address of a backend, resolved and checked.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::lookup::lookup;
use crate::{AddressNotAllowed, AddressPolicy};

/// Protocol of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// A backend to connect to. Clones are cheap.
///
/// INVARIANT (checked address): the addresses of a target are those that the [`AddressPolicy`] has checked. The
/// transport connects to these addresses and resolves no name a second time. Only names of the configuration of this
/// server and of Services of the type ExternalName are not checked, as in kube-apiserver; the transport resolves
/// them when it connects.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target(Arc<Parts>);

#[derive(PartialEq, Eq, Hash)]
struct Parts {
    scheme: Scheme,
    host: String,
    port: u16,
    addresses: Addresses,
}

/// The addresses of a target.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum Addresses {
    /// Addresses that the policy has checked.
    Checked(Vec<IpAddr>),
    /// The addresses of the host at the time of the connection.
    OfHost,
}

/// The reason why the name of a node has no address to connect to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// An address of the name is not allowed.
    #[error(transparent)]
    NotAllowed(#[from] AddressNotAllowed),
    /// The name has no address.
    #[error("lookup {name}: {problem}")]
    Lookup {
        /// The name.
        name: String,
        /// The answer of the resolver.
        problem: String,
    },
}

impl Target {
    /// Creates the target of an IP address of an object.
    ///
    /// # Errors
    ///
    /// The policy rejects the address.
    pub fn at_address(
        scheme: Scheme,
        address: IpAddr,
        port: u16,
        policy: &AddressPolicy,
    ) -> Result<Self, AddressNotAllowed> {
        policy.check(address)?;
        Ok(Target::new(scheme, address.to_string(), port, Addresses::Checked(vec![address])))
    }

    /// Creates the target of a host of an object: an IP address, or a name, which is resolved now.
    ///
    /// # Errors
    ///
    /// The name has no address, or none within the maximum time, or the policy rejects one of its addresses.
    pub async fn at_host(
        scheme: Scheme,
        host: &str,
        port: u16,
        policy: &AddressPolicy,
        max_time: Duration,
    ) -> Result<Self, NameError> {
        if let Ok(address) = host.parse() {
            return Ok(Target::at_address(scheme, address, port, policy)?);
        }
        let addresses = checked_addresses(host, lookup(host, port), policy, max_time).await?;
        Ok(Target::new(scheme, host.to_owned(), port, Addresses::Checked(addresses)))
    }

    /// Creates the target of a host that the configuration of this server names, or the external name of a Service.
    pub(crate) fn trusted(scheme: Scheme, host: &str, port: u16) -> Self {
        Target::new(scheme, host.to_owned(), port, Addresses::OfHost)
    }

    fn new(scheme: Scheme, host: String, port: u16, addresses: Addresses) -> Self {
        Target(Arc::new(Parts { scheme, host, port, addresses }))
    }

    /// The protocol.
    pub fn scheme(&self) -> Scheme {
        self.0.scheme
    }

    /// The IP address or name, without brackets.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// `HOST:PORT`, with brackets around an IPv6 address.
    pub fn authority(&self) -> String {
        let Parts { host, port, .. } = &*self.0;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// `SCHEME://HOST:PORT`.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme().as_str(), self.authority())
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        &self.0.addresses
    }
}

/// Returns the addresses that a look-up of a name finds within the maximum time, if the policy allows all of them.
async fn checked_addresses(
    name: &str,
    lookup: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    policy: &AddressPolicy,
    max_time: Duration,
) -> Result<Vec<IpAddr>, NameError> {
    let failed = |problem: &str| NameError::Lookup { name: name.to_owned(), problem: problem.to_owned() };
    let found = match tokio::time::timeout(max_time, lookup).await {
        Ok(Ok(found)) if !found.is_empty() => found,
        Ok(_) => return Err(failed("no such host")),
        Err(_elapsed) => return Err(failed("i/o timeout")),
    };
    for address in &found {
        policy.check(address.ip())?;
    }
    Ok(found.iter().map(SocketAddr::ip).collect())
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.origin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2020-8562: a second resolution could return another address than the checked one.
    #[tokio::test]
    async fn name_is_resolved_once_and_every_address_is_checked() {
        let strict = AddressPolicy::default();
        let open = AddressPolicy::new(&["127.0.0.0/8".to_owned(), "::1".to_owned()]).unwrap();
        let at_host = |host: &'static str, policy: AddressPolicy| async move {
            Target::at_host(Scheme::Https, host, 10250, &policy, Duration::from_secs(30)).await
        };
        let error = at_host("localhost", strict.clone()).await.unwrap_err();
        assert_eq!(error, NameError::NotAllowed(AddressNotAllowed));
        assert_eq!(error.to_string(), "address not allowed");
        let target = at_host("localhost", open).await.unwrap();
        assert!(matches!(target.addresses(), Addresses::Checked(found) if !found.is_empty()));
        assert_eq!(target.origin(), "https://localhost:10250");
        assert_eq!(at_host("fd00::1", strict.clone()).await.unwrap().authority(), "[fd00::1]:10250");
        let error = at_host("nowhere.invalid", strict).await.unwrap_err();
        assert_eq!(error.to_string(), "lookup nowhere.invalid: no such host");
    }

    #[tokio::test]
    async fn name_without_answer_in_time_is_an_error() {
        let policy = AddressPolicy::default();
        let pending = std::future::pending();
        let found = checked_addresses("slow", pending, &policy, Duration::from_millis(20)).await;
        assert_eq!(found.unwrap_err().to_string(), "lookup slow: i/o timeout");
        let empty = async { Ok(Vec::new()) };
        let found = checked_addresses("empty", empty, &policy, Duration::from_secs(30)).await;
        assert_eq!(found.unwrap_err().to_string(), "lookup empty: no such host");
    }

    #[tokio::test]
    async fn name_with_one_forbidden_address_is_rejected() {
        let policy = AddressPolicy::default();
        for (found, is_allowed) in [
            (["10.0.0.1", "10.0.0.2"], true),
            (["10.0.0.1", "fd00::1"], true),
            (["10.0.0.1", "127.0.0.1"], false),
            (["127.0.0.1", "10.0.0.1"], false),
            (["10.0.0.1", "169.254.169.254"], false),
            (["10.0.0.1", "::1"], false),
            (["fd00::1", "::ffff:127.0.0.1"], false),
        ] {
            let ips = found.map(|address| address.parse::<IpAddr>().unwrap()).to_vec();
            let lookup = std::future::ready(Ok(ips.iter().map(|ip| SocketAddr::new(*ip, 443)).collect()));
            let expected = if is_allowed { Ok(ips) } else { Err(NameError::NotAllowed(AddressNotAllowed)) };
            let checked = checked_addresses("node", lookup, &policy, Duration::from_secs(30)).await;
            assert_eq!(checked, expected, "{found:?}");
        }
    }
}
