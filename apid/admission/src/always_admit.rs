//! AlwaysAdmit: allows every write.
//! A chain without plugins does the same; the plugin exists for deployments that enable it by name.

use crate::{Interest, Operation, Plugin};

pub(crate) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {
    const INTEREST: Interest = Interest::only(&[]).on(&Operation::ALL);
}
