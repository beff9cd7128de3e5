//! Validation of a CustomResourceDefinition.
