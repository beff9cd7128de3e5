//! Plan of a run from the environment: attacks, durations and programs under test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attack::AttackUser;
use crate::limits::Limits;

/// Number of objects in the large collection in a short run.
const SHORT_OBJECTS: usize = 3_000;
/// Number of objects in the large collection in a long run.
const LONG_OBJECTS: usize = 50_000;
/// Duration of one attack in a short run.
const SHORT_ATTACK: Duration = Duration::from_millis(1_000);
/// Duration of one attack in a long run.
const LONG_ATTACK: Duration = Duration::from_secs(10);
/// Time after which a short run starts no further attack.
const SHORT_BUDGET: Duration = Duration::from_secs(55);
/// Number of generated bodies in a short run.
const SHORT_SAMPLE: usize = 24;

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whether every attack runs as every caller (`ATTACKS=all`).
    pub is_long: bool,
    /// Text in the names of the attacks to run (`ATTACKS_ONLY`); empty: all attacks.
    pub only: String,
    /// Callers of a long run; all, unless `ATTACKS_CALLER` names one.
    pub callers: Vec<AttackUser>,
    /// Duration of one attack (`ATTACKS_SECONDS`).
    pub duration: Duration,
    /// Number of objects in the large collection (`ATTACKS_OBJECTS`).
    pub objects: usize,
    /// Number of generated bodies (`ATTACKS_SAMPLE`); None means all.
    pub sample: Option<usize>,
    /// Seed of the sample and of the order of a short run (`ATTACKS_SEED`).
    pub seed: u64,
    /// Time after which no further attack starts.
    pub budget: Option<Duration>,
    /// Directory of apid and authd (`PROFILE_DIR`).
    pub programs: PathBuf,
    /// File to which the rows are appended (`ATTACKS_TABLE`).
    pub table: Option<PathBuf>,
    /// Limits during each attack.
    pub limits: Limits,
}

impl Plan {
    /// Reads the environment.
    pub fn from_environment() -> Plan {
        let is_long = text("ATTACKS").is_some_and(|value| value == "all");
        let sample = match number("ATTACKS_SAMPLE") {
            Some(count) => Some(count as usize),
            None => (!is_long).then_some(SHORT_SAMPLE),
        };
        let limits = if text("PROFILE_DIR").is_none() && cfg!(debug_assertions) {
            Limits::DEV
        } else {
            Limits::RELEASE
        };
        let duration = if is_long { LONG_ATTACK } else { SHORT_ATTACK };
        let objects = if is_long { LONG_OBJECTS } else { SHORT_OBJECTS };
        let only = text("ATTACKS_ONLY").unwrap_or_default();
        let caller = text("ATTACKS_CALLER").unwrap_or_default();
        let callers = AttackUser::ALL.into_iter().filter(|known| known.name().starts_with(&caller)).collect();
        Plan {
            is_long,
            callers,
            duration: number("ATTACKS_SECONDS").map_or(duration, Duration::from_secs),
            objects: number("ATTACKS_OBJECTS").map_or(objects, |count| count as usize),
            sample,
            seed: number("ATTACKS_SEED").unwrap_or_else(|| rand::random::<u32>().into()),
            budget: (!is_long && only.is_empty()).then_some(SHORT_BUDGET),
            only,
            programs: tests::harness::program_folder(),
            table: text("ATTACKS_TABLE").map(|file| root().join(file)),
            limits,
        }
    }
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str) -> Option<u64> {
    text(name).map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}")))
}

/// Root of the repository: relative directories start there.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the workspace").to_owned()
}
