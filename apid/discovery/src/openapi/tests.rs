//! Tests of the OpenAPI documents against the registry and the schema facts.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use apimachinery::names::Preset;

mod read_back;

fn api(preset: Preset) -> OpenApi {
    let names = Names::new(preset, "example.test").unwrap();
    OpenApi::new(Arc::new(Registry::new(&names)), Arc::new(names))
}

fn read(packed: &CompressedDocument) -> Value {
    serde_json::from_slice(&packed.decompress().unwrap()).unwrap()
}

/// Returns the OpenAPI 3 documents of group versions by path.
fn v3(api: &OpenApi) -> BTreeMap<String, Value> {
    let paths = api.group_versions().into_keys();
    paths.map(|path| (path.clone(), read(&api.v3_document(&path).unwrap().unwrap()))).collect()
}

/// Collects every `$ref` of a document.
fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("$ref").and_then(Value::as_str));
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Checks that references resolve, kinds are unique, and path parameters match their placeholders.
fn check(document: &Value, definitions: &str, prefix: &str) {
    let mut found = BTreeSet::new();
    references(document, &mut found);
    for reference in found {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let mut kinds = BTreeSet::new();
    for (name, schema) in document.pointer(definitions).unwrap().as_object().unwrap() {
        let own = schema[format!("{prefix}group-version-kind")].as_array();
        for kind in own.into_iter().flatten() {
            assert!(kinds.insert(kind.to_string()), "{kind} is also {name}");
        }
    }
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let wanted: BTreeSet<&str> =
            path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')).collect();
        let declared =
            item["parameters"].as_array().unwrap().iter().filter(|parameter| parameter["in"] == "path");
        assert_eq!(wanted, declared.map(|parameter| parameter["name"].as_str().unwrap()).collect(), "{path}");
        for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
            assert!(operation[format!("{prefix}action")].is_string(), "{method} {path}");
            let kind = &operation[format!("{prefix}group-version-kind")];
            assert!(kind["kind"].is_string() && kind["group"].is_string(), "{method} {path}");
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "duplicate operationId {id}");
        }
    }
}

#[test]
fn openapi_v3_references_resolve_in_both_presets() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let api = api(preset);
        let documents = v3(&api);
        for (path, document) in &documents {
            check(document, "/components/schemas", api.names.extension_prefix);
            assert!(
                document["paths"].as_object().unwrap().keys().all(|p| p.starts_with(&format!("/{path}/")))
            );
        }
        for resource in api.registry.resources() {
            for version in resource.versions() {
                let group = &resource.group_resource.group;
                let path = if group.is_empty() {
                    format!("api/{version}")
                } else {
                    format!("apis/{group}/{version}")
                };
                let kind = json!({"group": group, "version": version, "kind": resource.name()});
                let schemas = documents[&path]["components"]["schemas"].as_object().unwrap();
                let extension = format!("{}group-version-kind", api.names.extension_prefix);
                let found = schemas
                    .values()
                    .any(|schema| schema[&extension].as_array().is_some_and(|kinds| kinds.contains(&kind)));
                assert!(found, "{kind} has no schema in {path}");
            }
        }
        if preset == Preset::Svc {
            let text = format!("{documents:?}").to_lowercase();
            for word in ["kube", "k8s"] {
                let at = text.find(word).map(|i| &text[i.saturating_sub(60)..i + 30]);
                // Names of fields and values with `kubelet` or `kube-proxy` are equal in both presets.
                assert!(
                    at.is_none_or(|at| at.contains("kubelet")
                        || at.contains("kube-proxy")
                        || at.contains("kubeproxy")),
                    "{at:?}"
                );
            }
        }
    }
}

