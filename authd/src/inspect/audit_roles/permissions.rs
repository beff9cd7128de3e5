//! The permissions that requests need, and the rules that grant no more.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::attributes::Attributes;
use serde_json::{Map, Value, json};

/// The objects for which a verb is needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Objects {
    All,
    Named(BTreeSet<String>),
}

impl Objects {
    fn covers(&self, other: &Objects) -> bool {
        match (self, other) {
            (Objects::All, _) => true,
            (Objects::Named(_), Objects::All) => false,
            (Objects::Named(names), Objects::Named(others)) => others.is_subset(names),
        }
    }

    fn add(&mut self, name: &str) {
        match self {
            Objects::All => {}
            Objects::Named(_) if name.is_empty() => *self = Objects::All,
            Objects::Named(names) => drop(names.insert(name.to_owned())),
        }
    }
}

/// A resource of an API group, with its subresource as in a rule: `pods/log`.
type Resource = (String, String);

/// The verbs that requests use on resources, with the objects of each verb.
type ResourceVerbs = BTreeMap<Resource, BTreeMap<String, Objects>>;

/// The attributes of an impersonated user. Each one needs a permission.
#[derive(Clone, Debug, Default)]
pub(super) struct Impersonation {
    pub(super) user: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    /// Keys and values.
    pub(super) extra: Vec<(String, String)>,
    /// The API group of uids and extra values.
    pub(super) authentication_group: String,
}

/// The permissions that requests need.
#[derive(Clone, Debug)]
pub(super) struct Permissions {
    /// Number of names from which on a permission is for all objects; 0: never.
    max_names: usize,
    /// By namespace; `""` is the whole cluster.
    resources: BTreeMap<String, ResourceVerbs>,
    /// Verbs by path.
    paths: BTreeMap<String, BTreeSet<String>>,
}

impl Permissions {
    pub(super) fn new(max_names: usize) -> Self {
        Permissions { max_names, resources: BTreeMap::new(), paths: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.paths.is_empty()
    }

    /// Adds the permission for a request.
    pub(super) fn add(&mut self, request: &Attributes) {
        if request.verb.is_empty() {
            return;
        }
        if !request.resource_request {
            self.paths.entry(request.path.clone()).or_default().insert(request.verb.clone());
            return;
        }
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            subresource => format!("{}/{subresource}", request.resource),
        };
        self.add_verb(&request.namespace, (request.group.clone(), resource), &request.verb, &request.name);
    }

    /// Adds the permissions to impersonate a user.
    pub(super) fn add_impersonation(&mut self, target: &Impersonation) {
        let core = |resource: &str| (String::new(), resource.to_owned());
        let other = |resource: &str| (target.authentication_group.clone(), resource.to_owned());
        match apimachinery::user::service_account(&target.user) {
            Some((namespace, name)) => {
                self.add_verb(namespace, core("serviceaccounts"), "impersonate", name);
            }
            None => self.add_verb("", core("users"), "impersonate", &target.user),
        }
        for group in &target.groups {
            self.add_verb("", core("groups"), "impersonate", group);
        }
        if !target.uid.is_empty() {
            self.add_verb("", other("uids"), "impersonate", &target.uid);
        }
        for (key, value) in &target.extra {
            self.add_verb("", other(&format!("userextras/{key}")), "impersonate", value);
        }
    }

    fn add_verb(&mut self, namespace: &str, resource: Resource, verb: &str, name: &str) {
        let verbs = self.resources.entry(namespace.to_owned()).or_default().entry(resource).or_default();
        let objects = verbs.entry(verb.to_owned()).or_insert_with(|| Objects::Named(BTreeSet::new()));
        objects.add(name);
    }

    /// Returns the rules by namespace, the whole cluster (`""`) first. A namespace has no rule that the cluster has.
    pub(super) fn rules(&self) -> Vec<(String, Vec<Value>)> {
        let none = ResourceVerbs::new();
        let cluster = self.generalized(self.resources.get("").unwrap_or(&none));
        let mut all = Vec::new();
        let mut cluster_rules = resource_rules(&cluster);
        cluster_rules.extend(self.path_rules());
        all.push((String::new(), cluster_rules));
        for (namespace, resources) in self.resources.iter().filter(|(namespace, _)| !namespace.is_empty()) {
            let mut resources = self.generalized(resources);
            for (resource, verbs) in &mut resources {
                let granted = cluster.get(resource);
                verbs.retain(|verb, objects| {
                    let granted = granted.and_then(|verbs| verbs.get(verb));
                    !granted.is_some_and(|granted| granted.covers(objects))
                });
            }
            all.push((namespace.clone(), resource_rules(&resources)));
        }
        all.retain(|(_, rules)| !rules.is_empty());
        all
    }

    /// Replaces long lists of names by all objects, except for impersonation, where all names are all users.
    fn generalized(&self, resources: &ResourceVerbs) -> ResourceVerbs {
        let mut resources = resources.clone();
        for verbs in resources.values_mut() {
            for (_, objects) in verbs.iter_mut().filter(|(verb, _)| *verb != "impersonate") {
                let is_long = |names: &BTreeSet<String>| self.max_names > 0 && names.len() > self.max_names;
                if matches!(objects, Objects::Named(names) if is_long(names)) {
                    *objects = Objects::All;
                }
            }
        }
        resources
    }

    fn path_rules(&self) -> Vec<Value> {
        let mut by_verbs: BTreeMap<&BTreeSet<String>, Vec<&String>> = BTreeMap::new();
        for (path, verbs) in &self.paths {
            by_verbs.entry(verbs).or_default().push(path);
        }
        let rule = |(verbs, paths)| json!({"nonResourceURLs": paths, "verbs": verbs});
        by_verbs.into_iter().map(rule).collect()
    }
}

/// Returns rules for resources. Resources of a group with the same verbs on the same objects share a rule.
fn resource_rules(resources: &ResourceVerbs) -> Vec<Value> {
    type Grant = (String, Objects, Vec<String>);
    let mut by_grant: BTreeMap<Grant, Vec<String>> = BTreeMap::new();
    for ((group, resource), verbs) in resources {
        let mut by_objects: BTreeMap<&Objects, Vec<String>> = BTreeMap::new();
        for (verb, objects) in verbs {
            by_objects.entry(objects).or_default().push(verb.clone());
        }
        for (objects, verbs) in by_objects {
            by_grant.entry((group.clone(), objects.clone(), verbs)).or_default().push(resource.clone());
        }
    }
    let rule = |((group, objects, verbs), resources): (Grant, Vec<String>)| {
        let mut rule = Map::from_iter([
            ("apiGroups".to_owned(), json!([group])),
            ("resources".to_owned(), json!(resources)),
            ("verbs".to_owned(), json!(verbs)),
        ]);
        if let Objects::Named(names) = objects {
            rule.insert("resourceNames".to_owned(), json!(names));
        }
        Value::Object(rule)
    };
    by_grant.into_iter().map(rule).collect()
}
