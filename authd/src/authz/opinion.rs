//! The opinions of all authorizers on one request, for explanations.

use std::time::Duration;

use apimachinery::decision::{Decision, Verdict};

use super::append_line;
use crate::rules::Explanation;

/// The opinion of one authorizer on a request.
#[derive(Clone, Debug, Default)]
pub struct Opinion {
    /// The name of the authorizer, as in metrics. For the opinion on
    /// the group `system:masters` it is the name of the group.
    pub name: String,
    /// The authorizer type, such as `RBAC`; `Group` for `system:masters`.
    pub kind: &'static str,
    /// The decision. None if the authorizer did not run, because an earlier one decided.
    pub decision: Option<Decision>,
    /// The duration of the authorization by this authorizer.
    pub latency: Duration,
    /// The explanation of the decision; empty for an authorizer without rules in memory.
    pub explanation: Explanation,
}

impl Opinion {
    /// The verdict as the API spells it.
    pub fn verdict_word(&self) -> &'static str {
        match self.decision.as_ref().map(|decision| decision.verdict) {
            Some(Verdict::Allow) => "Allow",
            Some(Verdict::Deny) => "Deny",
            Some(Verdict::NoOpinion) => "NoOpinion",
            None => "NotConsulted",
        }
    }
}

/// The opinions of all authorizers in order, and the resulting decision.
#[derive(Clone, Debug, Default)]
pub struct Opinions {
    /// One opinion for each authorizer in order, after one for `system:masters` if the user is a member.
    pub list: Vec<Opinion>,
    /// No opinion, with the reasons and errors of all authorizers that ran.
    pub(super) undecided: Decision,
}

/// The text in place of an error of a webhook, for users who may not read the configuration.
fn hidden_webhook_error(name: &str) -> String {
    format!("webhook `{name}` failed; the log of the server has the error")
}

impl Opinions {
    /// Returns the first allow or denial; without one, no opinion with all reasons.
    pub fn decision(&self) -> &Decision {
        let decisions = self.list.iter().filter_map(|opinion| opinion.decision.as_ref());
        let is_decided = |decision: &&Decision| decision.verdict != Verdict::NoOpinion;
        decisions.into_iter().find(is_decided).unwrap_or(&self.undecided)
    }

    /// Replaces the errors of webhooks, which contain their URLs, match conditions and failures.
    pub fn hide_webhook_errors(&mut self) {
        self.undecided.evaluation_error.clear();
        for opinion in &mut self.list {
            let Some(decision) = &mut opinion.decision else { continue };
            if opinion.kind == "Webhook" && !decision.evaluation_error.is_empty() {
                decision.evaluation_error = hidden_webhook_error(&opinion.name);
            }
            append_line(&mut self.undecided.evaluation_error, &decision.evaluation_error);
        }
    }

    /// Whether RBAC is configured, so that a new role and binding could allow the request.
    pub fn has_rbac(&self) -> bool {
        self.list.iter().any(|opinion| opinion.kind == "RBAC")
    }
}
