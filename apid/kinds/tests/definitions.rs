//! Replays recorded facts about CustomResourceDefinitions without a server.
//!
//! A fact is a creation or an update of a base object after some edits. The test compares the status code, the
//! causes, returned values, changed fields and warnings. The facts are in the folder `probes` beside the
//! folder of the recordings (`CONFORMANCE_DIR`, default `../shared/conformance` beside the repository). Without
//! them the test prints a notice and passes.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::field::FieldErrors;
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Map, Object, Value};
use apimachinery::time;
use kinds::{Context, Registry, Resource};
use serde_json::json;

/// Minimum share of equal facts.
const EQUAL_MIN: f64 = 0.98;

/// Length after which recorded texts are cut.
const TEXT_MAX: usize = 240;

/// Maximum number of recorded causes.
const CAUSES_MAX: usize = 12;

/// Fields that the HTTP layer checks before the rules of the kind.
const OUTSIDE_RULES: [&str; 3] = ["/kind", "/apiVersion", "/metadata/uid"];

#[test]
fn definitions_match_recorded_facts() {
    let Some(recordings) = prerequisites::recordings() else { return };
    let folder = recordings.join("../probes");
    let file = folder.join("apiextensions.CustomResourceDefinition.jsonl");
    let Ok(facts) = fs::read_to_string(&file) else {
        prerequisites::skip("probes", &format!("no facts in {}", file.display()));
        return;
    };
    let bases = fs::read_to_string(folder.join("bases/apiextensions.CustomResourceDefinition.json")).unwrap();
    let bases: Value = serde_json::from_str(&bases).unwrap();
    let server = Server::new();
    let (mut count, mut equal, mut refusals, mut same_texts, mut differences) = (0, 0, 0, 0, Vec::new());
    for line in facts.lines() {
        let fact: Value = serde_json::from_str(line).unwrap();
        if fact["p"].as_str().is_some_and(|path| OUTSIDE_RULES.contains(&path)) {
            continue;
        }
        count += 1;
        let answer = server.answer(&bases, &fact);
        refusals += usize::from(fact["code"] == 422);
        match difference(&fact, &answer) {
            None => equal += 1,
            Some(difference) => {
                let edit = fact.get("x").or_else(|| fact.get("e")).unwrap_or(&Value::Null);
                let edit: String = edit.to_string().chars().take(160).collect();
                let of = |field: &str| fact[field].as_str().unwrap_or("");
                differences.push(format!(
                    "{} {} {} {} {edit}: {difference}",
                    of("v"),
                    of("b"),
                    of("p"),
                    of("m")
                ));
            }
        }
        same_texts += usize::from(fact["code"] == 422 && has_same_texts(&fact, &answer));
    }
    let share = f64::from(u32::try_from(equal).unwrap()) / f64::from(u32::try_from(count).unwrap());
    println!("{equal} of {count} facts ({share:.4}), {same_texts} of {refusals} texts");
    println!("{}", differences.join("\n"));
    assert!(count > 1_500, "{count} facts");
    assert!(share >= EQUAL_MIN, "{equal} of {count} facts");
}

/// The rules of the kind, without a store.
struct Server {
    names: Names,
    registry: Registry,
    clock: ManualClock,
    rng: SeededRng,
}

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    code: u64,
    errors: FieldErrors,
    /// The object of the request, and the one of the response.
    sent: Value,
    object: Value,
    before: Value,
    warnings: Vec<String>,
}

impl Server {
    fn new() -> Self {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        Server { registry: Registry::new(&names), names, clock, rng: SeededRng::new(1) }
    }

    fn resource(&self) -> &Resource {
        self.registry.find("apiextensions.k8s.io", "v1", "customresourcedefinitions").unwrap()
    }

    fn context<'a>(&'a self, subresource: &'a str) -> Context<'a> {
        Context { names: &self.names, clock: &self.clock, rng: &self.rng, subresource }
    }

    /// Processes the request of a fact.
    fn answer(&self, bases: &Value, fact: &Value) -> Answer {
        let base = fact["b"].as_str().unwrap();
        let verb = fact["v"].as_str().unwrap();
        let before = if verb == "create" { Value::Null } else { self.live(&bases["objects"][base]) };
        let mut sent = if verb == "create" { bases["objects"][base].clone() } else { before.clone() };
        if !fact["s"].is_null() {
            let sample = fact["s"].as_str().unwrap_or(verb);
            for edit in bases["samples"][format!("{base}:{sample}")].as_array().unwrap() {
                apply(&mut sent, edit);
            }
        }
        for edit in edits(fact) {
            apply(&mut sent, &edit);
        }
        let subresource = if verb == "status" { "status" } else { "" };
        let context = self.context(subresource);
        let mut object = Object::from_value(sent.clone()).unwrap();
        let resource = self.resource();
        let mut answer = Answer {
            code: 400,
            errors: FieldErrors::new(),
            sent,
            object: Value::Null,
            before: before.clone(),
            warnings: Vec::new(),
        };
        if resource.conform(&mut object).is_err() {
            return answer;
        }
        resource.default(&mut object, &context);
        let old = Object::from_value(before).ok();
        answer.errors = match &old {
            None => {
                resource.prepare_create(&mut object, "", &context);
                resource.canonicalize(&mut object, &context);
                resource.validate_create(&object, &context)
            }
            Some(old) => {
                resource.prepare_update(&mut object, old, &context);
                resource.canonicalize(&mut object, &context);
                resource.validate_update(&object, old, &context)
            }
        };
        answer.code = match (answer.errors.is_empty(), &old) {
            (false, _) => 422,
            (true, None) => 201,
            (true, Some(_)) => 200,
        };
        answer.warnings = resource.kind.strategy.warnings(&object, old.as_ref(), &context);
        let unenforced = resource.kind.strategy.unenforced().map(|unenforced| unenforced.warning);
        answer.warnings.retain(|warning| Some(warning.as_str()) != unenforced);
        answer.object = object.into_value();
        answer
    }

