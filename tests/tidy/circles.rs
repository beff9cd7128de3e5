//! No import cycle of two files: of two files in a crate, at most one imports the other.
//!
//! # Contract
//!
//! The parser reads `use` items and paths that begin with `crate`, `self`, `super` or a child module. It follows
//! names that a module imports, so that an import through `mod.rs` counts as an import of the file with the item.
//! A module and its descendants may import each other. Test code does not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, report, rust_sources};

/// Allowed import cycles: both files in alphabetical order, and what they import from each other, or the reason.
const ALLOWED_CYCLES: &[(&str, &str, &str)] = &[
    (
        "apid/verbs/src/component_statuses.rs",
        "apid/verbs/src/list.rs",
        "`component_statuses::list`, `ListResult`",
    ),
    ("apid/verbs/src/patch/mod.rs", "apid/verbs/src/scale.rs", "`scale::patch`, `Patch`"),
    ("apid/verbs/src/scale.rs", "apid/verbs/src/update.rs", "`scale::update`, `uid_conflict`"),
    ("policies/expressions/src/list.rs", "policies/expressions/src/value.rs", "a list contains values"),
    ("policies/expressions/src/map.rs", "policies/expressions/src/value.rs", "a map contains values"),
];

/// Maximum number of imports that a path follows.
const IMPORTS_MAX: usize = 5;

/// A path as its segments.
type Path = Vec<String>;

/// The modules of a crate.
#[derive(Default)]
struct Modules<'s> {
    /// Path of the file of each module.
    files: BTreeMap<Path, &'s str>,
    /// Paths of the names that modules import, by module and name.
    imported: BTreeMap<(Path, String), Path>,
    /// All paths in the code of each module.
    paths: Vec<(Path, Path)>,
}

impl<'s> Modules<'s> {
    /// Adds the file of a module.
    fn add(&mut self, module: Path, source: &'s Source) {
        let code = Code::parse(source);
        for (path, name) in code.imports {
            self.paths.push((module.clone(), path.clone()));
            self.imported.insert((module.clone(), name), path);
        }
        self.paths.extend(code.paths.into_iter().map(|path| (module.clone(), path)));
        self.files.insert(module, &source.path);
    }

    fn has(&self, module: &[String], child: &str) -> bool {
        self.files.contains_key(&[module, &[child.to_owned()]].concat())
    }

    /// The module with the item of a path; None for a path to another crate.
    fn resolve(&self, from: &[String], path: &[String], imports_left: usize) -> Option<Path> {
        let first = path.first()?;
        if !matches!(first.as_str(), "crate" | "self" | "super") && !self.has(from, first) {
            return None;
        }
        let (mut module, mut rest) = (from.to_vec(), path);
        while let Some((segment, tail)) = rest.split_first() {
            match segment.as_str() {
                "crate" => module.clear(),
                "super" => drop(module.pop()),
                "self" => {}
                child if self.has(&module, child) => module.push(child.to_owned()),
                _ => break,
            }
            rest = tail;
        }
        let imported = rest.first().and_then(|name| self.imported.get(&(module.clone(), name.clone())));
        let target = imported.filter(|_| imports_left > 0).and_then(|imported| {
            let path = [imported.as_slice(), rest.get(1..).unwrap_or_default()].concat();
            self.resolve(&module, &path, imports_left - 1)
        });
        Some(target.unwrap_or(module))
    }

    /// Pairs of files that import each other, each in alphabetical order.
    fn circles(&self) -> BTreeSet<(&'s str, &'s str)> {
        let edges: BTreeSet<(&Path, Path)> = self
            .paths
            .iter()
            .filter_map(|(from, path)| Some((from, self.resolve(from, path, IMPORTS_MAX)?)))
            .filter(|(from, to)| !from.starts_with(to) && !to.starts_with(from))
            .collect();
        let file = |module: &Path| self.files.get(module).copied();
        let circles = edges.iter().filter(|(from, to)| *from < to && edges.contains(&(to, (*from).clone())));
        circles
            .filter_map(|(from, to)| {
                let (a, b) = (file(from)?, file(to)?);
                Some(if a < b { (a, b) } else { (b, a) })
            })
            .collect()
    }
}

/// The paths in the code of a file.
#[derive(Default)]
struct Code {
    /// Paths of `use` items, each with the name that it introduces.
    imports: Vec<(Path, String)>,
    /// Other paths of at least two segments.
    paths: Vec<Path>,
}

