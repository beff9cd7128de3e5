//! What the server is told to tell about itself, for programs that run beside it.

use std::path::PathBuf;

use super::parse::Line;

/// What there is to tell.
#[derive(Clone, Debug, Default)]
pub struct Publications {
    /// `--root-ca-file`.
    pub root_ca: Option<PathBuf>,
    /// `--client-ca-file`.
    pub client_ca: Option<PathBuf>,
    /// What authenticating proxies are told apart by, if any is trusted.
    pub proxy: Option<ProxyPublication>,
}

/// The flags of authenticating proxies as they were given.
#[derive(Clone, Debug, Default)]
pub struct ProxyPublication {
    /// `--requestheader-client-ca-file`.
    pub client_ca: PathBuf,
    /// The lists, each under its key in the ConfigMap.
    pub lists: Vec<(&'static str, Vec<String>)>,
}

impl Publications {
    /// As the flags say.
    pub(super) fn of(line: &Line) -> Self {
        let path = |name: &str| line.value(name).map(PathBuf::from);
        let proxy = path("requestheader-client-ca-file").map(|client_ca| ProxyPublication {
            client_ca,
            lists: [
                "requestheader-allowed-names",
                "requestheader-username-headers",
                "requestheader-uid-headers",
                "requestheader-group-headers",
                "requestheader-extra-headers-prefix",
            ]
            .map(|name| (name, line.list(name)))
            .into(),
        });
        Publications { root_ca: path("root-ca-file"), client_ca: path("client-ca-file"), proxy }
    }
}
