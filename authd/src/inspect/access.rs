//! `authd why`: explains the decision on a request with an AccessExplanation, which the server evaluates.

use std::fmt::Write as _;
use std::str::FromStr;

use apimachinery::attributes::Attributes;
use apimachinery::printable::{escape, escape_json};
use apimachinery::user::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, service_account};
use clap::Args;
use clap::error::ErrorKind;
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::resource::ResourceArgument;
use super::{InspectError, Output, items, text};

/// The value of the argument USER that means the user of the kubeconfig.
const CALLER: &str = "me";

/// The maximum number of verbs of one command: each needs a request to the server.
const MAX_VERBS: usize = 20;

/// The argument VERBS: 1 to [`MAX_VERBS`] verbs, none of them empty.
///
/// One argument contains all verbs: a positional field of the type `Vec` consumes RESOURCE and NAME too.
#[derive(Clone, Debug)]
struct Verbs(Vec<String>);

impl FromStr for Verbs {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, String> {
        let verbs: Vec<String> = argument.split(',').map(str::to_owned).collect();
        if verbs.iter().any(String::is_empty) || verbs.len() > MAX_VERBS {
            return Err(format!("VERBS must be 1 to {MAX_VERBS} verbs, separated by commas"));
        }
        Ok(Verbs(verbs))
    }
}

/// The arguments and flags of `authd why`.
#[derive(Debug, Args)]
pub(super) struct AccessArguments {
    /// User name, or `me` for the user of the kubeconfig.
    user: String,
    /// Verbs, separated by commas: get, list, watch, create, update, patch, delete or others.
    verbs: Verbs,
    /// Resource `NAME[.GROUP][/SUBRESOURCE]`, or a path that begins with `/`.
    resource: String,
    /// Name of the object.
    name: Option<String>,
    /// Namespace; default: that of the context.
    #[arg(short, long)]
    namespace: Option<String>,
    /// Asks for all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Group of the user, in addition to those that every user of this kind has. Not for `me`. Can be repeated.
    #[arg(long = "as-group", value_name = "GROUP")]
    groups: Vec<String>,
    /// Output: `text`, or `json` for the AccessExplanation.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

impl AccessArguments {
    /// The number of verbs.
    #[cfg(test)]
    pub(super) fn verb_count(&self) -> usize {
        self.verbs.0.len()
    }

    /// Rejects groups for the caller, whose groups the server determines.
    pub(super) fn check(&self) -> Result<(), clap::Error> {
        if self.user == CALLER && !self.groups.is_empty() {
            let problem = "--as-group cannot be used with `me`: write the name of the user instead of `me`\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, problem));
        }
        Ok(())
    }
}

pub(super) async fn run(connection: &Connection, flags: AccessArguments) -> Result<Output, InspectError> {
    let resource = ResourceArgument::resolve(connection, &flags.resource).await?;
    let namespace = match (&flags.namespace, flags.all_namespaces) {
        (_, true) => String::new(),
        (Some(namespace), false) => namespace.clone(),
        (None, false) => connection.namespace.clone(),
    };
    let mut outputs = Vec::new();
    for verb in &flags.verbs.0 {
        let attributes = resource.attributes(verb, &namespace, flags.name.as_deref().unwrap_or_default());
        let explanation = connection.explain("AccessExplanation", spec(&flags, &attributes)).await?;
        let describe = |status: &Value| {
            let title = if flags.verbs.0.len() > 1 { format!("# {}\n", escape(verb)) } else { String::new() };
            title + &describe(status, note_on_groups(&flags)) + &resource.unlisted_comment()
        };
        outputs.push(Output::explanation(&explanation, "allowed", &flags.output, describe));
    }
    Ok(Output::joined(outputs, "---\n"))
}

/// Builds the `spec` of the explanation of one request.
fn spec(flags: &AccessArguments, attributes: &Attributes) -> Value {
    let mut spec = Map::new();
    let (name, value) = if attributes.resource_request {
        let value = json!({
            "verb": attributes.verb, "group": attributes.group, "resource": attributes.resource,
            "subresource": attributes.subresource, "namespace": attributes.namespace, "name": attributes.name,
        });
        ("resourceAttributes", value)
    } else {
        ("nonResourceAttributes", json!({"verb": attributes.verb, "path": attributes.path}))
    };
    spec.insert(name.to_owned(), value);
    if flags.user != CALLER {
        spec.insert("user".to_owned(), flags.user.as_str().into());
        spec.insert("groups".to_owned(), json!(all_groups(&flags.user, &flags.groups)));
    }
    spec.into()
}

/// Returns the groups of the command line, and those that authenticators add for a user with this name.
fn all_groups(user: &str, groups: &[String]) -> Vec<String> {
    let mut all_groups = groups.to_vec();
    if let Some((namespace, _)) = service_account(user) {
        all_groups.push("system:serviceaccounts".to_owned());
        all_groups.push(format!("system:serviceaccounts:{namespace}"));
    }
    let authentication_group = if user == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    all_groups.push(authentication_group.to_owned());
    all_groups
}

/// Returns a note for a denial, if the user can have groups that the command line does not name.
fn note_on_groups(flags: &AccessArguments) -> &'static str {
    let user = flags.user.as_str();
    let has_fixed_groups = user == CALLER || user == ANONYMOUS || service_account(user).is_some();
    match flags.groups.is_empty() && !has_fixed_groups {
        true => "  without groups of the user beyond system:authenticated; name them with --as-group\n",
        false => "",
    }
}

