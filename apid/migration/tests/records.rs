//! Golden records of a release: discovery, fields, values, gates, metrics and flags, and the rules between two releases.
//!
//! `tests/golden/RELEASE` has the record of each release. This test compares the record of the current release with the
//! program, and with the record of the release before it. The record of an earlier release never changes. To write the
//! record of the current release: `UPDATE=1 cargo test -p migration --test integration records`.

mod collect;
mod keys;
mod rules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rules::Record;

/// Files of a record with their header.
const FILES: [(&str, &str); 4] = [
    ("discovery.csv", "group,version,resource,kind,role"),
    ("fields.csv", "type,field,shape,required,default"),
    ("values.csv", "type,value"),
    ("elements.csv", "class,name,stage,since,deprecated,replacement"),
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden")
}

/// Major and minor version of this program: the name of the folder of its record.
fn release() -> String {
    env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0.to_owned()
}

/// The record in a folder.
fn read(folder: &Path) -> Record {
    let rows = |(file, _): (&str, &str)| {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
    };
    let [discovery, fields, values, elements] = FILES.map(rows);
    Record { discovery, fields, values, elements }
}

fn texts(record: &Record) -> BTreeMap<&'static str, String> {
    let tables = [&record.discovery, &record.fields, &record.values, &record.elements];
    let text = |header: &str, rows: &Vec<Vec<String>>| {
        let lines = rows.iter().map(|row| row.join(","));
        std::iter::once(header.to_owned()).chain(lines).map(|line| line + "\n").collect()
    };
    FILES.iter().zip(tables).map(|((file, header), rows)| (*file, text(header, rows))).collect()
}

#[test]
fn golden_record_of_release_is_current() {
    let folder = golden().join(release());
    for (file, text) in texts(&collect::record()) {
        let path = folder.join(file);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, text).unwrap();
        } else {
            let recorded = fs::read_to_string(&path).unwrap_or_default();
            let first_difference = recorded.lines().zip(text.lines()).find(|(old, new)| old != new);
            assert!(
                recorded == text,
                "{file}: {first_difference:?}; UPDATE=1 writes the record of this release"
            );
        }
    }
}

#[test]
fn release_obeys_deprecation_rules_against_previous_release() {
    let current = collect::record();
    assert_eq!(rules::violations_of_release(&current), [""; 0]);
    let mut releases: Vec<Vec<u32>> = fs::read_dir(golden())
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.split('.').map(|part| part.parse().ok()).collect()
        })
        .collect();
    releases.sort();
    let current_release: Vec<u32> = release().split('.').map(|part| part.parse().unwrap()).collect();
    if let Some(previous) = releases.iter().rfind(|release| **release < current_release) {
        let name = previous.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
        assert_eq!(rules::violations_between(&read(&golden().join(name)), &current), [""; 0]);
    }
    // The record on disk has the form that the next release reads.
    assert_eq!(rules::violations_between(&read(&golden().join(release())), &current), [""; 0]);
}
