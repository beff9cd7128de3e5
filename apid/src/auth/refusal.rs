//! The message of a 403 (requirements A-AZD-47).

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::field::quote;
use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

/// The rejection of a request.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The client's response: 403 from authorization, 503 when authd gives no decision.
    pub status: Box<Status>,
    /// The authorizer's reason, for the audit log.
    pub reason: Arc<str>,
}

impl From<Status> for Refusal {
    /// A rejection without a decision: no authorizer gave a reason.
    fn from(status: Status) -> Self {
        Refusal { reason: Arc::from(status.message.as_str()), status: Box::new(status) }
    }
}

/// A 403 for a user and the rejected attributes.
pub(super) fn forbidden(user: &UserInfo, attributes: &Attributes, reason: &str) -> Refusal {
    let mut why = sentence(user, attributes);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    let what = GroupResource { group: attributes.group.clone(), resource: attributes.resource.clone() };
    Refusal { status: Box::new(Status::forbidden(&what, &attributes.name, &why)), reason: reason.into() }
}

fn sentence(user: &UserInfo, a: &Attributes) -> String {
    let who = quote(&user.name);
    if !a.resource_request {
        return format!("User {who} cannot {} path {}", a.verb, quote(&a.path));
    }
    let resource = match a.subresource.as_str() {
        "" => quote(&a.resource),
        subresource => quote(&format!("{}/{subresource}", a.resource)),
    };
    let scope = match a.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    format!("User {who} cannot {} resource {resource} in API group {} {scope}", a.verb, quote(&a.group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_user_verb_resource_and_scope() {
        let user = UserInfo { name: "u".into(), ..UserInfo::default() };
        let list = Attributes {
            verb: "list".into(),
            resource_request: true,
            resource: "pods".into(),
            ..Attributes::default()
        };
        for (attributes, reason, expected) in [
            (
                Attributes { namespace: "ns".into(), ..list.clone() },
                "",
                r#"pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "ns""#,
            ),
            (
                Attributes {
                    verb: "get".into(),
                    name: "x".into(),
                    subresource: "log".into(),
                    namespace: "ns".into(),
                    ..list.clone()
                },
                "",
                r#"pods "x" is forbidden: User "u" cannot get resource "pods/log" in API group "" in the namespace "ns""#,
            ),
            (
                Attributes { group: "apps".into(), resource: "deployments".into(), ..list.clone() },
                "no",
                r#"deployments.apps is forbidden: User "u" cannot list resource "deployments" in API group "apps" at the cluster scope: no"#,
            ),
            (
                Attributes { verb: "get".into(), path: "/metrics".into(), ..Attributes::default() },
                "",
                r#"forbidden: User "u" cannot get path "/metrics""#,
            ),
        ] {
            let refusal = forbidden(&user, &attributes, reason);
            assert_eq!((refusal.status.code, refusal.status.message.as_str()), (403, expected));
        }
    }
}
