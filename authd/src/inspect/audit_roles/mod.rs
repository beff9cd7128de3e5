//! `authd audit-roles`: the smallest roles and bindings for the requests of a user in audit logs.
//!
//! # Contract
//!
//! The command reads JSON audit logs and needs no server. Requests that each authenticated user may make by default
//! need no role. Rejected requests count as well, because the roles are for the work that the user attempts;
//! `--allowed-only` leaves them out. A request that the user makes as another user needs the permission to impersonate,
//! and belongs to the other user.
//!
//! A line that is no event, such as the rest of a line after a full disk, is skipped with a warning. A log without any
//! event is an error.
//!
//! With `--watch`, the command follows the last log and prints all roles again when new requests change them.

mod log_lines;
mod permissions;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::codec::yaml;
use apimachinery::names::{Names, Preset};
use apimachinery::printable::{escape, escape_lines};
use apimachinery::user::{AUTHENTICATED, UserInfo, service_account};
use bootstrap::default_policy;
use clap::Args;
use serde_json::{Map, Value, json};

use super::{InspectError, Output, items, policy, text};
use crate::rules::{Policy, RbacDecision};
use log_lines::LogLines;
use permissions::{Impersonation, Permissions};

/// Time between two reads of a log with `--watch`.
const POLL: Duration = Duration::from_millis(500);
/// Number of users that an error lists.
const MAX_LISTED_USERS: usize = 20;

/// The flags of `authd audit-roles`.
#[derive(Debug, Args)]
pub(super) struct AuditRolesFlags {
    /// Audit logs in JSON, oldest first; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// User whose requests need permissions.
    #[arg(long, value_name = "NAME", conflicts_with = "service_account")]
    user: Option<String>,
    /// Service account whose requests need permissions.
    #[arg(long, value_name = "NAMESPACE:NAME")]
    service_account: Option<String>,
    /// Name of the roles and bindings; default: `audit-roles:` and the name of the user.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Number of object names from which on a rule is for all objects of a resource; 0: a rule never is.
    #[arg(long, value_name = "COUNT", default_value = "10")]
    max_names: usize,
    /// Requests that were rejected need no permissions.
    #[arg(long)]
    allowed_only: bool,
    /// Follow the last log, and print all roles again when new requests change them.
    #[arg(short, long)]
    watch: bool,
    /// Output: `yaml` or `json`.
    #[arg(short, long, default_value = "yaml", value_parser = ["yaml", "json"])]
    output: String,
}

pub(super) async fn run(flags: AuditRolesFlags) -> Result<Output, InspectError> {
    let user = flags.username()?;
    let mut collected = Collected::new(&flags, user);
    let Some((last, earlier)) = flags.files.split_last() else {
        return Err(InspectError::new("an audit log is required"));
    };
    for file in earlier {
        collected.read_all(&mut LogLines::open(file)?)?;
    }
    let mut log = LogLines::open(last)?;
    collected.read_all(&mut log)?;
    if !flags.watch {
        return collected.output();
    }
    let mut shown = String::new();
    loop {
        let text = collected.text();
        if text != shown && !collected.permissions.is_empty() {
            let printed = escape_lines(&text);
            // A reader that has closed its end of the pipe ends the command.
            if std::io::stdout().write_all(format!("{printed}---\n").as_bytes()).is_err() {
                return Ok(Output::success(String::new()));
            }
            shown = text;
        }
        tokio::time::sleep(POLL).await;
        log.reopen_if_replaced()?;
        collected.read_all(&mut log)?;
    }
}

impl AuditRolesFlags {
    fn username(&self) -> Result<Option<String>, InspectError> {
        let Some(account) = &self.service_account else { return Ok(self.user.clone()) };
        let name = format!("system:serviceaccount:{account}");
        match service_account(&name) {
            Some(_) => Ok(Some(name)),
            None => Err(InspectError::new(format!(
                "--service-account={}: not a service account; write NAMESPACE:NAME",
                escape(account)
            ))),
        }
    }
}

/// The permissions found so far.
struct Collected<'f> {
    flags: &'f AuditRolesFlags,
    user: Option<String>,
    permissions: Permissions,
    /// The number of requests by user, to help when the wanted user has none.
    users: BTreeMap<String, usize>,
    /// The domain of the API groups in the log, and what each authenticated user may do there.
    defaults: Option<(String, Policy)>,
    /// Whether an event has been read.
    has_event: bool,
}

impl<'f> Collected<'f> {
    fn new(flags: &'f AuditRolesFlags, user: Option<String>) -> Self {
        let permissions = Permissions::new(flags.max_names);
        Collected { flags, user, permissions, users: BTreeMap::new(), defaults: None, has_event: false }
    }

