//! Expressions that validating and mutating policies have in common.

use std::collections::{BTreeSet, HashMap};

use apimachinery::object::{Object, Value};
use expressions::{Parsed, Program};
use kinds::admission_expressions::{
    AUTHORIZER, Compiler, ExpressionError, NAMESPACE_OBJECT, ObjectTypes, REQUEST, REQUEST_RESOURCE,
    VARIABLES,
};

use crate::match_conditions::{Expression, MatchConditions};
use crate::tree::{items_at, text};

/// Number of variables at the start of the list that evaluation computes by recursion, when they are read.
/// A later variable is computed after all variables that it reads, which bounds the recursion depth.
const CHAIN_MAX: usize = 32;

/// The compiled expressions of a policy, validating or mutating.
pub(crate) trait PolicyExpressions: Send + Sync + 'static {
    /// Compiles the expressions of a stored policy.
    fn compile(policy: &Object) -> Self;
}

/// Match conditions and variables of a policy.
pub(crate) struct CommonExpressions {
    /// Match conditions.
    pub(crate) conditions: MatchConditions,
    /// Variables, in order.
    pub(super) variables: Vec<Variable>,
    /// Positions of the variables by name.
    pub(super) variable_positions: HashMap<String, usize>,
    /// Variables with costly values that the expressions of the policy read.
    pub(super) uses: Uses,
}

/// A variable of a policy.
pub(super) struct Variable {
    /// The name.
    pub(super) name: String,
    /// The program, or the error of the compilation.
    pub(super) program: Result<Program, ExpressionError>,
    /// Indexes of the variables that the program reads; `None` for the first `CHAIN_MAX` variables, which
    /// cannot cause a deep recursion.
    dependencies: Option<Vec<usize>>,
}

impl CommonExpressions {
    /// Compiles the match conditions and variables of a stored policy. Returns the compiler of its other
    /// expressions.
    pub(crate) fn compile(policy: &Object) -> (Self, Compiler<'static>) {
        let has_params = policy.at(&["spec", "paramKind"]).is_some_and(Value::is_object);
        let variables = items(policy, "variables");
        let mut compiler = Compiler::of_stored(ObjectTypes::dynamic(has_params), !variables.is_empty());
        let mut compiled = CommonExpressions {
            conditions: MatchConditions::compile(&compiler, items(policy, "matchConditions")),
            variables: Vec::with_capacity(variables.len()),
            variable_positions: HashMap::new(),
            uses: Uses::default(),
        };
        for variable in variables {
            compiled.add_variable(&mut compiler, text(variable, "name"), text(variable, "expression"));
        }
        let CommonExpressions { conditions, variables, uses, .. } = &mut compiled;
        uses.add(conditions.programs());
        uses.add(variables.iter().filter_map(|variable| variable.program.as_ref().ok()));
        (compiled, compiler)
    }

    /// Records which costly variables other expressions of the policy read.
    pub(crate) fn record_uses<'p>(&mut self, expressions: impl Iterator<Item = &'p Expression>) {
        self.uses.add(expressions.filter_map(|expression| expression.program.as_ref().ok()));
    }

    fn add_variable(&mut self, compiler: &mut Compiler<'_>, name: &str, source: &str) {
        let program = compiler.variable(name, source);
        let position = self.variables.len();
        // The first variables read only earlier variables, so they cannot cause a deep recursion.
        let dependencies = (position >= CHAIN_MAX).then(|| {
            let parsed = Parsed::new(source).ok();
            let selected =
                parsed.as_ref().map(|parsed| parsed.selected_fields(VARIABLES)).unwrap_or_default();
            selected.into_iter().filter_map(|name| self.variable_positions.get(name).copied()).collect()
        });
        self.variable_positions.insert(name.to_owned(), position);
        self.variables.push(Variable { name: name.to_owned(), program, dependencies });
    }

    /// Returns the positions of the variables that a variable reads, directly or through other variables, in
    /// ascending order. The result ignores what the first [`CHAIN_MAX`] variables read.
    pub(super) fn all_dependencies(&self, position: usize) -> BTreeSet<usize> {
        let mut dependencies = BTreeSet::new();
        let mut pending = vec![position];
        while let Some(variable) = pending.pop().and_then(|position| self.variables.get(position)) {
            let new =
                variable.dependencies.iter().flatten().filter(|position| dependencies.insert(**position));
            pending.extend(new.copied());
        }
        dependencies
    }
}

/// The variables with costly values that programs read.
#[derive(Default)]
pub(super) struct Uses {
    /// The attributes of the request.
    pub(super) request: bool,
    /// The namespace.
    pub(super) namespace: bool,
    /// The authorizer, or the requested resource.
    pub(super) authorizer: bool,
}

impl Uses {
    fn add<'p>(&mut self, programs: impl Iterator<Item = &'p Program>) {
        for program in programs {
            self.request |= program.uses(REQUEST);
            self.namespace |= program.uses(NAMESPACE_OBJECT);
            self.authorizer |= program.uses(AUTHORIZER) || program.uses(REQUEST_RESOURCE);
        }
    }
}

/// The items of a list in the spec of a policy.
pub(crate) fn items<'o>(policy: &'o Object, list: &str) -> &'o [Value] {
    items_at(policy, &["spec", list])
}
