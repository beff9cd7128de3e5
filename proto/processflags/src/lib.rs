//! The flags of authd and the flags that both processes read, declared once for both command lines.
//!
//! # Contract
//!
//! [`AuthdFlags`] are the flags that only authd reads. apid declares them too: with `--spawn-authd`,
//! [`given_arguments`] returns them as arguments for authd. [`SharedFlags`] are the flags that both processes
//! read. A declaration checks the type of a value; authd checks everything else.
//!
//! # Invariants
//!
//! INVARIANT (passed on): authd declares each flag of [`AuthdFlags`] and [`SharedFlags`] from the same struct, so
//! it accepts each argument that apid passes on.

mod authd;
mod both_processes;
pub mod command_line;
pub mod documentation;
mod passed_on;

pub use authd::{
    AuthdFlags, AuthenticationFlags, AuthorizationFlags, AuthorizationWebhookFlags, ControllerFlags,
    OidcFlags, ServiceAccountFlags, TokenWebhookFlags,
};
pub use both_processes::{CertificateFlags, LogFlags, NamesFlags, ProxyFlags, SharedFlags};
pub use passed_on::{
    SEPARATE_AUTHD_FLAGS, given_arguments, given_names, is_flag_of_authd, is_flag_of_authd_alone,
};
