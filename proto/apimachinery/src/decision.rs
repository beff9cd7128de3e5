//! Authorization decisions. The zero value denies.

/// Verdict of an authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Denied; later authorizers are not called.
    #[default]
    Deny,
    /// Allowed; later authorizers are not called.
    Allow,
    /// The next authorizer decides; denied when there is none.
    NoOpinion,
}

/// Verdict with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Verdict.
    pub verdict: Verdict,
    /// Binding, role and rule of an allow; the client-visible reason of a denial.
    pub reason: String,
    /// Error met during the evaluation, `""` without errors.
    pub evaluation_error: String,
}

impl Decision {
    /// Whether the request may proceed. Every verdict but `Allow` denies.
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }
}
