//! Who makes a request and whether they may: the client of authd, its caches, the policy revisions and the mirror.
//!
//! # Contract
//!
//! [`Auth::authenticate`] gives an [`Authenticated`], [`Auth::authorize`] an [`Authorized`]; nothing else can make them, and
//! every verb takes an `Authorized`. Work of the process itself is authorized by [`Authorized::internal`], with an
//! identity that the audit log shows.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a request that arrives after a policy write was acknowledged is never decided on policy
//! older than that write (design section 2).
//! INVARIANT (fail closed): no answer from authd is a 503, never an allow.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::user::UserInfo;

/// A caller whose credentials were accepted.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<UserInfo>,
}

impl Authenticated {
    /// The caller.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }
}

/// A request that may go on: who, and what exactly.
#[derive(Clone, Debug)]
pub struct Authorized {
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    reason: Arc<str>,
}

impl Authorized {
    /// The caller.
    pub fn user(&self) -> &Arc<UserInfo> {
        &self.user
    }

    /// What was allowed.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Why, for the audit log.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}
