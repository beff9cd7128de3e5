//! Allocation of addresses and node ports for Services, and the commit of a write with its reservation.

use apimachinery::object::Object;
use apimachinery::status::Status;
use storage::{CommitOutcome, Op};

use super::Call;
use crate::addresses::{AllocationError, Owner, Reservation};

impl Call<'_> {
    /// Allocates the cluster IP addresses and node ports of a Service.
    ///
    /// Returns None for other kinds and for subresources.
    ///
    /// # Errors
    ///
    /// 422 for a value that cannot be allocated, 500 for a full range.
    pub(super) fn allocate(
        &self,
        new: &mut Object,
        old: Option<&Object>,
        is_dry_run: bool,
    ) -> Result<Option<Reservation>, Status> {
        let resource = &self.collection.resource;
        let is_service = resource.kind.resource() == "services" && resource.group_resource.group.is_empty();
        if !is_service || !self.subresource.is_empty() {
            return Ok(None);
        }
        match self.api_state.addresses.allocate(new, old, is_dry_run) {
            Ok(reservation) => Ok(Some(reservation)),
            Err(AllocationError::Invalid(errors)) => {
                Err(Status::invalid(&resource.group_kind, self.name, &errors))
            }
            Err(AllocationError::Internal(message)) => Err(Status::internal(message)),
        }
    }

    /// Commits a write. With a reservation, the IPAddress objects of its addresses are written first.
    pub(super) async fn commit(
        &self,
        key: &str,
        op: Op,
        reservation: Option<Reservation>,
    ) -> storage::Result<CommitOutcome> {
        let store = &self.api_state.store;
        let Some(reservation) = reservation else { return store.commit(key, op).await };
        let owner = Owner { namespace: self.namespace.to_owned(), name: self.name.to_owned() };
        let group = self.api_state.names.group("networking");
        let mut records = Vec::new();
        if let Some(resource) = self.kinds.registry.find_kind(&group, "IPAddress") {
            for address in reservation.addresses() {
                let mut record = self.api_state.addresses.record(*address, &owner);
                resource.prepare_create(&mut record, "", &self.context());
                records.push((resource.key("", record.name()), kinds::entry::encode(&record)));
            }
        }
        reservation.commit(store.clone(), key.to_owned(), op, records).await
    }
}
