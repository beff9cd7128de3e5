//! The group `storage`: where volumes come from.

use crate::Kind;

mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
mod storage_class;
mod volume_attachment;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[
    csi_driver::KIND,
    csi_node::KIND,
    csi_storage_capacity::KIND,
    storage_class::KIND,
    volume_attachment::KIND,
];
