//! Tests of chain construction from flags, plugin order and NamespaceLifecycle.

use std::sync::Arc;

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use kinds::{Registry, Resource};

use crate::plugins::{Availability, PLUGINS};
use crate::testing::Fake;
use crate::{
    Admission, Attributes, Chain, ConfigError, Configuration, Environment, Interest, LookupResult,
    MaybeFuture, ObjectKind, Operation, Plugin, PluginOutput, Reader,
};

/// Reader with namespaces by first letter: `a`ctive, `t`erminating, `l`ate (a pending lookup).
/// `f`resh namespaces are missing in the cache; `b`roken namespaces cause an error.
struct ByLetter;

impl ByLetter {
    fn find(name: &str) -> LookupResult {
        let mut namespace = Object::default();
        match name.chars().next() {
            Some('a' | 'l' | 'f') => {}
            Some('t') => namespace.set_meta("deletionTimestamp", "2026-01-01T00:00:00Z"),
            Some('b') => return Err(Status::unavailable("the store is closed", 1)),
            _ => return Ok(None),
        }
        Ok(Some(Arc::new(namespace)))
    }
}

impl Reader for ByLetter {
    fn get<'a>(&'a self, kind: ObjectKind, _: &'a str, name: &'a str) -> MaybeFuture<'a, LookupResult> {
        assert_eq!(kind, ObjectKind::NAMESPACE);
        match name.chars().next() {
            Some('f') => MaybeFuture::Ready(Ok(None)),
            Some('l') => MaybeFuture::later(async { ByLetter::find(name) }),
            _ => MaybeFuture::Ready(ByLetter::find(name)),
        }
    }

    fn list<'a>(&'a self, _: ObjectKind, _: &'a str) -> MaybeFuture<'a, Result<Vec<Arc<Object>>, Status>> {
        MaybeFuture::Ready(Ok(Vec::new()))
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(0)
    }

    fn get_fresh<'a>(&'a self, _: ObjectKind, _: &'a str, name: &'a str) -> MaybeFuture<'a, LookupResult> {
        MaybeFuture::Ready(ByLetter::find(name))
    }
}

fn environment(preset: Preset) -> Environment {
    Environment { reader: Arc::new(ByLetter), ..Fake::new(preset).environment() }
}

fn chain(enabled: &[&str], disabled: &[&str]) -> Result<Chain, Vec<ConfigError>> {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    Chain::new(&list(enabled), &list(disabled), &Configuration::default(), &environment(Preset::Kubernetes))
}

#[test]
fn default_chain_has_plugins_of_release_1_33() {
    assert_eq!(
        chain(&[], &[]).unwrap().names().collect::<Vec<_>>(),
        [
            "NamespaceLifecycle",
            "LimitRanger",
            "ServiceAccount",
            "TaintNodesByCondition",
            "PodSecurity",
            "Priority",
            "DefaultTolerationSeconds",
            "DefaultStorageClass",
            "StorageObjectInUseProtection",
            "PersistentVolumeClaimResize",
            "RuntimeClass",
            "CertificateApproval",
            "CertificateSigning",
            "ClusterTrustBundleAttest",
            "CertificateSubjectRestriction",
            "DefaultIngressClass",
            "MutatingAdmissionWebhook",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionWebhook",
            "ResourceQuota",
        ]
    );
}

#[test]
fn invalid_plugin_flags_return_errors() {
    let is_built =
        |state: &Availability| matches!(state, Availability::Implemented(_) | Availability::Configured(_));
    let by_default = PLUGINS.iter().filter(|entry| entry.on_by_default && is_built(&entry.availability));
    let by_default: Vec<&str> = by_default.map(|entry| entry.name).collect();
    assert_eq!(chain(&[], &[]).unwrap().names().collect::<Vec<_>>(), by_default);
    assert_eq!(chain(&[], &by_default).unwrap().names().count(), 0);
    let more = chain(&["NodeRestriction", "NamespaceLifecycle"], &[]).unwrap();
    let added: Vec<&str> = more.names().filter(|name| !by_default.contains(name)).collect();
    assert_eq!(added, ["NodeRestriction"], "one by name, the other runs anyway");
    for (enabled, disabled, error) in [
        ("PodSecurityPolicy", "", ConfigError::Unknown("PodSecurityPolicy".to_owned())),
        ("", "NoSuch", ConfigError::Unknown("NoSuch".to_owned())),
        ("ImagePolicyWebhook", "", ConfigError::NotImplemented("ImagePolicyWebhook")),
        ("NodeRestriction", "NodeRestriction", ConfigError::EnabledAndDisabled("NodeRestriction".to_owned())),
    ] {
        let list = |name: &'static str| if name.is_empty() { vec![] } else { vec![name] };
        assert_eq!(chain(&list(enabled), &list(disabled)).unwrap_err(), [error]);
    }
    assert_eq!(chain(&["x", "y", "ImagePolicyWebhook"], &[]).unwrap_err().len(), 3, "all mistakes at once");
}

