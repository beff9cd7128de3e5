//! Definition controller: serves the kinds of CustomResourceDefinitions.
//!
//! # Contract
//!
//! [`DefinitionController::load`] runs before the first request: it serves the kinds that were established before.
//! [`DefinitionController::run`] follows the definitions until the process ends. Each change leads to one
//! reconciliation, in this order:
//!
//! 1. names are accepted or refused, and the conditions about names are set;
//! 2. the resources of new and changed definitions are built, and a new snapshot of all kinds replaces the old one;
//! 3. statuses are written: `Established` is true only when routes, discovery and OpenAPI serve the kind;
//! 4. the objects of deleted definitions are deleted, see [`cleanup`].
//!
//! # Invariants
//!
//! INVARIANT (unchanged kinds stay): a definition with the same spec and accepted names keeps its resources,
//! so its watches and its cached objects stay.
//! INVARIANT (bounded work): a reconciliation decodes only changed definitions.
//!
//! # Reference
//!
//! Conditions, reasons and the order of names are those of the controllers of kube-apiserver.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::time;
use aws_lc_rs::digest;
use extensions::definition::conditions::{self, NAMES_ACCEPTED, NON_STRUCTURAL_SCHEMA, NamesInUse};
use kinds::custom::{self, compare_versions};
use kinds::{KindRef, Resource};
use parking_lot::Mutex;
use storage::Revision;
use tokio::sync::Notify;

use super::actor::{Actor, Target, is_race};
use super::reflector::reflect;
use super::stored;
use crate::server_state::{Collection, ServerState};

mod cleanup;

use self::cleanup::Cleanup;

/// Group without its domain, and kind, of CustomResourceDefinitions.
const DEFINITION: (&str, &str) = ("apiextensions", "CustomResourceDefinition");
/// Pause before a failed reconciliation is repeated.
const RETRY: Duration = Duration::from_secs(1);
/// Debounce interval: changes within it cause one reconciliation.
const DEBOUNCE: Duration = Duration::from_millis(2);

/// The controller of CustomResourceDefinitions.
pub struct DefinitionController {
    actor: Actor,
    cleanup: Arc<Cleanup>,
    /// The definitions at the last read, by name.
    known: Mutex<HashMap<String, KnownDefinition>>,
}

/// A definition as last read, and the resources that are served for it.
struct KnownDefinition {
    revision: Revision,
    /// The definition without the schemas of its versions.
    slim: Object,
    /// The resources and their inputs; None if resources cannot be built from the definition.
    served: Option<ServedResources>,
}

/// Resources, and the parts of the definition from which they were built.
struct ServedResources {
    inputs: ResourceInputs,
    resources: Vec<Arc<Resource>>,
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

impl DefinitionController {
    /// Creates the controller.
    pub fn new(server_state: &Arc<ServerState>) -> Self {
        let actor = Actor::apiserver(Arc::clone(server_state));
        DefinitionController {
            cleanup: Arc::new(Cleanup::new(actor.clone())),
            actor,
            known: Mutex::default(),
        }
    }

    fn collection(&self) -> Result<Arc<Collection>, Status> {
        stored::of_kind(self.actor.server_state(), DEFINITION.0, DEFINITION.1)
    }

    /// Serves the kinds of established definitions. Writes nothing.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn load(&self) -> Result<(), Status> {
        self.read().await?;
        let mut known = self.known.lock();
        self.serve(&mut known, |one| conditions::is_established(&one.slim));
        Ok(())
    }

    /// Reconciles after each change of a definition, until the process ends.
    pub async fn run(self: Arc<Self>) {
        let Ok(collection) = self.collection() else { return };
        let changed = Arc::new(Notify::new());
        let notify = Arc::clone(&changed);
        let follow = reflect(Arc::clone(&collection.items), move |_| notify.notify_one());
        let work = async {
            loop {
                changed.notified().await;
                tokio::time::sleep(DEBOUNCE).await;
                if let Err(status) = self.reconcile().await {
                    if !is_race(&status) {
                        tracing::warn!(reason = %status, "reconciling custom resource definitions failed; retrying");
                    }
                    tokio::time::sleep(RETRY).await;
                    changed.notify_one();
                }
            }
        };
        tokio::join!(follow, work);
    }