#[test]
fn openapi_v3_paths_have_verbs_and_parameters_of_kind() {
    let documents = v3(&api(Preset::Kubernetes));
    let core = &documents["api/v1"]["paths"];
    let methods = |path: &str| -> Vec<(String, String)> {
        let item = core[path].as_object().unwrap_or_else(|| panic!("{path}"));
        let operations = item.iter().filter(|(key, _)| *key != "parameters");
        operations.map(|(m, o)| (m.clone(), o["x-kubernetes-action"].as_str().unwrap().to_owned())).collect()
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        methods("/api/v1/namespaces/{namespace}/configmaps"),
        [pair("delete", "deletecollection"), pair("get", "list"), pair("post", "post")]
    );
    assert_eq!(
        methods("/api/v1/namespaces/{namespace}/configmaps/{name}"),
        [pair("delete", "delete"), pair("get", "get"), pair("patch", "patch"), pair("put", "put")]
    );
    assert_eq!(methods("/api/v1/configmaps"), [pair("get", "list")]);
    assert_eq!(methods("/api/v1/watch/namespaces/{namespace}/configmaps/{name}"), [pair("get", "watch")]);
    assert_eq!(methods("/api/v1/watch/configmaps"), [pair("get", "watchlist")]);
    assert_eq!(
        methods("/api/v1/namespaces/{namespace}/pods/{name}/status"),
        [pair("get", "get"), pair("patch", "patch"), pair("put", "put")]
    );
    assert_eq!(
        methods("/api/v1/namespaces/{namespace}/pods/{name}/exec"),
        [pair("get", "connect"), pair("post", "connect")]
    );
    assert!(core["/api/v1/namespaces/{name}"].is_object());
    let namespaces = methods("/api/v1/namespaces");
    assert_eq!(
        namespaces,
        [pair("get", "list"), pair("post", "post")],
        "namespaces have no deletecollection"
    );
    let media_types = |path: &str| -> Vec<String> {
        let content = core[path]["get"]["responses"]["200"]["content"].as_object().unwrap();
        content.keys().map(|name| name.replace("application/", "")).collect()
    };
    let whole = ["json", "vnd.kubernetes.protobuf", "yaml"];
    assert_eq!(media_types("/api/v1/namespaces/{name}"), whole);
    let streams = [
        "json",
        "json;stream=watch",
        "vnd.kubernetes.protobuf",
        "vnd.kubernetes.protobuf;stream=watch",
        "yaml",
    ];
    assert_eq!(media_types("/api/v1/namespaces"), streams);

    let patch = &core["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
    let names: Vec<&str> =
        patch["parameters"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "", "version": "v1", "kind": "ConfigMap"})
    );
    assert_eq!(patch["operationId"], "patchCoreV1NamespacedConfigMap");
    assert_eq!(patch["tags"], json!(["core_v1"]));

    let scale =
        &documents["apis/apps/v1"]["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"];
    assert_eq!(
        scale["get"]["x-kubernetes-group-version-kind"],
        json!({"group": "autoscaling", "version": "v1", "kind": "Scale"})
    );
    assert_eq!(
        scale["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/io.k8s.api.autoscaling.v1.Scale"
    );
}

#[test]
fn openapi_proxy_paths_have_all_methods_in_both_presets() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let api = api(preset);
        let (v3, v2) = (v3(&api), read(&api.v2().unwrap()));
        for (resource, kind) in [
            ("namespaces/{namespace}/pods", "NamespacedPod"),
            ("namespaces/{namespace}/services", "NamespacedService"),
            ("nodes", "Node"),
        ] {
            for (end, suffix) in [("", "Proxy"), ("/{path}", "ProxyWithPath")] {
                let path = format!("/api/v1/{resource}/{{name}}/proxy{end}");
                for document in [&v3["api/v1"], &v2] {
                    let item = &document["paths"][&path];
                    for (method, word) in [
                        ("delete", "Delete"),
                        ("get", "Get"),
                        ("head", "Head"),
                        ("options", "Options"),
                        ("patch", "Patch"),
                        ("post", "Post"),
                        ("put", "Put"),
                    ] {
                        let operation = &item[method];
                        let id = format!("connectCoreV1{word}{kind}{suffix}");
                        assert_eq!(operation["operationId"], id, "{method} {path}");
                        let query = operation["parameters"].as_array().unwrap();
                        assert_eq!(
                            (&query[0]["name"], &query[0]["in"]),
                            (&json!("path"), &json!("query")),
                            "{id}"
                        );
                    }
                    let parameters = item["parameters"].as_array().unwrap();
                    let has_rest = parameters.iter().any(|one| one["name"] == "path" && one["in"] == "path");
                    assert_eq!(has_rest, !end.is_empty(), "{path}");
                }
            }
        }
    }
}

