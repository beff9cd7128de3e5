//! `apid audit-tail`: shows the events of an audit log that match filters.
//!
//! # Contract
//!
//! The command reads a JSON audit log and needs no server. Without `--stage`, it shows the events of all stages
//! except `RequestReceived`. With `--follow` it continues with new events, even after a rotation of the log.
//!
//! A line that is no event, such as the rest of a line after a full disk, is skipped with a warning. A log without any
//! event is an error.
//!
//! Names in the output are free texts of clients: control and bidirectional characters are escaped.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use apimachinery::printable::{escape, escape_json};
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use processflags::command_line::{self, ParsedLine};
use serde_json::Value;

use crate::console::{fail, print, report_errors};

/// Time between two reads of a log with `--follow`.
const POLL: Duration = Duration::from_millis(300);

/// Shows the events of an audit log that match all filters.
#[derive(Debug, Parser)]
#[command(name = "apid audit-tail", disable_version_flag = true)]
struct TailFlags {
    /// Audit log in JSON; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// User, or impersonated user, of the request; repeatable
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Verb of the request; repeatable
    #[arg(long, value_name = "VERB")]
    verb: Vec<String>,
    /// Resource `NAME[.GROUP][/SUBRESOURCE]` of the request; repeatable. Without a group: of all groups. `*` is each
    /// subresource
    #[arg(long, value_name = "RESOURCE")]
    resource: Vec<ResourceFilter>,
    /// Namespace of the request; repeatable
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// HTTP status code of the response: `403`, `4xx` or `400-499`; repeatable
    #[arg(long, value_name = "CODE")]
    code: Vec<CodeFilter>,
    /// Stage of the event; repeatable; default: all except RequestReceived
    #[arg(long, value_name = "STAGE")]
    stage: Vec<String>,
    /// Number of the last matching events to show, or `all`
    #[arg(long, value_name = "COUNT", default_value = "10")]
    lines: Lines,
    /// Continue with new events
    #[arg(short, long)]
    follow: bool,
    /// Format of the output: text, or json for whole events
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    Text,
    Json,
}

/// The reason why the value of a flag is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum FilterError {
    #[error("not a status code: use `403`, `4xx` or `400-499`")]
    Code,
    #[error("not a number of events above 0, and not `all`")]
    Lines,
    #[error("not a resource: use NAME[.GROUP][/SUBRESOURCE]")]
    Resource,
}

/// The number of events to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lines(usize);

impl FromStr for Lines {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        match text {
            "all" => Ok(Lines(usize::MAX)),
            text => text.parse().ok().filter(|lines| *lines > 0).map(Lines).ok_or(FilterError::Lines),
        }
    }
}

/// An inclusive range of status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodeFilter {
    first: u64,
    last: u64,
}

impl FromStr for CodeFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let code = |text: &str| text.parse().ok().filter(|code| (100..=599).contains(code));
        let range = match text.split_once('-') {
            Some((first, last)) => code(first).zip(code(last)),
            None => match text.strip_suffix("xx") {
                Some(class) => code(&format!("{class}00")).map(|first| (first, first + 99)),
                None => code(text).map(|code| (code, code)),
            },
        };
        let (first, last) = range.filter(|(first, last)| first <= last).ok_or(FilterError::Code)?;
        Ok(CodeFilter { first, last })
    }
}

/// A resource, with an optional group and subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResourceFilter {
    resource: String,
    /// None means each group.
    group: Option<String>,
    /// `*`: each subresource.
    subresource: String,
}

impl FromStr for ResourceFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        let (resource, subresource) = text.split_once('/').unwrap_or((text, ""));
        let (resource, group) = match resource.split_once('.') {
            Some((resource, group)) => (resource, Some(group.to_owned())),
            None => (resource, None),
        };
        if resource.is_empty() || group.as_deref() == Some("") {
            return Err(FilterError::Resource);
        }
        Ok(ResourceFilter { resource: resource.to_owned(), group, subresource: subresource.to_owned() })
    }
}

impl ResourceFilter {
    fn matches(&self, event: &Value) -> bool {
        let subresource = text(event, "/objectRef/subresource");
        text(event, "/objectRef/resource") == self.resource
            && self.group.as_deref().is_none_or(|group| group == text(event, "/objectRef/apiGroup"))
            && (self.subresource == subresource || self.subresource == "*" && !subresource.is_empty())
    }
}

fn text<'e>(event: &'e Value, pointer: &str) -> &'e str {
    event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The command line after `apid`.
pub(crate) fn command() -> clap::Command {
    TailFlags::command()
}

