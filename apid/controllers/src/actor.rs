//! The actor of a background task: writes through the verbs, with an identity that the audit log shows. Objects of other
//! servers are deleted with the same identity.

use std::sync::Arc;

use admission::Recorder;
use aggregation::{Aggregation, RemoteResource};
use apimachinery::attributes::Attributes;
use apimachinery::codec::Limits;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apimachinery::user::{APISERVER, AUTHENTICATED, MASTERS, UserInfo};
use bytes::Bytes;

use super::leadership::{LoopWrite, NotLeading};
use super::state::ControllerState;
use audit::{Event, Level, Outcome, Stage};
use authclient::Authorized;
use verbs::deletion::options::DeleteOptions;
use verbs::options::{ListOptions, WriteOptions};
use verbs::patch::{self, Patch};
use verbs::{self, BatchLimits, Call, DeleteResult, Payload, ResponseObject, WriteResult};
use verbs::{ApiState, Collection, ServedKinds};

/// Shared identity of controllers without their own service accounts (requirements A-DEF-54, -55).
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// The identity of a background task and its user agent in the audit log.
#[derive(Clone)]
pub(super) struct Actor {
    state: Arc<ControllerState>,
    user: Arc<UserInfo>,
    user_agent: String,
    /// Whether the actor writes only while this apid leads.
    is_of_leader: bool,
}

/// The object or collection that an actor writes.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    /// The collection of the object's kind.
    pub(super) collection: &'a Collection,
    /// The namespace; `""` for a cluster-scoped object or for all namespaces.
    pub(super) namespace: &'a str,
    /// The name; `""` for a new object or for the whole collection.
    pub(super) name: &'a str,
    /// The subresource; `""` for the object itself.
    pub(super) subresource: &'a str,
}

/// The object or collection of another server that an actor deletes.
#[derive(Clone, Copy)]
pub(super) struct RemoteTarget<'a> {
    /// The resource.
    pub(super) resource: &'a RemoteResource,
    /// The namespace.
    pub(super) namespace: &'a str,
    /// The name; `""` for the whole collection.
    pub(super) name: &'a str,
}

/// Whether a write failed because another client changed or deleted the object meanwhile.
pub(super) fn is_race(status: &Status) -> bool {
    matches!(status.reason, Reason::Conflict | Reason::NotFound)
}

/// The failure of a write of a loop while this apid does not lead. The failure is no race: a repetition fails too, until
/// this apid leads again.
pub(super) fn not_leading() -> Status {
    Status::failure(Reason::NotLeading, "this apid does not run the controllers now")
}

/// Whether a write failed because this apid does not lead.
pub(super) fn is_not_leading(status: &Status) -> bool {
    status.reason == Reason::NotLeading
}

/// Whether the failure of a write is part of normal operation and needs no log line: a race, or the end of the term.
pub(super) fn is_normal(status: &Status) -> bool {
    is_race(status) || is_not_leading(status)
}

/// Ignores the failure of a write because of a race: the notification about the other write causes the next
/// attempt.
pub(super) fn ignore_race<T>(result: Result<T, Status>) -> Result<(), Status> {
    match result {
        Err(status) if !is_race(&status) => Err(status),
        _ => Ok(()),
    }
}

/// A write in progress. It needs no decision of authd; [`Audited::end`] writes its audit event.
struct Action<'a> {
    target: Target<'a>,
    kinds: Arc<ServedKinds>,
    audited: Audited<'a>,
}

/// The identity and the audit event of a write in progress.
struct Audited<'a> {
    actor: &'a Actor,
    /// The end of a term waits for the write.
    _loop_write: Option<LoopWrite<'a>>,
    authorized: Authorized,
    event: Event,
    recorder: Recorder,
}

