//! `TestUpstream`: a registry inside the test process that counts every request and byte, and misbehaves to order.
//!
//! It has three listeners on loopback: the registry, the token server and the "CDN" that redirects lead to. What it
//! holds comes from [`content`]; what goes wrong is said in rules (`upstream.fault(on("/blobs/"), ...)`); what it was
//! asked stands in its [`Log`].

mod auth;
mod content;
mod fault;
mod gzip;
mod log;
mod registry;
mod spoil;
mod wire;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(crate) use auth::{Auth, Realm, Scheme, basic_header};
pub(crate) use content::{
    Blob, DOCKER_LIST, DOCKER_MANIFEST, Document, Image, OCI_INDEX, OCI_MANIFEST, big_manifest, digest_of,
    index_of, manifest_without_media_type,
};
pub(crate) use fault::{Cut, Fault, Gate, Matcher, Redirect, Role, on};
pub(crate) use log::{Asked, Log};
pub(crate) use registry::TagPages;

use fault::Rules;
use registry::Registry;
use spoil::{redirect, spoil};
use wire::{Connection, Progress, Reply, Request};

/// The registry that a test puts behind larder.
pub(crate) struct TestUpstream {
    shared: Arc<Shared>,
    registry: SocketAddr,
    /// Ends the registry's listener and its connections, and counts them; replaced when it comes back.
    open: Mutex<Opening>,
}

/// A listener that is open: how to close it, and the tasks that end then.
#[derive(Clone)]
struct Opening {
    close: CancellationToken,
    tasks: TaskTracker,
}

/// What the tasks of the listeners share.
struct Shared {
    state: Mutex<State>,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
}

#[derive(Default)]
struct State {
    registry: Registry,
    rules: Rules,
    log: Log,
}

