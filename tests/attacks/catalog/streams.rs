//! Attacks with unread streams, watches, many requests at once, resets and handshakes.

use super::Attack;
use super::lists::REPRESENTATIONS;
use crate::attack::AttackMethod::{
    DelayedBodies, Flood, Handshakes, Hold, HoldVersions, Reconnects, Resets, Silence, SilentTls,
};
use crate::attack::AttackUser::{Anonymous, Privileged, Unprivileged};
use crate::client::{Prepared, VERSION};
use crate::dataset::{
    REFERENCE_NAMESPACE, REPLACED_OBJECT_COUNT, access_review, collection, large_object, replaced_collection,
    replaced_object, replacement, replacements,
};

pub fn attacks() -> Vec<Attack> {
    let many = Hold { connections: 4, streams: 240, window: 0 };
    let single = Hold { connections: 1, streams: 200, window: 1024 };
    let wide = Hold { connections: 16, streams: 60, window: 0 };
    let changing_lists = HoldVersions { connections: 8, streams: 25, window: 1024, burst: 1 };
    let past_watches = HoldVersions { connections: 16, streams: 60, window: 1024, burst: 960 };
    let past_lists = HoldVersions { connections: 8, streams: 25, window: 1024, burst: 200 };
    let mut attacks = vec![
        Attack::new("unread: 960 OpenAPI v2", many, Some(Unprivileged), || {
            vec![Prepared::get("/openapi/v2")]
        }),
        Attack::new("unread: 960 OpenAPI v2, gzip", many, None, || {
            vec![Prepared::get("/openapi/v2").header("accept-encoding", "gzip")]
        }),
        Attack::new("unread: 960 OpenAPI v3", many, None, || {
            vec![Prepared::get("/openapi/v3/apis/apps/v1"), Prepared::get("/openapi/v3/api/v1")]
        }),
        Attack::new("unread: 960 large objects", wide, Some(Privileged), || {
            vec![Prepared::get(large_object())]
        }),
        Attack::new("unread: 960 large objects as YAML", wide, None, || {
            vec![Prepared::get_as(large_object(), "application/yaml")]
        }),
        Attack::new("unread: 960 versions of a large object", wide, None, || {
            let requests = |digit| [replacement(digit), Prepared::get(replaced_object())];
            ["A", "B"].into_iter().flat_map(requests).collect()
        }),
        Attack::new("unread: 200 lists of changing objects", changing_lists, None, || {
            replacement_rounds(&[Prepared::get(replaced_collection())])
        }),
        Attack::new("writes: 8 at once, of 1 MB", changing_lists, None, || {
            replacement_rounds(&[Prepared::get("/version")])
        }),
        Attack::new("unread: 200 lists at old revisions", past_lists, None, || {
            let query = format!("resourceVersion={VERSION}&resourceVersionMatch=Exact");
            let list = Prepared::get(format!("{}?{query}", replaced_collection()));
            replacement_rounds(&vec![list; REPLACED_OBJECT_COUNT])
        }),
        Attack::new("unread: 960 watches at different events", past_watches, None, || {
            let path = format!("{}?watch=1&resourceVersion={VERSION}", replaced_collection());
            replacement_rounds(&vec![Prepared::get(path); REPLACED_OBJECT_COUNT])
        }),
        Attack::new("unread: 960 watches with initial events", wide, Some(Privileged), || {
            let query =
                "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
            vec![Prepared::get(format!("{}?{query}", collection()))]
        }),
        Attack::new("unread: 960 watches of objects of other users", wide, Some(Privileged), || {
            vec![Prepared::get(format!("/api/v1/namespaces/{REFERENCE_NAMESPACE}/configmaps?watch=1"))]
        }),
        Attack::new("unread: 960 watches of objects of other users as Table", wide, None, || {
            let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
            let path = format!("/api/v1/namespaces/{REFERENCE_NAMESPACE}/configmaps?watch=1");
            vec![Prepared::get_as(path, table)]
        }),
        Attack::new("unread: 960 rejections", wide, None, || {
            vec![Prepared::get("/api/v1/namespaces/no-such/pods/no-such")]
        }),
        Attack::new("resets: 100 at once, of a list", Resets(100), Some(Privileged), || {
            vec![Prepared::get(collection())]
        }),
        Attack::new("resets: 100 at once, of a rejection", Resets(100), Some(Anonymous), || {
            vec![Prepared::get("/api/v1/namespaces")]
        }),
        Attack::new("requests: 100 at once, of /version", Flood(100), None, || {
            vec![Prepared::get("/version")]
        }),
        Attack::new("requests: 100 at once, rejected", Flood(100), Some(Anonymous), || {
            vec![Prepared::get("/api/v1/namespaces")]
        }),
        Attack::new("requests: 100 at once, of an access review", Flood(100), Some(Unprivileged), || {
            (0..10_000).map(access_review).collect()
        }),
        Attack::new("requests: 100 at once, of a dry-run create", Flood(100), Some(Privileged), || {
            let path = format!("{}?dryRun=All", collection());
            vec![Prepared::post(path, r#"{"metadata":{"generateName":"a-"}}"#)]
        }),
        Attack::new("bodies: 100 at once, of a dry-run create", DelayedBodies(100), Some(Privileged), || {
            let path = format!("{}?dryRun=All", collection());
            vec![Prepared::post(path, r#"{"metadata":{"generateName":"a-"}}"#)]
        }),
        Attack::new("bodies: 100 at once, of an access review", DelayedBodies(100), None, || {
            (0..10_000).map(access_review).collect()
        }),
        Attack::new(
            "connections opened again that send nothing",
            Reconnects(3200),
            Some(Anonymous),
            Vec::new,
        ),
        Attack::new("TLS handshakes", Handshakes, Some(Anonymous), Vec::new),
        Attack::new(
            "8,192 TLS connections of two addresses that send nothing",
            SilentTls(8_192),
            Some(Anonymous),
            Vec::new,
        ),
        Attack::new("800 connections that send nothing", Silence(800), Some(Anonymous), Vec::new),
    ];
    for (name, accept) in REPRESENTATIONS {
        // The name of an attack has the lifetime `'static`, so the memory of these few names is never freed.
        let title: &'static str = Box::leak(format!("unread: 200 lists as {name}").into_boxed_str());
        let short_run_caller = (name == "Table" || name == "Protobuf").then_some(Privileged);
        attacks.push(Attack::new(title, single, short_run_caller, move || {
            vec![Prepared::get_as(collection(), accept)]
        }));
    }
    attacks
}

/// Returns two rounds: each replaces all objects of a collection and then sends the reads.
fn replacement_rounds(reads: &[Prepared]) -> Vec<Prepared> {
    ["A", "B"].into_iter().flat_map(|letter| [replacements(letter), reads.to_vec()].concat()).collect()
}
