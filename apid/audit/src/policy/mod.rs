//! The audit policy: which requests have events, at which level and at which stages.
//!
//! # Contract
//!
//! The first rule that matches a request decides. A request that no rule matches has no events. Rules see the
//! authenticated user, not the impersonated user.
//!
//! # Reference
//!
//! As in kube-apiserver, the group `*` matches every group, and `*` is no wildcard among verbs, namespaces and names of
//! objects. The resource name `""` matches requests without a name.

mod read;

use apimachinery::attributes::Attributes;
use apimachinery::user::UserInfo;

use crate::stage::{Level, Stage, Stages};
pub use read::PolicyError;

/// An audit policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    /// Stages without events for all rules; [`Rule::omit_stages`] includes them.
    omit_stages: Stages,
    omit_managed_fields: bool,
}

/// The decision of the policy about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The level of detail of the events of the request.
    pub level: Level,
    /// Stages without events.
    pub omit_stages: Stages,
    /// Whether events omit the managed fields of objects.
    pub omit_managed_fields: bool,
}

/// A rule. An empty list of criteria matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    omit_stages: Stages,
    omit_managed_fields: Option<bool>,
}

/// Resources of an API group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupResources {
    group: String,
    /// Resources with subresources: `pods`, `pods/log`, `*/scale`, `pods/*`, `*`. Empty: all resources of the group.
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl Policy {
    /// Returns the policy without a policy file: metadata of all requests, after their handling.
    pub fn built_in() -> Self {
        Policy::metadata_without(Stages::from_iter([Stage::RequestReceived]))
    }

    /// Returns [`Policy::built_in`] with the stage RequestReceived, on which the mode blocking-strict depends.
    pub(crate) fn built_in_with_receipts() -> Self {
        Policy::metadata_without(Stages::default())
    }

    /// Whether some requests with events have none at the stage RequestReceived.
    pub(crate) fn omits_receipts(&self) -> bool {
        let mut audited = self.rules.iter().filter(|rule| rule.level > Level::None);
        audited.any(|rule| rule.omit_stages.contains(Stage::RequestReceived))
    }

    fn metadata_without(omit_stages: Stages) -> Self {
        Policy {
            rules: vec![Rule { level: Level::Metadata, omit_stages, ..Rule::default() }],
            omit_stages,
            omit_managed_fields: false,
        }
    }

    /// Returns the decision about a request. `user`: the authenticated user; None if authentication failed.
    pub fn evaluate(&self, attributes: &Attributes, user: Option<&UserInfo>) -> Decision {
        match self.rules.iter().find(|rule| rule.matches(attributes, user)) {
            Some(rule) => Decision {
                level: rule.level,
                omit_stages: rule.omit_stages,
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Decision {
                level: Level::None,
                omit_stages: self.omit_stages,
                omit_managed_fields: self.omit_managed_fields,
            },
        }
    }
}

impl Rule {
    fn matches(&self, attributes: &Attributes, user: Option<&UserInfo>) -> bool {
        self.matches_user(user)
            && (self.verbs.is_empty() || self.verbs.contains(&attributes.verb))
            && self.matches_target(attributes)
    }

    fn matches_user(&self, user: Option<&UserInfo>) -> bool {
        let is_listed = |user: &UserInfo| self.users.is_empty() || self.users.contains(&user.name);
        let is_in_group = |user: &UserInfo| {
            self.user_groups.is_empty() || user.groups.iter().any(|group| self.user_groups.contains(group))
        };
        match user {
            Some(user) => is_listed(user) && is_in_group(user),
            None => self.users.is_empty() && self.user_groups.is_empty(),
        }
    }

    fn matches_target(&self, attributes: &Attributes) -> bool {
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return attributes.resource_request
                && (self.namespaces.is_empty() || self.namespaces.contains(&attributes.namespace))
                && (self.resources.is_empty()
                    || self.resources.iter().any(|resources| resources.matches(attributes)));
        }
        if self.non_resource_urls.is_empty() {
            return true;
        }
        !attributes.resource_request
            && self.non_resource_urls.iter().any(|pattern| matches_path(pattern, &attributes.path))
    }
}

impl GroupResources {
    fn matches(&self, attributes: &Attributes) -> bool {
        let is_group = self.group == "*" || self.group == attributes.group;
        if !is_group || self.resources.is_empty() {
            return is_group;
        }
        let is_name = self.resource_names.is_empty() || self.resource_names.contains(&attributes.name);
        is_name && self.resources.iter().any(|pattern| matches_resource(pattern, attributes))
    }
}

