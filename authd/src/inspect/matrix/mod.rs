//! `authd matrix`: subjects, verbs and resources that RBAC allows.
//!
//! # Contract
//!
//! A row is a subject of a binding and a resource. Without `--system`, the built-in subjects of default policy have
//! no row: names that begin with `system:`, and the service accounts of the controllers. A user is in the group of
//! all authenticated users, and a service account is in its groups; other memberships are unknown.
//! A cell says for which objects RBAC allows the verb on the resource.

mod html;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;

use apimachinery::attributes::Attributes;
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::printable::escape;
use apimachinery::user::{AUTHENTICATED, UserInfo};
use bootstrap::default_policy;
use clap::Args;
use serde_json::{Value, json};

use super::connection::Connection;
use super::resource::ResourceArgument;
use super::subjects::{CLUSTER_WIDE_COMMENT, subject_name};
use super::{InspectError, Output, policy, text};
use crate::rules::{Policy, Subject, SubjectKind};

/// The default columns: the verbs of resources.
const VERBS: &str = "get,list,watch,create,update,patch,delete";

/// The flags of `authd matrix`.
#[derive(Debug, Args)]
pub(super) struct MatrixFlags {
    /// Namespace; default: permissions in all namespaces, which only ClusterRoleBindings grant.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Verbs, separated by commas.
    #[arg(long, default_value = VERBS, value_delimiter = ',')]
    verbs: Vec<String>,
    /// Resources `NAME[.GROUP][/SUBRESOURCE]`, separated by commas; default: all that rules name.
    #[arg(long, value_delimiter = ',')]
    resources: Vec<String>,
    /// Also lists built-in subjects: names that begin with `system:`, and the service accounts of controllers.
    #[arg(long)]
    system: bool,
    /// Output: `text`, `csv`, `json`, or `html` for a page with a heat map.
    #[arg(short, long, default_value = "text", value_parser = ["text", "csv", "json", "html"])]
    output: String,
}

/// The objects for which a subject is allowed a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    /// Only objects in `resourceNames` of a rule.
    Named,
    All,
}

impl Access {
    /// The word of the access in CSV, JSON and HTML.
    fn word(self) -> &'static str {
        match self {
            Access::None => "none",
            Access::Named => "named",
            Access::All => "all",
        }
    }

    /// The character of the access in the text output.
    fn mark(self) -> char {
        match self {
            Access::None => '-',
            Access::Named => 'n',
            Access::All => 'x',
        }
    }
}

/// One subject and one resource, with the access for each verb.
struct Row {
    subject: Subject,
    resource: String,
    cells: Vec<Access>,
}

/// The matrix with its namespace and columns.
struct Matrix {
    /// Namespace; empty for all namespaces.
    namespace: String,
    verbs: Vec<String>,
    rows: Vec<Row>,
}

pub(super) async fn run(connection: &Connection, flags: MatrixFlags) -> Result<Output, InspectError> {
    let policy = policy::read(connection).await?;
    let mut resources = Vec::new();
    for text in &flags.resources {
        resources.push(ResourceArgument::resolve(connection, text).await?);
    }
    if resources.is_empty() {
        resources = named_resources(&policy);
    }
    let matrix =
        Matrix::compute(&policy, &flags.namespace.unwrap_or_default(), flags.verbs, &resources, flags.system);
    Ok(match flags.output.as_str() {
        "csv" => Output::success(matrix.to_csv()),
        "json" => Output::json(&matrix.to_json()),
        "html" => Output::success(html::page(&matrix)),
        _ => Output::success(matrix.to_text()),
    })
}

/// Returns the resources that rules name without a wildcard in group or resource.
fn named_resources(policy: &Policy) -> Vec<ResourceArgument> {
    let mut names = BTreeSet::new();
    for rule in policy.rules() {
        for group in rule.api_groups.iter().filter(|group| &***group != "*") {
            for resource in rule.resources.iter().filter(|resource| !resource.contains('*')) {
                names.insert((group.to_string(), resource.to_string()));
            }
        }
    }
    let argument = |(group, resource): (String, String)| ResourceArgument {
        group,
        ..ResourceArgument::parse(&resource)
    };
    names.into_iter().map(argument).collect()
}

impl Matrix {
    fn compute(
        policy: &Policy,
        namespace: &str,
        verbs: Vec<String>,
        resources: &[ResourceArgument],
        include_system: bool,
    ) -> Self {
        let mut rows = Vec::new();
        let subjects = policy.subjects();
        let accounts = built_in_accounts();
        let is_built_in = |subject: &Subject| {
            subject.name.starts_with("system:")
                || subject.kind == SubjectKind::ServiceAccount
                    && accounts.contains(&(subject.namespace.to_string(), subject.name.to_string()))
        };
        for subject in subjects.into_iter().filter(|subject| include_system || !is_built_in(subject)) {
            let user = user_of(&subject);
            for resource in resources {
                let access = |verb: &String| access(policy, &user, &resource.attributes(verb, namespace, ""));
                let cells: Vec<Access> = verbs.iter().map(access).collect();
                if cells.iter().any(|cell| *cell != Access::None) {
                    rows.push(Row {
                        subject: subject.clone(),
                        resource: escape(&resource.to_string()),
                        cells,
                    });
                }
            }
        }
        Matrix { namespace: namespace.to_owned(), verbs, rows }
    }

