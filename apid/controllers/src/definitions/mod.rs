//! Definition controller: serves the kinds of CustomResourceDefinitions.
//!
//! # Contract
//!
//! [`DefinitionController::load`] runs before the first request: it serves the kinds that were established before.
//! [`DefinitionController::run`] follows the definitions until the process ends. Each change leads to one
//! reconciliation, in this order:
//!
//! 1. changed definitions are decoded;
//! 2. their names are accepted or refused, and the conditions about names are set;
//! 3. their resources are built, and a new snapshot of all kinds replaces the old one;
//! 4. statuses are written: `Established` is true only when routes, discovery and OpenAPI serve the kind.
//!
//! [`cleanup`] deletes the objects of terminating definitions.
//!
//! Of several apids with a common store, only the leader decides on names and writes statuses. The others serve a kind
//! when its names are accepted in the stored definition.
//!
//! # Invariants
//!
//! INVARIANT (unchanged kinds stay): while `spec` and accepted names of a definition stay the same, its kinds
//! keep their open watches and their cached objects.
//! INVARIANT (bounded work): a reconciliation decodes only new, changed and undecodable definitions. It
//! examines only new and changed definitions, and definitions whose names are not accepted yet.
//!
//! # Reference
//!
//! Conditions, reasons, and the order in which definitions get their names, are those of the controllers of
//! kube-apiserver.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use aws_lc_rs::digest;
use extensions::definition::conditions::{
    self, NAMES_ACCEPTED, NON_STRUCTURAL_SCHEMA, NamesInUse, OPENAPI_PUBLISHED,
};
use futures_util::stream::{self, StreamExt as _};
use kinds::Kind;
use kinds::custom::{self, MAX_DOCUMENT_BYTES, OversizedDocuments, compare_versions};
use parking_lot::Mutex;
use storage::Revision;

use super::actor::{Actor, Target, ignore_race};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::Collection;

mod cleanup;

use crate::ControllerState;

/// Group without its domain, and kind, of CustomResourceDefinitions.
const DEFINITION: (&str, &str) = ("apiextensions", "CustomResourceDefinition");
/// Number of statuses that are written concurrently; concurrent writes share the fsyncs of the store.
const WRITE_CONCURRENCY: usize = 64;
/// Debounce interval: changes within it cause one reconciliation.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// The number before that of the first term.
const NO_TERM: u64 = 0;

/// The controller of CustomResourceDefinitions.
pub struct DefinitionController {
    state: Arc<ControllerState>,
    actor: Actor,
    /// The definitions at the last read, by name.
    known: Mutex<HashMap<String, KnownDefinition>>,
    /// The number of the term of the last reconciliation; [`NO_TERM`] if this apid did not lead.
    last_term: AtomicU64,
}

/// A definition as last read, and the resources that are served for it.
struct KnownDefinition {
    revision: Revision,
    /// The definition. After its first examination it has neither schemas nor managed fields.
    definition: Object,
    /// Whether the next reconciliation examines the definition: it has changed, or its names are not accepted.
    needs_examination: bool,
    /// Whether `definition` contains its schemas; true until it is examined.
    has_schemas: bool,
    /// Whether [`DefinitionController::serve`] includes the kinds of the definition.
    is_served: bool,
    /// The resources and their inputs; None if resources cannot be built from the definition.
    served: Option<ServedResources>,
}

/// Resources, and the parts of the definition from which they were built.
struct ServedResources {
    inputs: ResourceInputs,
    resources: Vec<Arc<Kind>>,
}

/// The parts of a definition from which its resources are built.
#[derive(Debug, PartialEq)]
struct ResourceInputs {
    uid: String,
    /// SHA-256 digest of the `spec`.
    spec: Vec<u8>,
    names: Option<Value>,
}