#[test]
fn openapi_connect_subresources_and_logs_have_query_parameters() {
    let documents = v3(&api(Preset::Kubernetes));
    let pod = "/api/v1/namespaces/{namespace}/pods/{name}";
    let streams = ["container", "stderr", "stdin", "stdout", "tty"];
    for (subresource, methods, expected) in [
        ("attach", &["get", "post"][..], &streams[..]),
        ("exec", &["get", "post"], &["command", "container", "stderr", "stdin", "stdout", "tty"]),
        ("portforward", &["get", "post"], &["ports"]),
        (
            "log",
            &["get"],
            &[
                "container",
                "follow",
                "insecureSkipTLSVerifyBackend",
                "limitBytes",
                "previous",
                "sinceSeconds",
                "stream",
                "tailLines",
                "timestamps",
            ],
        ),
    ] {
        let item = documents["api/v1"]["paths"][format!("{pod}/{subresource}")].as_object().unwrap();
        let served: Vec<&String> = item.keys().filter(|key| *key != "parameters").collect();
        assert_eq!(served, methods, "{subresource}");
        for method in methods {
            let parameters = item[*method]["parameters"].as_array().unwrap();
            assert!(parameters.iter().all(|parameter| parameter["in"] == "query"), "{subresource}");
            let names: Vec<&str> = parameters.iter().map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(names, expected, "{subresource}");
        }
    }
}

#[test]
fn openapi_v3_schemas_contain_schema_facts() {
    let documents = v3(&api(Preset::Kubernetes));
    let schemas = &documents["api/v1"]["components"]["schemas"];
    let field =
        |ty: &str, field: &str| schemas[format!("io.k8s.api.core.v1.{ty}")]["properties"][field].clone();

    let containers = field("PodSpec", "containers");
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    let ports = field("Container", "ports");
    assert_eq!(ports["type"], "array");
    assert_eq!(ports["x-kubernetes-list-type"], "map");
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["containerPort", "protocol"]));
    assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "containerPort");
    assert_eq!(
        ports["items"],
        json!({"default": {}, "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"}]})
    );
    assert_eq!(field("ContainerPort", "protocol")["default"], "TCP");
    assert_eq!(field("ContainerPort", "protocol")["enum"], json!(["SCTP", "TCP", "UDP"]));
    assert_eq!(field("Container", "name")["default"], "");
    assert_eq!(
        field("ContainerPort", "containerPort"),
        json!({"type": "integer", "format": "int32", "default": 0, "description": "Port number inside the pod."})
    );
    assert_eq!(schemas["io.k8s.api.core.v1.Container"]["required"], json!(["name"]));
    assert_eq!(
        field("ConfigMap", "binaryData")["additionalProperties"],
        json!({"type": "string", "format": "byte"})
    );
    assert_eq!(field("ConfigMap", "data")["additionalProperties"], json!({"type": "string", "default": ""}));
    assert_eq!(
        field("ResourceRequirements", "limits")["additionalProperties"],
        json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"})
    );
    assert_eq!(field("PodSpec", "nodeSelector")["x-kubernetes-map-type"], "atomic");
    assert_eq!(schemas["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"], "atomic");
    assert_eq!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.Time"]["format"], "date-time");
    assert_eq!(
        schemas["io.k8s.api.core.v1.ConfigMap"]["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "ConfigMap"}])
    );
    let options =
        schemas["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"]["x-kubernetes-group-version-kind"]
            .as_array();
    assert!(options.unwrap().len() > 10, "DeleteOptions is a kind of every group version");
}

#[test]
fn openapi_v2_covers_v3_in_both_presets() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let api = api(preset);
        let document = read(&api.v2().unwrap());
        check(&document, "/definitions", api.names.extension_prefix);
        for (path, v3) in v3(&api) {
            for (at, item) in v3["paths"].as_object().unwrap() {
                let methods = |item: &Value| item.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
                assert_eq!(methods(&document["paths"][at]), methods(item), "{at}");
            }
            for (name, schema) in v3["components"]["schemas"].as_object().unwrap() {
                let mut properties = schema["properties"].as_object().into_iter().flat_map(|p| p.keys());
                assert!(
                    properties
                        .all(|property| document["definitions"][name]["properties"][property].is_object()),
                    "{name} of {path}"
                );
            }
        }
    }
}

