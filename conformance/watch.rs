//! Watching: the counters start at zero and count what moved, health tells the reason, readiness needs no upstream.

use std::time::Duration;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Image, TestUpstream};

#[tokio::test]
async fn the_ten_series_of_distribution_are_zero_from_the_first_scrape() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let metrics = larder.metrics().await;
    for name in ["requests", "hits", "misses", "pulled_bytes", "pushed_bytes"] {
        for kind in ["blob", "manifest"] {
            let series = format!("registry_proxy_{name}_total{{type=\"{kind}\"}}");
            assert_eq!(metrics.get(&series), Some(&0.0), "{series}");
        }
    }
    let content_type = larder
        .admin("/metrics")
        .await
        .header("content-type")
        .unwrap_or_default()
        .to_owned();
    assert!(
        content_type.starts_with("text/plain; version=0.0.4"),
        "{content_type}"
    );
}

#[tokio::test]
async fn counters_count_what_really_moved() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let layer = &image.layers[0];
    let (manifest, blob) = (manifest_path("app", "1"), blob_path("app", &layer.digest));
    for _ in 0..3 {
        larder.get(&manifest).await.is_whole(&image.manifest.bytes);
        larder.get(&blob).await.is_whole(&layer.bytes());
        larder.until_idle().await;
    }
    larder.range(&blob, "bytes=0-99").await;
    let scrape = async |name: &str, kind: &str| {
        larder.metrics().await[&format!("registry_proxy_{name}_total{{type=\"{kind}\"}}")]
    };
    let manifest_len = image.manifest.bytes.len();
    let numbers = |values: [u64; 5]| values.map(|value| f64::from(u32::try_from(value).unwrap()));
    let wanted_manifest = numbers([3, 2, 1, manifest_len as u64, 3 * manifest_len as u64]);
    let wanted_blob = numbers([4, 3, 1, layer.len(), 3 * layer.len() + 100]);
    for (kind, wanted) in [("manifest", wanted_manifest), ("blob", wanted_blob)] {
        for (name, wanted) in ["requests", "hits", "misses", "pulled_bytes", "pushed_bytes"]
            .into_iter()
            .zip(wanted)
        {
            let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
            loop {
                let value = scrape(name, kind).await;
                if (value - wanted).abs() < 0.5 {
                    break;
                }
                assert!(
                    tokio::time::Instant::now() < deadline,
                    "{name} of {kind}: {value}, wanted {wanted}"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test]
async fn larders_own_metrics_begin_with_registry_proxy() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(2);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    larder
        .get(&blob_path("app", &image.layers[0].digest))
        .await
        .is_whole(&image.layers[0].bytes());
    let metrics = larder.metrics().await;
    for name in metrics.keys() {
        let known = [
            "registry_proxy_",
            "registry_http_",
            "registry_storage_",
            "process_",
        ];
        assert!(known.iter().any(|prefix| name.starts_with(prefix)), "{name}");
    }
    for part in [
        "upstream_requests",
        "fills_in_flight",
        "followers",
        "heals",
        "stale",
        "store_errors",
        "used_bytes",
    ] {
        let name = format!("registry_proxy_{part}");
        assert!(metrics.keys().any(|key| key.starts_with(&name)), "{name}");
    }
}

#[tokio::test]
async fn health_live_and_ready_are_200_with_upstream_down() {
    let upstream = TestUpstream::start().await;
    upstream.refuse().await;
    let larder = Larder::start(&upstream).await;
    let health = larder.admin("/debug/health").await;
    assert_eq!((health.status, health.text().trim()), (200, "{}"));
    assert_eq!(larder.admin("/livez").await.status, 200);
    assert_eq!(larder.admin("/readyz").await.status, 200);
    assert_eq!(larder.admin("/elsewhere").await.status, 404);
}

#[tokio::test]
async fn a_volume_that_cannot_be_written_is_told_with_the_reason_and_pulls_go_on() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(3, 5_000_000);
    upstream.put_blob("app", &blob);
    let health = serde_json::json!({"enabled": true, "interval": "100ms", "threshold": 2});
    let builder = Builder::new(&upstream.url()).set("health.storagedriver", health);
    let larder = builder.start().await;
    assert_eq!(larder.admin("/debug/health").await.status, 200);
    let own = larder.root().join("larder");
    let aside = larder.folder().join("aside");
    std::fs::rename(&own, &aside).unwrap();
    std::fs::write(&own, "in the way").unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    let unwell = loop {
        let answer = larder.admin("/debug/health").await;
        if answer.status == 503 {
            break answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "never unwell");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let reasons = unwell.json();
    assert!(
        reasons.as_object().is_some_and(|reasons| !reasons.is_empty()),
        "{reasons}"
    );
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    std::fs::remove_file(&own).unwrap();
    std::fs::rename(&aside, &own).unwrap();
    while larder.admin("/debug/health").await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "never well again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn each_request_is_one_line_that_can_be_switched_off() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    upstream.push_tagged("app", "1", &image);
    for disabled in [false, true] {
        let larder = Builder::new(&upstream.url())
            .set("log.level", "info")
            .set("log.accesslog.disabled", disabled)
            .start()
            .await;
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
        let lines = |log: &str| {
            log.lines()
                .filter(|line| line.contains("/v2/app/manifests/1") || line.contains(&image.manifest.digest))
                .count()
        };
        if disabled {
            let builder = larder.stop().await;
            drop(builder);
        } else {
            larder.until("a line", || lines(&larder.log()) == 1).await;
            let log = larder.log();
            let line = log
                .lines()
                .find(|line| line.contains("app") && line.contains("status=200"))
                .unwrap_or_default();
            for field in ["repository=", "status=200", "bytes=", "duration"] {
                assert!(line.contains(field), "`{field}` in `{line}`\n{log}");
            }
        }
    }
}