    fn read_all(&mut self, log: &mut LogLines) -> Result<(), InspectError> {
        let (mut skipped, mut first) = (0_u64, None);
        while let Some(line) = log.next_line()? {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Value>(&line) {
                Ok(event) => {
                    self.has_event = true;
                    self.add(&event)?;
                }
                Err(error) => {
                    skipped += 1;
                    first = first.or(Some((log.line_number(), error)));
                }
            }
        }
        let Some((line, error)) = first else { return Ok(()) };
        let reason =
            format!("{}: line {line}: {error}; an audit log has one JSON event in each line", log.name());
        if !self.has_event {
            return Err(InspectError::new(reason));
        }
        eprintln!("authd: warning: lines skipped: {skipped}; the first: {reason}");
        Ok(())
    }

    /// Adds the permissions that the request of an event needs.
    fn add(&mut self, event: &Value) -> Result<(), InspectError> {
        let user = event.get("user").unwrap_or(&Value::Null);
        let impersonated = event.get("impersonatedUser").filter(|user| user.is_object());
        let subject = impersonated.unwrap_or(user);
        for name in [text(user, "username"), text(subject, "username")] {
            if !name.is_empty() {
                *self.users.entry(name.to_owned()).or_default() += 1;
            }
        }
        let Some(wanted) = self.user.clone() else { return Ok(()) };
        let domain =
            text(event, "apiVersion").strip_prefix("audit.").and_then(|rest| rest.strip_suffix("/v1"));
        let Some(domain) = domain else {
            return Err(InspectError::new("an event has an unknown apiVersion: expected audit.DOMAIN/v1"));
        };
        if self.flags.allowed_only && is_denied(event, domain) {
            return Ok(());
        }
        if text(user, "username") == wanted
            && let Some(target) = impersonated
        {
            self.permissions.add_impersonation(&impersonation(target, domain));
        }
        if text(subject, "username") != wanted {
            return Ok(());
        }
        let attributes = attributes(event);
        if !self.is_default(domain, &attributes)? {
            self.permissions.add(&attributes);
        }
        Ok(())
    }

    /// Whether each authenticated user may make a request by default.
    fn is_default(&mut self, domain: &str, attributes: &Attributes) -> Result<bool, InspectError> {
        if self.defaults.as_ref().is_none_or(|(found, _)| found != domain) {
            self.defaults = Some((domain.to_owned(), default_rules(domain)?));
        }
        let Some((_, policy)) = &self.defaults else { return Ok(false) };
        let user = UserInfo {
            name: "anybody".to_owned(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        };
        Ok(matches!(policy.decide(&user, attributes), RbacDecision::Allowed { .. }))
    }

    fn output(&self) -> Result<Output, InspectError> {
        let Some(user) = &self.user else {
            return Err(InspectError::new(format!(
                "--user or --service-account is required; the users of the log are {}",
                self.listed_users()
            )));
        };
        if self.permissions.is_empty() && !self.users.contains_key(user) {
            return Err(InspectError::new(format!(
                "no request of `{}` in the log; the users of the log are {}",
                escape(user),
                self.listed_users()
            )));
        }
        Ok(Output { is_json: self.flags.output == "json", ..Output::success(self.text()) })
    }

    fn listed_users(&self) -> String {
        let mut users: Vec<(&String, &usize)> = self.users.iter().collect();
        users.sort_by_key(|(_, requests)| std::cmp::Reverse(**requests));
        let more = users.len().saturating_sub(MAX_LISTED_USERS);
        let mut texts: Vec<String> =
            users.into_iter().take(MAX_LISTED_USERS).map(|(user, _)| format!("`{}`", escape(user))).collect();
        match (texts.is_empty(), more) {
            (true, _) => return "none".to_owned(),
            (false, 0) => {}
            (false, more) => texts.push(format!("{more} more")),
        }
        texts.join(", ")
    }

    /// Returns the roles and bindings as YAML documents, or as a JSON list.
    fn text(&self) -> String {
        let user = self.user.as_deref().unwrap_or_default();
        let domain = self.defaults.as_ref().map_or("", |(domain, _)| domain.as_str());
        let objects = self.objects(user, domain);
        if self.flags.output == "json" {
            let list = json!({"kind": "List", "apiVersion": "v1", "items": objects});
            return format!("{list:#}\n");
        }
        if objects.is_empty() {
            return "# the requests need no permissions beyond those of each authenticated user\n".to_owned();
        }
        let documents =
            objects.iter().map(|object| String::from_utf8_lossy(&yaml::encode(object)).into_owned());
        documents.collect::<Vec<_>>().join("---\n")
    }

    fn objects(&self, user: &str, domain: &str) -> Vec<Value> {
        let group = format!("rbac.authorization.{domain}");
        let name = self.flags.name.clone().unwrap_or_else(|| object_name(user));
        let subject = match service_account(user) {
            Some((namespace, account)) => {
                json!({"kind": "ServiceAccount", "name": account, "namespace": namespace})
            }
            None => json!({"kind": "User", "name": user, "apiGroup": group}),
        };
        let mut objects = Vec::new();
        for (namespace, rules) in self.permissions.rules() {
            let (role, binding) = match namespace.as_str() {
                "" => ("ClusterRole", "ClusterRoleBinding"),
                _ => ("Role", "RoleBinding"),
            };
            let mut metadata = Map::from_iter([("name".to_owned(), json!(name))]);
            if !namespace.is_empty() {
                metadata.insert("namespace".to_owned(), json!(namespace));
            }
            let api_version = format!("{group}/v1");
            objects.push(json!({
                "kind": role, "apiVersion": api_version, "metadata": metadata, "rules": rules,
            }));
            objects.push(json!({
                "kind": binding, "apiVersion": api_version, "metadata": metadata, "subjects": [subject],
                "roleRef": {"kind": role, "name": name, "apiGroup": group},
            }));
        }
        objects
    }
}

/// Returns the policy of the default roles of each authenticated user.
fn default_rules(domain: &str) -> Result<Policy, InspectError> {
    let kubernetes = Names::new(Preset::Kubernetes, "").map_err(InspectError::new)?;
    let names = match kubernetes.group("audit") == format!("audit.{domain}") {
        true => kubernetes,
        false => Names::new(Preset::Svc, domain).map_err(InspectError::new)?,
    };
    let defaults = default_policy(&names);
    policy::policy_of(defaults.objects().map(|object| {
        let resource = match object.kind() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            "ClusterRoleBinding" => "clusterrolebindings",
            _ => "rolebindings",
        };
        (resource, object.clone().into_value())
    }))
}