impl TestUpstream {
    /// Starts a registry over plain HTTP.
    #[expect(
        clippy::unused_async,
        reason = "must be called inside a runtime, as all starts are"
    )]
    pub(crate) async fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a registry over TLS, with this certificate on all listeners.
    #[expect(
        clippy::unused_async,
        reason = "must be called inside a runtime, as all starts are"
    )]
    pub(crate) async fn start_tls(config: rustls::ServerConfig) -> Self {
        Self::start_with(Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            tls,
            stop: CancellationToken::new(),
        });
        let open = shared.opening();
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let registry = shared.listen(Role::Registry, loopback, open.clone());
        let token = shared.listen(Role::Token, loopback, shared.opening());
        let cdn = shared.listen(Role::Cdn, loopback, shared.opening());
        {
            let mut state = shared.state.lock();
            state.registry.origin = format!("{scheme}://{registry}");
            state.registry.token_origin = format!("{scheme}://{token}");
            state.registry.cdn_origin = format!("{scheme}://{cdn}");
        }
        Self {
            shared,
            registry,
            open: Mutex::new(open),
        }
    }

    /// `scheme://127.0.0.1:port` of the registry.
    pub(crate) fn url(&self) -> String {
        self.shared.state.lock().registry.origin.clone()
    }

    /// `host:port` of the token server.
    pub(crate) fn token_host(&self) -> String {
        let url = self.shared.state.lock().registry.token_origin.clone();
        url.rsplit('/').next().unwrap_or_default().to_owned()
    }

    /// Closes the registry's port and all its connections: from now on it refuses.
    pub(crate) async fn refuse(&self) {
        let open = self.open.lock().clone();
        open.close.cancel();
        open.tasks.close();
        open.tasks.wait().await;
    }

    /// Opens the same port again.
    pub(crate) fn come_back(&self) {
        let open = self.shared.opening();
        self.shared.listen(Role::Registry, self.registry, open.clone());
        *self.open.lock() = open;
    }

    /// Puts a blob into a repository.
    pub(crate) fn put_blob(&self, repository: &str, blob: &Blob) {
        self.with_repository(repository, |held| {
            held.blobs.insert(blob.digest.clone(), blob.clone())
        });
    }

    /// Puts a manifest into a repository.
    pub(crate) fn put_manifest(&self, repository: &str, document: &Document) {
        self.with_repository(repository, |held| {
            held.manifests.insert(document.digest.clone(), document.clone())
        });
    }

    /// Puts an image into a repository.
    pub(crate) fn push(&self, repository: &str, image: &Image) {
        self.put_manifest(repository, &image.manifest);
        for blob in image.blobs() {
            self.put_blob(repository, blob);
        }
    }

    /// Puts an image into a repository, under a tag.
    pub(crate) fn push_tagged(&self, repository: &str, tag: &str, image: &Image) {
        self.push(repository, image);
        self.tag(repository, tag, &image.manifest);
    }

    /// Points a tag at a manifest.
    pub(crate) fn tag(&self, repository: &str, tag: &str, document: &Document) {
        self.put_manifest(repository, document);
        self.with_repository(repository, |held| {
            held.tags.insert(tag.to_owned(), document.digest.clone())
        });
    }

    /// Takes a tag away; the manifest stays.
    pub(crate) fn untag(&self, repository: &str, tag: &str) {
        self.with_repository(repository, |held| held.tags.remove(tag));
    }

    /// Takes a blob or a manifest away.
    pub(crate) fn forget(&self, repository: &str, digest: &str) {
        self.with_repository(repository, |held| {
            held.blobs.remove(digest);
            held.manifests.remove(digest);
        });
    }

    fn with_repository<T>(&self, name: &str, change: impl FnOnce(&mut registry::Repository) -> T) {
        change(
            self.shared
                .state
                .lock()
                .registry
                .repositories
                .entry(name.to_owned())
                .or_default(),
        );
    }

    pub(crate) fn set_auth(&self, auth: Auth) {
        self.shared.state.lock().registry.auth = auth;
    }

    /// Every token that is out is worth nothing from now on.
    pub(crate) fn revoke_tokens(&self) {
        self.shared.state.lock().registry.tokens.revoke_all();
    }

    /// How tags are paged, and how many make a page at most.
    pub(crate) fn set_tag_pages(&self, pages: TagPages, page_size: usize) {
        let mut state = self.shared.state.lock();
        state.registry.tag_pages = pages;
        state.registry.tag_page_size = Some(page_size);
    }

    /// Switches the referrers API on, with or without filtering by artifact type.
    pub(crate) fn enable_referrers(&self, filters: bool) {
        let mut state = self.shared.state.lock();
        state.registry.has_referrers = true;
        state.registry.filters_referrers = filters;
    }

    /// What matches goes wrong in this way, from now on.
    pub(crate) fn fault(&self, matcher: Matcher, fault: Fault) {
        self.shared.state.lock().rules.add(matcher, fault, 0, None);
    }

    /// The next `times` that match go wrong in this way.
    pub(crate) fn fault_times(&self, times: u32, matcher: Matcher, fault: Fault) {
        self.shared.state.lock().rules.add(matcher, fault, 0, Some(times));
    }

    /// After `skip` that match and go well, `times` go wrong.
    pub(crate) fn fault_after(&self, skip: u32, times: u32, matcher: Matcher, fault: Fault) {
        self.shared
            .state
            .lock()
            .rules
            .add(matcher, fault, skip, Some(times));
    }

    /// Nothing goes wrong any more.
    pub(crate) fn heal(&self) {
        self.shared.state.lock().rules.clear();
    }

    /// A copy of the log as it stands.
    pub(crate) fn log(&self) -> Log {
        self.shared.state.lock().log.clone()
    }

    /// Empties the log.
    pub(crate) fn reset_log(&self) {
        self.shared.state.lock().log = Log::default();
    }

    /// Waits, at most ten seconds, until the log satisfies `is_so`.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Log) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        while !is_so(&self.log()) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "upstream never saw {what}:\n{}",
                self.log().lines()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for TestUpstream {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- asked upstream:\n{}", self.log().lines());
        }
        self.shared.stop.cancel();
    }
}

impl Shared {
    fn opening(&self) -> Opening {
        Opening {
            close: self.stop.child_token(),
            tasks: TaskTracker::new(),
        }
    }

    /// Binds and serves until `open` ends; says where.
    fn listen(self: &Arc<Self>, role: Role, address: SocketAddr, open: Opening) -> SocketAddr {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("an option that exists");
        socket.bind(address).expect("the port is ours");
        let listener = socket.listen(1024).expect("a bound socket listens");
        let bound = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::clone(self);
        let tasks = open.tasks.clone();
        tasks.spawn(async move { shared.accept(role, listener, open).await });
        bound
    }