impl ControllerState {
    /// Returns an actor that writes as `system:apiserver`, on each apid.
    pub(super) fn apiserver(self: &Arc<Self>) -> Actor {
        let user =
            UserInfo { name: APISERVER.to_owned(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
        Actor::new(self, user, "apiserver")
    }

    /// Returns the actor of a controller, which writes only while this apid leads. It writes as the service account
    /// `name` of the system namespace if controllers have own accounts, else as [`CONTROLLER_MANAGER`].
    pub(super) fn controller(self: &Arc<Self>, name: &str) -> Actor {
        if self.own_accounts {
            return self.service_account(name);
        }
        let user = UserInfo {
            name: CONTROLLER_MANAGER.to_owned(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        };
        Actor::new(self, user, name).of_leader()
    }

    /// Returns an actor that writes as the service account `name` of the system namespace, while this apid leads.
    pub(super) fn service_account(self: &Arc<Self>, name: &str) -> Actor {
        let namespace = self.api_state.names.system_namespace;
        let user = UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            ..UserInfo::default()
        };
        Actor::new(self, user, name).of_leader()
    }
}

impl Actor {
    /// Returns an actor with the user agent `apid/` and `program`.
    fn new(state: &Arc<ControllerState>, user: UserInfo, program: &str) -> Self {
        let user_agent = format!("apid/{program}");
        Actor { state: Arc::clone(state), user: Arc::new(user), user_agent, is_of_leader: false }
    }

    /// Returns the actor of a loop that must run once: it writes only while this apid leads.
    pub(super) fn of_leader(self) -> Self {
        Actor { is_of_leader: true, ..self }
    }

    /// Returns the actor of a task that each apid runs: it writes at any time.
    pub(super) fn of_each_server(self) -> Self {
        Actor { is_of_leader: false, ..self }
    }

    /// Whether the actor may write now.
    pub(super) fn may_write(&self) -> bool {
        !self.is_of_leader || self.state.leadership.leads()
    }

    /// Returns the write options. The field manager is the user agent without the prefix `apid/`.
    fn options(&self) -> WriteOptions {
        let program = self.user_agent.strip_prefix("apid/").unwrap_or(&self.user_agent);
        WriteOptions { program: program.to_owned(), ..WriteOptions::default() }
    }

    /// Returns the state of the API through which the actor writes.
    pub(super) fn api_state(&self) -> &Arc<ApiState> {
        &self.state.api_state
    }

    /// Creates an object.
    pub(super) async fn create(&self, target: Target<'_>, object: Object) -> Result<WriteResult, Status> {
        let action = self.begin("create", target)?;
        let result = verbs::create(&action.call(), Payload::Object(object), &self.options()).await;
        action.audited.end(result, 201).await
    }

    /// Updates an object or its subresource.
    pub(super) async fn update(&self, target: Target<'_>, object: Object) -> Result<WriteResult, Status> {
        let action = self.begin("update", target)?;
        let result = verbs::update(&action.call(), Payload::Object(object), &self.options()).await;
        action.audited.end(result, 200).await
    }

    /// Applies a JSON merge patch to an object.
    pub(super) async fn merge(&self, target: Target<'_>, patch: &[u8]) -> Result<WriteResult, Status> {
        let mut action = self.begin("patch", target)?;
        action.audited.event.set_patch(Bytes::copy_from_slice(patch));
        let result = match Patch::parse(patch::PatchType::Merge, patch, Limits::NONE) {
            Ok(patch) => patch::patch(&action.call(), patch, &self.options()).await,
            Err(status) => Err(status),
        };
        action.audited.end(result, 200).await
    }

    /// Applies a configuration with server-side apply and force, because the actor owns the applied fields
    /// (requirement D-SSA-29).
    pub(super) async fn apply(
        &self,
        target: Target<'_>,
        configuration: &[u8],
    ) -> Result<WriteResult, Status> {
        let mut action = self.begin("patch", target)?;
        let options = self.options();
        let field_manager = options.manager().to_owned();
        action.audited.event.uri.push_str(&format!("?fieldManager={field_manager}&force=true"));
        action.audited.event.set_patch(Bytes::copy_from_slice(configuration));
        let options = WriteOptions { field_manager, force: true, ..options };
        let result = match Patch::parse(patch::PatchType::Apply, configuration, Limits::NONE) {
            Ok(patch) => patch::patch(&action.call(), patch, &options).await,
            Err(status) => Err(status),
        };
        action.audited.end(result, 200).await
    }

    /// Deletes an object.
    pub(super) async fn delete(
        &self,
        target: Target<'_>,
        options: &DeleteOptions,
    ) -> Result<DeleteResult, Status> {
        let action = self.begin("delete", target)?;
        let result = verbs::delete(&action.call(), options).await;
        action.audited.end(result, 200).await
    }

    /// Deletes all objects of the target's kind in the target's namespace; in all namespaces if that is `""`.
    ///
    /// At most `concurrency` objects are deleted at the same time.
    pub(super) async fn delete_collection(
        &self,
        target: Target<'_>,
        options: &DeleteOptions,
        concurrency: usize,
    ) -> Result<(), Status> {
        let action = self.begin("deletecollection", target)?;
        let list_options = ListOptions::default();
        let may_begin = || if self.may_write() { Ok(()) } else { Err(not_leading()) };
        let limits = BatchLimits { concurrency, begin_until: None, may_begin: Some(&may_begin) };
        let result = verbs::delete_collection(&action.call(), &list_options, options, limits).await;
        action.audited.end(result.map(drop), 200).await
    }

    /// Deletes an object of another server, or all objects of a namespace. The server decides about the request.
    pub(super) async fn delete_remote(
        &self,
        target: RemoteTarget<'_>,
        options: &DeleteOptions,
    ) -> Result<(), Status> {
        let RemoteTarget { resource, namespace, name } = target;
        let verb = if name.is_empty() { "deletecollection" } else { "delete" };
        let attributes = Attributes {
            verb: verb.to_owned(),
            resource_request: true,
            group: resource.api.group.clone(),
            version: resource.api.version.clone(),
            resource: resource.name.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: resource.path(namespace, name),
            ..Attributes::default()
        };
        let audited = self.audited(attributes)?;
        let body = Bytes::from(options.to_value(&self.state.api_state.names).to_string());
        let result = resource.delete(&self.user, namespace, name, body).await;
        audited.end(result, 200).await
    }

    /// The user that other servers see.
    pub(super) fn user(&self) -> &UserInfo {
        &self.user
    }

    /// The APIServices, with the servers behind them.
    pub(super) fn aggregation(&self) -> &Aggregation {
        &self.state.aggregation
    }

    fn begin<'a>(&'a self, verb: &str, target: Target<'a>) -> Result<Action<'a>, Status> {
        let audited = self.audited(attributes(verb, &target))?;
        Ok(Action { target, kinds: self.state.api_state.kinds.get(), audited })
    }

    /// Begins a write.
    ///
    /// # Errors
    ///
    /// The actor belongs to a loop, and this apid does not lead; see [`is_not_leading`].
    fn audited(&self, attributes: Attributes) -> Result<Audited<'_>, Status> {
        let loop_write = match self.is_of_leader {
            true => self.state.leadership.begin_write().map_err(|NotLeading| not_leading())?,
            false => None,
        };
        let attributes = Arc::new(attributes);
        let (api_state, audit) = (&self.state.api_state, &self.state.audit);
        let (id, uri) = (api_state.rng.uuid(), attributes.path.clone());
        let mut event = Event::new(id, api_state.clock.now(), uri, Arc::clone(&attributes));
        event.user_agent.clone_from(&self.user_agent);
        event.user = Some(Arc::clone(&self.user));
        event.decision = audit.is_on().then(|| audit.evaluate(&attributes, Some(&*self.user)));
        let level = event.level();
        let authorized =
            Authorized::internal(self.user.clone(), attributes, "work of the control plane itself");
        let recorder =
            Recorder::new(level >= Level::Metadata).recording_request_object(level >= Level::Request);
        Ok(Audited { actor: self, _loop_write: loop_write, authorized, event, recorder })
    }
}

impl Action<'_> {
    fn call(&self) -> Call<'_> {
        Call {
            api_state: &self.audited.actor.state.api_state,
            kinds: &self.kinds,
            authorized: &self.audited.authorized,
            collection: self.target.collection,
            version: version(&self.target),
            namespace: self.target.namespace,
            name: self.target.name,
            subresource: self.target.subresource,
            recorder: &self.audited.recorder,
            request_id: &self.audited.event.id,
            deadline: None,
            memory: None,
        }
    }
}

