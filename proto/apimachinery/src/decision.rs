//! Authorization decisions. The default decision denies.

/// Verdict of an authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Denied; later authorizers are not called.
    #[default]
    Deny,
    /// Allowed; later authorizers are not called.
    Allow,
    /// The next authorizer decides. Without a next authorizer the request is denied.
    NoOpinion,
}

/// Appends the nearest misses of a denial (rules that allow a similar request) to its reason.
pub fn explain_reason(reason: &str, nearest_misses: &[String]) -> String {
    if nearest_misses.is_empty() {
        return reason.to_owned();
    }
    let nearest = format!("nearest: {}", nearest_misses.join("; "));
    if reason.is_empty() { nearest } else { format!("{reason}; {nearest}") }
}

/// Verdict with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Verdict.
    pub verdict: Verdict,
    /// Of an allowed request: the binding, role and rule that allow it. Of a denied request: the reason that
    /// the client sees.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explained_reason_lists_nearest_misses_after_the_reason() {
        let misses = ["A".to_owned(), "and 2 more".to_owned()];
        for (reason, misses, expected) in [
            ("", &[][..], ""),
            ("No policy matched.", &[], "No policy matched."),
            ("", &misses, "nearest: A; and 2 more"),
            ("RBAC: x not found", &misses, "RBAC: x not found; nearest: A; and 2 more"),
        ] {
            assert_eq!(explain_reason(reason, misses), expected);
        }
    }
}
