//! `authd who-can`: lists the subjects that RBAC allows a request, each with its binding and role.

use std::fmt::Write as _;

use apimachinery::printable::escape;
use apimachinery::user::MASTERS;
use clap::Args;
use serde_json::{Map, json};

use super::connection::Connection;
use super::resource::ResourceArgument;
use super::{InspectError, Output, policy};
use crate::rules::{AllowedSubject, Subject, SubjectKind};

/// Comment at the end of a text output without a namespace.
pub(super) const CLUSTER_WIDE_COMMENT: &str = "# RoleBindings are not included; select a namespace with -n\n";

/// The flags of `authd who-can`.
#[derive(Debug, Args)]
pub(super) struct SubjectsFlags {
    /// Verb: get, list, watch, create, update, patch, delete or another.
    verb: String,
    /// Resource `NAME[.GROUP][/SUBRESOURCE]`, or a path that begins with `/`.
    resource: String,
    /// Name of the object; without it, rules for some names are listed too.
    name: Option<String>,
    /// Namespace; default: permissions in all namespaces, which only ClusterRoleBindings grant.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Output: `text` or `json`.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

pub(super) async fn run(connection: &Connection, flags: SubjectsFlags) -> Result<Output, InspectError> {
    let resource = ResourceArgument::resolve(connection, &flags.resource).await?;
    let namespace = flags.namespace.unwrap_or_default();
    let name = flags.name.unwrap_or_default();
    let attributes = resource.attributes(&flags.verb, &namespace, &name);
    let subjects = policy::read(connection).await?.allowed_subjects(&attributes);
    Ok(match flags.output.as_str() {
        "json" => Output::json(&to_json(&subjects)),
        _ => {
            let is_cluster_wide = resource.path.is_empty() && resource.namespaced && namespace.is_empty();
            let scope = if is_cluster_wide { CLUSTER_WIDE_COMMENT } else { "" };
            Output::success(format!("{}{scope}{}", describe(&subjects), resource.unlisted_comment()))
        }
    })
}

/// Returns the printable name of a subject; for a service account `NAME/NAMESPACE`, as reasons of decisions.
pub(super) fn subject_name(subject: &Subject) -> String {
    escape(&match subject.kind {
        SubjectKind::ServiceAccount => format!("{}/{}", subject.name, subject.namespace),
        SubjectKind::User | SubjectKind::Group => subject.name.to_string(),
    })
}

fn to_json(subjects: &[AllowedSubject]) -> serde_json::Value {
    let row = |allowed: &AllowedSubject| {
        let mut row = Map::from_iter([
            ("kind".to_owned(), allowed.subject.kind.as_str().into()),
            ("name".to_owned(), (*allowed.subject.name).into()),
            ("path".to_owned(), json!(allowed.path)),
        ]);
        if !allowed.subject.namespace.is_empty() {
            row.insert("namespace".to_owned(), (*allowed.subject.namespace).into());
        }
        if !allowed.names.is_empty() {
            row.insert("resourceNames".to_owned(), json!(allowed.names));
        }
        row
    };
    subjects.iter().map(row).collect()
}

fn describe(subjects: &[AllowedSubject]) -> String {
    let mut out = format!("Group {MASTERS}: always allowed, before any authorizer\n");
    for AllowedSubject { subject, path, names } in subjects {
        // Writing to a String does not fail.
        let path = escape(path);
        let _ = write!(out, "{} {}: {path}", subject.kind.as_str(), subject_name(subject));
        let only =
            if names.is_empty() { String::new() } else { format!(", only {}", escape(&names.join(", "))) };
        let _ = writeln!(out, "{only}");
    }
    out.push_str("# RBAC only: other authorizers and memberships of groups are not listed\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_subjects_are_listed_with_path_and_names() {
        let objects = [
            (
                "roles",
                json!({"metadata": {"name": "r", "namespace": "a"}, "rules": [
                {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["x", "y"]}]}),
            ),
            (
                "clusterroles",
                json!({"metadata": {"name": "all"}, "rules": [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]}),
            ),
            (
                "rolebindings",
                json!({"metadata": {"name": "b", "namespace": "a"},
                "roleRef": {"kind": "Role", "name": "r"},
                "subjects": [{"kind": "ServiceAccount", "name": "robot"}, {"kind": "Other", "name": "x"}]}),
            ),
            (
                "clusterrolebindings",
                json!({"metadata": {"name": "c"}, "roleRef": {"kind": "ClusterRole", "name": "all"},
                "subjects": [{"kind": "User", "name": "root"}]}),
            ),
        ];
        let policy = policy::policy_of(objects).unwrap();
        let attributes = ResourceArgument::parse("pods").attributes("get", "a", "");
        let text = describe(&policy.allowed_subjects(&attributes));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert_eq!(lines[1], r#"User root: ClusterRoleBinding "c" of ClusterRole "all" to User "root""#);
        let robot =
            r#"ServiceAccount robot/a: RoleBinding "b/a" of Role "r" to ServiceAccount "robot/a", only x, y"#;
        assert_eq!(lines[2], robot);
        let elsewhere = ResourceArgument::parse("pods").attributes("get", "b", "");
        assert_eq!(policy.allowed_subjects(&elsewhere).len(), 1);
        let json = to_json(&policy.allowed_subjects(&attributes));
        assert_eq!(json[1]["resourceNames"], json!(["x", "y"]));
    }

    #[test]
    fn unprintable_characters_of_names_are_escaped() {
        let objects = [
            (
                "clusterroles",
                json!({"metadata": {"name": "all"}, "rules": [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["x\u{1b}[2J"]}]}),
            ),
            (
                "clusterrolebindings",
                json!({"metadata": {"name": "c"}, "roleRef": {"kind": "ClusterRole", "name": "all"},
                "subjects": [{"kind": "User", "name": "ja\u{202e}ne\n\u{1b}[31m"}]}),
            ),
        ];
        let policy = policy::policy_of(objects).unwrap();
        let attributes = ResourceArgument::parse("pods").attributes("get", "a", "");
        let text = describe(&policy.allowed_subjects(&attributes));
        assert!(text.contains("User ja\\u{202e}ne\\n\\u{1b}[31m: "), "{text}");
        assert!(text.lines().count() == 3 && !text.contains(['\u{202e}', '\u{1b}']), "{text}");
    }
}
