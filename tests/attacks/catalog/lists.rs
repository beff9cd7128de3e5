//! Attacks with lists of the large collection in every representation, with selectors, and with
//! deletecollection.

use super::{Attack, join_numbered};
use crate::attack::AttackMethod::Flood;
use crate::attack::AttackUser::{Privileged, Unprivileged};
use crate::client::Prepared;
use crate::dataset::{collection, large_object};

const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const TABLE_PROTOBUF: &str = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
const METADATA_PROTOBUF: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Representations of lists: name, and media type in `Accept`.
pub const REPRESENTATIONS: [(&str, &str); 8] = [
    ("JSON", "application/json"),
    ("Table", TABLE),
    ("PartialObjectMetadata", METADATA),
    ("Protobuf", PROTOBUF),
    ("Table, Protobuf", TABLE_PROTOBUF),
    ("PartialObjectMetadata, Protobuf", METADATA_PROTOBUF),
    ("YAML", "application/yaml"),
    ("CBOR", "application/cbor"),
];

fn list(accept: &str) -> Prepared {
    Prepared::get_as(collection(), accept)
}

fn query(query: &str) -> Vec<Prepared> {
    vec![Prepared::get(format!("{}?{query}", collection()))]
}

pub fn attacks() -> Vec<Attack> {
    let mut attacks = representations();
    attacks.extend(selectors());
    attacks
}

fn representations() -> Vec<Attack> {
    let single =
        |name, short, request: fn() -> Prepared| Attack::new(name, Flood(2), short, move || vec![request()]);
    vec![
        single("list as JSON", None, || list("application/json")),
        single("list as JSON, gzip", None, || list("application/json").header("accept-encoding", "gzip")),
        single("list as JSON, pretty", None, || Prepared::get(format!("{}?pretty=true", collection()))),
        single("list as Table", Some(Privileged), || list(TABLE)),
        single("list as Table, gzip", None, || list(TABLE).header("accept-encoding", "gzip")),
        single("list as Table, whole objects", None, || {
            Prepared::get_as(format!("{}?includeObject=Object", collection()), TABLE)
        }),
        single("list as PartialObjectMetadata", Some(Privileged), || list(METADATA)),
        single("list as Protobuf", Some(Privileged), || list(PROTOBUF)),
        single("list as Table, Protobuf", None, || list(TABLE_PROTOBUF)),
        single("list as PartialObjectMetadata, Protobuf", None, || list(METADATA_PROTOBUF)),
        single("list as YAML", Some(Privileged), || list("application/yaml")),
        single("list as YAML, gzip", None, || list("application/yaml").header("accept-encoding", "gzip")),
        single("list as CBOR", None, || list("application/cbor")),
        single("list of all namespaces as Table", None, || Prepared::get_as("/api/v1/configmaps", TABLE)),
        single("list by pages of 500 as Table", None, || {
            Prepared::get_as(format!("{}?limit=500", collection()), TABLE)
        }),
        single("list, 20 on each connection, as Table", None, || list(TABLE)).with_method(Flood(20)),
        single("large object as YAML", None, || Prepared::get_as(large_object(), "application/yaml")),
        single("large object as Protobuf, gzip", None, || {
            Prepared::get_as(large_object(), PROTOBUF).header("accept-encoding", "gzip")
        }),
        single("OpenAPI v2 as JSON", Some(Unprivileged), || Prepared::get("/openapi/v2")),
        single("OpenAPI v2, gzip", None, || Prepared::get("/openapi/v2").header("accept-encoding", "gzip")),
        Attack::new("discovery in many representations", Flood(8), None, || {
            let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            ["/apis", "/api", "/openapi/v3", "/apis/apps/v1", "/api/v1", "/version"]
                .iter()
                .flat_map(|path| [Prepared::get(*path), Prepared::get_as(*path, aggregated)])
                .collect()
        }),
    ]
}

fn selectors() -> Vec<Attack> {
    let values = |count| join_numbered("labelSelector=number+in+(", |n| n.to_string(), count, ")");
    vec![
        Attack::new("list by a label in 10,000 values", Flood(2), Some(Privileged), move || {
            query(&values(10_000))
        }),
        Attack::new("list by 9,000 label requirements", Flood(2), None, || {
            query(&join_numbered("labelSelector=", |n| format!("!k{n}"), 9_000, ""))
        }),
        Attack::new("list by 3,000 field requirements", Flood(2), None, || {
            query(&join_numbered("fieldSelector=", |n| format!("metadata.name!=x{n}"), 3_000, ""))
        }),
        Attack::new("list by 3,000 invalid field requirements", Flood(8), None, || {
            query(&join_numbered("fieldSelector=", |n| format!("metadata.x{n}=x"), 3_000, ""))
        }),
        Attack::new("list by a label selector of 60,000 parentheses", Flood(8), Some(Unprivileged), || {
            query(&format!("labelSelector={}", "(".repeat(60_000)))
        }),
        Attack::new("list by 20,000 query parameters", Flood(8), None, || query(&"a&".repeat(20_000))),
        Attack::new("list at a continue token of 60 kB", Flood(8), None, || {
            query(&format!("continue={}", "A".repeat(60_000)))
        }),
        Attack::new("deletecollection, dry run", Flood(1), Some(Privileged), || {
            vec![Prepared { method: "DELETE", ..Prepared::get(format!("{}?dryRun=All", collection())) }]
        }),
        Attack::new("deletecollection by a label in 9,000 values", Flood(1), None, move || {
            // No object has this label value.
            let selector = join_numbered("labelSelector=number+in+(", |n| format!("x{n}"), 9_000, ")");
            vec![Prepared { method: "DELETE", ..Prepared::get(format!("{}?{selector}", collection())) }]
        }),
    ]
}

impl Attack {
    fn with_method(mut self, method: crate::attack::AttackMethod) -> Attack {
        self.method = method;
        self
    }
}
