//! Metrics of the listener, SIGHUP, and notifications of the service manager.

use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use serving::metrics::{Counter, Definition, Metrics, Stability};
use serving::reload::{hangups, next_hangup};
use serving::service_manager::{ServiceManager, ServiceState};
use serving::tls::ServingTls;

use audit::AuditLog;

const HANDSHAKE_ERRORS: Definition = Definition::new(
    "apiserver_tls_handshake_errors_total",
    Stability::Alpha,
    "Number of failed TLS handshakes",
);
const CERTIFICATE_EXPIRATION: Definition = Definition::new(
    "apid_serving_certificate_expiration_timestamp_seconds",
    Stability::Alpha,
    "Expiration time of the serving certificate in seconds since 1970",
);

const RELOAD_REJECTED: Definition = Definition::new(
    "apid_serving_certificate_reload_rejected",
    Stability::Alpha,
    "1 while the last change of the TLS files is rejected and earlier files are in use, else 0",
);

/// Registers the metrics of the listener. Returns the counter of failed TLS
/// handshakes.
pub(super) fn register_metrics(metrics: &Metrics, tls: &Arc<ServingTls>) -> Counter {
    let expiration = metrics.single_gauge(&CERTIFICATE_EXPIRATION);
    let reload_rejected = metrics.single_gauge(&RELOAD_REJECTED);
    let tls = Arc::clone(tls);
    metrics.collect_with(move || {
        expiration.set(tls.expiration().unwrap_or_default());
        reload_rejected.set(tls.is_change_rejected().into());
    });
    metrics.single_counter(&HANDSHAKE_ERRORS)
}

/// Reopens the audit log and reloads the TLS files at SIGHUP.
#[derive(Clone)]
pub(super) struct FileReloader {
    pub(super) tls: Arc<ServingTls>,
    pub(super) audit: Arc<AuditLog>,
}

impl FileReloader {
    /// Handles one SIGHUP. The tasks that watch other files, such as CA bundles, get the signal themselves.
    pub(super) async fn reload(self) {
        tracing::info!(signal = "SIGHUP", "reload started");
        self.audit.reopen().await;
        match tokio::task::spawn_blocking(move || self.tls.reload()).await {
            Ok(Ok(is_changed)) => tracing::info!(is_changed, "tls files checked"),
            Ok(Err(error)) => tracing::error!(%error, "tls reload failed; using the previous files"),
            Err(error) => tracing::error!(%error, "tls reload failed; using the previous files"),
        }
    }
}

/// Iterates over the SIGHUP signals of the process.
pub(super) fn hangup_signals() -> impl Stream<Item = ()> + Send + Unpin {
    Box::pin(stream::unfold(hangups(), |mut hangups| async move {
        next_hangup(&mut hangups).await;
        Some(((), hangups))
    }))
}

/// Notifies the service manager of the first readiness and of each reload, and runs `on_ready` and `reload`.
///
/// A reload before the first readiness causes no notification, because the end of a reload is notified as
/// readiness.
pub(super) async fn follow_states<F: Future<Output = ()>>(
    service_manager: ServiceManager,
    ready: impl Future<Output = ()>,
    on_ready: impl FnOnce(),
    mut reloads: impl Stream<Item = ()> + Unpin,
    reload: impl Fn() -> F,
) {
    let mut ready = pin!(ready);
    loop {
        tokio::select! {
            () = &mut ready => break,
            Some(()) = reloads.next() => reload().await,
        }
    }
    service_manager.notify(ServiceState::Ready);
    on_ready();
    while reloads.next().await.is_some() {
        service_manager.notify(ServiceState::Reloading);
        reload().await;
        service_manager.notify(ServiceState::Ready);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, mpsc};

    use super::*;

    /// The first lines of the notifications so far.
    fn received_notifications(socket: &UnixDatagram) -> Vec<String> {
        let mut bytes = [0; 256];
        std::iter::from_fn(|| {
            let length = socket.recv(&mut bytes).ok()?;
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            Some(text.lines().next().unwrap_or_default().to_owned())
        })
        .collect()
    }

    #[tokio::test]
    async fn reload_before_readiness_is_not_notified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let (hangups, receiver) = mpsc::channel(8);
        let reloads = Box::pin(stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|()| ((), receiver))
        }));
        let (is_ready, reload_count) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (ready, reload_count_of_task) = (Arc::clone(&is_ready), Arc::clone(&reload_count));
        let (ready_sender, ready_receiver) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(follow_states(
            ServiceManager::at(&path),
            async move { ready.notified().await },
            move || ready_sender.send(()).unwrap(),
            reloads,
            move || {
                reload_count_of_task.fetch_add(1, Ordering::SeqCst);
                std::future::ready(())
            },
        ));
        hangups.send(()).await.unwrap();
        while reload_count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(received_notifications(&socket), [""; 0]);
        is_ready.notify_one();
        ready_receiver.await.unwrap();
        assert_eq!(received_notifications(&socket), ["READY=1"]);
        hangups.send(()).await.unwrap();
        drop(hangups);
        task.await.unwrap();
        assert_eq!(received_notifications(&socket), ["RELOADING=1", "READY=1"]);
        assert_eq!(reload_count.load(Ordering::SeqCst), 2);
    }
}
