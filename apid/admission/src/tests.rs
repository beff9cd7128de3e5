//! Tests of chain construction from flags, plugin order and NamespaceLifecycle.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use kinds::{Kind, Registry};

use crate::plugins::{AnyPlugin, PLUGINS};
use crate::testing::Fake;
use crate::{
    Attributes, Chain, ConfigError, Configuration, Environment, Interest, ListResult, ListedObject,
    LookupResult, ObjectKind, Operation, Plugin, Reader, Recorder,
};

/// Reader with namespaces by first letter: `a`ctive, `t`erminating, `l`ate (after a load of the kind).
/// `f`resh namespaces are missing in the cache; `b`roken namespaces cause an error.
#[derive(Default)]
struct ByLetter {
    is_loaded: AtomicBool,
}

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

#[async_trait]
impl Reader for ByLetter {
    fn cached(&self, kind: ObjectKind, _: &str, name: &str) -> Option<LookupResult> {
        assert_eq!(kind, ObjectKind::NAMESPACE);
        match name.chars().next() {
            Some('f') => Some(Ok(None)),
            Some('l') if !self.is_loaded.load(Ordering::SeqCst) => None,
            _ => Some(ByLetter::find(name)),
        }
    }

    fn cached_list(&self, _: ObjectKind, _: &str) -> Option<ListResult> {
        Some(Ok(Vec::new()))
    }

    fn cached_items(&self, _: ObjectKind) -> Option<Result<Vec<ListedObject>, Status>> {
        Some(Ok(Vec::new()))
    }

    async fn load(&self, _: ObjectKind) -> Result<(), Status> {
        self.is_loaded.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn last_change(&self, _: ObjectKind) -> Option<u64> {
        Some(0)
    }

    async fn get_fresh(&self, _: ObjectKind, _: &str, name: &str) -> LookupResult {
        ByLetter::find(name)
    }

    async fn get_custom(&self, _: &Kind, _: &str, _: &str) -> LookupResult {
        Ok(None)
    }

    async fn select(&self, _: &Kind, _: &str, _: &Value) -> Result<Vec<ListedObject>, Status> {
        Ok(Vec::new())
    }
}

fn environment(preset: Preset) -> Environment {
    Environment { reader: Arc::new(ByLetter::default()), ..Fake::new(preset).environment }
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
    let by_default: Vec<&str> = chain(&[], &[]).unwrap().names().collect();
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
    assert_eq!(chain(&["x", "y", "ImagePolicyWebhook"], &[]).unwrap_err().len(), 3, "all errors at once");
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
}

struct ChainWrite<'a> {
    operation: Operation,
    resource: &'a Kind,
    subresource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

/// Maximum size of the future of a phase. Each write has this future, so plugins box the large parts of theirs.
const FUTURE_BYTES: usize = 2_048;

/// Runs both phases of the default chain for a write.
async fn admit(chain: &Chain, write: ChainWrite<'_>) -> Result<(), Status> {
    let (recorder, user, options) = (Recorder::default(), Arc::new(UserInfo::anonymous()), || Value::Null);
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
        has_generated_name: false,
        is_in_collection: false,
        deadline: None,
        recorder: &recorder,
        environment: chain.environment(),
    };
    let mut object = Object::default();
    let has_object = write.operation != Operation::Delete;
    let mutation = chain.mutate(&attributes, has_object.then_some(&mut object));
    assert!(size_of_val(&mutation) <= FUTURE_BYTES, "{} bytes", size_of_val(&mutation));
    mutation.await?;
    let validation = chain.validate(&attributes, has_object.then_some(&object));
    assert!(size_of_val(&validation) <= FUTURE_BYTES, "{} bytes", size_of_val(&validation));
    validation.await
}

#[tokio::test]
async fn namespace_lifecycle_rejects_missing_and_terminating_namespaces() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let environment = environment(preset);
        let registry = Registry::new(&environment.names);
        let find = |kind: &str| {
            let resources = registry.resources();
            resources.iter().find(|r| r.name() == kind).map(|r| &**r).unwrap()
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
    const INTEREST: Interest = Interest::ALL_RESOURCES.on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(object) = object else { return Ok(()) };
        if self.0 == "b" {
            tokio::task::yield_now().await;
        }
        let seen = format!("{}{}", object.str_at(&["seen"]).unwrap_or(""), self.0);
        object.set("seen", seen);
        attributes.recorder.warn(self.0);
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let seen = object.and_then(|o| o.str_at(&["seen"])).unwrap_or("");
        attributes.recorder.annotate(self.0, seen);
        match object.is_some_and(|o| o.name() == self.0) {
            true => Err(attributes.forbidden(self.0)),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn plugins_run_in_order_and_validate_after_all_mutations() {
    let plugins = ["a", "b", "c"].map(|letter| (letter, AnyPlugin::of_test(Letter(letter))));
    let chain = Chain::from_plugins(plugins.into(), environment(Preset::Kubernetes));
    let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
    let (user, options) = (Arc::new(UserInfo::anonymous()), || Value::Null);
    for (operation, name, seen, annotated, refusal) in [
        (Operation::Create, "x", Some("abc"), 3, None),
        (Operation::Create, "b", Some("abc"), 2, Some("configmaps \"b\" is forbidden: b")),
        (Operation::Update, "x", None, 0, None),
    ] {
        let recorder = Recorder::default();
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
            has_generated_name: false,
            is_in_collection: false,
            deadline: None,
            recorder: &recorder,
            environment: chain.environment(),
        };
        let mut object = Object::default();
        object.set_meta("name", name);
        chain.mutate(&attributes, Some(&mut object)).await.unwrap();
        let answer = chain.validate(&attributes, Some(&object)).await;
        assert_eq!(answer.err().map(|status| status.message).as_deref(), refusal);
        assert_eq!(object.str_at(&["seen"]), seen);
        let annotations = recorder.take_annotations();
        assert_eq!(annotations.len(), annotated);
        assert!(annotations.iter().all(|(_, value)| value == "abc"));
        assert_eq!(recorder.take_warnings().concat(), seen.unwrap_or(""));
    }
}