    /// A stored object of an established kind.
    fn live(&self, base: &Value) -> Value {
        let context = self.context("");
        let mut object = Object::from_value(base.clone()).unwrap();
        let resource = self.resource();
        resource.conform(&mut object).unwrap();
        resource.default(&mut object, &context);
        resource.prepare_create(&mut object, "", &context);
        resource.canonicalize(&mut object, &context);
        let names = object.at(&["spec", "names"]).unwrap().clone();
        let condition = |name: &str, reason: &str, message: &str| {
            json!({
                "type": name, "status": "True", "lastTransitionTime": "2024-01-02T03:04:05Z",
                "reason": reason, "message": message,
            })
        };
        let status = object.part_mut("status");
        status.insert("acceptedNames".to_owned(), names);
        let conditions = [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ];
        status.insert("conditions".to_owned(), conditions.to_vec().into());
        object.set_meta("resourceVersion", "7");
        object.into_value()
    }
}

/// The edits of a fact: `[pointer, value]` sets, `[pointer]` removes.
fn edits(fact: &Value) -> Vec<Value> {
    if let Some(edits) = fact["e"].as_array() {
        return edits.clone();
    }
    if let Some(value) = fact.get("x") {
        return vec![json!([fact["p"], value])];
    }
    if fact["m"] == "remove" { vec![json!([fact["p"]])] } else { Vec::new() }
}

fn segments(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|part| expand_key(&part.replace("~1", "/").replace("~0", "~"))).collect()
}

/// `$str:a:64:` is 64 times `a`.
fn expand_key(key: &str) -> String {
    let parts: Option<(&str, &str)> = key.strip_prefix("$str:").and_then(|rest| rest.split_once(':'));
    let Some((text, rest)) = parts else { return key.to_owned() };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let tail = &rest[digits..];
    format!("{}{tail}", text.repeat(rest[..digits].parse().unwrap_or(0)))
}

/// `{"$str": [text, n]}` is the text n times.
fn expand(value: &Value) -> Value {
    match value {
        Value::Object(map) => match map.get("$str") {
            Some(parts) if map.len() == 1 => {
                let count = usize::try_from(parts[1].as_u64().unwrap()).unwrap();
                parts[0].as_str().unwrap().repeat(count).into()
            }
            _ => {
                map.iter().map(|(key, value)| (expand_key(key), expand(value))).collect::<Map<_, _>>().into()
            }
        },
        Value::Array(list) => list.iter().map(expand).collect(),
        other => other.clone(),
    }
}

/// Applies an edit; creates missing parents.
fn apply(object: &mut Value, edit: &Value) {
    let path = segments(edit[0].as_str().unwrap());
    let value = edit.get(1).map(expand);
    let Some((last, parents)) = path.split_last() else {
        *object = value.unwrap();
        return;
    };
    let mut at = object;
    for (index, part) in parents.iter().enumerate() {
        let next_is_item = path[index + 1] == "-" || path[index + 1] == "0";
        at = match at {
            Value::Array(list) => &mut list[part.parse::<usize>().unwrap()],
            Value::Object(map) => {
                let empty = if next_is_item { json!([]) } else { json!({}) };
                if map.get(part).is_none_or(Value::is_null) {
                    if value.is_none() {
                        return;
                    }
                    map.insert(part.clone(), empty);
                }
                map.get_mut(part).unwrap()
            }
            other => panic!("cannot edit {other}"),
        };
    }
    match (at, value) {
        (Value::Array(list), None) => drop(list.remove(last.parse().unwrap())),
        (Value::Array(list), Some(value)) => match last.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = value,
            _ => list.push(value),
        },
        (Value::Object(map), None) => drop(map.remove(last)),
        (Value::Object(map), Some(value)) => drop(map.insert(last.clone(), value)),
        (other, _) => panic!("cannot edit {other}"),
    }
}

