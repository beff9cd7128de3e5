//! Audit log of a server under test.
//!
//! apid writes an event after the response, so the log can lack the event of a finished request. Tests wait with
//! [`AuditLog::event`], or stop the server before [`AuditLog::events`].

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use super::eventually;

/// Audit log file in its own folder, which is removed on drop.
pub struct AuditLog {
    folder: TempDir,
}

impl AuditLog {
    /// A log without events in a new folder.
    ///
    /// # Panics
    ///
    /// The folder cannot be created.
    #[expect(clippy::new_without_default, reason = "creates a folder")]
    pub fn new() -> AuditLog {
        AuditLog { folder: tempfile::tempdir().expect("a folder for the audit log") }
    }

    /// Path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    /// Flag of apid that selects this file.
    pub fn flag(&self) -> String {
        format!("--audit-log-path={}", self.path().display())
    }

    /// Events of all complete lines, oldest first; none while the file is missing.
    ///
    /// # Panics
    ///
    /// A complete line is not JSON.
    pub fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).unwrap_or_default();
        let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        complete.map(|line| serde_json::from_str(line).expect("an audit event")).collect()
    }

    /// Waits for an event that matches. Returns the oldest one.
    ///
    /// # Panics
    ///
    /// No event matches within [`DEADLINE`](super::DEADLINE).
    pub async fn event(&self, description: &str, is_match: impl Fn(&Value) -> bool) -> Value {
        eventually(description, || async { self.events().into_iter().find(&is_match) }).await
    }
}
