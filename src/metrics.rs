//! Every metric larder shows, as one table.
//!
//! The five `registry_proxy_*_total` counters keep distribution's names, labels and zero start; everything of larder's
//! own begins with `registry_proxy_` too, because scrapes keep only those. `registry_http_*` are distribution's.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// Bucket bounds in seconds, distribution's own for HTTP durations.
const SECONDS: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0,
];

/// What a proxy counter counts: the `type` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Layers, configurations, everything behind `/blobs/`.
    Blob,
    /// Everything behind `/manifests/`.
    Manifest,
}

impl Kind {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Manifest => "manifest",
        }
    }
}

/// All metrics; made once per process (or per server in tests) and shared.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    hits: IntCounterVec,
    misses: IntCounterVec,
    pulled_bytes: IntCounterVec,
    pushed_bytes: IntCounterVec,
    upstream_requests: IntCounterVec,
    upstream_seconds: HistogramVec,
    store_errors: IntCounterVec,
    fills: IntCounterVec,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    /// Requests being answered, by `handler`.
    pub http_in_flight: IntGaugeVec,
    /// Fills under way.
    pub fills_in_flight: IntGauge,
    /// Readers that joined a fill under way.
    pub followers: IntCounter,
    /// Upstream bodies resumed after a break.
    pub heals: IntCounter,
    /// Answers given from a copy that could not be confirmed upstream.
    pub stale: IntCounter,
    /// Answers to ranges fetched beside a fill.
    pub ranges_beside: IntCounter,
}

impl Metrics {
    /// Makes all metrics at zero.
    ///
    /// # Errors
    /// [`prometheus::Error`] when two metrics share a name: a mistake in the table.
    pub fn new() -> Result<Self, prometheus::Error> {
        let table = Table(Registry::new());
        let metrics = Self {
            requests: table.counters("registry_proxy_requests_total", "Requests answered.", &["type"])?,
            hits: table.counters(
                "registry_proxy_hits_total",
                "Requests answered from the cache.",
                &["type"],
            )?,
            misses: table.counters(
                "registry_proxy_misses_total",
                "Requests that needed upstream.",
                &["type"],
            )?,
            pulled_bytes: table.counters(
                "registry_proxy_pulled_bytes_total",
                "Bytes received from upstream.",
                &["type"],
            )?,
            pushed_bytes: table.counters(
                "registry_proxy_pushed_bytes_total",
                "Bytes sent to clients.",
                &["type"],
            )?,
            upstream_requests: table.counters(
                "registry_proxy_upstream_requests_total",
                "Requests sent upstream, by status or kind of failure.",
                &["upstream", "kind", "status"],
            )?,
            upstream_seconds: table.histograms(
                "registry_proxy_upstream_request_duration_seconds",
                "Time until upstream's headers.",
                &["upstream", "kind"],
            )?,
            store_errors: table.counters(
                "registry_proxy_store_errors_total",
                "Failed operations on the volume.",
                &["operation"],
            )?,
            fills: table.counters(
                "registry_proxy_fills_total",
                "Fills ended, by result.",
                &["result"],
            )?,
            http_requests: table.counters(
                "registry_http_requests_total",
                "Requests answered.",
                &["code", "handler", "method"],
            )?,
            http_seconds: table.histograms(
                "registry_http_request_duration_seconds",
                "Time until the last byte was handed to the connection.",
                &["handler", "method"],
            )?,
            http_in_flight: table.gauges(
                "registry_http_in_flight_requests",
                "Requests being answered.",
                &["handler"],
            )?,
            fills_in_flight: table.gauge("registry_proxy_fills_in_flight", "Fills under way.")?,
            followers: table.counter(
                "registry_proxy_followers_total",
                "Readers that joined a fill under way.",
            )?,
            heals: table.counter(
                "registry_proxy_heals_total",
                "Upstream bodies resumed after a break.",
            )?,
            stale: table.counter(
                "registry_proxy_stale_total",
                "Answers that could not be confirmed upstream.",
            )?,
            ranges_beside: table.counter(
                "registry_proxy_ranges_beside_fill_total",
                "Ranges fetched beside a fill.",
            )?,
            registry: table.0,
        };
        metrics.start_at_zero();
        Ok(metrics)
    }

