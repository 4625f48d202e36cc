//! Listening: an accept loop of its own, one task per connection, and an end that waits for answers but not for ever.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::connection::{Connection, InFlight, Overdue, Patience};
use super::tls::TlsAcceptor;
use super::wire::{Socket, Watched, Wire};
use crate::config::{Address, HttpLimits, Listen};

/// How long a client that is still sending is listened to after the end of a connection.
const LINGER: Duration = Duration::from_secs(5);
/// Waits after an accept that failed for want of resources: at first, and at most.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// What HTTP/2 clients may have in flight towards them is their choice; towards us there are no bodies to speak of.
const MAX_STREAMS: u32 = 1024;
/// Bytes of an HTTP/2 stream that are queued for a client.
const MAX_STREAM_QUEUE_BYTES: usize = 512 * 1024;
/// How often an HTTP/2 client that says nothing is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// hyper refuses smaller buffers.
const MIN_BUFFER_BYTES: usize = 8192;

/// An address cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on `{address}`")]
pub struct ListenError {
    /// The address as configured.
    pub address: String,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// How connections are treated.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long clients may take.
    pub patience: Patience,
    /// The most the head of a request may take, in bytes.
    pub max_header_bytes: usize,
    /// Whether HTTP/2 is spoken without TLS too.
    pub is_h2c_enabled: bool,
}

impl Options {
    /// As configured under `larder.http` and `http.h2c`.
    pub fn new(limits: &HttpLimits, is_h2c_enabled: bool) -> Self {
        Self {
            patience: Patience {
                header: limits.header_timeout,
                idle: limits.idle_timeout,
                write_stall: limits.write_stall_timeout,
            },
            max_header_bytes: usize::try_from(limits.max_header_bytes).unwrap_or(usize::MAX),
            is_h2c_enabled,
        }
    }
}

/// An address that is listened on; connections wait in the kernel until [`Listener::serve`].
#[derive(Debug)]
pub struct Listener(Accepting);

#[derive(Debug)]
enum Accepting {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: Removed },
}

/// Removes a unix socket's file in the end.
#[derive(Debug)]
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`ListenError`] when the address is taken, not ours, or does not resolve.
    pub async fn bind(listen: &Listen) -> Result<Self, ListenError> {
        let (result, address) = match listen {
            Listen::Tcp(address) => (bind_tcp(address).await, tcp_text(address)),
            Listen::Unix(path) => (bind_unix(path).await, path.display().to_string()),
        };
        result.map(Self).map_err(|source| ListenError { address, source })
    }

    /// The TCP address that was bound, with the port the system chose; `None` for a unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.0 {
            Accepting::Tcp(listener) => listener.local_addr().ok(),
            Accepting::Unix { .. } => None,
        }
    }

    /// Answers connections until `stop` is cancelled; then closes those that are idle, and returns when the others have
    /// ended or `drain` has passed.
    pub async fn serve(
        self,
        router: Router,
        tls: Option<TlsAcceptor>,
        options: Options,
        stop: CancellationToken,
        drain: Duration,
    ) {
        let tasks = TaskTracker::new();
        let kill = CancellationToken::new();
        let server = Arc::new(Server {
            router,
            tls,
            options,
            stop: stop.clone(),
            kill: kill.clone(),
            tasks: tasks.clone(),
        });
        stop.run_until_cancelled(self.accept(&server)).await;
        drop(server);
        tasks.close();
        if timeout(drain, tasks.wait()).await.is_err() {
            tracing::warn!(
                connections = tasks.len(),
                "cutting connections that did not end within the drain time"
            );
            kill.cancel();
            tasks.wait().await;
        }
    }

    async fn accept(self, server: &Arc<Server>) {
        let mut pause = ACCEPT_PAUSE.0;
        loop {
            match self.0.accept().await {
                Ok((socket, remote)) => {
                    pause = ACCEPT_PAUSE.0;
                    let server = server.clone();
                    let tasks = server.tasks.clone();
                    tasks.spawn(async move { server.connection(socket, remote).await });
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE.1);
                }
            }
        }
    }
}

impl Accepting {
    async fn accept(&self) -> io::Result<(Socket, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                // Without this the last segment of an answer waits for an acknowledgement.
                let _ = stream.set_nodelay(true);
                Ok((Socket::Tcp(stream), remote.to_string()))
            }
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((Socket::Unix(stream), "unix".to_owned()))
            }
        }
    }
}

fn tcp_text(address: &Address) -> String {
    if address.host.contains(':') {
        format!("[{}]:{}", address.host, address.port)
    } else {
        format!("{}:{}", address.host, address.port)
    }
}

async fn bind_tcp(address: &Address) -> io::Result<Accepting> {
    let listener = if address.host.is_empty() {
        // Both families by one socket; a host without IPv6 has only the other one.
        match TcpListener::bind((Ipv6Addr::UNSPECIFIED, address.port)).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(("0.0.0.0", address.port)).await
            }
            result => result,
        }
    } else {
        TcpListener::bind((address.host.as_str(), address.port)).await
    };
    listener.map(Accepting::Tcp)
}

