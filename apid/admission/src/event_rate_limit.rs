//! EventRateLimit: limits the rate of Events by server, namespace, user, or source and object.
//! The plugin is off by default and requires a configuration.
//!
//! # Invariants
//!
//! INVARIANT (bounded): each limit keeps at most `cacheSize` buckets and evicts the least recently used
//! bucket.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use apimachinery::document::Fields;
use apimachinery::field::aggregate;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use parking_lot::Mutex;

use crate::plugin_configuration::ConfigurationType;
use crate::{
    Attributes, Environment, Interest, ObjectKind, Plugin, PluginConfiguration, PluginConfigurationError,
};

const CONFIGURATION: ConfigurationType =
    ConfigurationType { group: "eventratelimit.admission", versions: &["v1alpha1"], kind: "Configuration" };

/// Default `cacheSize` of a limit, in buckets.
const CACHE_SIZE: i64 = 4096;

pub(crate) struct EventRateLimit {
    limits: Vec<Limit>,
}

impl EventRateLimit {
    /// Builds the plugin with its limits.
    ///
    /// # Errors
    ///
    /// The configuration is missing or invalid.
    pub(crate) fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        let configuration =
            configuration.ok_or(PluginConfigurationError::Missing { content: "at least one limit" })?;
        let limits = configuration.decode(&environment.names, CONFIGURATION, |fields| {
            let limits = fields.objects("limits", Limit::read);
            if limits.is_empty() {
                fields.errors().add_text(&fields.path().child("limits"), "must have at least one entry");
            }
            limits.into_iter().flatten().collect()
        })?;
        Ok(EventRateLimit { limits })
    }

    fn check(&self, attributes: &Attributes<'_>, event: &Object) -> Result<(), Status> {
        let now = attributes.environment.clock.monotonic();
        let messages: Vec<String> =
            self.limits.iter().filter_map(|limit| limit.take_token(attributes, event, now)).collect();
        if messages.is_empty() {
            return Ok(());
        }
        Err(Status::failure(Reason::TooManyRequests, aggregate(&messages)))
    }
}

/// Type of a limit, which determines the bucket of an event: each distinct key has its own bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitType {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

impl LimitType {
    const ALL: [(&'static str, LimitType); 4] = [
        ("Server", LimitType::Server),
        ("Namespace", LimitType::Namespace),
        ("User", LimitType::User),
        ("SourceAndObject", LimitType::SourceAndObject),
    ];

    /// Bucket key of an event.
    fn key(self, attributes: &Attributes<'_>, event: &Object) -> String {
        let text = |path: &[&str]| event.str_at(path).unwrap_or("");
        match self {
            LimitType::Server => String::new(),
            LimitType::Namespace => attributes.namespace.to_owned(),
            LimitType::User => attributes.user.name.clone(),
            LimitType::SourceAndObject => {
                let object = ["kind", "namespace", "name", "uid", "apiVersion"]
                    .map(|field| text(&["involvedObject", field]));
                [text(&["source", "component"]), text(&["source", "host"])]
                    .into_iter()
                    .chain(object)
                    .collect()
            }
        }
    }
}

struct Limit {
    /// The word of the type in the configuration.
    word: &'static str,
    limit_type: LimitType,
    /// Refill rate in events per second.
    rate: f64,
    /// Burst size in events.
    burst: f64,
    max_buckets: usize,
    buckets: Mutex<Buckets>,
}

/// Buckets by key, and keys in the order of their last use.
#[derive(Default)]
struct Buckets {
    by_key: HashMap<String, Bucket>,
    by_use: BTreeMap<u64, String>,
    /// Number of uses of all buckets so far; `by_use` has values of this counter as keys.
    uses: u64,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    /// Monotonic time of the last refill.
    refilled: Duration,
    /// Value of `Buckets::uses` at the last use of this bucket.
    last_use: u64,
}

impl Limit {
    /// Reads an entry of the configuration. Records the errors; None without a valid type.
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let word = fields.text("type");
        let limit_type = LimitType::ALL.into_iter().find(|(known, _)| *known == word);
        if limit_type.is_none() {
            let words = LimitType::ALL.map(|(word, _)| word).join(", ");
            fields.errors().add_text(&fields.path().child("type"), &format!("must be one of {words}"));
        }
        let mut number = |field: &'static str, least: i64, problem: &str| {
            let number = fields.integer(field).unwrap_or(0);
            if !(least..=i64::from(i32::MAX)).contains(&number) {
                fields.errors().add_text(&fields.path().child(field), problem);
            }
            number
        };
        let rate = number("qps", 1, "must be a number above 0");
        let burst = number("burst", 1, "must be a number above 0");
        let max_buckets = number("cacheSize", 0, "must not be negative");
        let max_buckets = if max_buckets == 0 { CACHE_SIZE } else { max_buckets };
        let (word, limit_type) = limit_type?;
        Some(Limit {
            word,
            limit_type,
            rate: rate as f64,
            burst: burst as f64,
            max_buckets: usize::try_from(max_buckets).unwrap_or(usize::MAX),
            buckets: Mutex::default(),
        })
    }

    /// Takes one token; returns the error message if the bucket is empty.
    fn take_token(&self, attributes: &Attributes<'_>, event: &Object, now: Duration) -> Option<String> {
        let key = self.limit_type.key(attributes, event);
        let mut buckets = self.buckets.lock();
        buckets.uses += 1;
        let used = buckets.uses;
        let before = buckets.by_key.get(&key).copied();
        let mut bucket = before.unwrap_or(Bucket { tokens: self.burst, refilled: now, last_use: used });
        let elapsed_seconds = now.saturating_sub(bucket.refilled).as_secs_f64();
        bucket.tokens = (bucket.tokens + elapsed_seconds * self.rate).min(self.burst);
        bucket.refilled = now;
        let is_allowed = bucket.tokens >= 1.0;
        if is_allowed {
            bucket.tokens -= 1.0;
        }
        buckets.by_use.remove(&bucket.last_use);
        bucket.last_use = used;
        buckets.by_use.insert(used, key.clone());
        buckets.by_key.insert(key.clone(), bucket);
        while buckets.by_key.len() > self.max_buckets {
            let Some((_, oldest)) = buckets.by_use.pop_first() else { break };
            buckets.by_key.remove(&oldest);
        }
        (!is_allowed).then(|| format!("limit reached on type {} for key {key}", self.word))
    }
}