impl Code {
    fn parse(source: &Source) -> Code {
        let mut code = Code::default();
        // The text of the `use` item so far, if a line is inside one.
        let mut item: Option<String> = None;
        for (_, line) in source.lines_outside_tests() {
            let text = line.trim();
            match &mut item {
                Some(item) => item.push_str(text),
                None => item = use_tree(text).map(str::to_owned),
            }
            match item.take_if(|item| item.ends_with(';')) {
                Some(tree) => add_imports(&[], tree.trim_end_matches(';'), &mut code.imports),
                None if item.is_none() => code.paths.extend(paths(text)),
                None => {}
            }
        }
        code
    }
}

/// The tree of a `use` item that begins in a line: `use a::b`, `pub(super) use a::b`.
fn use_tree(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub").unwrap_or(line);
    let rest = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
    rest.trim_start().strip_prefix("use ")
}

/// Adds the paths of a `use` tree: `a::{b, c::{d, e as f}}` has `a::b`, `a::c::d` and `a::c::e`.
fn add_imports(prefix: &[String], tree: &str, imports: &mut Vec<(Path, String)>) {
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, group.strip_suffix('}')),
        None => (tree, None),
    };
    let (head, alias) = head.split_once(" as ").map_or((head, None), |(head, alias)| (head, Some(alias)));
    let segments = head.split("::").map(str::trim).filter(|segment| !segment.is_empty());
    let path: Path = prefix.iter().cloned().chain(segments.map(str::to_owned)).collect();
    let Some(group) = group else {
        let name = alias.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
        imports.push((path, name));
        return;
    };
    let mut depth = 0;
    let parts = group.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).for_each(|part| add_imports(&path, part, imports));
}

/// Paths of at least two segments in a line of code.
fn paths(line: &str) -> impl Iterator<Item = Path> {
    let words = line.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let paths =
        words.map(|word| word.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
    paths.filter(|path: &Path| path.len() > 1)
}

/// Modules of each crate by the folder of its `lib.rs` or `main.rs`.
fn crates(sources: &[Source]) -> BTreeMap<&str, Modules<'_>> {
    let parent = |path: &str| path.rsplit_once('/').map_or(0, |(folder, _)| folder.len());
    let is_root = |source: &&Source| source.path.ends_with("/lib.rs") || source.path.ends_with("/main.rs");
    let roots: BTreeSet<&str> =
        sources.iter().filter(is_root).filter_map(|source| source.path.get(..parent(&source.path))).collect();
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for source in sources {
        let inside = |root: &&str| source.path.strip_prefix(*root).is_some_and(|rest| rest.starts_with('/'));
        let Some(root) = roots.iter().copied().filter(inside).max_by_key(|root| root.len()) else { continue };
        let inner = source.path.get(root.len() + 1..).and_then(|path| path.strip_suffix(".rs"));
        let mut module: Path = inner.unwrap_or_default().split('/').map(str::to_owned).collect();
        if module.iter().any(|part| part == "tests") {
            continue;
        }
        module.pop_if(|last| matches!(last.as_str(), "lib" | "main" | "mod"));
        crates.entry(root).or_default().add(module, source);
    }
    crates
}

#[test]
fn no_two_files_import_each_other() {
    let sources = rust_sources();
    let crates = crates(&sources);
    let circles: BTreeSet<(&str, &str)> = crates.values().flat_map(Modules::circles).collect();
    let allowed: BTreeSet<(&str, &str)> = ALLOWED_CYCLES.iter().map(|(a, b, _)| (*a, *b)).collect();
    let new = circles.difference(&allowed).map(|(a, b)| format!("{a} and {b} import each other"));
    let unused =
        allowed.difference(&circles).map(|(a, b)| format!("{a} and {b}: remove the unused exception"));
    let violations: Vec<String> = new.chain(unused).collect();
    report(&violations, "move what both files need to the file of its subject, or to a file of its own");
}

/// Tests the parser and the resolution on a sample crate.
#[test]
fn circle_rule_finds_sample_circle_through_reexport() {
    let source = |path: &str, text: &str| Source { path: format!("c/src/{path}"), text: text.to_owned() };
    let sources = [
        source("lib.rs", "mod a;\nmod b;\nmod d;\npub use a::{A, deep::Deep as Name};\n"),
        source("a/mod.rs", "mod deep;\nuse deep::Deep;\nlet x = serde::x();\n"),
        source("a/deep.rs", "use super::A;\nuse crate::b::{\n    B,\n    C,\n};\n"),
        source("b.rs", "pub(super) use crate::Name;\n#[cfg(test)]\nuse crate::d::D;\n"),
        source("d.rs", "let b = super::b::f(1);\n// crate::a\n"),
    ];
    let crates = crates(&sources);
    let circles: Vec<_> = crates.values().flat_map(Modules::circles).collect();
    assert_eq!(circles, [("c/src/a/deep.rs", "c/src/b.rs")]);
}
