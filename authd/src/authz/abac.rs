//! The ABAC authorizer: attribute policies from a file (requirements A-MODE-5 to A-MODE-7).
//!
//! # Contract
//!
//! The file has one JSON object per line, each a `Policy` of `abac.authorization.<d>/v1beta1`. Under the
//! `kubernetes` names `abac.authorization.kubernetes.io/v1beta1`, the name in Kubernetes, is accepted too. A
//! line without `apiVersion` is a policy of version 0, with the fields of `spec` at its top. There an absent
//! user and group mean every authenticated user, and an absent namespace or resource means all. Empty lines and
//! lines that begin with `#` are skipped. The first matching policy allows; without one the authorizer has no
//! opinion. The file is read only when authorizers are built; each invalid line is reported with its number.
//!
//! A policy matches if all of these hold. First, `user` and `group` match; the policy must set at least one,
//! and `*` in either means every authenticated user. Second, if `readonly` is true, the request is read-only.
//! Third, for a resource `namespace`, `resource` and `apiGroup` are each equal or `*`; for a path
//! `nonResourcePath` is equal, `*`, or a prefix before a final `*`.
//!
//! # Reference
//!
//! Like Kubernetes, but unknown fields are errors.

use std::path::Path;

use apimachinery::attributes::Attributes;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use serde::Deserialize;

use super::entry::Entry;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::rules::PolicyRule;
use crate::rules::rule::{path_covers, string_list};

/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

#[derive(Debug)]
struct Abac {
    policies: Vec<AbacPolicy>,
}

pub(super) fn build(settings: &Settings, _: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    let Some(file) = &settings.policy_file else {
        return Err(ConfigError::Combination("mode ABAC needs --authorization-policy-file".to_owned()));
    };
    Ok(Box::new(Abac { policies: read(file, &settings.context.names)? }))
}

/// Reads the policies of a file.
fn read(file: &Path, names: &Names) -> Result<Vec<AbacPolicy>, ConfigError> {
    let error = |problem: String| ConfigError::flag_file("--authorization-policy-file", file, problem);
    let text = std::fs::read_to_string(file).map_err(|e| error(e.to_string()))?;
    if text.lines().any(|line| is_unversioned(line.trim())) {
        tracing::warn!(
            file = %file.display(),
            "the ABAC file has policies without apiVersion; they are read as version 0, which grants more"
        );
    }
    let with_line = |(line, text): &(usize, String)| format!("line {line}: {text}");
    parse(&text, names).map_err(|errors| error(errors.iter().map(with_line).collect::<Vec<_>>().join("; ")))
}

/// Checks the text of a policy file and returns the number of policies.
///
/// # Errors
///
/// All invalid lines, each with its number.
pub fn check(text: &str, names: &Names) -> Result<usize, Vec<(usize, String)>> {
    parse(text, names).map(|policies| policies.len())
}

/// Returns the `apiVersion` of the first policy, empty for version 0; None if the text is not a file of policies.
pub fn policy_api_version(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
    let policy: serde_json::Value = serde_json::from_str(first).ok()?;
    let has_fields = policy.as_object().is_some_and(|fields| !fields.is_empty());
    if has_fields && is_unversioned(first) && serde_json::from_str::<UnversionedPolicy>(first).is_ok() {
        return Some(String::new());
    }
    let field = |name: &str| policy.get(name).and_then(serde_json::Value::as_str);
    let api_version = field("apiVersion")?;
    let is_policy = field("kind") == Some("Policy") && api_version.starts_with("abac.authorization.");
    is_policy.then(|| api_version.to_owned())
}

fn parse(text: &str, names: &Names) -> Result<Vec<AbacPolicy>, Vec<(usize, String)>> {
    // In Kubernetes this group ends with the domain of labels, `kubernetes.io`, and not with `k8s.io`.
    let api_versions = [
        names.label_sub_key("abac.authorization", "v1beta1"),
        names.group("abac.authorization") + "/v1beta1",
    ];
    let (mut policies, mut errors) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match parse_line(line, &api_versions) {
            Ok(policy) => policies.push(policy),
            Err(error) => errors.push((i + 1, error)),
        }
    }
    if errors.is_empty() { Ok(policies) } else { Err(errors) }
}

/// Whether a line has no `apiVersion`: it is a policy of version 0.
fn is_unversioned(line: &str) -> bool {
    let fields = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line);
    fields
        .is_ok_and(|fields| fields.get("apiVersion").is_none_or(|version| version.is_null() || version == ""))
}

