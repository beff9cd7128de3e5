//! State of the repeated mutating phase of one write.
//!
//! # Reference
//!
//! After a change by a webhook, or a mutation by a policy, the chain runs all mutating plugins once more. In
//! this second round a reinvocable webhook or policy is called again if the object changed after its first
//! call.

use std::collections::HashSet;

use apimachinery::object::Object;

/// A plugin that requests reinvocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReinvocationPlugin {
    /// The plugin of mutating webhooks.
    Webhooks,
    /// The plugin of mutating policies.
    Policies,
}

/// Reinvocation state of a write.
#[derive(Debug, Default)]
pub(crate) struct Reinvocation {
    /// Whether the mutating phase must run again.
    is_requested: bool,
    webhooks: Calls,
    policies: Calls,
}

/// The calls of one plugin.
#[derive(Debug, Default)]
struct Calls {
    /// Reinvocable webhooks or policies that were called since the last change.
    called: Vec<String>,
    /// Webhooks or policies to call again.
    pending: HashSet<String>,
    /// Object at the end of the first round of the plugin.
    last_output: Option<Object>,
}

impl Reinvocation {
    /// Whether the mutating phase must run again.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested
    }

    /// Requests the second round, which repeats all calls that the plugin `caller` has recorded.
    pub(crate) fn record_change(&mut self, caller: ReinvocationPlugin) {
        self.is_requested = true;
        self.calls(caller).mark_called_as_pending();
    }

    /// Begins the second round. If the object differs from the result of the first round of this plugin, all
    /// recorded calls are repeated.
    pub(crate) fn begin_second_round(&mut self, caller: ReinvocationPlugin, object: Option<&Object>) {
        let calls = self.calls(caller);
        if calls.last_output.as_ref() != object {
            calls.mark_called_as_pending();
        }
    }

    /// Records the call of a reinvocable webhook or policy.
    pub(crate) fn record_call(&mut self, caller: ReinvocationPlugin, id: &str) {
        self.calls(caller).called.push(id.to_owned());
    }

    /// Whether the second round calls a webhook or policy.
    pub(crate) fn is_pending(&mut self, caller: ReinvocationPlugin, id: &str) -> bool {
        self.calls(caller).pending.contains(id)
    }

    /// Ends the first round with the object after the last call. Without recorded calls the object is not
    /// kept.
    pub(crate) fn end_first_round(&mut self, caller: ReinvocationPlugin, object: Option<&Object>) {
        let calls = self.calls(caller);
        if !calls.called.is_empty() {
            calls.last_output = object.cloned();
        }
    }

    fn calls(&mut self, caller: ReinvocationPlugin) -> &mut Calls {
        match caller {
            ReinvocationPlugin::Webhooks => &mut self.webhooks,
            ReinvocationPlugin::Policies => &mut self.policies,
        }
    }
}

impl Calls {
    fn mark_called_as_pending(&mut self) {
        self.pending.extend(self.called.drain(..));
    }
}
