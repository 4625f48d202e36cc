//! Ranges: the same answers for a blob that is here, that is on its way, and that nobody asked for before.

use std::time::Duration;

use crate::client::{Answer, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Fault, Gate, Image, TestUpstream, on};

/// Requests on a blob of 2048 bytes, and the part that answers them; `None` is 416.
const SINGLE: [(&str, Option<(u64, u64)>); 12] = [
    ("bytes=500-1499", Some((500, 1500))),
    ("bytes=500-", Some((500, 2048))),
    ("bytes=-500", Some((1548, 2048))),
    ("bytes=2000-5000", Some((2000, 2048))),
    ("bytes=0-", Some((0, 2048))),
    ("bytes=0-0", Some((0, 1))),
    ("bytes=0-1", Some((0, 2))),
    ("bytes=2047-2047", Some((2047, 2048))),
    ("bytes=-5000", Some((0, 2048))),
    ("bytes=500-0", None),
    ("bytes=5000-10000", None),
    ("bytes=-0", None),
];

fn check(answer: &Answer, blob: &Blob, range: &str, expected: Option<(u64, u64)>) {
    let size = blob.len();
    let Some((start, end)) = expected else {
        assert_eq!(answer.status, 416, "{range}: {}", answer.text());
        assert_eq!(
            answer.header("content-range"),
            Some(format!("bytes */{size}").as_str()),
            "{range}"
        );
        return;
    };
    assert_eq!(answer.status, 206, "{range}: {}", answer.text());
    let content_range = format!("bytes {start}-{}/{size}", end - 1);
    assert_eq!(
        answer.header("content-range"),
        Some(content_range.as_str()),
        "{range}"
    );
    assert_eq!(
        answer.header("content-length"),
        Some((end - start).to_string().as_str()),
        "{range}"
    );
    assert_eq!(answer.header("docker-content-digest"), Some(blob.digest.as_str()));
    assert!(
        answer.is_complete && answer.body == blob.read(start..end),
        "{range}"
    );
}

#[tokio::test]
async fn single_ranges_are_exact_on_a_hot_blob() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 2048);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    larder.get(&path).await.is_whole(&blob.bytes());
    for (range, expected) in SINGLE {
        check(&larder.range(&path, range).await, &blob, range, expected);
    }
    assert_eq!(upstream.log().gets_of(&blob.digest), 1);
}

#[tokio::test]
async fn single_ranges_are_exact_on_a_cold_blob_whatever_upstream_does_with_ranges() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let status = |code| Some(Fault::Status(code, vec![], "{}".to_owned()));
    let mut seed = 10;
    for refusal in [
        None,
        Some(Fault::IgnoreRange),
        status(400),
        status(416),
        status(501),
    ] {
        for (range, expected) in SINGLE {
            seed += 1;
            let blob = Blob::generated(seed, 2048);
            upstream.put_blob("app", &blob);
            if let Some(fault) = refusal.clone() {
                upstream.fault(on(&blob.digest).ranged(true), fault);
            }
            check(
                &larder.range(&blob_path("app", &blob.digest), range).await,
                &blob,
                range,
                expected,
            );
        }
        upstream.heal();
    }
}

#[tokio::test]
async fn several_ranges_make_a_multipart_answer() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for (seed, is_hot) in [(1, false), (2, true)] {
        let blob = Blob::generated(seed, 300_000);
        upstream.put_blob("app", &blob);
        let path = blob_path("app", &blob.digest);
        if is_hot {
            larder.get(&path).await.is_whole(&blob.bytes());
        }
        let answer = larder.range(&path, "bytes=0-9,100000-100099,-5").await;
        assert_eq!(answer.status, 206);
        assert!(answer.is_complete);
        let parts = multipart(&answer);
        let expected = [(0, 10), (100_000, 100_100), (299_995, 300_000)];
        assert_eq!(parts.len(), 3);
        for ((range, bytes), (start, end)) in parts.iter().zip(expected) {
            assert_eq!(*range, format!("bytes {start}-{}/300000", end - 1));
            assert!(*bytes == blob.read(start..end));
        }
    }
}

/// The parts of a `multipart/byteranges` body: the range of each, and its bytes.
fn multipart(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    let content_type = answer.header("content-type").expect("a content type");
    let boundary = content_type
        .strip_prefix("multipart/byteranges; boundary=")
        .expect("a multipart answer");
    let marker = format!("--{}", boundary.trim_matches('"'));
    let mut parts = Vec::new();
    let mut rest = answer.body.as_slice();
    while let Some(at) = find(rest, marker.as_bytes()) {
        rest = &rest[at + marker.len()..];
        if rest.starts_with(b"--") {
            return parts;
        }
        let head_end = find(rest, b"\r\n\r\n").expect("the head of a part");
        let head = String::from_utf8_lossy(&rest[..head_end]).to_lowercase();
        let range = head
            .lines()
            .find_map(|line| line.strip_prefix("content-range: "))
            .expect("its range")
            .to_owned();
        let body = &rest[head_end + 4..];
        let end = find(body, format!("\r\n{marker}").as_bytes()).expect("the end of a part");
        parts.push((range, body[..end].to_vec()));
        rest = &body[end..];
    }
    panic!("no last boundary")
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[tokio::test]
async fn a_thousand_ranges_in_twenty_kilobytes_are_answered() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(3, 20_000_000);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    larder.get(&path).await.is_whole(&blob.bytes());
    let list: Vec<String> = (0..1024_u64)
        .map(|part| format!("{}-{}", part * 19_000, part * 19_000 + 9))
        .collect();
    let answer = larder.range(&path, &format!("bytes={}", list.join(","))).await;
    match answer.status {
        206 => {
            let parts = multipart(&answer);
            assert_eq!(parts.len(), 1024);
            assert!(parts[1000].1 == blob.read(19_000_000..19_000_010));
        }
        200 => answer.is_whole(&blob.bytes()),
        other => panic!("{other}: {}", answer.text()),
    }
}