fn parse_line(line: &str, api_versions: &[String; 2]) -> Result<AbacPolicy, String> {
    if is_unversioned(line) {
        let policy: UnversionedPolicy = serde_json::from_str(line).map_err(|error| error.to_string())?;
        return policy.into_policy();
    }
    let policy_line: PolicyLine = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if !api_versions.contains(&policy_line.api_version) || policy_line.kind != "Policy" {
        return Err(format!(
            "the object is `{}` of `{}`, not `Policy` of `{}`",
            policy_line.kind, policy_line.api_version, api_versions[0]
        ));
    }
    let mut policy = policy_line.spec;
    if policy.user == "*" || policy.group == "*" {
        policy.user.clear();
        AUTHENTICATED.clone_into(&mut policy.group);
    }
    Ok(policy)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyLine {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    spec: AbacPolicy,
}

/// A policy of version 0.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UnversionedPolicy {
    #[serde(rename = "apiVersion")]
    _api_version: Option<String>,
    kind: String,
    user: String,
    group: String,
    readonly: bool,
    resource: String,
    namespace: String,
}

impl UnversionedPolicy {
    /// Converts the policy to the current version.
    fn into_policy(self) -> Result<AbacPolicy, String> {
        let UnversionedPolicy { kind, user, group, readonly, resource, namespace, .. } = self;
        if !matches!(kind.as_str(), "" | "Policy") {
            return Err(format!("the object without apiVersion is `{kind}`, not `Policy`"));
        }
        let is_everyone = user.is_empty() && group.is_empty() || user == "*" || group == "*";
        let (user, group) =
            if is_everyone { (String::new(), AUTHENTICATED.to_owned()) } else { (user, group) };
        let all_if_empty = |text: String| if text.is_empty() { "*".to_owned() } else { text };
        let non_resource_path =
            if namespace.is_empty() && resource.is_empty() { "*".to_owned() } else { String::new() };
        Ok(AbacPolicy {
            user,
            group,
            readonly,
            api_group: "*".to_owned(),
            resource: all_if_empty(resource),
            namespace: all_if_empty(namespace),
            non_resource_path,
        })
    }
}

/// The `spec` of one policy.
/// An unset text is empty. An empty `user` or `group` is not compared; other empty texts match only an empty
/// attribute of the request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AbacPolicy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    non_resource_path: String,
}

impl AbacPolicy {
    fn matches(&self, user: &UserInfo, request: &Attributes) -> bool {
        self.applies_to(user) && (!self.readonly || request.is_read_only()) && self.covers(request)
    }

    fn applies_to(&self, user: &UserInfo) -> bool {
        let has_subject = !self.user.is_empty() || !self.group.is_empty();
        has_subject
            && (self.user.is_empty() || self.user == user.name)
            && (self.group.is_empty() || user.in_group(&self.group))
    }

    fn covers(&self, request: &Attributes) -> bool {
        let pattern_matches = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if request.resource_request {
            pattern_matches(&self.namespace, &request.namespace)
                && pattern_matches(&self.resource, &request.resource)
                && pattern_matches(&self.api_group, &request.group)
        } else {
            path_covers(&self.non_resource_path, &request.path)
        }
    }

    /// Returns the policy as RBAC rules, one on resources and one on paths, for a SelfSubjectRulesReview.
    fn rules(&self) -> [PolicyRule; 2] {
        let verbs =
            || if self.readonly { string_list(&["get", "list", "watch"]) } else { string_list(&["*"]) };
        let resources = PolicyRule {
            verbs: verbs(),
            api_groups: string_list(&[&self.api_group]),
            resources: string_list(&[&self.resource]),
            ..PolicyRule::default()
        };
        let paths = PolicyRule {
            verbs: verbs(),
            non_resource_urls: string_list(&[&self.non_resource_path]),
            ..PolicyRule::default()
        };
        [resources, paths]
    }
}

#[async_trait]
impl Authorizer for Abac {
    async fn authorize(&self, authz_request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let AuthzRequest { user, attributes, .. } = authz_request;
        let allowed = self.policies.iter().any(|policy| policy.matches(user, attributes));
        let (verdict, reason) =
            if allowed { (Verdict::Allow, "") } else { (Verdict::NoOpinion, "No policy matched.") };
        let decision = Decision { verdict, reason: reason.to_owned(), ..Decision::default() };
        Ok(AuthzOutcome { decision, any_name: attributes.resource_request, ..AuthzOutcome::default() })
    }

