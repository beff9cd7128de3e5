//! Metrics of flow control, with the names of kube-apiserver.
//!
//! # Contract
//!
//! Counters and histograms of single requests are updated with the request. Gauges are set at each scrape. Histograms
//! of utilization get one sample a second, where kube-apiserver counts each nanosecond.

use std::time::Duration;

use crate::fair_queues::QueueStart;
use serving::metrics::Stability::{Alpha, Beta};
use serving::metrics::{
    Counter, Counters, Definition, FloatGauges, Gauge, Gauges, Histogram, Histograms, Metrics,
};

/// Labels as name and value.
pub(crate) type Labels = Vec<(&'static str, String)>;

const WAIT_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const WATCHES: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1_000.0, 10_000.0];
const REQUEST_RATIOS: &[f64] = &[0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1.0];
const SEAT_RATIOS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];
const DEMAND_RATIOS: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
const KIND_RATIOS: &[f64] = &[0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// All families.
pub(crate) struct FlowMetrics {
    dispatched: Counters<Labels>,
    rejected: Counters<Labels>,
    wait: Histograms<Labels>,
    execution: Histograms<Labels>,
    queue_length: Histograms<Labels>,
    estimated_seats: Histograms<Labels>,
    watch_count: Histograms<Labels>,
    pub(crate) executing_requests: Gauges<Labels>,
    pub(crate) executing_seats: Gauges<Labels>,
    pub(crate) waiting_requests: Gauges<Labels>,
    pub(crate) waiting_seats: Gauges<Labels>,
    nominal_limit: Gauges<Labels>,
    lower_limit: Gauges<Labels>,
    upper_limit: Gauges<Labels>,
    current_limit: Gauges<Labels>,
    target: FloatGauges<Labels>,
    demand_highest: FloatGauges<Labels>,
    demand_average: FloatGauges<Labels>,
    demand_deviation: FloatGauges<Labels>,
    demand_smoothed: FloatGauges<Labels>,
    virtual_time: FloatGauges<Labels>,
    last_start_time: FloatGauges<Labels>,
    last_start: FloatGauges<Labels>,
    start_bounds: FloatGauges<Labels>,
    discounted_start_bounds: FloatGauges<Labels>,
    fair_fraction: FloatGauge,
    request_utilization: Histograms<Labels>,
    seat_utilization: Histograms<Labels>,
    demand: Histograms<Labels>,
    kind_utilization: Histograms<Labels>,
}

/// A float gauge without labels.
type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

impl FlowMetrics {
    /// Declares all families.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let alpha = |name, help| Definition::new(name, Alpha, help);
        let beta = |name, help| Definition::new(name, Beta, help);
        FlowMetrics {
            dispatched: metrics.counter(&beta(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Requests that started, at once or from a queue",
            )),
            rejected: metrics.counter(&beta(
                "apiserver_flowcontrol_rejected_requests_total",
                "Requests that flow control rejected, by reason",
            )),
            wait: metrics.histogram(
                &beta(
                    "apiserver_flowcontrol_request_wait_duration_seconds",
                    "Time that requests spent in queues, by whether they started",
                ),
                WAIT_SECONDS,
            ),
            execution: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_request_execution_seconds",
                    "Time from the start of requests until their response, without time in queues",
                ),
                WAIT_SECONDS,
            ),
            queue_length: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_request_queue_length_after_enqueue",
                    "Requests in the queue after a request joined it",
                ),
                QUEUE_LENGTHS,
            ),
            estimated_seats: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_work_estimated_seats",
                    "Most seats that a request was expected to occupy",
                ),
                SEATS,
            ),
            watch_count: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_watch_count_samples",
                    "Watches that a write was expected to wake",
                ),
                WATCHES,
            ),
            executing_requests: metrics.gauge(&beta(
                "apiserver_flowcontrol_current_executing_requests",
                "Requests that run, and watches that begin",
            )),
            executing_seats: metrics.gauge(&beta(
                "apiserver_flowcontrol_current_executing_seats",
                "Seats of the requests that run",
            )),
            waiting_requests: metrics.gauge(&beta(
                "apiserver_flowcontrol_current_inqueue_requests",
                "Requests that wait in queues",
            )),
            waiting_seats: metrics.gauge(&alpha(
                "apiserver_flowcontrol_current_inqueue_seats",
                "Seats of the requests that wait",
            )),
            nominal_limit: metrics.gauge(&beta(
                "apiserver_flowcontrol_nominal_limit_seats",
                "Seats of the level by its shares",
            )),
            lower_limit: metrics
                .gauge(&alpha("apiserver_flowcontrol_lower_limit_seats", "Seats that the level never lends")),
            upper_limit: metrics.gauge(&alpha(
                "apiserver_flowcontrol_upper_limit_seats",
                "Seats of the level with all it may borrow",
            )),
            current_limit: metrics
                .gauge(&alpha("apiserver_flowcontrol_current_limit_seats", "Seats of the level at present")),
            target: metrics
                .float_gauge(&alpha("apiserver_flowcontrol_target_seats", "Seats that the level should get")),
            demand_highest: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_demand_seats_high_watermark",
                "Highest number of seats in use and waited for, in the last period",
            )),
            demand_average: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_demand_seats_average",
                "Mean number of seats in use and waited for, in the last period",
            )),
            demand_deviation: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_demand_seats_stdev",
                "Standard deviation of the seats in use and waited for, in the last period",
            )),
            demand_smoothed: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_demand_seats_smoothed",
                "Demand over several periods: rises at once, falls slowly",
            )),
            virtual_time: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_current_r",
                "Virtual time of the level's queues, in seconds",
            )),
            last_start_time: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_dispatch_r",
                "Virtual time at which a queue started a request last",
            )),
            last_start: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_latest_s",
                "Virtual time at which the queue of that request could start it",
            )),
            start_bounds: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_next_s_bounds",
                "Lowest and highest virtual time at which a queue could start a request then",
            )),
            discounted_start_bounds: metrics.float_gauge(&alpha(
                "apiserver_flowcontrol_next_discounted_s_bounds",
                "The same, less the expected work of the requests that run",
            )),
            fair_fraction: metrics.single_float_gauge(&alpha(
                "apiserver_flowcontrol_seat_fair_frac",
                "Proportion of their targets that the levels get",
            )),
            request_utilization: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_priority_level_request_utilization",
                    "Requests that run or wait, as part of the possible number; one sample a second",
                ),
                REQUEST_RATIOS,
            ),
            seat_utilization: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_priority_level_seat_utilization",
                    "Seats in use, as part of the level's seats; one sample a second",
                ),
                SEAT_RATIOS,
            ),
            demand: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_demand_seats",
                    "Seats in use and waited for, as part of the nominal limit; one sample a second",
                ),
                DEMAND_RATIOS,
            ),
            kind_utilization: metrics.histogram(
                &alpha(
                    "apiserver_flowcontrol_read_vs_write_current_requests",
                    "Reads and writes that run or wait, as part of the server's limits; one sample a second",
                ),
                KIND_RATIOS,
            ),
        }
    }

    /// Returns the metrics of single requests of a schema.
    pub(crate) fn of_schema(&self, schema: &str, level: &str) -> SchemaMetrics {
        let labels = schema_labels(schema, level);
        let with = |name, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        // `get_or_create` returns a guard of the family; a closure drops the guard before the next call.
        let rejected = |reason| self.rejected.get_or_create(&with("reason", reason)).clone();
        let wait = |is_executed| self.wait.get_or_create(&with("execute", is_executed)).clone();
        let execution = |kind| self.execution.get_or_create(&with("type", kind)).clone();
        SchemaMetrics {
            dispatched: self.dispatched.get_or_create(&labels).clone(),
            rejected_by_limit: rejected("concurrency-limit"),
            rejected_by_queue: rejected("queue-full"),
            timed_out: rejected("time-out"),
            cancelled: rejected("cancelled"),
            wait: wait("true"),
            wait_in_vain: wait("false"),
            execution: execution("regular"),
            watch_start: execution("watch"),
            queue_length: self.queue_length.get_or_create(&labels).clone(),
            estimated_seats: self.estimated_seats.get_or_create(&labels).clone(),
            watch_count: self.watch_count.get_or_create(&labels).clone(),
        }
    }

    /// Removes the series of a schema that is no longer in force.
    pub(crate) fn forget_schema(&self, schema: &str, level: &str) {
        let labels = schema_labels(schema, level);
        self.dispatched.remove(&labels);
        for histograms in [&self.queue_length, &self.estimated_seats, &self.watch_count] {
            histograms.remove(&labels);
        }
        let with = |name, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        for reason in ["concurrency-limit", "queue-full", "time-out", "cancelled"] {
            self.rejected.remove(&with("reason", reason));
        }
        for is_executed in ["true", "false"] {
            self.wait.remove(&with("execute", is_executed));
        }
        for kind in ["regular", "watch"] {
            self.execution.remove(&with("type", kind));
        }
    }

    /// Removes the series of a level that has ended.
    pub(crate) fn forget_level(&self, level: &str) {
        let labels = level_labels(level);
        for gauges in [&self.nominal_limit, &self.lower_limit, &self.upper_limit, &self.current_limit] {
            gauges.remove(&labels);
        }
        let of_demand = [
            &self.target,
            &self.demand_highest,
            &self.demand_average,
            &self.demand_deviation,
            &self.demand_smoothed,
        ];
        for gauges in
            of_demand.into_iter().chain([&self.virtual_time, &self.last_start_time, &self.last_start])
        {
            gauges.remove(&labels);
        }
        for gauges in [&self.start_bounds, &self.discounted_start_bounds] {
            for bound in ["min", "max"] {
                gauges.remove(&bound_labels(bound, level));
            }
        }
        for phase in ["executing", "waiting"] {
            self.request_utilization.remove(&phase_labels(phase, level));
            self.seat_utilization.remove(&phase_labels(phase, level));
        }
        self.demand.remove(&labels);
    }

    /// Sets the configured limits of a level.
    pub(crate) fn set_limits(&self, level: &str, limits: crate::allocation::Limits) {
        let labels = level_labels(level);
        let gauges = [&self.nominal_limit, &self.lower_limit, &self.upper_limit];
        for (gauge, seats) in gauges.into_iter().zip([limits.nominal, limits.lower, limits.upper]) {
            gauge.get_or_create(&labels).set(gauge_value(seats));
        }
    }

    /// Sets the demand of a level in the last period, its target and its limit for the next one.
    pub(crate) fn set_demand(
        &self,
        level: &str,
        demand: crate::demand::SmoothedDemand,
        target: f64,
        limit: usize,
    ) {
        let labels = level_labels(level);
        let values = [
            (&self.demand_highest, demand.last.highest),
            (&self.demand_average, demand.last.mean),
            (&self.demand_deviation, demand.last.deviation),
            (&self.demand_smoothed, demand.smoothed),
            (&self.target, target),
        ];
        for (gauge, value) in values {
            gauge.get_or_create(&labels).set(value);
        }
        self.current_limit.get_or_create(&labels).set(gauge_value(limit));
    }

    /// Sets the proportion of their targets that all levels get.
    pub(crate) fn set_fair_fraction(&self, fraction: f64) {
        self.fair_fraction.set(fraction);
    }

    /// Sets the virtual time of a level, and that of its last start from a queue.
    pub(crate) fn set_virtual_time(&self, level: &str, now: f64, last: QueueStart) {
        let labels = level_labels(level);
        let gauges =
            [(&self.virtual_time, now), (&self.last_start_time, last.at), (&self.last_start, last.start)];
        for (gauge, seconds) in gauges {
            gauge.get_or_create(&labels).set(seconds);
        }
        let bounds =
            [(&self.start_bounds, last.bounds), (&self.discounted_start_bounds, last.discounted_bounds)];
        for (gauge, (low, high)) in bounds {
            for (bound, seconds) in [("min", low), ("max", high)] {
                gauge.get_or_create(&bound_labels(bound, level)).set(seconds);
            }
        }
    }

    /// Adds a sample of the utilization of a level.
    pub(crate) fn sample(&self, level: &str, sample: LevelSample) {
        let requests = |phase| self.request_utilization.get_or_create(&phase_labels(phase, level)).clone();
        requests("executing").observe(sample.executing_requests);
        requests("waiting").observe(sample.waiting_requests);
        self.seat_utilization.get_or_create(&phase_labels("executing", level)).observe(sample.seats);
        self.demand.get_or_create(&level_labels(level)).observe(sample.demand);
    }

    /// Adds a sample of the reads or writes of the server.
    pub(crate) fn sample_kind(&self, kind: &str, phase: &str, ratio: f64) {
        let labels = vec![("phase", phase.to_owned()), ("request_kind", kind.to_owned())];
        self.kind_utilization.get_or_create(&labels).observe(ratio);
    }
}

