//! Rejections by authentication and authorization: the response to the client and the reason for the audit
//! log.
//!
//! The message of a 403 is the message of kube-apiserver (requirements A-AZD-47).

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::decision::Decision;
use apimachinery::field::quote;
use apimachinery::gvk::GroupResource;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

/// The rejection of a request by authentication or authorization, or because authd did not respond.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// The response to the client: 401, 403, or 503 when authd does not decide.
    pub status: Box<Status>,
    /// The reason of the authenticator or authorizer, for the audit log.
    pub reason: Arc<str>,
    /// Whether no authorizer allows the request itself, so authd can explain the rejection.
    pub is_denial: bool,
    /// Whether an authorizer reported an evaluation error, so a later decision can differ.
    pub has_evaluation_error: bool,
}

impl Rejection {
    /// The rejection of credentials. The client gets no reason.
    pub(crate) fn unauthorized(reason: Arc<str>) -> Self {
        Rejection {
            status: Box::new(Status::unauthorized()),
            reason,
            is_denial: false,
            has_evaluation_error: false,
        }
    }
}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        *rejection.status
    }
}

impl From<Status> for Rejection {
    /// A rejection without a decision of an authorizer: the reason is the message of the Status.
    fn from(status: Status) -> Self {
        Rejection {
            reason: Arc::from(status.message.as_str()),
            status: Box::new(status),
            is_denial: false,
            has_evaluation_error: false,
        }
    }
}

/// The 403 for a user and request attributes that no authorizer allows.
pub(crate) fn forbidden(user: &UserInfo, attributes: &Attributes, decision: &Decision) -> Rejection {
    let reason = decision.reason.as_str();
    let mut message = denial_message(user, attributes);
    if !reason.is_empty() {
        message.push_str(": ");
        message.push_str(reason);
    }
    let group_resource =
        GroupResource { group: attributes.group.clone(), resource: attributes.resource.clone() };
    Rejection {
        status: Box::new(Status::forbidden(&group_resource, &attributes.name, &message)),
        reason: reason.into(),
        is_denial: true,
        has_evaluation_error: !decision.evaluation_error.is_empty(),
    }
}

fn denial_message(user: &UserInfo, a: &Attributes) -> String {
    let quoted_user = quote(&user.name);
    if !a.resource_request {
        return format!("User {quoted_user} cannot {} path {}", a.verb, quote(&a.path));
    }
    let resource = match a.subresource.as_str() {
        "" => quote(&a.resource),
        subresource => quote(&format!("{}/{subresource}", a.resource)),
    };
    let scope = match a.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    format!(
        "User {quoted_user} cannot {} resource {resource} in API group {} {scope}",
        a.verb,
        quote(&a.group)
    )
}

#[cfg(test)]
mod tests {
    use apimachinery::decision::Verdict;

    use super::*;

    #[test]
    fn forbidden_message_names_user_verb_resource_and_scope() {
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
            let decision = Decision {
                verdict: Verdict::NoOpinion,
                reason: reason.to_owned(),
                evaluation_error: String::new(),
            };
            let rejection = forbidden(&user, &attributes, &decision);
            assert_eq!((rejection.status.code, rejection.status.message.as_str()), (403, expected));
        }
    }
}
