//! API group `storage`: storage classes, volume attachments and CSI objects.

use crate::BuiltInKind;

mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
mod storage_class;
mod storage_class_rules;
mod volume_attachment;
mod volume_attributes_class;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[
    csi_driver::KIND,
    csi_node::KIND,
    csi_storage_capacity::KIND,
    storage_class::KIND,
    volume_attachment::KIND,
    volume_attributes_class::KIND,
    volume_attributes_class::V1ALPHA1,
];