impl Audited<'_> {
    /// Writes the audit events and returns the result. `success` is the HTTP status code in the event if the
    /// write succeeded.
    async fn end<T: Written>(mut self, result: Result<T, Status>, success: u16) -> Result<T, Status> {
        let state = &self.actor.state;
        if self.event.level() == Level::None {
            return result;
        }
        // A write of apid itself is not rejected when its first event cannot be written.
        if let Some(receipt) = state.audit.encode(&self.event, Stage::RequestReceived, None) {
            state.audit.send(receipt).await;
        }
        let domain = state.api_state.names.group("authorization");
        self.event.annotations = vec![
            (format!("{domain}/decision"), "allow".to_owned()),
            (format!("{domain}/reason"), self.authorized.reason().to_owned()),
        ];
        self.event.take_record(&self.recorder);
        let status = result.as_ref().map_or_else(Some, T::status);
        let code = result.as_ref().map_or_else(|status| status.code, |_| success);
        if self.event.level() == Level::RequestResponse {
            let object = match (status, &result) {
                (Some(status), _) => Some(status.to_value().to_string().into_bytes()),
                (None, Ok(written)) => written.object().and_then(|object| {
                    let mut json = Vec::new();
                    object.write_json(&mut json, true).ok().map(|()| json)
                }),
                (None, Err(_)) => None,
            };
            if let Some(object) = object {
                self.event.set_response_object(object.into());
            }
        }
        state.audit.write(&self.event, Stage::ResponseComplete, Outcome { code, status }).await;
        result
    }
}