impl ResourceInputs {
    fn of(definition: &Object) -> Self {
        let spec = definition.get("spec").map(Value::to_string).unwrap_or_default();
        ResourceInputs {
            uid: definition.uid().to_owned(),
            spec: digest::digest(&digest::SHA256, spec.as_bytes()).as_ref().to_vec(),
            names: definition.at(&["status", "acceptedNames"]).cloned(),
        }
    }
}

impl Reconcile for DefinitionController {
    /// One key for all definitions.
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let term = self.state.leadership.term();
        let leads = term.is_some();
        if leads && term != Some(self.last_term.load(Ordering::SeqCst)) {
            // The statuses that this apid has computed may not be written.
            self.known.lock().values_mut().for_each(KnownDefinition::mark_changed);
        }
        self.last_term.store(term.unwrap_or(NO_TERM), Ordering::SeqCst);
        let revision = self.read().await?;
        let with_new_status = self.update(&mut self.known.lock(), leads);
        self.actor.api_state().kinds.set_definitions_revision(revision);
        let writes = with_new_status.into_iter().map(|updated| self.try_write_status(updated));
        let results: Vec<Result<(), Status>> =
            stream::iter(writes).buffered(WRITE_CONCURRENCY).collect().await;
        results.into_iter().collect::<Result<(), Status>>()?;
        Ok(Requeue::No)
    }
}

impl DefinitionController {
    /// Creates the controller.
    pub fn new(state: &Arc<ControllerState>) -> Self {
        let actor = state.apiserver().of_leader();
        let last_term = AtomicU64::new(state.leadership.term().unwrap_or(NO_TERM));
        DefinitionController { state: Arc::clone(state), actor, known: Mutex::default(), last_term }
    }

    fn collection(&self) -> Result<Arc<Collection>, Status> {
        stored::of_kind(self.actor.api_state(), DEFINITION)
    }

