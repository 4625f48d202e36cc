//! The admin listener: metrics, health, and a page for people. Nothing here is part of the registry's API.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use serde_json::json;
use tokio::time::Instant;

use super::health::Health;
use crate::metrics::Metrics;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How the page looks: one block, nothing from elsewhere, light or dark as the reader has it.
const STYLE: &str = ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;\
margin:2rem auto;padding:0 1rem}h1{margin-bottom:0}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884}\
td:last-child,th:last-child{text-align:right;font-variant-numeric:tabular-nums}\
.well{color:#18794e}.unwell{color:#ce2c31}@media(prefers-color-scheme:dark){.well{color:#4cc38a}.unwell{color:#ff9592}}";

/// What the admin listener tells of.
#[derive(Debug, Clone)]
pub struct Admin {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The state of health.
    pub health: Health,
    /// Where metrics are; `None` when they are not shown.
    pub metrics_path: Option<String>,
    /// Upstreams, as people know them.
    pub upstreams: Vec<String>,
}

struct Page {
    admin: Admin,
    began: Instant,
}

impl Admin {
    /// The router to serve.
    pub fn router(self) -> Router {
        let page = Page {
            admin: self,
            began: Instant::now(),
        };
        Router::new().fallback(serve).with_state(Arc::new(page))
    }
}

async fn serve(State(page): State<Arc<Page>>, request: Request<Body>) -> Response {
    let path = request.uri().path();
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_reading {
        return not_found();
    }
    if page.admin.metrics_path.as_deref() == Some(path) {
        return page.metrics();
    }
    match path {
        "/debug/health" => page.health(),
        "/livez" => answer(StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => page.readiness(),
        "/" => answer(StatusCode::OK, HTML, page.html()),
        _ => not_found(),
    }
}

fn not_found() -> Response {
    answer(StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned())
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Page {
    fn metrics(&self) -> Response {
        match self.admin.metrics.render() {
            Ok(text) => answer(StatusCode::OK, METRICS, text),
            Err(error) => answer(StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        }
    }

    /// As distribution: an empty object, or 503 and each failing check with its reason.
    fn health(&self) -> Response {
        let failures = self.admin.health.failures();
        let status = if failures.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        answer(status, JSON, json!(failures).to_string())
    }

    fn readiness(&self) -> Response {
        if self.admin.health.is_ready() {
            answer(StatusCode::OK, TEXT, "ok\n".to_owned())
        } else {
            answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, "not ready\n".to_owned())
        }
    }

    fn html(&self) -> String {
        let mut html = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>larder</title>\
             <style>{STYLE}</style></head><body><h1>larder</h1><p>A pull-through cache for OCI registries.</p>"
        );
        html.push_str(&self.state_table());
        html.push_str("<h2>Counters</h2>");
        html.push_str(&table(&self.counters()));
        if let Some(path) = &self.admin.metrics_path {
            let path = escape(path);
            let _ = write!(html, "<p>All of them: <a href=\"{path}\">{path}</a></p>");
        }
        html.push_str("</body></html>\n");
        html
    }

    fn state_table(&self) -> String {
        let failures = self.admin.health.failures();
        let health = if failures.is_empty() {
            "<span class=\"well\">well</span>".to_owned()
        } else {
            failures.iter().fold(String::new(), |text, (check, reason)| {
                format!(
                    "{text}<span class=\"unwell\">{}: {}</span> ",
                    escape(check),
                    escape(reason)
                )
            })
        };
        let is_ready = if self.admin.health.is_ready() { "yes" } else { "no" };
        table(&[
            ("Version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("Upstream".to_owned(), escape(&self.admin.upstreams.join(", "))),
            ("Running for".to_owned(), duration_text(self.began.elapsed())),
            ("Takes requests".to_owned(), is_ready.to_owned()),
            ("Health".to_owned(), health),
            (
                "Fills in flight".to_owned(),
                self.admin.metrics.fills_in_flight.get().to_string(),
            ),
        ])
    }

    /// Larder's own series that are not histograms, as the scrape shows them.
    fn counters(&self) -> Vec<(String, String)> {
        let text = self.admin.metrics.render().unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with("registry_proxy_"))
            .filter(|line| !line.contains("_bucket{") && !line.contains("_sum{"))
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(series, value)| {
                let series = series.trim_start_matches("registry_proxy_");
                (escape(series), escape(value))
            })
            .collect()
    }
}

/// A table of rows that are HTML already.
fn table(rows: &[(String, String)]) -> String {
    let mut html = String::from("<table>");
    for (name, value) in rows {
        let _ = write!(html, "<tr><td>{name}</td><td>{value}</td></tr>");
    }
    html.push_str("</table>");
    html
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn duration_text(duration: Duration) -> String {
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    fn admin() -> Admin {
        Admin {
            metrics: Arc::new(Metrics::new().unwrap()),
            health: Health::default(),
            metrics_path: Some("/metrics".into()),
            upstreams: vec!["<docker.io>".into()],
        }
    }

    async fn ask(admin: &Admin, method: Method, path: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty());
        let response = admin.clone().router().oneshot(request.unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn health_tells_what_fails_and_readiness_does_not_care() {
        let admin = admin();
        assert_eq!(
            ask(&admin, Method::GET, "/debug/health").await,
            (200, "{}".into())
        );
        assert_eq!(ask(&admin, Method::GET, "/readyz").await.0, 503);
        admin.health.set_ready(true);
        admin.health.set("storagedriver", Err("disk full".into()));
        let expected = "{\"storagedriver\":\"disk full\"}".to_owned();
        assert_eq!(ask(&admin, Method::GET, "/debug/health").await, (503, expected));
        assert_eq!(ask(&admin, Method::GET, "/readyz").await.0, 200);
        assert_eq!(ask(&admin, Method::GET, "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn metrics_are_where_configured_and_nowhere_else() {
        let mut admin = admin();
        let (status, text) = ask(&admin, Method::GET, "/metrics").await;
        assert!(status == 200 && text.contains("registry_proxy_hits_total{type=\"blob\"} 0"));
        assert_eq!(ask(&admin, Method::GET, "/metrics/").await.0, 404);
        admin.metrics_path = None;
        assert_eq!(ask(&admin, Method::GET, "/metrics").await.0, 404);
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_not_found() {
        for path in ["/healthz", "/debug/pprof/", "/v2/"] {
            assert_eq!(ask(&admin(), Method::GET, path).await.0, 404, "{path}");
        }
        assert_eq!(ask(&admin(), Method::POST, "/debug/health").await.0, 404);
    }

    #[tokio::test]
    async fn the_page_shows_counters_and_escapes_everything() {
        let admin = admin();
        admin.health.set("x", Err("<script>".into()));
        let (status, page) = ask(&admin, Method::GET, "/").await;
        assert_eq!(status, 200);
        assert!(page.contains("&lt;docker.io&gt;") && page.contains("&lt;script&gt;"));
        assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("src="));
        assert!(page.contains("hits_total{type=&quot;blob&quot;}"));
    }
}