/// Runs `apid audit-tail`. `arguments` are those after the word `audit-tail`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    let flags = match command_line::parse(TailFlags::command(), arguments) {
        Ok(ParsedLine::Text(text)) => return print(text),
        Ok(ParsedLine::Flags { matches, errors }) if errors.is_empty() => {
            TailFlags::from_arg_matches(&matches).map_err(|error| vec![error.to_string()])
        }
        Ok(ParsedLine::Flags { errors, .. }) | Err(errors) => Err(errors),
    };
    match flags {
        Ok(flags) => match flags.show(&mut io::stdout().lock(), &mut io::stderr()) {
            Ok(()) => ExitCode::SUCCESS,
            // A reader that has closed its end of the pipe, for example `head`, has seen enough.
            Err(TailError::Output(_)) => ExitCode::SUCCESS,
            Err(error) => fail(error),
        },
        Err(errors) => report_errors("apid", &errors),
    }
}

/// The reason why the command ends early.
#[derive(Debug, thiserror::Error)]
enum TailError {
    #[error("audit log `{}`: {error}", .path.display())]
    Log { path: PathBuf, error: io::Error },
    #[error("audit log `{}`: line {line}: {error}; an audit log has one JSON event in each line", .path.display())]
    Line { path: PathBuf, line: usize, error: serde_json::Error },
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl TailFlags {
    /// Writes the matching events to `out`. With `--follow` it ends only with an error.
    fn show(&self, out: &mut impl io::Write, warnings: &mut impl io::Write) -> Result<(), TailError> {
        let mut log = Log::open(&self.file)?;
        let mut last = VecDeque::new();
        while let Some(event) = log.next_event()? {
            if self.matches(&event) {
                if last.len() >= self.lines.0 {
                    last.pop_front();
                }
                last.push_back(self.format(&event));
            }
        }
        log.report_skipped(warnings)?;
        for line in last {
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        if !self.follow {
            return Ok(());
        }
        loop {
            std::thread::sleep(POLL);
            log.reopen_if_replaced()?;
            while let Some(event) = log.next_event()? {
                if self.matches(&event) {
                    writeln!(out, "{}", self.format(&event))?;
                }
            }
            log.report_skipped(warnings)?;
            out.flush()?;
        }
    }

    /// Whether an event matches each kind of filter that is given.
    fn matches(&self, event: &Value) -> bool {
        let is_listed =
            |list: &[String], found: &str| list.is_empty() || list.iter().any(|wanted| wanted == found);
        let users = [text(event, "/user/username"), text(event, "/impersonatedUser/username")];
        let code = event.pointer("/responseStatus/code").and_then(Value::as_u64);
        let has_code =
            |filter: &CodeFilter| code.is_some_and(|code| (filter.first..=filter.last).contains(&code));
        let stage = text(event, "/stage");
        (self.user.is_empty() || users.iter().any(|user| is_listed(&self.user, user) && !user.is_empty()))
            && is_listed(&self.verb, text(event, "/verb"))
            && (self.resource.is_empty() || self.resource.iter().any(|filter| filter.matches(event)))
            && is_listed(&self.namespace, text(event, "/objectRef/namespace"))
            && (self.code.is_empty() || self.code.iter().any(has_code))
            && (is_listed(&self.stage, stage) && !(self.stage.is_empty() && stage == "RequestReceived"))
    }

    fn format(&self, event: &Value) -> String {
        match self.output {
            OutputFormat::Json => escape_json(event.to_string()),
            OutputFormat::Text => escape(&describe(event)),
        }
    }
}

/// Formats an event: time, code, verb, target, user, and the message of a failure.
fn describe(event: &Value) -> String {
    let code = event.pointer("/responseStatus/code").and_then(Value::as_u64);
    let code = code.map_or_else(|| "-".to_owned(), |code| code.to_string());
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let user = or_dash(text(event, "/user/username"));
    let impersonated = text(event, "/impersonatedUser/username");
    let impersonated = if impersonated.is_empty() { String::new() } else { format!(" as {impersonated}") };
    let stage = match text(event, "/stage") {
        "ResponseComplete" => String::new(),
        stage => format!(" [{stage}]"),
    };
    let message = match text(event, "/responseStatus/message") {
        "" => String::new(),
        message => format!(": {message}"),
    };
    format!(
        "{} {code} {} {} by {user}{impersonated}{stage}{message}",
        text(event, "/stageTimestamp"),
        or_dash(text(event, "/verb")),
        target(event),
    )
}

/// Formats the target of a request: `pods/log.GROUP NAMESPACE/NAME`, or the path.
fn target(event: &Value) -> String {
    let part = |name: &str| text(event, &format!("/objectRef/{name}"));
    let join = |first: &str, separator: &str, second: &str| match (first.is_empty(), second.is_empty()) {
        (_, true) => first.to_owned(),
        (true, false) => second.to_owned(),
        (false, false) => format!("{first}{separator}{second}"),
    };
    if part("resource").is_empty() {
        return text(event, "/requestURI").to_owned();
    }
    let resource = join(&join(part("resource"), ".", part("apiGroup")), "/", part("subresource"));
    // The namespace of a request for a Namespace is the name of that object.
    let namespace = if part("resource") == "namespaces" { "" } else { part("namespace") };
    let object = match (namespace.is_empty(), part("name").is_empty()) {
        (false, true) => format!("{namespace}/"),
        _ => join(namespace, "/", part("name")),
    };
    join(&resource, " ", &object)
}

/// An audit log that a server may still write and rotate.
struct Log {
    path: PathBuf,
    reader: BufReader<Box<dyn Read>>,
    /// Device and inode of the open file; None for standard input.
    id: Option<(u64, u64)>,
    /// A line whose end is not written yet.
    partial: Vec<u8>,
    line: usize,
    /// Whether an event has been read.
    has_event: bool,
    /// Lines without an event since the last report.
    skipped: Option<Skipped>,
}

/// Lines without an event.
struct Skipped {
    lines: usize,
    first: TailError,
}

impl Log {
    fn open(path: &Path) -> Result<Self, TailError> {
        let (input, id): (Box<dyn Read>, _) = if path == Path::new("-") {
            (Box::new(io::stdin()), None)
        } else {
            let open = || {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                Ok((file, (metadata.dev(), metadata.ino())))
            };
            let (file, id) = open().map_err(|error| TailError::Log { path: path.to_owned(), error })?;
            (Box::new(file), Some(id))
        };
        let reader = BufReader::with_capacity(256 * 1024, input);
        let path = path.to_owned();
        Ok(Log { path, reader, id, partial: Vec::new(), line: 0, has_event: false, skipped: None })
    }

    /// Returns the next event and skips lines without an event; None at the present end of the log.
    fn next_event(&mut self) -> Result<Option<Value>, TailError> {
        loop {
            let read = self.reader.read_until(b'\n', &mut self.partial);
            read.map_err(|error| TailError::Log { path: self.path.clone(), error })?;
            let is_whole_line = self.partial.last() == Some(&b'\n');
            let parsed = serde_json::from_slice::<Value>(&self.partial);
            if !is_whole_line && parsed.is_err() {
                return Ok(None);
            }
            self.line += 1;
            let is_empty = self.partial.iter().all(u8::is_ascii_whitespace);
            self.partial.clear();
            match parsed {
                _ if is_empty => {}
                Ok(event) => {
                    self.has_event = true;
                    return Ok(Some(event));
                }
                Err(error) => {
                    let first = TailError::Line { path: self.path.clone(), line: self.line, error };
                    self.skipped.get_or_insert(Skipped { lines: 0, first }).lines += 1;
                }
            }
        }
    }

    /// Writes a warning about the skipped lines.
    ///
    /// # Errors
    ///
    /// The log has no event: the file is no audit log.
    fn report_skipped(&mut self, warnings: &mut impl io::Write) -> Result<(), TailError> {
        let Some(Skipped { lines, first }) = self.skipped.take() else { return Ok(()) };
        if !self.has_event {
            return Err(first);
        }
        // A warning that cannot be written must not end the output.
        let _ = writeln!(warnings, "apid: warning: lines skipped: {lines}; the first: {first}");
        Ok(())
    }

    /// Opens the path again if it names another file, because the server has rotated the log.
    fn reopen_if_replaced(&mut self) -> Result<(), TailError> {
        let Some(id) = self.id else { return Ok(()) };
        // Without the path the server is about to create the file.
        let Ok(metadata) = std::fs::metadata(&self.path) else { return Ok(()) };
        if (metadata.dev(), metadata.ino()) == id {
            return Ok(());
        }
        // Lines that were written between the last read and the rotation.
        let mut rest = std::mem::take(&mut self.partial);
        let read = self.reader.read_to_end(&mut rest);
        read.map_err(|error| TailError::Log { path: self.path.clone(), error })?;
        if rest.last().is_some_and(|byte| *byte != b'\n') {
            // The next line belongs to the new file.
            rest.push(b'\n');
        }
        let Log { path, reader, id, .. } = Log::open(&self.path)?;
        let reader: BufReader<Box<dyn Read>> = BufReader::new(Box::new(io::Cursor::new(rest).chain(reader)));
        let (has_event, skipped) = (self.has_event, self.skipped.take());
        *self = Log { path, reader, id, partial: Vec::new(), line: 0, has_event, skipped };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn event(user: &str, verb: &str, resource: &str, code: u64) -> Value {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        json!({
            "stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "stageTimestamp": "T",
            "requestURI": "/x", "responseStatus": {"code": code},
            "objectRef": {
                "resource": resource, "apiGroup": group, "subresource": subresource, "namespace": "a", "name": "n"
            },
        })
    }

    fn log() -> Vec<Value> {
        let mut first = event("alice", "get", "pods", 200);
        first["stage"] = "RequestReceived".into();
        let mut as_bob = event("alice", "list", "deployments.apps", 200);
        as_bob["impersonatedUser"] = json!({"username": "bob"});
        let path = json!({
            "stage": "ResponseStarted", "verb": "get", "user": {}, "stageTimestamp": "T", "requestURI": "/version",
            "responseStatus": {"code": 401, "message": "Unauthorized"},
        });
        vec![
            first,
            event("alice", "get", "pods", 200),
            event("alice\u{1b}", "create", "pods/exec", 403),
            as_bob,
            path,
        ]
    }

    fn shown(flags: &[&str]) -> Vec<String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for event in log() {
            writeln!(file, "{event}").unwrap();
        }
        let words = [&["audit-tail", file.path().to_str().unwrap()], flags].concat();
        let mut out = Vec::new();
        TailFlags::try_parse_from(words).unwrap().show(&mut out, &mut Vec::new()).unwrap();
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn filters_select_events_by_user_verb_resource_namespace_code_and_stage() {
        let (pod, exec, list, path) = (
            "T 200 get pods a/n by alice",
            "T 403 create pods/exec a/n by alice\\u{1b}",
            "T 200 list deployments.apps a/n by alice as bob",
            "T 401 get /version by - [ResponseStarted]: Unauthorized",
        );
        for (flags, expected) in [
            (&[][..], &[pod, exec, list, path][..]),
            (&["--lines=2"], &[list, path]),
            (&["--user=bob"], &[list]),
            (&["--user=alice", "--user=bob"], &[pod, list]),
            (&["--verb=get"], &[pod, path]),
            (&["--verb=get", "--resource=pods"], &[pod]),
            (&["--resource=pods/exec"], &[exec]),
            (&["--resource=pods/*"], &[exec]),
            (&["--resource=deployments"], &[list]),
            (&["--resource=deployments.batch"], &[]),
            (&["-n", "a", "--code=2xx"], &[pod, list]),
            (&["--code=401", "--code=403-404"], &[exec, path]),
            (&["--stage=ResponseStarted"], &[path]),
            (&["--stage=RequestReceived"], &["T 200 get pods a/n by alice [RequestReceived]"]),
        ] {
            assert_eq!(shown(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn json_output_has_whole_events() {
        let lines = shown(&["-o", "json", "--code=401"]);
        assert_eq!(lines.len(), 1);
        assert_eq!(serde_json::from_str::<Value>(&lines[0]).unwrap(), log()[4]);
    }

    #[test]
    fn invalid_filters_and_lines_are_named() {
        for flags in ["--code=9", "--code=500-400", "--resource=.apps", "--lines=0", "--lines=few"] {
            assert!(TailFlags::try_parse_from(["audit-tail", "x", flags]).is_err(), "{flags}");
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "\nno event\n").unwrap();
        let flags = TailFlags::try_parse_from(["audit-tail", file.path().to_str().unwrap()]).unwrap();
        let error = flags.show(&mut Vec::new(), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("one JSON event"), "{error}");
    }

    #[test]
    fn lines_without_event_are_skipped_with_a_warning() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let event = event("alice", "get", "pods", 200);
        write!(file, "{event}\n{{\"kind\":\"Ev\n\n{event}\nx\n").unwrap();
        let flags = TailFlags::try_parse_from(["audit-tail", file.path().to_str().unwrap()]).unwrap();
        let (mut out, mut warnings) = (Vec::new(), Vec::new());
        flags.show(&mut out, &mut warnings).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
        let warnings = String::from_utf8(warnings).unwrap();
        assert!(warnings.contains("skipped: 2;") && warnings.contains("line 2"), "{warnings}");
    }

    #[test]
    fn rotated_log_is_followed_without_losing_events() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, "1\n2").unwrap();
        let mut log = Log::open(&path).unwrap();
        let read = |log: &mut Log| {
            let events = std::iter::from_fn(|| log.next_event().unwrap());
            events.map(|event| event.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(read(&mut log), ["1", "2"]);
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::fs::rename(&path, folder.path().join("audit-1.log")).unwrap();
        file.write_all(b"\n3\n").unwrap();
        file.write_all(b"{fragment").unwrap();
        std::fs::write(&path, "4\n").unwrap();
        log.reopen_if_replaced().unwrap();
        assert_eq!(read(&mut log), ["3", "4"]);
    }
}
