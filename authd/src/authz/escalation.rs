//! The escalation check of roles and bindings (requirements A-RBAC-56 to A-RBAC-64). A user may grant only
//! permissions that the user has. Exceptions are the verb `escalate` on the written role, and the verb `bind`
//! on the role of the written binding.
//!
//! # Contract
//!
//! All authorizers decide on the verbs `escalate` and `bind`. RBAC alone determines the permissions of the
//! user, as in Kubernetes. For a POST apid leaves the name of the role empty, so a rule with `resourceNames`
//! never allows `escalate` on a POST.

use apimachinery::attributes::Attributes;
use apimachinery::field::quote;
use apimachinery::user::UserInfo;
use authproto::auth::{self, covers_request::What};

use super::{AuthzRequest, Union};
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::rules::covers::{MAX_COMPARISONS, MissingRules, compact, format_rule, missing_rules, quote_list};
use crate::rules::rule::string_list;
use crate::rules::{PolicyRule, RoleKind, RulesLimit, UserRules};

/// The result of an escalation check.
#[derive(Clone, Debug, PartialEq)]
pub enum Coverage {
    /// The write is allowed.
    Covered,
    /// The role of a binding does not exist; contains the message of the 404.
    RoleNotFound(String),
    /// The user lacks permissions. Contains the message of the 403 after `is forbidden: `, and the missing
    /// rules. If the user may not write an aggregation rule, these are the rules of full access.
    Lacking(String, Vec<PolicyRule>),
}

/// Limit in bytes of the rules in the message of a denial; the message only counts further rules.
const MAX_LISTED_BYTES: usize = 64 * 1024;

