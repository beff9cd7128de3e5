//! The write path of a kind without HTTP, authorization and admission, except the default service account of pods.

use std::collections::BTreeMap;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::time;
use kinds::{Context, Kind, Registry, Storage};
use serde_json::{Value, json};

use super::answer::{Answer, changed_pointers, clean};
use super::edits::{apply, edits_of, expand, value_at};

/// A kind with the base objects of its facts.
pub(super) struct Probe<'a> {
    resource: &'a Kind,
    names: &'a Names,
    clock: ManualClock,
    rng: SeededRng,
    bases: BTreeMap<String, Value>,
    samples: Value,
    /// For each base the object from which updates start, or the reason why its creation failed.
    live: BTreeMap<String, Result<Object, String>>,
}

/// The result of a write.
enum WriteResult {
    Stored(Object),
    /// The message of a refusal with code 400.
    Malformed(String),
    /// The errors of a refusal with code 422.
    Invalid(FieldErrors),
}

impl<'a> Probe<'a> {
    /// Reads the base objects. None for kinds that apid does not store.
    pub(super) fn new(registry: &'a Registry, names: &'a Names, document: &Value) -> Option<Self> {
        let mut path = document["path"].as_str()?.trim_start_matches('/').split('/');
        let (group, version) = match path.next()? {
            "api" => ("", path.next()?),
            _ => (path.next()?, path.next()?),
        };
        let plural = path.next_back()?;
        let resource = registry.find(group, version, plural)?;
        if !matches!(resource.storage, Storage::Stored | Storage::Shared(_)) {
            return None;
        }
        let objects = document["objects"].as_object()?;
        let bases = objects.iter().map(|(name, object)| (name.clone(), expand(object))).collect();
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        let mut probe = Probe {
            resource,
            names,
            clock,
            rng: SeededRng::new(1),
            bases,
            samples: document["samples"].clone(),
            live: BTreeMap::new(),
        };
        for (base, edits) in document["live"].as_object().into_iter().flatten() {
            let live = probe.create_live(base, edits, &document["prepare"][base]);
            probe.live.insert(base.clone(), live);
        }
        Some(probe)
    }

    /// Creates and prepares the object of a base from which updates start.
    fn create_live(&self, base: &str, edits: &Value, prepare: &Value) -> Result<Object, String> {
        let mut object = self.bases.get(base).ok_or("no base")?.clone();
        for edit in edits.as_array().into_iter().flatten() {
            apply(&mut object, edit).ok_or("an edit does not apply")?;
        }
        let mut live = match self.create(object) {
            WriteResult::Stored(object) => object,
            WriteResult::Malformed(message) => return Err(message),
            WriteResult::Invalid(errors) => return Err(errors.iter().map(ToString::to_string).collect()),
        };
        for step in prepare.as_array().into_iter().flatten() {
            let subresource = step[0].as_str().unwrap_or("").trim_start_matches('/');
            let mut value = live.clone().into_value();
            for edit in step[1].as_array().into_iter().flatten() {
                apply(&mut value, edit).ok_or("an edit does not apply")?;
            }
            if let WriteResult::Stored(object) = self.update(value, &live, subresource) {
                live = object;
            }
        }
        // The recording found the live namespace of an earlier run, which a finalizer kept as terminating.
        if self.resource.plural() == "namespaces" {
            live.set_meta("deletionTimestamp", "2024-01-02T03:04:05Z");
            live.set("status", json!({"phase": "Terminating"}));
        }
        Ok(live)
    }

    fn context<'c>(&'c self, subresource: &'c str) -> Context<'c> {
        Context { names: self.names, clock: &self.clock, rng: &self.rng, subresource }
    }

