//! `apid convert`: conversion of manifests between API versions.
//!
//! # Contract
//!
//! The command prints one converted manifest by itself, and several manifests as a List, as the convert
//! plugin of kubectl does. The input has at most 64 MiB. After an error in any manifest, nothing is printed to
//! standard output. An output version that no kind has, or that no manifest of the input can have, is an error.

use std::path::PathBuf;
use std::process::ExitCode;

use apimachinery::clock::{SystemClock, SystemRng};
use apimachinery::codec::{json, yaml};
use apimachinery::gvk::GroupVersion;
use apimachinery::object::{Object, Value};
use clap::{CommandFactory as _, Parser};
use migration::{Converter, documents};

use super::{Format, MAX_INPUT, PresetFlags, read, run_command};
use crate::console::{fail, print};

/// Converts manifests between API versions, also from and to versions that are no longer served.
///
/// A manifest whose kind the output version does not have keeps its version; a removed version is replaced. Values that an old version defaults
/// are written out to keep the meaning; they can differ from the best choice for the new version. Warnings on
/// standard error name them.
#[derive(Debug, Parser)]
#[command(name = "apid convert", disable_version_flag = true)]
struct ConvertFlags {
    /// File with manifests in YAML or JSON; `-` is standard input; repeatable
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Version of the output: GROUP/VERSION, or VERSION for the core group; default: that of each manifest, or the
    /// replacement of a removed version
    #[arg(long, value_name = "GROUP/VERSION")]
    output_version: Option<String>,
    /// Format of the output
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: Format,
    #[command(flatten)]
    preset: PresetFlags,
}

/// The command line after `apid`.
pub(crate) fn command() -> clap::Command {
    ConvertFlags::command()
}

/// Runs `apid convert`. `arguments` are those after the word `convert`.
pub fn run(arguments: impl IntoIterator<Item = String>) -> ExitCode {
    run_command(ConvertFlags::command(), arguments, convert)
}

fn convert(flags: ConvertFlags) -> Result<ExitCode, Vec<String>> {
    let mut errors = Vec::new();
    if flags.filename.is_empty() {
        errors.push("`--filename` is missing; use `-f FILE`, or `-f -` for standard input".to_owned());
    }
    let target = flags.output_version.as_deref().map(|text| (text, GroupVersion::parse(text)));
    if let Some((text, None)) = &target {
        errors
            .push(format!("`--output-version={text}`: use GROUP/VERSION, for example networking.DOMAIN/v1"));
    }
    let names = flags.preset.names().map_err(|error| errors.push(error));
    let (Ok(names), true) = (names, errors.is_empty()) else { return Err(errors) };
    let target = target.and_then(|(_, target)| target);

    let (clock, rng) = (SystemClock::new(), SystemRng);
    let converter = Converter::new(&names, &clock, &rng);
    if let Some(target) = &target {
        converter
            .check_target(target)
            .map_err(|error| vec![format!("`--output-version={target}`: {error}")])?;
    }
    let mut converted = Vec::new();
    let mut has_target = false;
    let mut remaining_bytes = MAX_INPUT;
    for path in &flags.filename {
        let text = match read(path, MAX_INPUT) {
            Ok(text) => text,
            Err(error) => return Ok(fail(error)),
        };
        remaining_bytes = match remaining_bytes.checked_sub(text.len() as u64) {
            Some(remaining_bytes) => remaining_bytes,
            None => return Ok(fail(format!("the files are larger than {} MiB together", MAX_INPUT >> 20))),
        };
        let objects = match documents::split(&text) {
            Ok(objects) => objects,
            Err(error) => return Ok(fail(format!("`{}`: {error}", path.display()))),
        };
        for object in objects {
            let title = title(&object);
            match converter.convert(object, target.as_ref()) {
                Ok(conversion) => {
                    conversion.warnings.iter().for_each(|warning| eprintln!("Warning: {title}: {warning}"));
                    has_target |= target
                        .as_ref()
                        .is_some_and(|target| target.to_string() == conversion.object.api_version());
                    converted.push(conversion.object.into_value());
                }
                Err(error) => return Ok(fail(format!("`{}`: {title}: {error}", path.display()))),
            }
        }
    }
    if converted.is_empty() {
        return Ok(fail("the input has no manifest"));
    }
    if let Some(target) = target.filter(|_| !has_target) {
        return Ok(fail(format!(
            "`--output-version={target}`: no manifest of the input converts to this version"
        )));
    }
    Ok(print(encode(converted, flags.output)))
}

/// Returns kind and name of a manifest for a message.
fn title(object: &Object) -> String {
    match object.name() {
        "" => object.kind().to_owned(),
        name => format!("{} `{name}`", object.kind()),
    }
}

/// Encodes the output: one manifest by itself, several manifests as a List.
fn encode(mut converted: Vec<Value>, format: Format) -> Vec<u8> {
    let value = match (converted.len(), converted.pop()) {
        (1, Some(manifest)) => manifest,
        (_, last) => {
            converted.extend(last);
            serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": converted})
        }
    };
    match format {
        Format::Yaml => yaml::encode(&value),
        Format::Json => {
            let mut text = json::encode_pretty(&value);
            text.push(b'\n');
            text
        }
    }
}
