//! `apid deprecations`: uses of deprecated and removed API versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use apimachinery::codec::json;
use clap::{CommandFactory as _, Parser};
use migration::deprecations::{Finding, Report};
use migration::documents;
use serde_json::Value;

use super::{MAX_AUDIT_LOG, MAX_INPUT, PresetFlags, read, run_command};
use crate::console::{fail, print};
use crate::server_source::ServerSource;

/// Exit code if the sources contain a use of a deprecated or removed API version.
const USES: u8 = 2;

/// Lists uses of deprecated and removed API versions with their replacement, the release of removal, and the changes.
///
/// The exit code is 2 if the sources contain a use.
#[derive(Debug, Parser)]
#[command(name = "apid deprecations", disable_version_flag = true)]
struct DeprecationsFlags {
    /// Metrics of a server: the URL of /metrics, or a file with its content; repeatable
    #[arg(long, value_name = "URL|FILE")]
    metrics: Vec<String>,
    /// Audit log; `-` is standard input; repeatable
    #[arg(long, value_name = "FILE")]
    audit: Vec<PathBuf>,
    /// Folder of manifests in files *.yaml, *.yml and *.json, with its subfolders, or one file; repeatable
    #[arg(long, value_name = "DIR")]
    manifests: Vec<PathBuf>,
    /// Format of the output: text or json
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
    /// CA bundle of the server; default: that of the system
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// File with a bearer token for the server
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Client certificate for the server; needs --client-key
    #[arg(long, value_name = "FILE")]
    client_certificate: Option<PathBuf>,
    /// Private key of --client-certificate
    #[arg(long, value_name = "FILE")]
    client_key: Option<PathBuf>,
    #[command(flatten)]
    preset: PresetFlags,
}

/// Format of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutputFormat {
    /// A paragraph for each version.
    Text,
    /// A list of objects.
    Json,
}

/// The command line after `apid`.
pub(crate) fn command() -> clap::Command {
    DeprecationsFlags::command()
}

/// Runs `apid deprecations`. `arguments` are those after the word `deprecations`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    run_command(DeprecationsFlags::command(), arguments, report)
}

fn report(flags: DeprecationsFlags) -> Result<ExitCode, Vec<String>> {
    let mut errors = Vec::new();
    if flags.metrics.is_empty() && flags.audit.is_empty() && flags.manifests.is_empty() {
        errors.push("no source: use --metrics, --audit or --manifests".to_owned());
    }
    if flags.client_certificate.is_some() != flags.client_key.is_some() {
        errors.push("`--client-certificate` and `--client-key` need each other".to_owned());
    }
    let names = flags.preset.names().map_err(|error| errors.push(error));
    let (Ok(names), true) = (names, errors.is_empty()) else { return Err(errors) };
    let mut report = Report::new(&names);
    if let Err(error) = flags.read_sources(&mut report) {
        return Ok(fail(error));
    }
    let findings = report.findings();
    let success = print(flags.format(&findings));
    Ok(if findings.is_empty() { success } else { ExitCode::from(USES) })
}

impl DeprecationsFlags {
    fn read_sources(&self, report: &mut Report<'_>) -> Result<(), String> {
        for source in &self.metrics {
            let text = self.metrics_text(source)?;
            check_metrics(&text).map_err(|error| format!("`{source}`: {error}"))?;
            report.add_metrics(&text);
        }
        for path in &self.audit {
            report
                .add_audit(&read(path, MAX_AUDIT_LOG)?)
                .map_err(|error| format!("`{}`: {error}", path.display()))?;
        }
        for path in &self.manifests {
            for file in manifest_files(path).map_err(|error| format!("`{}`: {error}", path.display()))? {
                let name = file.display().to_string();
                let objects = documents::split(&read(&file, MAX_INPUT)?)
                    .map_err(|error| format!("`{name}`: {error}"))?;
                objects.iter().for_each(|object| report.add_manifest(&name, object));
            }
        }
        Ok(())
    }

    /// Returns the metrics text from a URL or from a file.
    fn metrics_text(&self, source: &str) -> Result<String, String> {
        if !source.starts_with("http://") && !source.starts_with("https://") {
            return read(Path::new(source), MAX_INPUT);
        }
        let server = ServerSource {
            server: source.to_owned(),
            kubeconfig: None,
            authority: self.certificate_authority.clone(),
            token: self.token_file.clone(),
            certificate: self.client_certificate.clone().zip(self.client_key.clone()),
        };
        server.text().map_err(|error| format!("`{source}`: {error}"))
    }

    fn format(&self, findings: &[Finding]) -> Vec<u8> {
        match self.output {
            OutputFormat::Json => {
                let list: Vec<Value> = findings.iter().map(Finding::to_json).collect();
                let mut text = json::encode_pretty(&Value::Array(list));
                text.push(b'\n');
                text
            }
            OutputFormat::Text if findings.is_empty() => b"no uses of deprecated API versions\n".to_vec(),
            OutputFormat::Text => {
                findings.iter().map(Finding::text).collect::<Vec<_>>().join("\n").into_bytes()
            }
        }
    }
}

/// Checks that a text is in the text format of metrics, and that it has at least one metric.
fn check_metrics(text: &str) -> Result<(), String> {
    let is_comment = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let mut has_metric = false;
    for (number, line) in (1..).zip(text.lines()) {
        if !is_comment(line) && !is_sample(line.trim()) {
            let hint = "use the URL or the content of /metrics";
            return Err(format!("line {number} is not in the text format of metrics; {hint}"));
        }
        has_metric |= !is_comment(line);
    }
    if has_metric { Ok(()) } else { Err("the text has no metric".to_owned()) }
}

/// Whether a line is `NAME VALUE` or `NAME{LABELS} VALUE`, with an optional time.
fn is_sample(line: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':'))
    };
    let (name, rest) = match line.split_once('{') {
        Some((name, labels)) => match labels.rsplit_once('}') {
            Some((_, rest)) => (name, rest),
            None => return false,
        },
        None => line.split_once([' ', '\t']).unwrap_or((line, "")),
    };
    let value = rest.split_ascii_whitespace().next();
    is_name(name.trim()) && value.is_some_and(|value| value.parse::<f64>().is_ok())
}

/// Returns the files with manifests below a folder, sorted. For the path of a file, returns this path.
fn manifest_files(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?.path();
        let is_manifest = entry
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension));
        if entry.is_dir() {
            files.extend(manifest_files(&entry)?);
        } else if is_manifest {
            files.push(entry);
        }
    }
    files.sort();
    Ok(files)
}
