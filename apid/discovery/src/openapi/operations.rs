//! The paths of a group version and their operations.
//!
//! # Contract
//!
//! [`paths`] derives verbs, bodies, responses and parameters from the registry alone. The modules `v2` and
//! `v3` write the paths into their documents.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::names::Names;
use kinds::{Kind, Subresource, Verb};

use super::kinds::{GroupVersionKind, of_subresource, type_of};
use super::parameters::{self, Parameter};
use super::type_names::{PATCH, WATCH_EVENT};

/// A path with its operations.
pub(super) struct Path {
    pub(super) path: String,
    /// Parameters common to all operations.
    pub(super) parameters: Vec<Parameter>,
    pub(super) operations: Vec<Operation>,
}

/// An operation of a path.
pub(super) struct Operation {
    /// HTTP method, lower case.
    pub(super) method: &'static str,
    /// The value of the extension `action`.
    pub(super) action: &'static str,
    pub(super) id: String,
    pub(super) description: String,
    /// Names of the general query parameters that the operation accepts.
    pub(super) general: &'static [&'static str],
    /// Query parameters of this operation alone.
    pub(super) specific: Vec<Parameter>,
    /// Type of the body, and whether the body is required.
    pub(super) body: Option<(String, bool)>,
    /// Media types of the body; empty for any.
    pub(super) consumes: &'static [&'static str],
    /// Media types of the response.
    pub(super) produces: Vec<String>,
    /// HTTP status codes of success.
    pub(super) codes: &'static [u16],
    /// Type of the response; None for text.
    pub(super) response: Option<String>,
    pub(super) kind: GroupVersionKind,
    pub(super) deprecated: bool,
}

const PATCH_MEDIA_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCH_MEDIA_TYPES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const TEXT_MEDIA_TYPES: &[&str] = &["text/plain", "application/json", "application/yaml"];
const ANY_MEDIA_TYPE: &[&str] = &["*/*"];

fn string_list(media_types: &[&str]) -> Vec<String> {
    media_types.iter().map(|media_type| (*media_type).to_owned()).collect()
}

/// Returns the names of all types that the operations of `paths` refer to.
pub(super) fn types<'p>(paths: impl IntoIterator<Item = &'p Path>) -> impl Iterator<Item = &'p str> {
    let operations = paths.into_iter().flat_map(|path| &path.operations);
    operations.flat_map(|operation| {
        let body = operation.body.as_ref().map(|(type_name, _)| type_name.as_str());
        body.into_iter().chain(operation.response.as_deref())
    })
}

/// The paths of several resources in alphabetical order. Only the paths of one resource are in memory.
pub(super) struct SortedPaths<'a> {
    resources: Vec<(&'a Kind, &'a str)>,
    names: &'a Names,
    /// Each path, and the index of its resource.
    index: Vec<(String, usize)>,
    /// The names of all types that the operations refer to.
    pub(super) types: BTreeSet<String>,
}

impl<'a> SortedPaths<'a> {
    /// Collects the paths of resources, each in one of its versions.
    pub(super) fn new(resources: impl IntoIterator<Item = (&'a Kind, &'a str)>, names: &'a Names) -> Self {
        let resources: Vec<_> = resources.into_iter().collect();
        let mut index = BTreeMap::new();
        let mut types = BTreeSet::new();
        for (position, (resource, version)) in resources.iter().enumerate() {
            let paths = paths(resource, version, names);
            types.extend(self::types(&paths).map(str::to_owned));
            index.extend(paths.into_iter().map(|path| (path.path, position)));
        }
        SortedPaths { resources, names, index: index.into_iter().collect(), types }
    }

    /// Whether one of the paths is this path.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.index.binary_search_by(|(known, _)| known.as_str().cmp(path)).is_ok()
    }

    /// Visits each path with the tag of its operations. Ends at the first error.
    pub(super) fn try_for_each<E>(
        &self,
        mut visit: impl FnMut(&Path, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        // Neighbours in the order mostly belong to one resource.
        let mut current: Option<(usize, String, Vec<Path>)> = None;
        for (name, position) in &self.index {
            let Some((resource, version)) = self.resources.get(*position) else { continue };
            let (_, tag, paths) = match current.take().filter(|(known, ..)| known == position) {
                Some(known) => current.insert(known),
                None => {
                    let paths = paths(resource, version, self.names);
                    current.insert((*position, tag(resource, version), paths))
                }
            };
            if let Some(path) = paths.iter().find(|path| path.path == *name) {
                visit(path, tag)?;
            }
        }
        Ok(())
    }
}

