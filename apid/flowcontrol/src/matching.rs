//! The flow schema of a request.
//!
//! # Contract
//!
//! The first schema whose rules match the request gets it. A rule matches if one of its subjects is the user, and one
//! of its resource rules (for other requests: of its path rules) has the verb and the target of the request.
//!
//! INVARIANT (total): the mandatory schema `catch-all` is part of each configuration and matches every request of an
//! authenticated or unauthenticated user, so only a user without these groups can be without a schema.

use apimachinery::attributes::Attributes;
use apimachinery::user::{UserInfo, service_account};

use crate::configuration::{DistinguisherMethod, PathRule, ResourceRule, Rule, SchemaSpec, Subject};

/// Stands for all values in a list of a rule.
const ALL: &str = "*";

impl SchemaSpec {
    /// Returns the indexes of the rules whose subjects are the user.
    pub(crate) fn rules_for(&self, user: &UserInfo) -> Vec<usize> {
        let is_for_user = |(_, rule): &(usize, &Rule)| rule.subjects.iter().any(|subject| subject.is(user));
        self.rules.iter().enumerate().filter(is_for_user).map(|(index, _)| index).collect()
    }

    /// Whether one of the rules with these indexes has the verb and the target of a request.
    pub(crate) fn covers(&self, rules: &[usize], request: &Attributes) -> bool {
        rules.iter().filter_map(|index| self.rules.get(*index)).any(|rule| rule.covers(request))
    }

    /// Returns what tells the flow of the request from other flows of the schema.
    pub(crate) fn distinguisher<'a>(&self, user: &'a UserInfo, request: &'a Attributes) -> &'a str {
        match self.distinguisher_method {
            None => "",
            Some(DistinguisherMethod::ByUser) => &user.name,
            Some(DistinguisherMethod::ByNamespace) => &request.namespace,
        }
    }
}

impl Rule {
    fn covers(&self, request: &Attributes) -> bool {
        match request.resource_request {
            true => self.resource_rules.iter().any(|rule| rule.matches(request)),
            false => self.non_resource_rules.iter().any(|rule| rule.matches(request)),
        }
    }
}

impl Subject {
    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Subject::User { user: named } => named.name == ALL || named.name == user.name,
            Subject::Group { group } => group.name == ALL || user.in_group(&group.name),
            Subject::ServiceAccount { service_account: named } => {
                service_account(&user.name).is_some_and(|(namespace, name)| {
                    named.namespace == namespace && (named.name == ALL || named.name == name)
                })
            }
        }
    }
}

impl ResourceRule {
    fn matches(&self, request: &Attributes) -> bool {
        contains(&self.verbs, &request.verb)
            && contains(&self.api_groups, &request.group)
            && self.resources.iter().any(|resource| resource == ALL || is_resource_of(resource, request))
            && if request.namespace.is_empty() {
                self.cluster_scope
            } else {
                contains(&self.namespaces, &request.namespace)
            }
    }
}

impl PathRule {
    fn matches(&self, request: &Attributes) -> bool {
        contains(&self.verbs, &request.verb)
            && self.paths.iter().any(|path| path_matches(path, &request.path))
    }
}

fn contains(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == ALL || item == value)
}

/// Whether `resource` is the resource of the request, with its subresource: `pods` or `pods/log`.
fn is_resource_of(resource: &str, request: &Attributes) -> bool {
    match resource.split_once('/') {
        None => request.subresource.is_empty() && resource == request.resource,
        Some((resource, subresource)) => resource == request.resource && subresource == request.subresource,
    }
}

/// Whether a path is `pattern`, or lies below the part of `pattern` before a final `*`. `/healthz` and `/healthz/*` match
/// `/healthz/etcd`.
fn path_matches(pattern: &str, path: &str) -> bool {
    let folder = pattern.trim_end_matches('*').trim_end_matches('/');
    let is_below = path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    pattern == ALL || pattern == path || is_below
}

#[cfg(test)]
mod tests {
    use serde::Deserialize as _;
    use serde_json::{Value, json};

