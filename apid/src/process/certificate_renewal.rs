//! Renewal of the generated serving certificate while the server runs.
//!
//! # Contract
//!
//! The task checks the certificate of `--cert-dir` every hour and reissues it when it is due for renewal
//! ([`serving::certs::is_renewal_due`]). The watch of the TLS files finds the new certificate, so that new connections
//! get it without a restart. A certificate of another issuer stays; only its owner can renew it. A failure is logged
//! and retried after an hour: the certificate is due for weeks before its end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::certs::ensure_serving_pair;

/// Time between two checks.
pub(super) const INTERVAL: Duration = Duration::from_secs(3600);

/// Checks the certificate of a folder until the task is dropped. `hosts` are names that a new certificate gets.
pub(super) async fn renew_serving_certificate(
    dir: PathBuf,
    hosts: Vec<String>,
    clock: Arc<dyn Clock>,
    interval: Duration,
) {
    loop {
        tokio::time::sleep(interval).await;
        let (dir, hosts, now) = (dir.clone(), hosts.clone(), clock.now());
        let renewal = tokio::task::spawn_blocking(move || {
            let result = ensure_serving_pair(&dir, &hosts, now);
            if let Err(error) = result {
                tracing::error!(%error, "the serving certificate could not be checked for renewal; retrying in an hour");
            }
        });
        if let Err(error) = renewal.await {
            tracing::error!(%error, "renewal of the serving certificate failed; retrying in an hour");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::{ManualClock, SystemClock};
    use serving::certs::facts::CertificateFacts;
    use serving::tls::{ServingTls, TlsFiles};

    #[tokio::test(flavor = "multi_thread")]
    async fn running_server_renews_and_presents_its_due_serving_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let start = SystemClock::new().now();
        let clock = Arc::new(ManualClock::at(start));
        let hosts = vec!["10.1.2.3".to_owned()];
        let pair = ensure_serving_pair(dir.path(), &hosts, start).unwrap();
        let files = TlsFiles { cert: pair.cert.clone(), key: pair.key.clone(), client_cas: Vec::new() };
        let tls = ServingTls::load(files).unwrap();
        let _watch = tls.spawn_watch();
        let first = tls.expiration().unwrap();
        let renewal = renew_serving_certificate(
            dir.path().to_owned(),
            Vec::new(),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Duration::from_millis(5),
        );
        let renewal = tokio::spawn(renewal);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(tls.expiration(), Some(first), "a certificate that is not due stays");
        clock.advance(Duration::from_secs(340 * 24 * 3600));
        tokio::time::timeout(Duration::from_secs(30), async {
            while tls.expiration() == Some(first) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the server presents the new certificate");
        renewal.abort();
        let renewed = CertificateFacts::read_all(&pair.cert).unwrap().remove(0);
        assert!(renewed.names.contains(&"10.1.2.3".to_owned()), "{:?}", renewed.names);
    }
}
