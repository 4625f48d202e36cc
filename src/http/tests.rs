//! Connections over loopback, seen from the client's side, byte by byte where it matters.

mod edge;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Request, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body::ContentBody;
use super::connection::{Connection, Patience};
use super::listener::{Listener, Options};
use super::tls::{TlsAcceptor, TlsError};
use crate::config::{Address, ClientAuth, Listen, Tls, TlsVersion};
use crate::registry::{Content, ContentError, Piece};

/// Longer than any test should take, so that a fault fails instead of hanging.
const LIMIT: Duration = Duration::from_secs(20);

type MakeContent = Arc<dyn Fn() -> (Content, Option<u64>) + Send + Sync>;

/// A server whose every answer is the same content.
struct Server {
    address: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Server {
    async fn start(make: MakeContent, tls: Option<TlsAcceptor>, change: impl FnOnce(&mut Options)) -> Self {
        Self::start_on(&loopback(), make, tls, change).await
    }

    async fn start_on(
        listen: &Listen,
        make: MakeContent,
        tls: Option<TlsAcceptor>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let router = Router::new().fallback(give).with_state(make);
        Self::start_router(listen, router, tls, change).await
    }

    async fn start_router(
        listen: &Listen,
        router: Router,
        tls: Option<TlsAcceptor>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = Options {
            patience: Patience {
                header: LIMIT,
                idle: LIMIT,
                write_stall: LIMIT,
            },
            max_header_bytes: 72 * 1024,
            is_h2c_enabled: false,
        };
        change(&mut options);
        let listener = Listener::bind(listen).await.unwrap();
        let (address, stop, tasks) = (
            listener.local_addr(),
            CancellationToken::new(),
            TaskTracker::new(),
        );
        tasks.spawn(listener.serve(router, tls, options, stop.clone(), Duration::from_secs(1)));
        Self { address, stop, tasks }
    }

    fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.unwrap()
    }

    async fn ended(&self) {
        self.tasks.close();
        timeout(LIMIT, self.tasks.wait()).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn give(State(make): State<MakeContent>, request: Request<Body>) -> Response {
    let is_http1 = request.version() <= Version::HTTP_11;
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    let (content, length) = make();
    let body = ContentBody::new(content, length, connection.filter(|_| is_http1));
    let mut response = Response::new(Body::new(body));
    if let Some(length) = length {
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

fn loopback() -> Listen {
    Listen::Tcp(Address {
        host: "127.0.0.1".into(),
        port: 0,
    })
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| u8::try_from(i % 251).unwrap()).collect()
}

fn file_piece(bytes: &[u8]) -> Piece {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Piece::File {
        file: Arc::new(file),
        range: 0..bytes.len() as u64,
    }
}

/// Content made of the same pieces each time; `announced` more or less than they are.
fn pieces(pieces: Vec<Result<Piece, ContentError>>, announced: Option<u64>) -> MakeContent {
    Arc::new(move || (stream::iter(pieces.clone()).boxed(), announced))
}

fn whole(bytes: &[u8]) -> MakeContent {
    pieces(vec![Ok(file_piece(bytes))], Some(bytes.len() as u64))
}

/// Everything until the end, which must be a clean one.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let reading = stream.read_to_end(&mut received);
    timeout(LIMIT, reading).await.expect("an end").expect("no reset");
    received
}

/// The head of an answer, and what came with it of the body.
async fn read_head(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut received = Vec::new();
    loop {
        if let Some(end) = received.windows(4).position(|w| w == b"\r\n\r\n") {
            let body = received.split_off(end + 4);
            return (String::from_utf8(received).unwrap(), body);
        }
        let read = timeout(LIMIT, stream.read_buf(&mut received))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0, "the connection ended within a head");
    }
}

async fn read_answer(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let (_, mut body) = read_head(stream).await;
    while body.len() < length {
        let read = timeout(LIMIT, stream.read_buf(&mut body)).await.unwrap().unwrap();
        assert!(read > 0, "the connection ended within a body");
    }
    body
}

fn body_of(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    &answer[end + 4..]
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test]
async fn files_arrive_whole_again_and_again_on_one_connection() {
    let bytes = pattern(5_000_000);
    let server = Server::start(whole(&bytes), None, |_| {}).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream.write_all(GET).await.unwrap();
        assert!(read_answer(&mut stream, bytes.len()).await == bytes);
    }
}

