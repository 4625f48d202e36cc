//! The router over a service without upstreams: what is answered before any repository is asked.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio_util::task::TaskTracker;

use super::*;
use crate::clock::Clock;
use crate::config::SizeLimit;
use crate::http::auth::Htpasswd;
use crate::http::route::PathRules;
use crate::http::{Edge, Settings};
use crate::meta::Index;
use crate::metrics::Metrics;
use crate::registry::{self, Parts, Registry, Repositories};
use crate::store::{Capacity, Store};

struct Larder {
    metrics: Arc<Metrics>,
    server: Server,
    _folder: TempDir,
}

impl Larder {
    /// A larder that knows no upstream, with a login `a:b` when asked for.
    async fn start(needs_login: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let (index, _) = Index::open(&folder.path().join("index"), 1 << 20).unwrap();
        let store = Store::open(folder.path()).unwrap();
        let capacity = Capacity::new(store.clone(), index.clone(), SizeLimit::Percent(100));
        let registry = Registry::new(Parts {
            settings: registry::Settings {
                tag_ttl: Duration::ZERO,
                negative_ttl: Duration::ZERO,
                stale_budget: LIMIT,
                max_tags: 10,
            },
            repositories: Repositories::new(Vec::new(), None, true),
            store,
            index,
            capacity,
            metrics: Arc::clone(&metrics),
            clock: Clock::default(),
            tracker: TaskTracker::new(),
        });
        let login = needs_login.then(|| {
            let path = folder.path().join("htpasswd");
            let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
            std::fs::write(&path, format!("a:{hash}\n")).unwrap();
            Htpasswd::new("pantry".into(), path).unwrap()
        });
        let settings = Settings {
            rules: PathRules::default(),
            headers: vec![(
                HeaderName::from_static("x-extra"),
                HeaderValue::from_static("yes"),
            )],
            max_tags: 10,
            max_catalog_entries: 10,
            is_access_log_enabled: false,
        };
        let router = Edge::new(Arc::new(registry), Arc::clone(&metrics), settings, login).router();
        let server = Server::start_router(&loopback(), router, None, |_| {}).await;
        Self {
            metrics,
            server,
            _folder: folder,
        }
    }

    /// Sends a request as it stands, and reads until the end.
    async fn ask(&self, request: &str) -> String {
        let mut stream = self.server.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        String::from_utf8(read_to_end(&mut stream).await).unwrap()
    }

    async fn get(&self, target: &str, more: &str) -> String {
        self.ask(&format!(
            "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n"
        ))
        .await
    }
}

fn assert_has(answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(answer.contains(part), "no {part:?} in {answer}");
    }
}

#[tokio::test]
async fn the_base_is_answered_here_and_carries_the_common_headers() {
    let larder = Larder::start(false).await;
    let answer = larder.get("/v2/", "").await;
    let common = [
        "HTTP/1.1 200",
        "docker-distribution-api-version: registry/2.0",
        "x-content-type-options: nosniff",
        "x-extra: yes",
        "content-type: application/json",
        "content-length: 2",
    ];
    assert_has(&answer, &common);
    assert!(answer.ends_with("\r\n\r\n{}"));
    assert_has(&larder.get("/v2", "").await, &["HTTP/1.1 301", "location: /v2/"]);
    let root = larder.get("/", "").await;
    assert_has(&root, &["HTTP/1.1 200", "cache-control: no-cache"]);
    assert!(!root.contains("x-extra"));
}

#[tokio::test]
async fn each_mistake_has_its_code() {
    let larder = Larder::start(false).await;
    let cases = [
        ("/favicon.ico", "404", "UNSUPPORTED"),
        ("/v2/a/b", "404", "NAME_UNKNOWN"),
        ("/v2/a%2Fb/manifests/x", "400", "NAME_INVALID"),
        ("/v2/a/manifests/x", "404", "NAME_UNKNOWN"),
        ("/v2/a/blobs/uploads/1", "404", "BLOB_UPLOAD_UNKNOWN"),
        ("/v2/_catalog?n=x", "400", "PAGINATION_NUMBER_INVALID"),
    ];
    for (target, status, code) in cases {
        let answer = larder.get(target, "").await;
        let code = format!("\"code\":\"{code}\"");
        assert_has(
            &answer,
            &[&format!("HTTP/1.1 {status}"), &code, "application/json"],
        );
        assert!(answer.ends_with("}\n"), "{answer}");
    }
    let catalog = larder.get("/v2/_catalog?n=0", "").await;
    assert!(catalog.ends_with("{\"repositories\":[]}\n"), "{catalog}");
}

#[tokio::test]
async fn pushes_are_refused_however_much_they_bring() {
    let larder = Larder::start(false).await;
    let refused = ["HTTP/1.1 405", "allow: GET, HEAD", "\"code\":\"UNSUPPORTED\""];
    for size in [0, 10, 500_000, 5_000_000] {
        let request = format!(
            "PUT /v2/a/manifests/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n{}",
            "x".repeat(size)
        );
        assert_has(&larder.ask(&request).await, &refused);
    }
    let asking_first =
        "POST /v2/a/blobs/uploads/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n";
    let answer = larder.ask(asking_first).await;
    assert_has(&answer, &refused);
    assert!(!answer.contains("HTTP/1.1 100"));
}

#[tokio::test]
async fn a_login_is_asked_for_under_v2_only() {
    let larder = Larder::start(true).await;
    let challenge = [
        "HTTP/1.1 401",
        "www-authenticate: Basic realm=\"pantry\"",
        "\"code\":\"UNAUTHORIZED\"",
        "registry/2.0",
    ];
    assert_has(&larder.get("/v2/", "").await, &challenge);
    assert_has(&larder.get("/v2/a/manifests/x", "").await, &challenge);
    let wrong = "Authorization: Basic YTpj\r\n";
    assert_has(&larder.get("/v2/", wrong).await, &challenge);
    let right = "Authorization: Basic YTpi\r\n";
    assert_has(&larder.get("/v2/", right).await, &["HTTP/1.1 200"]);
    assert_has(&larder.get("/", "").await, &["HTTP/1.1 200"]);
}

#[tokio::test]
async fn requests_are_counted_by_status_and_endpoint_and_none_stays_in_flight() {
    let larder = Larder::start(false).await;
    larder.get("/v2/", "").await;
    larder.get("/v2/a/manifests/x", "").await;
    let text = larder.metrics.render().unwrap();
    let expected = [
        "registry_http_requests_total{code=\"200\",handler=\"base\",method=\"get\"} 1\n",
        "registry_http_requests_total{code=\"404\",handler=\"manifest\",method=\"get\"} 1\n",
        "registry_http_in_flight_requests{handler=\"manifest\"} 0\n",
        "registry_proxy_requests_total{type=\"manifest\"} 0\n",
        "registry_proxy_pushed_bytes_total{type=\"manifest\"} 0\n",
    ];
    assert_has(&text, &expected);
}
