//! Node authorizer decisions for the kubelet of node `n1`, as a table.

use std::sync::Arc;

use super::*;
use crate::mirror::Mirror;
use apimachinery::attributes::Requirement;
use apimachinery::names::Preset;
use authproto::auth::{
    MirrorObject, MirrorPlaced, MirrorPod, MirrorPut, MirrorVolume, Named, mirror_object::Kind,
};

/// A mirror with two nodes.
/// In namespace `a`, pod `mine` on `n1` refers to one object of each kind (`used…`). Pod `theirs` on `n2`
/// refers to `other`. Volume `pv` has the claim `used` and the Secret `b/mount`.
fn mirror() -> (Arc<Mirror>, crate::mirror::Feed) {
    let mirror = Mirror::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()));
    let mut feed = mirror.begin();
    let mut put = |namespace: &str, name: &str, kind: Kind| {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let object = MirrorObject { namespace, name, kind: Some(kind), ..MirrorObject::default() };
        feed.put(MirrorPut { revision: 1, object: Some(object) }).unwrap();
    };
    let pod = |node: &str, reference: &str| {
        let one = || vec![reference.to_owned()];
        Kind::Pod(MirrorPod {
            node_name: node.to_owned(),
            service_account: reference.to_owned(),
            secrets: one(),
            config_maps: one(),
            volume_claims: one(),
            resource_claims: one(),
        })
    };
    let named = |namespace: &str, name: &str| Named { namespace: namespace.into(), name: name.into() };
    put("a", "mine", pod("n1", "used"));
    put("a", "theirs", pod("n2", "other"));
    let volume =
        |claim: &str| MirrorVolume { claim: Some(named("a", claim)), secrets: vec![named("b", "mount")] };
    put("", "pv", Kind::Volume(volume("used")));
    put("", "pv2", Kind::Volume(MirrorVolume { secrets: vec![named("b", "theirs")], ..volume("other") }));
    for (name, node) in [("va", "n1"), ("va2", "n2")] {
        put("", name, Kind::VolumeAttachment(MirrorPlaced { node_name: node.into() }));
    }
    for (name, node) in [("slice", "n1"), ("slice2", "n2")] {
        put("", name, Kind::ResourceSlice(MirrorPlaced { node_name: node.into() }));
    }
    feed.synced(1).unwrap();
    (mirror, feed)
}

/// Parses `verb [group:]resource[/subresource] [namespace/]name [field=value|value]`; the name `-` means
/// none.
fn request(text: &str) -> Attributes {
    let words: Vec<&str> = text.split(' ').collect();
    let (group, resource) = words[1].split_once(':').unwrap_or(("", words[1]));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let (namespace, name) = words[2].split_once('/').unwrap_or(("", words[2]));
    let selector = words.get(3).and_then(|selector| selector.split_once('='));
    let requirement = |(key, value): (&str, &str)| Requirement {
        key: key.to_owned(),
        operator: Operator::In,
        values: value.split('|').map(str::to_owned).collect(),
    };
    Attributes {
        verb: words[0].to_owned(),
        resource_request: true,
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.trim_start_matches('-').to_owned(),
        field_selector: ParsedSelector::Requirements(selector.map(requirement).into_iter().collect()),
        ..Attributes::default()
    }
}

fn agent(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
}

async fn answer(
    mode: &NodeAuthorizer,
    mirror: &Mirror,
    user: &UserInfo,
    request: &Attributes,
) -> AuthzOutcome {
    mode.authorize(AuthzRequest { user, attributes: request, at_least: mirror.at_least(1) }).await.unwrap()
}

fn node_authorizer(by_selectors: bool) -> NodeAuthorizer {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    NodeAuthorizer { policy: NodePolicy::new(&names, by_selectors) }
}

const UNRELATED: &str = "no relationship found between node 'n1' and this object";
const LEASES: &str = "coordination.k8s.io:leases";
const SLICES: &str = "resource.k8s.io:resourceslices";