#[test]
fn openapi_v2_schemas_contain_merge_extensions() {
    let document = read(&api(Preset::Kubernetes).v2().unwrap());
    let definitions = &document["definitions"];
    assert_eq!(
        definitions["io.k8s.api.core.v1.Container"]["properties"]["env"],
        json!({
            "type": "array",
            "items": {"$ref": "#/definitions/io.k8s.api.core.v1.EnvVar"},
            "description": "Environment variables of the container. Map list with the key `name`; fields of each entry have their own managers.",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "x-kubernetes-patch-strategy": "merge",
            "x-kubernetes-patch-merge-key": "name",
        })
    );
    assert_eq!(
        definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"],
        json!({"type": "string", "format": "int-or-string"})
    );
    assert_eq!(
        document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"]["parameters"],
        json!([
            {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/io.k8s.api.core.v1.Pod"}},
            {"$ref": "#/parameters/dryRun"},
            {"$ref": "#/parameters/fieldManager"},
            {"$ref": "#/parameters/fieldValidation"},
        ])
    );
    assert_eq!(document["parameters"]["fieldValidation"]["in"], "query");
}

#[test]
fn openapi_v2_protobuf_equals_json() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let api = api(preset);
        let json = read(&api.v2().unwrap());
        let message = api.v2_protobuf().unwrap().decompress().unwrap();
        let back = read_back::document(&message);
        for part in ["swagger", "info", "parameters", "security", "securityDefinitions"] {
            assert_eq!(back[part], json[part], "{part}");
        }
        for part in ["paths", "definitions"] {
            let (back, json) = (back[part].as_object().unwrap(), json[part].as_object().unwrap());
            assert!(back.keys().eq(json.keys()), "{part}");
            for (name, value) in json {
                assert_eq!(&back[name], value, "{part} {name}");
            }
        }
    }
}

#[test]
fn openapi_v2_protobuf_has_field_numbers_of_gnostic() {
    let document = json!({
        "swagger": "2.0",
        "paths": {"/p": {
            "get": {
                "operationId": "o",
                "deprecated": true,
                "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/d"}}},
                "x-a": "b",
            },
            "parameters": [
                {"$ref": "#/parameters/q"},
                {"in": "path", "name": "n", "required": true, "type": "string", "uniqueItems": true},
                {"in": "query", "name": "w", "type": "boolean", "uniqueItems": true},
                {"in": "body", "name": "body", "required": true, "schema": {"$ref": "#/definitions/d"}},
            ],
        }},
        "definitions": {"d": {
            "type": "object",
            "required": ["a"],
            "enum": ["e"],
            "properties": {"a": {"type": "array", "items": {"type": "string", "format": "byte"}}},
            "additionalProperties": {"type": "string"},
            "x-m": {"k": 1},
        }},
        "security": [{"t": []}],
        "securityDefinitions": {"t": {"type": "apiKey", "in": "header", "name": "authorization"}},
    });
    let message: &[u8] =
        b"\x0a\x032.0B\xbd\x01\x12\xba\x01\x0a\x02/p\x12\xb3\x01\x12:*\x01oJ$\x0a\"\x0a\x03200\x12\x1b\x0a\
          \x19\x0a\x02OK\x12\x13\x0a\x11\x0a\x0f#/definitions/dX\x01j\x0d\x0a\x03x-a\x12\x06\x12\x04\"b\"\
          \x0aJ\x12\x12\x10\x0a\x0e#/parameters/qJ\x1c\x0a\x1a\x12\x18\"\x16\x08\x01\x12\x04path\"\x01n*\x06\
          string\x98\x01\x01J\x1c\x0a\x1a\x12\x18\x1a\x16\x12\x05query\"\x01w2\x07boolean\xa0\x01\x01J%\x0a#\
          \x0a!\x12\x04body\x1a\x04body \x01*\x11\x0a\x0f#/definitions/dJm\x0ak\x0a\x01d\x12f\x9a\x01\x01a\
          \xa2\x01\x06\x12\x04\"e\"\x0a\xaa\x01\x0d\x0a\x0b\xb2\x01\x08\x0a\x06string\xb2\x01\x08\x0a\x06obj\
          ect\xca\x01'\x0a%\x0a\x01a\x12 \xb2\x01\x07\x0a\x05array\xba\x01\x13\x0a\x11\x12\x04byte\xb2\x01\
          \x08\x0a\x06string\xfa\x01\x11\x0a\x03x-m\x12\x0a\x12\x08{\"k\":1}\x0ab\x07\x0a\x05\x0a\x01t\x12\
          \x00j(\x0a&\x0a\x01t\x12!\x12\x1f\x0a\x06apiKey\x12\x0dauthorization\x1a\x06header";
    assert_eq!(protobuf::encode(&document), message);
    assert_eq!(read_back::document(message), document);
}

