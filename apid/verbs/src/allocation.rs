//! Allocation of addresses and node ports for Services, and the commit of a write with its reservation.

use std::sync::Arc;

use admission::{Operation, PluginOutput};
use apimachinery::attributes::Attributes;
use apimachinery::object::Object;
use apimachinery::status::Status;
use apimachinery::user::{APISERVER, MASTERS, UserInfo};
use authclient::Authorized;
use storage::{CommitOutcome, Op};

use super::Call;
use super::options::WriteOptions;
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

    /// Runs admission for the IPAddress objects of a reservation, which apid itself creates.
    ///
    /// # Errors
    ///
    /// 500: admission rejects an object.
    pub(super) async fn admit_addresses(&self, reservation: Option<&Reservation>) -> Result<(), Status> {
        let addresses = reservation.map_or(&[][..], Reservation::addresses);
        if addresses.is_empty() {
            return Ok(());
        }
        let group = self.api_state.names.group("networking");
        let Some(collection) = self.collection_of(&group, "IPAddress") else { return Ok(()) };
        let owner = Owner { namespace: self.namespace.to_owned(), name: self.name.to_owned() };
        let resource = &collection.resource;
        let version = resource.kind.version();
        let user =
            UserInfo { name: APISERVER.to_owned(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
        let attributes = Attributes {
            verb: "create".to_owned(),
            resource_request: true,
            group,
            version: version.to_owned(),
            resource: resource.kind.resource().to_owned(),
            ..Attributes::default()
        };
        let authorized = Authorized::internal(Arc::new(user), attributes, "addresses of a Service");
        for address in addresses {
            let mut record = self.api_state.addresses.record(*address, &owner);
            resource.prepare_create(&mut record, "", &self.context());
            let name = record.name().to_owned();
            let notes = PluginOutput::default();
            let call = Call {
                authorized: &authorized,
                collection,
                version,
                namespace: "",
                name: &name,
                subresource: "",
                notes: &notes,
                ..*self
            };
            let build_options = || WriteOptions::default().to_value("CreateOptions", &self.api_state.names);
            let admission = call.admission(Operation::Create, false, &build_options);
            let rejected = |status: Status| {
                Status::internal(format!("failed to allocate a serviceIP: {}", status.message))
            };
            admission.mutate(Some(&mut record), None).await.map_err(rejected)?;
            admission.validate(Some(&record), None).await.map_err(rejected)?;
        }
        Ok(())
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