#[test]
fn plugin_table_is_unique_and_ordered() {
    let names: Vec<&str> = PLUGINS.iter().map(|entry| entry.name).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len());
    assert_eq!(names.last(), Some(&"AlwaysDeny"));
    let index_of = |name: &str| names.iter().position(|n| *n == name).unwrap();
    for (first, second) in [
        ("NamespaceLifecycle", "LimitRanger"),
        ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"),
        ("ValidatingAdmissionWebhook", "ResourceQuota"),
    ] {
        assert!(index_of(first) < index_of(second), "{first} before {second}");
    }
    assert!(PLUGINS.iter().any(|entry| matches!(entry.availability, Availability::Implemented(_))));
}

struct ChainWrite<'a> {
    operation: Operation,
    resource: &'a Resource,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

/// Runs both phases of the default chain for a write.
async fn admit(chain: &Chain, write: ChainWrite<'_>) -> Result<(), Status> {
    let (notes, user, options) = (PluginOutput::default(), Arc::new(UserInfo::anonymous()), || Value::Null);
    let attributes = Attributes {
        operation: write.operation,
        resource: write.resource,
        served: write.resource,
        version: "v1",
        subresource: write.subresource,
        namespace: write.namespace,
        name: write.name,
        old: None,
        user: &user,
        dry_run: false,
        options: &options,
        reinvoked: false,
        has_generated_name: false,
        is_in_collection: false,
        deadline: None,
        notes: &notes,
    };
    let mut object = Object::default();
    let has_object = write.operation != Operation::Delete;
    chain.mutate(&attributes, has_object.then_some(&mut object)).await?;
    chain.validate(&attributes, has_object.then_some(&object)).await
}

#[tokio::test]
async fn namespace_lifecycle_rejects_missing_and_terminating_namespaces() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let environment = environment(preset);
        let registry = Registry::new(&environment.names);
        let find = |kind: &str| {
            let resources = registry.resources();
            resources.iter().find(|r| r.kind.kind() == kind).map(|r| &**r).unwrap()
        };
        let chain = Chain::new(&[], &[], &Configuration::default(), &environment).unwrap();
        let (system, public) = (environment.names.system_namespace, environment.names.public_namespace);
        for (operation, kind, namespace, name, code) in [
            (Operation::Create, "ConfigMap", "active", "x", 0),
            (Operation::Create, "ConfigMap", "later", "x", 0),
            (Operation::Create, "ConfigMap", "fresh", "x", 0),
            (Operation::Create, "ConfigMap", "terminating", "x", 403),
            (Operation::Create, "ConfigMap", "missing", "x", 404),
            (Operation::Create, "ConfigMap", "broken", "x", 503),
            (Operation::Update, "ConfigMap", "terminating", "x", 0),
            (Operation::Update, "ConfigMap", "missing", "x", 404),
            (Operation::Delete, "ConfigMap", "terminating", "x", 0),
            (Operation::Delete, "ConfigMap", "missing", "x", 0),
            (Operation::Create, "Namespace", "", "missing", 0),
            (Operation::Create, "ClusterRole", "", "x", 0),
            (Operation::Create, "LocalSubjectAccessReview", "missing", "", 0),
            (Operation::Delete, "Namespace", "", "default", 403),
            (Operation::Delete, "Namespace", "", system, 403),
            (Operation::Delete, "Namespace", "", public, 403),
            (Operation::Delete, "Namespace", "", "other", 0),
            (Operation::Update, "Namespace", "", "default", 0),
            (Operation::Delete, "ConfigMap", "default", "default", 0),
        ] {
            let write = ChainWrite { operation, resource: find(kind), subresource: "", namespace, name };
            let have = admit(&chain, write).await.map_or_else(|status| status.code, |()| 0);
            assert_eq!(have, code, "{} {kind} {namespace}/{name}", operation.as_str());
        }
    }
}

