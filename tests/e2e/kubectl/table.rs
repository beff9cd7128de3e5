//! Parser of kubectl table output.

use std::collections::BTreeMap;

/// The cells of a row by column title.
pub(super) type Row = BTreeMap<String, String>;

/// Columns that contain a time.
const TIME_COLUMNS: [&str; 4] = ["AGE", "CREATED AT", "FIRST SEEN", "LAST SEEN"];

/// Placeholder for a time.
const TIME_PLACEHOLDER: &str = "(time)";

/// Parses the ordered columns and the rows.
///
/// A column starts at its title; at least two blanks separate titles. Time cells must not be empty and become
/// a placeholder.
pub(super) fn parse(text: &str) -> (Vec<String>, Vec<Row>) {
    let mut lines = text.lines();
    let header: Vec<char> = lines.next().unwrap_or_default().chars().collect();
    let is_blank = |at: usize| header.get(at).is_none_or(|c| *c == ' ');
    let starts: Vec<usize> = (0..header.len())
        .filter(|&at| !is_blank(at) && (at == 0 || (is_blank(at - 1) && (at < 2 || is_blank(at - 2)))))
        .collect();
    let cells = |line: &[char]| -> Vec<String> {
        let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
        let cell = |(start, end): (usize, usize)| {
            let end = end.min(line.len());
            line.get(start.min(end)..end).unwrap_or_default().iter().collect::<String>().trim().to_owned()
        };
        starts.iter().copied().zip(ends).map(cell).collect()
    };
    let columns = cells(&header);
    let rows = lines.map(|line| {
        let cells = cells(&line.chars().collect::<Vec<_>>());
        let mut row: Row = columns.iter().cloned().zip(cells).collect();
        for column in TIME_COLUMNS {
            if let Some(cell) = row.get_mut(column) {
                assert!(!cell.is_empty(), "{column} is empty in\n{text}");
                TIME_PLACEHOLDER.clone_into(cell);
            }
        }
        row
    });
    let rows = rows.collect();
    (columns, rows)
}

/// Renders one line with the columns and one line with the cells of a row.
pub(super) fn render(columns: &[String], row: &Row) -> String {
    let cells: Vec<&str> = columns.iter().map(|column| row.get(column).map_or("", String::as_str)).collect();
    format!("{}\n{}\n", columns.join(" | "), cells.join(" | "))
}

#[test]
fn table_columns_start_at_titles() {
    let (columns, rows) =
        parse("NAME   NOMINATED NODE   AGE\na      <none>           5d\nb                       1s\n");
    assert_eq!(columns, ["NAME", "NOMINATED NODE", "AGE"]);
    assert_eq!(render(&columns, &rows[0]), "NAME | NOMINATED NODE | AGE\na | <none> | (time)\n");
    assert_eq!(rows[1]["NOMINATED NODE"], "");
}
