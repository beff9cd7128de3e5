//! Credentials for webhooks: the users of a client configuration file, chosen by server name.
//!
//! # Contract
//!
//! A plugin configuration `WebhookAdmissionConfiguration` contains the path of a client configuration file.
//! The names of the users in that file are patterns for servers. The user for the server `a.b.svc:443` is the
//! first one that the file contains of `a.b.svc:443`, `*.b.svc:443`, `*.svc:443`, the same names without
//! `:443`, and `*`. For another port, only names with the port and `*` apply. A webhook without such a user
//! gets no credentials.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serving::client_config::{ClientConfig, ConfigError, User};

/// Users of a client configuration file, by server name.
#[derive(Clone, Debug)]
pub struct WebhookUsers {
    file: FileId,
    configuration: ClientConfig,
}

/// Identity of a loaded client configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(u64);

/// Number of files that have been loaded, which is the next [`FileId`].
static LOADED_FILES: AtomicU64 = AtomicU64::new(0);

impl WebhookUsers {
    /// Reads a client configuration file.
    ///
    /// # Errors
    ///
    /// All defects of the file.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        ClientConfig::load(file).map(WebhookUsers::new)
    }

    fn new(configuration: ClientConfig) -> Self {
        WebhookUsers { file: FileId(LOADED_FILES.fetch_add(1, Ordering::Relaxed)), configuration }
    }

    /// Identity of the loaded file; clones of the users have the same identity.
    pub(crate) fn file_id(&self) -> FileId {
        self.file
    }

    /// The user for a server of the form `HOST:PORT`, with its name in the file.
    pub(crate) fn user(&self, server: &str) -> Option<(&str, &User)> {
        let users = &self.configuration.users;
        let without_port = server.strip_suffix(":443");
        [Some(server), without_port]
            .into_iter()
            .flatten()
            .flat_map(candidates)
            .chain(["*".to_owned()])
            .find_map(|name| users.get_key_value(&name))
            .map(|(name, user)| (name.as_str(), user))
    }
}

/// Returns the names of users for a server, from the most specific to the least specific.
fn candidates(server: &str) -> Vec<String> {
    let suffixes = server.match_indices('.').filter_map(|(at, _)| server.get(at..));
    [server.to_owned()].into_iter().chain(suffixes.map(|suffix| format!("*{suffix}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(names: &[&str]) -> WebhookUsers {
        let users = names.iter().map(|name| ((*name).to_owned(), User::default())).collect();
        WebhookUsers::new(ClientConfig { users, ..ClientConfig::default() })
    }

    #[test]
    fn most_specific_user_of_a_server_is_chosen() {
        let names = ["a.b.svc:443", "*.b.svc:443", "a.b.svc", "*.svc", "*"];
        let server = "a.b.svc:443";
        for first in 0..names.len() {
            let users = users(&names[first..]);
            assert_eq!(users.user(server).map(|(name, _)| name), Some(names[first]));
        }
        assert_eq!(users(&["a.b.svc"]).user("a.b.svc:8443"), None);
        assert_eq!(users(&["b.svc", "*.a.b.svc"]).user(server), None);
    }
}
