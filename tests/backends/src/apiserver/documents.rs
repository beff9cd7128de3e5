//! Discovery in both forms, and OpenAPI v2 and v3.

use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};
use serving::body::Body;

use super::{ApiServerOptions, DeleteCollection, accepts, document, echo, flavors, metrics, text};

/// A served resource.
struct Resource {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
    short_names: &'static [&'static str],
    verbs: &'static [&'static str],
}

const RESOURCES: [Resource; 4] = [
    Resource {
        group: flavors::GROUP,
        version: flavors::VERSION,
        plural: "flavors",
        singular: "flavor",
        kind: "Flavor",
        namespaced: true,
        short_names: &["fl"],
        verbs: &["create", "delete", "get", "list", "patch", "update", "watch"],
    },
    Resource {
        group: metrics::GROUP,
        version: metrics::VERSION,
        plural: "nodes",
        singular: "",
        kind: "NodeMetrics",
        namespaced: false,
        short_names: &[],
        verbs: &["get", "list"],
    },
    Resource {
        group: metrics::GROUP,
        version: metrics::VERSION,
        plural: "pods",
        singular: "",
        kind: "PodMetrics",
        namespaced: true,
        short_names: &[],
        verbs: &["get", "list"],
    },
    Resource {
        group: echo::GROUP,
        version: echo::VERSION,
        plural: "echoes",
        singular: "echo",
        kind: "Echo",
        namespaced: false,
        short_names: &[],
        verbs: &["create", "delete", "get", "list", "watch"],
    },
];

const GROUPS: [(&str, &str); 3] =
    [(flavors::GROUP, flavors::VERSION), (metrics::GROUP, metrics::VERSION), (echo::GROUP, echo::VERSION)];

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Responds with the document of the path.
pub(super) fn respond(head: &Parts, options: &ApiServerOptions) -> Response<Body> {
    let segments: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    match segments.as_slice() {
        ["apis"]
            if options.has_aggregated_discovery
                && head.headers.contains_key("accept")
                && accepts(head, &["v=v2;as="]) =>
        {
            let mut response = document(200, &aggregated(options));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
            response
        }
        ["apis"] => {
            let groups: Vec<Value> =
                GROUPS.iter().map(|(group, version)| api_group(group, version)).collect();
            document(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["apis", group] => match GROUPS.iter().find(|(known, _)| known == group) {
            Some((group, version)) => document(200, &api_group(group, version)),
            None => text(404, "404 page not found\n"),
        },
        ["apis", group, version] if GROUPS.contains(&(*group, *version)) => {
            document(200, &resource_list(group, version, options))
        }
        ["openapi", "v3", ..] if !options.has_openapi_v3 => text(404, "404 page not found\n"),
        ["openapi", "v2"] => with_etag(head, "\"backend-v2\"", &openapi_v2()),
        ["openapi", "v3"] => {
            let path = |group: &str, version: &str| format!("apis/{group}/{version}");
            let entry = |(group, version): &(&str, &str)| {
                let path = path(group, version);
                (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash=BACKEND")}))
            };
            let paths: serde_json::Map<String, Value> = GROUPS.iter().map(entry).collect();
            document(200, &json!({"paths": paths}))
        }
        ["openapi", "v3", "apis", group, version] if GROUPS.contains(&(*group, *version)) => {
            with_etag(head, "\"backend-v3\"", &openapi_v3(group, version))
        }
        _ => text(404, "404 page not found\n"),
    }
}

fn with_etag(head: &Parts, etag: &'static str, value: &Value) -> Response<Body> {
    let is_known = head.headers.get(IF_NONE_MATCH).is_some_and(|known| known == etag);
    let mut response = document(200, value);
    if is_known {
        response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    response.headers_mut().insert(ETAG, HeaderValue::from_static(etag));
    response
}

fn api_group(group: &str, version: &str) -> Value {
    let entry = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [entry], "preferredVersion": entry})
}

fn resources_of(group: &str, version: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group && resource.version == version)
}

/// Returns the verbs of a resource in alphabetical order.
fn verbs(resource: &Resource, options: &ApiServerOptions) -> Vec<&'static str> {
    let mut verbs = resource.verbs.to_vec();
    if resource.plural == "flavors" && options.delete_collection != DeleteCollection::Absent {
        verbs.push("deletecollection");
        verbs.sort_unstable();
    }
    verbs
}

