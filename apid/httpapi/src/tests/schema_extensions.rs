//! Schema extensions of definitions have the names of the preset in requests and responses.

use std::sync::Arc;

use apimachinery::names::{Preset, SchemaExtension};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::Server;
use controllers::DefinitionController;

const JSON: &str = "application/json";
const NAME: &str = "widgets.shop.example.com";

/// A server with the definition controller, and the names of its preset.
struct Fixture {
    server: Server,
    /// Path of the definitions.
    definitions: String,
    /// Path of the definition of widgets.
    url: String,
}

impl Fixture {
    async fn start(preset: Preset) -> Self {
        let server = Server::start_with_preset(preset).await;
        let controller = Arc::new(DefinitionController::new(&server.controller_state));
        controller.load().await.unwrap();
        tokio::spawn(controller.run());
        let group = server.api_state.names.group("apiextensions");
        let definitions = format!("/apis/{group}/v1/customresourcedefinitions");
        let url = format!("{definitions}/{NAME}");
        Fixture { server, definitions, url }
    }

    async fn start_with_both_presets() -> [Self; 2] {
        [Fixture::start(Preset::Svc).await, Fixture::start(Preset::Kubernetes).await]
    }

    fn name(&self, extension: SchemaExtension) -> &'static str {
        self.server.api_state.names.schema_extension(extension)
    }

    /// A schema with every extension.
    fn schema(&self) -> Value {
        json!({"type": "object", "properties": {
            "spec": {"type": "object",
                self.name(SchemaExtension::Validations): [{"rule": "self.size < 5", "message": "too big"}],
                "properties": {
                    "size": {"type": "integer"},
                    "free": {"type": "object", self.name(SchemaExtension::PreserveUnknownFields): true},
                    "port": {self.name(SchemaExtension::IntOrString): true},
                    "part": {"type": "object", self.name(SchemaExtension::EmbeddedResource): true,
                        self.name(SchemaExtension::PreserveUnknownFields): true},
                    "items": {"type": "array", self.name(SchemaExtension::ListType): "map",
                        self.name(SchemaExtension::ListMapKeys): ["key"],
                        "items": {"type": "object", "required": ["key"],
                            "properties": {"key": {"type": "string"}}}},
                    "map": {"type": "object", self.name(SchemaExtension::MapType): "atomic",
                        "additionalProperties": {"type": "string"}},
                    // A property can have the name of an extension.
                    "x-svc-map-type": {"type": "string"},
                    "x-kubernetes-map-type": {"type": "string"},
                }},
        }})
    }

    fn definition(&self) -> Value {
        let (group, api_version) = ("shop.example.com", self.definitions.split('/').nth(2).unwrap());
        json!({
            "apiVersion": format!("{api_version}/v1"), "kind": "CustomResourceDefinition",
            "metadata": {"name": NAME},
            "spec": {"group": group, "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": self.schema()}}]},
        })
    }

    async fn create(&self) {
        let created = self.server.post(&self.definitions, self.definition()).await;
        assert_eq!(created.code, 201, "{}", created.json());
        assert_eq!(schema_of(&created.json()), self.schema());
    }

    async fn apply(&self, manager: &str, body: &Value) -> super::Reply {
        let url = format!("{}?fieldManager={manager}", self.url);
        let header = [("content-type", "application/apply-patch+yaml")];
        self.server.send("PATCH", &url, &header, body.to_string()).await
    }
}

fn schema_of(definition: &Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[tokio::test]
async fn responses_in_every_format_have_names_of_preset() {
    for fixture in Fixture::start_with_both_presets().await {
        fixture.create().await;
        let (server, url, schema) = (&fixture.server, &fixture.url, fixture.schema());
        let get = |accept: &'static str, url: String| async move {
            server.send("GET", &url, &[("accept", accept)], "").await
        };
        assert_eq!(schema_of(&get(JSON, url.clone()).await.json()), schema);
        let yaml = get("application/yaml", url.clone()).await;
        let yaml = apimachinery::codec::yaml::decode(&yaml.body, server.api_state.body_limits).unwrap();
        assert_eq!(schema_of(&yaml.value), schema);
        let list = get(JSON, fixture.definitions.clone()).await.json();
        assert_eq!(schema_of(&list["items"][0]), schema);
        let meta = server.api_state.names.meta_group();
        let table = format!("application/json;as=Table;v=v1;g={meta}");
        let table_url = format!("{}?includeObject=Object", fixture.definitions);
        let table = server.send("GET", &table_url, &[("accept", &table)], "").await.json();
        assert_eq!(schema_of(&table["rows"][0]["object"]), schema);

        let watch = format!("{}?watch=1&timeoutSeconds=30", fixture.definitions);
        let mut body = server.open("GET", &watch, &[], "".into()).await.into_body();
        let frame = body.frame().await.unwrap().unwrap();
        let line = frame.data_ref().unwrap().split(|byte| *byte == b'\n').next().unwrap();
        let event: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(schema_of(&event["object"]), schema);
    }
}

