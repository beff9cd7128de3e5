//! A controller of a derived custom kind: definition, reconciliation, finalizer and status.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::watcher;
use kube::{Client, CustomResource, CustomResourceExt, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::DEADLINE;

/// The size of a shop.
#[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(group = "shop.example.com", version = "v1", kind = "Shop", namespaced, status = "ShopStatus")]
#[kube(printcolumn(name = "Size", type_ = "integer", json_path = ".spec.size"))]
struct ShopSpec {
    /// Number of shelves.
    size: i32,
    /// Articles on sale.
    #[serde(default)]
    articles: Vec<String>,
}

/// The observed size of a shop.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
struct ShopStatus {
    observed_size: i32,
}

const MANAGER: &str = "shop-controller";
const FINALIZER: &str = "shop.example.com/stock";

/// Applies the definition, runs the controller, and observes creation, update and deletion of a shop.
pub(crate) async fn run(client: Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    let name = Shop::crd_name();
    definitions.patch(name, &params, &Patch::Apply(Shop::crd())).await.expect("the definition is applied");
    let established = await_condition(definitions.clone(), name, conditions::is_crd_established());
    tokio::time::timeout(DEADLINE, established)
        .await
        .expect("in time")
        .expect("the definition is established");

    let shops: Api<Shop> = Api::default_namespaced(client.clone());
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let controller = Controller::new(shops.clone(), watcher::Config::default())
        .owns(maps.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(100)), Arc::new(client))
        .for_each(|_| std::future::ready(()));
    tokio::select! {
        () = controller => panic!("a controller never ends"),
        () = observe(&shops, &maps) => {}
    }
    definitions.delete(name, &DeleteParams::default()).await.expect("the definition is deleted");
    let gone =
        await_condition(definitions, name, |object: Option<&CustomResourceDefinition>| object.is_none());
    tokio::time::timeout(DEADLINE, gone).await.expect("in time").expect("the definition is gone");
    eventually("the end of the kind", async || {
        let listed = shops.list(&ListParams::default()).await;
        matches!(listed, Err(kube::Error::Api(status)) if status.code == 404)
    })
    .await;
}

/// Creates, changes and deletes a shop, and waits for the effects of the controller.
async fn observe(shops: &Api<Shop>, maps: &Api<ConfigMap>) {
    let shop = Shop::new("corner", ShopSpec { size: 3, articles: vec!["tea".to_owned()] });
    shops.create(&PostParams::default(), &shop).await.expect("the shop is created");
    eventually("the stock of the new shop", async || {
        stock(maps).await.as_deref() == Some("3")
            && shops
                .get("corner")
                .await
                .is_ok_and(|shop| shop.status == Some(ShopStatus { observed_size: 3 }))
    })
    .await;
    let patch = Patch::Merge(json!({"spec": {"size": "big"}}));
    let rejected = shops.patch("corner", &PatchParams::default(), &patch).await;
    let kube::Error::Api(status) = rejected.expect_err("the schema rejects a text") else {
        panic!("no Status");
    };
    assert_eq!(status.code, 422);
    shops
        .patch("corner", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 7}})))
        .await
        .expect("the shop is changed");
    eventually("the stock of the changed shop", async || stock(maps).await.as_deref() == Some("7")).await;
    // The controller restores an object that it owns.
    maps.delete("corner", &DeleteParams::default()).await.expect("the stock is deleted");
    eventually("the restored stock", async || stock(maps).await.as_deref() == Some("7")).await;
    let shop = shops.get("corner").await.expect("the shop");
    assert_eq!(shop.finalizers(), [FINALIZER]);
    assert_eq!(shop.metadata.generation, Some(2), "status and metadata do not change the generation");
    shops.delete("corner", &DeleteParams::default()).await.expect("the shop is deleted");
    eventually("the end of the shop", async || {
        shops.get_opt("corner").await.expect("an answer").is_none() && stock(maps).await.is_none()
    })
    .await;
}

/// The size in the stock of the shop.
async fn stock(maps: &Api<ConfigMap>) -> Option<String> {
    let map = maps.get_opt("corner").await.expect("an answer")?;
    map.data?.remove("size")
}

async fn eventually(what: &str, mut is_reached: impl AsyncFnMut() -> bool) {
    let reached = async {
        while !is_reached().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, reached).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"));
}

/// Keeps a ConfigMap for each shop and reports its size; deletes the map before the shop ends.
async fn reconcile(
    shop: Arc<Shop>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let namespace = shop.namespace().unwrap_or_default();
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), &namespace);
    let shops: Api<Shop> = Api::namespaced((*client).clone(), &namespace);
    let params = PatchParams::apply(MANAGER).force();
    finalizer(&shops.clone(), FINALIZER, shop, async |event| {
        match event {
            Event::Apply(shop) => {
                let owner = shop.controller_owner_ref(&()).expect("a stored object");
                let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": shop.name_any(), "ownerReferences": [owner]},
                    "data": {"size": shop.spec.size.to_string()}});
                maps.patch(&shop.name_any(), &params, &Patch::Apply(map)).await?;
                let status = json!({"apiVersion": Shop::api_version(&()), "kind": Shop::kind(&()),
                    "status": ShopStatus { observed_size: shop.spec.size }});
                shops.patch_status(&shop.name_any(), &params, &Patch::Apply(status)).await?;
            }
            Event::Cleanup(shop) => match maps.delete(&shop.name_any(), &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => drop(result?),
            },
        }
        Ok(Action::await_change())
    })
    .await
}
