//! Flow control as a whole. Waits are short and real.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::SystemClock;
use apimachinery::object::Object;
use apimachinery::user::UserInfo;
use serde_json::{Value, json};
use serving::metrics::Metrics;
use tokio::time::Instant;

use super::*;

/// Maximum time of a request in a queue.
const WAIT: Duration = Duration::from_millis(500);

struct Fixture {
    control: Arc<FlowControl>,
    metrics: Metrics,
}

fn object(name: &str, spec: Value) -> Object {
    let object = json!({"metadata": {"name": name, "uid": format!("uid of {name}")}, "spec": spec});
    Object::from_value(object).unwrap()
}

fn limited(shares: u32, borrowing: Option<u32>, response: Value) -> Value {
    let mut limited = json!({"nominalConcurrencyShares": shares, "limitResponse": response});
    if let Some(percent) = borrowing {
        limited["borrowingLimitPercent"] = percent.into();
    }
    json!({"type": "Limited", "limited": limited})
}

fn queue(queues: u32, hand_size: u32, length: u32) -> Value {
    json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand_size, "queueLengthLimit": length}})
}

/// A schema that sends all resource requests of a user to a level.
fn schema_of(user: &str, level: &str) -> Object {
    let spec = json!({
        "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 50,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "User", "user": {"name": user}}],
            "resourceRules": [{
                "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true,
            }],
        }],
    });
    object(&format!("schema-{level}"), spec)
}

impl Fixture {
    /// A server with 600 seats.
    fn new(schemas: &[Object], levels: &[Object]) -> Self {
        let metrics = Metrics::new();
        let limits = ServerLimits { reads: 400, writes: 200 };
        let control = FlowControl::new(limits, Arc::new(SystemClock::new()), &metrics);
        let fixture = Fixture { control, metrics };
        fixture.configure(schemas, levels);
        fixture
    }

    fn configure(&self, schemas: &[Object], levels: &[Object]) {
        self.control.configure(&Configuration::from_objects(schemas, levels));
    }

    /// Sends a create that waits at most [`WAIT`].
    fn send(&self, user: &str, work: Work) -> impl Future<Output = Result<Permit, Rejected>> + use<> {
        let control = Arc::clone(&self.control);
        let user = Arc::new(UserInfo { name: user.to_owned(), ..UserInfo::default() });
        let attributes = Arc::new(Attributes {
            verb: "create".to_owned(),
            resource_request: true,
            resource: "configmaps".to_owned(),
            namespace: "a".to_owned(),
            ..Attributes::default()
        });
        async move {
            let schema = control.classify(&user, &attributes).unwrap();
            control.admit(&schema, &user, &attributes, work, WAIT).await
        }
    }

    /// Sends a request whose level must decide at once.
    async fn send_now(&self, user: &str) -> Result<Permit, RejectionReason> {
        let mut send = std::pin::pin!(self.send(user, Work::SMALL));
        let result = std::future::poll_fn(|context| match send.as_mut().poll(context) {
            std::task::Poll::Pending => panic!("the request waits"),
            ready => ready,
        });
        result.await.map_err(|rejected| rejected.reason)
    }

    fn load(&self, level: &str) -> (usize, usize) {
        let plan = self.control.plan.load();
        let levels = plan.levels.iter().filter(|l| l.name == level);
        levels
            .map(|level| level.snapshot().load)
            .fold((0, 0), |(running, waiting), load| (running + load.running, waiting + load.waiting))
    }
}

/// The built-in levels have 245 shares, so a level of one share has three of the 600 seats.
fn others() -> Object {
    object("others", limited(245, None, json!({"type": "Reject"})))
}

/// A level of three seats with three requests of bob that run.
async fn full_level(response: Value) -> (Fixture, Vec<Permit>) {
    let level = object("t", limited(1, Some(0), response));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(fixture.send_now("bob").await.unwrap());
    }
    (fixture, permits)
}

#[tokio::test]
async fn rejecting_level_runs_as_many_requests_as_its_shares_allow() {
    let (fixture, mut permits) = full_level(json!({"type": "Reject"})).await;
    assert_eq!(fixture.send_now("bob").await.err(), Some(RejectionReason::ConcurrencyLimit));
    permits.pop();
    assert!(!fixture.send_now("bob").await.unwrap().waited());
}

