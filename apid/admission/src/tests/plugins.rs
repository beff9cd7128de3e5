//! The table of plugins in `docs/compatibility.md` agrees with [`PLUGINS`].

use super::*;

const DOCUMENT: &str = include_str!("../../../../docs/compatibility.md");

/// The plugins of a row of the table.
fn documented(state: &str) -> Vec<&'static str> {
    let begin = format!("| {state} | ");
    let row = DOCUMENT.lines().find_map(|line| line.strip_prefix(&begin)).unwrap();
    let names = row.split([';', '|']).next().unwrap();
    names.split(',').map(str::trim).collect()
}

#[test]
fn documented_plugins_equal_implemented_ones() {
    let names_where = |is_listed: &dyn Fn(&PluginEntry) -> bool| -> Vec<&str> {
        PLUGINS.iter().filter(|entry| is_listed(entry)).map(|entry| entry.name).collect()
    };
    let on_by_default = names_where(&|entry| entry.build.is_some() && entry.on_by_default);
    let off_by_default = names_where(&|entry| entry.build.is_some() && !entry.on_by_default);
    assert_eq!(documented("on by default"), on_by_default);
    assert_eq!(documented("off by default"), off_by_default);
    assert_eq!(documented("not built"), names_where(&|entry| entry.build.is_none()));
}
