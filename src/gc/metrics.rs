//! What the collector counts; everything is there as zero from the first scrape.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts};

use crate::metrics::Metrics;

/// Why something leaves the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Too old.
    Expired,
    /// Room was needed.
    Full,
    /// Nothing explains it: left by a crash, or by a registry that had the volume before.
    Orphan,
    /// Its bytes are wrong.
    Damaged,
    /// A person said so.
    Purged,
}

impl Reason {
    const ALL: [Self; 5] = [
        Self::Expired,
        Self::Full,
        Self::Orphan,
        Self::Damaged,
        Self::Purged,
    ];

    /// The label's value.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Full => "full",
            Self::Orphan => "orphan",
            Self::Damaged => "damaged",
            Self::Purged => "purged",
        }
    }
}

/// The collector's metrics. Cheap to clone.
#[derive(Debug, Clone)]
pub struct GcMetrics {
    used_bytes: IntGauge,
    limit_bytes: IntGauge,
    index_bytes: IntGauge,
    roots: IntGauge,
    blobs: IntGauge,
    oldest_use_seconds: IntGauge,
    unlinked: IntCounterVec,
    deleted: IntCounterVec,
    deleted_bytes: IntCounterVec,
    evictions: IntCounter,
    pass_seconds: Histogram,
    scrubbed: IntCounterVec,
    scrubbed_bytes: IntCounter,
    rebuilds: IntCounter,
    rebuild_links: IntGauge,
    is_rebuilding: IntGauge,
    leftovers: IntCounter,
}

/// What the index knows, for the gauges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) used_bytes: u64,
    pub(super) limit_bytes: u64,
    pub(super) index_bytes: u64,
    pub(super) roots: u64,
    pub(super) blobs: u64,
    pub(super) oldest_use_ms: u64,
}

impl GcMetrics {
    /// Makes the metrics at zero and has `metrics` show them.
    ///
    /// # Errors
    /// [`prometheus::Error`] when a name is taken.
    pub fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let made = Self {
            used_bytes: gauge(metrics, "used_bytes", "Bytes of content on the volume.")?,
            limit_bytes: gauge(metrics, "limit_bytes", "The most bytes content may take.")?,
            index_bytes: gauge(metrics, "index_bytes", "Bytes of the index on disk.")?,
            roots: gauge(metrics, "roots", "Manifests linked to repositories.")?,
            blobs: gauge(metrics, "contents", "Digests with bytes on the volume.")?,
            oldest_use_seconds: gauge(
                metrics,
                "oldest_use_timestamp_seconds",
                "Last use of what was used least recently.",
            )?,
            unlinked: counters(
                metrics,
                "unlinked_total",
                "Links taken from repositories.",
                "reason",
            )?,
            deleted: counters(metrics, "deleted_total", "Digests deleted.", "reason")?,
            deleted_bytes: counters(metrics, "deleted_bytes_total", "Bytes deleted.", "reason")?,
            evictions: counter(
                metrics,
                "evictions_total",
                "Images evicted because room was needed.",
            )?,
            pass_seconds: histogram(
                metrics,
                "gc_pass_duration_seconds",
                "Duration of collector passes.",
            )?,
            scrubbed: counters(metrics, "scrubbed_total", "Digests verified again.", "result")?,
            scrubbed_bytes: counter(metrics, "scrubbed_bytes_total", "Bytes verified again.")?,
            rebuilds: counter(metrics, "index_rebuilds_total", "Rebuilds of the index begun.")?,
            rebuild_links: gauge(
                metrics,
                "index_rebuild_links",
                "Links seen by the running or last rebuild.",
            )?,
            is_rebuilding: gauge(metrics, "index_rebuilding", "Whether the index is being rebuilt.")?,
            leftovers: counter(metrics, "leftovers_total", "Leftover files removed.")?,
        };
        for reason in Reason::ALL {
            for counter in [&made.unlinked, &made.deleted, &made.deleted_bytes] {
                counter.with_label_values(&[reason.as_str()]);
            }
        }
        for result in ["right", "wrong", "unreadable"] {
            made.scrubbed.with_label_values(&[result]);
        }
        Ok(made)
    }

    pub(super) fn show(&self, state: State) {
        self.used_bytes.set(clamp(state.used_bytes));
        self.limit_bytes.set(clamp(state.limit_bytes));
        self.index_bytes.set(clamp(state.index_bytes));
        self.roots.set(clamp(state.roots));
        self.blobs.set(clamp(state.blobs));
        self.oldest_use_seconds.set(clamp(state.oldest_use_ms / 1000));
    }

    pub(super) fn unlinked(&self, reason: Reason) {
        self.unlinked.with_label_values(&[reason.as_str()]).inc();
    }

    pub(super) fn deleted(&self, reason: Reason, size_bytes: u64) {
        self.deleted.with_label_values(&[reason.as_str()]).inc();
        self.deleted_bytes
            .with_label_values(&[reason.as_str()])
            .inc_by(size_bytes);
    }

    pub(super) fn evicted(&self) {
        self.evictions.inc();
    }

    pub(super) fn passed(&self, elapsed: Duration) {
        self.pass_seconds.observe(elapsed.as_secs_f64());
    }

    pub(super) fn scrubbed(&self, result: &str, size_bytes: u64) {
        self.scrubbed.with_label_values(&[result]).inc();
        self.scrubbed_bytes.inc_by(size_bytes);
    }

    pub(super) fn rebuild_began(&self) {
        self.rebuilds.inc();
        self.rebuild_links.set(0);
        self.is_rebuilding.set(1);
    }

    pub(super) fn rebuild_progress(&self, links: u64) {
        self.rebuild_links.set(clamp(links));
    }

    pub(super) fn rebuild_ended(&self) {
        self.is_rebuilding.set(0);
    }

    pub(super) fn swept(&self, files: u64) {
        self.leftovers.inc_by(files);
    }
}

fn clamp(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn name(of: &str) -> String {
    format!("registry_proxy_{of}")
}

fn gauge(metrics: &Metrics, of: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
    let made = IntGauge::new(name(of), help)?;
    metrics.register(Box::new(made.clone()))?;
    Ok(made)
}

fn counter(metrics: &Metrics, of: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
    let made = IntCounter::new(name(of), help)?;
    metrics.register(Box::new(made.clone()))?;
    Ok(made)
}

fn counters(
    metrics: &Metrics,
    of: &str,
    help: &str,
    label: &str,
) -> Result<IntCounterVec, prometheus::Error> {
    let made = IntCounterVec::new(Opts::new(name(of), help), &[label])?;
    metrics.register(Box::new(made.clone()))?;
    Ok(made)
}

fn histogram(metrics: &Metrics, of: &str, help: &str) -> Result<Histogram, prometheus::Error> {
    let buckets = vec![0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];
    let made = Histogram::with_opts(HistogramOpts::new(name(of), help).buckets(buckets))?;
    metrics.register(Box::new(made.clone()))?;
    Ok(made)
}
