//! Attacks through the proxy of a pod: hanging, late, endless and refusing backends. The attacker controls the backend.

use super::Attack;
use crate::attack::AttackMethod::{Flood, Hold, Http1, Resets, SlowBodies};
use crate::client::Prepared;
use crate::dataset::{NAMESPACE, TARGET};
use crate::hostile_backend;

/// Returns the path of a proxied request.
fn path(rest: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{TARGET}:{}/proxy/{rest}", hostile_backend::port())
}

pub(super) fn attacks() -> Vec<Attack> {
    let held = Hold { connections: 16, streams: 90, window: 65_535 };
    vec![
        Attack::new("proxied requests without an answer", held, None, || vec![Prepared::get(path("hang"))]),
        Attack::new("proxied bodies without an end", held, None, || vec![Prepared::get(path("body"))]),
        Attack::new("proxied response heads without an end", Flood(8), None, || {
            vec![Prepared::get(path("head"))]
        }),
        Attack::new("proxied requests, reset before a late answer", Resets(50), None, || {
            vec![Prepared::get(path("late"))]
        }),
        Attack::new("proxied bodies, sent slowly", SlowBodies(8), None, || {
            vec![Prepared::post(path("drain"), "x".repeat(1_000))]
        }),
        Attack::new("proxied upgrades that are refused, over HTTP/1.1", Http1, None, || {
            let request = Prepared::get(path("upgrade"));
            vec![request.header("connection", "Upgrade").header("upgrade", "SPDY/3.1")]
        }),
    ]
}
