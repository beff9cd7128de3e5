//! Property test of the indexed policy against a reference model.
//! The test changes random policies at random, and compares decisions, reasons, listed rules, explanations,
//! allowed subjects and suggested grants. `PAIRS` sets the number of pairs of policy and request (default
//! 72,000); `SEED` repeats a run.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::super::suggestion::SuggestedGrant;
use super::super::{RbacDecision, RoleKind, RulesLimit};
use super::*;

const NAMESPACES: [&str; 3] = ["", "a", "b"];
const ROLES: [&str; 4] = ["r0", "r1", "r2", "r3"];
const BINDINGS: [&str; 6] = ["b0", "b1", "b2", "b3", "b4", "b5"];
const SUBJECTS: [&str; 7] = ["U:alice", "U:bob", "G:team", "G:ops", "S:/robot", "S:a/robot", "S:b/robot"];
const VERBS: [&str; 4] = ["get", "list", "create", "*"];
const GROUPS: [&str; 3] = ["-", "apps", "*"];
const RESOURCES: [&str; 6] = ["pods", "pods/log", "deployments", "*/log", "*", "deployments/scale"];
const OBJECTS: [&str; 3] = ["", "x", "y"];
const PATHS: [&str; 4] = ["/healthz", "/healthz/*", "*", "/api*"];

/// The reference model: stores all objects and decides by a full scan.
#[derive(Default)]
struct ReferencePolicy {
    roles: BTreeMap<(&'static str, String, String), Vec<PolicyRule>>,
    bindings: BTreeMap<(String, String), BindingSpec>,
}

impl ReferencePolicy {
    fn allows(&self, user: &UserInfo, ask: &Attributes) -> bool {
        self.bindings.iter().any(|((namespace, _), binding)| self.grants(namespace, binding, user, ask))
    }

    fn near_misses(&self, user: &UserInfo, ask: &Attributes) -> usize {
        let bindings = self.bindings.iter();
        let rules = bindings.flat_map(|((namespace, _), binding)| self.rules(namespace, binding, user, ask));
        rules.filter(|rule| is_near_miss(rule, ask)).count()
    }

    fn grants(&self, namespace: &str, binding: &BindingSpec, user: &UserInfo, ask: &Attributes) -> bool {
        self.rules(namespace, binding, user, ask).iter().any(|rule| matches_rule(rule, ask))
    }

    /// Returns the rules that apply to the user through a binding, if it applies in the namespace of the
    /// request.
    fn rules(
        &self,
        namespace: &str,
        binding: &BindingSpec,
        user: &UserInfo,
        ask: &Attributes,
    ) -> &[PolicyRule] {
        let in_scope = namespace.is_empty() || ask.resource_request && namespace == ask.namespace;
        let bound = binding.subjects.iter().any(|subject| match subject.kind {
            SubjectKind::User => *subject.name == *user.name,
            SubjectKind::Group => user.groups.iter().any(|group| *group == *subject.name),
            SubjectKind::ServiceAccount => {
                let account_namespace =
                    if subject.namespace.is_empty() { namespace } else { &*subject.namespace };
                !account_namespace.is_empty()
                    && user.name == format!("system:serviceaccount:{account_namespace}:{}", subject.name)
            }
        });
        let role_namespace = if binding.role_kind == RoleKind::ClusterRole { "" } else { namespace };
        let key = (binding.role_kind.as_str(), role_namespace.to_owned(), binding.role_name.clone());
        let rules = self.roles.get(&key).map(Vec::as_slice).unwrap_or_default();
        if in_scope && bound { rules } else { &[] }
    }
}

/// Whether a rule does not allow a request, but allows a similar one. The similar request has a verb and a name
/// of the rule, or another API group or subresource of its resources.
fn is_near_miss(rule: &PolicyRule, ask: &Attributes) -> bool {
    let allows = |changed: &Attributes| matches_rule(rule, changed);
    if allows(ask) {
        return false;
    }
    let with_verbs = rule.verbs.iter().map(|verb| Attributes { verb: verb.to_string(), ..ask.clone() });
    if !ask.resource_request {
        return with_verbs.into_iter().any(|ask| allows(&ask));
    }
    let names = || rule.resource_names.iter().map(|name| name.to_string()).chain([ask.name.clone()]);
    let with_names = with_verbs.flat_map(|ask| names().map(move |name| Attributes { name, ..ask.clone() }));
    let path = match ask.subresource.as_str() {
        "" => ask.resource.clone(),
        subresource => format!("{}/{subresource}", ask.resource),
    };
    let is_named = rule.resources.iter().any(|entry| **entry == *path);
    let with_groups = rule.api_groups.iter().filter(|_| is_named);
    let with_groups = with_groups.map(|group| Attributes { group: group.to_string(), ..ask.clone() });
    let entries = rule.resources.iter().filter_map(|entry| entry.strip_prefix(ask.resource.as_str()));
    let subresources = entries.filter_map(|rest| rest.strip_prefix('/').or(rest.is_empty().then_some("")));
    let with_subresources =
        subresources.map(|subresource| Attributes { subresource: subresource.to_owned(), ..ask.clone() });
    let changed_elsewhere: Vec<Attributes> = with_groups.chain(with_subresources).collect();
    let any_name = changed_elsewhere
        .iter()
        .flat_map(|ask| names().map(|name| Attributes { name, ..ask.clone() }).collect::<Vec<_>>());
    with_names.into_iter().any(|ask| allows(&ask)) || any_name.into_iter().any(|ask| allows(&ask))
}

/// Whether a rule allows a request, as the documentation of Kubernetes defines it.
fn matches_rule(rule: &PolicyRule, ask: &Attributes) -> bool {
    let contains_or_star =
        |list: &[Box<str>], word: &str| list.iter().any(|entry| **entry == *word || &**entry == "*");
    if !contains_or_star(&rule.verbs, &ask.verb) {
        return false;
    }
    if !ask.resource_request {
        return rule.non_resource_urls.iter().any(|url| {
            url.strip_suffix('*').map_or(**url == *ask.path, |start| ask.path.starts_with(start))
        });
    }
    let whole = match ask.subresource.as_str() {
        "" => vec![ask.resource.clone()],
        sub => vec![format!("{}/{sub}", ask.resource), format!("*/{sub}")],
    };
    contains_or_star(&rule.api_groups, &ask.group)
        && (whole.iter().any(|resource| contains_or_star(&rule.resources, resource)))
        && (rule.resource_names.is_empty() || rule.resource_names.iter().any(|name| **name == *ask.name))
}

fn random_choices<'a>(rng: &mut SmallRng, from: &[&'a str], max_count: usize) -> Vec<&'a str> {
    let n = rng.random_range(0..=max_count);
    from.choose_multiple(rng, n).copied().collect()
}