/// A role or binding that a user writes.
#[derive(Clone, Copy, Debug)]
pub enum WrittenObject<'r> {
    /// A role, with its new rules.
    Role(&'r auth::RoleWrite),
    /// A binding to the role of this kind and name.
    Binding(RoleKind, &'r str),
}

impl<'r> WrittenObject<'r> {
    /// Decodes the written object of a request.
    ///
    /// # Errors
    ///
    /// The malformed part of the message of apid.
    pub fn from_request(request: &'r auth::CoversRequest) -> Result<Self, &'static str> {
        match request.what.as_ref().ok_or("a check of neither a role nor a binding")? {
            What::Role(role) => Ok(WrittenObject::Role(role)),
            What::Binding(binding) => {
                let kind = RoleKind::parse(&binding.role_kind).ok_or("a role of unknown kind")?;
                Ok(WrittenObject::Binding(kind, &binding.role_name))
            }
        }
    }
}

/// Checks the write of one role or binding in `namespace`. `group` is the full name of the RBAC API group.
///
/// # Errors
///
/// [`MirrorNotReady`].
pub async fn check(
    modes: &Union,
    group: &str,
    user: &UserInfo,
    written: WrittenObject<'_>,
    namespace: &str,
    at_least: AtLeast<'_>,
) -> Result<Coverage, MirrorNotReady> {
    let (verb, resource, name) = match written {
        WrittenObject::Role(role) => ("escalate", role.resource.as_str(), role.name.as_str()),
        WrittenObject::Binding(kind, name) => ("bind", kind.resource(), name),
    };
    let attributes = Attributes {
        verb: verb.to_owned(),
        resource_request: true,
        group: group.to_owned(),
        version: "*".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    };
    let authz_request = AuthzRequest { user, attributes: &attributes, at_least };
    if modes.authorize(authz_request).await?.decision.allowed() {
        return Ok(Coverage::Covered);
    }
    let policy = at_least.policy()?;
    let UserRules { rules: granted, problems, .. } = policy.rules_of(user, namespace, RulesLimit::NONE);
    let (requested, aggregates) = match written {
        WrittenObject::Role(role) => (role.rules.iter().map(PolicyRule::from).collect(), role.aggregates),
        WrittenObject::Binding(kind, name) => {
            let role_namespace = if kind == RoleKind::ClusterRole { "" } else { namespace };
            match policy.effective_rules(kind, role_namespace, name) {
                Some(rules) => (rules, false),
                None => return Ok(Coverage::RoleNotFound(policy.role_not_found_message(kind, name))),
            }
        }
    };
    drop(policy);
    let missing = missing_rules(&granted, &requested);
    if !missing.is_empty() {
        return Ok(deny(user, missing, &problems));
    }
    if aggregates && !missing_rules(&granted, &full_access_rules()).is_empty() {
        let sentence = "must have cluster-admin privileges to use the aggregationRule".to_owned();
        return Ok(Coverage::Lacking(sentence, full_access_rules()));
    }
    Ok(Coverage::Covered)
}

fn deny(user: &UserInfo, missing: MissingRules, problems: &[String]) -> Coverage {
    let not_granted = compact(&missing.not_granted);
    let mut sentence = format!("user {} (groups={}) is ", quote(&user.name), quote_list(&user.groups));
    if !not_granted.is_empty() {
        sentence.push_str("attempting to grant RBAC permissions not currently held:\n");
        sentence.push_str(&rule_lines(&not_granted));
    }
    if !missing.unchecked.is_empty() {
        let separator = if not_granted.is_empty() { "" } else { "\nand " };
        sentence.push_str(&format!(
            "{separator}attempting to grant RBAC permissions whose check was given up after {MAX_COMPARISONS} \
             comparisons; write roles with fewer rules, or get the verb escalate or bind:\n{}",
            rule_lines(&missing.unchecked)
        ));
    }
    if !problems.is_empty() {
        sentence.push_str(&format!("; resolution errors: [{}]", problems.join(", ")));
    }
    Coverage::Lacking(sentence, [not_granted, missing.unchecked].concat())
}

/// Formats rules, one a line, sorted, within [`MAX_LISTED_BYTES`].
fn rule_lines(rules: &[PolicyRule]) -> String {
    let mut lines: Vec<String> = rules.iter().map(format_rule).collect();
    lines.sort();
    lines.dedup();
    join_with_limit(MAX_LISTED_BYTES, &lines)
}

/// Joins lines until `max` bytes; a longer text ends with the number of lines left out.
fn join_with_limit(max: usize, lines: &[String]) -> String {
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        if text.len() + line.len() > max {
            text.push_str(&format!("(and {} more)", lines.len() - index));
            break;
        }
        text.push_str(line);
        if index + 1 < lines.len() {
            text.push('\n');
        }
    }
    text
}

/// The permissions of full access.
/// A writer of an aggregation rule needs them, since the rule can aggregate any role.
pub(super) fn full_access_rules() -> Vec<PolicyRule> {
    let star = || string_list(&["*"]);
    vec![
        PolicyRule { verbs: star(), api_groups: star(), resources: star(), ..PolicyRule::default() },
        PolicyRule { verbs: star(), non_resource_urls: star(), ..PolicyRule::default() },
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::mirror::Mirror;
    use apimachinery::names::{Names, Preset};
    use auth::mirror_object::Kind;
    use futures_util::FutureExt as _;

    const GROUP: &str = "rbac.authorization.k8s.io";

    fn rule(verbs: &[&str], group: &str, resources: &[&str], names: &[&str]) -> auth::PolicyRule {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        auth::PolicyRule {
            verbs: list(verbs),
            api_groups: vec![group.to_owned()],
            resources: list(resources),
            resource_names: list(names),
            non_resource_urls: Vec::new(),
        }
    }

    #[test]
    fn denial_that_lists_many_rules_is_limited() {
        let lines: Vec<String> = (0..3).map(|n| n.to_string().repeat(10)).collect();
        assert_eq!(join_with_limit(100, &lines), "0000000000\n1111111111\n2222222222");
        assert_eq!(join_with_limit(25, &lines), "0000000000\n1111111111\n(and 1 more)");
        assert_eq!(join_with_limit(5, &lines), "(and 3 more)");
    }

    /// Alice may edit pods in `a`, escalate the role `big` there and bind the ClusterRole `all`.
    /// The ClusterRole `all` allows everything; the Role `pods` in `a` allows the permissions of alice.
    fn mirror() -> (Arc<Mirror>, crate::mirror::Feed) {
        let mirror = Mirror::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()));
        let mut feed = mirror.begin();
        let mut put = |namespace: &str, name: &str, kind: Kind| {
            let object = auth::MirrorObject {
                namespace: namespace.into(),
                name: name.into(),
                kind: Some(kind),
                ..auth::MirrorObject::default()
            };
            feed.put(auth::MirrorPut { revision: 1, object: Some(object) }).unwrap();
        };
        let role = |rules: Vec<auth::PolicyRule>| auth::MirrorRole { rules, ..auth::MirrorRole::default() };
        put("", "all", Kind::ClusterRole(role(vec![rule(&["*"], "*", &["*"], &[])])));
        put("a", "pods", Kind::Role(role(vec![rule(&["get", "list"], "", &["pods"], &[])])));
        put(
            "a",
            "special",
            Kind::Role(role(vec![
                rule(&["escalate"], GROUP, &["roles"], &["big"]),
                rule(&["bind"], GROUP, &["clusterroles"], &["all"]),
            ])),
        );
        for name in ["pods", "special"] {
            put(
                "a",
                name,
                Kind::RoleBinding(auth::MirrorBinding {
                    role_kind: "Role".into(),
                    role_name: name.into(),
                    subjects: vec![auth::Subject {
                        kind: "User".into(),
                        name: "alice".into(),
                        ..auth::Subject::default()
                    }],
                }),
            );
        }
        feed.synced(1).unwrap();
        (mirror, feed)
    }

    fn ask(name: &str, groups: &[&str], namespace: &str, what: What) -> Coverage {
        let (mirror, _feed) = mirror();
        let modes = Union::from_flag("RBAC");
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        let user = UserInfo { name: name.into(), groups, ..UserInfo::default() };
        let request = auth::CoversRequest {
            namespace: namespace.into(),
            what: Some(what),
            ..auth::CoversRequest::default()
        };
        let written = WrittenObject::from_request(&request).unwrap();
        check(&modes, GROUP, &user, written, namespace, mirror.at_least(1))
            .now_or_never()
            .expect("the check does not wait")
            .unwrap()
    }

    fn role(name: &str, rules: Vec<auth::PolicyRule>, aggregates: bool) -> What {
        What::Role(auth::RoleWrite { resource: "roles".into(), name: name.into(), rules, aggregates })
    }

    fn binding(kind: &str, name: &str) -> What {
        What::Binding(auth::BindingWrite { role_kind: kind.into(), role_name: name.into() })
    }

    #[test]
    fn escalation_check_that_gives_up_says_so() {
        let words: Vec<String> = (0..1000).map(|n| format!("x{n}")).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let huge = auth::PolicyRule {
            resource_names: words.iter().map(ToString::to_string).collect(),
            ..rule(&words, "", &words, &[])
        };
        let small = rule(&["get"], "", &["secrets"], &[]);
        for (rules, held, given_up) in [
            (vec![huge.clone()], false, true),
            (vec![huge, small.clone()], true, true),
            (vec![small], true, false),
        ] {
            let coverage = ask("alice", &[], "a", role("r", rules, false));
            let Coverage::Lacking(sentence, _) = coverage else { panic!("{coverage:?}") };
            let shown =
                (sentence.contains("not currently held"), sentence.contains("given up after 1000000"));
            assert_eq!(shown, (held, given_up), "{}", sentence.get(..300).unwrap_or(&sentence));
            assert!(sentence.len() < 200_000);
        }
    }

    #[test]
    fn escalation_check_requires_granted_permissions() {
        let secrets = || vec![rule(&["get"], "", &["secrets"], &[])];
        let denied = "user \"alice\" (groups=[\"team-a\" \"system:authenticated\"]) is attempting to grant RBAC \
                       permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}";
        for (namespace, what, expected) in [
            ("a", role("r", vec![rule(&["get"], "", &["pods"], &[])], false), ""),
            ("b", role("r", vec![rule(&["get"], "", &["pods"], &[])], false), "user"),
            ("", role("r", vec![rule(&["get"], "", &["pods"], &[])], false), "user"),
            ("a", role("r", secrets(), false), denied),
            ("a", role("r", Vec::new(), false), ""),
            ("a", role("big", secrets(), false), ""),
            ("a", role("", secrets(), false), denied),
            (
                "a",
                role("r", Vec::new(), true),
                "must have cluster-admin privileges to use the aggregationRule",
            ),
            ("a", binding("Role", "pods"), ""),
            ("a", binding("Role", "special"), ""),
            ("a", binding("ClusterRole", "all"), ""),
            ("b", binding("ClusterRole", "all"), "user"),
            ("a", binding("Role", "nosuch"), r#"role.rbac.authorization.k8s.io "nosuch" not found"#),
            ("b", binding("Role", "pods"), r#"role.rbac.authorization.k8s.io "pods" not found"#),
        ] {
            let case = format!("{namespace} {what:?}");
            let got = match ask("alice", &["team-a", "system:authenticated"], namespace, what) {
                Coverage::Covered => String::new(),
                Coverage::RoleNotFound(sentence) | Coverage::Lacking(sentence, _) => sentence,
            };
            assert!(
                if expected == "user" { got.starts_with("user") } else { got == expected },
                "{case}: {got}"
            );
        }
        let full_access_role = role("r", vec![rule(&["*"], "*", &["*"], &[])], true);
        assert_eq!(ask("root", &["system:masters"], "", full_access_role), Coverage::Covered);
    }
}