/// Returns the paths of a resource in one of its versions.
pub(super) fn paths(resource: &Kind, version: &str, names: &Names) -> Vec<Path> {
    let group = &resource.group_resource.group;
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let main = ResourcePaths {
        resource,
        type_name: type_of(resource, group, version),
        kind: GroupVersionKind {
            group: group.clone(),
            version: version.to_owned(),
            kind: resource.name().to_owned(),
        },
        id: camel(&format!("{}_{version}", tag_group(resource))),
        scope: if resource.namespaced { "Namespaced" } else { "" },
        protobuf: names.protobuf_media_type,
    };
    let plural = resource.plural();
    let namespaced = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
    let collection = format!("{root}{namespaced}/{plural}");
    let item = format!("{collection}/{{name}}");
    let has_verb = |verb: &Verb| resource.verbs.contains(verb);

    let mut paths = Vec::new();
    paths.push(main.path(collection, false, main.collection_operations()));
    paths.push(main.path(item.clone(), true, main.item_operations()));
    for subresource in &resource.subresources {
        main.subresource(&item, version, subresource, names, &mut paths);
    }
    // Custom kinds do not have the deprecated watch paths.
    let has_watch_paths = has_verb(&Verb::Watch) && !resource.is_custom();
    if has_watch_paths {
        let watch_path = format!("{root}/watch{namespaced}/{plural}");
        paths.push(main.path(watch_path.clone(), false, vec![main.watch("List", main.scope, "")]));
        paths.push(main.path(format!("{watch_path}/{{name}}"), true, vec![main.watch("", main.scope, "")]));
    }
    if resource.namespaced && has_verb(&Verb::List) {
        // List and watch across all namespaces.
        let list = main.operation("get", "list", "List", "ForAllNamespaces", parameters::READ_MANY);
        let list = Operation {
            id: main.operation_id("list", "", "ForAllNamespaces"),
            ..main.with_list_response(list)
        };
        paths.push(Path {
            path: format!("{root}/{plural}"),
            parameters: pretty_parameter(),
            operations: vec![list],
        });
        if has_watch_paths {
            let watch = main.watch("List", "", "ForAllNamespaces");
            paths.push(Path {
                path: format!("{root}/watch/{plural}"),
                parameters: pretty_parameter(),
                operations: vec![watch],
            });
        }
    }
    paths.retain(|path| !path.operations.is_empty());
    paths
}

/// Returns the tag of all operations of a group version: `core_v1`, `rbacAuthorization_v1`.
pub(super) fn tag(resource: &Kind, version: &str) -> String {
    format!("{}_{version}", tag_group(resource))
}

/// Returns the part of a tag for the API group: `rbacAuthorization`.
pub(super) fn tag_group(resource: &Kind) -> String {
    let stem = match resource.stem() {
        Some("") => "core",
        stem => stem.unwrap_or(&resource.group_resource.group),
    };
    let mut words = stem.split('.');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |tag, word| tag + &camel(word))
}

/// Converts `core_v1` to `CoreV1`.
pub(super) fn camel(words: &str) -> String {
    words
        .split('_')
        .map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
        })
        .collect()
}

fn pretty_parameter() -> Vec<Parameter> {
    parameters::general("pretty").into_iter().collect()
}

/// A resource in one version.
struct ResourcePaths<'a> {
    resource: &'a Kind,
    type_name: String,
    kind: GroupVersionKind,
    /// Prefix of operation ids, such as `CoreV1`.
    id: String,
    scope: &'static str,
    /// The Protobuf media type.
    protobuf: &'static str,
}