/// The result of a write, for its audit event.
trait Written {
    /// The object in the response, if any.
    fn object(&self) -> Option<&ResponseObject> {
        None
    }

    /// The response, if it is a Status.
    fn status(&self) -> Option<&Status> {
        None
    }
}

impl Written for () {}

impl Written for WriteResult {
    fn object(&self) -> Option<&ResponseObject> {
        Some(&self.object)
    }
}

impl Written for DeleteResult {
    fn object(&self) -> Option<&ResponseObject> {
        match self {
            DeleteResult::Object(object) | DeleteResult::Terminating(object) => Some(object),
            DeleteResult::Status(_) => None,
        }
    }

    fn status(&self) -> Option<&Status> {
        match self {
            DeleteResult::Status(status) => Some(&**status),
            DeleteResult::Object(_) | DeleteResult::Terminating(_) => None,
        }
    }
}

fn version<'a>(target: &Target<'a>) -> &'a str {
    target.collection.kind.internal().version()
}

/// Returns the authorization attributes of the HTTP request that would make the same write.
fn attributes(verb: &str, target: &Target<'_>) -> Attributes {
    let resource = target.collection.kind.internal();
    let group = resource.group_resource.group.as_str();
    let mut path = if group.is_empty() {
        format!("/api/{}", version(target))
    } else {
        format!("/apis/{group}/{}", version(target))
    };
    if resource.namespaced && !target.namespace.is_empty() {
        path.push_str(&format!("/namespaces/{}", target.namespace));
    }
    for part in [resource.plural(), target.name, target.subresource] {
        if !part.is_empty() {
            path.push('/');
            path.push_str(part);
        }
    }
    // The namespace of a request for a Namespace is the name of that object (requirement A-AZD-51).
    let is_namespace = group.is_empty() && resource.plural() == "namespaces";
    let namespace = if is_namespace { target.name } else { target.namespace };
    Attributes {
        verb: verb.to_owned(),
        resource_request: true,
        group: group.to_owned(),
        version: version(target).to_owned(),
        resource: resource.plural().to_owned(),
        subresource: target.subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: target.name.to_owned(),
        path,
        ..Attributes::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_after_the_term_is_no_race() {
        let refused = not_leading();
        assert!(is_not_leading(&refused) && is_normal(&refused) && !is_race(&refused));
        assert!(
            is_not_leading(&ignore_race(Err::<(), _>(refused.clone())).unwrap_err()),
            "the caller learns of the failure"
        );
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (503, "ServiceUnavailable"),
            "the audit log has both"
        );
        let unavailable = Status::unavailable(refused.message.clone(), 1);
        assert!(!is_not_leading(&unavailable) && !is_normal(&unavailable));
        let race = Status::unknown_resource();
        assert!(is_normal(&race) && ignore_race(Err::<(), _>(race)).is_ok());
    }
}