#[tokio::test]
async fn namespace_lifecycle_rejections_have_kubernetes_messages() {
    let chain = chain(&[], &[]).unwrap();
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "example.test").unwrap());
    let config_maps = registry.find("", "v1", "configmaps").unwrap();
    let namespaces = registry.find("", "v1", "namespaces").unwrap();
    for (operation, resource, namespace, name, message, causes) in [
        (
            Operation::Create,
            config_maps,
            "t",
            "late",
            "configmaps \"late\" is forbidden: unable to create new content in namespace t because it is being terminated",
            vec![("NamespaceTerminating", "namespace t is being terminated", "metadata.namespace")],
        ),
        (Operation::Create, config_maps, "gone", "m", "namespaces \"gone\" not found", vec![]),
        (
            Operation::Delete,
            namespaces,
            "",
            "kube-system",
            "namespaces \"kube-system\" is forbidden: this namespace may not be deleted",
            vec![],
        ),
    ] {
        let write = ChainWrite { operation, resource, subresource: "", namespace, name };
        let status = admit(&chain, write).await.unwrap_err();
        assert_eq!(status.message, message);
        let details = status.details.unwrap();
        let have: Vec<_> = details.causes.iter().map(|c| (&*c.reason, &*c.message, &*c.field)).collect();
        assert_eq!(have, causes);
    }
}

/// Plugin that appends its letter to the label `seen`, at once or later.
/// It warns, and rejects objects with its letter.
struct Letter(&'static str);

impl Plugin for Letter {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        let Some(object) = object else { return MaybeFuture::Ready(Ok(())) };
        let mut write = move || {
            let seen = format!("{}{}", object.str_at(&["seen"]).unwrap_or(""), self.0);
            object.set("seen", seen);
            attributes.notes.warn(self.0);
            Ok(())
        };
        match self.0 {
            "b" => MaybeFuture::later(async move { write() }),
            _ => MaybeFuture::Ready(write()),
        }
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a Object>) -> Admission<'a> {
        let seen = object.and_then(|o| o.str_at(&["seen"])).unwrap_or("");
        attributes.notes.annotate(self.0, seen);
        let is_rejected = object.is_some_and(|o| o.name() == self.0);
        MaybeFuture::Ready(if is_rejected { Err(attributes.forbidden(self.0)) } else { Ok(()) })
    }
}

#[tokio::test]
async fn plugins_run_in_order_and_validate_after_all_mutations() {
    let chain = Chain::from_plugins(
        ["a", "b", "c"].map(|letter| (letter, Box::new(Letter(letter)) as Box<dyn Plugin>)).into(),
    );
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
    let (user, options) = (Arc::new(UserInfo::anonymous()), || Value::Null);
    for (operation, name, seen, annotated, refusal) in [
        (Operation::Create, "x", Some("abc"), 3, None),
        (Operation::Create, "b", Some("abc"), 2, Some("configmaps \"b\" is forbidden: b")),
        (Operation::Update, "x", None, 0, None),
    ] {
        let notes = PluginOutput::default();
        let attributes = Attributes {
            operation,
            resource: registry.find("", "v1", "configmaps").unwrap(),
            served: registry.find("", "v1", "configmaps").unwrap(),
            version: "v1",
            subresource: "",
            namespace: "team",
            name,
            old: None,
            user: &user,
            dry_run: false,
            options: &options,
            reinvoked: false,
            has_generated_name: false,
            is_in_collection: false,
            deadline: None,
            notes: &notes,
        };
        let mut object = Object::default();
        object.set_meta("name", name);
        chain.mutate(&attributes, Some(&mut object)).await.unwrap();
        let answer = chain.validate(&attributes, Some(&object)).await;
        assert_eq!(answer.err().map(|status| status.message).as_deref(), refusal);
        assert_eq!(object.str_at(&["seen"]), seen);
        let annotations = notes.take_annotations();
        assert_eq!(annotations.len(), annotated);
        assert!(annotations.iter().all(|(_, value)| value == "abc"));
        assert_eq!(notes.take_warnings().concat(), seen.unwrap_or(""));
    }
}
