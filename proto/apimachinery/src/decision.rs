//! What an authorizer says. The zero value refuses.

/// An authorizer's opinion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Refused, and later authorizers are not asked.
    #[default]
    Deny,
    /// Allowed, and later authorizers are not asked.
    Allow,
    /// The next authorizer decides; refused when there is none.
    NoOpinion,
}

/// A verdict with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Binding, role and rule of an allow; what a client may know of a refusal.
    pub reason: String,
    /// A problem met on the way, `""` when there was none.
    pub evaluation_error: String,
}

impl Decision {
    /// Whether the request may go on. Everything but `Allow` refuses.
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}
