//! Flow schemas and priority levels, as their API objects define them.
//!
//! # Contract
//!
//! [`Configuration::from_objects`] reads stored objects, which API validation has accepted. An object that cannot be
//! read is skipped and logged. The mandatory objects are part of every configuration: where one is missing, its
//! built-in specification applies.
//!
//! Schemas are in the order in which requests are matched: by precedence, then by name. A schema that refers to a
//! missing level is left out, as kube-apiserver does; its condition `Dangling` says so.

use apimachinery::object::{Object, Value};
use apimachinery::user::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use serde::Deserialize;

/// Name of the mandatory schema and level of requests without limits.
pub(crate) const EXEMPT: &str = "exempt";
/// Name of the mandatory schema and level of requests that no other schema matches.
pub(crate) const CATCH_ALL: &str = "catch-all";

/// Precedence of the schema [`CATCH_ALL`].
const LAST_PRECEDENCE: u32 = 10_000;

/// The schemas and levels that are in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// Sorted by precedence, then by name.
    pub schemas: Vec<FlowSchema>,
    /// Sorted by name.
    pub levels: Vec<PriorityLevel>,
}

/// Assigns requests to a priority level.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowSchema {
    /// Name of the object.
    pub name: String,
    /// Uid of the object; empty for a mandatory object that is missing.
    pub uid: String,
    /// Specification of the object.
    pub spec: SchemaSpec,
}

/// The specification of a flow schema.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SchemaSpec {
    /// The level of matching requests.
    pub priority_level_configuration: Reference,
    /// Schemas with a lower number match first.
    #[serde(default = "default_precedence")]
    pub matching_precedence: u32,
    /// Property that tells the flows of the schema apart; without it all requests are one flow.
    #[serde(default)]
    pub distinguisher_method: Option<DistinguisherMethod>,
    /// A request matches if it matches one of the rules.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// Refers to a priority level.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Reference {
    /// Name of the level.
    pub name: String,
}

/// Property that tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type")]
pub enum DistinguisherMethod {
    /// The user name.
    ByUser,
    /// The namespace; empty for other requests.
    ByNamespace,
}

/// Subjects together with requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// The rule matches requests of one of the subjects.
    pub subjects: Vec<Subject>,
    /// Resource requests that match.
    pub resource_rules: Vec<ResourceRule>,
    /// Other requests that match.
    pub non_resource_rules: Vec<PathRule>,
}

/// Users of a rule.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind")]
pub enum Subject {
    /// One user; `*`: all users.
    User {
        /// The user.
        user: Reference,
    },
    /// Members of a group; `*`: members of any group.
    Group {
        /// The group.
        group: Reference,
    },
    /// A service account.
    #[serde(rename_all = "camelCase")]
    ServiceAccount {
        /// The account.
        service_account: AccountReference,
    },
}

/// Refers to service accounts of one namespace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct AccountReference {
    /// Namespace of the account.
    pub namespace: String,
    /// Name of the account; `*`: all accounts of the namespace.
    pub name: String,
}

/// Resource requests of a rule. `*` in a list stands for all values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// Verbs.
    pub verbs: Vec<String>,
    /// Groups; `""` for core.
    pub api_groups: Vec<String>,
    /// Resources, `RESOURCE` or `RESOURCE/SUBRESOURCE`.
    pub resources: Vec<String>,
    /// Whether requests without a namespace match.
    pub cluster_scope: bool,
    /// Namespaces of requests with a namespace.
    pub namespaces: Vec<String>,
}

/// Requests of a rule that are not for resources. `*` in a list stands for all values.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathRule {
    /// HTTP methods in lower case.
    pub verbs: Vec<String>,
    /// Paths; a final `*` matches all further characters.
    #[serde(rename = "nonResourceURLs")]
    pub paths: Vec<String>,
}

/// Limits the requests of its schemas together.
#[derive(Clone, Debug, PartialEq)]
pub struct PriorityLevel {
    /// Name of the object.
    pub name: String,
    /// Uid of the object; empty for a mandatory object that is missing.
    pub uid: String,
    /// Specification of the object.
    pub spec: LevelSpec,
}

/// The specification of a priority level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelSpec {
    /// Share of the server's seats, relative to the shares of all levels.
    pub nominal_shares: u32,
    /// Part of the level's seats that other levels may borrow, in percent.
    pub lendable_percent: u32,
    /// Seats that the level may borrow, in percent of its own; unlimited if absent.
    pub borrowing_limit_percent: Option<u32>,
    /// Treatment of requests above the limit.
    pub response: LimitResponse,
}

/// Treatment of requests above the limit of their level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResponse {
    /// Nothing: the level has no limit.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait in queues.
    Queue(Queuing),
}

/// Queues of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Queuing {
    /// Number of queues.
    pub queues: usize,
    /// Number of queues of each flow.
    pub hand_size: usize,
    /// Number of requests that wait in one queue, at most.
    #[serde(rename = "queueLengthLimit")]
    pub length_limit: usize,
}