#[tokio::test]
async fn a_body_that_fails_ends_clean_after_everything_before_it() {
    let bytes = pattern(6_000_000);
    let failing = vec![
        Ok(file_piece(&bytes)),
        Ok(Piece::Bytes(Bytes::from_static(b"tail"))),
        Err(ContentError::Stopping),
    ];
    let expected = [&bytes[..], b"tail"].concat();
    for announced in [Some(7_000_000), None] {
        let server = Server::start(pieces(failing.clone(), announced), None, |_| {}).await;
        let mut stream = server.connect().await;
        stream.write_all(GET).await.unwrap();
        // What lies unread at the server when it closes would make the kernel send a reset.
        stream.write_all(&pattern(100_000)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let answer = read_to_end(&mut stream).await;
        match announced {
            Some(_) => assert!(body_of(&answer) == expected),
            None => assert!(!answer.ends_with(b"0\r\n\r\n") && answer.len() > expected.len()),
        }
    }
}

#[tokio::test]
async fn a_body_that_fails_at_once_still_has_its_head() {
    let server = Server::start(pieces(vec![Err(ContentError::Stopping)], Some(10)), None, |_| {}).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && body_of(&answer).is_empty());
}

#[tokio::test]
async fn a_file_that_shrinks_ends_the_answer_short() {
    let piece = file_piece(&pattern(3_000_000));
    let Piece::File { file, .. } = &piece else {
        unreachable!()
    };
    file.set_len(1_000_000).unwrap();
    let server = Server::start(pieces(vec![Ok(piece)], Some(3_000_000)), None, |_| {}).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert_eq!(body_of(&answer).len(), 1_000_000);
}

#[tokio::test]
async fn head_keeps_the_length_and_the_connection() {
    let server = Server::start(whole(&pattern(100_000)), None, |_| {}).await;
    let mut stream = server.connect().await;
    for _ in 0..2 {
        stream
            .write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let (head, body) = read_head(&mut stream).await;
        assert!(head.contains("content-length: 100000\r\n") && body.is_empty());
    }
}