fn random_rule(rng: &mut SmallRng) -> PolicyRule {
    let text = if rng.random_bool(0.2) {
        format!(
            "{}||||{}",
            random_choices(rng, &VERBS, 2).join(","),
            random_choices(rng, &PATHS, 2).join(",")
        )
    } else {
        let names = if rng.random_bool(0.3) { random_choices(rng, &OBJECTS[1..], 2) } else { vec![] };
        let lists = [
            random_choices(rng, &VERBS, 2),
            random_choices(rng, &GROUPS, 2),
            random_choices(rng, &RESOURCES, 2),
            names,
        ];
        lists.map(|list| list.join(",")).join("|")
    };
    rule(&text)
}

/// Checks that the user is allowed exactly if one of the allowed subjects matches the user.
fn check_allowed_subjects(policy: &Policy, user: &UserInfo, ask: &Attributes, is_allowed: bool) {
    let subjects = policy.allowed_subjects(ask);
    let is_user = subjects.iter().filter(|allowed| allowed.names.is_empty()).any(|allowed| {
        let Subject { kind, name, namespace } = &allowed.subject;
        match kind {
            SubjectKind::User => **name == *user.name,
            SubjectKind::Group => user.groups.iter().any(|group| *group == **name),
            SubjectKind::ServiceAccount => user.name == format!("system:serviceaccount:{namespace}:{name}"),
        }
    });
    assert_eq!(is_user, is_allowed, "{user:?} {ask:?} {subjects:?}");
}

/// Checks that `names_allowed` returns exactly the names for which the request is allowed.
fn check_names_allowed(policy: &Policy, model: &ReferencePolicy, user: &UserInfo, ask: &Attributes) {
    let named = |name: &str| Attributes { name: name.to_owned(), ..ask.clone() };
    let names = policy.names_allowed(user, &named(""));
    let mut expected: Vec<&str> = OBJECTS[1..].to_vec();
    expected.retain(|name| model.allows(user, &named(name)));
    match names {
        None => assert!(model.allows(user, &named("")), "{user:?} {ask:?}"),
        Some(names) => {
            assert!(!model.allows(user, &named("")), "{user:?} {ask:?}");
            assert!(names.iter().eq(&expected), "{user:?} {ask:?} {names:?} {expected:?}");
        }
    }
}

