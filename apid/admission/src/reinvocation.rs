//! State of the repeated mutating phase of one write.
//!
//! # Reference
//!
//! After a webhook changed the object, the chain runs all mutating plugins once more. In this second round a
//! webhook is called again if its policy permits it, and if the object changed after its first call.

use std::collections::HashSet;

use apimachinery::object::Object;

/// Reinvocation state.
#[derive(Debug, Default)]
pub(crate) struct Reinvocation {
    /// Whether the mutating phase must run again.
    is_requested: bool,
    /// Reinvocable webhooks that were called since the last change.
    called: Vec<String>,
    /// Webhooks to call again.
    pending: HashSet<String>,
    /// Object after the last webhook.
    last_output: Option<Object>,
}

impl Reinvocation {
    /// Whether the mutating phase must run again.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Records a change by a webhook: the chain runs again, with all webhooks called before.
    pub(crate) fn record_change(&mut self) {
        self.is_requested = true;
        self.require_called();
    }

    /// Begins the second round. A change by an in-tree plugin since the last webhook requires all webhooks.
    pub(crate) fn begin_second_round(&mut self, object: Option<&Object>) {
        if self.last_output.as_ref() != object {
            self.require_called();
        }
    }

    /// Records the call of a reinvocable webhook.
    pub(crate) fn record_call(&mut self, webhook: &str) {
        self.called.push(webhook.to_owned());
    }

    /// Whether the second round calls a webhook.
    pub(crate) fn is_pending(&self, webhook: &str) -> bool {
        self.pending.contains(webhook)
    }

    /// Ends the first round with the object after the last webhook. Only a second round reads the object.
    pub(crate) fn end_first_round(&mut self, object: Option<&Object>) {
        if self.is_requested {
            self.last_output = object.cloned();
        }
    }

    fn require_called(&mut self) {
        self.pending.extend(self.called.drain(..));
    }
}