    /// Serves the kinds of established definitions. Writes nothing.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn load(&self) -> Result<(), Status> {
        let revision = self.read().await?;
        let mut known = self.known.lock();
        for one in known.values_mut() {
            self.build_resources(one);
            one.is_served =
                conditions::is_established(&one.definition) && !self.has_built_in_names(&one.definition);
        }
        self.serve(&known);
        self.actor.api_state().kinds.set_definitions_revision(revision);
        Ok(())
    }

    /// Reconciles after each change of a definition, until the process ends.
    pub async fn run(self: Arc<Self>) {
        let Ok(collection) = self.collection() else { return };
        let runner = Runner::new(&self.state, "crd_naming_condition_controller")
            .debounce(DEBOUNCE)
            .watch(&collection.items, |_| Some(()))
            .watch_terms(&self.state, || Some(()));
        runner.run(Arc::clone(&self)).await;
    }

    /// Reads the definitions that changed since the last call. Returns the revision of the read.
    async fn read(&self) -> Result<Revision, Status> {
        let collection = self.collection()?;
        let snapshot = collection.items.snapshot().await.map_err(stored::unavailable)?;
        let mut known = self.known.lock();
        let mut before = std::mem::take(&mut *known);
        for item in snapshot.scope(&collection.kind.key_prefix, "") {
            let Some((_, name)) = collection.kind.parse_key(item.key()) else { continue };
            let (name, one) = match before.remove_entry(name) {
                Some((name, old)) if old.revision == item.revision() => (name, old),
                old => {
                    let Some(definition) = stored::object(item) else { continue };
                    let served = old.and_then(|(_, old)| old.served);
                    let revision = item.revision();
                    (name.to_owned(), KnownDefinition::new(definition, revision, served))
                }
            };
            known.insert(name, one);
        }
        Ok(snapshot.revision())
    }

    /// Builds the resources of a definition with schemas, unless their inputs are the same as before.
    fn build_resources(&self, one: &mut KnownDefinition) {
        let definition = &one.definition;
        let inputs = ResourceInputs::of(definition);
        if one.served.as_ref().is_some_and(|served| served.inputs == inputs) {
            return;
        }
        one.served = match custom::resources(definition, &self.actor.api_state().names) {
            Ok(resources) => Some(ServedResources { inputs, resources }),
            Err(reason) => {
                tracing::warn!(definition = definition.name(), %reason, "definition cannot be served");
                None
            }
        };
    }

    /// Sets or removes the condition `NonStructuralSchema`, which depends on the schemas. Then removes the
    /// schemas and the managed fields from the definition, which saves memory.
    fn check_and_remove_schemas(&self, one: &mut KnownDefinition) {
        let api_state = self.actor.api_state();
        let names = &api_state.names;
        let definition = &mut one.definition;
        if let Some(condition) = conditions::non_structural_schema(definition, names) {
            conditions::set_condition(definition, &condition, &time::time(api_state.clock.now()));
        } else {
            conditions::remove_condition(definition, NON_STRUCTURAL_SCHEMA);
        }
        let versions = definition.get_mut("spec").and_then(|spec| spec.get_mut("versions"));
        for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(version) = version {
                version.remove("schema");
            }
        }
        definition.meta_mut().remove("managedFields");
        one.has_schemas = false;
    }

    /// Accepts names, serves the kinds, and sets the conditions. Returns the definitions whose status changed.
    ///
    /// If `leads` is false, another apid decides: this apid only serves the kinds with accepted names.
    fn update(&self, known: &mut HashMap<String, KnownDefinition>, leads: bool) -> Vec<Object> {
        let now = time::time(self.actor.api_state().clock.now());
        let examined = known.iter().filter(|(_, one)| one.needs_examination);
        let mut examined: Vec<(String, Value)> = examined
            .map(|(name, one)| (name.clone(), one.definition.get("status").cloned().unwrap_or_default()))
            .collect();
        examined.sort_by_cached_key(|(name, _)| known.get(name).map(KnownDefinition::precedence));
        if leads {
            self.accept_names(known, examined.iter().map(|(name, _)| name), &now);
        }
        for (name, _) in &examined {
            let Some(one) = known.get_mut(name) else { continue };
            if one.has_schemas {
                self.build_resources(one);
                self.check_and_remove_schemas(one);
            }
            let has_names = conditions::is_condition_true(&one.definition, NAMES_ACCEPTED);
            one.is_served = (conditions::is_established(&one.definition) || (has_names && one.is_ready()))
                && (leads || !self.has_built_in_names(&one.definition));
        }
        self.serve(known);
        if !leads {
            for (name, _) in &examined {
                if let Some(one) = known.get_mut(name) {
                    one.needs_examination = false;
                }
            }
            return Vec::new();
        }
        let oversized = oversized_documents(known);
        let mut with_new_status = Vec::new();
        let is_examined: HashSet<&String> = examined.iter().map(|(name, _)| name).collect();
        for (_, one) in known.iter_mut().filter(|(name, _)| !is_examined.contains(name)) {
            // The condition is only removed here. Otherwise one definition above the limit would lead to writes of
            // all definitions.
            let is_unpublished = conditions::has_condition(&one.definition, OPENAPI_PUBLISHED);
            if is_unpublished && one.oversized_documents(&oversized).is_empty() {
                conditions::remove_condition(&mut one.definition, OPENAPI_PUBLISHED);
                with_new_status.push(one.definition.clone());
            }
        }
        for (name, before) in examined {
            let Some(one) = known.get_mut(&name) else { continue };
            if one.is_ready()
                && let Some(condition) = conditions::established(&one.definition)
            {
                conditions::set_condition(&mut one.definition, &condition, &now);
            }
            match &one.oversized_documents(&oversized)[..] {
                [] => drop(conditions::remove_condition(&mut one.definition, OPENAPI_PUBLISHED)),
                paths => {
                    let condition = conditions::openapi_not_published(paths, MAX_DOCUMENT_BYTES);
                    conditions::set_condition(&mut one.definition, &condition, &now);
                }
            }
            one.needs_examination = has_undecided_names(&one.definition);
            if one.definition.get("status") != Some(&before) {
                with_new_status.push(one.definition.clone());
            }
        }
        with_new_status
    }

    /// Accepts or refuses the undecided names of the definitions `examined`, in the order of `examined`.
    ///
    /// Sets the conditions about names and about the approval of the API group.
    fn accept_names<'a>(
        &self,
        known: &mut HashMap<String, KnownDefinition>,
        examined: impl Iterator<Item = &'a String>,
        now: &str,
    ) {
        let names = &self.actor.api_state().names;
        let mut in_use = BTreeMap::<String, NamesInUse>::new();
        for name in examined {
            let Some(one) = known.get(name) else { continue };
            let is_undecided =
                has_undecided_names(&one.definition) || self.has_built_in_names(&one.definition);
            let accepted = is_undecided.then(|| {
                let group = group(&one.definition);
                let in_use = in_use.entry(group.to_owned()).or_insert_with(|| {
                    let mut in_use = self.built_in_names(group);
                    add_accepted_names(&mut in_use, known, group);
                    in_use
                });
                conditions::accept_names(&one.definition, in_use)
            });
            let Some(KnownDefinition { definition, .. }) = known.get_mut(name) else { continue };
            if let Some(condition) = conditions::approval_policy(definition, names) {
                conditions::set_condition(definition, &condition, now);
            }
            if let Some(accepted) = accepted {
                definition.part_mut("status").insert("acceptedNames".to_owned(), accepted.names);
                conditions::set_condition(definition, &accepted.names_accepted, now);
                if let Some(established) = &accepted.established {
                    conditions::set_condition(definition, established, now);
                }
                if let Some(in_use) = in_use.get_mut(group(definition)) {
                    in_use.add(definition);
                }
            }
        }
    }

    /// The names of the built-in kinds of a group.
    fn built_in_names(&self, group: &str) -> NamesInUse {
        let mut names = NamesInUse::default();
        let registry = self.actor.api_state().kinds.registry();
        let in_group = |resource: &&Arc<Kind>| resource.group_resource.group == group;
        for resource in registry.built_in().iter().filter(in_group) {
            let kind = resource;
            let short_names = kind.names.short_names.iter().map(String::as_str);
            let resources = [kind.plural(), &kind.names.singular].into_iter().chain(short_names);
            names.add_built_in(resources, [kind.name(), &kind.names.list]);
        }
        names
    }

    /// Whether a definition requests the resource or the kind of a built-in kind.
    fn has_built_in_names(&self, definition: &Object) -> bool {
        self.built_in_names(group(definition)).has_built_in(definition)
    }

    /// Replaces the snapshot of the served kinds if the set of custom kinds changes, or if one of their
    /// definitions has become terminating.
    fn serve(&self, known: &HashMap<String, KnownDefinition>) {
        let api_state = self.actor.api_state();
        let mut all: Vec<Arc<Kind>> = Vec::new();
        let mut has_terminating_change = false;
        for one in known.values() {
            let Some(served) = one.served.as_ref().filter(|_| one.is_served) else { continue };
            has_terminating_change |= served.update_terminating(&one.definition);
            all.extend(served.resources.iter().cloned());
        }
        let registry = api_state.kinds.registry();
        let current: HashSet<*const Kind> = registry.all_custom().map(Arc::as_ptr).collect();
        let is_same = all.len() == current.len() && all.iter().all(|one| current.contains(&Arc::as_ptr(one)));
        if is_same && !has_terminating_change {
            return;
        }
        all.sort_by(|a, b| {
            a.group_resource
                .group
                .cmp(&b.group_resource.group)
                .then_with(|| compare_versions(b.version(), a.version()))
                .then_with(|| a.plural().cmp(b.plural()))
        });
        api_state.kinds.serve(all);
    }

    /// Writes the status of a definition. After a failure, the next reconciliation reads the definition again.
    async fn try_write_status(&self, updated: Object) -> Result<(), Status> {
        let result = self.write_status(&updated).await;
        if result.is_err()
            && let Some(one) = self.known.lock().get_mut(updated.name())
        {
            one.mark_changed();
        }
        result
    }

    /// Writes accepted names and conditions into the stored definition.
    async fn write_status(&self, updated: &Object) -> Result<(), Status> {
        let collection = self.collection()?;
        let name = updated.name();
        let Some(mut definition) = stored::get(&collection, "", name).await? else { return Ok(()) };
        if definition.uid() != updated.uid() || definition.resource_version() != updated.resource_version() {
            // The definition has changed since it was read; that change causes another reconciliation.
            return Ok(());
        }
        for field in ["acceptedNames", "conditions"] {
            if let Some(value) = updated.at(&["status", field]) {
                definition.part_mut("status").insert(field.to_owned(), value.clone());
            }
        }
        let target = Target { collection: &collection, namespace: "", name, subresource: "status" };
        ignore_race(self.actor.update(target, definition).await)
    }
}

