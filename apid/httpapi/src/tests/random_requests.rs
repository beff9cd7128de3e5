//! Random requests: apid must not panic or hang, and must return a valid Status.

use apimachinery::clock::{Rng as _, SeededRng};
use http_body_util::BodyExt as _;

use super::{MAPS, Server, map};

/// Picks from lists with a seeded generator.
struct RandomPicker(SeededRng);

impl RandomPicker {
    fn below(&self, n: usize) -> usize {
        usize::try_from(self.0.bits() % n as u128).unwrap()
    }

    fn pick<'a>(&self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    /// Picks an item, and sometimes truncates it or changes a byte.
    fn pick_mutated(&self, list: &[&str]) -> Vec<u8> {
        let mut bytes = self.pick(list).as_bytes().to_vec();
        match self.below(6) {
            0 => bytes.truncate(self.below(bytes.len() + 1)),
            1 if !bytes.is_empty() => {
                let at = self.below(bytes.len());
                bytes[at] = u8::try_from(self.below(256)).unwrap();
            }
            2 => bytes.extend_from_within(..self.below(bytes.len() + 1)),
            _ => {}
        }
        bytes
    }
}

const METHODS: &[&str] = &["GET", "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"];

const PATHS: &[&str] = &[
    MAPS,
    "/api/v1/namespaces/a/configmaps/one",
    "/api/v1/namespaces/a/secrets/x",
    "/api/v1/namespaces/a",
    "/api/v1/namespaces/a/finalize",
    "/api/v1/namespaces/a/status",
    "/api/v1/watch/namespaces/a/configmaps",
    "/apis/rbac.authorization.example.test/v1/clusterroles/x",
    "/apis/rbac.authorization.example.test/v1/namespaces/a/rolebindings",
    "/apis/coordination.example.test/v1/namespaces/a/leases/l",
    "/apis/authorization.example.test/v1/selfsubjectaccessreviews",
    "/api/v1/namespaces/%2e%2e/configmaps/%00",
    "/api/v1/namespaces/a/configmaps/%C3%A9%20%25",
    "/apis",
    "/livez/ping",
    "//api//v1",
];

const QUERIES: &[&str] = &[
    "",
    "limit=1",
    "limit=-1&continue=AAAA",
    "continue=AQAAAAAAAAAAAAAAAAAAAAAAYQ",
    "resourceVersion=18446744073709551615&resourceVersionMatch=Exact",
    "resourceVersion=1&limit=2",
    "labelSelector=a+in+(b,c),!d,e%3E5",
    "labelSelector=((((",
    "fieldSelector=metadata.name%3Done%2Cmetadata.namespace!%3Da",
    "watch=1&timeoutSeconds=1&allowWatchBookmarks=true",
    "watch=1&resourceVersion=999999",
    "dryRun=All&fieldValidation=Strict&pretty",
    "dryRun=%ff&fieldManager=%00",
    "gracePeriodSeconds=0&propagationPolicy=Foreground&orphanDependents",
    "includeObject=Object",
];

const TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/vnd.svc.protobuf",
    "text/plain",
    "",
];

const ACCEPTS: &[&str] = &[
    "*/*",
    "application/yaml",
    "application/json;as=Table;v=v1;g=meta.example.test",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.example.test",
    ";;;,,q=1;q=,*/*;q=nan",
];

const BODIES: &[&str] = &[
    "",
    "null",
    "[]",
    "{}",
    r#"{"metadata":{"name":"one","finalizers":["a.b/c"],"labels":{"a":null},"ownerReferences":[{}]},"data":{"k":"v"}}"#,
    r#"{"metadata":{"name":"x","generateName":"x-","creationTimestamp":"never","deletionTimestamp":"2020-01-01T00:00:00Z"}}"#,
    r#"{"kind":"DeleteOptions","preconditions":{"uid":"x","resourceVersion":"y"},"dryRun":["All"]}"#,
    r#"[{"op":"add","path":"/data/x","value":{}},{"op":"remove","path":"/metadata"}]"#,
    r#"[{"op":"replace","path":"","value":3}]"#,
    r#"{"metadata":null,"data":null,"spec":null,"rules":null,"roleRef":null,"subjects":null}"#,
    r#"{"metadata":{"name":"l","resourceVersion":"-5"},"spec":{"renewTime":"x","leaseDurationSeconds":1e99}}"#,
    "a: &x [*x, *x]\nb: !!binary z\n? c\n: d\n",
    "k8s\0\u{a}\u{4}\u{a}\u{2}v1\u{12}\u{5}\u{a}\u{3}\u{a}\u{1}x",
];

#[tokio::test]
async fn random_requests_return_valid_status_without_panic() {
    let seed = 20_251;
    println!("seed {seed}");
    let random = RandomPicker(SeededRng::new(seed));
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    for turn in 0..4000 {
        let path = random.pick(PATHS);
        let query = random
            .pick_mutated(QUERIES)
            .into_iter()
            .filter(|b| (0x21..0x7f).contains(b) && *b != b'#')
            .map(char::from);
        let url = format!("{path}?{}", query.collect::<String>());
        let Ok(uri) = url.parse::<http::Uri>() else { continue };
        // A request for a future revision waits several seconds.
        if uri.query().is_some_and(|q| q.contains("999") || q.contains("8446"))
            && !url.contains("watch=1")
            && turn % 500 != 0
        {
            continue;
        }
        let (method, kind, accept) = (random.pick(METHODS), random.pick(TYPES), random.pick(ACCEPTS));
        let body = random.pick_mutated(BODIES);
        let shown =
            format!("turn {turn}: {method} {url} {kind} {accept} {:?}", String::from_utf8_lossy(&body));
        let response =
            server.open(method, &url, &[("content-type", kind), ("accept", accept)], body.into()).await;
        let code = response.status().as_u16();
        let text = if url.contains("watch=1") || url.contains("/watch/") {
            // Other tests cover the events of a stream.
            response.into_body().as_whole().cloned().unwrap_or_default()
        } else {
            response.into_body().collect().await.unwrap().to_bytes()
        };
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains("the request handler failed"), "request handler panicked: {shown}");
        // Kubernetes, too, returns 500 for these two errors.
        let known = text.contains("resourceVersion");
        assert!(code < 500 || code == 504 || known, "{code} {text} at {shown}");
        assert!(
            code < 400 || method == "HEAD" || text.contains("Status") || text.starts_with("404"),
            "{code} {text} at {shown}"
        );
    }
    assert_eq!(server.get(MAPS).await.code, 200);
}
