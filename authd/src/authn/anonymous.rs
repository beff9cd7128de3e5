//! Requests without credentials: the user of last resort (requirements A-PRIN-12, A-PRIN-24, A-PRIN-25).

use apimachinery::user::UserInfo;

use super::Accepted;

/// As the log and the metrics name it.
pub(super) const NAME: &str = "anonymous";

/// Who may be nobody: the flag `--anonymous-auth`, or the section `anonymous` of the authentication configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anybody may.
    pub enabled: bool,
    /// The only paths that may be asked for; empty means all.
    pub paths: Vec<String>,
}

impl Anonymous {
    /// Whether a request for the path may be made by nobody.
    pub fn admits(&self, path: &str) -> bool {
        self.enabled && (self.paths.is_empty() || self.paths.iter().any(|allowed| allowed == path))
    }
}

/// The anonymous user.
pub(super) fn accept() -> Accepted {
    Accepted { user: UserInfo::anonymous(), anonymous: true, ..Accepted::default() }
}
