//! Child process from the perspective of the test: its records and its end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::child::{AFTER, DIR, GENERATION};
use super::model::Model;
use super::record::Record;

/// Time limit for the next line of a child process that opens its store and reports the content.
const DEADLINE: Duration = Duration::from_secs(60);

/// Running child process. Drop kills it.
pub struct Session {
    child: Child,
    records: Receiver<Record>,
}

impl Session {
    /// Starts a child process on the store in a directory.
    pub fn start(store: &Path, generation: u64, model: &mut Model) -> Session {
        model.begin_process();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["crash::child::child", "--exact", "--nocapture", "--test-threads=1"]);
        command
            .env(DIR, store)
            .env(GENERATION, generation.to_string())
            .env(AFTER, model.revision().to_string());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let (sender, records) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            while out.read_line(&mut line).is_ok_and(|read| read > 0) {
                if let Some(record) = line.strip_suffix('\n').and_then(Record::parse) {
                    // The receiver is missing only after the test has failed.
                    let _ = sender.send(record);
                }
                line.clear();
            }
        });
        Session { child, records }
    }

    /// Passes records to the model until the store is open and its content is compared.
    pub fn wait_until_open(&self, model: &mut Model) -> Result<(), String> {
        while !model.is_open() {
            match self.records.recv_timeout(DEADLINE) {
                Ok(record) => model.process_record(record)?,
                Err(RecvTimeoutError::Timeout) => return Err("the store hangs while it opens".to_owned()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("the process ended while it opened the store".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Passes all pending records to the model.
    pub fn process_pending_records(&self, model: &mut Model) -> Result<(), String> {
        self.records.try_iter().try_for_each(|record| model.process_record(record))
    }

    /// Kills the process and passes the remaining records to the model.
    pub fn kill(mut self, model: &mut Model) -> Result<(), String> {
        self.end();
        self.records.iter().try_for_each(|record| model.process_record(record))
    }

    fn end(&mut self) {
        // The process may have ended already; afterwards it has ended in any case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}