/// Deletes the objects of terminating definitions until the process ends.
pub async fn clean_up(state: Arc<ControllerState>) {
    let Ok(collection) = stored::of_kind(&state.api_state, DEFINITION) else { return };
    cleanup::run(&state, state.apiserver().of_leader(), &collection).await;
}

impl KnownDefinition {
    fn new(definition: Object, revision: Revision, served: Option<ServedResources>) -> Self {
        KnownDefinition {
            revision,
            definition,
            needs_examination: true,
            has_schemas: true,
            is_served: false,
            served,
        }
    }

    /// Lets the next read decode and examine the definition again. No stored definition has the revision 0.
    fn mark_changed(&mut self) {
        self.revision = Revision(0);
    }

    /// Whether the resources were built with the names that are accepted now.
    fn is_ready(&self) -> bool {
        let accepted = self.definition.at(&["status", "acceptedNames"]);
        self.served.as_ref().is_some_and(|served| served.inputs.names.as_ref() == accepted)
    }

    /// The paths of the OpenAPI documents above the limit that describe the served kinds of the definition.
    fn oversized_documents(&self, oversized: &OversizedDocuments) -> Vec<String> {
        let served = self.served.as_ref().filter(|_| self.is_served);
        served.map(|served| oversized.of_resources(&served.resources)).unwrap_or_default()
    }

