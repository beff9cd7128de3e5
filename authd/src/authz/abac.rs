//! The ABAC authorizer: attribute policies from a file (requirements A-MODE-5 to A-MODE-7).
//!
//! # Contract
//!
//! The file has one JSON object per line, each a `Policy` of `abac.authorization.<d>/v1beta1`. Under the
//! `kubernetes` names the group of Kubernetes is accepted too. Empty lines and lines that begin with `#` are
//! skipped. The first matching policy allows; without one the authorizer has no opinion. The file is read
//! when the authorizer is built; each invalid line is reported with its number.
//!
//! A policy matches if all of these match. First, the `user` and the `group`, of which the policy must set at
//! least one (`*` in either is every authenticated user). Second, a read-only verb, unless `readonly` is
//! false. Third, for resources `namespace`, `resource` and `apiGroup`, each equal or `*`; for paths
//! `nonResourcePath`, equal, `*`, or a prefix before a final `*`.
//!
//! # Reference
//!
//! As Kubernetes, but lines in the unversioned format, which Kubernetes reads with a warning, are errors.

use std::path::Path;
use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use serde::Deserialize;

use super::entry::Entry;
use super::{Answer, Authorizer, AuthzRequest, Rules, Settings};
use crate::mirror::{Mirror, MirrorNotReady};
use crate::rules::PolicyRule;
use crate::rules::rule::{path_covers, words};

/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

#[derive(Debug)]
struct Abac {
    policies: Vec<Policy>,
}

pub(super) fn build(settings: &Settings, _: &Entry, _: &Arc<Mirror>) -> Result<Box<dyn Authorizer>, String> {
    let Some(file) = &settings.policy_file else {
        return Err("mode ABAC needs --authorization-policy-file".to_owned());
    };
    Ok(Box::new(Abac { policies: read(file, &settings.names)? }))
}

/// Reads the policies of a file.
fn read(file: &Path, names: &Names) -> Result<Vec<Policy>, String> {
    let of_file = |mistake: String| format!("--authorization-policy-file: `{}`: {mistake}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| of_file(error.to_string()))?;
    parse(&text, names).map_err(|mistakes| of_file(mistakes.join("; ")))
}

fn parse(text: &str, names: &Names) -> Result<Vec<Policy>, Vec<String>> {
    // Kubernetes names this group by its label domain.
    let api_versions = [
        names.label_sub_key("abac.authorization", "v1beta1"),
        names.group("abac.authorization") + "/v1beta1",
    ];
    let (mut policies, mut mistakes) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match policy(line, &api_versions) {
            Ok(policy) => policies.push(policy),
            Err(mistake) => mistakes.push(format!("line {}: {mistake}", i + 1)),
        }
    }
    if mistakes.is_empty() { Ok(policies) } else { Err(mistakes) }
}

fn policy(line: &str, api_versions: &[String; 2]) -> Result<Policy, String> {
    let whole: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if !api_versions.contains(&whole.api_version) || whole.kind != "Policy" {
        return Err(format!(
            "is `{}` of `{}` and not `Policy` of `{}`",
            whole.kind, whole.api_version, api_versions[0]
        ));
    }
    let mut policy = whole.spec;
    if policy.user == "*" || policy.group == "*" {
        policy.user.clear();
        AUTHENTICATED.clone_into(&mut policy.group);
    }
    Ok(policy)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    spec: Policy,
}

/// One policy. An unset field is empty and matches empty attributes.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    non_resource_path: String,
}

impl Policy {
    fn matches(&self, user: &UserInfo, asked: &Attributes) -> bool {
        self.is_about(user) && (!self.readonly || asked.is_read_only()) && self.covers(asked)
    }

    fn is_about(&self, user: &UserInfo) -> bool {
        let names_somebody = !self.user.is_empty() || !self.group.is_empty();
        names_somebody
            && (self.user.is_empty() || self.user == user.name)
            && (self.group.is_empty() || user.in_group(&self.group))
    }

    fn covers(&self, asked: &Attributes) -> bool {
        let fits = |held: &str, asked: &str| held == "*" || held == asked;
        if asked.resource_request {
            fits(&self.namespace, &asked.namespace)
                && fits(&self.resource, &asked.resource)
                && fits(&self.api_group, &asked.group)
        } else {
            path_covers(&self.non_resource_path, &asked.path)
        }
    }

    /// Converts the policy to rules on resources and on paths.
    fn rules(&self) -> [PolicyRule; 2] {
        let verbs = || if self.readonly { words(&["get", "list", "watch"]) } else { words(&["*"]) };
        let resources = PolicyRule {
            verbs: verbs(),
            api_groups: words(&[&self.api_group]),
            resources: words(&[&self.resource]),
            ..PolicyRule::default()
        };
        let paths = PolicyRule {
            verbs: verbs(),
            non_resource_urls: words(&[&self.non_resource_path]),
            ..PolicyRule::default()
        };
        [resources, paths]
    }
}