    fn decode(&self, value: Value) -> Result<Object, String> {
        let mut object = Object::from_value(value).map_err(|error| error.to_string())?;
        // The checks of the decode step and of the request path.
        let (api_version, kind) = (self.resource.api_version(), self.resource.name());
        let differs = |field, expected| {
            !matches!(object.str_at(&[field]), None | Some("")) && object.str_at(&[field]) != Some(expected)
        };
        if differs("apiVersion", &api_version) || differs("kind", kind) {
            return Err("another kind or version".to_owned());
        }
        if self.resource.namespaced && !matches!(object.namespace(), "" | "probe") {
            return Err("another namespace".to_owned());
        }
        object.set_type(&api_version, kind);
        self.resource.conform(&mut object).map_err(|error| error.to_string())?;
        Ok(object)
    }

    fn create(&self, value: Value) -> WriteResult {
        let ctx = self.context("");
        let mut object = match self.decode(value) {
            Ok(object) => object,
            Err(message) => return WriteResult::Malformed(message),
        };
        let stored = self.resource.stored();
        if let Err(error) = self.resource.to_stored(&mut object, self.names) {
            return WriteResult::Malformed(error.to_string());
        }
        stored.default(&mut object, &ctx);
        stored.prepare_create(&mut object, "probe", &ctx);
        self.set_service_account(&mut object);
        stored.complete_new(&mut object, &ctx);
        stored.canonicalize(&mut object, &ctx);
        if let Some(errors) = self.complete_families(&mut object, None, "") {
            return WriteResult::Invalid(errors);
        }
        self.validate_and_convert(object, |object| self.resource.validate_create(object, &ctx))
    }

    fn update(&self, value: Value, old: &Object, subresource: &str) -> WriteResult {
        let ctx = self.context(subresource);
        let mut object = match self.decode(value) {
            Ok(object) => object,
            Err(message) => return WriteResult::Malformed(message),
        };
        let (stored, mut old) = (self.resource.stored(), old.clone());
        let converted = [&mut object, &mut old].map(|object| self.resource.to_stored(object, self.names));
        if let Some(error) = converted.into_iter().find_map(Result::err) {
            return WriteResult::Malformed(error.to_string());
        }
        stored.default(&mut object, &ctx);
        stored.prepare_update(&mut object, &old, &ctx);
        stored.canonicalize(&mut object, &ctx);
        if let Some(errors) = self.complete_families(&mut object, Some(&old), subresource) {
            return WriteResult::Invalid(errors);
        }
        self.validate_and_convert(object, |object| self.resource.validate_update(object, &old, &ctx))
    }

    /// Validates an object of the storage version, and converts it to the version of the request.
    fn validate_and_convert(
        &self,
        mut object: Object,
        validate: impl FnOnce(&Object) -> FieldErrors,
    ) -> WriteResult {
        let errors = validate(&object);
        if !errors.is_empty() {
            return WriteResult::Invalid(errors);
        }
        self.resource.convert_from_storage(&mut object, self.names).unwrap();
        WriteResult::Stored(object)
    }

    /// Sets the service account of a new pod without one, as the admission plugin ServiceAccount does. Rules of
    /// projected volumes depend on the account.
    fn set_service_account(&self, object: &mut Object) {
        let has_account = !matches!(object.str_at(&["spec", "serviceAccountName"]), None | Some(""));
        if self.resource.plural() != "pods" || has_account {
            return;
        }
        if let Some(Value::Object(spec)) = object.get_mut("spec") {
            for field in ["serviceAccountName", "serviceAccount"] {
                spec.insert(field.to_owned(), "default".into());
            }
        }
    }

    /// Completes the IP families of a service in a cluster with IPv4 only, as in the recording.
    /// Returns the errors, if any.
    fn complete_families(
        &self,
        object: &mut Object,
        old: Option<&Object>,
        subresource: &str,
    ) -> Option<FieldErrors> {
        if self.resource.plural() != "services" || !subresource.is_empty() {
            return None;
        }
        let errors = kinds::complete_service_families(object, old, &["IPv4"]);
        (!errors.is_empty()).then_some(errors)
    }

