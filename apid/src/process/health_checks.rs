//! The checks of `/livez`, `/readyz` and `/healthz`, under the names of Kubernetes (requirements D-HEALTH).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::health::Checks;
use serving::tls::ServingTls;
use storage::Store;
use tokio::sync::watch;

use super::components::Stores;
use super::encryption_at_rest::ProcessEncryption;
use crate::config::Config;
use authclient::Auth;
use httpapi::{Freshness, Health};

/// Pause before failed checks run again: some checks, such as the check of the store, notify of no changes.
const RECHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The note for rejected TLS files. The endpoint is public, so only the log contains the details.
const TLS_CHANGE_REJECTED: &str =
    "TLS files: change rejected, the previous certificate, key and client CAs stay in use; see the log";

/// The progress of start-up and shutdown.
#[derive(Default)]
pub(super) struct Progress {
    /// Whether the built-in namespaces exist.
    namespaces: AtomicBool,
    /// Whether apid has tried to create each start-up object.
    objects: watch::Sender<bool>,
    /// Whether authd has been healthy with the default policy once.
    policy: AtomicBool,
    /// Whether the process shuts down.
    stopping: AtomicBool,
}

impl Progress {
    /// Records that the built-in namespaces exist.
    pub(super) fn complete_namespaces(&self) {
        self.namespaces.store(true, Ordering::SeqCst);
    }

    /// Records that apid has tried to create each start-up object, which is the last step of the start.
    pub(super) fn complete_objects(&self) {
        self.objects.send_replace(true);
    }

    /// Records the start of the shutdown.
    pub(super) fn begin_shutdown(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Waits until `/readyz` passes.
    pub(super) async fn wait_until_ready(&self, readyz: &Checks, auth: &Auth) {
        loop {
            // Cannot fail, because `self` owns the sender.
            let _ = self.objects.subscribe().wait_for(|exist| *exist).await;
            auth.connection().wait_until_healthy().await;
            if readyz.is_healthy() {
                return;
            }
            tokio::time::sleep(RECHECK_INTERVAL).await;
        }
    }
}

/// Names of post-start hooks of kube-apiserver whose work apid also does, in the order of kube-apiserver.
///
/// The checks of these hooks pass when apid has tried to create each start-up object.
const HOOKS_BEFORE_NAMESPACES: &[&str] = &[
    "start-apiserver-admission-initializer",
    "generic-apiserver-start-informers",
    "start-apiextensions-informers",
    "start-apiextensions-controllers",
    "crd-informer-synced",
];
const HOOKS_BEFORE_POLICY: &[&str] =
    &["start-cluster-authentication-info-controller", "start-legacy-token-tracking-controller"];
const HOOKS_AFTER_POLICY: &[&str] = &[
    "scheduling/bootstrap-system-priority-classes",
    "priority-and-fairness-config-producer",
    "bootstrap-controller",
    "kube-apiserver-autoregistration",
];

/// A health endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Livez,
    Readyz,
    Healthz,
}

/// The components that the checks observe.
pub(super) struct HealthSources<'a> {
    /// The configuration.
    pub(super) config: &'a Config,
    /// The client of authd.
    pub(super) auth: &'a Arc<Auth>,
    /// The stores.
    pub(super) stores: &'a Stores,
    /// The freshness of requests, if other servers write to the store.
    pub(super) freshness: Option<&'a Arc<Freshness>>,
    /// Encryption at rest, if it is configured.
    pub(super) encryption: Option<&'a ProcessEncryption>,
    /// The TLS files of the listener.
    pub(super) tls: &'a Arc<ServingTls>,
    /// The progress of the process.
    pub(super) progress: &'a Arc<Progress>,
    /// The clock that measures `--livez-grace-period`.
    pub(super) clock: &'a Arc<dyn Clock>,
}

