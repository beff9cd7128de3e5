//! End-to-end tests of OpenID Connect and JWT authenticators (requirements A-OIDC, A-JWT).

mod configuration_file;
mod flags;
mod forged_tokens;
mod hot_reload;
mod issuer;
mod key_rotation;
mod node_provider;

use serde_json::{Value, json};

use issuer::Issuer;
use tests::harness::{ControlPlane, eventually};

/// The user of a token from a SelfSubjectReview; `None` if the response is 401.
async fn token_user(plane: &ControlPlane, token: &str) -> Option<Value> {
    let group = plane.names().group("authentication");
    let review = json!({"apiVersion": format!("{group}/v1"), "kind": "SelfSubjectReview"});
    let answer = plane.token(token).post(&format!("/apis/{group}/v1/selfsubjectreviews"), &review).await;
    (answer.status != 401).then(|| answer.expect(201)["status"]["userInfo"].clone())
}

/// The username of a token; `""` if the token is rejected.
async fn token_username(plane: &ControlPlane, token: &str) -> String {
    let user = token_user(plane, token).await.unwrap_or_default();
    user["username"].as_str().unwrap_or_default().to_owned()
}

/// Waits until the log of the processes contains a text.
async fn wait_for_log(plane: &ControlPlane, text: &str) {
    let without_escapes = |log: String| log.replace("\\\"", "\"");
    eventually(&format!("the log contains: {text}"), || async {
        without_escapes(plane.log()).contains(text).then_some(())
    })
    .await;
}

/// An authentication configuration with JWT authenticators.
///
/// Each entry is an issuer name and the YAML after `issuer`, indented by two spaces. `""` maps the username
/// from `sub`.
fn authentication_config(issuer: &Issuer, entries: &[(&str, &str)]) -> String {
    let mut text =
        "apiVersion: apiserver.config.svc.internal/v1beta1\nkind: AuthenticationConfiguration\njwt:\n"
            .to_owned();
    for (name, rest) in entries {
        let rest =
            if rest.is_empty() { "  claimMappings: {username: {claim: sub, prefix: ''}}\n" } else { rest };
        text += &format!(
            "- issuer:\n    url: {}\n    audiences: [x]\n    certificateAuthority: {}\n{rest}",
            issuer.url(name),
            issuer.ca(),
        );
    }
    text
}
