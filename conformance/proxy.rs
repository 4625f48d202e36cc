//! An upstream behind an HTTP proxy: `HTTP_PROXY`, `HTTPS_PROXY` with CONNECT, and `NO_PROXY`.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::tls;
use crate::upstream::{Auth, Image, TestUpstream};

/// A forwarding proxy that notes whom it was asked for: `CONNECT host:port`, or `GET host:port`.
struct Proxy {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&asked);
        let tasks = TaskTracker::new();
        let connections = tasks.clone();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(forward(stream, Arc::clone(&notes)));
            }
        });
        Self { url, asked }
    }

    fn asked_for(&self, host: &str) -> usize {
        let asked = self.asked.lock();
        asked.iter().filter(|line| line.ends_with(host)).count()
    }
}

/// Serves one connection: a tunnel for CONNECT, and one request otherwise.
async fn forward(mut client: TcpStream, notes: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut seen = Vec::new();
    let end = loop {
        if let Some(at) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if client.read_buf(&mut seen).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(seen.get(..end)?).into_owned();
    let (first, fields) = head.split_once("\r\n")?;
    let (method, target) = first.split_once(' ')?;
    let target = target.split(' ').next()?;
    let (host, path) = match target.strip_prefix("http://") {
        Some(rest) => rest.split_at(rest.find('/')?),
        None => (target, ""),
    };
    notes.lock().push(format!("{method} {host}"));
    let mut server = TcpStream::connect(host).await.ok()?;
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
    } else {
        let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{fields}\r\n\r\n");
        server.write_all(request.as_bytes()).await.ok()?;
    }
    tokio::io::copy_bidirectional(&mut client, &mut server)
        .await
        .ok()
        .map(|_| ())
}

async fn pull(larder: &Larder, image: &Image) {
    let manifest = larder.get(&manifest_path("app", "1")).await;
    manifest.is_whole(&image.manifest.bytes);
    for blob in image.blobs() {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
}

fn host(url: &str) -> String {
    url.rsplit('/').next().unwrap().to_owned()
}

#[tokio::test]
async fn content_and_tokens_come_through_the_proxy() {
    let upstream = TestUpstream::start().await;
    upstream.set_auth(Auth::bearer());
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let proxy = Proxy::start().await;
    let builder = || Builder::new(&upstream.url()).env("HTTP_PROXY", &proxy.url);
    pull(&builder().start().await, &image).await;
    assert_eq!(
        proxy.asked_for(&upstream.token_host()),
        1,
        "{:?}",
        proxy.asked.lock()
    );
    let through = proxy.asked.lock().len();
    assert_eq!(
        through,
        upstream.log().all().len(),
        "nothing went past the proxy\n{}",
        upstream.log().lines()
    );
    pull(&builder().env("NO_PROXY", "127.0.0.1").start().await, &image).await;
    assert_eq!(proxy.asked.lock().len(), through);
}

#[tokio::test]
async fn a_tls_upstream_is_reached_by_connect_and_is_still_verified() {
    let authority = tls::authority();
    let upstream = TestUpstream::start_tls(tls::server_config(&authority)).await;
    upstream.set_auth(Auth::bearer());
    let image = Image::small(2);
    upstream.push_tagged("app", "1", &image);
    let proxy = Proxy::start().await;
    let builder = || {
        let builder = Builder::new(&upstream.url()).env("HTTPS_PROXY", &proxy.url);
        let ca = tls::write(builder.folder(), "ca.pem", &authority.pem());
        builder.set("larder.ca", ca)
    };
    pull(&builder().start().await, &image).await;
    assert!(proxy.asked_for(&format!("CONNECT {}", host(&upstream.url()))) >= 1);
    assert!(proxy.asked_for(&format!("CONNECT {}", upstream.token_host())) >= 1);
    let tunnels = proxy.asked.lock().len();
    pull(&builder().env("NO_PROXY", "127.0.0.1").start().await, &image).await;
    assert_eq!(proxy.asked.lock().len(), tunnels);

    let distrustful = Builder::new(&upstream.url()).env("HTTPS_PROXY", &proxy.url);
    let answer = distrustful.start().await.get(&manifest_path("app", "1")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
}
