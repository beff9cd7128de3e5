//! The opinions of all authorizers on one request, for explanations.

use std::time::Duration;

use apimachinery::decision::{Decision, Verdict};

use crate::rules::Explanation;

/// The opinion of one authorizer.
#[derive(Clone, Debug)]
pub struct Opinion {
    /// The name in the configuration, or the type.
    pub name: String,
    /// The type: `RBAC`.
    pub kind: &'static str,
    /// The decision. None: an earlier authorizer decided.
    pub decision: Option<Decision>,
    /// The time that the authorizer took.
    pub latency: Duration,
    /// The evidence of an authorizer with rules in memory.
    pub explanation: Explanation,
}

impl Opinion {
    /// The verdict in the words of the API.
    pub fn verdict_word(&self) -> &'static str {
        match self.decision.as_ref().map(|decision| decision.verdict) {
            Some(Verdict::Allow) => "Allow",
            Some(Verdict::Deny) => "Deny",
            Some(Verdict::NoOpinion) => "NoOpinion",
            None => "NotConsulted",
        }
    }
}

/// The opinions of all authorizers in order, and their decision.
#[derive(Clone, Debug, Default)]
pub struct Opinions {
    /// One opinion for each authorizer, in order.
    pub list: Vec<Opinion>,
    /// The reasons and errors of authorizers without an opinion.
    undecided: Decision,
}

impl Opinions {
    /// Opinions of which `undecided` summarizes those without a decision.
    pub(super) fn new(list: Vec<Opinion>, undecided: Decision) -> Self {
        Opinions { list, undecided }
    }

    /// The decision: that of the first authorizer with one, else no opinion with all reasons.
    pub fn decision(&self) -> &Decision {
        let decisions = self.list.iter().filter_map(|opinion| opinion.decision.as_ref());
        let is_decided = |decision: &&Decision| decision.verdict != Verdict::NoOpinion;
        decisions.into_iter().find(is_decided).unwrap_or(&self.undecided)
    }

    /// Whether a new role could change the decision.
    pub fn has_rbac(&self) -> bool {
        self.list.iter().any(|opinion| opinion.kind == "RBAC")
    }
}