fn resource_list(group: &str, version: &str, options: &ApiServerOptions) -> Value {
    let mut entries = Vec::new();
    for resource in resources_of(group, version) {
        entries.push(json!({"name": resource.plural, "singularName": resource.singular,
            "namespaced": resource.namespaced, "kind": resource.kind, "verbs": verbs(resource, options),
            "shortNames": resource.short_names}));
        if resource.plural == "flavors" {
            entries.push(
                json!({"name": "flavors/taste", "singularName": "", "namespaced": true, "kind": "Flavor",
                "verbs": ["get"]}),
            );
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
        "resources": entries})
}

fn aggregated(options: &ApiServerOptions) -> Value {
    let items: Vec<Value> = GROUPS
        .iter()
        .map(|(group, version)| {
            let resources: Vec<Value> = resources_of(group, version)
                .map(|resource| {
                    json!({"resource": resource.plural, "singularResource": resource.singular,
                        "responseKind": {"group": group, "version": version, "kind": resource.kind},
                        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
                        "verbs": verbs(resource, options), "shortNames": resource.short_names})
                })
                .collect();
            json!({"metadata": {"name": group},
                "versions": [{"version": version, "resources": resources, "freshness": "Current"}]})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// Returns the models by the prefix of references.
fn models(references: &str) -> Value {
    let flavor_kind = json!([{"group": flavors::GROUP, "version": flavors::VERSION, "kind": "Flavor"}]);
    json!({
        "com.example.flavors.v1.Flavor": {
            "description": "Flavor is a taste with a name.",
            "type": "object",
            "properties": {
                "apiVersion": {"type": "string", "description": "Version of the schema."},
                "kind": {"type": "string", "description": "Kind of the object."},
                "metadata": {"$ref": format!("{references}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta")},
                "spec": {"$ref": format!("{references}com.example.flavors.v1.FlavorSpec")},
            },
            "x-kubernetes-group-version-kind": flavor_kind,
        },
        "com.example.flavors.v1.FlavorSpec": {
            "description": "FlavorSpec says how the flavor tastes.",
            "type": "object",
            "properties": {"taste": {"type": "string", "description": "How the flavor tastes."}},
        },
        "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
            "description": "The metadata of another release.",
            "type": "object",
            "properties": {"name": {"type": "string", "description": "Name of the object."}},
        },
    })
}

/// The path of one Flavor.
const FLAVOR_PATH: &str = "/apis/flavors.example.com/v1/namespaces/{namespace}/flavors/{name}";

fn openapi_v2() -> Value {
    let response = json!({"description": "OK",
        "schema": {"$ref": "#/definitions/com.example.flavors.v1.Flavor"}});
    let operation = json!({"operationId": "readFlavor", "produces": ["application/json"], "schemes": ["https"],
        "responses": {"200": response},
        "x-kubernetes-group-version-kind": {"group": flavors::GROUP, "version": "v1", "kind": "Flavor"}});
    json!({"swagger": "2.0", "info": {"title": "backends", "version": "v0"},
        "paths": {FLAVOR_PATH: {"get": operation}, "/version/": {"get": {"operationId": "getBackendVersion"}}},
        "definitions": models("#/definitions/")})
}

fn openapi_v3(group: &str, version: &str) -> Value {
    let is_flavors = group == flavors::GROUP;
    let content = json!({"application/json": {
        "schema": {"$ref": "#/components/schemas/com.example.flavors.v1.Flavor"}}});
    let operation = json!({"operationId": "readFlavor",
        "responses": {"200": {"description": "OK", "content": content}},
        "x-kubernetes-group-version-kind": {"group": flavors::GROUP, "version": "v1", "kind": "Flavor"}});
    let paths = if is_flavors { json!({FLAVOR_PATH: {"get": operation}}) } else { json!({}) };
    let schemas = if is_flavors { models("#/components/schemas/") } else { json!({}) };
    json!({"openapi": "3.0.0", "info": {"title": format!("{group}/{version}"), "version": "v0"},
        "paths": paths, "components": {"schemas": schemas}})
}
