//! Parser of the line format of the files in `policy/`: roles with their rules and bindings.
//!
//! # Contract
//!
//! ```text
//! # a comment, on a line of its own
//! ClusterRole system:node-proxier
//!   list,watch           on endpoints,services
//!   create,patch,update  on events   in "",events.<d>
//!   get,update           on leases   in coordination.<d>  named kube-scheduler
//!   get                  at /healthz,/livez
//!   bound to User system:kube-proxy, ServiceAccount <system>/proxy
//! ```
//!
//! - `VERBS on RESOURCES [in GROUPS] [named NAMES]` is a resource rule.
//! - Without `in` a rule applies to the core group, which is `""` in a list of groups.
//! - `VERBS at PATHS` is a non-resource rule.
//! - `bound [as NAME] to SUBJECTS` adds a binding. Its default name is the name of the role.
//! - `bound to nobody` adds a binding without subjects.
//! - A subject is `User NAME`, `Group NAME` or `ServiceAccount NAMESPACE/NAME`.
//! - `gathers WHICH` aggregates the rules of all roles with the label `aggregate-to-WHICH`.
//! - `adds to WHICH` sets this label.
//! - `Role NAMESPACE/NAME` starts a namespaced role; its bindings are in the same namespace.
//! - Lists have commas without spaces; lists of subjects have a space after the comma.
//! - The parser keeps the order of rules and list items. Other input is an error with the line number.

/// A role with its bindings, borrowed from the text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Role<'a> {
    /// None for a ClusterRole.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    /// `X` of the role's label `aggregate-to-X`.
    pub(crate) adds_to: Option<&'a str>,
    /// `X` of the label `aggregate-to-X`; the role aggregates the rules of the labelled roles.
    pub(crate) gathers: Option<&'a str>,
    pub(crate) rules: Vec<Rule<'a>>,
    pub(crate) bindings: Vec<Binding<'a>>,
}

/// A resource rule or a non-resource rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule<'a> {
    pub(crate) verbs: Vec<&'a str>,
    pub(crate) groups: Vec<&'a str>,
    pub(crate) resources: Vec<&'a str>,
    pub(crate) names: Vec<&'a str>,
    pub(crate) paths: Vec<&'a str>,
}

/// A binding of the role.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Binding<'a> {
    pub(crate) name: &'a str,
    pub(crate) subjects: Vec<Subject<'a>>,
}

/// Subject of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject<'a> {
    User(&'a str),
    Group(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
}

/// Parses a file.
///
/// # Errors
///
/// The first invalid line, with its number.
pub(crate) fn roles(text: &str) -> Result<Vec<Role<'_>>, String> {
    let mut roles = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let content = line.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let at = |problem: String| format!("line {}: {problem}: `{content}`", number + 1);
        if line.starts_with(' ') {
            let role = roles.last_mut().ok_or_else(|| at("rule or binding before any role".to_owned()))?;
            detail(role, content).map_err(at)?;
        } else {
            roles.push(heading(content).map_err(at)?);
        }
    }
    Ok(roles)
}

fn heading(line: &str) -> Result<Role<'_>, String> {
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["ClusterRole", name] => Ok(Role { name, ..Role::default() }),
        ["Role", path] => {
            let (namespace, name) = path.split_once('/').ok_or("expected `Role NAMESPACE/NAME`")?;
            Ok(Role { namespace: Some(namespace), name, ..Role::default() })
        }
        _ => Err("expected `ClusterRole NAME` or `Role NAMESPACE/NAME`".to_owned()),
    }
}

fn detail<'a>(role: &mut Role<'a>, line: &'a str) -> Result<(), String> {
    if let Some(binding) = line.strip_prefix("bound ") {
        let (name, subjects) = match binding.strip_prefix("as ") {
            Some(rest) => rest.split_once(" to ").ok_or("expected `bound as NAME to SUBJECTS`")?,
            None => (role.name, binding.strip_prefix("to ").ok_or("expected `bound to SUBJECTS`")?),
        };
        role.bindings.push(Binding { name, subjects: subjects_of(subjects)? });
        return Ok(());
    }
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["gathers", which] => role.gathers = Some(which),
        ["adds", "to", which] => role.adds_to = Some(which),
        [verbs, "at", paths] => {
            role.rules.push(Rule { verbs: list(verbs)?, paths: list(paths)?, ..Rule::default() });
        }
        [verbs, "on", resources, conditions @ ..] => {
            let (groups, names) = match conditions {
                [] => (None, None),
                ["in", groups] => (Some(groups), None),
                ["named", names] => (None, Some(names)),
                ["in", groups, "named", names] => (Some(groups), Some(names)),
                _ => return Err("expected `[in GROUPS] [named NAMES]` after the resources".to_owned()),
            };
            role.rules.push(Rule {
                verbs: list(verbs)?,
                resources: list(resources)?,
                groups: groups.map_or(Ok(vec![""]), |groups| list(groups))?,
                names: names.map_or(Ok(Vec::new()), |names| list(names))?,
                paths: Vec::new(),
            });
        }
        _ => return Err("expected a rule, a binding or an aggregation".to_owned()),
    }
    Ok(())
}