/// Describes an explanation, with a note if the request is denied. With a manifest the description is a comment, so that
/// the text is YAML.
fn describe(status: &Value, note: &str) -> String {
    let opinions = describe_opinions(status, note);
    let manifest = text(status, "manifest");
    if manifest.is_empty() {
        return opinions;
    }
    let mut out = String::new();
    for line in opinions.lines() {
        // Writing to a String does not fail.
        let _ = writeln!(out, "# {}", escape(line));
    }
    // YAML reads JSON escapes in double quotes, which the server writes around names with such characters.
    let manifest = escape_json(manifest.to_owned());
    let _ = write!(out, "# the smallest role and binding that allow the request:\n{manifest}");
    out
}

fn describe_opinions(status: &Value, note: &str) -> String {
    let is_allowed = status.get("allowed").and_then(Value::as_bool) == Some(true);
    let mut out = if is_allowed { "allowed\n".to_owned() } else { format!("denied\n{note}") };
    for opinion in items(status, "authorizers") {
        let latency = opinion.get("latencyMicroseconds").and_then(Value::as_u64).unwrap_or_default();
        // Writing to a String does not fail.
        let _ = writeln!(out, "  {}: {} ({latency} µs)", text(opinion, "name"), text(opinion, "verdict"));
        for (label, field) in [("by", "grant"), ("reason", "reason"), ("error", "evaluationError")] {
            if !text(opinion, field).is_empty() {
                let _ = writeln!(out, "    {label}: {}", text(opinion, field).replace('\n', "; "));
            }
        }
        if let Some(rule) = opinion.get("rule") {
            let _ = writeln!(out, "    rule: {rule}");
        }
        for miss in items(opinion, "nearestMisses") {
            let _ = writeln!(out, "    nearest: {}", miss.as_str().unwrap_or_default());
        }
        if let Some(more) = opinion.get("moreNearestMisses").and_then(Value::as_u64) {
            let _ = writeln!(out, "    and {more} more");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::suggestion::SuggestedGrant;
    use apimachinery::codec::{Limits, yaml};
    use apimachinery::names::{Names, Preset};
    use apimachinery::user::UserInfo;

    #[test]
    fn user_has_the_groups_that_authenticators_add() {
        for (user, groups, expected) in [
            ("alice", &["team"][..], &["team", "system:authenticated"][..]),
            ("system:anonymous", &[], &["system:unauthenticated"]),
            (
                "system:serviceaccount:a:robot",
                &[],
                &["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"],
            ),
        ] {
            let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
            assert_eq!(all_groups(user, &groups), expected);
        }
    }

    #[test]
    fn denial_without_groups_of_the_command_line_names_the_flag() {
        let note = |user: &str, groups: &[&str]| {
            note_on_groups(&AccessArguments {
                user: user.to_owned(),
                verbs: "get".parse().unwrap(),
                resource: "pods".to_owned(),
                name: None,
                namespace: None,
                all_namespaces: false,
                groups: groups.iter().map(|&group| group.to_owned()).collect(),
                output: "text".to_owned(),
            })
        };
        for (user, groups) in
            [("dora", &["team"][..]), (CALLER, &[]), (ANONYMOUS, &[]), ("system:serviceaccount:a:robot", &[])]
        {
            assert_eq!(note(user, groups), "", "{user}");
        }
        let note = note("dora", &[]);
        assert!(note.contains("--as-group"), "{note}");
        let denied = json!({"allowed": false});
        assert_eq!(describe(&denied, note), format!("denied\n{note}"));
        let suggested = describe(&json!({"allowed": false, "manifest": "kind: Role\n"}), note);
        assert!(suggested.starts_with(&format!("# denied\n# {note}# the smallest")), "{suggested}");
        assert_eq!(describe(&json!({"allowed": true}), note), "allowed\n");
    }

    #[test]
    fn explanation_is_described_with_evidence_and_manifest() {
        let status = json!({"allowed": false, "manifest": "kind: Role\n", "authorizers": [
            {"name": "Node", "verdict": "NoOpinion", "latencyMicroseconds": 2},
            {"name": "RBAC", "verdict": "NoOpinion", "latencyMicroseconds": 5, "nearestMisses": ["near"], "moreNearestMisses": 4},
        ]});
        assert_eq!(
            describe(&status, ""),
            "# denied\n#   Node: NoOpinion (2 µs)\n#   RBAC: NoOpinion (5 µs)\n#     nearest: near\n#     and 4 more\n\
             # the smallest role and binding that allow the request:\nkind: Role\n"
        );
        let allowed = json!({"allowed": true, "authorizers": [
            {"name": "RBAC", "verdict": "Allow", "latencyMicroseconds": 5, "grant": "a binding", "rule": {"verbs": ["get"]}}]});
        assert_eq!(
            describe(&allowed, ""),
            "allowed\n  RBAC: Allow (5 µs)\n    by: a binding\n    rule: {\"verbs\":[\"get\"]}\n"
        );
    }

    #[test]
    fn denial_with_manifest_is_yaml_of_the_manifest() {
        let user = UserInfo { name: "bob".to_owned(), ..UserInfo::default() };
        let attributes = Attributes {
            verb: "get".to_owned(),
            resource_request: true,
            resource: "pods".to_owned(),
            namespace: "a".to_owned(),
            ..Attributes::default()
        };
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let manifest = SuggestedGrant::for_request(&user, &attributes).unwrap().manifest(&names);
        let status = json!({"allowed": false, "manifest": manifest, "authorizers": [
            {"name": "webhook", "verdict": "NoOpinion", "reason": "a\r\n---\rb: c\u{85}d: e"},
            {"name": "RBAC", "verdict": "NoOpinion", "nearestMisses": ["x: [\n- y"]}]});
        let text = describe(&status, "");
        let decode = |text: &str| yaml::decode(text.as_bytes(), Limits::BODY).unwrap().value;
        let documents: Vec<Value> = text.split("---\n").map(decode).collect();
        let expected: Vec<Value> = manifest.split("---\n").map(decode).collect();
        assert_eq!(documents, expected, "{text}");
        let kinds: Vec<&Value> = documents.iter().map(|document| &document["kind"]).collect();
        assert_eq!(kinds, ["Role", "RoleBinding"]);
    }
}
