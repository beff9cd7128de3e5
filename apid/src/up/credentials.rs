//! Client certificates of users.

use jiff::Timestamp;
use serving::certs::PemPair;

use crate::certs::CertsError;
use crate::certs::ensured::ClientCertificates;

/// The client certificate of a user.
#[derive(Debug)]
pub(super) struct Credentials {
    /// The name of the user and of the context.
    pub(super) user: String,
    pub(super) certificate: PemPair,
}

impl Credentials {
    /// Reads the client certificate of a user with groups, or makes it.
    pub(super) fn ensure(
        clients: &ClientCertificates,
        user: &str,
        groups: &[&str],
        now: Timestamp,
    ) -> Result<Self, CertsError> {
        Ok(Credentials { user: user.to_owned(), certificate: clients.ensure(user, groups, now)? })
    }
}