fn matches_resource(pattern: &str, attributes: &Attributes) -> bool {
    let (resource, subresource) = (attributes.resource.as_str(), attributes.subresource.as_str());
    match pattern.split_once('/') {
        None => pattern == "*" || subresource.is_empty() && pattern == resource,
        Some(("*", part)) => !subresource.is_empty() && part == subresource,
        Some((name, "*")) => name == resource,
        Some((name, part)) => name == resource && !subresource.is_empty() && part == subresource,
    }
}

fn matches_path(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix) || pattern == path,
        None => pattern == path,
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;

    fn policy(rules: &str) -> Policy {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        Policy::read(text.as_bytes(), &names).unwrap().0
    }

    fn request(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            resource_request: true,
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "a".into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn first_matching_rule_decides_level_stages_and_managed_fields() {
        let policy = policy(
            "- {level: None, users: [bob], verbs: [get]}\n\
             - {level: Request, userGroups: [team], omitStages: [RequestReceived], omitManagedFields: true}\n\
             - {level: Metadata}\n",
        );
        let bob = UserInfo { name: "bob".into(), groups: vec!["team".into()], ..UserInfo::default() };
        let get = request("get", "", "pods", "x");
        assert_eq!(policy.evaluate(&get, Some(&bob)).level, Level::None);
        let decision = policy.evaluate(&request("list", "", "pods", ""), Some(&bob));
        assert_eq!((decision.level, decision.omit_managed_fields), (Level::Request, true));
        assert!(decision.omit_stages.contains(Stage::RequestReceived));
        let decision = policy.evaluate(&get, None);
        assert_eq!((decision.level, decision.omit_managed_fields), (Level::Metadata, false));
    }

    #[test]
    fn policy_omits_receipts_if_a_rule_with_events_does() {
        for (rules, expected) in [
            ("- {level: Metadata}", false),
            ("- {level: Metadata}\n- {level: Request, omitStages: [RequestReceived]}", true),
            ("- {level: None, omitStages: [RequestReceived]}\n- {level: Metadata}", false),
            ("- {level: Metadata, omitStages: [Panic]}\nomitStages: [RequestReceived]", true),
        ] {
            assert_eq!(policy(&format!("{rules}\n")).omits_receipts(), expected, "{rules}");
        }
        assert!(Policy::built_in().omits_receipts() && !Policy::built_in_with_receipts().omits_receipts());
    }

    #[test]
    fn resources_match_groups_subresources_and_names() {
        for (resources, verb_and_target, expected) in [
            ("[{group: ''}]", ("", "pods/log", "x"), true),
            ("[{group: ''}]", ("apps", "deployments", "x"), false),
            ("[{group: '*', resources: [deployments]}]", ("apps", "deployments", "x"), true),
            ("[{group: '', resources: [pods]}]", ("", "pods/log", "x"), false),
            ("[{group: '', resources: ['*']}]", ("", "pods/log", "x"), true),
            ("[{group: '', resources: [pods/log]}]", ("", "pods/log", "x"), true),
            ("[{group: '', resources: [pods/log]}]", ("", "pods", "x"), false),
            ("[{group: '', resources: [pods/*]}]", ("", "pods", "x"), true),
            ("[{group: '', resources: ['*/log']}]", ("", "pods/log", "x"), true),
            ("[{group: '', resources: ['*/log']}]", ("", "pods", "x"), false),
            ("[{group: '', resources: [pods], resourceNames: [other, '']}]", ("", "pods", ""), true),
            ("[{group: '', resources: [pods], resourceNames: ['*']}]", ("", "pods", "x"), false),
        ] {
            let policy = policy(&format!("- {{level: Metadata, resources: {resources}}}\n"));
            let (group, resource, name) = verb_and_target;
            let decision = policy.evaluate(&request("get", group, resource, name), None);
            assert_eq!(decision.level == Level::Metadata, expected, "{resources} {verb_and_target:?}");
        }
    }

    #[test]
    fn paths_match_whole_or_by_prefix_and_never_resources() {
        let policy = policy("- {level: Metadata, nonResourceURLs: ['/healthz*', '/version', '/a/*']}\n");
        for (path, expected) in [
            ("/healthz", true),
            ("/healthz/ping", true),
            ("/version", true),
            ("/version/", false),
            ("/a", false),
        ] {
            let attributes = Attributes { path: path.into(), ..Attributes::default() };
            assert_eq!(policy.evaluate(&attributes, None).level == Level::Metadata, expected, "{path}");
        }
        let resource = Attributes { path: "/version".into(), ..request("get", "", "pods", "x") };
        assert_eq!(policy.evaluate(&resource, None).level, Level::None);
    }
}