async fn bind_unix(path: &Path) -> io::Result<Accepting> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        // Left behind by a process that was killed.
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    Ok(Accepting::Unix {
        listener,
        _file: Removed(path.to_owned()),
    })
}

/// Whether an error of `accept` concerns the connection that came, and not the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// What all connections share.
struct Server {
    router: Router,
    tls: Option<TlsAcceptor>,
    options: Options,
    stop: CancellationToken,
    kill: CancellationToken,
    tasks: TaskTracker,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    Either,
}

impl Server {
    async fn connection(&self, socket: Socket, remote: String) {
        let socket = Arc::new(socket);
        // hyper looks at the first bytes to tell HTTP/2 apart and then no longer writes in vectors, which sendfile needs.
        let is_sendfile_possible = self.tls.is_none() && !self.options.is_h2c_enabled;
        let connection = Arc::new(Connection::new(remote, is_sendfile_possible));
        let wire = Wire::new(socket.clone(), connection.regions());
        match &self.tls {
            None if self.options.is_h2c_enabled => self.drive(wire, Protocol::Either, &connection).await,
            None => self.drive(wire, Protocol::Http1, &connection).await,
            Some(tls) => self.encrypted(tls, wire, &connection).await,
        }
        if connection.must_linger() {
            self.kill.run_until_cancelled(socket.linger(LINGER)).await;
        }
    }

    async fn encrypted(&self, tls: &TlsAcceptor, wire: Wire, connection: &Arc<Connection>) {
        let handshake = timeout(self.options.patience.header, tls.accept(wire));
        match self.stop.run_until_cancelled(handshake).await {
            Some(Ok(Ok(stream))) => {
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let protocol = if is_http2 {
                    Protocol::Http2
                } else {
                    Protocol::Http1
                };
                self.drive(stream, protocol, connection).await;
            }
            Some(Ok(Err(error))) => {
                tracing::debug!(remote = connection.remote(), %error, "a TLS handshake failed");
            }
            Some(Err(_)) => tracing::debug!(remote = connection.remote(), "a TLS handshake took too long"),
            None => {}
        }
    }

    /// Speaks HTTP until one side ends it, the client is overdue, or the server stops.
    async fn drive<T>(&self, stream: T, protocol: Protocol, connection: &Arc<Connection>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        if protocol == Protocol::Http2 {
            connection.is_multiplexed();
        }
        let stream = TokioIo::new(Watched::new(stream, connection.clone()));
        let service = service_fn(|request| answer(self.router.clone(), request, connection.clone()));
        let builder = self.builder(protocol);
        let mut speaking = pin!(builder.serve_connection(stream, service));
        let mut look = interval(self.look_interval());
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_ending = false;
        let mut is_asked_to_end = false;
        loop {
            tokio::select! {
                result = &mut speaking => {
                    if let Err(error) = result {
                        tracing::debug!(remote = connection.remote(), %error, "a connection ended with an error");
                        connection.linger();
                    }
                    return;
                }
                () = self.stop.cancelled(), if !is_ending => {
                    is_ending = true;
                    speaking.as_mut().graceful_shutdown();
                }
                () = self.kill.cancelled() => return,
                _ = look.tick() => match connection.overdue(&self.options.patience) {
                    None => {}
                    Some(Overdue::Idle) if !is_asked_to_end => {
                        is_asked_to_end = true;
                        speaking.as_mut().graceful_shutdown();
                    }
                    Some(overdue) => {
                        tracing::debug!(remote = connection.remote(), ?overdue, "a client took too long");
                        return;
                    }
                },
            }
        }
    }

    fn look_interval(&self) -> Duration {
        let Patience {
            header,
            idle,
            write_stall,
        } = self.options.patience;
        (header.min(idle).min(write_stall) / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    fn builder(&self, protocol: Protocol) -> auto::Builder<Tracked> {
        let mut builder = auto::Builder::new(Tracked(self.tasks.clone()));
        // The watch over the connection keeps its own limits, which tell heads from idling.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(self.options.max_header_bytes.max(MIN_BUFFER_BYTES));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buf_size(MAX_STREAM_QUEUE_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .max_header_list_size(u32::try_from(self.options.max_header_bytes).unwrap_or(u32::MAX));
        match protocol {
            Protocol::Http1 => builder.http1_only(),
            Protocol::Http2 => builder.http2_only(),
            Protocol::Either => builder,
        }
    }
}

/// Spawns what hyper needs for HTTP/2 streams where a stop waits for it.
#[derive(Debug, Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

async fn answer(
    router: Router,
    mut request: Request<Incoming>,
    connection: Arc<Connection>,
) -> Result<Response<Answering>, Infallible> {
    let in_flight = connection.begin_request();
    if request.version() == Version::HTTP_2 {
        connection.is_multiplexed();
    }
    request.extensions_mut().insert(connection);
    let response = router.oneshot(request.map(Body::new)).await?;
    Ok(response.map(|body| Answering {
        body,
        _in_flight: in_flight,
    }))
}

/// A body that keeps its request in flight.
struct Answering {
    body: Body,
    _in_flight: InFlight,
}

impl http_body::Body for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
