//! Validation rules that several kinds share.
//!
//! # Contract
//!
//! A [`Field`] is a value of an object with its path. A rule is a function that takes a field and adds the errors that it
//! finds to a [`FieldErrors`](apimachinery::field::FieldErrors). An absent optional field has no errors; a rule for a
//! required field reports `Required value`. Objects conform to the schema before any rule runs, so a field has the type of
//! its schema or is absent.
//!
//! # Reference
//!
//! Rules, messages and their order are those of kube-apiserver 1.33.

pub(crate) mod address_form;
pub(crate) mod conditions;
pub(crate) mod difference;
mod field;
pub(crate) mod internal;
pub(crate) mod json_syntax;
pub(crate) mod network;
pub(crate) mod number;
pub(crate) mod path;
pub(crate) mod resource;
pub(crate) mod text;
pub(crate) mod webhook_client;

pub(crate) use field::{Field, immutable_fields};
