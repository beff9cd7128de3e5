//! Requests without credentials: the user of last resort (requirements A-PRIN-12, A-PRIN-24, A-PRIN-25).

use apimachinery::user::UserInfo;

use super::Accepted;

/// As the log and the metrics name it.
pub(super) const NAME: &str = "anonymous";

/// The anonymous user.
pub(super) fn accept() -> Accepted {
    Accepted { user: UserInfo::anonymous(), anonymous: true, ..Accepted::default() }
}
