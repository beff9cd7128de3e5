//! Anonymous requests: requests without credentials (requirements A-PRIN-12, A-PRIN-24, A-PRIN-25).

use apimachinery::user::UserInfo;

use super::AuthenticatedIdentity;

/// The authenticator name in the log and the metrics.
pub(super) const NAME: &str = "anonymous";

/// The requests without credentials that are accepted as requests of the anonymous user.
/// The flag `--anonymous-auth` or the section `anonymous` of the authentication configuration sets this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anonymous access is on, for all paths or those in `paths`.
    pub enabled: bool,
    /// The exact request paths with anonymous access; empty means all.
    pub paths: Vec<String>,
}

impl Anonymous {
    /// Whether a request without credentials for this path is accepted as a request of the anonymous user.
    pub fn allows(&self, path: &str) -> bool {
        self.enabled && (self.paths.is_empty() || self.paths.iter().any(|allowed| allowed == path))
    }
}

/// The identity of a request without credentials.
pub(super) fn identity() -> AuthenticatedIdentity {
    AuthenticatedIdentity { user: UserInfo::anonymous(), anonymous: true, ..AuthenticatedIdentity::default() }
}
