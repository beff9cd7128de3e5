//! Parts of apid and authd in this process: codecs, rules, admission, the watch cache and the store.
//!
//! ```text
//! parts NAME [FLAGS]
//! ```
//!
//! One program has all of these benchmarks, because linking takes longer than most of them run. `parts --help`
//! lists them.

#![allow(clippy::disallowed_methods, reason = "a bench measures the machine's time")]
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a benchmark with constant input"
)]

mod admission_chain;
mod admission_policies;
mod all_kinds;
mod apply;
mod body_cost;
mod churn;
mod codec;
mod conform;
mod custom_objects;
mod entry;
mod expressions;
mod fanout;
mod fixed_objects;
mod pod;
mod pod_cost;
mod pod_security;
mod recorded_rules;
mod reopen;

use bench::client::Error;
use bench::figure::Limits;
use clap::Parser;

/// The allocator of apid and authd.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Parser)]
enum Part {
    /// The admission chain on a write without a concerned plugin (limit: 5 µs)
    AdmissionChain,
    /// Admission policies: without a match beside 500 policies, and of three expressions (limits: 1 µs and 8 µs)
    AdmissionPolicies,
    /// Start of all kinds: registry, caches, discovery, OpenAPI (limits: 5 ms and 10 MB without OpenAPI)
    AllKinds,
    /// Apply without a change (limit: 120 µs), and the cost of managedFields in other writes
    Apply,
    /// CPU time and memory of the largest request bodies within the decode limits
    BodyCost(body_cost::Settings),
    /// Load on a store: commits, latencies, memory and disk
    Churn(churn::Settings),
    /// JSON and YAML of a pod, and label selectors
    Codec,
    /// A pod of 4 kB: parse, conform (limit: 20 µs), JSON and Protobuf (limit: twice JSON)
    Conform,
    /// Custom objects: validation (limit: 60 µs), memory of an idle kind (limit: 40 kB)
    CustomObjects,
    /// A cached object of 1 kB: decode and write
    Entry,
    /// CEL expressions, each with its limit
    Expressions {
        /// Run only the measurements whose name contains this
        #[arg(default_value = "")]
        only: String,
    },
    /// The watch cache: updates, snapshots, fan-out, idle watchers
    Fanout(fanout::Settings),
    /// The rules of a pod of 4 kB beyond its parse: conform, default, validate (limit of their sum: 12 µs)
    PodCost(Limits),
    /// PodSecurity for a write of a pod, by the level of its namespace
    PodSecurity,
    /// The 1,000 longest recorded rules of custom kinds: compilation and evaluation
    RecordedRules {
        /// Folder of the recorded rules
        #[arg(default_value = "../shared/cel")]
        folder: std::path::PathBuf,
    },
    /// Opening of a store with 1 GB of data (limit: 3 s)
    Reopen(reopen::Settings),
}

fn main() -> Result<(), Error> {
    match Part::parse() {
        Part::AdmissionChain => admission_chain::run(),
        Part::AdmissionPolicies => admission_policies::run(),
        Part::AllKinds => all_kinds::run(),
        Part::Apply => apply::run(),
        Part::BodyCost(settings) => body_cost::run(settings),
        Part::Churn(settings) => churn::run(settings)?,
        Part::Codec => codec::run(),
        Part::Conform => conform::run(),
        Part::CustomObjects => custom_objects::run(),
        Part::Entry => entry::run(),
        Part::Expressions { only } => expressions::run(&only),
        Part::Fanout(settings) => fanout::run(settings)?,
        Part::PodCost(limits) => {
            pod_cost::run();
            limits.finish()?;
        }
        Part::PodSecurity => pod_security::run(),
        Part::RecordedRules { folder } => recorded_rules::run(&folder),
        Part::Reopen(settings) => reopen::run(settings)?,
    }
    Ok(())
}
