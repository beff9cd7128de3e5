//! FlowSchema and PriorityLevelConfiguration of `flowcontrol.apiserver` before `v1`.
//!
//! # Reference
//!
//! In `v1beta1` and `v1beta2`, the concurrency shares are in the field `assuredConcurrencyShares`. Before
//! `v1` the value 0 means unset, except in an object of `v1beta3` with a certain annotation.

use apimachinery::names::Names;
use apimachinery::object::Object;

use super::fields::{Fields, annotate, child, default, is_zero, part, remove_annotation, rename};
use super::{FieldChanges, Notes};

const GROUP: &str = "flowcontrol.apiserver";
const KIND: &str = "PriorityLevelConfiguration";
/// Field of the concurrency shares in `v1beta1` and `v1beta2`.
const OLD_SHARES: &str = "assuredConcurrencyShares";
/// Field of the concurrency shares since `v1beta3`.
const SHARES: &str = "nominalConcurrencyShares";
/// Default concurrency shares of a priority level.
const DEFAULT_SHARES: i32 = 30;

pub(super) const VERSIONS: &[FieldChanges] = &[
    FieldChanges::new((GROUP, "v1beta1", KIND), upgrade_old, downgrade_old),
    FieldChanges::new((GROUP, "v1beta2", KIND), upgrade_old, downgrade_old),
    FieldChanges::new((GROUP, "v1beta3", KIND), upgrade_v1beta3, downgrade_v1beta3),
];

/// Key of the annotation of `v1beta3` that marks 0 shares as a value; without it, 0 means unset.
fn zero_annotation(names: &Names) -> String {
    names.group_sub_key("flowcontrol", "v1beta3-preserve-zero-concurrency-shares")
}

/// The field `spec.limited` of a PriorityLevelConfiguration.
fn limited(object: &mut Object) -> Option<&mut Fields> {
    child(part(object, "spec")?, "limited")
}

fn upgrade_old(object: &mut Object, _names: &Names, _notes: &mut Notes) {
    if let Some(limited) = limited(object) {
        rename(limited, OLD_SHARES, SHARES);
        default_shares(limited);
    }
}

fn upgrade_v1beta3(object: &mut Object, names: &Names, _notes: &mut Notes) {
    let keeps_zero = object.annotation(&zero_annotation(names)).is_some();
    remove_annotation(object, &zero_annotation(names));
    if let Some(limited) = limited(object) {
        if keeps_zero {
            default(limited, SHARES, 0);
        } else {
            default_shares(limited);
        }
    }
}

/// Sets the default concurrency shares if they are unset or 0: before `v1`, 0 means unset.
fn default_shares(limited: &mut Fields) {
    if is_zero(limited, SHARES) {
        limited.insert(SHARES.to_owned(), DEFAULT_SHARES.into());
    }
}

fn downgrade_old(object: &mut Object, _names: &Names) {
    if let Some(limited) = limited(object) {
        rename(limited, SHARES, OLD_SHARES);
        default(limited, OLD_SHARES, 0);
    }
}

fn downgrade_v1beta3(object: &mut Object, names: &Names) {
    let Some(limited) = limited(object) else { return };
    default(limited, SHARES, 0);
    if is_zero(limited, SHARES) && object.annotation(&zero_annotation(names)).is_none() {
        annotate(object, &zero_annotation(names), "");
    }
}