/// Checks that the suggested grant, in an empty policy, allows the request and no other request that RBAC can
/// separate from it.
fn check_suggestion(user: &UserInfo, ask: &Attributes, other: &(UserInfo, Attributes)) {
    let grant = SuggestedGrant::for_request(user, ask).expect("a suggestion");
    let role = RoleSpec { rules: vec![grant.rule.clone()], ..RoleSpec::default() };
    let binding = BindingSpec {
        meta: Meta::default(),
        role_kind: grant.role_kind(),
        role_name: grant.name.clone(),
        subjects: vec![grant.subject.clone()],
    };
    let mut policy = policy();
    policy.put_role(grant.role_kind(), &grant.namespace, &grant.name, role);
    policy.put_binding(&grant.namespace, &grant.name, binding);
    let allows =
        |user: &UserInfo, ask: &Attributes| matches!(policy.decide(user, ask), RbacDecision::Allowed { .. });
    assert!(allows(user, ask), "{user:?} {ask:?} {grant:?}");
    let changed = [
        other.1.clone(),
        Attributes { verb: other.1.verb.clone(), ..ask.clone() },
        Attributes { name: other.1.name.clone(), ..ask.clone() },
        Attributes { namespace: other.1.namespace.clone(), ..ask.clone() },
        Attributes { group: other.1.group.clone(), ..ask.clone() },
        Attributes { resource: other.1.resource.clone(), ..ask.clone() },
        Attributes { subresource: other.1.subresource.clone(), ..ask.clone() },
        Attributes { path: other.1.path.clone(), ..ask.clone() },
    ];
    for (other_user, changed) in changed.iter().flat_map(|ask| [(user, ask), (&other.0, ask)]) {
        let is_included = other_user.name == user.name && includes(ask, changed);
        assert_eq!(allows(other_user, changed), is_included, "{grant:?} {other_user:?} {changed:?}");
    }
}

/// Whether a rule for `ask` must also allow `other`. `*` includes all values, an absent name all names, and
/// an absent namespace all namespaces.
fn includes(ask: &Attributes, other: &Attributes) -> bool {
    let equals_or_star = |asked: &str, other: &str| asked == "*" || asked == other;
    if ask.resource_request != other.resource_request || !equals_or_star(&ask.verb, &other.verb) {
        return false;
    }
    if !ask.resource_request {
        return match ask.path.strip_suffix('*') {
            Some(start) => other.path.starts_with(start),
            None => ask.path == other.path,
        };
    }
    let is_any_resource = ask.resource == "*" && ask.subresource.is_empty();
    equals_or_star(&ask.group, &other.group)
        && (is_any_resource
            || equals_or_star(&ask.resource, &other.resource) && ask.subresource == other.subresource)
        && (ask.name.is_empty() || ask.name == other.name)
        && (ask.namespace.is_empty() || ask.namespace == other.namespace)
}