impl HealthSources<'_> {
    /// Builds the checks of all endpoints.
    pub(super) fn health(&self) -> Health {
        let grace_end = self.clock.monotonic() + self.config.flags.serving.livez_grace_period;
        Health {
            livez: self.checks(Endpoint::Livez, grace_end),
            readyz: self.checks(Endpoint::Readyz, grace_end),
            healthz: self.checks(Endpoint::Healthz, grace_end),
        }
    }

    fn checks(&self, endpoint: Endpoint, grace_end: Duration) -> Checks {
        let is_readyz = endpoint == Endpoint::Readyz;
        let mut checks = Checks::new()
            .with("ping", || Ok(()))
            .with("log", || serving::log::check().map_err(|error| error.to_string()));
        let store_check = self.config.names.store_check;
        checks = checks.with(store_check, health_of(&self.stores.main));
        if is_readyz {
            checks = checks.with(&format!("{store_check}-readiness"), readiness_of(&self.stores.main));
        }
        if let Some(separate) = &self.stores.separate {
            let name = format!("{store_check}-override-0");
            checks = checks.with_grouped(&name, store_check, health_of(separate));
            if is_readyz {
                let name = format!("{store_check}-override-readiness-0");
                checks =
                    checks.with_grouped(&name, &format!("{store_check}-readiness"), readiness_of(separate));
            }
        }
        if let Some(freshness) = self.freshness.filter(|_| is_readyz) {
            let freshness = Arc::clone(freshness);
            checks = checks.with("policy-age", move || freshness.check_age());
        }
        checks = self.with_encryption_checks(checks, endpoint);
        if is_readyz {
            checks = checks.with("informer-sync", || Ok(()));
        }
        // Until `grace_end`, `/livez` ignores start-up checks that do not pass.
        let start_check = |checks: Checks, name: &str, check: CheckFunction| {
            let clock = Arc::clone(self.clock);
            checks.with(name, move || {
                let is_ignored = || endpoint == Endpoint::Livez && clock.monotonic() < grace_end;
                check().or_else(|reason| if is_ignored() { Ok(()) } else { Err(reason) })
            })
        };
        let hook = |checks: Checks, name: &str, check: CheckFunction| {
            start_check(checks, &format!("poststarthook/{name}"), check)
        };
        let objects_check =
            || self.progress_check(|progress| *progress.objects.borrow(), "the start-up objects");
        for name in HOOKS_BEFORE_NAMESPACES {
            checks = hook(checks, name, objects_check());
        }
        let namespaces = self
            .progress_check(|progress| progress.namespaces.load(Ordering::SeqCst), "the built-in namespaces");
        checks = hook(checks, "start-system-namespaces-controller", namespaces);
        for name in HOOKS_BEFORE_POLICY {
            checks = hook(checks, name, objects_check());
        }
        checks = hook(checks, "rbac/bootstrap-roles", self.policy_check(is_readyz));
        if is_readyz {
            let (auth, auth_for_notes) = (Arc::clone(self.auth), Arc::clone(self.auth));
            checks = checks
                .with("authd", move || auth.connection().health().map_err(|problem| problem.to_string()))
                .with_notes(move || auth_for_notes.connection().notes());
            let tls = Arc::clone(self.tls);
            checks = checks.with_notes(move || {
                tls.is_change_rejected().then(|| TLS_CHANGE_REJECTED.to_owned()).into_iter().collect()
            });
            let stores = [Some(&self.stores.main), self.stores.separate.as_ref()].into_iter().flatten();
            let stores: Vec<Arc<dyn Store>> = stores.cloned().collect();
            checks = checks.with_notes(move || {
                let warning = |reason| format!("storage is full, creates and updates are rejected: {reason}");
                stores.iter().filter_map(|store| store.full_reason()).map(warning).collect()
            });
        }
        for name in HOOKS_AFTER_POLICY {
            checks = hook(checks, name, objects_check());
        }
        checks = start_check(checks, "autoregister-completion", objects_check());
        if self.config.allows_everything {
            checks = checks.with("warning/every-request-is-allowed", || Ok(()));
        }
        if is_readyz {
            let progress = Arc::clone(self.progress);
            checks = checks.with("shutdown", move || match progress.stopping.load(Ordering::SeqCst) {
                false => Ok(()),
                true => Err("the process is stopping".to_owned()),
            });
        }
        checks
    }

    /// Adds the check of all KMS plugins, and with automatic reload its post-start hook, as in kube-apiserver.
    fn with_encryption_checks(&self, mut checks: Checks, endpoint: Endpoint) -> Checks {
        let Some(ProcessEncryption { encryption, reload }) = self.encryption else { return checks };
        let reloads = reload.is_some();
        if endpoint != Endpoint::Livez && (reloads || encryption.has_kms()) {
            let encryption = Arc::clone(encryption);
            checks = checks.with("kms-providers", move || encryption.kms_health());
        }
        if reloads {
            checks =
                checks.with("poststarthook/start-encryption-provider-config-automatic-reload", || Ok(()));
        }
        checks
    }

    /// Returns a check that passes when a step of the start is complete. `objects` names the objects that the
    /// step creates.
    fn progress_check(&self, is_complete: fn(&Progress) -> bool, objects: &'static str) -> CheckFunction {
        let progress = Arc::clone(self.progress);
        Box::new(move || match is_complete(&progress) {
            true => Ok(()),
            false => Err(format!("{objects} do not exist yet")),
        })
    }

    /// Returns the check of the default policy. After the first success, the check always passes.
    fn policy_check(&self, is_readyz: bool) -> CheckFunction {
        let (auth, progress) = (Arc::clone(self.auth), Arc::clone(self.progress));
        Box::new(move || {
            // `/livez` and `/healthz` ignore an unreachable authd, because a restart of apid would not help.
            if progress.policy.load(Ordering::SeqCst)
                || (!is_readyz && auth.connection().unreachable().is_some())
            {
                return Ok(());
            }
            auth.connection().health().map_err(|problem| problem.to_string())?;
            progress.policy.store(true, Ordering::SeqCst);
            Ok(())
        })
    }
}

