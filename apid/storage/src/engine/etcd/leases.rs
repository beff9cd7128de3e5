//! Leases: keys that etcd removes after a time.
//!
//! Many keys share a lease, as in kube-apiserver: a lease lives somewhat longer than its keys need, and serves until the
//! remaining time is too short for a new key, or until it has many keys.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::{Client, Failure, Method};
use super::protocol as pb;

/// The lifetime of the keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The prefix of the keys, in the form of the contract.
    pub prefix: String,
    /// The time after which a key that was not written again is removed.
    pub time: Duration,
}

/// The options of leases.
#[derive(Clone, Debug)]
pub struct LeaseOptions {
    /// The prefixes whose keys are removed after a time.
    pub lifetimes: Vec<Lifetime>,
    /// Longest time for which new keys get the same lease.
    pub reuse: Duration,
    /// Maximum number of keys of a lease.
    pub max_keys: usize,
}

impl Default for LeaseOptions {
    fn default() -> Self {
        LeaseOptions { lifetimes: Vec::new(), reuse: Duration::from_secs(60), max_keys: 1000 }
    }
}

/// The leases that new keys get.
pub(super) struct Leases {
    options: LeaseOptions,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// The newest lease for each lifetime of keys.
    leases: HashMap<Duration, Lease>,
    /// The last failed request: the time of its end and the failure.
    failure: Option<(Instant, Failure)>,
}

struct Lease {
    id: i64,
    expires: Instant,
    keys: usize,
}

impl Leases {
    pub(super) fn new(options: LeaseOptions) -> Self {
        Leases { options, current: Mutex::default() }
    }

    /// The id of the lease for a write of a key; 0 for a key without a lifetime.
    ///
    /// # Errors
    ///
    /// etcd grants no lease. One request serves all waiting callers, even if the request fails.
    pub(super) async fn of(&self, key: &str, client: &Client) -> Result<i64, Failure> {
        let lifetime = self.options.lifetimes.iter().find(|lifetime| key.starts_with(&lifetime.prefix));
        let Some(time) = lifetime.map(|lifetime| lifetime.time) else { return Ok(0) };
        let asked = Instant::now();
        let mut current = self.current.lock().await;
        if let Some((_, failure)) = current.failure.as_ref().filter(|(end, _)| *end >= asked) {
            return Err(failure.clone());
        }
        let now = Instant::now();
        if let Some(lease) = current.leases.get_mut(&time) {
            if lease.keys < self.options.max_keys && lease.expires >= now + time {
                lease.keys += 1;
                return Ok(lease.id);
            }
            client.telemetry.lease_objects(lease.keys);
        }
        let granted = time + self.reuse_time(time);
        let ttl = i64::try_from(granted.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        let request = pb::LeaseGrantRequest { ttl };
        let granted = client.call(Method::LeaseGrant, request).await;
        let pb::LeaseGrantResponse { id, ttl } =
            granted.inspect_err(|failure| current.failure = Some((Instant::now(), failure.clone())))?;
        let lives = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        current.leases.insert(time, Lease { id, expires: now + lives, keys: 1 });
        Ok(id)
    }

    /// Forgets a lease that etcd no longer has.
    pub(super) async fn forget(&self, id: i64) {
        self.current.lock().await.leases.retain(|_, lease| lease.id != id);
    }

    /// The additional time of a lease: at most a twentieth of the lifetime of its keys.
    fn reuse_time(&self, time: Duration) -> Duration {
        self.options.reuse.min(time / 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_has_the_ttl_of_kube_apiserver() {
        let leases = Leases::new(LeaseOptions::default());
        let granted = |seconds| {
            let time = Duration::from_secs(seconds);
            (time + leases.reuse_time(time)).as_secs()
        };
        assert_eq!([granted(3600), granted(60), granted(86_400)], [3660, 63, 86_460]);
    }

    #[tokio::test]
    async fn failed_lease_request_serves_all_waiting_writers() {
        // The member accepts connections and never answers.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = Client::new(&[url], None, Vec::new(), std::sync::Arc::new(())).unwrap();
        let lifetime = Lifetime { prefix: "events/".to_owned(), time: Duration::from_secs(60) };
        let leases = Leases::new(LeaseOptions { lifetimes: vec![lifetime], ..LeaseOptions::default() });
        let begin = Instant::now();
        let (first, second, third) = tokio::join!(
            leases.of("events/a", &client),
            leases.of("events/b", &client),
            leases.of("events/c", &client)
        );
        assert!(first.is_err() && second.is_err() && third.is_err());
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "one time limit, not three: {:?}",
            begin.elapsed()
        );
    }
}