    /// Checks the properties of a creation: defaulting twice equals defaulting once, and an update of the
    /// stored object without changes is accepted and changes nothing. None for other facts and for refused
    /// objects.
    pub(super) fn check_creation(&self, fact: &Value) -> Option<Result<(), String>> {
        let mut body = self.bases.get(fact["b"].as_str()?).filter(|_| fact["v"] == "create")?.clone();
        for edit in edits_of(fact) {
            apply(&mut body, &edit)?;
        }
        let ctx = self.context("");
        let mut once = self.decode(body.clone()).ok()?;
        self.resource.to_stored(&mut once, self.names).ok()?;
        self.resource.stored().default(&mut once, &ctx);
        let mut twice = once.clone();
        self.resource.stored().default(&mut twice, &ctx);
        if twice != once {
            let difference = changed_pointers(&once.into_value(), &twice.into_value());
            return Some(Err(format!("the second defaulting changes {difference:?}")));
        }
        let WriteResult::Stored(stored) = self.create(body) else { return None };
        Some(match self.update(stored.clone().into_value(), &stored, "") {
            WriteResult::Stored(new) if new == stored => Ok(()),
            WriteResult::Stored(new) => Err(format!(
                "the update changes {:?}",
                changed_pointers(&stored.into_value(), &new.into_value())
            )),
            WriteResult::Malformed(message) => Err(message),
            WriteResult::Invalid(errors) => Err(errors.iter().map(|error| format!("{error}; ")).collect()),
        })
    }

    /// The answer to the request of a fact. None for subresources with their own body type.
    pub(super) fn answer(&self, fact: &Value) -> Option<Answer> {
        let verb = fact["v"].as_str().unwrap();
        let base = fact["b"].as_str().unwrap();
        let subresource = if matches!(verb, "create" | "update") { "" } else { verb };
        let kind = &self.resource;
        let is_part = kind.subresources.iter().any(|s| s.name == subresource && kind.is_part(s));
        if !subresource.is_empty() && !is_part {
            return None;
        }
        let old = match (verb, self.live.get(base)) {
            ("create", _) => None,
            (_, Some(Ok(object))) => Some(object),
            (_, live) => return Some(Answer::failed(format!("no live object: {live:?}"))),
        };
        let mut body = match old {
            Some(object) => object.clone().into_value(),
            None => self.bases.get(base)?.clone(),
        };
        let mut edits = Vec::new();
        if let Some(sample) = fact.get("s") {
            let sample = sample.as_str().unwrap_or(verb);
            edits.extend(self.samples[format!("{base}:{sample}")].as_array().cloned().unwrap_or_default());
        }
        edits.extend(edits_of(fact));
        for edit in &edits {
            if apply(&mut body, edit).is_none() {
                return Some(Answer::failed("an edit does not apply".to_owned()));
            }
        }
        let result = match old {
            None => self.create(body.clone()),
            Some(old) => self.update(body.clone(), old, subresource),
        };
        let object = match result {
            WriteResult::Malformed(message) => return Some(Answer::malformed(message)),
            WriteResult::Invalid(errors) => return Some(Answer::invalid(self.resource, &errors)),
            WriteResult::Stored(object) => object.into_value(),
        };
        let pointer = fact.get("p").and_then(Value::as_str);
        let mut answer = Answer::default();
        match old {
            Some(old) if !(fact.get("s").is_some() && pointer.is_some()) => {
                answer.code = 200;
                answer.changed = Some(changed_pointers(&clean(&old.clone().into_value()), &clean(&object)));
            }
            old => {
                answer.code = if old.is_some() { 200 } else { 201 };
                answer.value = pointer.and_then(|pointer| {
                    let (body, object) = (clean(&body), clean(&object));
                    match (value_at(&body, pointer), value_at(&object, pointer)) {
                        (body, Some(value)) if body != Some(value) => Some(value.clone()),
                        (Some(_), None) => Some("$absent".into()),
                        _ => None,
                    }
                });
                if verb == "create" {
                    answer.object = Some(clean(&object));
                }
            }
        }
        Some(answer)
    }
}