    /// Reads the definitions that changed since the last call.
    async fn read(&self) -> Result<(), Status> {
        let collection = self.collection()?;
        let snapshot = collection.items.snapshot().await.map_err(stored::unavailable)?;
        let mut known = self.known.lock();
        let mut before = std::mem::take(&mut *known);
        for item in snapshot.scope(&collection.resource.key_prefix, "") {
            let Some((_, name)) = collection.resource.parse_key(item.key()) else { continue };
            let old = before.remove(name);
            let one = match old {
                Some(old) if old.revision == item.revision() => old,
                old => {
                    let Some(definition) = stored::object(item) else { continue };
                    let served = old.and_then(|old| old.served);
                    self.prepare(definition, item.revision(), served)
                }
            };
            known.insert(name.to_owned(), one);
        }
        Ok(())
    }

    /// Builds the resources of a definition that was read. Keeps `served` if its inputs have not changed.
    fn prepare(
        &self,
        definition: Object,
        revision: Revision,
        served: Option<ServedResources>,
    ) -> KnownDefinition {
        let names = &self.actor.server_state().names;
        let inputs = ResourceInputs::of(&definition);
        let unchanged = served.filter(|served| served.inputs == inputs);
        let served = unchanged.or_else(|| match custom::resources(&definition, names) {
            Ok(resources) => Some(ServedResources { inputs, resources }),
            Err(reason) => {
                tracing::warn!(definition = definition.name(), %reason, "definition cannot be served");
                None
            }
        });
        let mut slim = definition;
        // The condition `NonStructuralSchema` depends on the schemas, so it is set before they are removed.
        if let Some(condition) = conditions::non_structural_schema(&slim, names) {
            conditions::set_condition(
                &mut slim,
                &condition,
                &time::time(self.actor.server_state().clock.now()),
            );
        } else {
            conditions::remove_condition(&mut slim, NON_STRUCTURAL_SCHEMA);
        }
        let versions = slim.get_mut("spec").and_then(|spec| spec.get_mut("versions"));
        for version in versions.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(version) = version {
                version.remove("schema");
            }
        }
        KnownDefinition { revision, slim, served }
    }

    async fn reconcile(&self) -> Result<(), Status> {
        self.read().await?;
        let server_state = self.actor.server_state();
        let now = time::time(server_state.clock.now());
        let (changed, terminating) = {
            let mut known = self.known.lock();
            let before: HashMap<String, Value> = known
                .iter()
                .map(|(name, one)| (name.clone(), one.slim.get("status").cloned().unwrap_or_default()))
                .collect();
            self.accept_names(&mut known, &now);
            // New names are written first; the resources with these names follow in the next reconciliation.
            let is_served = |one: &KnownDefinition| {
                conditions::is_established(&one.slim)
                    || (conditions::is_condition_true(&one.slim, NAMES_ACCEPTED) && one.is_ready())
            };
            self.serve(&mut known, is_served);
            for one in known.values_mut().filter(|one| one.is_ready()) {
                if let Some(condition) = conditions::established(&one.slim) {
                    conditions::set_condition(&mut one.slim, &condition, &now);
                }
            }
            let changed: Vec<(String, Object)> = known
                .iter()
                .filter(|(name, one)| before.get(*name) != one.slim.get("status"))
                .map(|(name, one)| (name.clone(), one.slim.clone()))
                .collect();
            let finalizer = conditions::cleanup_finalizer(&server_state.names);
            let needs_cleanup = |definition: &Object| {
                definition.is_terminating() && definition.finalizers().any(|name| name == finalizer)
            };
            let terminating: Vec<String> = known
                .iter()
                .filter(|(_, one)| needs_cleanup(&one.slim))
                .map(|(name, _)| name.clone())
                .collect();
            (changed, terminating)
        };
        let mut result = Ok(());
        for (name, slim) in changed {
            let write_result = self.write_status(&name, &slim).await;
            if write_result.is_err()
                && let Some(one) = self.known.lock().get_mut(&name)
            {
                // The impossible revision 0 makes the next reconciliation read the definition again.
                one.revision = Revision(0);
            }
            result = result.and(write_result);
        }
        for name in terminating {
            self.cleanup.clone().begin(&name);
        }
        result
    }

    /// Accepts or refuses the names that are not accepted yet, those of the oldest definition first.
    ///
    /// Sets the conditions about names and about the approval of the API group.
    fn accept_names(&self, known: &mut HashMap<String, KnownDefinition>, now: &str) {
        let names = &self.actor.server_state().names;
        let mut in_use = BTreeMap::<String, NamesInUse>::new();
        for one in known.values() {
            in_use.entry(group(&one.slim)).or_default().add(&one.slim);
        }
        let mut order: Vec<&mut KnownDefinition> = known.values_mut().collect();
        order.sort_by_key(|one| {
            (one.slim.meta_str("creationTimestamp").to_owned(), one.slim.name().to_owned())
        });
        for one in order {
            let definition = &mut one.slim;
            let is_decided = conditions::is_condition_true(definition, NAMES_ACCEPTED);
            if !is_decided || conditions::has_pending_names(definition) {
                let in_use = in_use.entry(group(definition)).or_default();
                let accepted = conditions::accept_names(definition, in_use);
                definition.part_mut("status").insert("acceptedNames".to_owned(), accepted.names);
                conditions::set_condition(definition, &accepted.names_accepted, now);
                if let Some(established) = &accepted.established {
                    conditions::set_condition(definition, established, now);
                }
                in_use.add(definition);
            }
            if let Some(condition) = conditions::approval_policy(definition, names) {
                conditions::set_condition(definition, &condition, now);
            }
        }
    }

    /// Replaces the snapshot of the served kinds, if the set of custom kinds or a kind of it changes.
    fn serve(
        &self,
        known: &mut HashMap<String, KnownDefinition>,
        is_served: impl Fn(&KnownDefinition) -> bool,
    ) {
        let server_state = self.actor.server_state();
        let mut all: Vec<Arc<Resource>> = Vec::new();
        let mut has_terminating_change = false;
        for one in known.values() {
            let Some(served) = one.served.as_ref().filter(|_| is_served(one)) else { continue };
            has_terminating_change |= served.update_terminating(&one.slim);
            all.extend(served.resources.iter().cloned());
        }
        all.sort_by(|a, b| {
            a.kind
                .group()
                .cmp(b.kind.group())
                .then_with(|| compare_versions(b.kind.version(), a.kind.version()))
                .then_with(|| a.kind.resource().cmp(b.kind.resource()))
        });
        let registry = server_state.registry();
        let current: HashSet<*const Resource> = registry.all_custom().map(Arc::as_ptr).collect();
        let is_same = all.len() == current.len() && all.iter().all(|one| current.contains(&Arc::as_ptr(one)));
        if !is_same || has_terminating_change {
            server_state.serve(all);
        }
    }

    /// Writes accepted names and conditions into the stored definition.
    async fn write_status(&self, name: &str, slim: &Object) -> Result<(), Status> {
        let collection = self.collection()?;
        let Some(mut definition) = stored::get(&collection, "", name).await? else { return Ok(()) };
        if definition.uid() != slim.uid() || definition.resource_version() != slim.resource_version() {
            // The definition has changed since it was read; that change causes another reconciliation.
            return Ok(());
        }
        for field in ["acceptedNames", "conditions"] {
            if let Some(value) = slim.at(&["status", field]) {
                definition.part_mut("status").insert(field.to_owned(), value.clone());
            }
        }
        let target = Target { collection: &collection, namespace: "", name, subresource: "status" };
        match self.actor.update(target, definition).await {
            Err(status) if is_race(&status) => Ok(()),
            other => other.map(drop),
        }
    }
}

impl KnownDefinition {
    /// Whether the served resources have the accepted names.
    fn is_ready(&self) -> bool {
        self.served
            .as_ref()
            .is_some_and(|served| served.inputs.names.as_ref() == self.slim.at(&["status", "acceptedNames"]))
    }
}

impl ServedResources {
    /// Records in the kinds whether the definition is terminating. Returns whether that changed a kind.
    fn update_terminating(&self, definition: &Object) -> bool {
        let is_terminating = definition.is_terminating();
        self.resources.iter().any(|resource| match &resource.kind {
            KindRef::Custom(kind) => {
                kind.is_terminating.swap(is_terminating, Ordering::AcqRel) != is_terminating
            }
            KindRef::BuiltIn(_) => false,
        })
    }
}

fn group(definition: &Object) -> String {
    definition.str_at(&["spec", "group"]).unwrap_or("").to_owned()
}