impl Configuration {
    /// Reads objects of both kinds.
    pub fn from_objects<'a>(
        schemas: impl IntoIterator<Item = &'a Object>,
        levels: impl IntoIterator<Item = &'a Object>,
    ) -> Self {
        let mut levels: Vec<PriorityLevel> =
            levels.into_iter().filter_map(PriorityLevel::from_object).collect();
        for (name, spec) in mandatory_levels() {
            if !levels.iter().any(|level| level.name == name) {
                levels.push(PriorityLevel { name: name.to_owned(), uid: String::new(), spec });
            }
        }
        levels.sort_by(|a, b| a.name.cmp(&b.name));

        let mut schemas: Vec<FlowSchema> = schemas.into_iter().filter_map(FlowSchema::from_object).collect();
        for (name, spec) in mandatory_schemas() {
            if !schemas.iter().any(|schema| schema.name == name) {
                schemas.push(FlowSchema { name: name.to_owned(), uid: String::new(), spec });
            }
        }
        schemas.retain(|schema| levels.iter().any(|level| level.name == schema.spec.level()));
        schemas.sort_by(|a, b| {
            (a.spec.matching_precedence, &a.name).cmp(&(b.spec.matching_precedence, &b.name))
        });
        Configuration { schemas, levels }
    }
}

impl SchemaSpec {
    /// Name of the level of matching requests.
    pub fn level(&self) -> &str {
        &self.priority_level_configuration.name
    }
}

impl FlowSchema {
    fn from_object(object: &Object) -> Option<Self> {
        let spec = decode(object, "FlowSchema")?;
        Some(FlowSchema { name: object.name().to_owned(), uid: object.uid().to_owned(), spec })
    }
}

impl PriorityLevel {
    fn from_object(object: &Object) -> Option<Self> {
        let spec: StoredLevel = decode(object, "PriorityLevelConfiguration")?;
        Some(PriorityLevel {
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            spec: spec.into(),
        })
    }
}

/// The specification of a priority level as it is stored.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum StoredLevel {
    Exempt {
        #[serde(default)]
        exempt: StoredExempt,
    },
    Limited {
        limited: StoredLimits,
    },
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StoredExempt {
    nominal_concurrency_shares: u32,
    lendable_percent: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredLimits {
    #[serde(default = "default_shares")]
    nominal_concurrency_shares: u32,
    #[serde(default)]
    lendable_percent: u32,
    #[serde(default)]
    borrowing_limit_percent: Option<u32>,
    limit_response: StoredResponse,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum StoredResponse {
    Reject,
    Queue { queuing: Queuing },
}

impl From<StoredLevel> for LevelSpec {
    fn from(stored: StoredLevel) -> Self {
        match stored {
            StoredLevel::Exempt { exempt } => LevelSpec {
                nominal_shares: exempt.nominal_concurrency_shares,
                lendable_percent: exempt.lendable_percent,
                borrowing_limit_percent: None,
                response: LimitResponse::Exempt,
            },
            StoredLevel::Limited { limited } => LevelSpec {
                nominal_shares: limited.nominal_concurrency_shares,
                lendable_percent: limited.lendable_percent,
                borrowing_limit_percent: limited.borrowing_limit_percent,
                response: match limited.limit_response {
                    StoredResponse::Reject => LimitResponse::Reject,
                    StoredResponse::Queue { queuing } => LimitResponse::Queue(queuing),
                },
            },
        }
    }
}

/// The default of `matchingPrecedence`.
fn default_precedence() -> u32 {
    1_000
}

/// The default of `nominalConcurrencyShares`.
fn default_shares() -> u32 {
    30
}

fn decode<'a, T: Deserialize<'a>>(object: &'a Object, kind: &str) -> Option<T> {
    let spec = object.at(&["spec"]).unwrap_or(&Value::Null);
    T::deserialize(spec)
        .inspect_err(|error| {
            tracing::warn!(kind, name = object.name(), %error, "object for flow control cannot be read; ignoring it");
        })
        .ok()
}

fn mandatory_levels() -> [(&'static str, LevelSpec); 2] {
    let spec = |shares, response| LevelSpec {
        nominal_shares: shares,
        lendable_percent: 0,
        borrowing_limit_percent: None,
        response,
    };
    [(EXEMPT, spec(0, LimitResponse::Exempt)), (CATCH_ALL, spec(5, LimitResponse::Reject))]
}

fn mandatory_schemas() -> [(&'static str, SchemaSpec); 2] {
    let spec = |level: &str, precedence, method, groups: &[&str]| SchemaSpec {
        priority_level_configuration: Reference { name: level.to_owned() },
        matching_precedence: precedence,
        distinguisher_method: method,
        rules: vec![Rule::all_requests_of(groups)],
    };
    let everybody = [UNAUTHENTICATED, AUTHENTICATED];
    [
        (EXEMPT, spec(EXEMPT, 1, None, &[MASTERS])),
        (CATCH_ALL, spec(CATCH_ALL, LAST_PRECEDENCE, Some(DistinguisherMethod::ByUser), &everybody)),
    ]
}

impl Rule {
    fn all_requests_of(groups: &[&str]) -> Self {
        let all = || vec!["*".to_owned()];
        let group = |name: &&str| Subject::Group { group: Reference { name: (*name).to_owned() } };
        Rule {
            subjects: groups.iter().map(group).collect(),
            resource_rules: vec![ResourceRule {
                verbs: all(),
                api_groups: all(),
                resources: all(),
                cluster_scope: true,
                namespaces: all(),
            }],
            non_resource_rules: vec![PathRule { verbs: all(), paths: all() }],
        }
    }
}