/// Utilization of a level: ratios to what is possible.
pub(crate) struct LevelSample {
    pub(crate) executing_requests: f64,
    pub(crate) waiting_requests: f64,
    pub(crate) seats: f64,
    pub(crate) demand: f64,
}

/// Metrics of single requests of one schema.
pub(crate) struct SchemaMetrics {
    pub(crate) dispatched: Counter,
    pub(crate) rejected_by_limit: Counter,
    pub(crate) rejected_by_queue: Counter,
    pub(crate) timed_out: Counter,
    pub(crate) cancelled: Counter,
    wait: Histogram,
    wait_in_vain: Histogram,
    execution: Histogram,
    watch_start: Histogram,
    pub(crate) queue_length: Histogram,
    pub(crate) estimated_seats: Histogram,
    pub(crate) watch_count: Histogram,
}

impl SchemaMetrics {
    /// Records the time in a queue of a request that started, or of one that did not.
    pub(crate) fn observe_wait(&self, wait: Duration, started: bool) {
        let histogram = if started { &self.wait } else { &self.wait_in_vain };
        histogram.observe(wait.as_secs_f64());
    }

    /// Records the time until a response, or until a watch has begun.
    pub(crate) fn observe_execution(&self, time: Duration, is_watch: bool) {
        let histogram = if is_watch { &self.watch_start } else { &self.execution };
        histogram.observe(time.as_secs_f64());
    }
}

pub(crate) fn schema_labels(schema: &str, level: &str) -> Labels {
    vec![("flow_schema", schema.to_owned()), ("priority_level", level.to_owned())]
}

fn bound_labels(bound: &str, level: &str) -> Labels {
    vec![("bound", bound.to_owned()), ("priority_level", level.to_owned())]
}

fn phase_labels(phase: &str, level: &str) -> Labels {
    vec![("phase", phase.to_owned()), ("priority_level", level.to_owned())]
}

fn level_labels(level: &str) -> Labels {
    vec![("priority_level", level.to_owned())]
}

pub(crate) fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
