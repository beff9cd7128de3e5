//! Descriptions of fields, from the file `descriptions.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

static FILE: &str = include_str!("descriptions.txt");

/// The type name in lines of `descriptions.txt` that describe a field of every type.
const ANY_TYPE: &str = "*";

/// The descriptions, by type name and field name.
static DESCRIPTIONS: LazyLock<HashMap<(&str, &str), &str>> =
    LazyLock::new(|| lines().map(|(type_name, field, text)| ((type_name, field), text)).collect());

fn lines() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FILE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (type_name, rest) = line.split_once(' ')?;
        let (field, text) = rest.split_once(' ')?;
        Some((type_name, field, text))
    })
}

/// Returns the description of a field of a type.
pub(super) fn of_field(type_name: &str, field: &str) -> Option<&'static str> {
    let specific = DESCRIPTIONS.get(&(type_name, field));
    specific.or_else(|| DESCRIPTIONS.get(&(ANY_TYPE, field))).copied()
}

#[cfg(test)]
mod tests {
    use schema::facts;

    use super::*;

    #[test]
    fn each_description_is_one_of_an_existing_field() {
        let mut count = 0;
        for (type_name, field, text) in lines() {
            count += 1;
            assert!(text.ends_with('.') && text.len() < 200, "{type_name} {field}: {text}");
            if type_name != ANY_TYPE {
                let fields = facts::fields(type_name).unwrap_or_default();
                assert!(fields.iter().any(|known| known.name == field), "{type_name} has no field {field}");
            }
        }
        assert_eq!(count, DESCRIPTIONS.len(), "a field has two descriptions");
        assert!(count >= 150, "{count} descriptions");
    }

    #[test]
    fn description_of_type_precedes_general_one() {
        assert_eq!(of_field("core/v1.PodStatus", "conditions"), Some("Current conditions of the pod."));
        assert_eq!(of_field("batch/v1.JobStatus", "conditions"), of_field(ANY_TYPE, "conditions"));
        assert_eq!(of_field("core/v1.PodSpec", "none"), None);
    }
}