    use super::*;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
    }

    fn resource_request(verb: &str, group: &str, resource: &str, namespace: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.to_owned(),
            resource_request: true,
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            ..Attributes::default()
        }
    }

    fn path_request(verb: &str, path: &str) -> Attributes {
        Attributes { verb: verb.to_owned(), path: path.to_owned(), ..Attributes::default() }
    }

    impl SchemaSpec {
        fn matches(&self, user: &UserInfo, request: &Attributes) -> bool {
            self.covers(&self.rules_for(user), request)
        }
    }

    fn schema(rule: Value) -> SchemaSpec {
        let spec = json!({"priorityLevelConfiguration": {"name": "l"}, "rules": [rule]});
        SchemaSpec::deserialize(spec).unwrap()
    }

    #[test]
    fn subject_matches_user_group_or_service_account() {
        let everything = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
        let alice = user("alice", &["team", "system:authenticated"]);
        let robot = user("system:serviceaccount:shop:robot", &["system:serviceaccounts"]);
        let table = [
            (json!({"kind": "User", "user": {"name": "alice"}}), true, false),
            (json!({"kind": "User", "user": {"name": "Alice"}}), false, false),
            (json!({"kind": "User", "user": {"name": "*"}}), true, true),
            (json!({"kind": "Group", "group": {"name": "team"}}), true, false),
            (json!({"kind": "Group", "group": {"name": "tea"}}), false, false),
            (json!({"kind": "Group", "group": {"name": "*"}}), true, true),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "shop", "name": "robot"}}),
                false,
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "shop", "name": "*"}}),
                false,
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "shop", "name": "rob"}}),
                false,
                false,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "other", "name": "*"}}),
                false,
                false,
            ),
        ];
        for (subject, is_alice, is_robot) in table {
            let schema = schema(json!({"subjects": [subject], "nonResourceRules": everything}));
            assert_eq!(schema.matches(&alice, &path_request("get", "/x")), is_alice, "{subject}");
            assert_eq!(schema.matches(&robot, &path_request("get", "/x")), is_robot, "{subject}");
        }
    }

    #[test]
    fn resource_rule_matches_verb_group_resource_and_scope() {
        let of_rule = |rule: Value| {
            schema(json!({"subjects": [{"kind": "Group", "group": {"name": "*"}}], "resourceRules": [rule]}))
        };
        let alice = user("alice", &[]);
        let pods = json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"], "namespaces": ["a"]});
        let all_pods = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]});
        let cluster = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true});
        let table = [
            (&pods, ("get", "", "pods", "a"), true),
            (&pods, ("list", "", "pods/log", "a"), true),
            (&pods, ("list", "", "pods/status", "a"), false),
            (&pods, ("watch", "", "pods", "a"), false),
            (&pods, ("get", "apps", "pods", "a"), false),
            (&pods, ("get", "", "secrets", "a"), false),
            (&pods, ("get", "", "pods", "b"), false),
            (&pods, ("list", "", "pods", ""), false),
            (&all_pods, ("deletecollection", "apps", "deployments/scale", "b"), true),
            (&all_pods, ("list", "apps", "deployments", ""), true),
            (&cluster, ("list", "", "pods", ""), true),
            (&cluster, ("list", "", "pods", "a"), false),
        ];
        for (rule, (verb, group, resource, namespace), expected) in table {
            let request = resource_request(verb, group, resource, namespace);
            assert_eq!(of_rule(rule.clone()).matches(&alice, &request), expected, "{rule} {request:?}");
        }
        assert!(!of_rule(all_pods).matches(&alice, &path_request("get", "/healthz")));
    }

    #[test]
    fn path_rule_matches_path_and_paths_below() {
        let table = [
            (json!(["/healthz"]), "/healthz", true),
            (json!(["/healthz"]), "/healthz/etcd", true),
            (json!(["/healthz"]), "/healthzetcd", false),
            (json!(["/healthz/*"]), "/healthz/etcd", true),
            (json!(["/healthz/*"]), "/healthz", false),
            (json!(["/*"]), "/anything", true),
            (json!(["/metrics", "*"]), "/anything", true),
        ];
        for (paths, path, expected) in table {
            let schema = schema(json!({
                "subjects": [{"kind": "Group", "group": {"name": "*"}}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": paths}],
            }));
            assert_eq!(
                schema.matches(&user("alice", &[]), &path_request("get", path)),
                expected,
                "{paths} {path}"
            );
            assert!(!schema.matches(&user("alice", &[]), &path_request("post", path)), "{paths} {path}");
        }
    }

    #[test]
    fn distinguisher_is_user_or_namespace() {
        let alice = user("alice", &[]);
        let request = resource_request("list", "", "pods", "a");
        let of = |method: Value| {
            let spec = json!({"priorityLevelConfiguration": {"name": "l"}, "distinguisherMethod": method});
            SchemaSpec::deserialize(spec).unwrap().distinguisher(&alice, &request).to_owned()
        };
        assert_eq!(of(Value::Null), "");
        assert_eq!(of(json!({"type": "ByUser"})), "alice");
        assert_eq!(of(json!({"type": "ByNamespace"})), "a");
    }
}
