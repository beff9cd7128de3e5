//! The queue of requests for the writer thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::{CommitOutcome, Error, Held, Op, Result, Revision};

/// A commit request and its response channel.
pub(super) struct Commit {
    pub(super) key: Arc<str>,
    pub(super) op: Op,
    pub(super) held: Vec<Held>,
    pub(super) answer: oneshot::Sender<Result<CommitOutcome>>,
}

/// A command for the writer thread, apart from commits.
pub(super) enum WriterCommand {
    Compact {
        upto: Revision,
        answer: oneshot::Sender<Result<()>>,
    },
    /// Runs the periodic maintenance now.
    Maintain {
        answer: oneshot::Sender<Result<()>>,
    },
    Close {
        answer: oneshot::Sender<()>,
    },
}

/// The requests of one pass of the writer thread.
#[derive(Default)]
pub(super) struct QueuedRequests {
    pub(super) commits: Vec<Commit>,
    pub(super) commands: Vec<WriterCommand>,
}

// Maximum number of commits of one batch, and the number of value bytes at which a batch is full. They limit
// the memory of the batch and the latency of its first commit.
const BATCH_COMMITS: usize = 1024;
const BATCH_BYTES: usize = 8 << 20;

#[derive(Default)]
struct QueueState {
    commits: VecDeque<Commit>,
    commands: Vec<WriterCommand>,
    closed: bool,
}

/// The queue; see the module documentation.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    arrived: Condvar,
}

impl Queue {
    /// Adds a commit. Returns `Unavailable` when the queue is closed.
    pub(super) fn send_commit(&self, commit: Commit) -> Result<()> {
        self.send(|state| state.commits.push_back(commit))
    }

    /// Adds a command. Returns `Unavailable` when the queue is closed.
    pub(super) fn send_command(&self, command: WriterCommand) -> Result<()> {
        self.send(|state| state.commands.push(command))
    }

    fn send(&self, add: impl FnOnce(&mut QueueState)) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(Error::closed());
        }
        add(&mut state);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.commits.is_empty() && state.commands.is_empty()
    }

    /// Removes and returns the waiting commits, at most those of one batch, and all commands. Waits for the
    /// first request for at most `timeout`.
    pub(super) fn take(&self, timeout: Duration) -> QueuedRequests {
        let mut state = self.state.lock();
        if state.commits.is_empty() && state.commands.is_empty() {
            self.arrived.wait_for(&mut state, timeout);
        }
        let mut bytes = 0;
        let batch = state.commits.iter().take(BATCH_COMMITS).take_while(|commit| {
            let has_room = bytes < BATCH_BYTES;
            bytes += commit.op.value_length();
            has_room
        });
        let count = batch.count();
        let commits = state.commits.drain(..count).collect();
        QueuedRequests { commits, commands: std::mem::take(&mut state.commands) }
    }

    /// Closes the queue and returns the waiting requests.
    pub(super) fn close(&self) -> QueuedRequests {
        let mut state = self.state.lock();
        state.closed = true;
        QueuedRequests {
            commits: std::mem::take(&mut state.commits).into(),
            commands: std::mem::take(&mut state.commands),
        }
    }
}