#[tokio::test]
async fn update_and_patches_accept_names_of_preset() {
    for fixture in Fixture::start_with_both_presets().await {
        fixture.create().await;
        let (server, url) = (&fixture.server, &fixture.url);
        let extension = fixture.name(SchemaExtension::PreserveUnknownFields);
        let mut expected = fixture.schema();
        expected[extension] = json!(true);

        let mut object = server.get(url).await.json();
        object["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = expected.clone();
        // The controller writes the status at the same time.
        let mut replaced = server.get(url).await;
        for _ in 0..100 {
            let current = server.get(url).await.json();
            object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
            replaced = server.put(url, object.clone()).await;
            if replaced.code != 409 {
                break;
            }
        }
        assert_eq!((replaced.code, schema_of(&replaced.json())), (200, expected.clone()));

        let path = format!("/spec/versions/0/schema/openAPIV3Schema/{extension}");
        for operation in ["remove", "add"] {
            let patch = json!([{"op": operation, "path": path, "value": true}]);
            let header = [("content-type", "application/json-patch+json")];
            let patched = server.send("PATCH", url, &header, patch.to_string()).await;
            assert_eq!(patched.code, 200, "{}", patched.json());
        }
        assert_eq!(schema_of(&server.get(url).await.json()), expected);
        for media_type in ["merge-patch", "strategic-merge-patch"] {
            let media_type = format!("application/{media_type}+json");
            for schema in [fixture.schema(), expected.clone()] {
                let versions = json!([{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}]);
                let patch = json!({"spec": {"versions": versions}}).to_string();
                let patched = server.send("PATCH", url, &[("content-type", &media_type)], patch).await;
                assert_eq!((patched.code, schema_of(&patched.json())), (200, schema), "{media_type}");
            }
        }
    }
}

#[tokio::test]
async fn apply_migrates_annotation_with_names_of_preset() {
    for fixture in Fixture::start_with_both_presets().await {
        let annotation =
            fixture.server.api_state.names.label_sub_key("kubectl", "last-applied-configuration");
        let mut created = fixture.definition();
        created["metadata"]["annotations"] = json!({ &annotation: fixture.definition().to_string() });
        let url = format!("{}?fieldManager=kubectl-client-side-apply", fixture.definitions);
        assert_eq!(fixture.server.post(&url, created).await.code, 201);

        let mut changed = fixture.definition();
        let schema = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema[fixture.name(SchemaExtension::PreserveUnknownFields)] = json!(true);
        let schema = schema.clone();
        let applied = fixture.apply("kubectl", &changed).await;
        assert_eq!((applied.code, schema_of(&applied.json())), (200, schema.clone()), "{}", applied.json());
        let recorded = applied.json()["metadata"]["annotations"][&annotation].as_str().unwrap().to_owned();
        assert_eq!(schema_of(&serde_json::from_str(&recorded).unwrap()), schema);

        let same = fixture.apply("other", &changed).await;
        assert_eq!(same.code, 200, "equal values do not conflict: {}", same.json());
    }
}

#[tokio::test]
async fn unknown_extension_is_reported_by_its_own_name() {
    for (preset, foreign) in [(Preset::Svc, "x-kubernetes-map-type"), (Preset::Kubernetes, "x-svc-map-type")]
    {
        let fixture = Fixture::start(preset).await;
        let mut definition = fixture.definition();
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"][foreign] = json!("atomic");
        let url = format!("{}?fieldValidation=Strict", fixture.definitions);
        let rejected = fixture.server.post(&url, definition.clone()).await;
        let message = rejected.json()["message"].as_str().unwrap().to_owned();
        let unknown = format!("unknown field \"spec.versions[0].schema.openAPIV3Schema.{foreign}\"");
        assert_eq!(rejected.code, 400);
        let hint = if preset == Preset::Svc { r#" (use "x-svc-map-type")"# } else { "" };
        assert!(message.ends_with(&format!("{unknown}{hint}")), "{message}");

        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            .as_object_mut()
            .unwrap()
            .remove(foreign);
        let extension = fixture.name(SchemaExtension::MapType);
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"][extension] = json!(1);
        let rejected = fixture.server.post(&fixture.definitions, definition).await;
        let message = rejected.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(rejected.code, 400);
        assert!(message.contains(extension), "{message}");
    }
}

#[tokio::test]
async fn extensions_have_effect_on_objects() {
    for fixture in Fixture::start_with_both_presets().await {
        fixture.create().await;
        let server = &fixture.server;
        let widgets = "/apis/shop.example.com/v1/widgets";
        let widget = |name: &str, spec: Value| {
            json!({"apiVersion": "shop.example.com/v1", "kind": "Widget",
            "metadata": {"name": name}, "spec": spec})
        };
        for _ in 0..1000 {
            if server.get(widgets).await.code == 200 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let spec = json!({"size": 1, "free": {"a": 1}, "port": "http", "map": {"a": "b"},
            "items": [{"key": "a"}], "part": {"apiVersion": "v1", "kind": "A", "metadata": {"name": "a"}}});
        let created = server.post(widgets, widget("a", spec.clone())).await;
        assert_eq!((created.code, created.json()["spec"].clone()), (201, spec), "{}", created.json());
        for (spec, cause) in [
            (json!({"size": 7}), "too big"),
            (json!({"size": 1, "items": [{"key": "a"}, {"key": "a"}]}), "Duplicate value"),
            (json!({"size": 1, "part": {"kind": "A"}}), "spec.part.apiVersion"),
            (json!({"size": 1, "port": true}), "spec.port"),
        ] {
            let rejected = server.post(widgets, widget("b", spec)).await;
            let message = rejected.json()["message"].as_str().unwrap_or_default().to_owned();
            assert_eq!(rejected.code, 422, "{message}");
            assert!(message.contains(cause), "{message}");
        }
        let openapi = server.get("/openapi/v3/apis/shop.example.com/v1").await.json();
        let published = &openapi["components"]["schemas"]["com.example.shop.v1.Widget"]["properties"]["spec"];
        let items = &published["properties"]["items"];
        assert_eq!(items[fixture.name(SchemaExtension::ListType)], "map", "{published}");
    }
}

#[tokio::test]
async fn tolerated_violation_of_rule_is_warning() {
    let fixture = Fixture::start(Preset::Svc).await;
    let validations = fixture.name(SchemaExtension::Validations);
    let mut definition = fixture.definition();
    let spec = |definition: &mut Value, rule: &str| {
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"].as_object_mut().unwrap().remove(validations);
        schema["properties"]["spec"]["properties"]["size"][validations] =
            json!([{"rule": rule, "message": "too big"}]);
        schema["properties"]["spec"].clone()
    };
    spec(&mut definition, "self < 100");
    let server = &fixture.server;
    assert_eq!(server.post(&fixture.definitions, definition.clone()).await.code, 201);
    let widgets = "/apis/shop.example.com/v1/widgets";
    let body = json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": {"size": 7}});
    let mut code = 0;
    for _ in 0..1000 {
        code = server.post(widgets, body.clone()).await.code;
        if code == 201 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(code, 201);
    spec(&mut definition, "self < 5");
    let versions = json!({"spec": {"versions": definition["spec"]["versions"]}});
    assert_eq!(server.merge(&fixture.url, versions).await.code, 200);
    let mut warning = String::new();
    for i in 0..1000 {
        let patch = json!({"metadata": {"labels": {"i": i.to_string()}}});
        let patched = server.merge(&format!("{widgets}/a"), patch).await;
        assert!(matches!(patched.code, 200 | 404 | 503), "{}", patched.json());
        warning = patched.header("warning").to_owned();
        if !warning.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(warning.contains("spec.size") && warning.contains("too big"), "{warning}");
    assert_eq!(server.merge(&format!("{widgets}/a"), json!({"spec": {"size": 8}})).await.code, 422);
}

#[tokio::test]
async fn document_of_definition_kind_has_names_of_preset() {
    for fixture in Fixture::start_with_both_presets().await {
        let group = fixture.server.api_state.names.group("apiextensions");
        let document = fixture.server.get(&format!("/openapi/v3/apis/{group}/v1")).await.json();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let (_, schema) = schemas.iter().find(|(name, _)| name.ends_with(".JSONSchemaProps")).unwrap();
        let properties = schema["properties"].as_object().unwrap();
        let mut names: Vec<&str> =
            properties.keys().map(String::as_str).filter(|name| name.starts_with("x-")).collect();
        let mut expected = SchemaExtension::ALL.map(|extension| fixture.name(extension));
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
}