    fn to_text(&self) -> String {
        let name = |row: &Row| format!("{} {}", row.subject.kind.as_str(), subject_name(&row.subject));
        let width =
            |texts: &mut dyn Iterator<Item = usize>, title: &str| texts.max().unwrap_or(0).max(title.len());
        let subject_width = width(&mut self.rows.iter().map(|row| name(row).chars().count()), "SUBJECT");
        let resource_width = width(&mut self.rows.iter().map(|row| row.resource.chars().count()), "RESOURCE");
        let mut out = format!("{:subject_width$}  {:resource_width$}", "SUBJECT", "RESOURCE");
        for verb in &self.verbs {
            // Writing to a String does not fail.
            let _ = write!(out, "  {}", escape(&verb.to_uppercase()));
        }
        out.push('\n');
        for row in &self.rows {
            let _ = write!(out, "{:subject_width$}  {:resource_width$}", name(row), row.resource);
            for (cell, verb) in row.cells.iter().zip(&self.verbs) {
                let _ = write!(out, "  {:width$}", cell.mark(), width = verb.chars().count());
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        out.push_str("# x: all objects, n: only named objects, -: none. RBAC only\n");
        if self.namespace.is_empty() {
            out.push_str(CLUSTER_WIDE_COMMENT);
        }
        out
    }

    fn to_csv(&self) -> String {
        let mut out = String::from("kind,subject,resource");
        for verb in &self.verbs {
            out.push(',');
            out.push_str(&csv_field(&escape(verb)));
        }
        out.push('\n');
        for Row { subject, resource, cells } in &self.rows {
            let fields = [subject.kind.as_str(), &subject_name(subject), resource].map(csv_field);
            let words = cells.iter().map(|cell| cell.word().to_owned());
            out.push_str(&fields.into_iter().chain(words).collect::<Vec<_>>().join(","));
            out.push('\n');
        }
        out
    }

    fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let access: serde_json::Map<String, Value> =
                self.verbs.iter().cloned().zip(row.cells.iter().map(|cell| cell.word().into())).collect();
            let mut json = serde_json::Map::from_iter([
                ("kind".to_owned(), row.subject.kind.as_str().into()),
                ("name".to_owned(), (*row.subject.name).into()),
                ("resource".to_owned(), row.resource.as_str().into()),
                ("access".to_owned(), access.into()),
            ]);
            if !row.subject.namespace.is_empty() {
                json.insert("namespace".to_owned(), (*row.subject.namespace).into());
            }
            json
        };
        json!({"namespace": self.namespace, "verbs": self.verbs, "rows": self.rows.iter().map(row).collect::<Vec<_>>()})
    }
}

/// Encodes a field of CSV.
/// An apostrophe before a formula character keeps spreadsheets from running the formula.
fn csv_field(text: &str) -> String {
    let text =
        if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Returns the service accounts that default policy binds, under both presets, as namespace and name.
fn built_in_accounts() -> HashSet<(String, String)> {
    let names = [Preset::Kubernetes, Preset::Svc].map(|preset| Names::new(preset, DEFAULT_API_DOMAIN));
    let mut accounts = HashSet::new();
    for policy in names.into_iter().flatten().map(|names| default_policy(&names)) {
        for binding in policy.cluster_role_bindings.iter().chain(&policy.role_bindings) {
            for subject in binding.get("subjects").and_then(Value::as_array).into_iter().flatten() {
                if text(subject, "kind") == "ServiceAccount" {
                    accounts
                        .insert((text(subject, "namespace").to_owned(), text(subject, "name").to_owned()));
                }
            }
        }
    }
    accounts
}

/// Returns a user that matches only this subject, with the groups that authenticators add.
fn user_of(subject: &Subject) -> UserInfo {
    match subject.kind {
        SubjectKind::User => UserInfo {
            name: subject.name.to_string(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        },
        SubjectKind::Group => UserInfo { groups: vec![subject.name.to_string()], ..UserInfo::default() },
        SubjectKind::ServiceAccount => UserInfo {
            name: format!("system:serviceaccount:{}:{}", subject.namespace, subject.name),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", subject.namespace),
                AUTHENTICATED.to_owned(),
            ],
            ..UserInfo::default()
        },
    }
}

/// Returns for which objects RBAC allows a request without a name.
fn access(policy: &Policy, user: &UserInfo, request: &Attributes) -> Access {
    match policy.names_allowed(user, request) {
        None => Access::All,
        Some(names) if names.is_empty() => Access::None,
        Some(_) => Access::Named,
    }
}

#[cfg(test)]
mod tests;
