//! Duration of an RBAC decision and memory per binding: `cargo bench -p authd`.
//! Without `--bench`, as in `cargo test`, it runs each measured function once.
//!
//! The policy: 100,000 bindings of other users in 1,000 namespaces, and 100 cluster-wide bindings of the
//! tested user, each to its own role.

use std::hint::black_box;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::names::{Names, Preset};
use apimachinery::user::UserInfo;
use authd::rules::rule::string_list;
use authd::rules::{BindingSpec, Meta, Policy, PolicyRule, RoleKind, RoleSpec, Subject, SubjectKind};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn is_bench() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

fn role(resource: &str) -> RoleSpec {
    let rule = PolicyRule {
        verbs: string_list(&["get", "list", "watch"]),
        api_groups: string_list(&["apps"]),
        resources: string_list(&[resource]),
        ..PolicyRule::default()
    };
    RoleSpec { rules: vec![rule], ..RoleSpec::default() }
}

fn binding(role_name: &str, user: &str) -> BindingSpec {
    BindingSpec {
        meta: Meta::default(),
        role_kind: RoleKind::ClusterRole,
        role_name: role_name.to_owned(),
        subjects: vec![Subject { kind: SubjectKind::User, name: user.into(), namespace: "".into() }],
    }
}

fn attributes(resource: &str) -> Attributes {
    Attributes {
        verb: "get".to_owned(),
        resource_request: true,
        group: "apps".to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: "namespace-7".to_owned(),
        name: "web".to_owned(),
        ..Attributes::default()
    }
}

/// CPU time of this process, which is independent of other load.
///
/// It is the sum of `utime` and `stime` of `/proc/self/stat` (fields 14 and 15), in hundredths of a second.
/// Parsing starts after the command, which is field 2 and may contain spaces.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    Duration::from_millis(10 * fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
}

fn measure(name: &str, mut run: impl FnMut()) {
    let started = cpu_time();
    let (mut rounds, mut elapsed) = (0_u32, Duration::ZERO);
    while rounds == 0 || is_bench() && elapsed < Duration::from_secs(1) {
        for _ in 0..10_000 {
            run();
        }
        rounds += 10_000;
        elapsed = cpu_time() - started;
    }
    println!("{name}: {:.0} ns", elapsed.as_secs_f64() * 1e9 / f64::from(rounds));
}

fn main() {
    let others = if is_bench() { 100_000 } else { 1_000 };
    let Ok(names) = Names::new(Preset::Kubernetes, "") else { return };
    let mut policy = Policy::new(&names);
    for n in 0..100 {
        policy.put_role(RoleKind::ClusterRole, "", &format!("role-{n}"), role(&format!("resource-{n}")));
        policy.put_binding("", &format!("caller-{n}"), binding(&format!("role-{n}"), "caller"));
    }
    let before = serving::metrics::resident_bytes().unwrap_or(0);
    for n in 0..others {
        let namespace = format!("namespace-{}", n % 1000);
        policy.put_binding(
            &namespace,
            &format!("binding-{n}"),
            binding(&format!("role-{}", n % 100), &format!("user-{n}")),
        );
    }
    let after = serving::metrics::resident_bytes().unwrap_or(0);
    println!("bytes a binding: {}", after.saturating_sub(before) / others);

    let caller = UserInfo {
        name: "caller".to_owned(),
        groups: ["team-a", "team-b", "team-c", "system:authenticated"].map(str::to_owned).to_vec(),
        ..UserInfo::default()
    };
    let stranger = UserInfo { name: "stranger".to_owned(), ..caller.clone() };
    let (first, last, none) = (attributes("resource-0"), attributes("resource-99"), attributes("nothing"));
    measure("allowed by the first of 100 bindings", || drop(black_box(policy.decide(&caller, &first))));
    measure("allowed by the last of 100 bindings", || drop(black_box(policy.decide(&caller, &last))));
    measure("refused after 100 bindings", || drop(black_box(policy.decide(&caller, &none))));
    measure("refused without a binding", || drop(black_box(policy.decide(&stranger, &none))));
    measure("binding replaced", || {
        policy.put_binding("namespace-7", "binding-7", binding("role-7", "user-7"))
    });
}