/// A row is a request, and `yes` or the reason why it is not allowed.
#[tokio::test]
async fn node_authorizer_decides_by_table() {
    let (mirror, _feed) = mirror();
    let mode = node_authorizer(true);
    let user = agent("system:node:n1", &["system:nodes"]);
    let other_lease = "can only access node lease with the same name as the requesting node";
    let other_csi = "can only access CSINode with the same name as the requesting node";
    let get_only = "can only get individual resources of this type";
    let no_slices = "can only list/watch/deletecollection resourceslices with nodeName field selector";
    let rows: &[(&str, &str)] = &[
        ("get secrets a/used", "yes"),
        ("list secrets a/used", "yes"),
        ("watch secrets a/used", "yes"),
        ("get secrets a/other", UNRELATED),
        ("get secrets b/used", UNRELATED),
        ("get secrets b/mount", "yes"),
        ("get secrets b/theirs", UNRELATED),
        ("list secrets a/-", "No Object name found"),
        ("list secrets -", "can only read namespaced object of this type"),
        ("update secrets a/used", "can only read resources of this type"),
        ("create secrets a/-", "can only read resources of this type"),
        ("get secrets/status a/used", "cannot read subresource"),
        ("get configmaps a/used", "yes"),
        ("get configmaps a/other", UNRELATED),
        ("delete configmaps a/used", "can only read resources of this type"),
        ("get persistentvolumeclaims a/used", "yes"),
        ("get persistentvolumeclaims a/other", UNRELATED),
        ("list persistentvolumeclaims a/used", get_only),
        ("patch persistentvolumeclaims/status a/used", "yes"),
        ("get persistentvolumeclaims/status a/used", "yes"),
        ("update persistentvolumeclaims/status a/other", UNRELATED),
        ("delete persistentvolumeclaims/status a/used", "can only get/update/patch this type"),
        ("get persistentvolumes pv", "yes"),
        ("get persistentvolumes pv2", UNRELATED),
        ("get persistentvolumes gone", UNRELATED),
        ("get persistentvolumes/status pv", "cannot get subresource"),
        ("list persistentvolumes -", get_only),
        ("get resource.k8s.io:resourceclaims a/used", "yes"),
        ("get resource.k8s.io:resourceclaims a/other", UNRELATED),
        ("get storage.k8s.io:volumeattachments va", "yes"),
        ("get storage.k8s.io:volumeattachments va2", UNRELATED),
        ("create serviceaccounts/token a/used", "yes"),
        ("create serviceaccounts/token a/other", UNRELATED),
        ("create serviceaccounts/token a/-", "can only create tokens for individual service accounts"),
        ("create serviceaccounts a/x", "can only create token subresource of service account"),
        ("list serviceaccounts a/-", "can only create tokens for individual service accounts"),
        ("get serviceaccounts a/used", "not allowed to get service accounts"),
        (&format!("get {LEASES} kube-node-lease/n1"), "yes"),
        (&format!("create {LEASES} kube-node-lease/-"), "yes"),
        (&format!("delete {LEASES} kube-node-lease/n1"), "yes"),
        (&format!("patch {LEASES} kube-node-lease/n2"), other_lease),
        (
            &format!("list {LEASES} kube-node-lease/-"),
            "can only get, create, update, patch, or delete a node lease",
        ),
        (&format!("get {LEASES} a/n1"), "can only access leases in the \"kube-node-lease\" system namespace"),
        ("get storage.k8s.io:csinodes n1", "yes"),
        ("create storage.k8s.io:csinodes -", "yes"),
        ("update storage.k8s.io:csinodes n2", other_csi),
        ("watch storage.k8s.io:csinodes -", "can only get, create, update, patch, or delete a CSINode"),
        ("get storage.k8s.io:csinodes/status n1", "cannot authorize CSINode subresources"),
        (&format!("create {SLICES} -"), "yes"),
        (&format!("get {SLICES} slice"), "yes"),
        (&format!("delete {SLICES} slice2"), UNRELATED),
        (&format!("list {SLICES} - spec.nodeName=n1"), "yes"),
        (&format!("list {SLICES} - spec.nodeName=n2"), no_slices),
        (&format!("deletecollection {SLICES} -"), no_slices),
        (&format!("get {SLICES}/status slice"), "cannot authorize ResourceSlice subresources"),
        ("get nodes n1", "yes"),
        ("list nodes n1", "yes"),
        ("get nodes n2", "node 'n1' cannot read 'n2', only its own Node object"),
        ("list nodes -", "node 'n1' cannot read all nodes, only its own Node object"),
        ("create nodes -", "yes"),
        ("update nodes n2", "yes"),
        ("patch nodes/status n1", "yes"),
        ("delete nodes n1", ""),
        ("get nodes/proxy n1", ""),
        ("get pods a/mine", "yes"),
        ("get pods a/theirs", UNRELATED),
        ("list pods - spec.nodeName=n1", "yes"),
        ("watch pods a/- spec.nodeName=n1", "yes"),
        ("list pods - spec.nodeName=n2", "can only list/watch pods with spec.nodeName field selector"),
        ("list pods - spec.nodeName=n1|n2", "can only list/watch pods with spec.nodeName field selector"),
        ("list pods -", "can only list/watch pods with spec.nodeName field selector"),
        ("list pods a/mine", "yes"),
        ("watch pods a/theirs", UNRELATED),
        ("create pods a/-", "yes"),
        ("delete pods a/theirs", "yes"),
        ("patch pods a/mine", ""),
        ("deletecollection pods a/-", ""),
        ("update pods/status a/mine", "yes"),
        ("create pods/eviction a/mine", "yes"),
        ("get pods/log a/mine", ""),
        ("list services -", "yes"),
        ("list endpoints -", "yes"),
        ("get endpoints a/x", "yes"),
        ("update endpoints a/x", ""),
        ("create events a/-", "yes"),
        ("list node.k8s.io:runtimeclasses -", "yes"),
        ("list storage.k8s.io:csidrivers -", "yes"),
        ("create certificates.k8s.io:certificatesigningrequests -", "yes"),
        ("get certificates.k8s.io:certificatesigningrequests x", "yes"),
        ("update certificates.k8s.io:certificatesigningrequests/approval x", ""),
        ("create authentication.k8s.io:tokenreviews -", "yes"),
        ("create authorization.k8s.io:subjectaccessreviews -", "yes"),
        ("list namespaces -", ""),
        ("get apps:secrets a/used", ""),
        ("list apps:deployments a/-", ""),
    ];
    for (text, expected) in rows {
        let answer = answer(&mode, &mirror, &user, &request(text)).await;
        let got = if answer.decision.allowed() { "yes" } else { answer.decision.reason.as_str() };
        assert_eq!(got, *expected, "{text}");
        assert_ne!(answer.decision.verdict, Verdict::Deny, "{text}");
    }
}