    /// Sort key by which definitions get their names: the oldest definition first.
    fn precedence(&self) -> (String, String) {
        (self.definition.meta_str("creationTimestamp").to_owned(), self.definition.name().to_owned())
    }
}

impl ServedResources {
    /// Records in the kinds whether the definition is terminating. Returns whether the record changed.
    fn update_terminating(&self, definition: &Object) -> bool {
        let is_terminating = definition.is_terminating();
        let mut definitions = self.resources.iter().filter_map(|resource| resource.definition());
        definitions.any(|known| known.set_terminating(is_terminating))
    }
}

/// Finds the OpenAPI documents of the served kinds that are above the limit.
fn oversized_documents(known: &HashMap<String, KnownDefinition>) -> OversizedDocuments {
    let served = known.values().filter(|one| one.is_served).filter_map(|one| one.served.as_ref());
    let resources = served.flat_map(|served| served.resources.iter().map(|resource| &**resource));
    OversizedDocuments::find(resources, MAX_DOCUMENT_BYTES)
}

/// Whether the names of a definition still await a decision: they are new, changed, or in conflict.
fn has_undecided_names(definition: &Object) -> bool {
    !conditions::is_condition_true(definition, NAMES_ACCEPTED) || conditions::has_pending_names(definition)
}

/// Adds the accepted names of all definitions of a group.
fn add_accepted_names(in_use: &mut NamesInUse, known: &HashMap<String, KnownDefinition>, of_group: &str) {
    let in_group = known.values().filter(|one| group(&one.definition) == of_group);
    in_group.for_each(|one| in_use.add(&one.definition));
}

fn group(definition: &Object) -> &str {
    definition.str_at(&["spec", "group"]).unwrap_or("")
}
