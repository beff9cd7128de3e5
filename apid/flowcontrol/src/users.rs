//! The flow schemas that concern a user, found once for each user.
//!
//! # Contract
//!
//! [`KnownUsers::get`] returns the rules whose subjects are the user, in the order in which schemas are matched, and the
//! hash of the user's flow in each schema. The user part of a match takes longer than the rest, and the hash longer than
//! both; neither depends on the request.
//!
//! # Invariants
//!
//! INVARIANT (same user): an entry holds its [`UserInfo`], so that no other user gets the address that identifies it.
//! INVARIANT (bounded): at most [`MAX_USERS`] users are known; then all are forgotten.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::user::UserInfo;
use parking_lot::RwLock;

use crate::configuration::DistinguisherMethod;
use crate::{Schema, shuffle};

/// Maximum number of known users. An impersonated user is new with each request.
const MAX_USERS: usize = 1024;

/// The users of a plan, by the address of their [`UserInfo`].
#[derive(Default)]
pub(crate) struct KnownUsers(RwLock<ByNumber<Arc<KnownUser>>>);

/// The schemas that concern a user.
pub(crate) struct KnownUser {
    schemas: Vec<SchemaOfUser>,
    _user: Arc<UserInfo>,
}

struct SchemaOfUser {
    schema: Arc<Schema>,
    /// Indexes of the rules whose subjects are the user.
    rules: Vec<usize>,
    /// Hash of the flow of the user's requests, unless it depends on the request.
    flow: Option<u64>,
}

impl KnownUsers {
    /// Returns the schemas that concern a user. `schemas` are those of the plan, in order.
    pub(crate) fn get(&self, user: &Arc<UserInfo>, schemas: &[Arc<Schema>]) -> Arc<KnownUser> {
        let key = Arc::as_ptr(user).addr() as u64;
        if let Some(known) = self.0.read().get(&key) {
            return Arc::clone(known);
        }
        let known = Arc::new(KnownUser::new(user, schemas));
        let mut users = self.0.write();
        if users.len() >= MAX_USERS {
            users.clear();
        }
        users.insert(key, Arc::clone(&known));
        known
    }
}

impl KnownUser {
    fn new(user: &Arc<UserInfo>, schemas: &[Arc<Schema>]) -> Self {
        let of_user = |schema: &Arc<Schema>| {
            let rules = schema.spec.rules_for(user);
            let flow = match schema.spec.distinguisher_method {
                None => Some(shuffle::flow_hash(&schema.name, "")),
                Some(DistinguisherMethod::ByUser) => Some(shuffle::flow_hash(&schema.name, &user.name)),
                Some(DistinguisherMethod::ByNamespace) => None,
            };
            (!rules.is_empty()).then(|| SchemaOfUser { schema: Arc::clone(schema), rules, flow })
        };
        KnownUser { schemas: schemas.iter().filter_map(of_user).collect(), _user: Arc::clone(user) }
    }

    /// Returns the first schema that matches a request of the user.
    pub(crate) fn classify(&self, request: &Attributes) -> Option<&Arc<Schema>> {
        let matches = |of_user: &&SchemaOfUser| of_user.schema.spec.covers(&of_user.rules, request);
        self.schemas.iter().find(matches).map(|of_user| &of_user.schema)
    }

    /// Returns the hash of the flow of the user's requests in a schema; None if it depends on the request, or if the
    /// schema does not concern the user.
    pub(crate) fn flow(&self, schema: &Arc<Schema>) -> Option<u64> {
        self.schemas.iter().find(|of_user| Arc::ptr_eq(&of_user.schema, schema))?.flow
    }
}

/// A map by numbers that no client chooses: ids and addresses.
pub(crate) type ByNumber<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

/// Spreads a number over all bits with one multiplication.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

/// An odd number without a pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The high bits of the product depend on all bits of the number; tables use the low ones.
        self.0 = (self.0 ^ number).wrapping_mul(SPREAD).rotate_left(32);
    }
}