    async fn accept(self: Arc<Self>, role: Role, listener: TcpListener, open: Opening) {
        loop {
            let stream = tokio::select! {
                () = open.close.cancelled() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(_) => continue,
                },
            };
            let shared = Arc::clone(&self);
            let close = open.close.clone();
            open.tasks.spawn(async move {
                tokio::select! {
                    () = close.cancelled() => {}
                    () = shared.serve(role, stream) => {}
                }
            });
        }
    }

    async fn serve(&self, role: Role, stream: TcpStream) {
        let Some(mut connection) = self.connect(stream).await else {
            return;
        };
        while let Some(request) = connection.next_request().await {
            let number = self.note_request(role, &request);
            let outcome = self.respond(role, &request, number, &mut connection).await;
            let mut state = self.state.lock();
            if let Some(asked) = state.log.0.get_mut(number) {
                asked.is_finished = matches!(outcome, ControlFlow::Continue(()) | ControlFlow::Break(true));
                asked.is_aborted = !asked.is_finished;
            }
            if outcome.is_break() {
                return;
            }
        }
    }

    async fn connect(&self, stream: TcpStream) -> Option<Connection> {
        let stream = stream.into_std().ok()?;
        let socket = socket2::Socket::from(stream.try_clone().ok()?);
        let stream = TcpStream::from_std(stream).ok()?;
        stream.set_nodelay(true).ok()?;
        let io: Box<dyn wire::Io> = match &self.tls {
            Some(tls) => Box::new(tls.accept(stream).await.ok()?),
            None => Box::new(stream),
        };
        Some(Connection {
            io,
            socket,
            buffered: Vec::new(),
        })
    }

    fn note_request(&self, role: Role, request: &Request) -> usize {
        let mut state = self.state.lock();
        state.log.0.push(Asked {
            role,
            method: request.method.clone(),
            path: request.path.clone(),
            query: request.query.clone(),
            headers: request.headers.clone(),
            status: 0,
            sent_bytes: 0,
            is_aborted: false,
            is_finished: false,
        });
        state.log.0.len() - 1
    }

    async fn respond(
        &self,
        role: Role,
        request: &Request,
        number: usize,
        connection: &mut Connection,
    ) -> ControlFlow<bool> {
        let faults = {
            let is_ranged = request.header("range").is_some();
            self.state
                .lock()
                .rules
                .take(role, &request.method, &request.path, is_ranged)
        };
        for fault in &faults {
            match fault {
                Fault::Delay(time) => tokio::time::sleep(*time).await,
                Fault::HoldHeaders(gate) => gate.pass().await,
                Fault::BlackHole => {
                    connection.cut(Cut::Stall).await;
                    return ControlFlow::Break(false);
                }
                Fault::Drop(how) => {
                    connection.cut(*how).await;
                    return ControlFlow::Break(false);
                }
                _ => {}
            }
        }
        let mut reply = self.reply(role, request, &faults);
        if request
            .header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
        {
            reply.set("Connection", Some("close".to_owned()));
        }
        let mut note = |progress: Progress| {
            let mut state = self.state.lock();
            match (state.log.0.get_mut(number), progress) {
                (Some(asked), Progress::Status(status)) => asked.status = status,
                (Some(asked), Progress::Sent(bytes)) => asked.sent_bytes += bytes,
                (None, _) => {}
            }
        };
        connection.send(&reply, request.method == "HEAD", &mut note).await
    }

    /// What the registry answers, spoilt by the faults.
    fn reply(&self, role: Role, request: &Request, faults: &[Fault]) -> Reply {
        let mut state = self.state.lock();
        let registry = &mut state.registry;
        let mut request = request.clone();
        if faults.iter().any(|fault| matches!(fault, Fault::IgnoreRange)) {
            request.headers.retain(|(name, _)| name != "range");
        }
        let mut reply = registry.answer(role, &request);
        let is_good = matches!(reply.status, 200 | 206);
        for fault in faults {
            match fault {
                Fault::Redirect(status, to) if is_good && role == Role::Registry => {
                    reply = redirect(registry, *status, *to, &request).unwrap_or(reply);
                }
                fault => spoil(&mut reply, fault, &request),
            }
        }
        reply
    }
}
