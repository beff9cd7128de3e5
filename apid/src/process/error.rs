//! The errors that end the process, and their exit codes.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::status::{Reason, Status};
use serving::certs::CertError;
use serving::client::SettingsError;
use serving::metrics::HiddenMetricsError;
use serving::tls::TlsError;
use storage::engine::fjall::OpenError;
use tokio::task::JoinError;

use super::OnReadyError;
use crate::console::{fail, report_errors};
use crate::etcd_store::EtcdStoreError;
use crate::spawn::SpawnError;

/// The failure that ends the process during start, run or shutdown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessError {
    /// The command line is invalid. Contains one text for each error.
    #[error("{}", .0.join("; "))]
    Usage(Vec<String>),
    /// The data directory cannot be created.
    #[error("cannot create the data directory `{}`: {error}", path.display())]
    DataDir {
        /// The data directory.
        path: PathBuf,
        /// The failure of the file system.
        error: io::Error,
    },
    /// The data directory belongs to another user.
    #[error(
        "the data directory `{}` belongs to the user with the id {owner}, but apid runs as {user}; run apid as that \
         user, or change the owner of the directory and its files",
        path.display()
    )]
    DataDirOwner {
        /// The data directory.
        path: PathBuf,
        /// The user id of the owner.
        owner: u32,
        /// The user id of the process.
        user: u32,
    },
    /// A file cannot be opened or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file that cannot be opened or written.
        path: PathBuf,
        /// The failure of the file system.
        error: io::Error,
    },
    /// The audit log cannot be opened.
    #[error("{0}")]
    Audit(String),
    /// A file of the connections to nodes, pods and Services cannot be used.
    #[error(transparent)]
    Forwarding(SettingsError),
    /// authd cannot be started.
    #[error("{0}")]
    Authd(#[from] SpawnError),
    /// The store cannot be opened.
    #[error("{0}")]
    Store(Box<OpenError>),
    /// The store in etcd cannot be opened.
    #[error("{0}")]
    Etcd(#[from] EtcdStoreError),
    /// The store of `--etcd-servers-overrides` cannot be opened.
    #[error("the cluster of `--etcd-servers-overrides`: {0}")]
    SeparateStore(Box<ProcessError>),
    /// The key of continue tokens cannot be read from or written to the store.
    #[error("cannot read or store the key of continue tokens: {0}")]
    TokenKey(storage::Error),
    /// The stored services cannot be read.
    #[error("the addresses of stored services cannot be read: {0}")]
    Addresses(storage::Error),
    /// The serving certificate cannot be created.
    #[error("{0}")]
    Certificate(#[from] CertError),
    /// The CA of the built-in signer cannot be loaded.
    #[error("`--cluster-signing-cert-file`, `--cluster-signing-key-file`: {0}")]
    Signing(CertError),
    /// The serving certificate cannot be loaded.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The address of `--bind-address` and `--secure-port` cannot be bound.
    #[error("{0}")]
    Bind(io::Error),
    /// The built-in namespaces cannot be created.
    #[error("cannot create the built-in namespaces: {0}")]
    Namespaces(Box<Status>),
    /// The definitions of custom kinds cannot be read.
    #[error("cannot read the definitions of custom kinds: {0}")]
    Definitions(Box<Status>),
    /// The APIServices cannot be read.
    #[error("cannot read the APIServices: {0}")]
    ApiServices(Box<Status>),
    /// `--show-hidden-metrics-for-version` does not name the previous release.
    #[error("{0}")]
    Metrics(HiddenMetricsError),
    /// The callback at readiness failed.
    #[error("{0}")]
    Ready(OnReadyError),
    /// The system returned no random bytes.
    #[error("the system returned no random bytes")]
    Random,
    /// The worker threads cannot start.
    #[error("worker threads cannot start: {0}")]
    Workers(io::Error),
    /// The signal handlers cannot be registered.
    #[error("cannot register signal handlers: {0}")]
    Signals(io::Error),
    /// A blocking task during the start panicked.
    #[error("{task} failed: {error}")]
    Task {
        /// The work of the task, such as `opening the store`.
        task: &'static str,
        /// The panic.
        error: JoinError,
    },
}

impl ProcessError {
    /// Creates the error for a file that cannot be opened or written.
    pub(super) fn file(path: impl AsRef<Path>, error: io::Error) -> Self {
        ProcessError::File { path: path.as_ref().to_owned(), error }
    }

    /// Creates the error for an authd that rejected its flags; authd itself has printed the errors.
    pub(super) fn authd_rejected_flags() -> Self {
        ProcessError::Usage(vec!["authd rejected its flags; see its message above".to_owned()])
    }

    /// Whether the store did not answer: the same operation may succeed later.
    pub(super) fn is_unavailable(&self) -> bool {
        match self {
            ProcessError::TokenKey(error) | ProcessError::Addresses(error) => {
                matches!(error, storage::Error::Unavailable(_))
            }
            ProcessError::Namespaces(status)
            | ProcessError::Definitions(status)
            | ProcessError::ApiServices(status) => status.code == Reason::ServiceUnavailable.code(),
            _ => false,
        }
    }

    /// Prints the error and returns the exit code: 64 for an invalid command line, 1 otherwise.
    pub(super) fn report(&self) -> ExitCode {
        if let ProcessError::Usage(errors) = self {
            return report_errors("apid", errors);
        }
        tracing::error!("{self}");
        fail(self)
    }
}