#[tokio::test]
async fn heads_of_64_kib_are_read_and_larger_ones_refused() {
    let server = Server::start(whole(b"x"), None, |_| {}).await;
    for (size, status) in [(64 * 1024, "200"), (200 * 1024, "431")] {
        let mut stream = server.connect().await;
        let head = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nRange: {}\r\nConnection: close\r\n\r\n",
            "x".repeat(size)
        );
        let _ = stream.write_all(head.as_bytes()).await;
        let (answer, _) = read_head(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
}

#[tokio::test]
async fn slow_heads_and_idle_connections_end() {
    let server = Server::start(whole(b"x"), None, |options| {
        options.patience.header = Duration::from_millis(200);
        options.patience.idle = Duration::from_millis(600);
    })
    .await;
    let mut silent = server.connect().await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET / HT").await.unwrap();
    let mut idle = server.connect().await;
    idle.write_all(GET).await.unwrap();
    assert_eq!(read_answer(&mut idle, 1).await, b"x");
    let began = tokio::time::Instant::now();
    assert!(read_to_end(&mut silent).await.is_empty());
    assert!(read_to_end(&mut slow).await.is_empty());
    assert!(began.elapsed() < Duration::from_millis(500));
    assert!(read_to_end(&mut idle).await.is_empty());
    assert!(began.elapsed() >= Duration::from_millis(500));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let server = Server::start(whole(&pattern(20 << 20)), None, |options| {
        options.patience.write_stall = Duration::from_millis(200);
    })
    .await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut received = Vec::new();
    let end = timeout(LIMIT, stream.read_to_end(&mut received)).await.unwrap();
    assert!(end.is_err() || received.len() < 20 << 20);
}

#[tokio::test]
async fn a_stop_closes_idle_connections_and_lets_answers_finish() {
    let bytes = pattern(20 << 20);
    let server = Server::start(whole(&bytes), None, |_| {}).await;
    let mut idle = server.connect().await;
    idle.write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    read_head(&mut idle).await;
    let mut busy = server.connect().await;
    busy.write_all(GET).await.unwrap();
    let (_, mut body) = read_head(&mut busy).await;
    server.stop.cancel();
    assert!(read_to_end(&mut idle).await.is_empty());
    body.extend(read_to_end(&mut busy).await);
    assert!(body == bytes);
    server.ended().await;
    assert!(TcpStream::connect(server.address()).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_past_the_drain_time() {
    let never = || (stream::pending().boxed(), Some(10));
    let server = Server::start(Arc::new(never), None, |_| {}).await;
    let mut stream = server.connect().await;
    stream.write_all(GET).await.unwrap();
    read_head(&mut stream).await;
    server.stop.cancel();
    server.ended().await;
}

#[tokio::test]
async fn a_taken_port_is_told_with_its_address() {
    let server = Server::start(whole(b"x"), None, |_| {}).await;
    let taken = Listen::Tcp(Address {
        host: "127.0.0.1".into(),
        port: server.address().port(),
    });
    let error = Listener::bind(&taken).await.unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&server.address().to_string()));
}

#[tokio::test]
async fn unix_sockets_are_served_and_left_ones_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bytes = pattern(300_000);
    let server = Server::start_on(&Listen::Unix(path.clone()), whole(&bytes), None, |_| {}).await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(body_of(&answer) == bytes);
    assert!(Listener::bind(&Listen::Unix(path.clone())).await.is_err());
    server.stop.cancel();
    server.ended().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn http_2_is_spoken_without_tls_when_asked_for() {
    let bytes = pattern(3_000_000);
    let server = Server::start(whole(&bytes), None, |options| options.is_h2c_enabled = true).await;
    let url = format!("http://{}/", server.address());
    let client = reqwest::Client::builder()
        .http2_prior_knowledge()
        .build()
        .unwrap();
    let response = client.get(&url).send().await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    assert!(response.bytes().await.unwrap() == bytes);
    let plain = reqwest::get(&url).await.unwrap();
    assert_eq!(plain.version(), Version::HTTP_11);
    assert!(plain.bytes().await.unwrap() == bytes);
}

/// Writes a certificate for 127.0.0.1 and its key into a folder.
fn write_certificate(folder: &Path) -> String {
    let pair = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), pair.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), pair.signing_key.serialize_pem()).unwrap();
    pair.cert.pem()
}

fn tls_in(folder: &Path) -> Tls {
    Tls {
        certificate: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_cas: Vec::new(),
        client_auth: ClientAuth::RequireAndVerifyClientCert,
        minimum_version: TlsVersion::Tls12,
        cipher_suites: Vec::new(),
    }
}

