//! Recorded exchanges of a reference server with an extension API server: what the client gets, and what arrives there.

use std::collections::BTreeMap;

use backends::apiserver::{ApiServerOptions, SeenRequest};
use serde_json::Value;
use tests::harness::{Client, Options};

use super::{Aggregator, certificate};

/// Exchanges that are compared, by name.
const COMPARED: [&str; 33] = [
    "plain get",
    "query",
    "user with groups",
    "not authorized",
    "anonymous on discovery",
    "anonymous on an object",
    "client sends identity headers",
    "client sends forwarded headers",
    "client sends hop-by-hop headers",
    "client sends other headers",
    "no accept-encoding",
    "client chooses the audit id",
    "trace context",
    "impersonated user",
    "access token in the query",
    "post json",
    "put",
    "patch",
    "delete without body",
    "delete with body",
    "options",
    "deeper path",
    "backend answers 201",
    "backend answers 400",
    "backend answers 404",
    "backend answers 418",
    "backend answers 429",
    "backend answers 500",
    "backend answers 503",
    "redirect of the backend",
    "full redirect of the backend",
    "discovery",
    "unknown version",
];

/// Headers of a forwarded request that depend on the run or on the HTTP client of the server, and the header against
/// loops, which kube-apiserver does not send.
const IGNORED: [&str; 7] = [
    "host",
    "x-forwarded-host",
    "accept-encoding",
    "content-length",
    "transfer-encoding",
    "traceparent",
    "apid-forwarded-by",
];

/// Headers of a response that are compared.
const ANSWERED: [&str; 5] = ["content-type", "cache-control", "set-cookie", "x-backend", "warning"];

type Headers = BTreeMap<String, Vec<String>>;

/// Collects headers by name in lower case.
fn collect<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Headers {
    let mut collected = Headers::new();
    for (name, value) in headers {
        collected.entry(name.to_lowercase()).or_default().push(value.to_owned());
    }
    collected
}

fn recorded(value: &Value) -> Vec<(&str, &str)> {
    let pairs = value.as_array().into_iter().flatten();
    pairs.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap())).collect()
}

fn seen(request: &SeenRequest) -> Headers {
    let mut headers = collect(request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    headers.retain(|name, _| !IGNORED.contains(&name.as_str()));
    headers
}

fn client<'a>(
    aggregator: &Aggregator,
    user: &Value,
    clients: &'a mut BTreeMap<String, Client>,
) -> &'a Client {
    let name = user.as_str().unwrap_or_default().to_owned();
    clients.entry(name.clone()).or_insert_with(|| match name.as_str() {
        "" => aggregator.plane.anonymous(),
        name => aggregator.plane.user(name),
    })
}

#[tokio::test]
async fn exchanges_are_those_of_the_reference() {
    let Some(folder) = prerequisites::aggregation() else { return };
    let aggregator = Aggregator::start(Options::kubernetes()).await;
    let certificate = certificate();
    let server = aggregator.server(&certificate, ApiServerOptions::default()).await;
    aggregator.register("echo.example.com", "v1", &server, &certificate.ca).await;
    aggregator.wait_for_reason("v1.echo.example.com", "Passed").await;
    let rules = serde_json::json!([{"apiGroups": ["echo.example.com"], "resources": ["*"], "verbs": ["*"]}]);
    aggregator.plane.grant("", "echo", "User/bob", &rules).await;

    let text = std::fs::read_to_string(folder.join("headers.jsonl")).unwrap();
    let mut clients = BTreeMap::new();
    let mut compared = Vec::new();
    let mut differences = Vec::new();
    for line in text.lines() {
        let exchange: Value = serde_json::from_str(line).unwrap();
        let name = exchange["name"].as_str().unwrap().to_owned();
        let (request, answer) = (&exchange["request"], &exchange["answer"]);
        let mut headers = recorded(&request["headers"]);
        // The reference rejects a foreign `Host`; the recording has the exchange without it too.
        if !COMPARED.contains(&name.as_str()) || headers.iter().any(|(name, _)| *name == "Host") {
            continue;
        }
        compared.push(name.clone());
        headers.push(("user-agent", "script/1.0"));
        server.take_seen();
        let client = client(&aggregator, &request["as"], &mut clients);
        let body = request["body"].as_str().unwrap_or_default();
        let (method, path) = (request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
        let answered = client.request(method, path, &headers, body.as_bytes()).await;
        let mut differ = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                differences.push(format!("{name}: {what}: {ours}, recorded {theirs}"));
            }
        };
        differ("status", answered.status.to_string(), answer["status"].to_string());
        let headers = answered.headers.iter();
        let headers = collect(headers.map(|(name, value)| (name.as_str(), value.to_str().unwrap())));
        let theirs = collect(recorded(&answer["headers"]));
        for header in ANSWERED {
            differ(header, format!("{:?}", headers.get(header)), format!("{:?}", theirs.get(header)));
        }
        // Checks and documents are requests of apid itself.
        let own = |request: &SeenRequest| {
            request.header("x-remote-user").iter().any(|user| user.contains("aggregator"))
        };
        let requests: Vec<SeenRequest> = server.take_seen().into_iter().filter(|seen| !own(seen)).collect();
        let expected: Vec<&Value> = exchange["backendSaw"].as_array().unwrap().iter().collect();
        differ("number of requests", requests.len().to_string(), expected.len().to_string());
        for (ours, theirs) in requests.iter().zip(expected) {
            let target = |path: &str, query: &str| format!("{path}?{query}");
            let text = |field: &str| theirs[field].as_str().unwrap_or_default();
            differ("target", target(&ours.path, &ours.query), target(text("path"), text("query")));
            differ("method", ours.method.clone(), text("method").to_owned());
            differ("body", ours.body.clone(), text("body").to_owned());
            let mut expected = collect(recorded(&theirs["headers"]));
            expected.retain(|name, _| !IGNORED.contains(&name.as_str()));
            let mut ours = seen(ours);
            if expected.get("audit-id").is_some_and(|id| id == &["<uid>"]) {
                expected.insert("audit-id".to_owned(), ours.get("audit-id").cloned().unwrap_or_default());
            }
            // HTTP/1.1 clients send no empty length.
            ours.remove("content-length");
            differ("headers", format!("{ours:?}"), format!("{expected:?}"));
        }
    }
    assert_eq!(differences, Vec::<String>::new());
    let missing: Vec<&&str> =
        COMPARED.iter().filter(|name| !compared.iter().any(|known| known == **name)).collect();
    assert!(missing.is_empty(), "not in the recording: {missing:?}");
}
