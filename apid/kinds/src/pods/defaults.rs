//! Defaults of a pod's spec.
//!
//! # Contract
//!
//! [`pod`] sets the defaults of a pod, [`template`] those of a pod template. Templates do not get defaults
//! that only a running pod needs: service links, requests that follow from limits, and host ports.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::disabled;
use crate::defaults::{Fields, fill, fill_text, map_at, map_or_insert, maps_in_list, part};
use crate::volume_sources;

/// Default file mode: the owner reads and writes, all others read.
const FILE_MODE: i64 = 0o644;

/// Sub-domains of the annotations that old clients wrote for init containers, and the names of the annotations.
/// kube-apiserver drops these annotations.
const INIT_CONTAINER_SUB_DOMAINS: [&str; 2] = ["pod.beta", "pod.alpha"];
const INIT_CONTAINER_ANNOTATIONS: [&str; 2] = ["init-containers", "init-container-statuses"];

/// Sets the defaults of a pod.
pub(crate) fn pod(object: &mut Object, names: &Names) {
    drop_annotations(part(object, "metadata"), names);
    let Some(spec) = part(object, "spec") else { return };
    disabled::remove_from_spec(spec);
    fill(spec, "enableServiceLinks", true);
    let on_host = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["containers", "initContainers"] {
        for container in maps_in_list(spec, list) {
            if on_host {
                default_host_ports(container);
            }
            default_requests(container);
        }
    }
    default_spec(spec);
}

/// Sets the defaults of the pod template at a path, such as `spec.template`.
pub(crate) fn template(object: &mut Object, path: &str, names: &Names) {
    drop_annotations(part(object, &format!("{path}.metadata")), names);
    if let Some(spec) = part(object, &format!("{path}.spec")) {
        disabled::remove_from_spec(spec);
        default_spec(spec);
    }
}