    fn rules(&self, user: &UserInfo, namespace: &str, _: AtLeast<'_>) -> Result<Rules, MirrorNotReady> {
        let applicable = self.policies.iter().filter(|policy| {
            policy.applies_to(user) && (policy.namespace == "*" || policy.namespace == namespace)
        });
        Ok(Rules { rules: applicable.flat_map(AbacPolicy::rules).collect(), ..Rules::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    fn names() -> Names {
        Names::new(Preset::Svc, "example.test").unwrap()
    }

    fn file(specs: &[&str]) -> String {
        let line = |spec: &&str| {
            format!(
                r#"{{"apiVersion":"abac.authorization.example.test/v1beta1","kind":"Policy","spec":{spec}}}"#
            )
        };
        specs.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn user(name: &str) -> UserInfo {
        let groups = if name == "system:anonymous" { "system:unauthenticated" } else { AUTHENTICATED };
        let groups = vec![groups.to_owned(), format!("team-{name}")];
        UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
    }

    /// Parses `verb resource namespace`, `verb group:resource namespace` or `verb /path`.
    fn request(text: &str) -> Attributes {
        let words: Vec<&str> = text.split(' ').collect();
        let verb = words[0].to_owned();
        if words[1].starts_with('/') {
            return Attributes { verb, path: words[1].to_owned(), ..Attributes::default() };
        }
        let (group, resource) = words[1].split_once(':').unwrap_or(("", words[1]));
        Attributes {
            verb,
            resource_request: true,
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: words.get(2).copied().unwrap_or_default().to_owned(),
            name: "x".to_owned(),
            ..Attributes::default()
        }
    }

    #[tokio::test]
    async fn abac_policy_allows_matching_request() {
        let pods = r#"{"user":"alice","namespace":"a","resource":"pods","readonly":true}"#;
        for (spec, user_name, request_text, allowed) in [
            (pods, "alice", "get pods a", true),
            (pods, "alice", "watch pods a", true),
            (pods, "alice", "create pods a", false),
            (pods, "alice", "get pods b", false),
            (pods, "alice", "get pods", false),
            (pods, "alice", "get secrets a", false),
            (pods, "alice", "get apps:pods a", false),
            (pods, "alice", "get /healthz", false),
            (pods, "bob", "get pods a", false),
            (
                r#"{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}"#,
                "alice",
                "delete apps:x b",
                true,
            ),
            (
                r#"{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}"#,
                "alice",
                "get /healthz",
                false,
            ),
            (r#"{"group":"team-bob","namespace":"*","resource":"pods"}"#, "bob", "delete pods b", true),
            (r#"{"group":"team-bob","namespace":"*","resource":"pods"}"#, "alice", "delete pods b", false),
            (
                r#"{"user":"alice","group":"team-bob","namespace":"*","resource":"pods"}"#,
                "alice",
                "get pods a",
                false,
            ),
            (
                r#"{"user":"alice","group":"team-alice","namespace":"*","resource":"pods"}"#,
                "alice",
                "get pods a",
                true,
            ),
            (r#"{"user":"*","namespace":"*","resource":"pods"}"#, "carol", "get pods a", true),
            (r#"{"user":"*","namespace":"*","resource":"pods"}"#, "system:anonymous", "get pods a", false),
            (r#"{"group":"*","nonResourcePath":"*"}"#, "carol", "post /x", true),
            (r#"{"namespace":"*","resource":"*","apiGroup":"*"}"#, "alice", "get pods a", false),
            (r#"{"user":"alice","nonResourcePath":"/healthz"}"#, "alice", "get /healthz", true),
            (r#"{"user":"alice","nonResourcePath":"/healthz"}"#, "alice", "get /healthz/x", false),
            (r#"{"user":"alice","nonResourcePath":"/logs/*","readonly":true}"#, "alice", "get /logs/x", true),
            (
                r#"{"user":"alice","nonResourcePath":"/logs/*","readonly":true}"#,
                "alice",
                "post /logs/x",
                false,
            ),
        ] {
            let mode = Abac { policies: parse(&file(&[spec]), &names()).unwrap() };
            let (user, attributes) = (user(user_name), request(request_text));
            let mirror = crate::mirror::Mirror::empty();
            let at_least = mirror.at_least(u64::MAX);
            let authz_request = AuthzRequest { user: &user, attributes: &attributes, at_least };
            let answer = mode.authorize(authz_request).await.unwrap();
            assert_eq!(answer.decision.allowed(), allowed, "{spec}: {user_name} {request_text}");
            assert_eq!(answer.decision.reason, if allowed { "" } else { "No policy matched." });
        }
    }

    #[test]
    fn abac_policy_without_api_version_is_converted() {
        for (line, user_name, request_text, allowed) in [
            (r#"{"user":"alice"}"#, "alice", "delete apps:x b", true),
            (r#"{"user":"alice"}"#, "alice", "post /x", true),
            (r#"{"user":"alice"}"#, "bob", "get pods a", false),
            (r#"{"kind":"Policy","apiVersion":"","user":"alice"}"#, "alice", "get pods a", true),
            (r#"{"resource":"pods"}"#, "bob", "delete apps:pods b", true),
            (r#"{"resource":"pods"}"#, "bob", "get secrets b", false),
            (r#"{"resource":"pods"}"#, "bob", "get /healthz", false),
            (r#"{"resource":"pods"}"#, "system:anonymous", "get pods a", false),
            (r#"{"user":"*","namespace":"a","readonly":true}"#, "bob", "get secrets a", true),
            (r#"{"user":"*","namespace":"a","readonly":true}"#, "bob", "delete secrets a", false),
            (r#"{"user":"*","namespace":"a","readonly":true}"#, "bob", "get secrets b", false),
            (r#"{"user":"*","namespace":"a","readonly":true}"#, "bob", "get /healthz", false),
            (r#"{"group":"team-bob"}"#, "alice", "get pods a", false),
            (r#"{"group":"team-bob"}"#, "bob", "get pods a", true),
        ] {
            let mode = Abac { policies: parse(line, &names()).unwrap() };
            let (user, attributes) = (user(user_name), request(request_text));
            let is_allowed = mode.policies.iter().any(|policy| policy.matches(&user, &attributes));
            assert_eq!(is_allowed, allowed, "{line}: {user_name} {request_text}");
            assert_eq!(policy_api_version(line), Some(String::new()), "{line}");
        }
    }

    #[tokio::test]
    async fn abac_any_matching_line_allows() {
        let text = file(&[
            r#"{"user":"bob","namespace":"a","resource":"pods"}"#,
            r#"{"user":"alice","namespace":"a","resource":"pods","readonly":true}"#,
            r#"{"user":"alice","namespace":"a","resource":"pods"}"#,
        ]);
        let text = format!("# team policies\n\n{text}\n  \n");
        let mode = Abac { policies: parse(&text, &names()).unwrap() };
        let (user, attributes) = (user("alice"), request("create pods a"));
        let mirror = crate::mirror::Mirror::empty();
        let at_least = mirror.at_least(0);
        let authz_request = AuthzRequest { user: &user, attributes: &attributes, at_least };
        assert!(mode.authorize(authz_request).await.unwrap().decision.allowed());
        let rules = mode.rules(&user, "a", at_least).unwrap();
        assert_eq!((rules.rules.len(), rules.incomplete), (4, false));
        assert!(mode.rules(&user, "b", at_least).unwrap().rules.is_empty());
    }

    #[test]
    fn abac_example_file_is_accepted() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples/abac.jsonl");
        let names = Names::new(Preset::Svc, apimachinery::names::DEFAULT_API_DOMAIN).unwrap();
        let mode = Abac { policies: read(&file, &names).unwrap() };
        let is_allowed = |user_name: &str, text: &str| {
            let (user, attributes) = (user(user_name), request(text));
            mode.policies.iter().any(|policy| policy.matches(&user, &attributes))
        };
        for (user_name, text, allowed) in [
            ("alice", "delete apps:deployments team", true),
            ("alice", "post /metrics", true),
            ("bob", "list pods team", true),
            ("bob", "delete pods team", false),
            ("bob", "get /apis/apps", true),
            ("system:anonymous", "get /readyz", true),
            ("system:anonymous", "get /apis", false),
        ] {
            assert_eq!(is_allowed(user_name, text), allowed, "{user_name} {text}");
        }
    }

    #[test]
    fn abac_invalid_lines_are_reported_with_number() {
        let good = file(&[r#"{"user":"alice"}"#]);
        let text = [
            &good,
            "not json",
            r#"{"apiVersion":"abac.authorization.other.test/v1beta1","kind":"Policy","spec":{}}"#,
            r#"{"user":"alice","resource":"pods","apiGroup":"apps"}"#,
            &good,
            &file(&[r#"{"usr":"alice"}"#]),
            &file(&[r#"{"user":5}"#]),
            r#"{"kind":"Role","user":"alice"}"#,
            r#"{"kind":"Policy","spec":{"user":"alice"}}"#,
        ];
        let errors = parse(&text.map(|line| line.to_owned()).join("\n"), &names()).unwrap_err();
        let lines: Vec<usize> = errors.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [2, 3, 4, 6, 7, 8, 9], "{errors:#?}");
        assert!(errors[1].1.contains("not `Policy` of `abac.authorization.example.test/v1beta1`"));
        let missing = read(Path::new("/nonexistent/policy"), &names()).unwrap_err().to_string();
        assert!(missing.starts_with("--authorization-policy-file: /nonexistent/policy: "), "{missing}");
    }
}
