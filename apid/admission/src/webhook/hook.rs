//! Compiled webhooks of all configurations.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::object::Object;
use kinds::admission_expressions::{Compiler, ObjectTypes};
use serde_json::Value;
use webhooks::{ClientConfiguration, InvalidConfiguration};

use crate::match_conditions::MatchConditions;
use crate::matching::{Constraints, ResourceIndex};

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
}

impl Hook {
    fn compile(configuration: &str, webhook: &Value, id: String) -> Self {
        let text = |field: &str| webhook.get(field).and_then(Value::as_str).unwrap_or_default();
        let accepted = webhook.get("admissionReviewVersions").and_then(Value::as_array);
        let find_supported =
            |version: &Value| REVIEW_VERSIONS.into_iter().find(|supported| version == supported);
        let conditions = webhook.get("matchConditions").and_then(Value::as_array);
        let conditions = conditions.filter(|conditions| !conditions.is_empty());
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
            review_version: accepted.into_iter().flatten().find_map(find_supported),
            ignores_failures: text("failurePolicy") == "Ignore",
            timeout: Duration::from_secs(seconds.max(1)),
            supports_dry_run: matches!(text("sideEffects"), "None" | "NoneOnDryRun"),
            is_reinvocable: text("reinvocationPolicy") == "IfNeeded",
            conditions: conditions.map(|conditions| (conditions.clone(), OnceLock::new())),
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
pub(super) struct Hooks {
    all: Vec<Arc<Hook>>,
    index: ResourceIndex,
    /// Webhooks by uid and resourceVersion of their configuration.
    configurations: HashMap<(String, String), Vec<Arc<Hook>>>,
}

impl Hooks {
    /// Compiles configurations; unchanged ones are taken from `previous`.
    pub(super) fn compile(configurations: &[Arc<Object>], previous: Option<&Hooks>) -> Self {
        let mut all = Vec::new();
        let mut compiled = HashMap::new();
        for configuration in configurations {
            let key = (configuration.uid().to_owned(), configuration.resource_version().to_owned());
            let unchanged = previous.and_then(|previous| previous.configurations.get(&key).cloned());
            let hooks = unchanged.unwrap_or_else(|| compile_hooks(configuration));
            all.extend(hooks.iter().cloned());
            compiled.insert(key, hooks);
        }
        let index = ResourceIndex::new(all.iter().map(|hook| &hook.constraints));
        Hooks { all, index, configurations: compiled }
    }

    /// The webhooks that may match a resource, with their positions among all webhooks.
    pub(super) fn candidates(&self, resource: &str) -> impl Iterator<Item = (usize, &Arc<Hook>)> {
        self.index.candidates(resource).iter().filter_map(|index| Some((*index, self.all.get(*index)?)))
    }

    /// Whether no webhook can match a resource.
    pub(super) fn has_none(&self, resource: &str) -> bool {
        self.index.candidates(resource).is_empty()
    }
}

fn compile_hooks(configuration: &Object) -> Vec<Arc<Hook>> {
    let webhooks = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten();
    webhooks
        .enumerate()
        .map(|(position, webhook)| {
            let id = format!("{}/{position}", configuration.name());
            Arc::new(Hook::compile(configuration.name(), webhook, id))
        })
        .collect()
}