/// Whether the server denied the request.
fn is_denied(event: &Value, domain: &str) -> bool {
    let annotations = event.get("annotations").unwrap_or(&Value::Null);
    text(annotations, &format!("authorization.{domain}/decision")) == "forbid"
}

/// Returns the attributes that authorization examined. A creation has no name there, although the event has one.
fn attributes(event: &Value) -> Attributes {
    let reference = event.get("objectRef").unwrap_or(&Value::Null);
    let (verb, subresource) = (text(event, "verb"), text(reference, "subresource"));
    let uri = text(event, "requestURI");
    let name = match (verb, subresource) {
        ("create", "") => "",
        _ => text(reference, "name"),
    };
    Attributes {
        verb: verb.to_owned(),
        resource_request: reference.is_object(),
        group: text(reference, "apiGroup").to_owned(),
        version: text(reference, "apiVersion").to_owned(),
        resource: text(reference, "resource").to_owned(),
        subresource: subresource.to_owned(),
        namespace: text(reference, "namespace").to_owned(),
        name: name.to_owned(),
        path: uri.split('?').next().unwrap_or(uri).to_owned(),
        ..Attributes::default()
    }
}

/// Returns the attributes of an impersonated user that need permissions.
fn impersonation(target: &Value, domain: &str) -> Impersonation {
    let extra = target.get("extra").and_then(Value::as_object).into_iter().flatten();
    Impersonation {
        user: text(target, "username").to_owned(),
        uid: text(target, "uid").to_owned(),
        // The server adds this group itself.
        groups: items(target, "groups")
            .filter_map(Value::as_str)
            .filter(|group| !is_added_group(group, text(target, "username")))
            .map(str::to_owned)
            .collect(),
        extra: extra
            .flat_map(|(key, values)| {
                let values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
                values.map(|value| (key.clone(), value.to_owned())).collect::<Vec<_>>()
            })
            .collect(),
        authentication_group: format!("authentication.{domain}"),
    }
}

/// Whether the server adds a group to an impersonated user.
fn is_added_group(group: &str, user: &str) -> bool {
    group == AUTHENTICATED
        || service_account(user).is_some_and(|(namespace, _)| {
            group == "system:serviceaccounts" || group == format!("system:serviceaccounts:{namespace}")
        })
}

/// Returns the name of the roles for a user; characters that a name cannot contain become `-`.
fn object_name(user: &str) -> String {
    let allowed =
        |c: char| if c == '/' || c == '%' || apimachinery::printable::is_unprintable(c) { '-' } else { c };
    format!("audit-roles:{}", user.chars().map(allowed).collect::<String>())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
