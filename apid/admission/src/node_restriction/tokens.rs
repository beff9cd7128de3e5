//! Token requests of a kubelet: bound to a pod on its node, for an audience that a volume of the pod needs.
//!
//! # Reference
//!
//! A volume needs the audiences of its projected tokens or of its CSI driver. A kubelet with permission for
//! `request-serviceaccounts-token-audience` may also request another audience. In the check of
//! this permission the audience is the resource, and the service account is the resource name.

use apimachinery::attributes::Attributes as RequestAttributes;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use super::{CLAIM, KubeletWrite};
use crate::ObjectKind;
use crate::tree::{items, items_at, text};

const VOLUME: ObjectKind = ObjectKind::new("", "PersistentVolume");
const DRIVER: ObjectKind = ObjectKind::new("storage", "CSIDriver");

/// Verb that allows a kubelet to request tokens for an audience.
const VERB: &str = "request-serviceaccounts-token-audience";

impl KubeletWrite<'_> {
    pub(super) async fn check_token_request(&self) -> Result<(), Status> {
        let Some(request) = self.object else { return self.unexpected_operation() };
        let reference = |field: &str| request.str_at(&["spec", "boundObjectRef", field]).unwrap_or_default();
        let (name, uid) = (reference("name"), reference("uid"));
        if (reference("apiVersion"), reference("kind")) != ("v1", "Pod") || name.is_empty() {
            return self.reject("node requested token not bound to a pod");
        }
        if uid.is_empty() {
            return self.reject("node requested token with a pod binding without a uid");
        }
        let pod = self.pod(name).await?;
        if uid != pod.uid() {
            return self.reject(&format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. \
                 The object might have been deleted and then recreated"
            ));
        }
        if pod.str_at(&["spec", "nodeName"]) != Some(self.node) {
            return self.reject("node requested token bound to a pod scheduled on a different node");
        }
        let audience = match items_at(request, &["spec", "audiences"]) {
            [] => "",
            [audience] => audience.as_str().unwrap_or_default(),
            _ => return self.reject("node may only request 0 or 1 audiences"),
        };
        if self.pod_needs_audience(&pod, audience).await? || self.is_authorized_for(audience).await? {
            return Ok(());
        }
        self.reject(&format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            self.attributes.user.name
        ))
    }

    async fn is_authorized_for(&self, audience: &str) -> Result<bool, Status> {
        let question = RequestAttributes {
            verb: VERB.to_owned(),
            resource_request: true,
            version: "v1".to_owned(),
            resource: audience.to_owned(),
            namespace: self.attributes.namespace.to_owned(),
            name: self.attributes.name.to_owned(),
            ..RequestAttributes::default()
        };
        Ok(self.attributes.environment.authorizer.decide(self.attributes.user, question).await?.allowed())
    }

    /// Whether a volume of the pod receives tokens for the audience.
    async fn pod_needs_audience(&self, pod: &Object, audience: &str) -> Result<bool, Status> {
        for volume in items_at(pod, &["spec", "volumes"]) {
            let field = |source: &str, field: &str| volume.get(source)?.get(field)?.as_str();
            let sources = volume.get("projected").map_or(&[][..], |projected| items(projected, "sources"));
            let tokens = sources.iter().filter_map(|source| source.get("serviceAccountToken"));
            if tokens.filter(|token| !token.is_null()).any(|token| text(token, "audience") == audience) {
                return Ok(true);
            }
            let has_template = volume.get("ephemeral").and_then(|e| e.get("volumeClaimTemplate")).is_some();
            let found = if let Some(driver) = field("csi", "driver") {
                self.driver_needs_audience(driver, audience).await?
            } else if let Some(claim) = field("persistentVolumeClaim", "claimName") {
                self.claim_needs_audience(claim, audience).await?
            } else if has_template {
                let claim = format!("{}-{}", pod.name(), text(volume, "name"));
                self.claim_needs_audience(&claim, audience).await?
            } else {
                false
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn claim_needs_audience(&self, claim: &str, audience: &str) -> Result<bool, Status> {
        let reader = &self.attributes.environment.reader;
        let Some(claim) = reader.get(CLAIM, self.attributes.namespace, claim).await? else {
            return Ok(false);
        };
        let volume_name = claim.str_at(&["spec", "volumeName"]).unwrap_or_default();
        if volume_name.is_empty() {
            return Ok(false);
        }
        let Some(volume) = reader.get(VOLUME, "", volume_name).await? else { return Ok(false) };
        match volume.str_at(&["spec", "csi", "driver"]) {
            Some(driver) => self.driver_needs_audience(driver, audience).await,
            None => Ok(false),
        }
    }

    async fn driver_needs_audience(&self, driver: &str, audience: &str) -> Result<bool, Status> {
        let driver = self.attributes.environment.reader.get(DRIVER, "", driver).await?;
        let has_audience =
            |request: &Value| request.get("audience").and_then(Value::as_str) == Some(audience);
        Ok(driver
            .is_some_and(|driver| items_at(&driver, &["spec", "tokenRequests"]).iter().any(has_audience)))
    }
}
