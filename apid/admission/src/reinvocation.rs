//! State of the mutating phase of one write.
//!
//! # Reference
//!
//! After a webhook changed the object or a policy evaluated a mutation, the chain runs all mutating plugins
//! once more. In this second round a webhook or policy is called again if it permits this, and if the object
//! changed after its first call.

use std::collections::HashSet;

use apimachinery::object::Object;

/// The calls of webhooks and mutating policies for one write.
#[derive(Debug, Default)]
pub(crate) struct Reinvocation {
    /// Whether the second round runs.
    pub(crate) is_second_round: bool,
    /// Calls of webhooks.
    pub(crate) webhooks: PluginCalls,
    /// Calls of mutating policies.
    pub(crate) policies: PluginCalls,
}

/// Calls of one plugin for a write.
#[derive(Debug, Default)]
pub(crate) struct PluginCalls {
    /// Whether the plugin requests the second round.
    is_requested: bool,
    /// Reinvocable webhooks or policies that were called since the last change.
    called: Vec<String>,
    /// Webhooks or policies to call again.
    pending: HashSet<String>,
    /// Object at the end of the first round of the plugin.
    last_output: Option<Object>,
}

impl Reinvocation {
    /// Whether a plugin requests the second round.
    pub(crate) fn is_requested(&self) -> bool {
        self.webhooks.is_requested || self.policies.is_requested
    }
}

impl PluginCalls {
    /// Records a change of the object or an evaluated mutation. The second round repeats the reinvocable
    /// calls that were recorded earlier.
    pub(crate) fn record_change(&mut self) {
        self.is_requested = true;
        self.pending.extend(self.called.drain(..));
    }

    /// Begins the second round. If the object differs from the object at the end of the first round, the
    /// second round repeats all reinvocable calls.
    pub(crate) fn begin_second_round(&mut self, object: Option<&Object>) {
        if self.last_output.as_ref() != object {
            self.pending.extend(self.called.drain(..));
        }
    }

    /// Records the call of a reinvocable webhook or policy.
    pub(crate) fn record_call(&mut self, id: &str) {
        self.called.push(id.to_owned());
    }

    /// Whether the second round calls a webhook or policy.
    pub(crate) fn is_pending(&self, id: &str) -> bool {
        self.pending.contains(id)
    }

    /// Ends the first round with the object after the last call. Keeps the object only if a reinvocable call
    /// followed the last change.
    pub(crate) fn end_first_round(&mut self, object: Option<&Object>) {
        if !self.called.is_empty() {
            self.last_output = object.cloned();
        }
    }
}