/// Returns the check that a store is healthy.
fn health_of(store: &Arc<dyn Store>) -> CheckFunction {
    let store = Arc::clone(store);
    Box::new(move || store.health().map_err(|error| error.to_string()))
}

/// Returns the check that a store is ready for requests.
fn readiness_of(store: &Arc<dyn Store>) -> CheckFunction {
    let store = Arc::clone(store);
    Box::new(move || store.readiness().map_err(|error| error.to_string()))
}

type CheckFunction = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

#[cfg(test)]
mod tests {
    use apimachinery::clock::{ManualClock, SystemClock};
    use storage::Observers;
    use storage::engine::fjall::{self, FjallStore};

    use super::*;
    use crate::config::Command;

    fn config(words: &[&str]) -> Config {
        let words = ["--data-dir=/d"].iter().chain(words).map(|word| (*word).to_owned());
        match Config::read(words).unwrap() {
            Command::Serve(config) => *config,
            Command::Print(text) => panic!("printed {text}"),
        }
    }

    /// Opens a store in a directory. A store with a quota of 0 bytes is full.
    async fn open_stores(dir: &std::path::Path, quota_bytes: Option<u64>) -> Stores {
        let identity = fjall::Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
        let options = fjall::Options {
            quota_bytes,
            ..fjall::Options::new(dir.join("store"), identity, Arc::new(SystemClock::new()))
        };
        let store = FjallStore::open(options, Arc::new(Observers(Vec::new()))).unwrap();
        store.maintain().await.unwrap();
        Stores { main: Arc::new(store), separate: None }
    }

    /// Loads generated TLS files in a directory.
    fn load_tls(dir: &std::path::Path) -> Arc<ServingTls> {
        let pair = serving::certs::ensure_serving_pair(dir, &[], SystemClock::new().now()).unwrap();
        let files = serving::tls::TlsFiles { cert: pair.cert, key: pair.key, client_cas: vec![pair.ca] };
        ServingTls::load(files).unwrap()
    }

    /// The verbose response of `/readyz` after a complete start.
    async fn readyz(config: &Config, quota_bytes: Option<u64>) -> String {
        let dir = tempfile::tempdir().unwrap();
        readyz_with_tls(config, quota_bytes, &load_tls(dir.path())).await
    }