#[async_trait]
impl Authorizer for Abac {
    async fn authorize(&self, question: AuthzRequest<'_>) -> Result<Answer, MirrorNotReady> {
        let AuthzRequest { user, attributes, .. } = question;
        let allowed = self.policies.iter().any(|policy| policy.matches(user, attributes));
        let (verdict, reason) =
            if allowed { (Verdict::Allow, "") } else { (Verdict::NoOpinion, "No policy matched.") };
        let decision = Decision { verdict, reason: reason.to_owned(), ..Decision::default() };
        Ok(Answer { decision, any_name: attributes.resource_request, ..Answer::default() })
    }

    fn rules(&self, user: &UserInfo, namespace: &str, _: u64) -> Result<Rules, MirrorNotReady> {
        let about = self.policies.iter().filter(|policy| {
            policy.is_about(user) && (policy.namespace == "*" || policy.namespace == namespace)
        });
        Ok(Rules { rules: about.flat_map(Policy::rules).collect(), ..Rules::default() })
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

    /// `verb resource namespace`, `verb group:resource namespace` or `verb /path`.
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
        for (spec, who, request_text, allowed) in [
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
            let (user, attributes) = (user(who), request(request_text));
            let question =
                AuthzRequest { user: &user, attributes: &attributes, at_least: u64::MAX, explain: false };
            let answer = mode.authorize(question).await.unwrap();
            assert_eq!(answer.decision.allowed(), allowed, "{spec}: {who} {request_text}");
            assert_eq!(answer.decision.reason, if allowed { "" } else { "No policy matched." });
        }
    }

    #[tokio::test]
    async fn abac_any_matching_line_allows() {
        let text = file(&[
            r#"{"user":"bob","namespace":"a","resource":"pods"}"#,
            r#"{"user":"alice","namespace":"a","resource":"pods","readonly":true}"#,
            r#"{"user":"alice","namespace":"a","resource":"pods"}"#,
        ]);
        let text = format!("# who may what\n\n{text}\n  \n");
        let mode = Abac { policies: parse(&text, &names()).unwrap() };
        let (user, attributes) = (user("alice"), request("create pods a"));
        let question = AuthzRequest { user: &user, attributes: &attributes, at_least: 0, explain: false };
        assert!(mode.authorize(question).await.unwrap().decision.allowed());
        let rules = mode.rules(&user, "a", 0).unwrap();
        assert_eq!((rules.rules.len(), rules.incomplete), (4, false));
        assert!(mode.rules(&user, "b", 0).unwrap().rules.is_empty());
    }

    #[test]
    fn abac_example_file_is_accepted() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples/abac.jsonl");
        let names = Names::new(Preset::Svc, apimachinery::names::DEFAULT_API_DOMAIN).unwrap();
        let mode = Abac { policies: read(&file, &names).unwrap() };
        let may = |who: &str, text: &str| {
            let (user, attributes) = (user(who), request(text));
            mode.policies.iter().any(|policy| policy.matches(&user, &attributes))
        };
        for (who, text, allowed) in [
            ("alice", "delete apps:deployments team", true),
            ("alice", "post /metrics", true),
            ("bob", "list pods team", true),
            ("bob", "delete pods team", false),
            ("bob", "get /apis/apps", true),
            ("system:anonymous", "get /readyz", true),
            ("system:anonymous", "get /apis", false),
        ] {
            assert_eq!(may(who, text), allowed, "{who} {text}");
        }
    }

    #[test]
    fn abac_invalid_lines_are_reported_with_number() {
        let good = file(&[r#"{"user":"alice"}"#]);
        let text = [
            &good,
            "not json",
            r#"{"apiVersion":"abac.authorization.other.test/v1beta1","kind":"Policy","spec":{}}"#,
            r#"{"user":"alice","resource":"pods"}"#,
            &good,
            &file(&[r#"{"usr":"alice"}"#]),
            &file(&[r#"{"user":5}"#]),
        ];
        let mistakes = parse(&text.map(|line| line.to_owned()).join("\n"), &names()).unwrap_err();
        let lines: Vec<&str> = mistakes.iter().filter_map(|mistake| mistake.split(':').next()).collect();
        assert_eq!(lines, ["line 2", "line 3", "line 4", "line 6", "line 7"], "{mistakes:#?}");
        assert!(mistakes[1].contains("not `Policy` of `abac.authorization.example.test/v1beta1`"));
        let missing = read(Path::new("/nonexistent/policy"), &names()).unwrap_err();
        assert!(missing.starts_with("--authorization-policy-file: `/nonexistent/policy`: "), "{missing}");
    }
}
