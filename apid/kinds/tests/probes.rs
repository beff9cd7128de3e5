//! Recorded facts about single fields, compared with the rules of the kinds.
//!
//! A fact is a base object with edits, and the answer of kube-apiserver: refused with which causes, or accepted with which
//! defaults. The facts are in the folder `probes` beside `CONFORMANCE_DIR`; its README describes the format. This test runs
//! the rules of a kind without HTTP, authorization and admission, except that a pod gets its default service account.
//! Facts that depend on these differ here.
//!
//! `probes/equal.csv` lists for each kind the number of facts, of equal facts, and of refusals with equal messages. The test
//! fails when a number is smaller, or when a listed kind is not compared. It also fails when a number is larger:
//! `PROBES_UPDATE=1` writes the larger numbers.
//!
//! The folder `off-by-default` has the facts of the kinds that `--runtime-config` enables.
//!
//! `PROBES_ONLY=batch.Job PROBES_SHOW=50 cargo test -p kinds --test integration probes -- --nocapture` prints differences of a kind.
//! `PROBES_PATH=/spec/template` restricts the facts to fields below a pointer.

mod answer;
mod edits;
mod pipeline;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use apimachinery::names::{Names, Preset};
use kinds::{EnabledVersions, Registry};
use serde_json::Value;

use answer::Comparison;
use pipeline::Probe;

/// Numbers of facts of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    facts: usize,
    equal: usize,
    refusals: usize,
    equal_messages: usize,
}

#[test]
fn rules_of_kinds_agree_with_recorded_facts() {
    let mut counts = BTreeMap::new();
    let is_complete = for_each_kind(|name, probe, file| {
        counts.insert(name.to_owned(), compare(name, probe, file));
    });
    if is_complete {
        compare_with_list(&counts);
    }
}

#[test]
fn accepted_objects_pass_their_own_update_unchanged() {
    // kube-apiserver compares the addresses of a node only on updates.
    let is_known = |name: &str, difference: &str| {
        name == "core.Node" && difference.starts_with("status.addresses[1]: Duplicate value")
    };
    let mut differences = Vec::new();
    let mut count = 0;
    for_each_kind(|name, probe, file| {
        for line in fs::read_to_string(file).unwrap().lines() {
            let Some(result) = probe.check_creation(&serde_json::from_str(line).unwrap()) else { continue };
            count += 1;
            if let Err(difference) = result
                && !is_known(name, &difference)
            {
                let edit: String = line.chars().take(200).collect();
                differences.push(format!("{name}: {edit}\n    {difference}"));
            }
        }
    });
    println!("{count} accepted objects");
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Calls a function for each kind that has facts.
/// Returns whether the calls covered all kinds: facts are present, and `PROBES_ONLY` selects no kinds.
fn for_each_kind(mut call: impl FnMut(&str, &Probe<'_>, &Path)) -> bool {
    let Some(folder) = prerequisites::probes() else { return false };
    let only = std::env::var("PROBES_ONLY").ok();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
    let registry = Registry::with_versions(&names, &versions);
    for folder in [folder.clone(), folder.join("off-by-default")] {
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        for file in files {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            if only.as_ref().is_some_and(|only| !only.split(',').any(|kind| name.starts_with(kind))) {
                continue;
            }
            let base = folder.join("bases").join(format!("{name}.json"));
            if let Some(probe) = Probe::new(&registry, &names, &read_json(&base)) {
                call(&name, &probe, &file);
            }
        }
    }
    only.is_none()
}

/// Compares the facts of one kind, and prints differences on request.
fn compare(name: &str, probe: &Probe<'_>, file: &Path) -> Counts {
    let limit: usize = std::env::var("PROBES_SHOW").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let prefix = std::env::var("PROBES_PATH").unwrap_or_default();
    let mut counts = Counts::default();
    let mut printed = 0;
    for line in fs::read_to_string(file).unwrap().lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        if !fact["p"].as_str().unwrap_or("").starts_with(&prefix) {
            continue;
        }
        let Some(answer) = probe.answer(&fact) else { continue };
        let Comparison { differences, same_messages } = answer::compare(&fact, &answer);
        counts.facts += 1;
        counts.equal += usize::from(differences.is_empty());
        if fact["code"].as_u64() >= Some(400) {
            counts.refusals += 1;
            counts.equal_messages += usize::from(same_messages);
        }
        if (!differences.is_empty() || (fact["c"].is_array() && !same_messages)) && printed < limit {
            printed += 1;
            let edit: String = line.chars().take(200).collect();
            println!("{name}: {edit}\n    {}", differences.join("\n    "));
            if differences.is_empty() {
                println!("    messages: expected {}, actual {:?}", fact["c"], answer.causes);
            }
        }
    }
    println!("{name}: {counts:?}");
    counts
}

/// Compares the numbers with the checked-in list.
fn compare_with_list(counts: &BTreeMap<String, Counts>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes/equal.csv");
    let mut text = "kind,facts,equal,refusals,equal_messages\n".to_owned();
    for (kind, Counts { facts, equal, refusals, equal_messages }) in counts {
        writeln!(text, "{kind},{facts},{equal},{refusals},{equal_messages}").unwrap();
    }
    if std::env::var_os("PROBES_UPDATE").is_some() {
        fs::write(&file, text).unwrap();
        return;
    }
    let differences = differences_of_lists(&fs::read_to_string(&file).unwrap(), &text);
    assert!(
        differences.is_empty(),
        "the numbers of equal facts changed. Fewer: correct the rule. More: run with PROBES_UPDATE=1.\n{}",
        differences.join("\n")
    );
}

/// Rows of kinds that differ between the checked-in list and the result, in both directions.
fn differences_of_lists(list: &str, result: &str) -> Vec<String> {
    let row_of = |rows: &str, line: &str| {
        let kind = format!("{},", line.split(',').next().unwrap());
        rows.lines().find(|row| row.starts_with(&kind)).map(str::to_owned)
    };
    let changed = result.lines().filter_map(|line| match row_of(list, line) {
        Some(row) if row == line => None,
        row => Some(format!("{line} (listed: {})", row.unwrap_or("none".to_owned()))),
    });
    let missing = list.lines().filter(|row| row_of(result, row).is_none());
    changed.chain(missing.map(|row| format!("none (listed: {row})"))).collect()
}

#[test]
fn listed_kind_without_result_is_a_difference() {
    let list = "kind,facts\na.A,1\nb.B,2\nc.C,3\n";
    assert_eq!(differences_of_lists(list, list), [""; 0]);
    assert_eq!(
        differences_of_lists(list, "kind,facts\na.A,1\nb.B,1\nd.D,4\n"),
        ["b.B,1 (listed: b.B,2)", "d.D,4 (listed: none)", "none (listed: c.C,3)"]
    );
}

fn read_json(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_json::from_str(&text).unwrap()
}
