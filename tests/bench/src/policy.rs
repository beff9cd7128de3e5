//! Policy of the decision benchmarks, as the policy mirror of apid sends it.
//!
//! One user has a hundred bindings. Half of these bindings are cluster-wide and half are in the namespace of
//! the requests; the latter refer to Roles and to ClusterRoles. Each binding refers to its own role, which
//! allows one resource: `kind-0` to `kind-99`.
//!
//! Other users have one binding each, with the same mix, over a thousand namespaces with four roles each.
//! They are users, groups and service accounts.

use apimachinery::attributes::Attributes;
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use authproto::auth::mirror_object::Kind;
use authproto::auth::{MirrorBinding, MirrorObject, MirrorPut, MirrorRole, PolicyRule, Subject};

/// User whose decisions are measured.
pub const USER: &str = "system:serviceaccount:namespace-7:caller";
/// Number of bindings of the user.
pub const USER_BINDINGS: usize = 100;
/// Namespace of the requests.
const NAMESPACE: &str = "namespace-7";
/// API group of all resources.
const GROUP: &str = "apps";
/// Number of namespaces with roles.
const NAMESPACES: usize = 1000;
/// Number of roles in each namespace.
const ROLES: usize = 4;

/// Returns the measured user, with the groups that authentication adds.
pub fn caller(names: &Names) -> UserInfo {
    let groups = ["system:serviceaccounts", "system:serviceaccounts:namespace-7", "system:authenticated"];
    UserInfo {
        name: USER.to_owned(),
        uid: "6f9619ff-8b86-d011-b42d-00c04fc964ff".to_owned(),
        groups: groups.map(str::to_owned).to_vec(),
        extra: [(names.credential_id_extra(), vec!["JTI=1".to_owned()])].into(),
    }
}

/// Builds the attributes of a request of the user for an object of a resource.
pub fn request(resource: &str, name: &str) -> Attributes {
    Attributes {
        verb: "get".to_owned(),
        resource_request: true,
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        path: format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{resource}/{name}"),
        ..Attributes::default()
    }
}

/// Builds the bindings of the user, the roles of these bindings, and the roles of all namespaces.
pub fn user_objects() -> Vec<MirrorObject> {
    let mut all = Vec::new();
    for number in 0..USER_BINDINGS {
        let (name, resource) = (format!("role-{number}"), format!("kind-{number}"));
        let namespaced = number % 4 == 3;
        all.push(role(if namespaced { NAMESPACE } else { "" }, &name, &resource));
        let namespace = if number % 2 == 1 { NAMESPACE } else { "" };
        let subject = subject("", "ServiceAccount", "caller", NAMESPACE);
        let role_kind = if namespaced { "Role" } else { "ClusterRole" };
        all.push(binding(namespace, &format!("caller-{number}"), role_kind, &name, subject));
    }
    for namespace in 0..NAMESPACES {
        for number in 0..ROLES {
            let resource = format!("kind-{number}");
            all.push(role(&format!("namespace-{namespace}"), &format!("local-{number}"), &resource));
        }
    }
    all
}

/// Builds the binding of another user, by number.
pub fn unrelated_binding(names: &Names, number: usize) -> MirrorObject {
    let group = names.group("rbac.authorization");
    let namespace = format!("namespace-{}", number % NAMESPACES);
    let subject = match number % 3 {
        0 => subject(&group, "User", &format!("user-{number}@example.com"), ""),
        1 => subject(&group, "Group", &format!("team-{number}"), ""),
        _ => subject("", "ServiceAccount", &format!("robot-{number}"), &namespace),
    };
    let name = format!("binding-{number}");
    match number % 5 {
        0 => binding("", &name, "ClusterRole", &format!("role-{}", number % USER_BINDINGS / 4 * 4), subject),
        1 | 2 => binding(
            &namespace,
            &name,
            "ClusterRole",
            &format!("role-{}", number % USER_BINDINGS / 4 * 4),
            subject,
        ),
        _ => binding(&namespace, &name, "Role", &format!("local-{}", number % ROLES), subject),
    }
}

/// Builds the message that adds an object to the policy mirror at a revision.
pub fn put(revision: u64, object: MirrorObject) -> MirrorPut {
    MirrorPut { revision, object: Some(object) }
}

fn object(namespace: &str, name: &str, kind: Kind) -> MirrorObject {
    MirrorObject {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        kind: Some(kind),
        ..MirrorObject::default()
    }
}

fn role(namespace: &str, name: &str, resource: &str) -> MirrorObject {
    let rule = PolicyRule {
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        api_groups: vec![GROUP.to_owned()],
        resources: vec![resource.to_owned()],
        ..PolicyRule::default()
    };
    let role = MirrorRole { rules: vec![rule], ..MirrorRole::default() };
    object(namespace, name, if namespace.is_empty() { Kind::ClusterRole(role) } else { Kind::Role(role) })
}

fn binding(namespace: &str, name: &str, role_kind: &str, role_name: &str, subject: Subject) -> MirrorObject {
    let binding = MirrorBinding {
        role_kind: role_kind.to_owned(),
        role_name: role_name.to_owned(),
        subjects: vec![subject],
    };
    let cluster = namespace.is_empty();
    object(
        namespace,
        name,
        if cluster { Kind::ClusterRoleBinding(binding) } else { Kind::RoleBinding(binding) },
    )
}

fn subject(group: &str, kind: &str, name: &str, namespace: &str) -> Subject {
    Subject {
        kind: kind.to_owned(),
        api_group: group.to_owned(),
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    }
}