    async fn readyz_with_tls(config: &Config, quota_bytes: Option<u64>, tls: &Arc<ServingTls>) -> String {
        let dir = tempfile::tempdir().unwrap();
        let stores = open_stores(dir.path(), quota_bytes).await;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let auth = Auth::allow_all(Arc::clone(&clock));
        let progress = Arc::new(Progress::default());
        progress.complete_namespaces();
        progress.complete_objects();
        let sources = HealthSources {
            config,
            auth: &auth,
            stores: &stores,
            freshness: None,
            encryption: None,
            tls,
            progress: &progress,
            clock: &clock,
        };
        let answer = sources.health().readyz.answer("readyz", None, "verbose", true);
        stores.close().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn livez_ignores_unfinished_start_during_grace_period() {
        let dir = tempfile::tempdir().unwrap();
        let stores = open_stores(dir.path(), None).await;
        let manual = Arc::new(ManualClock::at(SystemClock::new().now()));
        let clock: Arc<dyn Clock> = manual.clone();
        let auth = Auth::allow_all(Arc::clone(&clock));
        let progress = Arc::new(Progress::default());
        let tls = load_tls(dir.path());
        for (flag, during, after) in
            [("--livez-grace-period=1h", 200, 500), ("--livez-grace-period=0s", 500, 500)]
        {
            let config = config(&["--spawn-authd", flag]);
            let sources = HealthSources {
                config: &config,
                auth: &auth,
                stores: &stores,
                freshness: None,
                encryption: None,
                tls: &tls,
                progress: &progress,
                clock: &clock,
            };
            let health = sources.health();
            let code = |checks: &Checks, name| checks.answer(name, None, "", true).status;
            assert_eq!(
                (code(&health.livez, "livez"), code(&health.readyz, "readyz")),
                (during, 500),
                "{flag}"
            );
            manual.advance(Duration::from_secs(3601));
            assert_eq!(code(&health.livez, "livez"), after, "{flag}: the start takes too long");
            progress.complete_namespaces();
            progress.complete_objects();
            assert_eq!((code(&health.livez, "livez"), code(&health.readyz, "readyz")), (200, 200), "{flag}");
            progress.namespaces.store(false, Ordering::SeqCst);
            progress.objects.send_replace(false);
        }
        stores.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn readyz_warns_while_the_store_is_full() {
        let config = config(&["--spawn-authd", "--authorization-mode=RBAC"]);
        let full = readyz(&config, Some(0)).await;
        assert!(full.contains("warn: storage is full") && full.contains("the quota is 0"), "{full}");
        let free = readyz(&config, None).await;
        assert!(!free.contains("storage is full"), "{free}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn readyz_warns_while_a_change_of_tls_files_is_rejected() {
        let config = config(&["--spawn-authd", "--authorization-mode=RBAC"]);
        let dir = tempfile::tempdir().unwrap();
        let tls = load_tls(dir.path());
        assert!(!readyz_with_tls(&config, None, &tls).await.contains("TLS files"));
        std::fs::write(dir.path().join("apiserver.crt"), "nonsense").unwrap();
        tls.reload().unwrap_err();
        let rejected = readyz_with_tls(&config, None, &tls).await;
        assert!(rejected.contains("warn: TLS files: change rejected"), "{rejected}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn readyz_reports_missing_authorizer_only_for_spawned_authd() {
        const CHECK: &str = "warning/every-request-is-allowed";
        for (words, is_reported) in [
            (&["--spawn-authd"][..], true),
            (&["--spawn-authd", "--authorization-mode=RBAC,AlwaysAllow"], true),
            (&["--spawn-authd", "--authorization-mode=RBAC"], false),
            (&["--spawn-authd", "--authorization-config=/f"], false),
            (&["--authd-socket=/s"], false),
        ] {
            let body = readyz(&config(words), None).await;
            assert_eq!(body.contains(CHECK), is_reported, "{words:?}: {body}");
        }
    }

    #[tokio::test]
    async fn readiness_waits_for_start_objects_and_for_all_checks() {
        let auth = Auth::allow_all(Arc::new(SystemClock::new()));
        let progress = Arc::new(Progress::default());
        let is_store_healthy = Arc::new(AtomicBool::new(false));
        let store = Arc::clone(&is_store_healthy);
        let readyz = Checks::new().with("store", move || match store.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err("the disk is slow".to_owned()),
        });
        let waiting = Arc::clone(&progress);
        let ready = tokio::spawn(async move { waiting.wait_until_ready(&readyz, &auth).await });
        let wait_for_recheck = || tokio::time::sleep(RECHECK_INTERVAL * 2);
        wait_for_recheck().await;
        is_store_healthy.store(true, Ordering::SeqCst);
        wait_for_recheck().await;
        assert!(!ready.is_finished(), "the start-up objects do not exist");
        is_store_healthy.store(false, Ordering::SeqCst);
        progress.complete_objects();
        wait_for_recheck().await;
        assert!(!ready.is_finished(), "the store is not healthy");
        is_store_healthy.store(true, Ordering::SeqCst);
        ready.await.unwrap();
    }
}