#[tokio::test]
async fn ranges_that_are_no_ranges_get_the_whole() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(4, 2048);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    for range in ["lines=1-2", "bytes", "bytes=", "bytes=a-b", "bytes=--1"] {
        larder.range(&path, range).await.is_whole(&blob.bytes());
    }
}

#[tokio::test]
async fn if_range_decides_between_part_and_whole() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(5, 2048);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    larder.get(&path).await.is_whole(&blob.bytes());
    let etag = format!("\"{}\"", blob.digest);
    let range = ("Range", "bytes=5-9");
    let part = larder.ask("GET", &path, &[range, ("If-Range", &etag)]).await;
    check(&part, &blob, "If-Range that matches", Some((5, 10)));
    larder
        .ask("GET", &path, &[range, ("If-Range", "\"another\"")])
        .await
        .is_whole(&blob.bytes());
    larder
        .ask("GET", &path, &[range, ("If-Range", &format!("W/{etag}"))])
        .await
        .is_whole(&blob.bytes());
}

#[tokio::test]
async fn a_cold_range_far_ahead_is_answered_while_the_fill_stands_still() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(6, 32 << 20);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault(
        on(&blob.digest).ranged(false),
        Fault::HoldAt(100_000, gate.clone()),
    );
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "15s")
        .start()
        .await;
    let path = blob_path("app", &blob.digest);
    let start = 31 << 20;
    let began = tokio::time::Instant::now();
    let answer = larder
        .range(&path, &format!("bytes={start}-{}", start + 999))
        .await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    check(&answer, &blob, "far ahead", Some((start, start + 1000)));
    let suffix = larder.range(&path, "bytes=-1000").await;
    check(&suffix, &blob, "suffix", Some((blob.len() - 1000, blob.len())));
    let ranged: u64 = upstream
        .log()
        .of("GET", &blob.digest)
        .filter(|asked| asked.status == 206)
        .map(|asked| asked.sent_bytes)
        .sum();
    assert_eq!(ranged, 2000, "{}", upstream.log().lines());
    gate.open();
}

#[tokio::test]
async fn a_range_inside_what_is_written_comes_from_the_fill() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(7, 4_000_000);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault(on(&blob.digest), Fault::HoldAt(2_000_000, gate.clone()));
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "15s")
        .start()
        .await;
    let path = blob_path("app", &blob.digest);
    let leader = larder.open(&path, &[]).await;
    gate.reached().await;
    check(
        &larder.range(&path, "bytes=1000000-1500000").await,
        &blob,
        "inside",
        Some((1_000_000, 1_500_001)),
    );
    assert_eq!(
        upstream.log().gets_of(&blob.digest),
        1,
        "{}",
        upstream.log().lines()
    );
    gate.open();
    leader.rest().await.is_whole(&blob.bytes());
    assert_eq!(upstream.log().bytes_of(&blob.digest), blob.len());
}

#[tokio::test]
async fn a_client_resumes_where_it_was_cut() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(8, 3_000_000);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    let mut cut = larder.open(&path, &[]).await;
    let first = cut.read_to(1_000_000).await[..1_000_000].to_vec();
    drop(cut);
    let rest = larder.range(&path, "bytes=1000000-").await;
    check(&rest, &blob, "resume", Some((1_000_000, 3_000_000)));
    assert!([first, rest.body].concat() == blob.bytes());
    assert_eq!(
        upstream.log().gets_of(&blob.digest),
        1,
        "{}",
        upstream.log().lines()
    );
}

#[tokio::test]
async fn a_range_on_a_manifest_is_answered_right() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(9);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let answer = larder.range(&manifest_path("app", "1"), "bytes=0-").await;
    assert!(matches!(answer.status, 200 | 206) && answer.is_complete);
    assert_eq!(answer.body, image.manifest.bytes);
}

#[tokio::test]
async fn an_unknown_blob_is_404_for_a_range_too() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let answer = larder
        .range(&blob_path("app", &Blob::of("nowhere").digest), "bytes=0-9")
        .await;
    assert_eq!(
        (answer.status, answer.error_code()),
        (404, "BLOB_UNKNOWN".to_owned())
    );
}
