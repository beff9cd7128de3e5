//! Completeness: each field that a junctor (`allOf`, `anyOf`, `oneOf`, `not`) at the root names is declared
//! elsewhere.

use apimachinery::field::FieldError;

use crate::definition::props::Props;
use crate::definition::schema_path::{SchemaErrors, SchemaPath};

/// Validates the junctors of the root. As in kube-apiserver, junctors of other parts have no such rule.
pub(super) fn validate(schema: Props<'_>, root: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    validate_junctors(schema, Some(schema), root, root, errors);
}

/// Validates the junctors of `branch`. `described` is the schema of the same value outside junctors.
fn validate_junctors(
    branch: Props<'_>,
    described: Option<Props<'_>>,
    path: &SchemaPath<'_>,
    branch_path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    if let Some(not) = branch.schema("not") {
        validate_branch(not, described, path, &branch_path.field("not"), errors);
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        let junctor_path = branch_path.field(junctor);
        for (index, part) in branch.branches(junctor).enumerate() {
            validate_branch(part, described, path, &junctor_path.index(index), errors);
        }
    }
}

fn validate_branch(
    branch: Props<'_>,
    described: Option<Props<'_>>,
    path: &SchemaPath<'_>,
    branch_path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    if described.is_none() {
        return errors.add(path, |path| {
            FieldError::required(path, &format!("because it is defined in {}", branch_path.render()))
        });
    }
    validate_junctors(branch, described, path, branch_path, errors);
    if let Some(items) = branch.item_schema() {
        let described = described.and_then(Props::item_schema);
        validate_branch(items, described, &path.field("items"), &branch_path.field("items"), errors);
    }
    let (properties, branch_properties) = (path.field("properties"), branch_path.field("properties"));
    for (name, property) in branch.schemas("properties") {
        let described = described.and_then(|described| described.property(name));
        validate_branch(property, described, &properties.key(name), &branch_properties.key(name), errors);
    }
}