#[tokio::test]
async fn waiting_request_runs_when_a_permit_is_dropped() {
    let (fixture, mut permits) = full_level(queue(1, 1, 2)).await;
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    assert_eq!(fixture.load("t"), (3, 1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    permits.pop();
    let permit = waiting.await.unwrap().unwrap();
    assert!(permit.waited());
    assert_eq!(fixture.load("t"), (3, 0));
    drop((permit, permits));
    assert_eq!(fixture.load("t"), (0, 0));
    let text = fixture.metrics.text();
    let of_wait = |part: &str| {
        let name = format!("apiserver_flowcontrol_request_wait_duration_seconds_{part}");
        let lines =
            text.lines().filter(|line| line.starts_with(&name) && line.contains(r#"priority_level="t""#));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum::<f64>()
    };
    assert_eq!(of_wait("count"), 4.0);
    assert!((0.1..WAIT.as_secs_f64()).contains(&of_wait("sum")), "{text}");
}

#[tokio::test]
async fn request_is_rejected_after_its_wait_or_by_a_full_queue() {
    let level = object("t", limited(0, Some(0), queue(1, 1, 1)));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    assert_eq!(fixture.send_now("bob").await.err(), Some(RejectionReason::QueueFull));
    let begun = Instant::now();
    let rejected = waiting.await.unwrap().err().unwrap();
    assert_eq!(rejected, Rejected { reason: RejectionReason::TimeOut, retry_after_seconds: 1 });
    assert!((WAIT / 2..2 * WAIT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(fixture.load("t"), (0, 0));
}

#[tokio::test]
async fn disconnected_request_leaves_its_queue() {
    let level = object("t", limited(1, Some(0), queue(1, 1, 9)));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let permits = [
        fixture.send_now("bob").await.unwrap(),
        fixture.send_now("bob").await.unwrap(),
        fixture.send_now("bob").await.unwrap(),
    ];
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(fixture.load("t"), (3, 0));
    // A request that starts and is dropped before its task runs gives its seat back.
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    drop(permits);
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(fixture.load("t"), (0, 0));
    let text = fixture.metrics.text();
    assert!(text.contains(r#"priority_level="t",reason="cancelled"} 1"#), "{text}");
}

#[tokio::test]
async fn write_occupies_final_seats_after_its_response() {
    let level = object("t", limited(1, Some(0), json!({"type": "Reject"})));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let work = Work { seats: 1, final_seats: 3, final_time: Duration::from_millis(50) };
    drop(fixture.send("bob", work).await.unwrap());
    assert_eq!(fixture.send_now("bob").await.err(), Some(RejectionReason::ConcurrencyLimit));
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(fixture.send_now("bob").await.is_ok());
}

#[tokio::test]
async fn narrow_request_of_another_flow_goes_before_a_wide_one_that_waits() {
    let level = object("t", limited(4, Some(0), queue(64, 1, 9)));
    let users = ["bob", "carol", "dave"];
    let mut schema = schema_of("bob", "t");
    let mut spec = schema.at(&["spec"]).unwrap().clone();
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    spec["rules"][0]["subjects"] = users.iter().map(|name| user(name)).collect();
    schema.set("spec", spec);
    let fixture = Fixture::new(&[schema], &[level, others()]);
    // The level has ten seats.
    let permit = fixture.send("bob", Work::of_seats(6)).await.unwrap();
    let wide = tokio::spawn(fixture.send("carol", Work::of_seats(8)));
    tokio::task::yield_now().await;
    assert_eq!(fixture.load("t"), (1, 1));
    let narrow = fixture.send("dave", Work::SMALL).await.unwrap();
    assert_eq!(fixture.load("t"), (2, 1), "four seats were free");
    drop((permit, narrow));
    drop(wide.await.unwrap().unwrap());
}

#[tokio::test]
async fn seats_are_freed_when_the_runtime_of_the_request_ends() {
    let level = object("t", limited(1, Some(0), json!({"type": "Reject"})));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let work = Work { seats: 1, final_seats: 3, final_time: Duration::from_secs(3_600) };
    let permit = fixture.send("bob", work).await.unwrap();
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async move { drop(permit) });
    });
    ended.join().unwrap();
    assert_eq!(fixture.load("t"), (0, 0));
}

#[tokio::test]
async fn removed_level_leaves_the_plan_when_its_requests_have_ended() {
    let level = object("t", limited(1, Some(0), json!({"type": "Reject"})));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level, others()]);
    let permit = fixture.send_now("bob").await.unwrap();
    fixture.configure(&[schema_of("bob", "others")], &[others()]);
    let has_level = || fixture.control.plan.load().levels.iter().any(|level| level.name == "t");
    fixture.control.adjust();
    assert!(has_level(), "it has a request");
    drop(permit);
    fixture.control.adjust();
    assert!(!has_level());
}

#[tokio::test]
async fn removed_level_keeps_requests_until_their_end() {
    let (fixture, permits) = full_level(queue(1, 1, 9)).await;
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    fixture.configure(&[schema_of("bob", "others")], &[others()]);
    assert_eq!(fixture.load("t"), (3, 1));
    assert_eq!(fixture.send_now("bob").await.unwrap().schema_name(), "schema-others");
    drop(permits);
    assert!(waiting.await.unwrap().unwrap().waited());
    fixture.configure(&[schema_of("bob", "others")], &[others()]);
    assert!(!fixture.control.plan.load().levels.iter().any(|level| level.name == "t"));
}

#[tokio::test]
async fn deleted_objects_lose_their_metrics_when_their_level_ends() {
    let (fixture, permits) = full_level(json!({"type": "Reject"})).await;
    assert!(fixture.send_now("bob").await.is_err());
    let series_of = |label: &str| {
        fixture.control.sample();
        fixture.control.adjust();
        fixture.metrics.text().lines().filter(|line| line.contains(label)).count()
    };
    let (schema, level) = (r#"flow_schema="schema-t""#, r#"priority_level="t""#);
    assert!(series_of(schema) > 10 && series_of(level) > series_of(schema));
    fixture.configure(&[], &[]);
    assert!(series_of(level) > 0, "the level has requests");
    drop(permits);
    fixture.control.adjust();
    assert_eq!((series_of(schema), series_of(level)), (0, 0));
    assert!(series_of(r#"priority_level="catch-all""#) > 0);
}

#[tokio::test]
async fn equal_configuration_keeps_schemas_and_levels() {
    let level = object("t", limited(1, None, queue(8, 2, 9)));
    let fixture = Fixture::new(&[schema_of("bob", "t")], &[level.clone(), others()]);
    let before = fixture.control.plan.load_full();
    fixture.configure(&[schema_of("bob", "t")], &[level, others()]);
    let after = fixture.control.plan.load_full();
    assert!(before.schemas.iter().zip(&after.schemas).all(|(a, b)| Arc::ptr_eq(a, b)));
    assert!(before.levels.iter().zip(&after.levels).all(|(a, b)| Arc::ptr_eq(a, b)));
}

#[tokio::test]
async fn busy_level_borrows_seats_of_idle_ones() {
    let busy = object("busy", limited(1, None, queue(8, 2, 100)));
    let mut lender = limited(59, None, json!({"type": "Reject"}));
    lender["limited"]["lendablePercent"] = 50.into();
    let fixture = Fixture::new(&[schema_of("bob", "busy")], &[busy, object("lender", lender)]);
    // 600 seats for 65 shares: ten for the busy level by its shares, and some of those that the lender does not need.
    let requests: Vec<_> = (0..60).map(|_| tokio::spawn(fixture.send("bob", Work::SMALL))).collect();
    tokio::task::yield_now().await;
    assert!((10..30).contains(&fixture.load("busy").0), "{:?}", fixture.load("busy"));
    tokio::time::sleep(WAIT / 5).await;
    fixture.control.adjust();
    assert_eq!(fixture.load("busy"), (60, 0), "the demand of the period was 60 seats");
    for request in requests {
        drop(request.await.unwrap().unwrap());
    }
    assert_eq!(fixture.load("busy"), (0, 0));
}

#[tokio::test]
async fn schema_of_missing_level_is_ignored_and_catch_all_gets_the_rest() {
    let fixture = Fixture::new(&[schema_of("bob", "missing")], &[]);
    let user = Arc::new(UserInfo { name: "bob".to_owned(), ..UserInfo::default() });
    let request = Attributes { verb: "get".to_owned(), path: "/x".to_owned(), ..Attributes::default() };
    let schema = fixture.control.classify(&user, &request).unwrap();
    assert_eq!((schema.name(), schema.level(), schema.uid()), ("catch-all", "catch-all", ""));
    let masters = Arc::new(UserInfo { groups: vec!["system:masters".to_owned()], ..UserInfo::default() });
    assert_eq!(fixture.control.classify(&masters, &request).unwrap().name(), "exempt");
}

#[tokio::test]
async fn object_of_a_mandatory_level_changes_uids_and_keeps_requests() {
    let fixture = Fixture::new(&[], &[]);
    let permit = fixture.send_now("bob").await.unwrap();
    assert_eq!((permit.schema_name(), fixture.load("catch-all")), ("catch-all", (1, 0)));
    fixture.configure(&[], &[object("catch-all", limited(5, None, json!({"type": "Reject"})))]);
    assert_eq!(fixture.load("catch-all"), (1, 0), "one level has the request");
    let (user, request) = (Arc::<UserInfo>::default(), Attributes::default());
    let schema = fixture.control.classify(&user, &request).unwrap();
    assert_eq!((schema.uid(), schema.level_uid()), ("", "uid of catch-all"));
    assert_eq!(fixture.control.plan.load().levels.len(), 2);
}

#[tokio::test]
async fn schemas_match_by_precedence_and_then_by_name() {
    let schema = |name: &str, precedence: u32| {
        let mut schema = schema_of("bob", "t");
        schema.set("metadata", json!({"name": name}));
        let mut spec = schema.at(&["spec"]).unwrap().clone();
        spec["matchingPrecedence"] = precedence.into();
        schema.set("spec", spec);
        schema
    };
    let level = object("t", limited(1, None, json!({"type": "Reject"})));
    let fixture = Fixture::new(&[schema("c", 9), schema("b", 8), schema("a", 9)], &[level]);
    let plan = fixture.control.plan.load();
    let names: Vec<&str> = plan.schemas.iter().map(|schema| schema.name()).collect();
    assert_eq!(names, ["exempt", "b", "a", "c", "catch-all"]);
}

#[tokio::test]
async fn dumps_list_levels_queues_and_requests() {
    let (fixture, _permits) = full_level(queue(1, 1, 2)).await;
    let waiting = tokio::spawn(fixture.send("bob", Work::SMALL));
    tokio::task::yield_now().await;
    let dump = fixture.control.dump();
    let cells = |text: &str, line: usize| -> Vec<String> {
        let line = text.lines().nth(line).unwrap();
        line.split(',').map(|cell| cell.trim().to_owned()).collect()
    };
    let levels = dump.levels();
    assert_eq!(
        cells(&levels, 0).join(","),
        "PriorityLevelName,ActiveQueues,IsIdle,IsQuiescing,WaitingRequests,ExecutingRequests,DispatchedRequests,\
         RejectedRequests,TimedoutRequests,CancelledRequests"
    );
    let row = levels.lines().position(|line| line.starts_with("t,")).unwrap();
    assert_eq!(cells(&levels, row).join(" "), "t 1 false false 1 3 3 0 0 0");
    let queues = dump.queues();
    assert_eq!(queues.lines().count(), 2, "only one level has a queue: {queues}");
    assert_eq!(cells(&queues, 1)[..5].join(" "), "t 0 1 3 3");
    assert_eq!(cells(&queues, 1)[8], "0.00300000ss");
    let requests = dump.requests(true);
    assert_eq!(cells(&requests, 1)[..5].join(" "), "t schema-t 0 0 bob");
    assert_eq!(cells(&requests, 2)[..5].join(" "), "t schema-t 0 -1 bob");
    assert_eq!(cells(&requests, 1)[6..9].join(" "), "1 0 0ns");
    assert_eq!(cells(&requests, 1)[9], "", "it has not started");
    assert_eq!(cells(&requests, 1)[10..].join(" "), "bob create  a   configmaps ");
    waiting.abort();
}
