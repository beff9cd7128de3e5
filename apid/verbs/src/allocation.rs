//! Allocation of addresses and node ports for Services, their IPAddress objects, and the commit of a write with its
//! reservation.

use std::net::IpAddr;
use std::sync::Arc;

use admission::Recorder;
use apimachinery::attributes::Attributes;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apimachinery::user::{APISERVER, MASTERS, UserInfo};
use authclient::Authorized;
use storage::{CommitOutcome, Held, Op};

use super::deletion::options::DeleteOptions;
use super::options::WriteOptions;
use super::{Call, Collection, Payload, create, delete};
use crate::addresses::{AllocationError, Owner, Reservation};

/// Maximum number of attempts to claim free addresses and ports in a store of several servers.
const CLAIM_ATTEMPTS: usize = 100;

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
        let resource = self.collection.kind.internal();
        if !self.allocates() {
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

    /// Whether the write may allocate addresses and ports.
    fn allocates(&self) -> bool {
        let resource = self.collection.kind.internal();
        let is_service = resource.plural() == "services" && resource.group_resource.group.is_empty();
        is_service && self.subresource.is_empty()
    }

    /// Whether the write may allocate values that other servers allocate at the same time.
    pub(super) fn allocates_among_servers(&self) -> bool {
        self.allocates() && self.api_state.store.is_shared()
    }

    /// Claims the values of a reservation if several servers use the store. Returns false if another server has claimed one
    /// of the values.
    ///
    /// # Errors
    ///
    /// 503 if the store is unavailable, or if other servers took the values of too many attempts.
    pub(super) async fn claim(
        &self,
        reservation: Option<&mut Reservation>,
        attempt: usize,
    ) -> Result<bool, Status> {
        let Some(reservation) = reservation else { return Ok(true) };
        if attempt > CLAIM_ATTEMPTS {
            let message =
                "other servers allocated the same addresses or node ports at the same time, try again";
            return Err(Status::unavailable(message, 1));
        }
        reservation.claim(&self.api_state.store).await.map_err(|error| self.failure(error))
    }

    /// Creates the IPAddress objects of a reservation before the commit of the Service. As kube-apiserver, apid writes
    /// them as its own client: with admission for each create, and for the delete of an object of an earlier Service.
    ///
    /// The repair task deletes the objects if the commit of the Service fails.
    ///
    /// # Errors
    ///
    /// 500: admission rejects a write, or the object exists and is not managed.
    pub(super) async fn record_addresses(&self, reservation: Option<&Reservation>) -> Result<(), Status> {
        let addresses = reservation.map_or(&[][..], Reservation::addresses);
        if addresses.is_empty() {
            return Ok(());
        }
        let group = self.api_state.names.group("networking");
        let Some(collection) = self.collection_of(&group, "IPAddress") else { return Ok(()) };
        let owner = Owner { namespace: self.namespace.to_owned(), name: self.name.to_owned() };
        // Without the claim, another server may own the addresses.
        let recorder = Recorder::holding(reservation.and_then(Reservation::held).cloned());
        for address in addresses {
            let recorded = self.record_address(collection, *address, &owner, &recorder).await;
            recorded.map_err(|status| {
                Status::internal(format!("failed to allocate a serviceIP: {}", status.message))
            })?;
        }
        Ok(())
    }

    /// Creates an IPAddress object. Deletes the object of an earlier Service first.
    async fn record_address(
        &self,
        collection: &Collection,
        address: IpAddr,
        owner: &Owner,
        recorder: &Recorder,
    ) -> Result<(), Status> {
        let (resource, addresses) = (collection.kind.internal(), &self.api_state.addresses);
        let record = addresses.record(address, owner);
        let (name, version) = (record.name().to_owned(), resource.version());
        let user =
            UserInfo { name: APISERVER.to_owned(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
        let user = Arc::new(user);
        let authorize = |verb: &str, name: &str| {
            let attributes = Attributes {
                verb: verb.to_owned(),
                resource_request: true,
                group: resource.group_resource.group.clone(),
                version: version.to_owned(),
                resource: resource.plural().to_owned(),
                name: name.to_owned(),
                ..Attributes::default()
            };
            Authorized::internal(Arc::clone(&user), attributes, "addresses of a Service")
        };
        let deletion = authorize("delete", &name);
        let call = Call {
            authorized: &deletion,
            collection,
            version,
            namespace: "",
            name: &name,
            subresource: "",
            recorder,
            ..*self
        };
        if addresses.has_managed_record(address) {
            match delete(&call, &DeleteOptions::default()).await {
                Err(status) if status.reason != Reason::NotFound => return Err(status),
                _ => {}
            }
        }
        let creation = authorize("create", "");
        let options = WriteOptions::default();
        create(&Call { authorized: &creation, name: "", ..call }, Payload::Object(record), &options)
            .await
            .map(drop)
    }

    /// Commits a write that holds keys, and those of admission. A reservation ends when the outcome of the commit is
    /// definite, except after the error `Lost`.
    pub(super) async fn commit(
        &self,
        key: &str,
        op: Op,
        reservation: &mut Option<Reservation>,
        mut held: Vec<Held>,
    ) -> storage::Result<CommitOutcome> {
        let store = self.collection.items.store()?;
        held.extend(self.recorder.held());
        match reservation.take() {
            Some(reserved) => {
                let (result, remaining) = reserved.commit(store, key.to_owned(), op, held).await;
                *reservation = remaining;
                result
            }
            None => store.commit_holding(key, op, &held).await,
        }
    }
}
