//! Compiled webhooks of all configurations.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::object::Object;
use kinds::admission_expressions::{Compiler, ObjectTypes};
use serde_json::Value;
use webhooks::{ClientConfiguration, InvalidConfiguration};

use super::failure_log::FailureLog;
use crate::match_conditions::MatchConditions;
use crate::matching::{Constraints, IndexedItems};
use crate::tree::{items, items_at, text};

/// Default of `timeoutSeconds`.
const DEFAULT_TIMEOUT_SECONDS: u64 = 10;
/// Versions of AdmissionReview that apid sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// One webhook of a configuration.
pub(super) struct Hook {
    /// Name of the configuration.
    pub(super) configuration: String,
    /// Name of the webhook.
    pub(super) name: String,
    /// Identity among all webhooks.
    pub(super) id: String,
    pub(super) constraints: Constraints,
    /// The address, or the reason why it is unusable.
    pub(super) client: Result<ClientConfiguration, InvalidConfiguration>,
    /// Version of the AdmissionReview; None if apid knows none of the accepted versions.
    pub(super) review_version: Option<&'static str>,
    /// Whether the write continues after a failed call.
    pub(super) ignores_failures: bool,
    pub(super) timeout: Duration,
    /// Whether a dry run may call the webhook.
    pub(super) supports_dry_run: bool,
    /// Whether the webhook is called again if the object changes after its call.
    pub(super) is_reinvocable: bool,
    conditions: Option<(Vec<Value>, OnceLock<MatchConditions>)>,
    pub(super) failure_log: FailureLog,
}

impl Hook {
    fn compile(configuration: &str, webhook: &Value, id: String) -> Self {
        let text = |field: &str| text(webhook, field);
        let accepted = items(webhook, "admissionReviewVersions");
        let find_supported =
            |version: &Value| REVIEW_VERSIONS.into_iter().find(|supported| version == supported);
        let conditions = items(webhook, "matchConditions");
        let seconds =
            webhook.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let client = webhook.get("clientConfig").unwrap_or(&Value::Null);
        Hook {
            configuration: configuration.to_owned(),
            name: text("name").to_owned(),
            id,
            constraints: Constraints {
                rules: Some(Constraints::read_rules(webhook.get("rules"))),
                ..Constraints::read(webhook)
            },
            client: ClientConfiguration::read(client),
            review_version: accepted.iter().find_map(find_supported),
            ignores_failures: text("failurePolicy") == "Ignore",
            timeout: Duration::from_secs(seconds.max(1)),
            supports_dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            is_reinvocable: text("reinvocationPolicy") == "IfNeeded",
            conditions: (!conditions.is_empty()).then(|| (conditions.to_vec(), OnceLock::new())),
            failure_log: FailureLog::default(),
        }
    }

    /// The match conditions, compiled on first use; None without conditions.
    pub(super) fn conditions(&self) -> Option<&MatchConditions> {
        let (source, compiled) = self.conditions.as_ref()?;
        Some(compiled.get_or_init(|| {
            let compiler = Compiler::of_stored(ObjectTypes::dynamic(false), false);
            MatchConditions::compile(&compiler, source)
        }))
    }
}

/// All webhooks of a kind of configuration, in call order.
pub(super) type Hooks = IndexedItems<Hook>;

/// Indexes the webhooks of all configurations.
pub(super) fn index(configurations: &[Arc<Vec<Arc<Hook>>>]) -> Hooks {
    let hooks = configurations.iter().flat_map(|hooks| hooks.iter().cloned());
    Hooks::new(hooks.collect(), |hook| &hook.constraints)
}

/// Compiles the webhooks of a configuration.
pub(super) fn compile_hooks(configuration: &Object) -> Vec<Arc<Hook>> {
    items_at(configuration, &["webhooks"])
        .iter()
        .enumerate()
        .map(|(position, webhook)| {
            let id = format!("{}/{position}", configuration.name());
            Arc::new(Hook::compile(configuration.name(), webhook, id))
        })
        .collect()
}