impl Plugin for EventRateLimit {
    const INTEREST: Interest =
        Interest::only(&[(ObjectKind::new("", "Event"), ""), (ObjectKind::new("events", "Event"), "")]);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let event = object.filter(|_| !attributes.dry_run);
        event.map_or(Ok(()), |event| self.check(attributes, event))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use apimachinery::user::UserInfo;
    use serde_json::json;

    use super::*;
    use crate::Configuration;
    use crate::testing::{Fake, TestedWrite};

    fn plugin(fake: &Fake, limits: &str) -> Result<EventRateLimit, String> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n  \
             configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits: {limits}\n"
        );
        let none = |_: &str| Err(std::io::Error::other("no other file"));
        let configuration = Configuration::parse("f.yaml", text.as_bytes(), &fake.names, &none).unwrap();
        EventRateLimit::new(&fake.environment, configuration.for_plugin("EventRateLimit"))
            .map_err(|error| error.to_string())
    }

    async fn send(fake: &Fake, plugin: &EventRateLimit, user: &str, namespace: &str, object: &str) -> String {
        let user = UserInfo { name: user.to_owned(), ..UserInfo::default() };
        let write = TestedWrite { kind: ("", "Event"), namespace, user, ..TestedWrite::default() };
        let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": object}});
        let answer = fake.run_plugin(plugin, write, event).await;
        assert!(answer.result.as_ref().err().is_none_or(|status| status.code == 429));
        answer.message().to_owned()
    }

    #[tokio::test]
    async fn events_over_rate_limit_return_429_until_refill() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = plugin(
            &fake,
            "[{type: Namespace, qps: 1, burst: 2}, {type: User, qps: 1, burst: 3, cacheSize: 1}]",
        )
        .unwrap();
        let limit = "limit reached on type Namespace for key a";
        for (wait, user, namespace, message) in [
            (0, "u", "a", ""),
            (0, "u", "a", ""),
            (0, "u", "a", limit),
            (0, "u", "b", "limit reached on type User for key u"),
            (1, "u", "a", ""),
            (
                0,
                "u",
                "a",
                "[limit reached on type Namespace for key a, limit reached on type User for key u]",
            ),
            (0, "v", "c", ""),
            (0, "u", "c", ""),
        ] {
            fake.clock.advance(Duration::from_secs(wait));
            assert_eq!(send(&fake, &plugin, user, namespace, "p").await, message, "{user} in {namespace}");
        }
    }

    #[tokio::test]
    async fn source_and_object_limit_has_separate_buckets() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = plugin(&fake, "[{type: SourceAndObject, qps: 1, burst: 1}]").unwrap();
        assert_eq!(send(&fake, &plugin, "u", "a", "p").await, "");
        assert_eq!(send(&fake, &plugin, "u", "a", "q").await, "");
        assert_eq!(
            send(&fake, &plugin, "u", "a", "p").await,
            "limit reached on type SourceAndObject for key Podp"
        );
    }

    #[test]
    fn invalid_event_rate_limit_configuration_names_field() {
        let fake = Fake::new(Preset::Kubernetes);
        let at = "file `f.yaml`: line 8: plugins[0].configuration";
        for (limits, error) in [
            ("[]", ".limits: must have at least one entry"),
            (
                "[{type: Pod, qps: 1, burst: 1}]",
                ".limits[0].type: must be one of Server, Namespace, User, SourceAndObject",
            ),
            ("[{type: User, qps: 0, burst: 1}]", ".limits[0].qps: must be a number above 0"),
            ("[{type: User, qps: 1}]", ".limits[0].burst: must be a number above 0"),
            ("[{type: User, qps: 1, burst: 1, cacheSize: -1}]", ".limits[0].cacheSize: must not be negative"),
        ] {
            assert_eq!(plugin(&fake, limits).err(), Some(format!("{at}{error}")), "{limits}");
        }
        let several = plugin(&fake, "[{type: User, qps: x, burst: 1, cache: 1}]").err().unwrap();
        for error in ["limits[0].qps: Invalid value: \"string\": must be an integer", "unknown field"] {
            assert!(several.contains(error), "{several}");
        }
        assert!(EventRateLimit::new(&fake.environment, None).is_err());
    }
}