#[test]
fn indexed_policy_agrees_with_reference_model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, pairs) = (number("SEED").unwrap_or_else(rand::random), number("PAIRS").unwrap_or(72_000));
    println!("SEED={seed} PAIRS={pairs}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let (mut allowed, mut denied, mut explained) = (0, 0, 0);
    while allowed + denied < pairs {
        let (mut fast, mut model) = (policy(), ReferencePolicy::default());
        let mut previous = (UserInfo::default(), Attributes::default());
        for _ in 0..60 {
            let pick = |rng: &mut SmallRng, list: &[&'static str]| *list.choose(rng).unwrap();
            let (namespace, role_name, binding_name) =
                (pick(&mut rng, &NAMESPACES), pick(&mut rng, &ROLES), pick(&mut rng, &BINDINGS));
            let kind = if namespace.is_empty() { RoleKind::ClusterRole } else { RoleKind::Role };
            let role_key = (kind.as_str(), namespace.to_owned(), role_name.to_owned());
            match rng.random_range(0..10) {
                0..4 => {
                    let rules: Vec<PolicyRule> =
                        (0..rng.random_range(0..4)).map(|_| random_rule(&mut rng)).collect();
                    fast.put_role(
                        kind,
                        namespace,
                        role_name,
                        RoleSpec { rules: rules.clone(), ..RoleSpec::default() },
                    );
                    model.roles.insert(role_key, rules);
                }
                4 => {
                    fast.delete_role(kind, namespace, role_name);
                    model.roles.remove(&role_key);
                }
                5..9 => {
                    let role_kind = if rng.random_bool(0.5) { "ClusterRole" } else { "Role" };
                    let subjects = random_choices(&mut rng, &SUBJECTS, 3);
                    let spec = binding(&format!("{role_kind}/{role_name}"), &subjects);
                    fast.put_binding(namespace, binding_name, spec.clone());
                    model.bindings.insert((namespace.to_owned(), binding_name.to_owned()), spec);
                }
                _ => {
                    fast.delete_binding(namespace, binding_name);
                    model.bindings.remove(&(namespace.to_owned(), binding_name.to_owned()));
                }
            }
            for _ in 0..20 {
                let name = pick(
                    &mut rng,
                    &["alice", "bob", "system:serviceaccount:a:robot", "system:serviceaccount:b:robot"],
                );
                let user_info = user(name, &random_choices(&mut rng, &["team", "ops"], 2));
                let ask = if rng.random_bool(0.2) {
                    format!(
                        "{} {}",
                        pick(&mut rng, &VERBS),
                        pick(&mut rng, &["/healthz", "/healthz/x", "/apis", "/healthz/*"])
                    )
                } else {
                    let resource = pick(
                        &mut rng,
                        &[
                            "pods",
                            "pods/log",
                            "deployments",
                            "deployments/log",
                            "deployments/scale",
                            "*",
                            "*/log",
                        ],
                    );
                    let group = pick(&mut rng, &["-", "apps", "batch", "*"]);
                    format!(
                        "{} {group}/{resource} {}/{}",
                        pick(&mut rng, &VERBS),
                        pick(&mut rng, &NAMESPACES),
                        pick(&mut rng, &OBJECTS)
                    )
                };
                let attributes = request(&ask);
                let decision = fast.decide(&user_info, &attributes);
                let got = matches!(decision, RbacDecision::Allowed { .. });
                assert_eq!(got, model.allows(&user_info, &attributes), "seed {seed}: {user_info:?} {ask}");
                let namespace = if attributes.resource_request { attributes.namespace.as_str() } else { "" };
                let listed = fast.rules_of(&user_info, namespace, RulesLimit::NONE).rules;
                assert_eq!(
                    listed.iter().any(|rule| matches_rule(rule, &attributes)),
                    got,
                    "seed {seed}: {user_info:?} {ask}: the rules listed"
                );
                let explanation = fast.explain(&user_info, &attributes);
                if let RbacDecision::Allowed { reason, .. } = &decision {
                    allowed += 1;
                    let grant = explanation.grant.as_ref().expect("a grant");
                    assert_eq!(*reason, format!("RBAC: allowed by {}", grant.path), "seed {seed}: {ask}");
                    assert!(matches_rule(&grant.rule, &attributes), "seed {seed}: {ask}: {grant:?}");
                    assert!(explanation.nearest.is_empty() && explanation.more == 0, "{explanation:?}");
                } else {
                    denied += 1;
                    assert_eq!(explanation.grant, None, "seed {seed}: {user_info:?} {ask}");
                    let count = model.near_misses(&user_info, &attributes);
                    let shown = explanation.nearest.len();
                    assert_eq!(
                        (shown, shown + explanation.more),
                        (count.min(3), count),
                        "seed {seed}: {user_info:?} {ask} {explanation:?}"
                    );
                    for line in explanation.nearest {
                        let named = line.split('"').nth(1).expect("a binding in quotes");
                        let (binding, namespace) = named.split_once('/').unwrap_or((named, ""));
                        let binding_spec = &model.bindings[&(namespace.to_owned(), binding.to_owned())];
                        assert!(
                            !model.grants(namespace, binding_spec, &user_info, &attributes),
                            "seed {seed}: {user_info:?} {ask}: {line}"
                        );
                        explained += 1;
                    }
                }
                check_allowed_subjects(&fast, &user_info, &attributes, got);
                check_names_allowed(&fast, &model, &user_info, &attributes);
                check_suggestion(&user_info, &attributes, &previous);
                previous = (user_info.clone(), attributes.clone());
                // A decision for any name applies to every name, with the same reason.
                let (any_name, reason) = match decision {
                    RbacDecision::Allowed { any_name, reason, .. } => (any_name, reason),
                    RbacDecision::NotAllowed { reason, any_name } => (any_name, reason),
                };
                for other in OBJECTS {
                    let other = Attributes { name: other.to_owned(), ..attributes.clone() };
                    if any_name {
                        let reason_of_other = match fast.decide(&user_info, &other) {
                            RbacDecision::Allowed { reason, .. } => reason,
                            RbacDecision::NotAllowed { reason, .. } => reason,
                        };
                        assert_eq!(reason, reason_of_other, "seed {seed}: {user_info:?} {ask} any name");
                    }
                    assert!(
                        !any_name || model.allows(&user_info, &other) == got,
                        "seed {seed}: {user_info:?} {ask} any name"
                    );
                }
            }
        }
    }
    println!("{allowed} allowed, {denied} denied, {explained} lines of explanation");
    let enough = pairs.min(72_000) / 72;
    assert!(allowed > enough && denied > enough && explained > enough, "seed {seed}");
}
