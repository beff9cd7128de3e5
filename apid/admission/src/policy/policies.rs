//! Stored policies and bindings, indexed for the lookup by a write.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use apimachinery::object::{Object, Value};

use super::expressions::PolicyExpressions;
use crate::matching::{Constraints, IndexedItems};
use crate::tree::{items, text};

/// All validating policies, or all mutating policies, in the order of their names.
pub(crate) type Policies<E> = IndexedItems<Policy<E>>;

/// One policy with the expressions `E`.
pub(crate) struct Policy<E> {
    /// The object.
    object: Arc<Object>,
    /// Writes to which the policy applies.
    pub(crate) constraints: Constraints,
    /// Whether an error of the policy denies the write, by the field `failurePolicy`.
    pub(crate) denies_errors: bool,
    /// Kind of the parameters.
    pub(super) param_kind: Option<ParamKind>,
    /// The expressions, compiled on first use.
    compiled: OnceLock<E>,
}

/// Kind of the parameters of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ParamKind {
    /// The field `apiVersion`: group and version.
    pub(super) api_version: String,
    /// Name of the kind.
    pub(super) kind: String,
}

/// All bindings by the name of their policy.
#[derive(Default)]
pub(crate) struct Bindings(HashMap<String, Vec<Arc<Binding>>>);

/// One binding.
#[derive(Debug)]
pub(crate) struct Binding {
    /// The name.
    pub(crate) name: String,
    /// The name of its policy.
    pub(crate) policy: String,
    /// Writes for which the binding is in effect.
    pub(super) constraints: Constraints,
    /// Selection of the parameters; None means no parameters.
    pub(super) param_ref: Option<ParamRef>,
    /// The field `validationActions`, as written; empty for mutating policies.
    pub(crate) actions: Vec<String>,
}

/// Selection of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ParamRef {
    /// Name of the only parameter, or `""`.
    pub(super) name: String,
    /// Namespace of the parameters; `""`: that of the write.
    pub(super) namespace: String,
    /// Label selector of the parameters.
    pub(super) selector: Option<Value>,
    /// Whether a missing parameter is an error, to which the failure policy applies.
    pub(super) denies_without_parameters: bool,
}

/// Indexes all policies.
pub(super) fn index_policies<E>(policies: &[Arc<Policy<E>>]) -> Policies<E> {
    Policies::new(policies.to_vec(), |policy| &policy.constraints)
}

impl<E: PolicyExpressions> Policy<E> {
    /// Reads a policy.
    pub(super) fn new(object: Arc<Object>) -> Self {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let param_kind = spec.get("paramKind").filter(|kind| kind.is_object());
        Policy {
            constraints: constraints(spec.get("matchConstraints")),
            denies_errors: text(spec, "failurePolicy") != "Ignore",
            param_kind: param_kind.map(|kind| ParamKind {
                api_version: text(kind, "apiVersion").to_owned(),
                kind: text(kind, "kind").to_owned(),
            }),
            compiled: OnceLock::new(),
            object,
        }
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        self.object.name()
    }

    /// The expressions.
    pub(crate) fn compiled(&self) -> &E {
        self.compiled.get_or_init(|| E::compile(&self.object))
    }
}

impl Bindings {
    /// Groups all bindings by their policy.
    pub(super) fn new(bindings: &[Arc<Binding>]) -> Self {
        let mut by_policy = HashMap::<String, Vec<Arc<Binding>>>::new();
        for binding in bindings {
            by_policy.entry(binding.policy.clone()).or_default().push(Arc::clone(binding));
        }
        Bindings(by_policy)
    }

    /// The bindings of a policy, in the order of their names.
    pub(crate) fn of_policy(&self, policy: &str) -> &[Arc<Binding>] {
        self.0.get(policy).map_or(&[], Vec::as_slice)
    }
}

impl Binding {
    /// Reads a binding.
    pub(super) fn new(object: &Object) -> Self {
        let spec = object.get("spec").unwrap_or(&Value::Null);
        let actions = items(spec, "validationActions").iter();
        Binding {
            name: object.name().to_owned(),
            policy: text(spec, "policyName").to_owned(),
            constraints: constraints(spec.get("matchResources")),
            param_ref: spec.get("paramRef").filter(|reference| reference.is_object()).map(ParamRef::new),
            actions: actions.filter_map(|action| action.as_str().map(str::to_owned)).collect(),
        }
    }
}

impl ParamRef {
    fn new(reference: &Value) -> Self {
        ParamRef {
            name: text(reference, "name").to_owned(),
            namespace: text(reference, "namespace").to_owned(),
            selector: reference.get("selector").filter(|selector| selector.is_object()).cloned(),
            denies_without_parameters: text(reference, "parameterNotFoundAction") == "Deny",
        }
    }
}

/// Reads a `MatchResources`. Without rules every resource matches.
fn constraints(resources: Option<&Value>) -> Constraints {
    let Some(resources) = resources else { return Constraints::default() };
    let rules = Constraints::read_rules(resources.get("resourceRules"));
    Constraints {
        rules: (!rules.is_empty()).then_some(rules),
        excluded: Constraints::read_rules(resources.get("excludeResourceRules")),
        ..Constraints::read(resources)
    }
}
