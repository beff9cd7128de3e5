//! Attacks with request heads: credentials, impersonation, many and long headers, distinct names.

use super::{Attack, repeat};
use crate::attack::AttackMethod::{Flood, Http1};
use crate::attack::AttackUser::{Anonymous, Privileged, Unprivileged};
use crate::client::{NUMBER, Prepared};
use crate::dataset::collection;

/// Builds a GET of `/api`, which every authenticated user may read.
fn get_api() -> Prepared {
    Prepared::get("/api")
}

/// Adds a header `count` times; the values end in different numbers.
fn with_many(request: Prepared, name: &'static str, value: &str, count: usize) -> Prepared {
    (0..count).fold(request, |request, n| request.header(name, format!("{value}{n}")))
}

pub fn attacks() -> Vec<Attack> {
    let mut attacks = credentials();
    attacks.extend(headers());
    attacks.extend(names());
    attacks
}

fn credentials() -> Vec<Attack> {
    // Header and claims of a token of this server's issuer, with an invalid signature.
    const TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.\
                         eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMiLCJzdWIiOiJhIn0";
    vec![
        Attack::new("tokens: distinct and unknown", Flood(8), Some(Anonymous), || {
            vec![get_api().header("authorization", format!("Bearer unknown-{NUMBER}"))]
        }),
        Attack::new("tokens: distinct, with a wrong signature", Flood(8), Some(Anonymous), || {
            vec![get_api().header("authorization", format!("Bearer {TOKEN}.c2lnbmF0dXJl{NUMBER}"))]
        }),
        Attack::new("tokens: distinct, of 60 kB", Flood(8), None, || {
            let long = "x".repeat(60_000);
            vec![get_api().header("authorization", format!("Bearer {long}{NUMBER}"))]
        }),
        Attack::new("basic credentials", Flood(8), None, || {
            vec![get_api().header("authorization", format!("Basic {NUMBER}"))]
        }),
    ]
}

fn headers() -> Vec<Attack> {
    vec![
        Attack::new("impersonation of 120 groups over HTTP/1.1", Http1, Some(Unprivileged), || {
            let request = get_api().header("impersonate-user", "a");
            vec![with_many(request, "impersonate-group", "group-", 120)]
        }),
        Attack::new("unknown expectations over HTTP/1.1", Http1, Some(Anonymous), || {
            vec![get_api().header("expect", format!("tea-{NUMBER}"))]
        }),
        Attack::new("transfer encodings over HTTP/1.1", Http1, None, || {
            vec![get_api().header("transfer-encoding", "gzip, chunked")]
        }),
        Attack::new("impersonation of 2,000 groups", Flood(4), Some(Unprivileged), || {
            let request = get_api().header("impersonate-user", "a");
            vec![with_many(request, "impersonate-group", "g", 2_000)]
        }),
        Attack::new("impersonation of distinct users", Flood(8), None, || {
            vec![get_api().header("impersonate-user", format!("user-{NUMBER}"))]
        }),
        Attack::new("impersonation with 1,000 extra values", Flood(4), None, || {
            let request = get_api().header("impersonate-user", "a");
            vec![with_many(request, "impersonate-extra-a", "v", 1_000)]
        }),
        Attack::new("300 unknown headers over HTTP/1.1", Http1, None, || {
            vec![with_many(get_api(), "x-unknown", "v", 300)]
        }),
        Attack::new("2,000 remote groups", Flood(4), None, || {
            vec![with_many(get_api().header("x-remote-user", "a"), "x-remote-group", "g", 2_000)]
        }),
        Attack::new("accept of 6,000 clauses", Flood(4), None, || {
            vec![Prepared::get_as("/api/v1", &repeat("", "a/b;q=0.1", 6_000, ",*/*"))]
        }),
        Attack::new("accept-encoding of 6,000 clauses", Flood(4), None, || {
            vec![get_api().header("accept-encoding", repeat("", "br;q=0.1", 6_000, ",gzip"))]
        }),
        Attack::new("if-none-match of 6,000 tags", Flood(4), None, || {
            vec![Prepared::get("/openapi/v2").header("if-none-match", repeat("", r#""a""#, 6_000, ""))]
        }),
        Attack::new("user agent of 60 kB", Flood(8), None, || {
            vec![get_api().header("user-agent", "x".repeat(60_000))]
        }),
    ]
}

fn names() -> Vec<Attack> {
    vec![
        Attack::new("reads of distinct names", Flood(8), Some(Unprivileged), || {
            vec![Prepared::get(format!("/api/v1/namespaces/namespace-{NUMBER}/pods/pod"))]
        }),
        Attack::new("distinct paths of no resource", Flood(8), None, || {
            vec![Prepared::get(format!("/path-{NUMBER}/{}", "x".repeat(8_000)))]
        }),
        Attack::new("names of 60 kB", Flood(8), Some(Privileged), || {
            vec![Prepared::get(format!("{}/{NUMBER}{}", collection(), "x".repeat(60_000)))]
        }),
        Attack::new("paths of 30,000 segments", Flood(8), None, || {
            vec![Prepared::get(format!("/api{}", "/x".repeat(30_000)))]
        }),
    ]
}