fn list(text: &str) -> Result<Vec<&str>, String> {
    text.split(',')
        .map(|item| match item {
            "" => Err("empty item in a list (the core group is `\"\"`)".to_owned()),
            "\"\"" => Ok(""),
            item => Ok(item),
        })
        .collect()
}

fn subjects_of(text: &str) -> Result<Vec<Subject<'_>>, String> {
    if text == "nobody" {
        return Ok(Vec::new());
    }
    text.split(", ")
        .map(|subject| match subject.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["User", name] => Ok(Subject::User(name)),
            ["Group", name] => Ok(Subject::Group(name)),
            ["ServiceAccount", path] => path
                .split_once('/')
                .map(|(namespace, name)| Subject::ServiceAccount { namespace, name })
                .ok_or_else(|| "expected `ServiceAccount NAMESPACE/NAME`".to_owned()),
            _ => Err("expected `User NAME`, `Group NAME` or `ServiceAccount NAMESPACE/NAME`".to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_parser_accepts_every_statement() {
        let text = "# a comment\n\nClusterRole a:b\n  gathers edit\n  adds to admin\n  get,list on pods,pods/log\n  # inside\n  \
                    * on * in \"\",apps named x,y\n  get on a named z\n  get at /healthz,/livez/*\n  bound to nobody\n  \
                    bound as other to User u:1, Group g, ServiceAccount n/s\nRole ns/a:c\n  bound to User u\n";
        let roles = roles(text).unwrap();
        assert_eq!(
            roles,
            [
                Role {
                    namespace: None,
                    name: "a:b",
                    adds_to: Some("admin"),
                    gathers: Some("edit"),
                    rules: vec![
                        Rule {
                            verbs: vec!["get", "list"],
                            groups: vec![""],
                            resources: vec!["pods", "pods/log"],
                            ..Rule::default()
                        },
                        Rule {
                            verbs: vec!["*"],
                            groups: vec!["", "apps"],
                            resources: vec!["*"],
                            names: vec!["x", "y"],
                            paths: vec![],
                        },
                        Rule {
                            verbs: vec!["get"],
                            groups: vec![""],
                            resources: vec!["a"],
                            names: vec!["z"],
                            paths: vec![],
                        },
                        Rule { verbs: vec!["get"], paths: vec!["/healthz", "/livez/*"], ..Rule::default() },
                    ],
                    bindings: vec![
                        Binding { name: "a:b", subjects: vec![] },
                        Binding {
                            name: "other",
                            subjects: vec![
                                Subject::User("u:1"),
                                Subject::Group("g"),
                                Subject::ServiceAccount { namespace: "n", name: "s" },
                            ],
                        },
                    ],
                },
                Role {
                    namespace: Some("ns"),
                    name: "a:c",
                    bindings: vec![Binding { name: "a:c", subjects: vec![Subject::User("u")] }],
                    ..Role::default()
                },
            ]
        );
    }

    #[test]
    fn policy_parse_error_names_line() {
        for (text, problem) in [
            ("  get on pods", "line 1: rule or binding before any role"),
            ("Role x\n", "line 1: expected `Role NAMESPACE/NAME`"),
            ("Rol x/y\n", "line 1: expected `ClusterRole NAME`"),
            ("ClusterRole a b\n", "line 1: expected `ClusterRole NAME`"),
            ("ClusterRole a\n  get pods", "line 2: expected a rule"),
            ("ClusterRole a\n  get, list on pods", "line 2: expected a rule"),
            ("ClusterRole a\n  get,,list on pods", "line 2: empty item in a list"),
            ("ClusterRole a\n  get on pods,", "line 2: empty item in a list"),
            ("ClusterRole a\n  get on pods in apps at x", "line 2: expected `[in GROUPS] [named NAMES]`"),
            (
                "ClusterRole a\n\n  get on pods named x in apps",
                "line 3: expected `[in GROUPS] [named NAMES]`",
            ),
            ("ClusterRole a\n  get at /x in apps", "line 2: expected a rule"),
            ("ClusterRole a\n  bound User u", "line 2: expected `bound to SUBJECTS`"),
            ("ClusterRole a\n  bound as x User u", "line 2: expected `bound as NAME to SUBJECTS`"),
            ("ClusterRole a\n  bound to Users u", "line 2: expected `User"),
            ("ClusterRole a\n  bound to User u,Group g", "line 2: expected `User"),
            ("ClusterRole a\n  bound to ServiceAccount s", "line 2: expected `ServiceAccount"),
        ] {
            let error = roles(text).unwrap_err();
            assert!(error.starts_with(problem), "{text:?}: {error}");
        }
    }
}
