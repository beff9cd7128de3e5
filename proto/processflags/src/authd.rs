//! The flags that only authd reads. Names are those of kube-apiserver where it has the flag.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serving::flags::{boolean, duration};

/// All flags that only authd reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct AuthdFlags {
    /// Authentication.
    #[command(flatten)]
    pub authentication: AuthenticationFlags,
    /// The token webhook.
    #[command(flatten)]
    pub token_webhook: TokenWebhookFlags,
    /// Service-account tokens.
    #[command(flatten)]
    pub service_accounts: ServiceAccountFlags,
    /// OpenID Connect.
    #[command(flatten)]
    pub oidc: OidcFlags,
    /// Authorization.
    #[command(flatten)]
    pub authorization: AuthorizationFlags,
    /// The authorization webhook.
    #[command(flatten)]
    pub authorization_webhook: AuthorizationWebhookFlags,
    /// Controllers and metrics.
    #[command(flatten)]
    pub controllers: ControllerFlags,
}

/// Flags of authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Authentication flags of authd")]
pub struct AuthenticationFlags {
    /// Revocation lists (CRL) of client certificates, PEM or DER; hot reload
    #[arg(long, value_name = "FILE")]
    pub client_crl_file: Option<PathBuf>,
    /// Static tokens: token,user,uid,"group,group" lines; read at start
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Accept requests without credentials as system:anonymous (default: true; false if every request is allowed)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    pub anonymous_auth: Option<bool>,
    /// Accept bootstrap tokens (default: false)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    pub enable_bootstrap_token_auth: Option<bool>,
    /// AuthenticationConfiguration: JWT authenticators and paths of anonymous requests; hot reload
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// Accepted token audiences of this API (default: the issuers)
    #[arg(long, value_name = "AUDIENCE,...", value_delimiter = ',')]
    pub api_audiences: Vec<String>,
}

/// Flags of the token webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Authentication flags of authd")]
pub struct TokenWebhookFlags {
    /// Kubeconfig of the token webhook
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// TTL of accepted tokens in the webhook cache; 0 disables the cache (default: 2m0s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Option<Duration>,
    /// Version of TokenReview for the webhook: v1 or v1beta1 (default: v1beta1)
    #[arg(long, value_name = "VERSION")]
    pub authentication_token_webhook_version: Option<String>,
}

/// Flags of service-account tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Flags of service-account tokens of authd")]
pub struct ServiceAccountFlags {
    /// Issuer of service-account tokens, repeatable; the first one issues new tokens
    #[arg(long, value_name = "ISSUER")]
    pub service_account_issuer: Vec<String>,
    /// Keys that verify service-account tokens, private or public, repeatable (default: the serving key); hot reload
    #[arg(long, value_name = "FILE")]
    pub service_account_key_file: Vec<PathBuf>,
    /// Key that signs service-account tokens (default: the first private verifying key); hot reload
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Reject tokens of deleted service accounts, pods, Secrets and nodes (default: true)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    pub service_account_lookup: Option<bool>,
    /// JWKS URL in the OpenID discovery document (default: the address of apid)
    #[arg(long, value_name = "URL")]
    pub service_account_jwks_uri: Option<String>,
    /// Maximum lifetime of an issued token, from 1h to 2^32 seconds
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub service_account_max_token_expiration: Option<Duration>,
    /// Extend the lifetime of tokens that clients mount (3607 seconds) to a year (default: true)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    pub service_account_extend_token_expiration: Option<bool>,
}

/// Flags of OpenID Connect: one JWT authenticator without a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "OpenID Connect flags of authd")]
pub struct OidcFlags {
    /// https URL of the OpenID Connect issuer
    #[arg(long, value_name = "URL")]
    pub oidc_issuer_url: Option<String>,
    /// Audience of OpenID Connect tokens
    #[arg(long, value_name = "ID")]
    pub oidc_client_id: Option<String>,
    /// Claim with the user name (default: sub)
    #[arg(long, value_name = "CLAIM")]
    pub oidc_username_claim: Option<String>,
    /// Prefix of user names; - for none (default: the issuer URL and #; none for the claim email)
    #[arg(long, value_name = "PREFIX", allow_hyphen_values = true)]
    pub oidc_username_prefix: Option<String>,
    /// Claim with the groups: a list or one string
    #[arg(long, value_name = "CLAIM")]
    pub oidc_groups_claim: Option<String>,
    /// Prefix of groups
    #[arg(long, value_name = "PREFIX")]
    pub oidc_groups_prefix: Option<String>,
    /// Required claims of a token, with their values
    #[arg(long, value_name = "CLAIM=VALUE,...", value_delimiter = ',')]
    pub oidc_required_claim: Vec<String>,
    /// CA bundle for the certificate of the issuer (default: the CA bundle of the system)
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
    /// Accepted signature algorithms (default: RS256)
    #[arg(long, value_name = "ALGORITHM,...", value_delimiter = ',')]
    pub oidc_signing_algs: Vec<String>,
}

impl OidcFlags {
    /// Whether any of these flags is set.
    pub fn is_any_set(&self) -> bool {
        let texts = [
            &self.oidc_issuer_url,
            &self.oidc_client_id,
            &self.oidc_username_claim,
            &self.oidc_username_prefix,
            &self.oidc_groups_claim,
            &self.oidc_groups_prefix,
        ];
        texts.into_iter().any(|text| text.as_ref().is_some_and(|text| !text.is_empty()))
            || !self.oidc_required_claim.is_empty()
            || self.oidc_ca_file.is_some()
            || !self.oidc_signing_algs.is_empty()
    }
}

/// Flags of authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Authorization flags of authd")]
pub struct AuthorizationFlags {
    /// Ordered modes: Node, RBAC, ABAC, Webhook; AlwaysAllow (default) and AlwaysDeny are for testing only
    #[arg(long, value_name = "MODE,...")]
    pub authorization_mode: Vec<String>,
    /// AuthorizationConfiguration instead of --authorization-mode; hot reload
    #[arg(long, value_name = "FILE")]
    pub authorization_config: Option<PathBuf>,
    /// Policies of mode ABAC, one JSON object per line; read at start
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
}

impl AuthorizationFlags {
    /// The modes as one list with commas; None without the flag.
    pub fn modes(&self) -> Option<String> {
        (!self.authorization_mode.is_empty()).then(|| self.authorization_mode.join(","))
    }
}

/// Flags of the authorization webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Authorization flags of authd")]
pub struct AuthorizationWebhookFlags {
    /// Kubeconfig of the authorization webhook
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// TTL of authorized responses in the webhook cache; 0 disables the cache (default: 5m0s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// TTL of unauthorized responses in the webhook cache; 0 disables the cache (default: 30s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// Version of SubjectAccessReview for the webhook: v1 or v1beta1 (default: v1beta1)
    #[arg(long, value_name = "VERSION")]
    pub authorization_webhook_version: Option<String>,
}

impl AuthorizationWebhookFlags {
    /// Whether a flag is set: these flags exclude `--authorization-config`.
    pub fn is_any_set(&self) -> bool {
        *self != AuthorizationWebhookFlags::default()
    }
}

/// Flags of the controllers and of the metrics of authd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Controller and metrics flags of authd")]
pub struct ControllerFlags {
    /// Controllers to run: * for the default ones, NAME for one more, -NAME for one less, nothing for none (default: *)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Loopback address on which authd serves its own metrics and health (default: none)
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_address: Option<String>,
}
