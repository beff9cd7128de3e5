//! Fields of kinds, from the type table of the specification.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Types whose fields the table lists under one kind only, although several kinds contain them: type and that kind.
pub(super) const COVERED: &[(&str, &str)] = &[
    ("meta/v1.ObjectMeta", "core.ConfigMap"),
    ("core/v1.PodTemplateSpec", "core.PodTemplate"),
    ("core/v1.PersistentVolumeClaimSpec", "core.PersistentVolumeClaim"),
    ("core/v1.PersistentVolumeClaim", "core.PersistentVolumeClaim"),
    ("core/v1.PersistentVolumeSpec", "core.PersistentVolume"),
    ("batch/v1.JobTemplateSpec", "batch.Job"),
];

/// Maximum number of paths to a field that the experiment uses.
const PATHS_MAX: usize = 4;

/// Step of a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// A field.
    Field(String),
    /// An item of a list; the experiment chooses its index.
    Item,
    /// An entry of a map.
    Entry,
}

/// Form of the values of a field.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) is_list: bool,
    pub(super) is_map: bool,
    /// Type of the value, or of the items of a list or map.
    pub(super) item_type: String,
    /// Documented values of a named string type.
    pub(super) enum_values: Vec<String>,
}

/// A field of a type that a kind contains.
pub(super) struct FieldOfKind {
    /// Type and field: `core/v1.PodSpec.hostNetwork`.
    pub(super) name: String,
    /// Paths from the object to the field.
    pub(super) paths: Vec<Vec<Step>>,
    pub(super) shape: Shape,
}

/// Fields of each type, in the order of the table, without inline types.
pub(super) struct Types(BTreeMap<String, Vec<(String, Shape)>>);

/// Rows of a table of the specification.
fn rows(name: &str) -> impl Iterator<Item = String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/spec").join(name);
    let text = fs::read_to_string(file).unwrap();
    text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

impl Types {
    pub(super) fn read() -> Self {
        let enum_values: BTreeMap<String, Vec<String>> = rows("enums.csv")
            .map(|row| {
                let [name, _, enum_values] = row.split(',').collect::<Vec<_>>()[..] else { panic!("{row}") };
                (name.to_owned(), enum_values.split(' ').map(str::to_owned).collect())
            })
            .collect();
        let mut types = BTreeMap::<String, Vec<(String, Shape)>>::new();
        for row in rows("wire.csv") {
            let [type_name, field, shape, type_text, ..] = row.split(',').collect::<Vec<_>>()[..] else {
                panic!("{row}")
            };
            let item_of_list = type_text.strip_prefix("list of ");
            let value_of_map = type_text.strip_prefix("map of ");
            let item_type = item_of_list.or(value_of_map).unwrap_or(type_text);
            // A named string type: `string(core/v1.PodPhase)`.
            let (item_type, string_type) = item_type.split_once('(').unwrap_or((item_type, ""));
            let shape = Shape {
                is_list: shape == "list" || item_of_list.is_some(),
                is_map: shape == "map" || value_of_map.is_some(),
                item_type: item_type.to_owned(),
                enum_values: enum_values.get(string_type.trim_end_matches(')')).cloned().unwrap_or_default(),
            };
            types.entry(type_name.to_owned()).or_default().push((field.to_owned(), shape));
        }
        Types(types)
    }

    /// The fields of a type, with those of inline types.
    pub(super) fn fields(&self, name: &str) -> Vec<(String, String, Shape)> {
        let mut fields = Vec::new();
        for (field, shape) in self.0.get(name).into_iter().flatten() {
            if field == "(inline)" {
                fields.extend(self.fields(&shape.item_type));
            } else {
                fields.push((name.to_owned(), field.clone(), shape.clone()));
            }
        }
        fields
    }

    /// All fields that a kind contains.
    pub(super) fn fields_of(&self, kind: &str, root: &str) -> Vec<FieldOfKind> {
        let mut found = Vec::new();
        self.collect(kind, root, &[], &mut vec![root.to_owned()], &mut found);
        found
    }

    fn collect(
        &self,
        kind: &str,
        name: &str,
        path: &[Step],
        ancestors: &mut Vec<String>,
        found: &mut Vec<FieldOfKind>,
    ) {
        for (owner, field, shape) in self.fields(name) {
            if owner == "meta/v1.TypeMeta" {
                continue;
            }
            let name = format!("{owner}.{field}");
            let path: Vec<Step> = path.iter().cloned().chain([Step::Field(field)]).collect();
            match found.iter_mut().find(|existing| existing.name == name) {
                Some(existing) if existing.paths.len() < PATHS_MAX => existing.paths.push(path.clone()),
                Some(_) => continue,
                None => found.push(FieldOfKind { name, paths: vec![path.clone()], shape: shape.clone() }),
            }
            let is_covered = COVERED
                .iter()
                .any(|(covered, covering_kind)| *covered == shape.item_type && *covering_kind != kind);
            if is_covered || ancestors.contains(&shape.item_type) {
                continue;
            }
            let mut path = path;
            path.extend(shape.is_map.then_some(Step::Entry));
            path.extend(shape.is_list.then_some(Step::Item));
            ancestors.push(shape.item_type.clone());
            self.collect(kind, &shape.item_type, &path, ancestors, found);
            ancestors.pop();
        }
    }

    /// Name of the field at a JSON pointer of an object; None if the pointer ends at an item or an entry.
    pub(super) fn field_at(&self, root: &str, pointer: &str) -> Option<String> {
        let mut name = root.to_owned();
        let mut parts = pointer.split('/').skip(1).peekable();
        loop {
            let part = parts.next()?;
            let (owner, _, shape) = self.fields(&name).into_iter().find(|(_, field, _)| field == part)?;
            if parts.peek().is_none() {
                return Some(format!("{owner}.{part}"));
            }
            if shape.is_map || shape.is_list {
                parts.next()?;
            }
            name = shape.item_type;
        }
    }
}
