//! The content of a Lease that an election uses.

use apimachinery::object::{Object, Value};

/// The fields of a Lease that the candidates write.
///
/// Times are texts: a candidate only compares them, and measures the age of a record by the time of its first sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The identity of the leader; `""` if the Lease is released.
    pub(super) holder: String,
    pub(super) duration_seconds: i64,
    pub(super) acquired: String,
    pub(super) renewed: String,
    /// The number of changes of the leader.
    pub(super) transitions: i64,
}

impl Record {
    /// Reads the record of a Lease. A field of a wrong type counts as missing.
    pub(super) fn of(lease: &Object) -> Self {
        let text = |field: &str| lease.str_at(&["spec", field]).unwrap_or_default().to_owned();
        let number = |field: &str| lease.at(&["spec", field]).and_then(Value::as_i64).unwrap_or_default();
        Record {
            holder: text("holderIdentity"),
            duration_seconds: number("leaseDurationSeconds"),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: number("leaseTransitions"),
        }
    }

    /// Writes the record into a Lease; other fields stay.
    pub(super) fn write_to(self, lease: &mut Object) {
        let spec = lease.part_mut("spec");
        spec.insert("holderIdentity".to_owned(), self.holder.into());
        spec.insert("leaseDurationSeconds".to_owned(), self.duration_seconds.into());
        spec.insert("acquireTime".to_owned(), self.acquired.into());
        spec.insert("renewTime".to_owned(), self.renewed.into());
        spec.insert("leaseTransitions".to_owned(), self.transitions.into());
    }
}