#[tokio::test]
async fn node_reads_all_nodes_and_pods_without_selector_gate() {
    let (mirror, _feed) = mirror();
    let mode = node_authorizer(false);
    let user = agent("system:node:n1", &["system:nodes"]);
    for text in
        ["get nodes n2", "list nodes -", "get pods a/theirs", "list pods -", &format!("list {SLICES} -")]
    {
        assert!(answer(&mode, &mirror, &user, &request(text)).await.decision.allowed(), "{text}");
    }
    for text in ["get secrets a/other", "delete nodes n1"] {
        assert!(!answer(&mode, &mirror, &user, &request(text)).await.decision.allowed(), "{text}");
    }
}

#[tokio::test]
async fn node_requires_username_prefix_and_group() {
    let (mirror, _feed) = mirror();
    let mode = node_authorizer(true);
    let services = request("list services -");
    let secret = request("get secrets a/used");
    for (name, groups, services_allowed, secret_allowed, reason) in [
        ("system:node:n1", &["system:nodes"][..], true, true, ""),
        ("system:node:n1", &["a", "system:nodes"], true, true, ""),
        (
            "system:node:n3",
            &["system:nodes"],
            true,
            false,
            "no relationship found between node 'n3' and this object",
        ),
        (
            "system:node:N1",
            &["system:nodes"],
            true,
            false,
            "no relationship found between node 'N1' and this object",
        ),
        (
            "system:node:n1.example.com",
            &["system:nodes"],
            true,
            false,
            "no relationship found between node 'n1.example.com' and this object",
        ),
        ("system:node:n1", &[], false, false, ""),
        ("system:node:n1", &["system:node"], false, false, ""),
        ("n1", &["system:nodes"], false, false, ""),
        ("system:node", &["system:nodes"], false, false, ""),
        ("system:node:", &["system:nodes"], false, false, "unknown node for user \"system:node:\""),
    ] {
        let user = agent(name, groups);
        let (services_outcome, secret_outcome) =
            (answer(&mode, &mirror, &user, &services).await, answer(&mode, &mirror, &user, &secret).await);
        let allowed = (services_outcome.decision.allowed(), secret_outcome.decision.allowed());
        assert_eq!(allowed, (services_allowed, secret_allowed), "{name} {groups:?}");
        assert_eq!(secret_outcome.decision.reason, reason, "{name} {groups:?}");
    }
}

#[tokio::test]
async fn node_decision_lists_its_dependencies() {
    let (mirror, _feed) = mirror();
    let mode = node_authorizer(true);
    let user = agent("system:node:n1", &["system:nodes"]);
    for (text, graph, any_name) in [
        ("get secrets a/used", &["n1"][..], false),
        ("get secrets a/other", &["n1", "*"], false),
        ("get secrets b/mount", &["n1", "*"], false),
        ("get configmaps a/other", &["n1"], false),
        ("get persistentvolumes pv", &["n1", "*"], false),
        ("get pods a/mine", &["n1"], false),
        ("get nodes n1", &[], false),
        ("get nodes n2", &[], false),
        ("list services -", &[], true),
        ("update secrets a/used", &[], true),
        ("patch nodes/status n2", &[], true),
        ("list pods - spec.nodeName=n1", &[], true),
    ] {
        let answer = answer(&mode, &mirror, &user, &request(text)).await;
        assert_eq!(
            (&answer.depends_on.graph_node[..], answer.any_name),
            (&graph.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()[..], any_name),
            "{text}"
        );
        let others = Dependencies { graph_node: Vec::new(), ..answer.depends_on };
        assert_eq!(others, Dependencies::default(), "{text}");
    }
    let stranger = answer(&mode, &mirror, &agent("alice", &[]), &request("get secrets a/used")).await;
    assert_eq!((stranger.depends_on, stranger.any_name), (Dependencies::default(), true));
}

#[tokio::test]
async fn node_decision_on_stale_graph_returns_mirror_not_ready() {
    let (mirror, feed) = mirror();
    let mode = node_authorizer(true);
    let user = agent("system:node:n1", &["system:nodes"]);
    let secret = request("get secrets a/used");
    let ask = |revision| {
        mode.authorize(AuthzRequest { user: &user, attributes: &secret, at_least: mirror.at_least(revision) })
    };
    assert!(ask(2).await.is_err(), "the mirror is at revision 1");
    drop(feed);
    assert!(ask(1).await.is_err(), "the feed has ended");
}
