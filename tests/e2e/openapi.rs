//! OpenAPI endpoints: HTTP caching, content negotiation, and use by three kubectl releases.
//!
//! The kubectl test skips each release that is not installed, and prints a line about the skip.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

use crate::e2e::kubectl::{Kubectl, RELEASES, installed};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Sends a GET; returns the status and one response header.
async fn get_with_header(
    client: &Client,
    path: &str,
    headers: &[(&str, &str)],
    header: &str,
) -> (u16, String) {
    let answer = client.request("GET", path, headers, b"").await;
    (answer.status, answer.header(header).to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_documents_are_cacheable_by_hash_and_etag() {
    let plane = ControlPlane::start(Options::default()).await;
    let client = plane.user("alice");
    let index = client.get("/openapi/v3").await;
    let paths = index.json()["paths"].as_object().expect("paths").clone();
    assert!(paths.contains_key("api/v1"), "{paths:?}");
    let apps = plane.api("apps", "v1");
    assert!(paths.contains_key(apps.trim_start_matches('/')), "{paths:?}");
    for entry in paths.values() {
        let url = entry["serverRelativeURL"].as_str().expect("a URL");
        let (path, hash) = url.split_once("?hash=").expect("a hash");
        let document = client.get(url).await;
        assert_eq!(document.expect(200)["openapi"], "3.0.0", "{url}");
        assert_eq!(document.header("cache-control"), "public, immutable");
        assert!(document.header("expires").ends_with("GMT"), "{}", document.header("expires"));
        let etag = document.header("etag").to_owned();
        assert_eq!(etag, format!("\"{hash}\""));
        let known = get_with_header(&client, path, &[("if-none-match", &etag)], "etag").await;
        assert_eq!(known, (304, etag.clone()));
        let other = get_with_header(&client, &format!("{path}?hash=00"), &[], "location").await;
        assert_eq!(other, (301, url.to_owned()));
        assert_eq!(
            get_with_header(&client, path, &[], "cache-control").await,
            (200, "no-cache, private".to_owned())
        );
    }
    let known = index.header("etag").to_owned();
    assert_eq!(
        get_with_header(&client, "/openapi/v3", &[("if-none-match", &known)], "etag").await,
        (304, known)
    );

    for (path, headers, status, media_type) in [
        ("/openapi/v2", &[][..], 200, "application/json"),
        ("/openapi/v2", &[("accept", "*/*")], 200, "application/json"),
        (
            "/openapi/v2",
            &[("accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")],
            200,
            PROTOBUF,
        ),
        ("/openapi/v2", &[("accept", "text/html;q=0.9,application/json;q=0.5")], 200, "application/json"),
        ("/openapi/v2", &[("accept", "text/html")], 406, "application/json"),
        ("/openapi/v3/api/v1", &[("accept", "text/html")], 406, "application/json"),
        ("/openapi/v3/api/v7", &[], 404, ""),
        ("/openapi/v4", &[], 404, "text/plain; charset=utf-8"),
    ] {
        assert_eq!(
            get_with_header(&client, path, headers, "content-type").await,
            (status, media_type.to_owned()),
            "{path} {headers:?}"
        );
    }
    let compressed =
        get_with_header(&client, "/openapi/v2", &[("accept-encoding", "gzip")], "content-encoding").await;
    assert_eq!(compressed, (200, "gzip".to_owned()));
    assert_eq!(
        client.post("/openapi/v2", &json!({})).await.status,
        403,
        "the default policy grants only reads"
    );
    assert_eq!(plane.admin().post("/openapi/v2", &json!({})).await.status, 405);
}

/// Resources, each with a field that `kubectl explain --recursive` prints.
const EXPLAINED: [(&str, &str); 12] = [
    ("pods", "terminationGracePeriodSeconds"),
    ("configmaps", "binaryData"),
    ("services", "clusterIP"),
    ("nodes", "podCIDR"),
    ("namespaces", "finalizers"),
    ("deployments", "maxSurge"),
    ("statefulsets", "volumeClaimTemplates"),
    ("jobs", "backoffLimit"),
    ("cronjobs.spec.jobTemplate", "parallelism"),
    ("ingresses", "ingressClassName"),
    ("roles", "resourceNames"),
    ("customresourcedefinitions", "additionalPrinterColumns"),
];

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "a", "image": "a:1", "ports": [{"containerPort": 80}]}]},
            },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_validates_and_explains_with_openapi() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    for release in RELEASES {
        let Some(program) = installed(release) else {
            continue;
        };
        let kubectl = Kubectl::new(program, release, &plane, "admin");
        for (path, field) in EXPLAINED {
            let text = kubectl.ok(&format!("explain --recursive {path}"), "");
            assert!(
                text.lines().any(|line| line.split_whitespace().next() == Some(field)),
                "{release} explains {path}:\n{text}"
            );
        }
        kubectl.ok(&format!("explain {}", "deployments.spec.template.spec.containers.env"), "");
        assert!(kubectl.must_fail("explain pods.spec.nothing").contains("does not exist"));

        let name = format!("web-{}", release.replace('.', "-"));
        kubectl.ok(&format!("create configmap {name} -n default --from-literal=a=b"), "");
        kubectl.ok("create -n default -f -", &deployment(&name).to_string());
        kubectl.ok("apply -n default -f -", &deployment(&format!("{name}-applied")).to_string());

        // The server validates fields of kinds that support it; kubectl validates the others.
        let mut wrong = deployment(&format!("{name}-wrong"));
        wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "a:1".into();
        let message = kubectl.must_fail_with_stdin("create -n default -f -", &wrong.to_string());
        assert!(message.contains("unknown field") && message.contains("imagee"), "{release}: {message}");
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verbo": "get"}},
        });
        let message = kubectl.must_fail_with_stdin("create -f -", &review.to_string());
        assert!(
            message.contains("error validating data") && message.contains("verbo"),
            "{release}: {message}"
        );
    }
}