#[test]
fn openapi_v3_has_documents_of_discovery_version_and_issuer() {
    for preset in [Preset::Svc, Preset::Kubernetes] {
        let api = api(preset);
        let index = read(&api.v3_index().unwrap());
        let rbac = format!("apis/{}", api.names.group("rbac.authorization"));
        for (path, id, reference) in [
            ("api", "getCoreAPIVersions", "meta/v1.APIVersions"),
            ("apis", "getAPIVersions", "meta/v1.APIGroupList"),
            ("apis/apps", "getAppsAPIGroup", "meta/v1.APIGroup"),
            (rbac.as_str(), "getRbacAuthorizationAPIGroup", "meta/v1.APIGroup"),
            ("version", "getCodeVersion", "version.Info"),
            ("openid/v1/jwks", "getServiceAccountIssuerOpenIDKeyset", ""),
            (".well-known/openid-configuration", "getServiceAccountIssuerOpenIDConfiguration", ""),
        ] {
            assert!(index["paths"].get(path).is_some(), "{path}");
            let document = read(&api.v3_document(path).unwrap().unwrap());
            let operation = &document["paths"][format!("/{path}/")]["get"];
            assert_eq!(operation["operationId"], id, "{document}");
            let content = operation["responses"]["200"]["content"].as_object().unwrap();
            for media_type in content.values() {
                match reference.split_once('.') {
                    None => assert_eq!(media_type["schema"], json!({"type": "string"})),
                    Some((package, name)) => {
                        let name = api.names.definition(package, name);
                        let reference = format!("#/components/schemas/{name}");
                        assert_eq!(media_type["schema"]["$ref"], reference, "{path}");
                    }
                }
            }
            let mut found = BTreeSet::new();
            references(&document, &mut found);
            for reference in found {
                assert!(document.pointer(&reference[1..]).is_some(), "{path}: {reference}");
            }
        }
    }
    let custom = api_with_custom_kinds(&["Widget"], &json!({"type": "object"}));
    assert!(custom.v3_document("apis/example.com").unwrap().is_none(), "as in kube-apiserver");
}

#[test]
fn openapi_v3_index_contains_document_hashes() {
    let api = api(Preset::Kubernetes);
    let index = read(&api.v3_index().unwrap());
    for (path, entry) in index["paths"].as_object().unwrap() {
        let document = api.v3_document(path).unwrap().unwrap();
        assert_eq!(entry["serverRelativeURL"], OpenApi::v3_location(path, document.hash()));
    }
    assert!(api.v3_document("apis/none/v1").unwrap().is_none());
}