    fn start_at_zero(&self) {
        for kind in [Kind::Blob, Kind::Manifest] {
            for counter in [
                &self.requests,
                &self.hits,
                &self.misses,
                &self.pulled_bytes,
                &self.pushed_bytes,
            ] {
                counter.with_label_values(&[kind.as_str()]);
            }
        }
        for handler in ["base", "blob", "catalog", "manifest", "referrers", "tags"] {
            self.http_in_flight.with_label_values(&[handler]);
        }
        for result in FillResult::ALL {
            self.fills.with_label_values(&[result.as_str()]);
        }
        for operation in ["read", "write", "commit", "link"] {
            self.store_errors.with_label_values(&[operation]);
        }
    }

    /// Adds further metrics to what [`Metrics::render`] prints.
    ///
    /// # Errors
    /// [`prometheus::Error`] when a name is taken.
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<(), prometheus::Error> {
        self.registry.register(collector)
    }

    /// Counts a request that was answered, from the cache or not.
    pub fn answered(&self, kind: Kind, is_hit: bool) {
        self.requests.with_label_values(&[kind.as_str()]).inc();
        let counter = if is_hit { &self.hits } else { &self.misses };
        counter.with_label_values(&[kind.as_str()]).inc();
    }

    /// Counts bytes received from upstream.
    pub fn pulled(&self, kind: Kind, size_bytes: u64) {
        self.pulled_bytes
            .with_label_values(&[kind.as_str()])
            .inc_by(size_bytes);
    }

    /// Counts bytes sent to clients.
    pub fn pushed(&self, kind: Kind, size_bytes: u64) {
        self.pushed_bytes
            .with_label_values(&[kind.as_str()])
            .inc_by(size_bytes);
    }

    /// Counts a failed operation on the volume: `read`, `write`, `commit` or `link`.
    pub fn store_error(&self, operation: &str) {
        self.store_errors.with_label_values(&[operation]).inc();
    }

    /// Counts a fill that ended.
    pub fn fill_ended(&self, result: FillResult) {
        self.fills.with_label_values(&[result.as_str()]).inc();
    }

    /// Counts a request to an upstream and the time until its headers.
    pub fn upstream_response(&self, upstream: &str, kind: &str, status: &str, elapsed: Duration) {
        self.upstream_requests
            .with_label_values(&[upstream, kind, status])
            .inc();
        self.upstream_seconds
            .with_label_values(&[upstream, kind])
            .observe(elapsed.as_secs_f64());
    }

    /// Counts an answered HTTP request.
    pub fn http_answered(&self, code: u16, handler: &str, method: &str, elapsed: Duration) {
        self.http_requests
            .with_label_values(&[code.to_string().as_str(), handler, method])
            .inc();
        self.http_seconds
            .with_label_values(&[handler, method])
            .observe(elapsed.as_secs_f64());
    }

    /// All metrics in Prometheus' text format 0.0.4.
    ///
    /// # Errors
    /// [`prometheus::Error`] when a metric cannot be encoded.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// How a fill ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillResult {
    /// Verified and stored.
    Stored,
    /// The bytes did not match their digest.
    Wrong,
    /// Upstream failed beyond healing.
    Failed,
    /// The volume failed; clients were served past it.
    PassedThrough,
}

impl FillResult {
    const ALL: [Self; 4] = [Self::Stored, Self::Wrong, Self::Failed, Self::PassedThrough];

    fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Wrong => "wrong",
            Self::Failed => "failed",
            Self::PassedThrough => "passed_through",
        }
    }
}

struct Table(Registry);

impl Table {
    fn add<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, prometheus::Error> {
        self.add(HistogramVec::new(
            HistogramOpts::new(name, help).buckets(SECONDS.to_vec()),
            labels,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_proxy_series_start_at_zero() {
        let text = Metrics::new().unwrap().render().unwrap();
        for name in ["requests", "hits", "misses", "pulled_bytes", "pushed_bytes"] {
            for kind in ["blob", "manifest"] {
                let line = format!("registry_proxy_{name}_total{{type=\"{kind}\"}} 0\n");
                assert!(text.contains(&line), "{line}");
            }
        }
    }

    #[test]
    fn requests_are_hits_and_misses() {
        let metrics = Metrics::new().unwrap();
        metrics.answered(Kind::Blob, true);
        metrics.answered(Kind::Blob, false);
        let text = metrics.render().unwrap();
        assert!(text.contains("registry_proxy_requests_total{type=\"blob\"} 2\n"));
        assert!(text.contains("registry_proxy_misses_total{type=\"blob\"} 1\n"));
    }
}