/// Removes the annotations about init containers.
fn drop_annotations(metadata: Option<&mut Fields>, names: &Names) {
    let Some(metadata) = metadata else { return };
    let Some(annotations) = map_at(metadata, "annotations") else { return };
    for sub_domain in INIT_CONTAINER_SUB_DOMAINS {
        for name in INIT_CONTAINER_ANNOTATIONS {
            annotations.remove(&names.label_sub_key(sub_domain, name));
        }
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Sets the defaults that pods and templates share.
fn default_spec(spec: &mut Fields) {
    fill_text(spec, "dnsPolicy", "ClusterFirst");
    fill_text(spec, "restartPolicy", "Always");
    fill_text(spec, "schedulerName", "default-scheduler");
    fill(spec, "securityContext", json!({}));
    fill(spec, "terminationGracePeriodSeconds", 30);
    default_service_account(spec);
    for volume in maps_in_list(spec, "volumes") {
        default_volume(volume);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in maps_in_list(spec, list) {
            default_container(container);
        }
    }
}

/// Sets `serviceAccountName` and its deprecated alias `serviceAccount` to the same value; the former wins.
fn default_service_account(spec: &mut Fields) {
    let named =
        |field: &str| spec.get(field).filter(|name| !matches!(name.as_str(), None | Some(""))).cloned();
    if let Some(name) = named("serviceAccountName").or_else(|| named("serviceAccount")) {
        spec.insert("serviceAccountName".to_owned(), name.clone());
        spec.insert("serviceAccount".to_owned(), name);
    }
}

/// Sets each missing host port of a container in the host network to its container port.
fn default_host_ports(container: &mut Fields) {
    for port in maps_in_list(container, "ports") {
        if let Some(number) = port.get("containerPort").cloned() {
            fill(port, "hostPort", number);
        }
    }
}

/// Sets each missing resource request to the limit of this resource.
fn default_requests(container: &mut Fields) {
    let Some(resources) = map_at(container, "resources") else { return };
    let Some(Value::Object(limits)) = resources.get("limits") else { return };
    let requested =
        |resource: &str| resources.get("requests")?.get(resource).filter(|amount| !amount.is_null());
    let missing = limits.iter().filter(|(resource, _)| requested(resource).is_none());
    let missing: Vec<_> = missing.map(|(resource, amount)| (resource.clone(), amount.clone())).collect();
    if !missing.is_empty()
        && let Some(requests) = map_or_insert(resources, "requests")
    {
        requests.extend(missing);
    }
}

fn default_container(container: &mut Fields) {
    let newest = container.get("image").and_then(Value::as_str).is_some_and(has_latest_tag);
    fill_text(container, "imagePullPolicy", if newest { "Always" } else { "IfNotPresent" });
    fill_text(container, "terminationMessagePath", "/dev/termination-log");
    fill_text(container, "terminationMessagePolicy", "File");
    for port in maps_in_list(container, "ports") {
        fill_text(port, "protocol", "TCP");
    }
    for variable in maps_in_list(container, "env") {
        if let Some(source) = map_at(variable, "valueFrom") {
            default_field_version(source);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = map_at(container, name) {
            fill(probe, "timeoutSeconds", 1);
            fill(probe, "periodSeconds", 10);
            fill(probe, "successThreshold", 1);
            fill(probe, "failureThreshold", 3);
            default_http_request(probe);
            if let Some(call) = map_at(probe, "grpc") {
                fill(call, "service", "");
            }
        }
    }
    if let Some(lifecycle) = map_at(container, "lifecycle") {
        for name in ["postStart", "preStop"] {
            if let Some(handler) = map_at(lifecycle, name) {
                default_http_request(handler);
            }
        }
    }
}

/// Sets the defaults of the HTTP request of a probe or a handler.
fn default_http_request(handler: &mut Fields) {
    if let Some(get) = map_at(handler, "httpGet") {
        fill_text(get, "path", "/");
        fill_text(get, "scheme", "HTTP");
    }
}

/// Sets the default API version of a pod field reference.
fn default_field_version(source: &mut Fields) {
    if let Some(field) = map_at(source, "fieldRef") {
        fill_text(field, "apiVersion", "v1");
    }
}

/// Whether an image has the tag `latest`, or neither tag nor digest.
fn has_latest_tag(image: &str) -> bool {
    let (named, digest) =
        image.split_once('@').map_or((image, None), |(named, digest)| (named, Some(digest)));
    let (path, name) = named.rsplit_once('/').map_or(("", named), |(path, name)| (path, name));
    let (name, tag) = name.split_once(':').map_or((name, None), |(name, tag)| (name, Some(tag)));
    // An invalid image reference has no known tag.
    let is_part = |part: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        part.bytes().all(|b| plain(b) || matches!(b, b'.' | b'_' | b'-'))
            && part.bytes().next().is_some_and(plain)
            && part.bytes().next_back().is_some_and(plain)
    };
    let parts_after_host =
        path.split('/').skip(usize::from(path.contains(['.', ':']) || path.starts_with("localhost")));
    let mut parts = parts_after_host.filter(|part| !path.is_empty() || !part.is_empty());
    is_part(name)
        && parts.all(is_part)
        && match (tag, digest) {
            (Some(tag), _) => tag == "latest",
            (None, digest) => digest.is_none(),
        }
}

fn default_volume(volume: &mut Fields) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for (source, fields) in volume.iter_mut() {
        let Value::Object(fields) = fields else { continue };
        match source.as_str() {
            "secret" | "configMap" => fill(fields, "defaultMode", FILE_MODE),
            "downwardAPI" => {
                fill(fields, "defaultMode", FILE_MODE);
                maps_in_list(fields, "items").for_each(default_field_version);
            }
            "projected" => {
                fill(fields, "defaultMode", FILE_MODE);
                maps_in_list(fields, "sources").for_each(default_projection);
            }
            "ephemeral" => {
                let template = map_at(fields, "volumeClaimTemplate");
                if let Some(claim) = template.and_then(|template| map_at(template, "spec")) {
                    fill(claim, "volumeMode", "Filesystem");
                }
            }
            _ => {}
        }
    }
    volume_sources::fill_defaults(volume);
}

/// Sets the defaults of a source of a projected volume.
fn default_projection(source: &mut Fields) {
    if let Some(token) = map_at(source, "serviceAccountToken") {
        fill(token, "expirationSeconds", 3600);
    }
    if let Some(fields) = map_at(source, "downwardAPI") {
        maps_in_list(fields, "items").for_each(default_field_version);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    fn spec_after(spec: Value, rule: impl Fn(&mut Object, &Names)) -> Value {
        let mut object = Object::from_value(json!({"spec": spec})).unwrap();
        rule(&mut object, &names());
        object.remove("spec").unwrap()
    }

    #[test]
    fn untagged_and_latest_images_default_to_pull_always() {
        for (image, newest) in [
            ("app", true),
            ("app:latest", true),
            ("app:1", false),
            ("registry.example:5000/team/app", true),
            ("registry.example:5000/team/app:2", false),
            ("localhost/app", true),
            ("app@sha256:0123", false),
            ("app:latest@sha256:0123", true),
            ("team/app:v1.2-3", false),
            ("App", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(has_latest_tag(image), newest, "{image}");
        }
    }

    #[test]
    fn pod_gets_defaults_that_template_lacks() {
        let spec = json!({"hostNetwork": true, "containers": [{"name": "a", "image": "a:1",
            "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}}}]});
        let alone = spec_after(spec.clone(), pod);
        assert_eq!(alone["enableServiceLinks"], true);
        assert_eq!(
            alone["containers"][0]["ports"],
            json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}])
        );
        assert_eq!(alone["containers"][0]["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
        let inside = spec_after(json!({"template": {"spec": spec}}), |object, names| {
            template(object, "spec.template", names)
        });
        let inside = &inside["template"]["spec"];
        assert_eq!(inside.get("enableServiceLinks"), None);
        assert_eq!(inside["containers"][0]["ports"], json!([{"containerPort": 80, "protocol": "TCP"}]));
        assert_eq!(inside["containers"][0]["resources"]["requests"], json!({"memory": "1Gi"}));
        assert_eq!((&inside["restartPolicy"], &inside["securityContext"]), (&json!("Always"), &json!({})));
        let twice = spec_after(alone.clone(), pod);
        assert_eq!(twice, alone, "defaults of defaults are none");
    }

    #[test]
    fn annotations_of_init_containers_are_dropped() {
        let annotations = |rest: Value| {
            let mut annotations = json!({
                "pod.alpha.kubernetes.io/init-containers": "x",
                "pod.beta.kubernetes.io/init-container-statuses": "y",
            });
            annotations.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            json!({"annotations": annotations})
        };
        let mut alone = Object::from_value(json!({"metadata": annotations(json!({})), "spec": {}})).unwrap();
        pod(&mut alone, &names());
        assert_eq!(alone.get("metadata"), Some(&json!({})));
        let inside = json!({"template": {"metadata": annotations(json!({"a": "b"})), "spec": {}}});
        let inside = spec_after(inside, |object, names| template(object, "spec.template", names));
        assert_eq!(inside["template"]["metadata"], json!({"annotations": {"a": "b"}}));
    }

    #[test]
    fn pod_spec_parts_get_defaults() {
        let spec = spec_after(
            json!({
                "serviceAccount": "robot", "terminationGracePeriodSeconds": 0,
                "initContainers": [{"name": "i", "image": "i"}],
                "containers": [{"name": "a", "image": "a:1",
                    "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 5},
                    "startupProbe": {"grpc": {"port": 9, "service": null}},
                    "lifecycle": {"preStop": {"httpGet": {"port": 80, "scheme": "HTTPS"}}}}],
                "volumes": [{"name": "e"}, {"name": "s", "secret": {"secretName": "s"}}, {"name": "h", "hostPath": {"path": "/"}},
                    {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}], "defaultMode": 256}}],
            }),
            pod,
        );
        assert_eq!(
            (&spec["serviceAccountName"], &spec["terminationGracePeriodSeconds"]),
            (&json!("robot"), &json!(0))
        );
        let main = &spec["containers"][0];
        assert_eq!(main["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            main["livenessProbe"],
            json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "periodSeconds": 5, "timeoutSeconds": 1,
                "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(main["startupProbe"]["grpc"]["service"], "");
        assert_eq!(
            main["lifecycle"]["preStop"]["httpGet"],
            json!({"path": "/", "port": 80, "scheme": "HTTPS"})
        );
        assert_eq!(spec["initContainers"][0]["imagePullPolicy"], "Always");
        assert_eq!(
            spec["volumes"],
            json!([{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "defaultMode": 420}},
                {"name": "h", "hostPath": {"path": "/", "type": ""}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}],
                    "defaultMode": 256}}])
        );
    }
}