/// Documents of a registry with definitions in the group `example.com`, each with the schema `schema`.
fn api_with_custom_kinds(kinds: &[&str], schema: &Value) -> OpenApi {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let resources = kinds.iter().flat_map(|kind| {
        let plural = format!("{}s", kind.to_lowercase());
        let definition = json!({
            "spec": {"group": "example.com", "scope": "Namespaced", "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "selectableFields": [{"jsonPath": ".spec.color"}]}]},
            "status": {"acceptedNames": {"plural": plural, "singular": "x", "kind": kind, "listKind": format!("{kind}List")}},
        });
        let definition = apimachinery::object::Object::from_value(definition).unwrap();
        ::kinds::custom::resources(&definition, &names).unwrap()
    });
    let registry = Registry::new(&names).with_custom(resources.collect::<Vec<_>>());
    OpenApi::new(Arc::new(registry), names)
}

#[test]
fn schemas_of_custom_kinds_follow_the_openapi_version() {
    let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true});
    let mut free = embedded.clone();
    free["x-kubernetes-preserve-unknown-fields"] = json!(true);
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["n", "color"], "properties": {
        "color": {"type": "string"}, "n": {"type": "string", "nullable": true}, "e": embedded, "free": free,
        "list": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "string"}}}}}});
    let api = api_with_custom_kinds(&["Oa"], &schema);
    let v3 = read(&api.v3_document("apis/example.com/v1").unwrap().unwrap());
    check(&v3, "/components/schemas", "x-kubernetes-");
    assert!(v3["paths"].as_object().unwrap().keys().all(|path| !path.contains("/watch/")));
    let oa = &v3["components"]["schemas"]["com.example.v1.Oa"];
    assert_eq!(oa["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
    for part in ["e", "free"] {
        let part = &oa["properties"]["spec"]["properties"][part];
        let names: Vec<&str> = part["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            (names, &part["required"]),
            (vec!["apiVersion", "kind", "metadata"], &json!(["kind", "apiVersion"]))
        );
    }
    let list = &v3["components"]["schemas"]["com.example.v1.OaList"];
    assert_eq!(
        list["properties"]["items"]["items"],
        json!({"$ref": "#/components/schemas/com.example.v1.Oa"})
    );

    let v2 = read(&api.v2().unwrap());
    let spec = &v2["definitions"]["com.example.v1.Oa"]["properties"]["spec"];
    assert_eq!(spec["required"], json!(["color"]), "a nullable field is not required");
    let parts = &spec["properties"];
    assert_eq!(parts["n"], json!({}));
    assert_eq!(parts["list"], json!({"x-kubernetes-preserve-unknown-fields": true}));
    assert_eq!(
        parts["free"],
        json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true})
    );
    assert_eq!(parts["e"]["required"], json!(["kind", "apiVersion"]));

    let free_root = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"spec": {"type": "object"}}});
    let v2 = read(&api_with_custom_kinds(&["Oa"], &free_root).v2().unwrap());
    let oa = v2["definitions"]["com.example.v1.Oa"].as_object().unwrap();
    assert_eq!((oa["type"].as_str(), oa.contains_key("properties")), (Some("object"), false));
}

#[test]
fn document_above_the_limit_is_not_built() {
    let schema = json!({"type": "object", "description": "x".repeat(20_000)});
    let api = api_with_custom_kinds(&["Widget", "Gadget"], &schema);
    for (text_max, is_built) in [(60_000, true), (50_000, false)] {
        let api = OpenApi { text_max, ..api.with_state(Arc::clone(&api.registry), Arc::clone(&api.remote)) };
        assert!(!api.has(DocumentForm::V2) && !api.has(DocumentForm::V3));
        let results =
            [api.v2(), api.v2_protobuf(), api.v3_document("apis/example.com/v1").map(Option::unwrap)];
        assert!(api.has(DocumentForm::V2) && api.has(DocumentForm::V2Protobuf) && api.has(DocumentForm::V3));
        for result in results {
            assert_eq!(result.is_ok(), is_built);
            if let Err(error) = result {
                assert!(error.is_too_large() && error.begin_report() && !error.begin_report());
            }
        }
        assert!(api.v3_document("api/v1").is_ok() && api.v3_index().is_ok());
        // The documents of group versions are shared with the next registry.
        api.cached_documents.lock().clear();
    }
}

#[test]
fn documents_are_written_in_order_of_paths() {
    let api = api_with_custom_kinds(&["B", "A", "C"], &json!({"type": "object"}));
    for document in [api.v3_document("apis/example.com/v1").unwrap().unwrap(), api.v2().unwrap()] {
        let text = String::from_utf8(document.decompress().unwrap().to_vec()).unwrap();
        let position = |plural: &str| {
            text.find(&format!("/apis/example.com/v1/namespaces/{{namespace}}/{plural}\"")).unwrap()
        };
        assert!(position("as") < position("bs") && position("bs") < position("cs"));
        assert!(document.has_plain_form());
    }
}
