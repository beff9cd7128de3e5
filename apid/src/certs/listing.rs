//! `apid certs --list`: a table of the certificates of a folder.

use apimachinery::printable::escape;
use jiff::Timestamp;

use super::CertsError;
use super::folder::Folder;
use crate::console::print;

/// Heads of the columns.
const HEADS: [&str; 7] = ["FILE", "SUBJECT", "SERIAL", "ISSUER", "NOT AFTER", "STATE", "SHA-256"];

/// Prints the table.
pub(super) fn print_list(folder: &Folder, now: Timestamp) -> Result<(), CertsError> {
    print(table(&rows(folder, now)?));
    Ok(())
}

pub(super) fn rows(folder: &Folder, now: Timestamp) -> Result<Vec<[String; 7]>, CertsError> {
    let trust = folder.trust()?;
    let row = |known: super::folder::KnownCertificate| {
        let facts = &known.facts;
        let accepted = if facts.is_renewal_due(now) { "ends soon" } else { "valid" };
        let state = trust.problem(facts, now).unwrap_or(accepted);
        [
            // A replaced certificate has no file and can still be in use.
            known.file.clone().unwrap_or_else(|| "(replaced)".to_owned()),
            facts.subject.clone(),
            facts.serial_text(),
            facts.issuer.clone(),
            facts.not_after.to_string(),
            state.to_owned(),
            facts.fingerprint.clone(),
        ]
    };
    Ok(folder.certificates()?.into_iter().map(row).collect())
}

/// Aligns the columns. Characters without a glyph are escaped.
fn table(rows: &[[String; 7]]) -> String {
    let rows: Vec<[String; 7]> = std::iter::once(HEADS.map(str::to_owned))
        .chain(rows.iter().map(|row| row.clone().map(|cell| escape(&cell))))
        .collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &[String; 7]| {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| format!("{cell:<width$}", width = width(column)))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
