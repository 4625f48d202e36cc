//! HTTP/1.1 by hand: just enough to read requests, and to send answers that end exactly where a test wants.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;

use super::content::Blob;
use super::fault::{Cut, Gate};

/// No request head of a test is larger.
const HEAD_LIMIT_BYTES: usize = 256 * 1024;

/// The most that is handed to the socket at once.
const PIECE_BYTES: u64 = 256 * 1024;

/// A byte stream to a client: TCP, or TLS over it.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A client's connection, and beside it the socket itself, for resets.
pub(super) struct Connection {
    pub(super) io: Box<dyn Io>,
    pub(super) socket: socket2::Socket,
    pub(super) buffered: Vec<u8>,
}

/// A parsed request head.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: Vec<(String, String)>,
}

impl Request {
    /// A target in absolute form is what a proxy is sent; its host is left out.
    fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?);
        let target = target
            .strip_prefix("http://")
            .map_or(target, |url| url.find('/').map_or("/", |at| &url[at..]));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Some(Self {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers,
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The value of a query key, percent-decoded.
    pub(super) fn query_value(&self, key: &str) -> Option<String> {
        self.query_values(key).next()
    }

    pub(super) fn query_values(&self, key: &str) -> impl Iterator<Item = String> {
        url::form_urlencoded::parse(self.query.as_bytes())
            .filter(move |(name, _)| name == key)
            .map(|(_, value)| value.into_owned())
    }
}

/// How the length of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length,
    Chunked,
    Close,
}

/// What happens to a body on its way out.
#[derive(Clone, Debug, Default)]
pub(super) struct Course {
    pub(super) cut: Option<(u64, Cut)>,
    pub(super) holds: Vec<(u64, Gate)>,
    pub(super) bytes_per_second: Option<u64>,
    /// Offset in `body`, not in the answer.
    pub(super) wrong_byte: Option<u64>,
}

/// An answer, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Blob,
    /// The part of `body` that is sent.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) framing: Framing,
    pub(super) course: Course,
}

impl Reply {
    pub(super) fn new(status: u16, content_type: &str, body: Blob) -> Self {
        let end = body.len();
        let headers = vec![("Content-Type".to_owned(), content_type.to_owned())];
        Self {
            status,
            headers,
            body,
            start: 0,
            end,
            framing: Framing::Length,
            course: Course::default(),
        }
    }

    pub(super) fn error(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({"errors": [{"code": code, "message": message}]}).to_string();
        Self::new(status, "application/json", Blob::mislabelled("", body))
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.set(name, Some(value.into()));
        self
    }

    /// Sets or removes a header.
    pub(super) fn set(&mut self, name: &str, value: Option<String>) {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case(name));
        self.headers.extend(value.map(|value| (name.to_owned(), value)));
    }

    fn says_close(&self) -> bool {
        self.headers
            .iter()
            .any(|(name, value)| name == "Connection" && value == "close")
    }

    fn head(&self, will_close: bool) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        head.extend(
            self.headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n")),
        );
        match self.framing {
            Framing::Length => {
                let told = self
                    .headers
                    .iter()
                    .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                if !told {
                    head.extend([format!("Content-Length: {}\r\n", self.end - self.start)]);
                }
            }
            Framing::Chunked => head.push_str("Transfer-Encoding: chunked\r\n"),
            Framing::Close => {}
        }
        if will_close && !self.says_close() {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        head
    }
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Unknown")
}

/// How far an answer got.
pub(super) enum Progress {
    Status(u16),
    Sent(u64),
}

