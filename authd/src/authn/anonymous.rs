//! Requests without credentials: the user of last resort (requirements A-PRIN-12, A-PRIN-24, A-PRIN-25).

use apimachinery::user::UserInfo;

use super::Accepted;

/// The anonymous user.
pub(super) fn accept() -> Accepted {
    Accepted { user: UserInfo::anonymous(), anonymous: true, ..Accepted::default() }
}
