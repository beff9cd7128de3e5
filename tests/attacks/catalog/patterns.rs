//! Attacks on the patterns of a custom kind: many distinct ones at once, and a slow one with a long text.

use serde_json::{Map, Value, json};

use super::Attack;
use crate::attack::AttackMethod::Flood;
use crate::attack::AttackUser::Privileged;
use crate::client::Prepared;
use crate::dataset::{DEFINITIONS, PATTERN_COUNT, definition_with_patterns, objects_with_patterns};

/// A create of an object as a dry run.
fn create(spec: Value) -> Prepared {
    let object = json!({
        "apiVersion": "patterns.example.com/v1", "kind": "Patterned", "metadata": {"name": "a"}, "spec": spec,
    });
    Prepared::post(format!("{}?dryRun=All", objects_with_patterns()), object.to_string())
}

pub fn attacks() -> Vec<Attack> {
    vec![
        Attack::new("patterns: an object with 4,000 distinct patterns", Flood(16), Some(Privileged), || {
            let fields = (0..PATTERN_COUNT).map(|number| (format!("f{number}"), json!(number.to_string())));
            vec![create(Value::Object(fields.collect::<Map<_, _>>()))]
        }),
        Attack::new("patterns: a long text for a slow pattern", Flood(16), Some(Privileged), || {
            vec![create(json!({"slow": "ab".repeat(500_000)}))]
        }),
        Attack::new("patterns: a definition with 4,000 patterns", Flood(16), Some(Privileged), || {
            let path = format!("{DEFINITIONS}?dryRun=All");
            vec![Prepared::post(path, definition_with_patterns("others").to_string())]
        }),
    ]
}