impl Connection {
    /// The next request, or `None` when the client has left.
    pub(super) async fn next_request(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(at) = self.buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            let mut piece = vec![0; 16 * 1024];
            let count = self.io.read(&mut piece).await.ok()?;
            if count == 0 || self.buffered.len() > HEAD_LIMIT_BYTES {
                return None;
            }
            self.buffered.extend_from_slice(piece.get(..count)?);
        };
        let head = String::from_utf8_lossy(self.buffered.get(..end)?).into_owned();
        self.buffered.drain(..end + 4);
        Request::parse(&head)
    }

    /// Sends an answer; tells `note` how far it got. Breaks when the connection is of no further use.
    pub(super) async fn send(
        &mut self,
        reply: &Reply,
        is_head: bool,
        note: &mut (dyn FnMut(Progress) + Send),
    ) -> ControlFlow<bool> {
        let will_close = reply.framing == Framing::Close || reply.course.cut.is_some();
        if self
            .io
            .write_all(reply.head(will_close).as_bytes())
            .await
            .is_err()
        {
            return ControlFlow::Break(false);
        }
        note(Progress::Status(reply.status));
        if is_head || matches!(reply.status, 204 | 304) {
            return self
                .after(reply, will_close && reply.framing == Framing::Close)
                .await;
        }
        self.send_body(reply, note).await?;
        self.after(reply, will_close).await
    }

    async fn after(&mut self, reply: &Reply, will_close: bool) -> ControlFlow<bool> {
        let is_sent = self.io.flush().await.is_ok();
        if will_close
            || reply
                .headers
                .iter()
                .any(|(name, value)| name == "Connection" && value == "close")
        {
            let _ = self.io.shutdown().await;
            return ControlFlow::Break(is_sent);
        }
        if is_sent {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(false)
        }
    }

    async fn send_body(
        &mut self,
        reply: &Reply,
        note: &mut (dyn FnMut(Progress) + Send),
    ) -> ControlFlow<bool> {
        let course = &reply.course;
        let began = Instant::now();
        let mut holds = course.holds.clone();
        let mut at = reply.start;
        loop {
            let sent = at - reply.start;
            if let Some((_, how)) = course.cut.filter(|(limit, _)| sent >= *limit) {
                self.cut(how).await;
                return ControlFlow::Break(false);
            }
            if let Some(place) = holds.iter().position(|(limit, _)| sent >= *limit) {
                let (_, gate) = holds.remove(place);
                let _ = self.io.flush().await;
                if !self.unless_left(gate.pass()).await {
                    return ControlFlow::Break(false);
                }
                continue;
            }
            if at >= reply.end {
                break;
            }
            let stop = course
                .cut
                .iter()
                .map(|(limit, _)| *limit)
                .chain(holds.iter().map(|(limit, _)| *limit));
            let limit = stop.map(|limit| reply.start + limit).min().unwrap_or(reply.end);
            let most = course
                .bytes_per_second
                .map_or(PIECE_BYTES, |rate| (rate / 50).clamp(1, PIECE_BYTES));
            let until = reply.end.min(limit).min(at + most);
            let piece = reply.piece(at, until);
            if self.io.write_all(&piece).await.is_err() {
                return ControlFlow::Break(false);
            }
            note(Progress::Sent(until - at));
            at = until;
            if let Some(rate) = course.bytes_per_second {
                let due = Duration::from_micros((at - reply.start) * 1_000_000 / rate.max(1));
                if !self.unless_left(tokio::time::sleep_until(began + due)).await {
                    return ControlFlow::Break(false);
                }
            }
        }
        let end: &[u8] = if reply.framing == Framing::Chunked {
            b"0\r\n\r\n"
        } else {
            b""
        };
        if self.io.write_all(end).await.is_err() {
            ControlFlow::Break(false)
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Waits for `event`; false when the client leaves first.
    async fn unless_left(&mut self, event: impl Future<Output = ()>) -> bool {
        tokio::pin!(event);
        let mut piece = [0; 1024];
        loop {
            tokio::select! {
                () = &mut event => return true,
                read = self.io.read(&mut piece) => match read {
                    Ok(0) | Err(_) => return false,
                    Ok(count) => self.buffered.extend_from_slice(piece.get(..count).unwrap_or_default()),
                },
            }
        }
    }

    /// Ends the connection in one of the three ways.
    pub(super) async fn cut(&mut self, how: Cut) {
        let _ = self.io.flush().await;
        match how {
            Cut::Fin => {
                let _ = self.io.shutdown().await;
            }
            Cut::Rst => {
                let _ = self.socket.set_linger(Some(Duration::ZERO));
            }
            Cut::Stall => {
                self.unless_left(std::future::pending()).await;
            }
        }
    }
}

impl Reply {
    /// The bytes on the wire for this part of the body.
    fn piece(&self, at: u64, until: u64) -> Vec<u8> {
        let mut bytes = self.body.read(at..until);
        if let Some(wrong) = self.course.wrong_byte.filter(|wrong| (at..until).contains(wrong)) {
            let place = usize::try_from(wrong - at).expect("a piece fits in memory");
            bytes[place] ^= 0x55;
        }
        if self.framing == Framing::Chunked {
            let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
            chunk.append(&mut bytes);
            chunk.extend_from_slice(b"\r\n");
            return chunk;
        }
        bytes
    }
}