impl ResourcePaths<'_> {
    fn path(&self, path: String, has_name: bool, operations: Vec<Operation>) -> Path {
        let mut parameters = Vec::new();
        if has_name {
            parameters.push(parameters::name(self.resource.name()));
        }
        if self.resource.namespaced {
            parameters.push(parameters::namespace());
        }
        parameters.extend(pretty_parameter());
        Path { path, parameters, operations }
    }

    fn operation_id(&self, action: &str, scope: &str, suffix: &str) -> String {
        format!("{action}{}{scope}{}{suffix}", self.id, self.resource.name())
    }

    /// Builds an operation whose response is an object of the kind.
    fn operation(
        &self,
        method: &'static str,
        action: &'static str,
        subject: &str,
        suffix: &str,
        general: &'static [&'static str],
    ) -> Operation {
        let word = match action {
            "get" => "read",
            "post" => "create",
            "put" => "replace",
            other => other,
        };
        let subject =
            if subject.is_empty() { String::new() } else { format!(" {}", subject.to_ascii_lowercase()) };
        Operation {
            method,
            action,
            id: self.operation_id(word, self.scope, suffix),
            description: format!("{word} {}{subject}", self.resource.name()),
            general,
            specific: Vec::new(),
            body: None,
            consumes: &[],
            produces: self.object_media_types(),
            codes: &[200],
            response: Some(self.type_name.clone()),
            kind: self.kind.clone(),
            deprecated: false,
        }
    }

    /// Returns the media types of responses with an object.
    fn object_media_types(&self) -> Vec<String> {
        let mut media_types = string_list(&["application/json", "application/yaml"]);
        // Custom kinds have no Protobuf message.
        if !self.resource.is_custom() {
            media_types.push(self.protobuf.to_owned());
        }
        media_types
    }

    /// Returns the media types of responses with a list or a watch stream.
    fn list_media_types(&self) -> Vec<String> {
        let streams =
            ["application/json", self.protobuf].map(|media_type| format!("{media_type};stream=watch"));
        [self.object_media_types(), streams.to_vec()].concat()
    }

    fn with_list_response(&self, operation: Operation) -> Operation {
        let response = Some(format!("{}List", self.type_name));
        Operation { produces: self.list_media_types(), response, ..operation }
    }

    fn collection_operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for verb in self.resource.verbs {
            match verb {
                Verb::List => {
                    let list = self.operation("get", "list", "", "", parameters::READ_MANY);
                    operations.push(self.with_list_response(list));
                }
                Verb::Create => operations.push(Operation {
                    body: Some((self.type_name.clone(), true)),
                    codes: &[200, 201, 202],
                    ..self.operation("post", "post", "", "", parameters::WRITE)
                }),
                Verb::DeleteCollection => operations.push(Operation {
                    id: self.operation_id("delete", &format!("Collection{}", self.scope), ""),
                    description: format!("delete all selected {}", self.resource.plural()),
                    body: Some(("meta/v1.DeleteOptions".to_owned(), false)),
                    response: Some("meta/v1.Status".to_owned()),
                    ..self.operation("delete", "deletecollection", "", "", parameters::DELETE_MANY)
                }),
                Verb::Delete | Verb::Get | Verb::Patch | Verb::Update | Verb::Watch => {}
            }
        }
        operations
    }

    fn item_operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for verb in self.resource.verbs {
            match verb {
                Verb::Get => operations.push(self.operation("get", "get", "", "", &[])),
                Verb::Update => {
                    operations.push(self.put(self.operation("put", "put", "", "", parameters::WRITE)))
                }
                Verb::Patch => {
                    operations.push(self.patch(self.operation("patch", "patch", "", "", parameters::PATCH)));
                }
                Verb::Delete => operations.push(self.delete("")),
                Verb::Create | Verb::DeleteCollection | Verb::List | Verb::Watch => {}
            }
        }
        operations
    }

    /// Returns the media types of patches. Custom kinds have no strategic merge patch.
    fn patch_media_types(&self) -> &'static [&'static str] {
        if self.resource.is_custom() { CUSTOM_PATCH_MEDIA_TYPES } else { PATCH_MEDIA_TYPES }
    }

    fn put(&self, operation: Operation) -> Operation {
        let body = operation.response.clone().map(|type_name| (type_name, true));
        Operation { body, codes: &[200, 201], ..operation }
    }

    fn patch(&self, operation: Operation) -> Operation {
        Operation {
            body: Some((PATCH.to_owned(), true)),
            consumes: self.patch_media_types(),
            codes: &[200, 201],
            ..operation
        }
    }

    fn delete(&self, suffix: &str) -> Operation {
        let returns_object = self.resource.rules.delete_returns_object;
        Operation {
            body: Some(("meta/v1.DeleteOptions".to_owned(), false)),
            codes: &[200, 202],
            response: Some(if returns_object { self.type_name.clone() } else { "meta/v1.Status".to_owned() }),
            ..self.operation("delete", "delete", "", suffix, parameters::DELETE)
        }
    }

    /// Builds an operation of the deprecated watch paths.
    fn watch(&self, list_suffix: &str, scope: &str, suffix: &str) -> Operation {
        let action = if list_suffix.is_empty() { "watch" } else { "watchlist" };
        Operation {
            id: self.operation_id("watch", scope, &format!("{list_suffix}{suffix}")),
            description: format!("watch {}; use the parameter `watch` of a list", self.resource.name()),
            produces: self.list_media_types(),
            response: Some(WATCH_EVENT.to_owned()),
            deprecated: true,
            ..self.operation("get", action, "", "", parameters::READ_MANY)
        }
    }

    fn subresource(
        &self,
        item: &str,
        version: &str,
        subresource: &Subresource,
        names: &Names,
        paths: &mut Vec<Path>,
    ) {
        let (type_name, kind) = of_subresource(self.resource, version, subresource, names);
        let path = format!("{item}/{}", subresource.name);
        let suffix = camel(subresource.name);
        if kind.kind.ends_with("Options") {
            let specific = parameters::option_parameters(&kind.kind);
            let connect = |suffix: &str| -> Vec<Operation> {
                let methods = connect_methods(subresource);
                methods.map(|method| self.connect(method, suffix, &kind, &specific)).collect()
            };
            paths.push(self.path(path.clone(), true, connect(&suffix)));
            if subresource.has_paths() {
                let mut nested =
                    self.path(format!("{path}/{{path}}"), true, connect(&format!("{suffix}WithPath")));
                nested.parameters.push(parameters::proxied_path());
                paths.push(nested);
            }
            return;
        }
        let operations = subresource.verbs.iter().filter_map(|verb| {
            let build = |method, action, general| Operation {
                response: Some(type_name.clone()),
                kind: kind.clone(),
                ..self.operation(method, action, subresource.name, &suffix, general)
            };
            Some(match verb {
                // A read-only subresource without its own kind, such as `pods/log`, returns text.
                Verb::Get
                    if subresource.verbs == [Verb::Get]
                        && self.resource.body_kind(subresource) == self.kind.kind =>
                {
                    Operation {
                        response: None,
                        produces: string_list(TEXT_MEDIA_TYPES),
                        specific: parameters::option_parameters(&format!(
                            "{}{suffix}Options",
                            self.kind.kind
                        )),
                        ..build("get", "get", &[])
                    }
                }
                Verb::Get => build("get", "get", &[]),
                Verb::Update => self.put(build("put", "put", parameters::WRITE)),
                Verb::Patch => self.patch(build("patch", "patch", parameters::PATCH)),
                Verb::Create => Operation {
                    body: Some((type_name.clone(), true)),
                    codes: &[200, 201, 202],
                    ..build("post", "post", parameters::WRITE)
                },
                Verb::Delete => self.delete(&suffix),
                Verb::DeleteCollection | Verb::List | Verb::Watch => return None,
            })
        });
        let operations = operations.collect();
        paths.push(self.path(path, true, operations));
    }

    fn connect(
        &self,
        method: &'static str,
        suffix: &str,
        kind: &GroupVersionKind,
        specific: &[Parameter],
    ) -> Operation {
        let scope = format!("{}{}", camel(method), self.scope);
        Operation {
            id: self.operation_id("connect", &scope, suffix),
            description: format!("connect to {} of {}", suffix.to_ascii_lowercase(), self.resource.name()),
            specific: specific.to_vec(),
            produces: string_list(ANY_MEDIA_TYPE),
            response: None,
            kind: kind.clone(),
            ..self.operation(method, "connect", "", suffix, &[])
        }
    }
}

/// Returns the HTTP methods of a connect subresource.
fn connect_methods(subresource: &Subresource) -> impl Iterator<Item = &'static str> {
    let methods = subresource.verbs.iter().filter_map(|verb| connect_method(*verb));
    // A proxied request can have any method; HEAD and OPTIONS have no verb in discovery.
    let further: &[&str] = if subresource.has_paths() { &["head", "options"] } else { &[] };
    methods.chain(further.iter().copied())
}

/// Returns the HTTP method of a verb of a connect subresource.
fn connect_method(verb: Verb) -> Option<&'static str> {
    Some(match verb {
        Verb::Create => "post",
        Verb::Delete => "delete",
        Verb::Get => "get",
        Verb::Patch => "patch",
        Verb::Update => "put",
        Verb::DeleteCollection | Verb::List | Verb::Watch => return None,
    })
}