/// The first difference between a fact and an answer.
fn difference(fact: &Value, answer: &Answer) -> Option<String> {
    let causes = |errors: &FieldErrors| -> BTreeSet<(String, String)> {
        errors.iter().map(|error| (error.kind.reason().to_owned(), error.path.to_string())).collect()
    };
    if fact["code"] != answer.code {
        let errors: Vec<String> = answer.errors.iter().take(4).map(ToString::to_string).collect();
        return Some(format!("code {}, recorded {} {}; {errors:?}", answer.code, fact["code"], fact["c"]));
    }
    if answer.code == 422 {
        let recorded: BTreeSet<(String, String)> =
            fact["c"].as_array().into_iter().flatten().map(reason_and_field).collect();
        let have = causes(&answer.errors);
        let is_equal = if fact["nc"].is_null() { recorded == have } else { recorded.is_subset(&have) };
        return (!is_equal).then(|| format!("causes {have:?}, recorded {recorded:?}"));
    }
    if answer.code >= 400 {
        return None;
    }
    let object = clean(&answer.object);
    if fact["v"] == "create" || (!fact["s"].is_null() && !fact["p"].is_null()) {
        if let Some(pointer) = fact["p"].as_str() {
            let recorded = fact.get("r").cloned();
            let have = returned_value(pointer, &clean(&answer.sent), &object);
            if !is_like(recorded.as_ref(), have.as_ref()) {
                return Some(format!("value {have:?}, recorded {recorded:?}"));
            }
        }
        let recorded = fact.get("o").map(clean);
        if recorded.is_some() && !is_like(recorded.as_ref(), Some(&object)) {
            return Some(format!("object {object}, recorded {}", fact["o"]));
        }
    } else if let Some(recorded) = fact["d"].as_array() {
        let mut have = Vec::new();
        changed_fields(&clean(&answer.before), &object, "", &mut have);
        let mut recorded: Vec<&str> = recorded.iter().filter_map(Value::as_str).collect();
        recorded.sort_unstable();
        have.sort_unstable();
        if have != recorded {
            return Some(format!("changed {have:?}, recorded {recorded:?}"));
        }
    }
    let recorded: Vec<&str> = fact["w"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    (answer.warnings != recorded).then(|| format!("warnings {:?}, recorded {recorded:?}", answer.warnings))
}

fn reason_and_field(cause: &Value) -> (String, String) {
    (cause[0].as_str().unwrap().to_owned(), cause[1].as_str().unwrap().to_owned())
}

/// Whether the messages of all causes are equal.
fn has_same_texts(fact: &Value, answer: &Answer) -> bool {
    let cut = |text: String| match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    };
    let recorded = fact["c"].as_array().into_iter().flatten();
    let mut recorded: Vec<(String, String, String)> = recorded
        .map(|cause| {
            let (reason, field) = reason_and_field(cause);
            (reason, field, cause[2].as_str().unwrap().to_owned())
        })
        .collect();
    let mut have: Vec<(String, String, String)> = answer
        .errors
        .iter()
        .take(CAUSES_MAX)
        .map(|error| (error.kind.reason().to_owned(), error.path.to_string(), cut(error.body())))
        .collect();
    recorded.sort();
    have.sort();
    recorded.len() == have.len()
        && recorded.iter().zip(&have).all(|(recorded, have)| recorded.2 == have.2 || recorded.2 == "$any")
}

/// An object without nulls and without the fields that differ between runs.
fn clean(object: &Value) -> Value {
    let mut object = without_nulls(object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "creationTimestamp", "resourceVersion", "managedFields"] {
            metadata.remove(field);
        }
    }
    object
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect::<Map<_, _>>().into()
        }
        Value::Array(list) => list.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

/// The value at a pointer of the response if it differs from the request.
fn returned_value(pointer: &str, sent: &Value, object: &Value) -> Option<Value> {
    let find = |value: &Value| {
        segments(pointer).iter().try_fold(value.clone(), |value, part| match &value {
            Value::Array(list) => list.get(part.parse::<usize>().ok()?).cloned(),
            value => value.get(part).cloned(),
        })
    };
    match (find(sent), find(object)) {
        (sent, Some(value)) => (sent.as_ref() != Some(&value)).then_some(value),
        (Some(_), None) => Some("$absent".into()),
        (None, None) => None,
    }
}

/// Whether a value equals a recorded value, where `$any` stands for any value.
fn is_like(recorded: Option<&Value>, have: Option<&Value>) -> bool {
    match (recorded, have) {
        (Some(Value::String(any)), have) if any == "$any" => have.is_some(),
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            a.keys().chain(b.keys()).all(|key| is_like(a.get(key), b.get(key)))
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_like(Some(a), Some(b)))
        }
        (None | Some(Value::Null), None | Some(Value::Null)) => true,
        (a, b) => a == b,
    }
}

/// Pointers of the fields that differ.
fn changed_fields(a: &Value, b: &Value, path: &str, changed: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => changed_fields(a, b, &path, changed),
                    _ => changed.push(path),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                changed_fields(a, b, &format!("{path}/{index}"), changed);
            }
        }
        (a, b) if a == b => {}
        _ => changed.push(path.to_owned()),
    }
}