fn client_trusting(pem: &str) -> reqwest::ClientBuilder {
    let certificate = reqwest::Certificate::from_pem(pem.as_bytes()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([certificate])
        .no_proxy()
}

#[tokio::test]
async fn tls_speaks_both_versions_of_http() {
    let folder = tempfile::tempdir().unwrap();
    let pem = write_certificate(folder.path());
    let bytes = pattern(3_000_000);
    for is_http2_enabled in [true, false] {
        let tls = TlsAcceptor::new(tls_in(folder.path()), is_http2_enabled).unwrap();
        let server = Server::start(whole(&bytes), Some(tls), |_| {}).await;
        let client = client_trusting(&pem).build().unwrap();
        let url = format!("https://{}/", server.address());
        let response = client.get(url).send().await.unwrap();
        assert_eq!(response.version() == Version::HTTP_2, is_http2_enabled);
        assert!(response.bytes().await.unwrap() == bytes);
    }
}

#[tokio::test]
async fn a_changed_certificate_is_used_and_a_wrong_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let old = write_certificate(folder.path());
    let tls = TlsAcceptor::new(tls_in(folder.path()), true).unwrap();
    let server = Server::start(whole(b"x"), Some(tls.clone()), |_| {}).await;
    let url = format!("https://{}/", server.address());
    let is_trusted_with = async |pem: &str| {
        let client = client_trusting(pem).build().unwrap();
        client.get(&url).send().await.is_ok()
    };
    assert!(is_trusted_with(&old).await);
    std::fs::write(folder.path().join("tls.key"), "not a key").unwrap();
    tls.look_again();
    assert!(is_trusted_with(&old).await);
    let new = write_certificate(folder.path());
    tls.look_again();
    assert!(is_trusted_with(&new).await && !is_trusted_with(&old).await);
}

#[tokio::test]
async fn clients_need_the_certificate_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let pem = write_certificate(folder.path());
    let stranger = rcgen::generate_simple_self_signed(vec!["stranger".to_owned()]).unwrap();
    let identity = reqwest::Identity::from_pem(
        format!("{}{}", stranger.cert.pem(), stranger.signing_key.serialize_pem()).as_bytes(),
    )
    .unwrap();
    let cases = [
        (ClientAuth::RequestClientCert, true, true),
        (ClientAuth::RequireAnyClientCert, false, true),
        (ClientAuth::VerifyClientCertIfGiven, true, false),
        (ClientAuth::RequireAndVerifyClientCert, false, false),
    ];
    for (client_auth, nobody_may, stranger_may) in cases {
        let mut settings = tls_in(folder.path());
        settings.client_cas = vec![folder.path().join("tls.crt")];
        settings.client_auth = client_auth;
        let tls = TlsAcceptor::new(settings, true).unwrap();
        let server = Server::start(whole(b"x"), Some(tls), |_| {}).await;
        let url = format!("https://{}/", server.address());
        let nobody = client_trusting(&pem).build().unwrap();
        let someone = client_trusting(&pem).identity(identity.clone()).build().unwrap();
        assert_eq!(
            nobody.get(&url).send().await.is_ok(),
            nobody_may,
            "{client_auth:?}"
        );
        assert_eq!(
            someone.get(&url).send().await.is_ok(),
            stranger_may,
            "{client_auth:?}"
        );
    }
}

#[test]
fn wrong_tls_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let fails = |settings: Tls| TlsAcceptor::new(settings, true).unwrap_err();
    let good = tls_in(folder.path());
    let missing = fails(good.clone());
    assert!(
        matches!(&missing, TlsError::Read { path, .. } if *path == file("tls.crt")),
        "{missing}"
    );
    write_certificate(folder.path());
    let swapped = fails(Tls {
        key: good.certificate.clone(),
        ..good.clone()
    });
    assert!(
        matches!(&swapped, TlsError::Content { path, .. } if *path == file("tls.crt")),
        "{swapped}"
    );
    std::fs::write(file("other.crt"), "nothing").unwrap();
    let empty = fails(Tls {
        certificate: file("other.crt"),
        ..good.clone()
    });
    assert!(
        matches!(&empty, TlsError::Content { path, .. } if *path == file("other.crt")),
        "{empty}"
    );
    std::fs::rename(file("tls.key"), file("old.key")).unwrap();
    write_certificate(folder.path());
    let unpaired = fails(Tls {
        key: file("old.key"),
        ..good
    });
    assert!(matches!(&unpaired, TlsError::Pair { .. }), "{unpaired}");
}
