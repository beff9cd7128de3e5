//! Three apids on an etcd cluster of three members: shared users and keys, and the death of each party.

use serde_json::{Value, json};
use tests::harness::{Cluster, eventually};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[tokio::test(flavor = "multi_thread")]
async fn apids_share_users_and_keys_and_survive_the_death_of_a_member_and_of_an_apid() {
    let Some(mut cluster) = Cluster::start(3, 3).await else { return };
    let request = json!({"spec": {"audiences": []}});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = eventually("a token of the first apid", || async {
        let response = cluster.server(0).admin().post(path, &request).await;
        (response.status == 201).then(|| response.json())
    })
    .await;
    let token = issued["status"]["token"].as_str().expect("a token").to_owned();
    for number in 0..cluster.size() {
        let review = json!({});
        let whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = cluster.server(number).token(&token).post(whoami, &review).await.expect(201);
        let user = "system:serviceaccount:default:default";
        assert_eq!(answer["status"]["userInfo"]["username"], user, "apid {number}");
        let eve = cluster.server(number).verifying("eve", &["system:masters"], &cluster.ca_file());
        eve.get(MAPS).await.expect(200);
    }

    for member in 0..3 {
        cluster.etcd().member(member).kill();
        let name = format!("without-member-{member}");
        for number in 0..cluster.size() {
            let admin = cluster.server(number).admin();
            let write = async || admin.post(MAPS, &map(&format!("{name}-{number}"))).await.status;
            eventually("a write without a member", || async {
                [201, 409].contains(&write().await).then_some(())
            })
            .await;
        }
        cluster.etcd().member(member).restart();
    }
    cluster.etcd().member(0).pause();
    eventually("a write with a paused member", || async {
        let status = cluster.server(1).admin().post(MAPS, &map("paused")).await.status;
        [201, 409].contains(&status).then_some(())
    })
    .await;
    cluster.etcd().member(0).resume();

    cluster.server_mut(0).kill();
    cluster.server(1).admin().post(MAPS, &map("without-apid")).await.expect(201);
    cluster.launch(0).await;
    cluster.server(0).admin().get(&format!("{MAPS}/without-apid")).await.expect(200);
}
